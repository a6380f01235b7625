"""The contract of plug-ins whose values all processes of a program hold alike."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orbit_ckpt._src.runtime.process import ProcessGroup
from orbit_ckpt.testing.fakes import fake_processes
from orbit_ckpt.testing.promises import promised
from orbit_ckpt.testing.saved import SavedContract


class SeveralProcessesContract(SavedContract):
    """Further tests for a plug-in that already has a contract, with fake processes in threads.

    They suit values in host memory. JAX arrays need real processes, because the devices here all
    belong to one.

    Example:
        ```python
        class TestPointHandler(TypeHandlerContract, SeveralProcessesContract): ...
        ```
    """

    PROCESSES = 3

    @promised
    def test_several_processes_save_one_checkpoint(self, tmp_path: Path) -> None:
        """Several processes that hold the same values save one checkpoint of them."""

        def save(group: ProcessGroup) -> None:
            self.save_in_group(group, tmp_path / "a", self.contents()[0])

        with ThreadPoolExecutor(self.PROCESSES) as pool:
            list(pool.map(save, fake_processes(self.PROCESSES)))
        self.expect_same(self.load(tmp_path / "a"), self.contents()[0])
