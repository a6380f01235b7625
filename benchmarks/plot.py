"""Plot the cost per leaf over the number of leaves."""

# matplotlib is not installed everywhere.
# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import mode
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from benchmarks.operations import OPERATIONS
from benchmarks.results import Group, Results

Point = tuple[float, float]

_PANELS = ("save", "load_jax")
_LABELS = {"torch": "torch DCP", "bare": "bare disk"}
# Distinct in colour and lightness, for greyscale prints and colour-blind readers.
_COLOURS = {
    "orbit_ckpt": "#0b5fa5",
    "orbax": "#d1495b",
    "safetensors": "#946a00",
    "torch": "#7a5195",
    "bare": "#6f757f",
}
_INK, _SOFT, _GRID = "#2b2f36", "#6b7079", "#e3e5e8"
_ON_DARK = {
    _COLOURS["orbit_ckpt"]: "#5aa9ea",
    _COLOURS["orbax"]: "#f0808e",
    _COLOURS["safetensors"]: "#e0a100",
    _COLOURS["torch"]: "#b995d6",
    _COLOURS["bare"]: "#9aa1ab",
    _INK: "#dfe3ea",
    _SOFT: "#a5acb8",
    _GRID: "#3d4450",
}
"""The colours of a page with a dark background, which an SVG takes on."""

_STYLE: dict[Any, object] = {
    "axes.edgecolor": _INK,
    "axes.facecolor": "none",
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.hashsalt": "benchmarks",  # the same figures give the same file
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def plot_cost_per_leaf(results: Results, path: Path) -> None:
    """Draw the cost per leaf of saving and of loading, one line per contender.

    Uses the trees `small-*` of the suite with most of them, on the first storage that has them.

    Raises:
        ValueError: The results have no such tree.
    """
    groups = [group for group in results.groups if group.tree.startswith("small-")]
    if not groups:
        raise ValueError("Nothing to draw: the results have no tree small-*.")
    suite = mode(group.suite for group in groups)
    groups = [group for group in groups if group.suite == suite]
    storage = groups[0].storage
    groups = sorted((g for g in groups if g.storage == storage), key=lambda group: group.leaves)
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(1, len(_PANELS), figsize=(9.6, 4.6), sharex=True, sharey=True)
        lines = [_draw(panel, groups, name) for panel, name in zip(axes, _PANELS, strict=True)]
        axes[0].set_ylabel("ms per leaf")
        figure.suptitle(
            f"Time per leaf, checkpoints on {storage}", x=0.02, ha="left", weight="bold"
        )
        figure.text(0.02, 0.02, _caption(results, groups), size=7, color=_SOFT, va="bottom")
        figure.tight_layout(rect=(0, 0.08, 0.93, 0.98), w_pad=5)
        for panel, ends in zip(axes, lines, strict=True):
            _label(panel, ends, points_per_pixel=72 / figure.dpi)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, metadata=metadata, dpi=160)
        plt.close(figure)
    if path.suffix == ".svg":
        path.write_text(_for_both_themes(path.read_text()))


def _for_both_themes(picture: str) -> str:
    """Return an SVG whose colours depend on the theme of the page."""
    names = {colour: f"--c{i}" for i, colour in enumerate(_ON_DARK)}
    for colour, name in names.items():
        picture = picture.replace(colour, f"var({name})")
    light = ";".join(f"{name}:{colour}" for colour, name in names.items())
    dark = ";".join(f"{name}:{_ON_DARK[colour]}" for colour, name in names.items())
    style = f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return picture.replace("</style>", f"{style}</style>", 1)


def _draw(axes: Axes, groups: list[Group], operation: str) -> dict[str, Point]:
    """Draw one panel and return where the line of each contender ends."""
    ends: dict[str, Point] = {}
    for contender in dict.fromkeys(row.contender for group in groups for row in group.rows):
        points = list(_points(groups, operation, contender))
        if points:
            ends[contender] = points[-1]
            width = 2.6 if contender == "orbit_ckpt" else 1.6
            colour = _COLOURS.get(contender, _INK)
            axes.plot(*zip(*points, strict=True), "o-", color=colour, lw=width, ms=4.5)
    axes.set(xscale="log", yscale="log", xlabel="leaves", title=OPERATIONS[operation].label)
    axes.set_xticks([group.leaves for group in groups])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
    axes.tick_params(labelleft=True)
    axes.minorticks_off()
    axes.grid(axis="y", color=_GRID, lw=0.8)
    axes.set_axisbelow(True)
    return ends


def _points(groups: list[Group], operation: str, contender: str) -> Iterator[Point]:
    for group in groups:
        row = group.row(operation, contender)
        if row and row.median_s:
            yield group.leaves, row.median_s * 1e3 / group.leaves


def _label(axes: Axes, ends: dict[str, Point], *, points_per_pixel: float) -> None:
    """Label the lines at their ends, from the bottom up, without overlap."""
    floor = -math.inf
    for contender, end in sorted(ends.items(), key=lambda item: item[1][1]):
        height = axes.transData.transform(end)[1] * points_per_pixel
        floor = max(height, floor + 12)
        axes.annotate(
            _LABELS.get(contender, contender),
            end,
            xytext=(7, floor - height),
            textcoords="offset points",
            color=_COLOURS.get(contender, _INK),
            va="center",
        )


def _caption(results: Results, groups: list[Group]) -> str:
    machine = results.machine
    hardware = ("cpu", "cores", "memory")
    software = [name for name in machine if name not in (*hardware, "jaxlib", "numpy")]
    processor = f"{machine['cpu']}, {machine['cores']} cores, {machine.get('memory', '')}"
    versions = ", ".join(f"{name} {machine[name]}" for name in software)
    count = max(len(row.seconds) for group in groups for row in group.rows)
    rounds = "one round" if count == 1 else f"medians over {count} rounds"
    trees = f"Half of the leaves 4 KB, half 128 bytes; {rounds}"
    return f"{trees}. {processor}.\n{versions}."
