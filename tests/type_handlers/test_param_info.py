from __future__ import annotations

from pathlib import Path

import pytest

from orbit_ckpt.type_handlers import ParamInfo


def info_of_leaf() -> ParamInfo:
    return ParamInfo(name="a.b", parent_dir=Path("step"), keypath=("a", "b"), use_zarr3=False)


def test_path_is_that_of_the_name_unless_it_is_given() -> None:
    info = info_of_leaf()
    assert info.path == Path("step/a.b")
    info.path = Path("elsewhere")
    assert info.path == Path("elsewhere")
    assert ParamInfo(name="a", parent_dir=Path("step"), path=Path("b")).path == Path("b")


def test_replaced_attributes_are_those_of_a_copy() -> None:
    info = info_of_leaf()
    other = info.replace(name="a.c", keypath=("a", "c"))
    assert (other.label, other.path, other.use_zarr3) == ("a/c", Path("step/a.c"), False)
    assert (info.label, info.path) == ("a/b", Path("step/a.b"))


def test_replacing_an_unknown_attribute_is_an_error() -> None:
    with pytest.raises(TypeError, match="nmae"):
        info_of_leaf().replace(nmae="a")
