"""Checks that CI and developers run: `nox` runs the usual ones, `nox --list` shows all.

Dependencies, their versions and the supported Python versions come from pyproject.toml. A session
uses the interpreter that nox runs under unless its name ends in a version.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import nox

PYPROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PYPROJECT)
PARALLEL = "-n", "auto"  # tests/scheduling.py says how
QUICKSTART = Path("docs/tutorial/quickstart.ipynb").absolute()
CORE = [
    *("tests/arrays", "tests/checkpointer", "tests/type_handlers", "tests/items", "tests/metadata"),
    *("tests/pytree", "tests/runtime", "tests/storage", "tests/transform", "tests/tree"),
    "tests/verify",
]
INTEROP = Path("tests/interop")
RELEASES = sorted(path.stem for path in INTEROP.glob("requirements/orbax-*.txt"))
CLIENTS = Path("tests/clients")
CLIENT_PROGRAMS = sorted(path.stem for path in CLIENTS.glob("requirements/*.txt"))

# else every worker and every program that a test starts compiles all modules again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# pip would compile everything, which takes a minute per environment; Python compiles what is used
os.environ.setdefault("PIP_COMPILE", "0")

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"


def group(name: str) -> tuple[str, ...]:
    """Return the requirements of one dependency group."""
    return nox.project.dependency_groups(PYPROJECT, name)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and the direction of imports."""
    session.install(*group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, those of the package strictly."""
    session.install("-e", ".[examples]", *group("types"))
    # Told outright, because it would prefer the `.venv` that the README makes.
    session.run("basedpyright", "--pythonpath", f"{session.bin}/python", *session.posargs)


def run_tests(session: nox.Session, *arguments: str) -> None:
    """Run tests in several processes, in an environment with everything that they need."""
    session.install("-e", ".[examples]", *group("test"))
    session.run("pytest", *PARALLEL, *arguments, *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, of large matrices a few cells; arguments go to pytest."""
    run_tests(session, "-m", "not matrix")


@nox.session(default=False)
def matrix(session: nox.Session) -> None:
    """Run the cells of large matrices that `tests` leaves out."""
    run_tests(session, "-m", "matrix")


@nox.session(default=False)
def stores(session: nox.Session) -> None:
    """Run all tests of object stores; `tests` has some of them on local servers too."""
    run_tests(session, "tests/stores")


def tests_on(version: str) -> Callable[[nox.Session], None]:
    """Return a session that runs all tests on one version of Python."""

    def run(session: nox.Session) -> None:
        run_tests(session)

    run.__doc__ = f"Run all tests on Python {version}."
    return run


for version in PYTHONS:
    nox.session(name=f"tests-{version}", python=version, default=False)(tests_on(version))


@nox.session(python=PYTHONS[0], default=False)
def core(session: nox.Session) -> None:
    """Run the quick tests on the oldest supported Python."""
    run_tests(session, "-m", "not slow and not interop and not matrix", *CORE)


@nox.session(default=False)
def newest(session: nox.Session) -> None:
    """Run all tests with the newest dependencies that exist, pre-releases included."""
    session.install("--pre", "--upgrade", "-e", ".[examples]", *group("test"))
    session.run("pip", "list")
    session.run("pytest", *PARALLEL, *session.posargs)


@nox.session(default=False)
def multiprocess(session: nox.Session) -> None:
    """Run all tests in which several processes save together; `tests` has most of them."""
    session.install("-e", ".", *group("test"))
    session.run("pytest", "tests/multiprocess", *session.posargs)


@nox.session(default=False)
def browser(session: nox.Session) -> None:
    """Use the report page in Chromium, which must be installed, and check its accessibility."""
    session.install("-e", ".", *group("browser"))
    session.run("pytest", "tests/cli/test_report_browser.py", *session.posargs)


@nox.session(default=False)
def soak(session: nox.Session) -> None:
    """Run the tests that draw, damage and kill with many more attempts; it takes hours."""
    session.install("-e", ".[examples]", *group("test"))
    session.run("pytest", "-rP", *session.posargs, env={"ORBIT_CKPT_SOAK": "1"})


@nox.session(default=False)
def minimums(session: nox.Session) -> None:
    """Run all tests with the lowest version of every runtime dependency."""
    lowest = [bound.replace(">=", "==") for bound in PYPROJECT["project"]["dependencies"]]
    session.install("-e", ".[examples]", *lowest, *group("test"))
    session.run("pytest", *PARALLEL, *session.posargs)


@nox.session(default=False)
def interop(session: nox.Session) -> None:
    """Exchange checkpoints with the Orbax release that the tests name."""
    session.install("-e", ".[examples]", *group("test"))
    session.run("pytest", "-m", "interop", *(session.posargs or [INTEROP]))


@nox.session(default=False)
@nox.parametrize("release", RELEASES)
def interop_history(session: nox.Session, release: str) -> None:
    """Write checkpoints with a past release of Orbax, for `interop` to restore."""
    references = session.cache_dir / "references"
    shutil.rmtree(references / release, ignore_errors=True)
    session.install("-r", f"{INTEROP}/requirements/{release}.txt")
    session.run("python", INTEROP / "write_reference.py", references / release)
    session.notify("interop", [f"{INTEROP}/test_history.py", f"--reference={references}"])


@nox.session(default=False)
@nox.parametrize("program", CLIENT_PROGRAMS)
def clients(session: nox.Session, program: str) -> None:
    """Run a program of a package that imports Orbax, with Orbax and with this library."""
    session.install("-r", f"{CLIENTS}/requirements/{program}.txt")
    session.install("-e", ".")
    session.run("python", CLIENTS / "exchange.py", program, env={"JAX_PLATFORMS": "cpu"})


@nox.session(default=False)
def trackers(session: nox.Session) -> None:
    """Run the tests of what logs to Weights & Biases and MLflow, with these packages."""
    session.install("-e", ".", *group("trackers"))
    session.run("pytest", "tests/trackers", *session.posargs)


@nox.session
def examples(session: nox.Session) -> None:
    """Run every example."""
    session.install(".[examples]", "examples/custom_item")
    patterns = ("*.py", "recipes/*.py", "*/run.py")
    for example in sorted(path for one in patterns for path in Path("examples").glob(one)):
        session.run("python", example)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation into site/, and run the quickstart as a notebook."""
    session.install("-e", ".", *group("docs"))
    session.run("mkdocs", "build", "--strict")
    with session.chdir(session.create_tmp()):
        session.run("jupyter", "execute", QUICKSTART, "--kernel_name=python3")


@nox.session(default=False)
def benchmarks(session: nox.Session) -> None:
    """Compare with other libraries; arguments go to `python -m benchmarks`."""
    session.install(".[examples]", *group("bench"))
    session.run("python", "-m", "benchmarks", *session.posargs)
