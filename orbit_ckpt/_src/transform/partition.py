"""Shardings by patterns over the names of leaves."""

from __future__ import annotations

from collections.abc import Sequence

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.transform.patterns import Pattern, PatternMap, as_pairs, compile_pattern


def partition(
    mesh: Mesh,
    rules: PatternMap[PartitionSpec] | Sequence[tuple[Pattern, PartitionSpec]],
) -> dict[Pattern, NamedSharding]:
    """Return shardings over a mesh, for `load(sharding=...)`.

    Args:
        mesh: The devices.
        rules: Patterns for names, with the layout of arrays over the mesh's axes. The first that
            matches a leaf counts.

    Raises:
        TypeError: The mesh, a pattern or a spec has the wrong type.
        ValueError: A spec names an axis that the mesh lacks.

    Example:
        >>> devices = np.array(jax.devices()[:1]).reshape(1, 1)
        >>> mesh = jax.sharding.Mesh(devices, ("data", "model"))
        >>> shardings = partition(mesh, {"**/kernel": PartitionSpec(None, "model")})
        >>> shardings["**/kernel"].spec[1]
        'model'
    """
    if not isinstance(mesh, Mesh):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
        raise TypeError(f"mesh must be a jax.sharding.Mesh, found {show(mesh)}. Give it first.")
    pairs = as_pairs("rules", rules, "Give {'**/kernel': PartitionSpec(None, 'x')}, for example.")
    found: dict[Pattern, NamedSharding] = {}
    for pattern, spec in pairs:
        compile_pattern(pattern)
        if not isinstance(spec, PartitionSpec):
            raise TypeError(
                f"rules[{pattern!r}] must be a jax.sharding.PartitionSpec, found {show(spec)}. "
                "Give PartitionSpec('x'), for example."
            )
        found.setdefault(pattern, NamedSharding(mesh, spec))
    return found
