from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from orbit_ckpt._src.arrays.replicas import (
    Division,
    Holders,
    ReplicaOptions,
    WriterRotation,
    divide,
    divide_among,
    holders_of,
    owners_of,
)
from orbit_ckpt._src.arrays.slices import Region, Shape, chunk_indices
from orbit_ckpt._src.arrays.transfer import DeviceSlice, begin_transfer, host_blocks
from tests.support import make_mesh, put


@given(
    shard=st.lists(st.integers(0, 12), max_size=3).map(tuple),
    grid=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    devices=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    options=st.builds(
        ReplicaOptions,
        st.sampled_from([None, True, False]),
        st.integers(0, 64),
        st.none() | st.integers(1, 4),
    ),
    first=st.integers(0, 7),
    data=st.data(),
)
def test_pieces_of_all_processes_are_whole_chunks_and_cover_an_array_once(
    shard: Shape,
    grid: list[int],
    devices: list[int],
    options: ReplicaOptions,
    first: int,
    data: st.DataObject,
) -> None:
    grid = grid[: len(shard)]
    shape = tuple(n * count for n, count in zip(shard, grid, strict=True))
    shards = [
        Region(tuple(i * n for i, n in zip(index, shard, strict=True)), shard)
        for index in itertools.product(*map(range, grid))
    ]
    places = [(region, data.draw(st.sampled_from(devices))) for region in shards for _ in range(3)]
    owners = owners_of(places)
    division = divide_among(owners, 4, options)
    chunk = tuple(max(1, n) for n in division.shape)
    covered = np.zeros(shape, int)
    for region, processes in owners.items():
        assert sorted(processes) == sorted({p for r, p in places if r == region})
        shares = [
            Holders(division, 0, {region: (i, len(processes))}).shares(first).get(region)
            for i in range(len(processes))
        ]
        assert sum(share is not None for share in shares) <= options.limit(len(shares))
        for share in filter(None, shares):
            covered[share.slices] += 1
            assert all(s % n == 0 for s, n in zip(share.start, chunk, strict=True))
            assert all(n % c == 0 for n, c in zip(share.shape, chunk, strict=True))
            assert len(list(chunk_indices(share, chunk))) * math.prod(division.shape) == share.size
    assert (covered == 1).all()


@pytest.mark.parametrize(
    ("shard", "processes", "least", "expected"),
    [
        ((8, 4), 4, 0, (2, 4)),
        ((3, 8), 4, 0, (3, 2)),  # the first axis that can be cut
        ((6, 1), 4, 0, (2, 1)),  # into three, because four do not fit
        ((7, 5), 4, 0, (7, 5)),
        ((8, 4), 4, 64, (4, 4)),  # into as many as are large enough
        ((8, 4), 4, 65, (8, 4)),
        ((0, 4), 4, 0, (0, 4)),
        ((), 4, 0, ()),
    ],
)
def test_shards_are_cut_into_as_many_equal_pieces_as_can_be(
    shard: Shape, processes: int, least: int, expected: Shape
) -> None:
    assert divide(shard, 4, processes=processes, min_bytes=least).shape == expected


def test_process_alone_writes_each_part_once() -> None:
    sharding = NamedSharding(make_mesh(x=4, y=2), P("x"))
    holders = holders_of(sharding, (8, 4), 4, ReplicaOptions(), 0)
    shares = holders.shares(WriterRotation().next_writer(holders.division, holders.processes, 4))
    assert holders.division.shape == (2, 4)
    assert len(shares) == 4
    assert all(shard == share for shard, share in shares.items())


@pytest.mark.parametrize("region", [Region((0, 0), (8, 8)), Region((2, 4), (4, 4))])
def test_slice_on_a_device_is_read_like_an_array(region: Region) -> None:
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    data = DeviceSlice(put(values, x=1), region)
    expected = values[region.slices]
    assert np.array_equal(np.asarray(begin_transfer(data)), expected)
    inside = Region((1, 0), (2, 4))
    blocks: list[Any] = list(host_blocks(data, inside, 20))
    assert all(block.nbytes <= 20 for block in blocks)
    assert b"".join(block.tobytes() for block in blocks) == expected[inside.slices].tobytes()


@pytest.mark.parametrize("options", [{"min_slice_bytes": -1}, {"max_replicas": 0}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="for_replica_parallel must be >= "):
        ReplicaOptions(**options)


def test_processes_take_turns_where_there_are_fewer_pieces() -> None:
    rotation = WriterRotation()
    whole, halves, quarters = ((8, 4), 0, 1), ((4, 4), 0, 2), ((2, 4), 0, 4)
    written = [0] * 4
    for shape, axis, pieces in (whole, whole, quarters, halves, whole, whole, halves):
        division = Division(shape, axis, pieces)
        first = rotation.next_writer(division, 4, 4)
        for position in range(4):
            share = division.share(Region((0, 0), (8, 4)), (position - first) % 4, 4)
            written[position] += share.size if share else 0
    assert written == [56, 56, 56, 56]


def test_array_of_many_shards_is_not_cut_further() -> None:
    def pieces(shards: int, least: int | None) -> int:
        owners = {Region((i * 2048,), (2048,)): (0, 1, 2, 3) for i in range(shards)}
        return divide_among(owners, 4, ReplicaOptions(min_slice_bytes=least)).pieces

    assert [pieces(n, None) for n in (1, 64, 65, 128, 129, 256, 1024)] == [2, 2, 2, 2, 1, 1, 1]
    assert [pieces(n, 1) for n in (1, 1024)] == [4, 4]
