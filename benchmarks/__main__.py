"""The command line of the benchmarks; see the package's docstring for its use."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import benchmarks
from benchmarks.contenders import BUILT_IN, OPERATIONS, missing_package
from benchmarks.machine import describe_machine
from benchmarks.report import failures, heading, table, verdicts
from benchmarks.results import Results
from benchmarks.storage import label_storages, usual_storages
from benchmarks.trees import TREES, USUAL
from benchmarks.turns import Plan, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or replay benchmarks as the command line requests.

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
        print(heading(results), *map(table, results.groups), sep="\n\n")
    else:
        results = _run(options)
    if plot:
        plot(results, options.plot)
    if problems := failures(results):
        print(problems)
        return 1
    return 0


def _run(options: argparse.Namespace) -> Results:
    """Run and report tree by tree, so that an interrupted run keeps its results."""
    missing = {name: package for name in options.contenders if (package := missing_package(name))}
    plan = Plan(
        trees=options.trees or (list(TREES) if options.small else USUAL),
        contenders=[name for name in options.contenders if name not in missing],
        operations=[name for name in OPERATIONS if name in {"save", *options.operations}],
        storages=label_storages(options.storage) if options.storage else usual_storages(),
        rounds=options.rounds,
        small=options.small,
        compression={"on": True, "off": False}.get(options.compression),
        memory_limit_gb=options.memory_limit_gb,
        seed=options.seed,
        timeout_s=options.timeout,
    )
    results = Results(
        machine=describe_machine(),
        options={
            "rounds": plan.rounds,
            "small": plan.small,
            "compression": options.compression,
            "memory_limit_gb": plan.memory_limit_gb,
            "seed": plan.seed,
        },
        left_out={name: f"{package} is not installed" for name, package in missing.items()},
    )
    print(heading(results), end="\n\n", flush=True)
    for group in run(plan, lambda line: print(line, file=sys.stderr, flush=True)):
        results.groups.append(group)
        print(verdicts(group) if plan.small else table(group), flush=True)
        if options.json:
            results.write(options.json)
    return results


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=benchmarks.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--trees", nargs="+", choices=TREES, metavar="TREE", help=", ".join(TREES))
    add(
        "--contenders",
        nargs="+",
        default=list(BUILT_IN),
        metavar="NAME",
        help=f"{', '.join(BUILT_IN)}, or MODULE:CLASS",
    )
    add(
        "--operations",
        nargs="+",
        choices=OPERATIONS,
        default=list(OPERATIONS),
        metavar="OPERATION",
        help=f"{', '.join(OPERATIONS)}; save always runs",
    )
    add("--rounds", type=int, default=5, help="rounds to count (default: %(default)s)")
    add(
        "--storage",
        nargs="+",
        type=Path,
        metavar="DIRECTORY",
        help="where to save (default: one directory in memory and one on a disk)",
    )
    add(
        "--compression",
        choices=["on", "off", "tree"],
        default="tree",
        help="for all contenders that can compress; by default, the tree's own setting",
    )
    add(
        "--memory-limit-gb",
        type=float,
        metavar="GB",
        help="save_concurrent_gb and restore_concurrent_gb of orbit_ckpt and Orbax",
    )
    add("--small", action="store_true", help="one round with tiny trees, to compare values only")
    add("--seed", type=int, default=0, help="seed of the random data (default: %(default)s)")
    add(
        "--timeout",
        type=float,
        default=600,
        metavar="SECONDS",
        help="limit for one operation (default: %(default)s)",
    )
    add("--json", type=Path, metavar="PATH", help="file for all figures")
    add("--plot", type=Path, metavar="PATH", help="draw the cost per leaf of the small-* trees")
    add("--replay", type=Path, metavar="JSON", help="report a past run instead of running")
    options = parser.parse_args(arguments)
    for name in options.contenders:
        if name not in BUILT_IN and ":" not in name:
            parser.error(f"unknown contender {name!r}; choose from {', '.join(BUILT_IN)}")
    trees = options.trees or USUAL
    if options.plot and not options.replay and not any(name.startswith("small-") for name in trees):
        parser.error("--plot requires a tree small-*")
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    return options


if __name__ == "__main__":
    sys.exit(main())
