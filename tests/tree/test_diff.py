from __future__ import annotations

from orbit_ckpt.tree.diff import TreeDifference, compare_names, nearest_names


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
        "    b.c",
        "  different:",
        "    d: shape (2,) wanted, (3,) stored",
    ]
    assert difference.paths == ("a", "b.c", "d")


def test_missing_leaf_is_shown_with_the_nearest_unexpected_names() -> None:
    difference = TreeDifference([("dense", "kernel")], [("dens", "kernel"), ("other",)], {})
    assert "dense.kernel (nearest: dens.kernel)" in difference.describe()


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
