"""What commands import; time would depend on the machine."""

from __future__ import annotations

import collections
import inspect
import json
import shlex
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.app import app
from orbit_ckpt._src.cli.command import LazyCommand
from tests.cli.conftest import ENVIRONMENT

PUBLIC = sorted(Path(ocp.__file__).parent.glob("*.py"))
PLUGIN_SEARCH = ("email", "importlib.metadata", "zipfile")
SLOW = (
    *("asyncio", "etils", "html", "http", "jax", "multiprocessing", "numpy", "pydantic", "rich"),
    *("secrets", "socket", "ssl", "tensorstore", "tomllib", "typer", "unittest", "urllib.request"),
    *PLUGIN_SEARCH,
)
SCRIPT = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from orbit_ckpt.cli import main

found = []
for arguments, environment in json.load(sys.stdin):
    sys.argv, before = ["orbit-ckpt", *arguments], dict(os.environ)
    os.environ.update(environment)
    with redirect_stdout(io.TextIOWrapper(io.BytesIO())) as out:
        try:
            main()
        except SystemExit as end:
            status = end.code
    os.environ.clear()
    os.environ.update(before)
    out.seek(0)
    loaded = [name for name in json.loads(os.environ["SLOW"]) if name in sys.modules]
    found.append([status, out.read(), loaded])
print(json.dumps(found))
"""


def run_in_turn(*commands: tuple[list[str], dict[str, str]]) -> list[tuple[int, str, list[str]]]:
    """Run commands in one fresh process; return status, output and the slow packages loaded."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(commands),
        check=True,
        env={**ENVIRONMENT, "SLOW": json.dumps(SLOW)},
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def test_version_and_help_import_no_slow_package() -> None:
    helps = [([name, "--help"], {}) for name in app.commands]
    assert (["ls", "--help"], {}) in helps
    for status, out, loaded in run_in_turn((["--version"], {}), *helps, (["--help"], {})):
        assert status == 0
        assert not set(loaded).difference(PLUGIN_SEARCH if "\nCommands:" in out else ())
        assert out.startswith(("orbit-ckpt ", "Usage: "))


@pytest.fixture
def run_of_steps(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    with ocp.CheckpointManager(root) as manager:
        for step in range(4):
            arguments = ocp.args.StandardSave({"w": np.arange(4.0)})
            manager.save(step, args=arguments, metrics={"loss": float(step)})
    (root / "notes.txt").write_text("of the user")
    return root


@pytest.mark.slow
def test_commands_about_a_run_import_no_slow_package(run_of_steps: Path) -> None:
    run = str(run_of_steps)
    for status, out, loaded in run_in_turn(
        (["ls", run, "--keep-best", "1", "--metric", "loss"], {}),
        (["ls", run, "--json"], {}),
        (["du", run], {}),
        (["pin", f"{run}@2"], {}),
        (["unpin", f"{run}@2"], {}),
        (["rm", f"{run}/2", "--yes"], {}),
        (["watch", run, "--until", "3"], {}),
        (["prune", run, "--keep-last", "1", "--yes"], {}),
    ):
        assert (status, loaded) == (0, []), out
    assert sorted(path.name for path in run_of_steps.iterdir()) == ["3", "notes.txt"]


def test_a_list_of_plugins_imports_no_slow_package_but_those_that_find_them() -> None:
    ((status, out, loaded),) = run_in_turn((["plugins"], {}))
    assert status == 0, out
    assert set(loaded) <= {*PLUGIN_SEARCH}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    pair = collections.namedtuple("pair", "mu nu")
    tree = {
        "layers": [{"w": jnp.ones((2, 3))}, {"w": jnp.zeros(4, jnp.bfloat16)}],
        "opt": pair(np.arange(4), (1, 2.5)),
        "by_step": {10: "ten", 9: None},
        "empty": {},
    }
    ocp.save(tmp_path / "checkpoint", tree)
    return tmp_path / "checkpoint"


@pytest.mark.slow
def test_commands_that_read_no_values_import_numpy_alone(
    checkpoint: Path, run_of_steps: Path
) -> None:
    path, run = str(checkpoint), str(run_of_steps)
    for status, out, loaded in run_in_turn(
        *((["ls", path, *form], {}) for form in ([], ["--json"])),
        *((["tree", place, *form], {}) for place in (path, run) for form in ([], ["--json"])),
        (["tree", f"{run}@best:loss", "--only", "w"], {}),
        (["diff", path, path], {}),
        (["diff", f"{run}@latest", f"{run}@0", "--json"], {}),
    ):
        assert status == 0, out
        assert loaded == ["numpy"], out


@pytest.mark.parametrize("given", [None, "3"])
def test_numpy_gets_one_thread_for_products_unless_the_user_says_otherwise(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    script = """
import os, sys
from orbit_ckpt.cli import main
sys.argv[1:] = ["tree", *sys.argv[1:]]
try:
    main()
finally:
    print("numpy" in sys.modules, os.environ["OPENBLAS_NUM_THREADS"])
"""
    monkeypatch.delitem(ENVIRONMENT, "OPENBLAS_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setitem(ENVIRONMENT, "OPENBLAS_NUM_THREADS", given)
    assert run_script(script, checkpoint).splitlines()[-1] == f"True {given or 1}"


def test_importing_public_modules_imports_neither_jax_nor_tensorstore() -> None:
    modules = ["orbit_ckpt", *(f"orbit_ckpt.{p.stem}" for p in PUBLIC if p.stem != "__init__")]
    script = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", script], check=True, env=ENVIRONMENT, capture_output=True, text=True
    ).stdout
    assert set(modules) <= set(out.split())
    assert not {"jax", "tensorstore", "numpy"} & set(out.split())


def run_script(script: str, *arguments: object) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *map(str, arguments)],
        check=True,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.slow
def test_metadata_read_without_jax_become_a_pytree_once_it_is_imported(checkpoint: Path) -> None:
    script = """
import sys, orbit_ckpt as ocp
found = ocp.metadata(sys.argv[1])
print({"asyncio", "jax", "tensorstore"} & {*sys.modules})
print(found["layers"][0]["w"].shape, found["opt"].mu.dtype)
import jax
names = jax.tree.map(lambda leaf: leaf.name, found)
print(type(names) is type(found), names["by_step"], names["empty"])
"""
    assert run_script(script, checkpoint).splitlines() == [
        "set()",
        "(2, 3) int64",
        "True {9: None, 10: 'by_step.10'} {}",
    ]


@pytest.mark.slow
def test_metadata_of_typed_keys_have_their_dtype_in_a_process_without_jax(tmp_path: Path) -> None:
    ocp.save(tmp_path / "keys", {"key": jax.random.key(0)})
    script = "import sys, orbit_ckpt as ocp; print(ocp.metadata(sys.argv[1])['key'].dtype)"
    assert run_script(script, tmp_path / "keys") == "key<fry>\n"


def test_metadata_is_a_module_that_can_be_called(run_of_steps: Path) -> None:
    step = run_of_steps / "1" / "default"
    script = (
        "import orbit_ckpt as ocp; first = ocp.metadata\n"
        "from orbit_ckpt.metadata import TreeMetadata\n"
        f"print(first is ocp.metadata, isinstance(ocp.metadata({str(step)!r}), TreeMetadata))"
    )
    assert run_script(script) == "True True\n"


def completion_of(*words: str, on: str = "bash") -> tuple[list[str], dict[str, str]]:
    """Return the request to complete the last of several words, which bash has split."""
    environment = {
        "_ORBIT_CKPT_COMPLETE": f"{on}_complete",
        "COMP_WORDS": (" " if on == "fish" else "\n").join(words),
        "COMP_CWORD": words[-1] if on == "fish" else str(len(words) - 1),
    }
    return [], environment


def test_completion_knows_commands_steps_metrics_and_leaves(
    run_of_steps: Path, checkpoint: Path
) -> None:
    run = str(run_of_steps)
    expected = [
        (completion_of("orbit-ckpt", "ls", "--js"), ["--json"]),
        (completion_of("orbit-ckpt", "tree", run, "--sort", ""), ["tree", "name", "size"]),
        (completion_of("orbit-ckpt", "tree", run[:-1]), [run[:-1]]),  # which the shell completes
        (completion_of("orbit-ckpt", "tree", run, "@", ""), ["latest", "best:loss", *"0123"]),
        (completion_of("orbit-ckpt", "tree", run, "@", "best", ":", "l"), ["loss"]),
        (completion_of("orbit-ckpt", "tree", f"{run}@best", on="fish"), [f"{run}@best:loss"]),
        (completion_of("orbit-ckpt", "show", run, "@", "latest", ""), ["w"]),
        (completion_of("orbit-ckpt", "show", str(checkpoint), "layers/1"), ["layers/1/w"]),
        (completion_of("orbit-ckpt", "tree", run, "--only", ""), ["w"]),
        (completion_of("orbit-ckpt", "show", str(checkpoint / "none"), "l"), []),
        (completion_of("orbit-ckpt", "l"), ["ls"]),  # which may be a plug-in's
    ]
    printed = run_in_turn(*(request for request, _ in expected))
    for (status, out, loaded), (_, wanted) in zip(printed, expected, strict=True):
        assert status == 0
        assert not set(loaded).difference(PLUGIN_SEARCH if wanted == ["ls"] else ())
        lines = (line.partition(",") for line in out.splitlines())
        assert [value for kind, _, value in lines if kind] == wanted


@pytest.mark.parametrize(
    ("shell", "script", "startup"),
    [
        ("bash", ".bash_completions/orbit-ckpt.sh", ".bashrc"),
        ("zsh", ".zfunc/_orbit-ckpt", ".zshrc"),
        ("fish", ".config/fish/completions/orbit-ckpt.fish", None),
    ],
)
def test_completion_is_installed_once_for_each_shell(
    tmp_path: Path, shell: str, script: str, startup: str | None
) -> None:
    environment = {"HOME": str(tmp_path), "SHELL": f"/usr/bin/{shell}"}
    (tmp_path / ".bashrc").write_text("alias l=ls")
    for _ in range(2):
        done = CliRunner().invoke(app, ["--install-completion"], env=environment)
        assert done.output.startswith(f"{tmp_path / script}: completion for {shell}")
    assert f"_ORBIT_CKPT_COMPLETE={shell}_complete" in (tmp_path / script).read_text()
    lines = (tmp_path / (startup or ".bashrc")).read_text().splitlines()
    assert len(lines) == len(set(lines)) == {"bash": 2}.get(shell, 1)
    assert CliRunner().invoke(app, ["--show-completion"], env=environment).output == (
        (tmp_path / script).read_text()
    )


def test_completion_in_another_shell_is_refused() -> None:
    done = CliRunner().invoke(app, ["--show-completion"], env={"SHELL": "/bin/tcsh"})
    assert isinstance(done.exception, ValueError)
    assert "'tcsh'; completion works in bash, fish, zsh" in str(done.exception)


def test_every_command_has_an_example_that_it_understands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # there are no runs: each ends with an error about that
    for name, known in app.commands.items():
        example = (known.epilog or "").removeprefix("Example: ")
        program, command, *arguments = shlex.split(example)
        assert (program, command) == ("orbit-ckpt", name)
        known.make_context(command, arguments, resilient_parsing=False)
        shown = CliRunner().invoke(app, [name, "--help"], terminal_width=200).output
        assert f"Example: {example}" in shown


def test_every_command_has_the_parameters_of_its_implementation() -> None:
    for name, command in app.commands.items():
        assert isinstance(command, LazyCommand)
        wanted = set(inspect.signature(command.implementation()).parameters)
        assert {parameter.name for parameter in command.params} == wanted, name
