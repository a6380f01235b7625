"""Loads by several processes with and without shared reads: `python -m benchmarks.shared_reads`.

Processes of `jax.distributed` load replicated arrays from an S3 server with latency and limited
bandwidth per connection; the server counts the bytes that all of them read. Needs boto3 and moto.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import orbit_ckpt as ocp
from benchmarks.store_server import SlowServer, slow_server
from orbit_ckpt.testing.chaos.proxy import Link

_ARRAYS = 8
_ANSWER = "seconds"


def main() -> None:
    """Print the table, or work as one of the processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared_reads")
    parser.add_argument("--megabytes", type=int, default=256, help="Size of the tree.")
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--megabytes-per-s", type=float, default=2, help="Of each connection.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", type=int, nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        _work(*args.worker)
        return
    settings = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    with slow_server(Link(args.latency_ms / 1000, args.megabytes_per_s * 1e6)) as server:
        os.environ.update(settings, AWS_ENDPOINT_URL=server.endpoint, AWS_REGION="us-east-1")
        path = f"s3://{server.bucket}/step"
        rng = np.random.default_rng(0)
        rows = (args.megabytes << 20) // _ARRAYS // 4096
        tree = {f"w{i}": rng.integers(0, 256, (rows, 4096), np.uint8) for i in range(_ARRAYS)}
        ocp.save(path, {name: jax.device_put(values) for name, values in tree.items()})
        print(
            f"{args.megabytes} MiB in {_ARRAYS} arrays, latency {args.latency_ms:g} ms, "
            f"{args.megabytes_per_s:g} MB/s a connection, the least of {args.rounds} rounds\n"
        )
        print("| processes | reads | time | bytes read / bytes stored |")
        print("|---|---|---|---|")
        for count in args.processes:
            _compare(server, path, count, args.rounds, args.megabytes << 20)


def _compare(server: SlowServer, path: str, count: int, rounds: int, nbytes: int) -> None:
    with _processes(count) as pipes:
        found: dict[bool, list[tuple[float, int]]] = {False: [], True: []}
        for _ in range(rounds + 1):  # the first round compiles
            for shared in (False, True):
                server.requests()
                for commands, _answers in pipes:
                    commands.write(json.dumps([path, shared]) + "\n")
                    commands.flush()
                seconds = max(_seconds(answers) for _commands, answers in pipes)
                found[shared].append((seconds, server.requests().received_bytes))
    for shared, measured in found.items():
        seconds, received = min(measured[1:])
        kind = "shared" if shared else "each its own"
        print(f"| {count} | {kind} | {seconds:.2f} s | {received / nbytes:.3f} |", flush=True)


def _seconds(answers: IO[str]) -> float:
    for line in answers:  # Gloo prints lines of its own
        if line.startswith(_ANSWER):
            return float(line.removeprefix(_ANSWER))
    raise OSError("a process has ended")


@contextmanager
def _processes(count: int) -> Iterator[list[tuple[IO[str], IO[str]]]]:
    """Start processes; yield the pipes to and from each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as stack:
        pipes: list[tuple[IO[str], IO[str]]] = []
        for index in range(count):
            numbers = map(str, (index, count, port))
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.shared_reads", "--worker", *numbers],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            pipes.append((cast(IO[str], process.stdin), cast(IO[str], process.stdout)))
        yield pipes
        for commands, _ in pipes:
            commands.close()  # ends them


def _work(index: int, count: int, port: int) -> None:
    """Load what the lines of the input say; print the seconds of each load."""
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    everywhere = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec())
    for line in sys.stdin:
        path, shared = json.loads(line)
        begun = time.perf_counter()
        jax.block_until_ready(ocp.load(path, sharding=everywhere, share_reads=shared))
        print(_ANSWER, time.perf_counter() - begun, flush=True)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
