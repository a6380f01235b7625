"""What scripts that meet with faults leave behind, and what is reported of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from orbit_ckpt.testing.chaos import Chaos, Fault, Run
from orbit_ckpt.testing.chaos.damage import flip_bits

pytest_plugins = ["orbit_ckpt.testing.chaos"]

SAVE = """
import os
with open("new", "wb") as file:
    file.write(b"0123456789")
    file.flush()
    os.fsync(file.fileno())
os.rename("new", "saved")
print("done")
"""
KINDS = ["open", "write", "fsync", "rename"]


@pytest.fixture(params=["forked", "not forked"])
def either(chaos: Chaos, request: pytest.FixtureRequest) -> Chaos:
    """Scripts start in both ways."""
    chaos.preload = ("json",) if request.param == "forked" else ()
    return chaos


@pytest.fixture
def light(chaos: Chaos) -> Chaos:
    """Scripts start quickly, because they need no JAX."""
    chaos.preload = ("json",)
    return chaos


def run(chaos: Chaos, directory: Path, *faults: Fault, script: str = SAVE) -> Run:
    file = directory.with_name("script.py")
    file.write_text(script)
    directory.mkdir(exist_ok=True)
    return chaos.run(file, "an argument", directory=directory, faults=faults)


def files_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_operations_are_counted_and_described(either: Chaos, tmp_path: Path) -> None:
    found = run(either, tmp_path / "d").check()
    assert [operation.kind for operation in found.operations] == KINDS
    assert [str(operation) for operation in found.operations][1::2] == [
        "operation 2: write of 10 bytes new",
        "operation 4: rename new -> saved",
    ]
    assert not found.faults
    assert files_in(tmp_path / "d") == {"saved": b"0123456789"}


@pytest.mark.parametrize(
    ("at", "left"),
    [(1, {}), (2, {"new": b""}), (3, {"new": b"0123456789"}), (4, {"new": b"0123456789"})],
)
def test_a_kill_comes_right_before_an_operation(
    either: Chaos, tmp_path: Path, at: int, left: dict[str, bytes]
) -> None:
    found = run(either, tmp_path / "d", either.kill(at))
    assert found.was_killed
    assert found.status == -signal.SIGKILL
    assert found.faults == found.operations[at - 1 :]
    assert files_in(tmp_path / "d") == left


def test_a_kill_selects_kinds_and_paths(light: Chaos, tmp_path: Path) -> None:
    for fault in (light.kill(kind="rename"), light.kill(path="*/saved"), light.kill(4, path="*")):
        (found,) = run(light, tmp_path / "d", fault).faults
        assert found.kind == "rename"
    assert not run(light, tmp_path / "d", light.kill(2, kind="rename")).status


def test_a_torn_write_leaves_half(either: Chaos, tmp_path: Path) -> None:
    assert run(either, tmp_path / "d", either.tear(2)).was_killed
    assert files_in(tmp_path / "d") == {"new": b"01234"}


def test_a_failure_is_raised_in_the_script(either: Chaos, tmp_path: Path) -> None:
    found = run(either, tmp_path / "d", either.fail(4, 13))
    assert found.status == 1
    assert "PermissionError: [Errno 13] Permission denied" in found.stderr
    assert [*files_in(tmp_path / "d")] == ["new"]


def test_a_lie_reports_success(light: Chaos, tmp_path: Path) -> None:
    assert run(light, tmp_path / "lost", light.lie(2)).stdout == "done\n"
    assert files_in(tmp_path / "lost") == {"saved": b""}
    assert run(light, tmp_path / "stays", light.lie(kind="rename")).stdout == "done\n"
    assert [*files_in(tmp_path / "stays")] == ["new"]


def test_a_lie_about_a_write_leaves_a_gap_before_the_next(light: Chaos, tmp_path: Path) -> None:
    script = """
import os
descriptor = os.open("f", os.O_WRONLY | os.O_CREAT)
os.writev(descriptor, [b"ab", b"c"])
assert os.write(descriptor, b"def") == 3
assert os.pwrite(descriptor, b"g", 6) == 1
"""
    run(light, tmp_path / "d", light.lie(2), script=script).check()
    assert files_in(tmp_path / "d") == {"f": b"\0\0\0defg"}


def test_a_full_disk_takes_what_fits(light: Chaos, tmp_path: Path) -> None:
    found = run(light, tmp_path / "d", light.fill_disk(7))
    assert "No space left on device" in found.stderr
    assert files_in(tmp_path / "d") == {"new": b"0123456"}
    assert not run(light, tmp_path / "e", light.fill_disk(10)).status


def test_a_stalled_script_waits_for_its_release(either: Chaos, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SAVE)
    directory = tmp_path / "d"
    directory.mkdir()
    running = either.start(script, directory=directory, faults=[either.stall(kind="rename")])
    assert str(running.wait_until_stalled()) == "operation 4: rename new -> saved"
    assert [*files_in(directory)] == ["new"]
    assert running.poll() is None
    running.release()
    assert running.wait().check().stdout == "done\n"
    assert [*files_in(directory)] == ["saved"]


def test_a_delay_ends_by_itself(light: Chaos, tmp_path: Path) -> None:
    found = run(light, tmp_path / "d", light.stall(4, seconds=0.01)).check()
    assert [operation.kind for operation in found.faults] == ["rename"]


def test_a_script_that_does_not_end_is_killed(light: Chaos, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import signal; signal.pause()")
    with pytest.raises(TimeoutError, match=r"script\.py\nhas not ended within 0.1 s"):
        light.run(script, directory=tmp_path, timeout_s=0.1)


def test_a_process_id_that_is_given_again_is_another_run(light: Chaos, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time\ntime.sleep(0.2)\nprint('done')")
    first = light.start(script, directory=tmp_path)
    first.wait().check()
    for _attempt in range(20):  # another process may take the id first
        try:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(first.pid - 1))
        except OSError as error:
            pytest.skip(f"the system does not let process ids be chosen: {error}")
        second = light.start(script, directory=tmp_path)
        assert second.wait().check().stdout == "done\n"
        if second.pid == first.pid:
            return
    pytest.skip("other processes took the id in every attempt")


def test_a_script_sees_what_it_would_see_without_chaos(either: Chaos, tmp_path: Path) -> None:
    script = """
import os, sys, __main__
import beside
print(sys.argv[1:], __name__, __main__.__file__ == sys.argv[0] == __file__, os.getcwd())
print(os.environ["MINE"], [name for name in os.environ if "CHAOS" in name], beside.VALUE)
print(sys.stdin.read(), file=sys.stderr)
sys.exit(7)
"""
    (tmp_path / "beside.py").write_text("VALUE = 3")
    either.environment["MINE"] = "yes"
    found = run(either, tmp_path / "d", script=script)
    assert found.status == 7
    assert found.stdout == f"['an argument'] __main__ True {tmp_path / 'd'}\nyes [] 3\n"
    assert found.stderr == "\n"


def test_an_error_of_a_script_is_shown(either: Chaos, tmp_path: Path) -> None:
    found = run(either, tmp_path / "d", script="raise ValueError('no such luck')")
    assert found.status == 1
    with pytest.raises(AssertionError, match=r"script\.py(.|\n)*status 1(.|\n)*no such luck"):
        found.check()


def test_other_directories_and_processes_do_not_count(either: Chaos, tmp_path: Path) -> None:
    script = """
import os, subprocess, sys
open("../outside", "w").write("x")
open("../script.py").read()
child = os.fork()
if child == 0:
    open("forked", "w").write("x")
    os._exit(0)
os.waitpid(child, 0)
subprocess.run([sys.executable, "-c", "open('run', 'w').write('x')"], check=True)
"""
    assert run(either, tmp_path / "d", script=script).check().operations == ()
    assert {*files_in(tmp_path / "d")} == {"forked", "run"}


def test_what_starts_python_is_not_hidden(chaos: Chaos, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.customized = 5")
    chaos.preload = ()
    chaos.environment["PYTHONPATH"] = str(tmp_path)
    assert run(chaos, tmp_path / "d", script="print(customized)").check().stdout == "5\n"


def test_the_kit_imports_nothing_into_a_script(chaos: Chaos, tmp_path: Path) -> None:
    chaos.preload = ()
    script = "import sys; print({'jax', 'numpy', 'pytest', 'tensorstore'} & {*sys.modules})"
    assert run(chaos, tmp_path / "d", script=script).check().stdout == "set()\n"


def test_a_setting_that_jax_has_read_already_is_refused(chaos: Chaos, tmp_path: Path) -> None:
    chaos.preload = ("jax",)
    script = "import os; os.environ['JAX_ENABLE_X64'] = '1'"
    found = run(chaos, tmp_path / "d", script=script)
    assert found.status == 1
    assert "chaos.environment['JAX_ENABLE_X64'] = '1'" in found.stderr
    chaos.environment["JAX_ENABLE_X64"] = "1"
    script += "; import jax; print(jax.numpy.ones(1).dtype)"
    assert run(chaos, tmp_path / "d", script=script).check().stdout == "float64\n"
    del chaos.environment["JAX_ENABLE_X64"]
    chaos.preload = ()
    assert run(chaos, tmp_path / "d", script=script).check().stdout == "float64\n"


def test_processes_of_one_program_end_together(light: Chaos, tmp_path: Path) -> None:
    waits = tmp_path / "waits.py"
    waits.write_text("import signal; signal.pause()")
    saves = tmp_path / "saves.py"
    saves.write_text(SAVE)
    scripts = [
        light.start(waits, directory=tmp_path),
        light.start(saves, directory=tmp_path, faults=[light.kill(2)]),
    ]
    assert [run.status for run in light.wait_for_all(*scripts)] == [-signal.SIGKILL] * 2
    directories = [tmp_path / "0", tmp_path / "1"]
    for directory in directories:
        directory.mkdir()
    scripts = [light.start(saves, directory=directory) for directory in directories]
    assert [run.stdout for run in light.wait_for_all(*scripts)] == ["done\n"] * 2


def test_bits_flip_in_files_of_a_directory(tmp_path: Path) -> None:
    before = {"a": bytes(10), "b": bytes(1000), "c": b""}
    for name, data in before.items():
        (tmp_path / name).write_bytes(data)
    flipped = flip_bits(tmp_path, 3)
    after = files_in(tmp_path)
    assert sum(byte.bit_count() for data in after.values() for byte in data) == len(flipped) == 3
    assert {name: len(data) for name, data in after.items()} == {"a": 10, "b": 1000, "c": 0}
    flip_bits(tmp_path, 3)
    assert files_in(tmp_path) == before
    with pytest.raises(FileNotFoundError, match="no bytes"):
        flip_bits(tmp_path / "c")


def test_faults_are_counted_from_one(light: Chaos) -> None:
    with pytest.raises(ValueError, match="at=0"):
        light.kill(0)
    with pytest.raises(ValueError, match="tidying"):
        light.kill(phase="tidying")


def test_no_script_outlives_its_test(light: Chaos, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import signal; signal.pause()")
    running = light.start(script, directory=tmp_path)
    light.close()
    assert running.wait().was_killed
    with pytest.raises(ProcessLookupError):
        os.kill(running.pid, 0)
