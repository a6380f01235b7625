"""The contract of item handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt._src.items.arguments import CheckpointArgs, PassedArgs, registered_args
from orbit_ckpt._src.items.base import CheckpointHandler
from orbit_ckpt._src.runtime.process import ProcessGroup
from orbit_ckpt.testing.promises import expect, promised
from orbit_ckpt.testing.saved import SavedContract
from orbit_ckpt.testing.watching import calls_of

_NOTE = {"written": "beside the item"}


class ItemHandlerContract(SavedContract):
    """Tests of an item handler.

    Subclass it with a class whose name begins with `Test`, and define `handler`, `values` and
    `save_args`; `restore_args` too if an item cannot be restored without arguments.

    A handler without argument classes, as in Orbax's first releases, needs no `save_args`: its
    `save` receives the directory and the value. It cannot keep one promise, which is left out for
    it: without the handler, an item is not restored by the name that the checkpoint records.

    Example:
        ```python
        class TestVocabularyHandler(ItemHandlerContract):
            def handler(self):
                return VocabularyHandler()

            def values(self):
                return [["the", "cat"], []]

            def save_args(self, value):
                return VocabularySave(value)
        ```
    """

    def handler(self) -> CheckpointHandler:
        """Return a new handler."""
        raise NotImplementedError

    def values(self) -> Sequence[object]:
        """Return at least two different items, newly made and the same every time."""
        raise NotImplementedError

    def save_args(self, value: Any) -> CheckpointArgs:
        """Return the arguments that save a value; unused without argument classes."""
        if registered_args(type(self.handler())) is not None:
            raise NotImplementedError
        return PassedArgs((value,))

    def restore_args(self) -> CheckpointArgs | None:
        """Return the arguments that restore any value, None to restore without arguments."""
        return None

    def targets(self, value: Any) -> Sequence[tuple[CheckpointArgs, object]]:
        """Return further arguments to restore a value, each with what they must restore."""
        del value
        return []

    @override
    def contents(self) -> Sequence[object]:
        return self.values()

    @override
    def save(self, path: Path, content: object, *, overwrite: bool = False) -> None:
        with ocp.Checkpointer(self.handler()) as checkpointer:
            checkpointer.save(path, args=self.save_args(content), force=overwrite)

    @override
    def save_in_background(self, path: Path, content: object) -> Callable[[], object]:
        checkpointer = ocp.AsyncCheckpointer(self.handler())
        checkpointer.save(path, args=self.save_args(content))
        return checkpointer.close

    @override
    def save_in_group(self, group: ProcessGroup, path: Path, content: object) -> None:
        options = ocp.MultiprocessingOptions(group=group)
        with ocp.Checkpointer(self.handler(), multiprocessing_options=options) as checkpointer:
            checkpointer.save(path, args=self.save_args(content))

    @override
    def load(self, path: Path) -> object:
        args = self.restore_args()
        given = {} if args is None else {"args": args}
        with ocp.Checkpointer(self.handler()) as checkpointer:
            return checkpointer.restore(path, **given)

    @promised
    def test_arguments_decide_what_is_restored(self, tmp_path: Path) -> None:
        """A restore returns what its arguments ask for."""
        for i, value in enumerate(self.values()):
            self.save(tmp_path / str(i), value)
            for args, expected in self.targets(self.values()[i]):
                found = ocp.Checkpointer(self.handler()).restore(tmp_path / str(i), args=args)
                self.expect_same(found, expected, f"values()[{i}] restored with {args}")

    @promised
    def test_metadata_restores_nothing(self, tmp_path: Path) -> None:
        """Metadata of an item is found without restoring it."""
        self.save(tmp_path / "a", self.values()[0])
        handler = self.handler()
        with calls_of(handler, "restore") as restores:
            ocp.Checkpointer(handler).metadata(tmp_path / "a")
        expect(not restores, found="a call of restore", expected="none")

    @promised
    def test_verify_finds_it_intact(self, tmp_path: Path) -> None:
        """A checkpoint as it was saved is intact."""
        self.save(tmp_path / "a", self.values()[0])
        report = ocp.verify(tmp_path / "a")
        expect(report.is_intact, found=report, expected="no damage")

    @promised
    def test_finalize_is_called(self, tmp_path: Path) -> None:
        """A save calls finalize once, after everything is written and before it appears."""
        handler = self.handler()
        with calls_of(handler, "finalize") as calls, ocp.Checkpointer(handler) as checkpointer:
            checkpointer.save(tmp_path / "a", args=self.save_args(self.values()[0]))
        expect(len(calls) <= 1, found=f"{len(calls)} calls", expected="one")
        at = [Path(directory) for directory, *_ in calls]
        expect(
            at != [tmp_path / "a"], found=f"a call for {at}", expected="the unfinished directory"
        )

    @promised
    def test_item_of_several(self, tmp_path: Path) -> None:
        """An item among others is restored as it is alone, by arguments or by its recorded name."""
        self._save_with_note(tmp_path / "a")
        wanted = ocp.args.Composite(item=self.restore_args())
        found = self._composite().restore(tmp_path / "a", wanted)
        self.expect_same(found.item, self.values()[0], "the item restored by name")
        if self.restore_args() is None and registered_args(type(self.handler())) is not None:
            found = ocp.Checkpointer(ocp.CompositeHandler()).restore(tmp_path / "a")
            self.expect_same(found.item, self.values()[0], "the item restored as recorded")

    @promised
    def test_items_are_read_alone(self, tmp_path: Path) -> None:
        """A restore of one item reads no file of another."""
        self._save_with_note(tmp_path / "a")
        for name, wanted in (("item", "note"), ("note", "item")):
            hidden = (tmp_path / "a" / name).rename(tmp_path / name)
            hidden.mkdir(exist_ok=True)
            (tmp_path / "a" / name).mkdir()
            args = None if wanted == "note" else self.restore_args()
            found = self._composite().restore(tmp_path / "a", ocp.args.Composite(**{wanted: args}))
            expected = _NOTE if wanted == "note" else self.values()[0]
            self.expect_same(found[wanted], expected, f"the {wanted}")
            (tmp_path / "a" / name).rmdir()
            hidden.rename(tmp_path / "a" / name)

    @promised
    def test_steps_of_a_manager(self, tmp_path: Path) -> None:
        """Every step that a manager keeps is restored as it was saved."""
        wanted = ocp.args.Composite(item=self.restore_args())
        with self._manager(tmp_path) as manager:
            for step, value in enumerate(self.values()):
                manager.save(step, args=ocp.args.Composite(item=self.save_args(value)))
        with self._manager(tmp_path) as manager:
            for step, value in enumerate(self.values()):
                found = manager.restore(step, args=wanted).item
                self.expect_same(found, value, f"step {step}")

    def _manager(self, directory: Path) -> ocp.CheckpointManager:
        return ocp.CheckpointManager(directory, item_handlers={"item": self.handler()})

    def _composite(self) -> ocp.Checkpointer:
        return ocp.Checkpointer(ocp.CompositeHandler(item=self.handler()))

    def _save_with_note(self, path: Path) -> None:
        items = {"item": self.save_args(self.values()[0]), "note": ocp.args.JsonSave(_NOTE)}
        self._composite().save(path, ocp.args.Composite(**items))
