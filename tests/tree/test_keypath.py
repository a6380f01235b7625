from __future__ import annotations

import enum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.tree.keypath import (
    KeyKind,
    find_name_collisions,
    format_path,
    is_sequence_key,
    jax_path,
    key_class,
    key_kind,
    key_name,
    key_value,
    make_key,
    name_path,
    storage_name,
)


class Color(enum.Enum):
    RED = 1


literals = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.binary(max_size=3),
    lambda inner: st.tuples(inner, st.text(max_size=3)),
    max_leaves=3,
)
keys = st.one_of(
    st.text().map(DictKey),
    literals.filter(lambda value: key_kind(DictKey(value)) is not None).map(DictKey),
    st.integers(0, 99).map(SequenceKey),
    st.integers(0, 99).map(FlattenedIndexKey),
    st.from_regex(r"[a-z_]\w*", fullmatch=True).map(GetAttrKey),
)
names = st.lists(st.lists(st.sampled_from(["", "a", "b", "a.b", "."])).map(tuple), max_size=8)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (DictKey("a.b"), "a.b"),
        (DictKey(0), "0"),
        (DictKey((1, "x")), "(1, 'x')"),
        (SequenceKey(3), "3"),
        (FlattenedIndexKey(3), "3"),
        (GetAttrKey("mu"), "mu"),
    ],
)
def test_name_of_a_key_is_its_text(key: object, name: str) -> None:
    assert key_name(key) == name


def test_storage_name_joins_key_names_with_dots() -> None:
    path = (DictKey("opt"), SequenceKey(0), GetAttrKey("mu"))
    assert storage_name(name_path(path)) == "opt.0.mu"


def test_bare_leaf_has_an_empty_storage_name_and_is_shown_as_root() -> None:
    assert storage_name(()) == ""
    assert format_path(()) == "<root>"


def test_paths_are_shown_alike_from_keys_and_from_names() -> None:
    path = (DictKey("opt"), SequenceKey(0), GetAttrKey("mu"))
    assert format_path(path) == format_path(name_path(path)) == "opt/0/mu"


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (DictKey("a"), None),
        (DictKey("0"), None),
        (DictKey(0), KeyKind.LITERAL),
        (DictKey(-1.5), KeyKind.LITERAL),
        (DictKey(True), KeyKind.LITERAL),
        (DictKey(b"x"), KeyKind.LITERAL),
        (DictKey((1, "x")), KeyKind.LITERAL),
        (DictKey(Color.RED), None),
        (DictKey(float("inf")), None),
        (SequenceKey(0), None),
        (FlattenedIndexKey(0), KeyKind.FLAT),
        (GetAttrKey("mu"), KeyKind.ATTRIBUTE),
    ],
)
def test_kind_is_recorded_only_where_the_name_does_not_tell(
    key: object, kind: KeyKind | None
) -> None:
    assert key_kind(key) is kind


def test_key_none_is_recovered() -> None:
    # DictKey(None) itself is a TypeError before JAX 0.10.1
    (path,) = flatten({None: 1}).paths
    assert key_kind(path[0]) is KeyKind.LITERAL
    made = make_key("None", is_sequence=False, kind=KeyKind.LITERAL)
    assert jax_path((made,)) == path


@given(keys)
def test_key_is_recovered_from_its_name_and_kind(key: object) -> None:
    found = make_key(key_name(key), is_sequence=is_sequence_key(key), kind=key_kind(key))
    (converted,) = jax_path((found,))
    assert repr(converted) == repr(key)
    assert type(converted) is type(key)


@given(keys)
def test_own_key_looks_like_the_key_of_jax(key: object) -> None:
    own = make_key(key_name(key), is_sequence=is_sequence_key(key), kind=key_kind(key))
    assert str(own) == str(key)
    assert (key_name(own), key_value(own)) == (key_name(key), key_value(key))
    assert (is_sequence_key(own), key_kind(own)) == (is_sequence_key(key), key_kind(key))
    assert key_class(own) is key_class(key)


@pytest.mark.parametrize(
    ("name", "is_sequence", "kind"),
    [("a", True, None), ("a", False, KeyKind.FLAT), ("f()", False, KeyKind.LITERAL)],
)
def test_name_that_contradicts_its_kind_is_an_error(
    name: str, is_sequence: bool, kind: KeyKind | None
) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|malformed node"):
        make_key(name, is_sequence=is_sequence, kind=kind)


def test_text_that_is_no_expression_is_not_a_literal() -> None:
    with pytest.raises(ValueError, match=r"'1 \+' is not a Python literal"):
        make_key("1 +", is_sequence=False, kind=KeyKind.LITERAL)


def test_collision_names_the_first_leaf_of_that_name() -> None:
    paths = [("a.b",), ("c",), ("a", "b")]
    assert find_name_collisions(paths) == [(0, 2)]


@given(names)
def test_names_collide_exactly_if_their_joined_form_is_equal(paths: list[tuple[str, ...]]) -> None:
    collisions = find_name_collisions(paths)
    assert len(paths) - len(collisions) == len({".".join(path) for path in paths})
    for earlier, later in collisions:
        assert earlier < later
        assert ".".join(paths[earlier]) == ".".join(paths[later])
