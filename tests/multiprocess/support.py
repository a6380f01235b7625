"""Lives of a run of several processes, which meet with faults."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.multiprocess import run_worker
from tests.programs import context
from tests.support import free_port


class Life:
    """The processes of one life of a run, and what they report."""

    def __init__(self, count: int, plan: dict[str, Any], logs: Path) -> None:
        """Start them; their standard error goes to files in `logs`."""
        port = free_port()
        self.logs = [logs / f"process_{index}.log" for index in range(count)]
        self.reports: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        self._reported = threading.Condition()
        self._processes: list[Any] = []
        self._readers: list[threading.Thread] = []
        for index, log in enumerate(self.logs):
            ours, theirs = context().Pipe(duplex=False)
            process = context().Process(
                target=run_worker.live, args=(index, count, port, plan, theirs, log)
            )
            process.start()
            theirs.close()
            reader = threading.Thread(target=self._read, args=(index, ours))
            self._processes.append(process)
            self._readers.append(reader)
            reader.start()

    def end(self, timeout_s: float) -> list[int | None]:
        """Return the exit status of every process, None if it had to be killed."""
        statuses: list[int | None] = []
        for process in self._processes:
            process.join(timeout_s)
            statuses.append(process.exitcode)
        for process in self._processes:
            process.kill()
            process.join()
        for reader in self._readers:
            reader.join()
        return statuses

    def wait_for(self, index: int, timeout_s: float) -> int | None:
        """Return the exit status of one process, None if it goes on; then end the others."""
        self._processes[index].join(timeout_s)
        status = self._processes[index].exitcode
        self.end(0)
        return status

    def told(self, key: str) -> list[list[Any]]:
        """Return what every process has reported under a name."""
        return [[r[key] for r in reports if key in r] for reports in self.reports]

    def listen(self, key: str, timeout_s: float) -> bool:
        """Wait until every process has reported something under a name; return whether it has."""
        with self._reported:
            return self._reported.wait_for(lambda: all(self.told(key)), timeout_s)

    def signal(self, index: int, number: signal.Signals) -> None:
        """Send a process a signal."""
        os.kill(self._processes[index].pid, number)

    def _read(self, index: int, reports: Connection) -> None:
        with reports:
            while True:
                try:
                    found = reports.recv()
                except (EOFError, ConnectionError):
                    return
                with self._reported:
                    self.reports[index].append(found)
                    self._reported.notify_all()
                if "wake" in found:
                    self.signal(found["wake"], signal.SIGCONT)
