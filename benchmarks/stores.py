"""Checkpoints in S3 against plain parallel requests: `python -m benchmarks.stores`.

The server's bandwidth per connection is so low that the processor is not what is measured, and all
contenders use the same number of connections. Loads are compared with ranged GETs of one object of
the same size, saves with boto3's transfer manager. Needs boto3 and moto.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import numpy as np
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

import orbit_ckpt as ocp
from benchmarks.store_server import Requests, SlowServer, slow_server
from orbit_ckpt.testing.chaos.proxy import Link

_CONNECTIONS = 16
_PART_BYTES = 1 << 23


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stores")
    parser.add_argument("--megabytes", type=int, default=512, help="Size of a tree; full is 2048.")
    parser.add_argument("--leaves", type=int, nargs="+", default=[64, 5000])
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--megabytes-per-s", type=float, default=4, help="Of each connection.")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    link = Link(args.latency_ms / 1000, args.megabytes_per_s * 1e6)
    settings = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    with slow_server(link) as server:
        os.environ.update(settings, AWS_ENDPOINT_URL=server.endpoint, AWS_REGION="us-east-1")
        print(
            f"{args.megabytes} MiB, latency {args.latency_ms:g} ms, {_CONNECTIONS} connections of "
            f"{args.megabytes_per_s:g} MB/s, the least of {args.rounds} rounds\n"
        )
        print("| what | time | of plain requests' rate | requests | rounds |")
        print("|---|---|---|---|---|")
        for leaves in args.leaves:
            _compare(server, leaves, args.megabytes << 20, args.rounds)


def _compare(server: SlowServer, leaves: int, nbytes: int, rounds: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    tree = {f"leaf{i}": part for i, part in enumerate(np.array_split(values, leaves))}
    run = f"s3://{server.bucket}/run{leaves}"
    plain = _Plain(server.bucket, values)
    contenders: dict[str, Callable[[int], object]] = {
        "save, plain": lambda _: plain.put(),
        "save": lambda number: ocp.save(f"{run}/{number}", tree),
        "load, plain": lambda _: plain.get(),
        "load": lambda number: ocp.load(f"{run}/{number}"),
        "metadata": lambda number: ocp.metadata(f"{run}/{number}"),
        "latest_step": lambda _: ocp.latest_step(run),
    }
    least: dict[str, tuple[float, Requests]] = {}
    for number in range(rounds):
        for name, act in contenders.items():
            server.requests()
            began = time.perf_counter()
            act(number)
            elapsed = time.perf_counter() - began
            found = elapsed, server.requests()
            least[name] = min(found, least.get(name, found), key=lambda pair: pair[0])
    for name, (elapsed, requests) in least.items():
        base = least.get(f"{name}, plain")
        ratio = f"{base[0] / elapsed:.0%}" if base else ""
        what = f"{name}, {leaves:,} leaves"
        print(f"| {what} | {elapsed:.2f} s | {ratio} | {requests.count} | {requests.rounds} |")


class _Plain:
    """The same bytes in one object, with boto3 alone."""

    def __init__(self, bucket: str, values: np.ndarray[Any, Any]) -> None:
        self._client: Any = boto3.client("s3", config=Config(max_pool_connections=_CONNECTIONS))
        self._bucket = bucket
        self._values = values

    def put(self) -> None:
        """Write it in parts."""
        config = TransferConfig(
            multipart_threshold=_PART_BYTES,
            multipart_chunksize=_PART_BYTES,
            max_concurrency=_CONNECTIONS,
        )
        data = io.BytesIO(self._values.data)
        self._client.upload_fileobj(data, self._bucket, "plain", Config=config)

    def get(self) -> None:
        """Read it in ranges."""
        result = memoryview(bytearray(self._values.nbytes))

        def get(start: int) -> None:
            place = f"bytes={start}-{min(start + _PART_BYTES, result.nbytes) - 1}"
            answer = self._client.get_object(Bucket=self._bucket, Key="plain", Range=place)
            data = answer["Body"].read()
            result[start : start + len(data)] = data

        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            list(pool.map(get, range(0, result.nbytes, _PART_BYTES)))


if __name__ == "__main__":
    main()
