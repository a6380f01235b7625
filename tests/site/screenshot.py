"""Take the picture of the report page: `python -m tests.site.screenshot`, with Playwright."""

# Playwright is not installed everywhere.
# pyright: reportMissingImports=false

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.report.page import write_report

PICTURE = Path(__file__).parents[2] / "docs" / "assets" / "report.png"
SIZE = {"width": 1280, "height": 1000}


def save_run(root: Path) -> Path:
    """Save a run that fine-tunes adapters of a frozen model; return its directory."""
    rng = np.random.default_rng(0)
    layers = [f"layer_{i}" for i in range(8)]
    frozen = {name: rng.standard_normal((256, 256)).astype(np.float32) for name in layers}
    adapters: dict[str, Any] = {
        name: rng.standard_normal((256, 16)).astype(np.float32) for name in layers
    }
    options = ocp.CheckpointManagerOptions(incremental=True)
    with ocp.CheckpointManager(root / "runs" / "lora", options=options) as run:
        for i in range(10):
            params = {"frozen": frozen, "adapters": dict(adapters)}
            run.save(100 * (i + 1), {"params": params}, metrics={"loss": 2.4 * 0.8**i + 0.3})
            for depth, (name, old) in enumerate(adapters.items(), start=1):
                step = rng.standard_normal(old.shape).astype(np.float32)
                adapters[name] = old + step * 0.02 * depth * 0.7**i
            run.wait_until_finished()
        run.pin(300)
    return root / "runs" / "lora"


def take_picture(page: Path, picture: Path) -> None:
    """Write what Chromium shows of the top of a page."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - not installed everywhere

    program = shutil.which("chromium") or shutil.which("chrome")
    with sync_playwright() as running:
        browser: Any = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        shown = browser.new_page(viewport=SIZE)
        shown.goto(page.as_uri() + "#at=params")
        shown.wait_for_selector("html[data-ready=yes]", state="attached")
        shown.evaluate("document.getElementById('path').textContent = 'runs/lora'")
        shown.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        page = Path(directory) / "report.html"
        write_report(save_run(Path(directory)), page, steps=10)
        take_picture(page, PICTURE)
