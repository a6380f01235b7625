"""Programs that import Orbax import this library after `install_as_orbax`.

Each test runs programs of its own: what a process has imported cannot be undone.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INSTALL = "import orbit_ckpt\norbit_ckpt.install_as_orbax()\n"


def run(
    *arguments: object, directory: Path = ROOT, path: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments and directories to import from."""
    flags = ("-W", "error") if not path else ("-S", "-W", "error")
    environment = {"PYTHONPATH": ":".join(map(str, [ROOT, *path])), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        [sys.executable, *flags, *map(str, arguments)],
        check=False,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def output_of(code: str, path: tuple[Path, ...] = ()) -> list[str]:
    """Return the lines that code prints after it has installed the library as Orbax."""
    result = run("-c", INSTALL + code, path=path)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.fixture
def without_orbax(tmp_path: Path) -> Path:
    """Return a directory with all installed packages except Orbax."""
    directory = tmp_path / "packages"
    directory.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("orbax"):
            (directory / entry.name).symlink_to(entry)
    return directory


IMPORTS = """
import orbax.checkpoint as ocp
from orbax import checkpoint
import orbax.checkpoint.handlers
import orbax.checkpoint.type_handlers as type_handlers
from orbax.checkpoint import args, step
from orbax.checkpoint.args import PyTreeSave

assert ocp is checkpoint
assert orbax.checkpoint.handlers is orbit_ckpt.handlers is ocp.handlers
assert type_handlers is orbit_ckpt.type_handlers
assert args is orbit_ckpt.args and args.__spec__.name == "orbit_ckpt.args"
assert step is orbit_ckpt.step
assert PyTreeSave is orbit_ckpt.args.PyTreeSave
assert ocp.CheckpointManager is orbit_ckpt.CheckpointManager
print(ocp.__version__)
"""


def test_every_form_of_import_gives_this_library() -> None:
    assert output_of(IMPORTS) == ["0.12.8"]


@pytest.mark.usefixtures("without_orbax")
def test_orbax_need_not_be_installed(without_orbax: Path) -> None:
    missing = run("-c", "import orbax", path=(without_orbax,))
    assert "No module named 'orbax'" in missing.stderr
    assert output_of(IMPORTS, path=(without_orbax,)) == ["0.12.8"]


def test_neither_the_call_nor_the_import_loads_jax() -> None:
    code = "import sys, orbax.checkpoint, orbax.checkpoint.args; print('jax' in sys.modules)"
    assert output_of(code) == ["False"]


def test_modules_are_attributes_of_the_package() -> None:
    code = "import orbax.checkpoint as ocp; print(ocp.checkpoint_args.__name__, ocp.v1.__name__)"
    assert output_of(code) == ["orbit_ckpt.checkpoint_args orbit_ckpt.v1"]


@pytest.mark.slow
def test_arguments_without_a_handler_are_refused_as_otherwise(tmp_path: Path) -> None:
    code = f"""
import orbit_ckpt
import sys
if "install" in sys.argv:
    orbit_ckpt.install_as_orbax()
    import orbax.checkpoint.args
class Arguments(orbit_ckpt.args.CheckpointArgs):
    pass
with orbit_ckpt.CheckpointManager({str(tmp_path / "run")!r}) as manager:
    try:
        manager.save(1, args=orbit_ckpt.args.Composite(item=Arguments()))
    except Exception as error:
        print(type(error), error)
"""
    usual, installed = (run("-c", code, *given).stdout for given in ([], ["install"]))
    assert installed == usual != ""


def test_names_are_listed_and_imported_by_a_star() -> None:
    code = """
import orbax.checkpoint
print(dir(orbax.checkpoint) == dir(orbit_ckpt))
from orbax.checkpoint import *
print(CheckpointManager is orbit_ckpt.CheckpointManager)
"""
    assert output_of(code) == ["True", "True"]


def test_programs_find_the_release_whose_api_this_is(without_orbax: Path) -> None:
    code = """
import importlib.metadata, importlib.util
import orbax.checkpoint.version
print(importlib.util.find_spec("orbax.checkpoint").name)
print(importlib.util.find_spec("orbax.checkpoint.args").name)
print(importlib.metadata.version("orbax-checkpoint"))
print(importlib.metadata.version("orbax_checkpoint"))
print(orbax.checkpoint.version.__version__)
print(len([d for d in importlib.metadata.distributions() if "orbax" in d.name]))
"""
    expected = ["orbax.checkpoint", "orbax.checkpoint.args", *["0.12.8"] * 3]
    assert output_of(code) == [*expected, "1"]  # the installed one
    assert output_of(code, path=(without_orbax,)) == [*expected, "0"]
    assert 'orbax = ["orbax-checkpoint==0.12.8"]' in (ROOT / "pyproject.toml").read_text()


def test_other_packages_in_the_namespace_of_orbax_work(tmp_path: Path) -> None:
    package = tmp_path / "orbax" / "other"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import orbax.checkpoint\nvalue = 1")
    code = f"""
import sys
sys.path.append({str(tmp_path)!r})
import orbax.checkpoint
from orbax import other
print(other.value, other.orbax.checkpoint.CheckpointManager is orbit_ckpt.CheckpointManager)
"""
    assert output_of(code) == ["1 True"]


def test_second_call_changes_nothing() -> None:
    code = """
import sys, orbax.checkpoint as before
finders = [*sys.meta_path]
orbit_ckpt.install_as_orbax()
import orbax.checkpoint as after
print(before is after, finders == sys.meta_path)
"""
    assert output_of(code) == ["True True"]


@pytest.mark.slow
def test_call_after_orbax_was_imported_is_refused() -> None:
    code = """
import warnings
warnings.simplefilter("ignore")
import orbax.checkpoint, orbit_ckpt
for _ in range(2):
    try:
        orbit_ckpt.install_as_orbax()
    except orbit_ckpt.errors.AlreadyImportedError as error:
        print(error)
print(orbax.checkpoint.CheckpointManager.__module__)
"""
    first, second, module = run("-c", code).stdout.splitlines()
    assert first == second
    assert "orbax/checkpoint/__init__.py" in first
    assert "before anything that imports Orbax" in first
    assert "python -m orbit_ckpt.as_orbax program.py" in first
    assert module == "orbax.checkpoint.checkpoint_manager"


@pytest.mark.parametrize(
    ("statement", "error", "name"),
    [
        ("from orbax.checkpoint import absent", "ModuleNotFoundError", "orbax.checkpoint.absent"),
        ("import orbax.checkpoint.absent", "ModuleNotFoundError", "orbax.checkpoint.absent"),
        ("import orbax.checkpoint._src.path", "ModuleNotFoundError", "orbax.checkpoint._src"),
        ("import orbax.checkpoint as o; o.absent", "AttributeError", "orbax.checkpoint.absent"),
        ("import orbax.checkpoint as o; o.utils.absent", "AttributeError", "'absent'"),
    ],
)
def test_missing_name_is_named_with_the_page_that_lists_them(
    statement: str, error: str, name: str
) -> None:
    message = run("-c", INSTALL + statement).stderr.splitlines()[-1]
    assert message.startswith(f"{error}: ")
    assert name in message
    assert "docs/explanation/differences.md" in message


def test_missing_name_looks_missing_to_a_program_that_tries() -> None:
    code = """
import orbax.checkpoint as ocp
try:
    from orbax.checkpoint import absent
except ImportError:
    absent = None
print(absent, hasattr(ocp, "absent"), getattr(ocp, "absent", None))
"""
    assert output_of(code) == ["None False None"]


PROGRAM = """
import multiprocessing, pickle, sys
import orbax.checkpoint as ocp
from other import value

class Kept:
    pass

def describe(number):
    return number, ocp.Checkpointer.__module__.partition(".")[0], sys.argv[1:]

if __name__ == "__main__":
    assert type(pickle.loads(pickle.dumps(Kept()))) is Kept
    print(describe(value), __package__ or "no package")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(*pool.map(describe, [2]))
"""
PRINTED = ["(1, 'orbit_ckpt', ['a', '--b']) {}", "(2, 'orbit_ckpt', ['a', '--b'])"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "other.py").write_text("value = 1")
    (tmp_path / "package" / "absolute.py").write_text(PROGRAM)
    (tmp_path / "package" / "relative.py").write_text(PROGRAM.replace("from o", "from .o"))
    return tmp_path / "package" / "absolute.py"


@pytest.mark.slow
def test_unchanged_program_and_its_child_processes_use_this_library(program: Path) -> None:
    result = run(
        "-m", "orbit_ckpt.as_orbax", program.relative_to(ROOT.root), "a", "--b", directory=Path("/")
    )
    assert result.stdout.splitlines() == [PRINTED[0].format("no package"), PRINTED[1]], (
        result.stderr
    )


@pytest.mark.slow
def test_unchanged_module_and_its_child_processes_use_this_library(program: Path) -> None:
    module = ["-m", "package.relative", "a", "--b"]
    result = run("-m", "orbit_ckpt.as_orbax", *module, directory=program.parent.parent)
    assert result.stdout.splitlines() == [PRINTED[0].format("package"), PRINTED[1]], result.stderr


def test_main_module_of_a_package_runs(program: Path) -> None:
    main = program.with_name("__main__.py")
    main.write_text("import orbax.checkpoint, sys; print(orbax.checkpoint.__version__, *sys.argv)")
    result = run("-m", "orbit_ckpt.as_orbax", "-m", "package", "a", directory=main.parent.parent)
    assert result.stdout == f"0.12.8 {main} a\n"


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["-m"], 2), (["-h"], 0), (["-x"], 2)])
def test_wrong_command_line_prints_the_usage(arguments: list[str], status: int) -> None:
    result = run("-m", "orbit_ckpt.as_orbax", *arguments)
    assert result.returncode == status
    assert result.stderr.startswith("usage: python -m orbit_ckpt.as_orbax PROGRAM")


@pytest.mark.slow
def test_recipes_of_the_migration_guide_work(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/migrate.md").read_text()
    (recipe,) = re.findall(r"^```py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    result = run("-W", "default", "-c", recipe)  # Flax warns of what JAX has deprecated
    assert result.returncode == 0, result.stderr

    (tmp_path / "project").mkdir()
    for name in ("train.py", "project/train.py"):
        (tmp_path / name).write_text(
            "import sys, orbax.checkpoint as ocp; print(ocp.Checkpointer, sys.argv[1:])"
        )
    commands = re.findall(r"^python (-m orbit_ckpt.as_orbax .*)$", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        printed = run(*command.split(), directory=tmp_path).stdout
        assert printed.startswith("<class 'orbit_ckpt.")
        assert printed.endswith("['--steps', '10']\n")


def test_module_that_does_not_exist_is_named() -> None:
    result = run("-m", "orbit_ckpt.as_orbax", "-m", "absent.module")
    assert "No module named 'absent'" in result.stderr
