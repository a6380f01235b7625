"""The command line of the benchmarks; see the package's docstring for its use."""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import sys
from collections.abc import Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import benchmarks
from benchmarks.contenders import BUILT_IN, missing_package
from benchmarks.layouts import DEVICES
from benchmarks.machine import describe_machine
from benchmarks.operations import OPERATIONS
from benchmarks.pages import PAGES, PICTURE, redraw
from benchmarks.report import (
    failures,
    heading,
    table,
    training_table,
    training_verdicts,
    verdicts,
)
from benchmarks.results import Results
from benchmarks.storage import find_storages, label_storages
from benchmarks.suites import SUITES, TrainingSuite
from benchmarks.tables import tables
from benchmarks.training import TrainingPlan, train
from benchmarks.trees import TREES
from benchmarks.turns import Plan, run
from benchmarks.workers import Workers, start_workers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or replay benchmarks, and draw tables and pictures, as the command line requests.

    Returns:
        The exit status: 1 if any contender failed or returned wrong values.
    """
    options = _parse(arguments)
    if options.plot:
        from benchmarks.plot import plot_cost_per_leaf as plot  # noqa: PLC0415 - matplotlib is slow, and optional
    else:
        plot = None
    if options.replay:
        results = Results.read(options.replay)
        reports = [*map(table, results.groups), *map(training_table, results.trainings)]
        print(heading(results), *reports, sep="\n\n")
    else:
        results = _run(options)
    if plot:
        plot(results, options.plot)
    if options.docs:
        redraw(options.docs, tables(results))
    if problems := failures(results):
        print(problems)
        return 1
    return 0


def _run(options: argparse.Namespace) -> Results:
    """Run and report suite by suite, so that an interrupted run keeps its results."""
    suites = [SUITES[name] for name in options.suites]
    wanted = dict.fromkeys(options.contenders or [c for s in suites for c in s.contenders])
    missing = {name: package for name in wanted if (package := missing_package(name))}
    plans = [_plan(name, options, missing) for name in options.suites]
    results = Results(
        machine=describe_machine(),
        options={
            "command": options.command,
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "small": options.small,
            "seed": options.seed,
            "order_seed": options.order_seed,
            "load": f"{os.getloadavg()[0]:.1f}",
        },
        left_out={name: f"{package} is not installed" for name, package in missing.items()},
    )
    print(heading(results), end="\n\n", flush=True)
    with _shared_workers(options) as workers:
        for plan in plans:
            if isinstance(plan, TrainingPlan):
                for training in train(plan, _report_progress, workers):
                    results.trainings.append(training)
                    print((training_verdicts if plan.small else training_table)(training))
            else:
                for group in run(plan, _report_progress, workers):
                    results.groups.append(group)
                    print((verdicts if plan.small else table)(group), flush=True)
            if options.json:
                results.write(options.json)
    return results


def _shared_workers(options: argparse.Namespace) -> AbstractContextManager[Workers | None]:
    """Return workers for all small runs: without timing, extra devices do no harm."""
    return start_workers(DEVICES, options.timeout) if options.small else nullcontext()


def _report_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _plan(name: str, options: argparse.Namespace, missing: Container[str]) -> Plan | TrainingPlan:
    """Return a suite with the options that replace its own, without missing contenders."""
    suite = SUITES[name]
    kinds = ("memory",) if isinstance(suite, TrainingSuite) else suite.storages
    contenders = [c for c in options.contenders or suite.contenders if c not in missing]
    storages = label_storages(options.storage) if options.storage else find_storages(kinds)
    rounds = options.rounds or suite.rounds
    compression = {"on": True, "off": False}.get(options.compression)
    if isinstance(suite, TrainingSuite):
        return TrainingPlan(
            loops=list(product(options.trees, (True, False))) if options.trees else suite.loops,
            contenders=contenders,
            storages=storages,
            rounds=rounds,
            steps=suite.steps,
            every=suite.every,
            small=options.small,
            compression=compression,
            seed=options.seed,
            order_seed=options.order_seed,
            timeout_s=options.timeout,
        )
    wanted = {"save", *(options.operations or suite.operations)}
    own_limit = options.memory_limit_gb is None
    return Plan(
        suite=name,
        trees=options.trees or suite.trees,
        contenders=contenders,
        operations=[name for name in OPERATIONS if name in wanted],
        storages=storages,
        rounds=rounds,
        small=options.small,
        compression=compression if options.compression else suite.compression,
        memory_limit_gb=suite.memory_limit_gb if own_limit else options.memory_limit_gb,
        too_slow=frozenset() if options.trees else suite.too_slow,
        seed=options.seed,
        order_seed=options.order_seed,
        timeout_s=options.timeout,
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=benchmarks.__doc__,
        epilog="suites:\n" + "\n".join(f"  {name:11} {s.about}" for name, s in SUITES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("suites", nargs="*", metavar="SUITE", help=f"{', '.join(SUITES)} (default: usual)")
    add("--trees", nargs="+", choices=TREES, metavar="TREE", help=", ".join(TREES))
    add(
        "--contenders",
        nargs="+",
        metavar="NAME",
        help=f"{', '.join(BUILT_IN)}, or MODULE:CLASS",
    )
    add(
        "--operations",
        nargs="+",
        choices=OPERATIONS,
        metavar="OPERATION",
        help=f"{', '.join(OPERATIONS)}; save always runs",
    )
    add("--rounds", type=int, help="rounds to count (default: 2 to 7, by suite)")
    add(
        "--storage",
        nargs="+",
        type=Path,
        metavar="DIRECTORY",
        help="where to save (default: a directory in memory, on a disk, or both, by suite)",
    )
    add(
        "--compression",
        choices=["on", "off", "tree"],
        help="for all contenders that can compress; `tree`: each tree's own (default: by suite)",
    )
    add(
        "--memory-limit-gb",
        type=float,
        metavar="GB",
        help="save_concurrent_gb and restore_concurrent_gb of orbit_ckpt and Orbax",
    )
    add("--small", action="store_true", help="one round with tiny trees, to compare values only")
    add("--seed", type=int, default=0, help="seed of the random data (default: %(default)s)")
    add("--order-seed", type=int, help="seed of the random order (default: another one each time)")
    add(
        "--timeout",
        type=float,
        default=600,
        metavar="SECONDS",
        help="limit for one operation (default: %(default)s)",
    )
    add(
        "--docs",
        nargs="*",
        type=Path,
        metavar="PAGE",
        help="run all suites but the usual, unless some are named, and redraw the tables of pages; "
        "without a page, all tables and the picture of the documentation",
    )
    add("--json", type=Path, metavar="PATH", help="file for all figures")
    add("--plot", type=Path, metavar="PATH", help="draw the cost per leaf of the small-* trees")
    add("--replay", type=Path, metavar="JSON", help="report a past run instead of running")
    options = parser.parse_args(arguments)
    given = sys.argv[1:] if arguments is None else arguments
    options.command = shlex.join(["python", "-m", "benchmarks", *given])
    return _check(parser, options)


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    """Refuse what makes no sense, and fill in defaults that depend on other options."""
    for name in options.contenders or ():
        if name not in BUILT_IN and ":" not in name:
            parser.error(f"unknown contender {name!r}; choose from {', '.join(BUILT_IN)}")
    for name in options.suites:
        if name not in SUITES:
            parser.error(f"unknown suite {name!r}; choose from {', '.join(SUITES)}")
    if not options.suites:
        options.suites = ["usual"] if options.docs is None else [n for n in SUITES if n != "usual"]
    if options.docs == []:
        options.docs = PAGES
        if "leaves" in options.suites:
            options.plot = options.plot or PICTURE
    if options.small and options.suites == ["usual"] and not options.trees:
        options.trees = list(TREES)
    trees = options.trees or [tree for name in options.suites for tree in SUITES[name].trees]
    if options.plot and not options.replay and not any(name.startswith("small-") for name in trees):
        parser.error("--plot requires a tree small-*")
    if options.plot and not find_spec("matplotlib"):
        parser.error("the picture requires matplotlib; --docs PAGE draws only tables")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.order_seed is None:
        options.order_seed = secrets.randbelow(10**6)
    return options


if __name__ == "__main__":
    sys.exit(main())
