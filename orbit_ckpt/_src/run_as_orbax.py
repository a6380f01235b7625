"""Run a program that imports Orbax with this library instead, without a change to the program.

The program runs in the namespace of `orbit_ckpt.as_orbax`, which Python has started as the main
module. Child processes that `multiprocessing` spawns import the main module of their parent by
name, so they import `orbit_ckpt.as_orbax` too, and it runs the same program there.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType
from typing import Any

from typing_extensions import override

from orbit_ckpt._src.as_orbax import install_as_orbax

PROGRAM = "ORBIT_CKPT_PROGRAM"
"""Environment variable that names the parent's program to child processes."""

MODULE = "-m "
_USAGE = """\
usage: python -m orbit_ckpt.as_orbax PROGRAM [ARGUMENT ...]
       python -m orbit_ckpt.as_orbax -m MODULE [ARGUMENT ...]

Run a Python program in which `import orbax.checkpoint` imports orbit_ckpt.
"""


class _MainSpec(ModuleSpec):
    """A spec by which child processes import the runner, with the package of the program."""

    def __init__(self, name: str, package: str) -> None:
        super().__init__(name, None)
        self._package = package

    @property
    @override
    def parent(self) -> str:
        return self._package


def run_as_orbax(namespace: dict[str, Any]) -> None:
    """Run the program that the command line names.

    Args:
        namespace: The namespace of the main module, which becomes the program's.
    """
    runner = namespace["__spec__"].name
    install_as_orbax()
    if namespace["__name__"] == "__main__":
        os.environ[PROGRAM] = _read_command_line()
    program = os.environ[PROGRAM]
    path, package, code = _find(program)
    if namespace["__name__"] == "__main__":
        sys.argv[0] = path
    elif Path(path).name == "__main__.py" and program.startswith(MODULE):
        return  # as `multiprocessing` does: such a file rarely looks at its name
    for name in [*namespace]:
        if name not in {"__name__", "__builtins__"}:
            del namespace[name]
    namespace |= {"__file__": path, "__package__": package, "__spec__": _MainSpec(runner, package)}
    exec(code, namespace)  # noqa: S102 - the program that was asked for


def _read_command_line() -> str:
    arguments = sys.argv[1:]
    is_module = arguments[:1] == ["-m"]
    if is_module:
        del arguments[0]
    if not arguments or arguments[0].startswith("-"):
        sys.stderr.write(_USAGE)
        raise SystemExit(0 if arguments[:1] in (["-h"], ["--help"]) else 2)
    sys.argv[:] = arguments
    if is_module:
        return f"{MODULE}{arguments[0]}"
    path = Path(arguments[0]).absolute()
    if not sys.flags.safe_path:
        sys.path[0] = str(path.parent)
    return str(path)


def _find(program: str) -> tuple[str, str, CodeType]:
    """Return file, package and code of a program.

    Raises:
        ImportError: There is no such module.
        OSError: The file cannot be read.
    """
    if not program.startswith(MODULE):
        with io.open_code(program) as file:
            return program, "", compile(file.read(), program, "exec", dont_inherit=True)
    name = program.removeprefix(MODULE)
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.__main__"
        spec = importlib.util.find_spec(name)
    loader = None if spec is None else spec.loader
    code = loader.get_code(name) if spec is not None and isinstance(loader, InspectLoader) else None
    if spec is None or code is None:
        raise ModuleNotFoundError(f"no module {name!r} that can run", name=name)
    return str(spec.origin), spec.parent or "", code
