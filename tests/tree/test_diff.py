from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest

from orbit_ckpt._src.tree import diff
from orbit_ckpt._src.tree.diff import TreeDifference, compare_names, match_renamed, nearest_names


def test_leaves_of_one_tree_only_are_found_in_the_order_of_that_tree() -> None:
    difference = compare_names([("z",), ("a",), ("b",)], [("c",), ("b",), ("a", "x")])
    assert difference.missing == [("z",), ("a",)]
    assert difference.unexpected == [("c",), ("a", "x")]


def test_equal_trees_have_no_difference() -> None:
    assert not compare_names([("a",), ("b",)], [("b",), ("a",)])


def test_any_kind_of_difference_counts() -> None:
    assert TreeDifference([("a",)], [], {})
    assert TreeDifference([], [("a",)], {})
    assert TreeDifference([], [], {("a",): "shape"})


def test_description_has_one_line_per_leaf_under_its_heading() -> None:
    difference = TreeDifference([("a",)], [("b", "c")], {("d",): "shape (2,) wanted, (3,) stored"})
    assert difference.describe().splitlines() == [
        "  missing in the checkpoint:",
        "    a",
        "  in the checkpoint only:",
        "    b/c",
        "  different:",
        "    d: shape (2,) wanted, (3,) stored",
    ]
    assert difference.paths == ("a", "b/c", "d")


def test_missing_leaf_is_shown_with_the_nearest_unexpected_names() -> None:
    difference = TreeDifference([("dense", "kernel")], [("dens", "kernel"), ("other",)], {})
    assert "dense/kernel (nearest: dens/kernel)" in difference.describe()


def test_long_lists_are_cut_and_say_so() -> None:
    changed = {(f"c{i}",): "dtype" for i in range(23)}
    difference = TreeDifference(
        [(f"m{i}",) for i in range(21)], [(f"{i}",) for i in range(22)], changed
    )
    lines = difference.describe().splitlines()
    assert [line for line in lines if "more" in line] == [
        f"    ... and {n} more" for n in (1, 2, 3)
    ]
    assert len(difference.paths) == 66


def test_nearest_names_are_at_most_two_and_the_nearest_first() -> None:
    assert nearest_names("kernel", ["kernel_0", "kernels", "bias", "kernel_1"])[0] == "kernels"
    assert len(nearest_names("kernel", ["kernel_0", "kernels", "kernel_1"])) == 2
    assert nearest_names("kernel", ["zzz"]) == []


def paths(*names: str) -> dict[tuple[str, ...], str]:
    """Return leaves that are all alike, of names with dots."""
    return {tuple(name.split(".")): "float32[3]" for name in names}


@pytest.mark.parametrize(
    ("removed", "added"),
    [
        (["dense.kernel"], ["dense.weight", "Dense.kernel"]),
        (["enc.0.w", "enc.1.w", "enc.2.w"], ["encoder.0.w", "encoder.1.w", "encoder.2.w"]),
        (["net.layer_1.w", "net.layer_10.w"], ["net.block_1.w", "net.block_10.w"]),
        (["w.mu", "w.nu"], ["params.w.mu", "params.w.nu"]),
        (["params.w.mu", "params.w.nu"], ["w.mu", "w.nu"]),
        (["opt.0.mu.w", "opt.0.nu.w"], ["opt.mu.w", "opt.nu.w"]),
    ],
)
def test_renamed_leaves_are_paired(removed: list[str], added: list[str]) -> None:
    found = match_renamed(paths(*removed), paths(*added))
    expected = added[-len(removed) :]
    assert found == dict(zip(paths(*removed), paths(*expected), strict=True))


def test_leaves_that_are_not_alike_or_of_other_names_are_not_paired() -> None:
    added: dict[tuple[str, ...], Hashable] = {("kernels",): "int32[3]", ("bias",): "float32[3]"}
    assert match_renamed(paths("kernel"), added) == {}
    assert match_renamed(paths("kernel"), {}) == {}


def test_every_leaf_is_paired_once() -> None:
    found = match_renamed(paths("kernel_1", "kernel_2", "kernel_3"), paths("kernel_4", "kernel_5"))
    assert len(found) == len(set(found.values())) == 2


def test_pairing_does_not_search_all_names_for_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    def nearest(name: str, candidates: Sequence[str], *, cutoff: float) -> list[str]:
        searched.append(len(candidates))
        return nearest_names(name, candidates, cutoff=cutoff)

    monkeypatch.setattr(diff, "nearest_names", nearest)
    old = [f"layer_{i}.{name}" for i in range(5000) for name in ("w", "b")]
    assert len(match_renamed(paths(*old), paths(*(f"net.{name}" for name in old)))) == 10000
    assert len(searched) <= 2
    searched.clear()
    other = [f"{i * 7919 % 10007}" for i in range(10000)]
    match_renamed(paths(*old), paths(*other))
    assert sum(searched) < 10000
