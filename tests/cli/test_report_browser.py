"""The page in Chromium: what it draws, where clicks and keys lead, and whether all can use it."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.report.document import PageSource, ReportOptions
from orbit_ckpt._src.cli.report.page import write_report
from orbit_ckpt._src.cli.report.serve import LivePage, PageServer
from tests.cli.test_report import NASTY, damage_chunk, make_run
from tests.support import put

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
LAYER = "params/decoder/layer_1/up"

pytestmark = pytest.mark.slow

Page = Any  # of Playwright, which only `nox -s browser` installs
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs Playwright; `nox -s browser` installs it"
    )
    if CHROMIUM is None:
        pytest.skip("needs Chromium, such as Debian's package `chromium`")
    with playwright.sync_playwright() as running:
        yield running.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Return what opens a page; an error or a message in its console fails the test."""
    messages: list[str] = []
    contexts: list[Any] = []

    def run(file: Path, fragment: str = "", *, width: int = 1280, theme: str = "light") -> Page:
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=theme, accept_downloads=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.goto(file.as_uri() + fragment)
        page.wait_for_selector("html[data-ready=yes]", state="attached")
        return page

    yield run
    for context in contexts:
        context.close()
    assert messages == []


def make_tree(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    layers = {
        f"layer_{i}": {"up": rng.standard_normal((64, 32)).astype(np.float32), "bias": np.zeros(32)}
        for i in range(3)
    }
    if step == 3:
        layers["layer_1"]["up"][0, :5] = np.nan
    layers["layer_2"]["up"] = put(layers["layer_2"]["up"], "x", "y", x=4, y=2)
    momentum = {name: layer["bias"] for name, layer in layers.items()}
    return {"params": {"decoder": layers}, "opt_state": momentum, "step": step, "name": "tiny"}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page of three steps: the newest has NaN, the second a damaged leaf."""
    root = tmp_path_factory.mktemp("report")
    with ocp.CheckpointManager(root / "run") as run:
        for step, loss in ((1, 0.5), (2, 0.001), (3, 0.4)):
            run.save(step, make_tree(step), metrics={"loss": loss, "accuracy": 1 - loss})
        run.pin(1)
    damage_chunk(root / "run" / "2")
    write_report(root / "run", root / "report.html")
    return root / "report.html"


def names_in(page: Page) -> list[str]:
    """Return the names of the leaves in the table."""
    return page.locator("#table td.name button").evaluate_all("all => all.map((b) => b.title)")


def test_names_are_text_wherever_they_are_shown(visit: Open, tmp_path: Path) -> None:
    tree = {NASTY: np.ones(3000), "{{data}}": {"__proto__": np.array([2**62]), "t": "{{title}}"}}
    directory = tmp_path / NASTY.replace("/", "")
    ocp.save(directory, tree, custom_metadata={"note": NASTY})
    write_report(directory, tmp_path / "report.html")
    page = visit(tmp_path / "report.html")
    assert page.locator("img").count() == 0
    assert page.locator("h1").text_content() == directory.name
    assert set(names_in(page)) == {NASTY, "{{data}}/__proto__", "{{data}}/t"}
    page.get_by_role("button", name="__proto__").last.click()
    assert str(2**62) in page.locator("dialog").text_content()


def test_a_nan_leads_to_its_leaf_and_back_returns(visit: Open, report: Path) -> None:
    page = visit(report)
    page.get_by_role("button", name="leaf with NaN or Inf").click()
    assert page.locator("#leaf-title").text_content() == LAYER
    assert page.locator("dl .bad").text_content() == "NaN5"
    page.go_back()
    assert page.locator("dialog[open]").count() == 0
    page.locator("#map .head", has_text="decoder").click()
    assert page.locator("#count").text_content() == "6 of 11 leaves below params/decoder"
    page.go_back()
    assert page.locator("#count").text_content() == "11 leaves"


def test_damage_is_listed_and_leads_to_the_leaf(visit: Open, report: Path) -> None:
    page = visit(report)
    problem = page.locator("#problem-list").text_content()
    assert problem.startswith("Step 2")
    assert "checksum does not match" in problem
    page.get_by_role("button", name="damaged step").click()
    assert "checksum does not match" in page.locator("dialog .damage").text_content()
    states = page.locator("#steps tbody tr td:nth-child(2)").all_text_contents()
    assert [text.split()[1] for text in states] == ["1", "damaged", "values"]


def test_a_cell_of_the_heat_map_opens_its_leaf_at_its_step(visit: Open, report: Path) -> None:
    page = visit(report, "#at=params/decoder&heat=l2")
    rows = page.locator("#heat-names button").all_text_contents()
    row = rows.index("layer_2/up")
    box = page.locator("#heat-map").bounding_box()
    cell = {"x": 60, "y": 24 * row + 12}
    page.locator("#heat-map").hover(position=cell)
    assert "L2 norm" in page.locator("#tip").text_content()
    assert box["height"] == 24 * (len(rows) + 1)
    page.locator("#heat-map").click(position=cell)
    assert page.locator("#leaf-title").text_content() == "params/decoder/layer_2/up"
    assert page.locator("#leaf-step").input_value() == "1"
    norm = np.linalg.norm(np.asarray(make_tree(1)["params"]["decoder"]["layer_2"]["up"]))
    assert f"L2 norm{norm:.5g}"[:13] in page.locator("dialog dl").text_content()


def test_the_heat_map_is_used_with_the_keyboard(visit: Open, report: Path) -> None:
    page = visit(report, "#heat=nans")
    page.locator("#heat-map").focus()
    page.keyboard.press("ArrowUp")
    told = page.locator("#heat-at").text_content()
    assert "step 3" in told
    rows = page.locator("#heat-names button").all_text_contents()
    for _ in range(rows.index(LAYER)):
        page.keyboard.press("ArrowDown")
    assert page.locator("#heat-at").text_content() == f"{LAYER}: step 3, NaN and Inf 5"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert page.locator("#leaf-title").text_content() == LAYER
    assert page.locator("#leaf-step").input_value() == "2"
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


def test_the_treemap_is_used_with_the_keyboard(visit: Open, report: Path) -> None:
    page = visit(report)
    page.locator('#map button[tabindex="0"]').focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert "at=params%2Fdecoder" in page.url
    page.locator('#map button[tabindex="0"]').focus()
    page.keyboard.press("Escape")
    assert page.url.endswith("at=params")
    page.locator('#map button[tabindex="0"]').focus()
    before = page.evaluate("document.activeElement.ariaLabel")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.ariaLabel") != before


def test_the_treemap_gives_every_module_its_share_of_the_area(visit: Open, tmp_path: Path) -> None:
    sizes = {"a": 6000, "b": 3000, "c": 1000}
    ocp.save(tmp_path / "tree", {name: {"w": np.zeros(n, np.int8)} for name, n in sizes.items()})
    write_report(tmp_path / "tree", tmp_path / "report.html")
    page = visit(tmp_path / "report.html")
    boxes = page.locator("#map .group").evaluate_all(
        "all => all.map((b) => (b.offsetWidth + 2) * (b.offsetHeight + 2))"
    )
    assert [round(area / sum(boxes), 2) for area in boxes] == [0.6, 0.3, 0.1]


def test_the_treemap_is_coloured_by_a_number_and_shows_params_only(
    visit: Open, report: Path
) -> None:
    page = visit(report)
    page.locator("#colour").select_option("l2")
    cells = page.locator("#map .cell")
    colours = set(cells.evaluate_all("all => all.map((b) => getComputedStyle(b).backgroundColor)"))
    assert len(colours) > 2
    page.locator("#params").check()
    assert page.locator("#count").text_content() == "6 of 6 leaves"
    assert "params=1" in page.url
    assert "opt_state" not in page.locator("#map").text_content()
    assert page.locator("#load-line").text_content().endswith('/run/3", only="params/**")')


def test_leaves_are_searched_sorted_and_exported(visit: Open, report: Path) -> None:
    page = visit(report)
    page.locator("#search").fill("UP")
    assert names_in(page) == [f"params/decoder/layer_{i}/up" for i in range(3)]
    page.get_by_role("columnheader", name="max").get_by_role("button").click()
    values = page.locator("#table tbody tr td:nth-child(6)").all_text_contents()
    assert values == sorted(values, key=float, reverse=True)
    page.locator("#columns summary").click()
    page.get_by_label("min", exact=True).uncheck()
    page.get_by_label("zeros", exact=True).check()
    with page.expect_download() as download:
        page.locator("#csv").click()
    header, *rows = download.value.path().read_text().splitlines()
    assert header == "name,dtype,shape,bytes,max,mean,L2,change,NaN,Inf,zeros"
    assert len(rows) == 3
    assert rows[0].split(",")[0] in {f"params/decoder/layer_{i}/up" for i in range(3)}
    assert '"[64, 32]",8192,' in rows[0]


def test_the_line_of_python_loads_what_is_selected(visit: Open, report: Path) -> None:
    page = visit(report, "#search=layer_2/up")
    line = page.locator("#load-line").text_content()
    loaded = eval(line, {"orbit_ckpt": ocp})  # noqa: S307 - what a user does with it
    assert list(loaded) == ["params"]
    assert loaded["params"]["decoder"]["layer_2"]["up"].shape == (64, 32)
    page.locator("#load-line + button").click()
    page.locator("#load-line + button", has_text="Copied").wait_for()


def test_two_steps_are_compared(visit: Open, report: Path) -> None:
    page = visit(report, "#a=1&b=3")
    note = page.locator("#compare-note").text_content()
    assert "from step 1 to step 3" in note
    assert "upper bound" in note
    rows = page.locator("#difference tbody tr").all_text_contents()
    assert LAYER in rows[0]
    assert "+5 NaN or Inf" in rows[0]
    page.locator("#step-a").select_option("2")
    rows = page.locator("#difference tbody tr").all_text_contents()
    assert any("damaged" in row for row in rows)
    assert any(row.startswith("step50 %") for row in rows)
    line = page.locator("#compare-line").text_content()
    run = report.parent / "run"
    assert line == f"orbit-ckpt diff {run}/2 {run}/3 --values"


def test_curves_have_a_log_scale_pins_and_the_best_step(visit: Open, report: Path) -> None:
    page = visit(report)
    loss = page.locator(".chart", has_text="loss").first
    marks = page.locator("#steps tbody tr td:nth-child(3)")
    assert marks.all_text_contents() == ["newest", "best", "pinned"]
    assert (loss.locator(".pin").count(), loss.locator(".best").count()) == (1, 1)
    line = loss.locator(".series").get_attribute("d")
    page.get_by_label("Log scale").check()
    assert loss.locator(".series").get_attribute("d") != line
    page.locator("#best").select_option("highest loss")
    assert marks.all_text_contents() == ["newest", "", "pinnedbest"]


def test_the_axis_of_nearly_equal_sizes_does_not_repeat_itself(visit: Open, report: Path) -> None:
    page = visit(report)
    chart = page.locator(".chart", has_text="size on disk")
    labels = chart.locator('text[text-anchor="end"]').all_text_contents()[:-1]
    assert len(set(labels)) == len(labels)


def test_the_save_of_the_shown_step_is_a_timeline(visit: Open, report: Path) -> None:
    page = visit(report, "#step=1")
    assert page.locator("#timeline-title").text_content() == "Save of step 1"
    lanes = page.locator("#lanes .lane span").all_text_contents()
    assert {"Training", "Background"} & set(lanes)
    assert page.locator("#lanes .track i").count() > 0
    names, values = (page.locator(f"#phases {tag}").all_text_contents() for tag in ("dt", "dd"))
    facts = dict(zip(names, values, strict=True))
    assert re.fullmatch(r"[\d.]+ m?s", facts["Until complete"])
    page.locator("#step").select_option("3")
    assert page.locator("#timeline-title").text_content() == "Save of step 3"


def test_steps_that_share_files_say_what_each_adds(visit: Open, tmp_path: Path) -> None:
    frozen = np.random.default_rng(0).standard_normal(50_000)
    options = ocp.CheckpointManagerOptions(incremental=True)
    with ocp.CheckpointManager(tmp_path / "run", options=options) as run:
        for step in range(2):
            run.save(step, {"frozen": frozen, "step": step})
    write_report(tmp_path / "run", tmp_path / "report.html")
    page = visit(tmp_path / "report.html")
    assert "more without sharing" in page.locator("#tiles").text_content()
    heads = page.locator("#steps th").all_text_contents()
    newest = page.locator("#steps tbody tr").first.locator("td").all_text_contents()
    assert re.fullmatch(r"[\d.]+ k?B", newest[heads.index("new")])
    assert newest[heads.index("shared")].endswith(" %")


def test_a_leaf_shows_its_histogram_and_its_devices(visit: Open, report: Path) -> None:
    page = visit(report, "#leaf=params/decoder/layer_2/up")
    dialog = page.locator("dialog")
    assert dialog.locator(".bin").count() > 30
    label = dialog.locator(".devices svg").get_attribute("aria-label")
    assert label.startswith("8 parts, each on 1 device: 0; 1; 2")
    assert "Each part is [16, 16]" in dialog.text_content()
    assert "Distribution by step" in dialog.text_content()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("fragment", ["", f"#leaf={LAYER}", "#colour=l2&heat=nans"])
def test_everyone_can_use_the_page(
    visit: Open, report: Path, width: int, theme: str, fragment: str
) -> None:
    package = pytest.importorskip("axe_playwright_python", reason="`nox -s browser` installs it")
    script = Path(package.__file__).with_name("axe.min.js").read_text()
    page = visit(report, fragment, width=width, theme=theme)
    page.evaluate(script)
    found = page.evaluate("axe.run()")["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_fifty_thousand_leaves_are_a_page_like_any_other(visit: Open, tmp_path: Path) -> None:
    tree = {f"m{i}": {f"w{j}": np.full(1, i) for j in range(100)} for i in range(500)}
    ocp.save(tmp_path / "many", tree)
    write_report(tmp_path / "many", tmp_path / "report.html", statistics=False)
    page = visit(tmp_path / "report.html", "#sort=-shown")
    assert page.locator("#count").text_content() == "50,000 leaves"
    assert names_in(page)[0] == "m99/w99"
    assert len(names_in(page)) < 200
    assert page.locator("button").count() < 6000
    page.locator("#table").evaluate("box => { box.scrollTop = box.scrollHeight; }")
    page.locator("#table td.name button[title='m0/w0']").wait_for()
    page.locator("#search").fill("m123/w45")
    assert names_in(page) == ["m123/w45"]


def test_an_open_page_shows_a_new_step_of_the_run(browser: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"w": np.ones(4)})
    live = LivePage(PageSource(run, ReportOptions()))
    live.refresh()
    context = browser.new_context()
    with PageServer("127.0.0.1", 0, live) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            page = context.new_page()
            page.goto(f"{server.url}#search=w&log=1")
            page.locator("#path .mark", has_text="live").wait_for()
            with ocp.CheckpointManager(run) as manager:
                manager.save(2, {"w": np.zeros(4)})
            live.refresh()
            page.locator("#steps tbody tr td:first-child", has_text="2").wait_for()
            assert page.locator("#search").input_value() == "w"
            assert page.get_by_label("Log scale").is_checked()
        finally:
            context.close()
            server.shutdown()
            thread.join()


def test_a_run_without_a_readable_step_is_still_a_page(visit: Open, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"w": 1})
    for file in run.rglob("_METADATA"):
        file.write_bytes(b"{")
    write_report(run, tmp_path / "report.html")
    page = visit(tmp_path / "report.html")
    assert "_METADATA" in page.locator("#problem-list").text_content()
    assert re.search(r"1\s*step", page.locator("#tiles").text_content())
