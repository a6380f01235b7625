"""A server of the page: it follows the run, and answers only those it should."""

from __future__ import annotations

import http.client
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.report.document import PageSource, ReportOptions
from orbit_ckpt._src.cli.report.serve import LivePage, PageServer
from tests.cli.conftest import COMMAND, ENVIRONMENT
from tests.cli.test_report import data_of, make_run, matrix_of
from tests.support import counted

Serve = Callable[..., PageServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return what serves a path on a free port."""
    running: list[tuple[PageServer, threading.Thread]] = []

    def start(path: Path) -> PageServer:
        live = LivePage(PageSource(path, ReportOptions()))
        live.refresh()
        server = PageServer("127.0.0.1", 0, live)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


def get(server: PageServer, path: str, host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    try:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_page_follows_the_run_and_reads_each_step_once(serve: Serve, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((3, 20_000))
    run = make_run(tmp_path / "run", *({"w": value} for value in values[:2]))
    server = serve(run)
    _, page = get(server, "/")
    before = data_of(page)
    assert get(server, "/version") == (200, before["live"])
    assert not server.live.refresh()
    with ocp.CheckpointManager(run) as manager:
        manager.save(3, {"w": values[2]})
    with counted() as nbytes:
        assert server.live.refresh()
    assert nbytes[0] < 2.5 * values[0].nbytes  # the new step and the one that it is compared with
    data = data_of(get(server, "/")[1])
    assert data["live"] != before["live"]
    assert [step["step"] for step in data["history"]] == [1, 2, 3]
    moved = np.linalg.norm(np.diff(values, axis=0), axis=1) / np.linalg.norm(values[:2], axis=1)
    np.testing.assert_allclose(matrix_of(data, "change")["w"][1:], moved)


def test_a_deleted_step_is_not_what_the_next_is_compared_with(serve: Serve, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", *({"w": np.full(4, n)} for n in (1.0, 2.0, 3.0)))
    server = serve(run)
    with ocp.CheckpointManager(run) as manager:
        manager.delete(2)
    server.live.refresh()
    data = data_of(get(server, "/")[1])
    assert [step["step"] for step in data["history"]] == [1, 3]
    assert matrix_of(data, "change")["w"][1] == 2.0


def test_a_pin_changes_the_page(serve: Serve, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"w": 1}, {"w": 2})
    server = serve(run)
    with ocp.CheckpointManager(run) as manager:
        manager.pin(1)
    assert server.live.refresh()
    assert data_of(get(server, "/")[1])["history"][0]["pinned"]


def test_only_pages_of_this_machine_are_answered(serve: Serve, tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {"w": 1})
    server = serve(tmp_path / "c")
    port = server.server_address[1]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}", "localhost"):
        assert get(server, "/", host)[0] == 200
    for host in (f"evil.example:{port}", "evil.example", f"localhost.evil.example:{port}"):
        assert get(server, "/", host)[0] == 403
    assert get(server, "/../../etc/passwd")[0] == 404


def test_a_page_that_cannot_be_updated_stays(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", {"w": 1})
    server = serve(run)
    stopped = threading.Event()
    run.rename(tmp_path / "away")
    follower = threading.Thread(target=server.live.follow, args=(0.01, stopped))
    follower.start()
    try:
        printed = ""
        while "not updated" not in printed:
            printed += capsys.readouterr().out
    finally:
        stopped.set()
        follower.join()
    assert get(server, "/")[0] == 200


def test_the_command_says_where_the_page_is_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {"w": 1})
    command = [*COMMAND, "serve", str(tmp_path / "c"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_a_port_that_is_taken_is_an_error(serve: Serve, tmp_path: Path) -> None:
    ocp.save(tmp_path / "c", {"w": 1})
    server = serve(tmp_path / "c")
    with pytest.raises(ValueError, match=rf"port {server.server_address[1]}: cannot listen there"):
        PageServer("127.0.0.1", server.server_address[1], server.live)
