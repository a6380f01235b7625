"""Any order of saves, deletions and damage: a step gives back what was saved, or says it cannot."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import orbit_ckpt as ocp
from orbit_ckpt.errors import CheckpointError, CorruptionError
from orbit_ckpt.testing.write_faults import Refusal, before_every_write
from tests.faults.support import snapshot
from tests.soak import rounds

T = TypeVar("T")

LEAVES = 5


def array(leaf: int, version: int) -> np.ndarray:
    rng = np.random.default_rng([leaf, version])
    return rng.normal(size=(32 << leaf, 16)).astype(np.float32)


def chosen(data: st.DataObject, among: Sequence[T]) -> T:
    """Draw one of several objects; their number may depend on threads, what is drawn must not."""
    return among[data.draw(st.integers(0, 999)) % len(among)]


class Steps(RuleBasedStateMachine):
    """Steps that share files, and what must be in each."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.versions = [0] * LEAVES
        self.saved: dict[int, dict[str, Any]] = {}
        self.damaged: set[int] = set()
        self.count = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def tree(self) -> dict[str, Any]:
        return {f"w{i}": array(i, version) for i, version in enumerate(self.versions)}

    def path(self, step: int) -> Path:
        return self.root / str(step)

    @rule(leaves=st.sets(st.integers(0, LEAVES - 1)), version=st.integers(0, 3))
    def train(self, leaves: set[int], version: int) -> None:
        for leaf in leaves:
            self.versions[leaf] = version

    @rule(data=st.data(), background=st.booleans())
    def save(self, data: st.DataObject, background: bool) -> None:
        base = chosen(data, [None, -1, *self.saved])
        self.count += 1
        path, tree = self.path(self.count), self.tree()
        place = None if base is None else self.path(base)
        if background:
            ocp.save_async(path, tree, base=place).result()
        else:
            ocp.save(path, tree, base=place)
        self.saved[self.count] = tree
        if base in self.damaged:  # it may share the damaged file
            self.damaged.add(self.count)

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), nth=st.integers(1, 60))
    def save_on_a_full_disk(self, data: st.DataObject, nth: int) -> None:
        base = chosen(data, [*self.saved])
        refusal = Refusal(nth, 28)
        path, tree = self.path(self.count + 1), self.tree()
        with before_every_write(refusal, deletions=True, data=True):
            try:
                ocp.save(path, tree, base=self.path(base))
            except CheckpointError:
                assert refusal.happened
                assert not path.exists()
                return
        self.count += 1
        self.saved[self.count] = tree
        if base in self.damaged:
            self.damaged.add(self.count)

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        step = chosen(data, [*self.saved])
        base = chosen(data, [*self.saved])
        self.saved[step] = self.tree()
        ocp.save(self.path(step), self.saved[step], base=self.path(base), overwrite=True)
        self.damaged.discard(step)
        if base in self.damaged or step == base:
            self.damaged.add(step)

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        step = chosen(data, [*self.saved])
        shutil.rmtree(self.path(step))
        del self.saved[step]
        self.damaged.discard(step)

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), where=st.floats(0, 0.999))
    def damage(self, data: st.DataObject, where: float) -> None:
        step = chosen(data, [*self.saved])
        file = chosen(data, sorted((self.path(step) / "d").iterdir()))
        inode = file.stat().st_ino
        content = bytearray(file.read_bytes())
        content[int(where * len(content))] ^= 1
        file.write_bytes(content)
        for other in self.saved:
            if inode in {f.stat().st_ino for f in (self.path(other) / "d").iterdir()}:
                self.damaged.add(other)

    @invariant()
    def every_step_is_what_was_saved_or_says_that_it_is_not(self) -> None:
        assert {p.name for p in self.root.iterdir()} == {str(step) for step in self.saved}
        for step, tree in self.saved.items():
            try:
                assert snapshot(ocp.load(self.path(step))) == snapshot(tree)
            except CorruptionError:
                assert step in self.damaged
                assert not ocp.verify(self.path(step)).is_intact


Steps.TestCase.settings = settings(
    max_examples=rounds(15, 300), stateful_step_count=rounds(12, 30), deadline=None
)
TestSteps = Steps.TestCase
