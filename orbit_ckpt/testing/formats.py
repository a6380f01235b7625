"""The contracts of formats: those that are read, and those that are written too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import jax
import numpy as np
import pytest
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.errors import CheckpointError, CheckpointExistsError, UnsupportedLeafError
from orbit_ckpt._src.formats.base import Format, WritableFormat
from orbit_ckpt._src.formats.writing import WriteRequest
from orbit_ckpt._src.transform.patterns import join_name
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt.testing.comparison import expect_same
from orbit_ckpt.testing.damage import bit_flips, cuts
from orbit_ckpt.testing.placement import place
from orbit_ckpt.testing.promises import expect, promised
from orbit_ckpt.testing.saved import SavedContract
from orbit_ckpt.testing.watching import count_reads, files_below

LARGE_BYTES = 1 << 20
"""Size above which an array shows whether a format reads more than it is asked for."""


class FormatContract:
    """Tests of a format that is read.

    Subclass it with a class whose name begins with `Test`, and define `format` and `samples`.

    Example:
        ```python
        class TestNpyFormat(FormatContract):
            def format(self):
                return NpyFormat()

            def samples(self, directory):
                np.save(directory / "a.npy", np.arange(3))
                return {directory / "a.npy": {"array": np.arange(3)}}
        ```
    """

    has_checksums = False
    """Whether the format has checksums of everything, so that no damage goes unnoticed."""

    def format(self) -> Format:
        """Return the format."""
        raise NotImplementedError

    def samples(self, directory: Path) -> Mapping[Path, object]:
        """Write checkpoints into an empty directory; return the tree of each by its path.

        One of them should hold several leaves, one of which has at least 1 MiB.
        """
        raise NotImplementedError

    def others(self, directory: Path) -> Sequence[Path]:
        """Make files and directories that are not of this format, in an empty directory."""
        contents = {"empty": b"", "text": b"some text\n" * 10, "binary": bytes(range(256))}
        for name, data in contents.items():
            (directory / name).write_bytes(data)
        (directory / "directory").mkdir()
        ocp.save(directory / "own", {"a": np.arange(3)})
        return [directory / name for name in (*contents, "directory", "own")]

    def expect_same(self, found: object, expected: object, where: str = "what was loaded") -> None:
        """Check for a promise that a loaded tree is as it should be, in every respect."""
        expect_same(found, expected, where)

    @promised
    def test_has_every_method(self) -> None:
        """A format has all methods of Format, and a name."""
        known = cast(object, self.format())
        is_format = isinstance(known, Format) and bool(known.name)
        expect(is_format, found=f"{known!r} without them", expected="a Format with a name")

    @promised
    def test_is_recognized(self, tmp_path: Path) -> None:
        """A format recognizes its own files."""
        for path in self.samples(tmp_path):
            found = self.format().sniff(path)
            expect(found is None, found=f"{found!r} for {path.name}", expected="None")

    @promised
    def test_leaves_other_files_alone(self, tmp_path: Path) -> None:
        """A format says why it does not recognize another file, and never raises an error."""
        for path in self.others(tmp_path):
            found = self.format().sniff(path)
            is_reason = isinstance(found, str) and found != ""
            expect(is_reason, found=f"{found!r} for {path.name}", expected="the reason")

    @promised
    def test_samples_are_loaded(self, tmp_path: Path) -> None:
        """A checkpoint is loaded as it was written: containers, types, dtypes, shapes, bits."""
        for path, tree in self.samples(tmp_path).items():
            self.expect_same(self._load(path), tree, path.name)

    @promised
    def test_load_writes_nothing(self, tmp_path: Path) -> None:
        """A load changes no file."""
        paths = self.samples(tmp_path)
        before = files_below(tmp_path)
        for path in paths:
            self._load(path)
        expect(files_below(tmp_path) == before, found="changed files", expected="none")

    @promised
    def test_arrays_are_placed_as_asked(self, tmp_path: Path) -> None:
        """A load with a sharding returns JAX arrays with the same values and that sharding."""
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[-1])
        for path, tree in self.samples(tmp_path).items():
            for name, value in _arrays(tree).items():
                if value.dtype != jax.dtypes.canonicalize_dtype(value.dtype):
                    continue
                loaded = ocp.load(path, only=[name], sharding=sharding, reader=self.format())
                found = flatten(loaded).values[0]
                expected = place(value, sharding)
                expect_same(found, expected, f"{name} of {path.name}")

    @promised
    def test_metadata_is_true(self, tmp_path: Path) -> None:
        """Metadata describes every array as a load returns it."""
        for path, tree in self.samples(tmp_path).items():
            found = _leaves(ocp.metadata(path, reader=self.format()).tree)
            for name, value in _arrays(tree).items():
                leaf = found.get(name)
                facts = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
                expected = value.shape, value.dtype
                expect(facts == expected, found=f"{facts} for {name}", expected=expected)

    @promised
    def test_lazy_leaves_are_the_same(self, tmp_path: Path) -> None:
        """Lazy leaves have the values of loaded ones."""
        for path, tree in self.samples(tmp_path).items():
            lazy = flatten(ocp.load(path, lazy=True, reader=self.format()))
            values = [v.get() if isinstance(v, ocp.LazyArray) else v for v in lazy.values]
            expect_same(values, list(flatten(tree).values), path.name)

    @promised
    def test_one_leaf_is_read_alone(self, tmp_path: Path) -> None:
        """Metadata and a load of one leaf read less than a large array beside it."""
        tested = False
        for path, tree in self.samples(tmp_path).items():
            arrays = _arrays(tree)
            large = max(arrays.values(), key=lambda value: value.nbytes, default=None)
            others = [name for name, value in arrays.items() if value is not large]
            if large is None or large.nbytes < LARGE_BYTES or not others:
                continue
            tested = True
            with count_reads() as read:
                ocp.metadata(path, reader=self.format())
                found = ocp.load(path, only=others[:1], reader=self.format())
            expect_same(flatten(found).values[0], arrays[others[0]], others[0])
            bound = f"less than {large.nbytes}"
            expect(read.nbytes < large.nbytes, found=f"{read.nbytes} bytes read", expected=bound)
        if not tested:
            pytest.skip("no sample has an array of 1 MiB beside other leaves")

    @promised
    def test_plan_lists_every_leaf(self, tmp_path: Path) -> None:
        """A plan lists every leaf that a load returns, except None and empty containers."""
        for path, tree in self.samples(tmp_path).items():
            plan = ocp.plan(path, reader=self.format())
            found = sorted(leaf.name for leaf in plan.leaves)
            expected = sorted(name for name, value in _leaves(tree).items() if not _is_none(value))
            expect(found == expected, found=found, expected=expected)

    @promised
    def test_verify_finds_it_intact(self, tmp_path: Path) -> None:
        """A checkpoint as it was written is intact."""
        for path in self.samples(tmp_path):
            report = ocp.verify(path, reader=self.format())
            expect(report.is_intact, found=report, expected="no damage")

    @promised
    def test_diff_sees_no_difference(self, tmp_path: Path) -> None:
        """A checkpoint does not differ from itself, nor from its conversion to our format."""
        for i, path in enumerate(self.samples(tmp_path)):
            same = ocp.diff(path, path, values=True, reader=self.format())
            expect(same.is_same, found=f"the difference {same}", expected="none")
            own = tmp_path / f"own_{i}"
            ocp.convert(path, own, reader=self.format())
            converted = ocp.diff(path, own, values=True, reader=(self.format(), None))
            expect(converted.is_same, found=f"the difference {converted}", expected="none")

    @promised
    def test_damage_is_reported_as_such(self, tmp_path: Path) -> None:
        """Damaged files raise a CheckpointError, or are loaded; no other error escapes."""
        for path, tree in self.samples(tmp_path).items():
            root = path if path.is_dir() else path.parent
            for damage in (*bit_flips(root), *cuts(root)):
                if path.is_file() and damage.file != path.name:
                    continue
                with damage.applied(root):
                    if (found := self._load_damaged(path, damage)) is not None:
                        self.expect_same(found[0], tree, f"what was loaded after {damage}")

    def _load_damaged(self, path: Path, damage: object) -> tuple[object] | None:
        """Return the tree of a damaged checkpoint if it must be intact."""
        try:
            self.format().sniff(path)
            self.format().open(path)  # `load` turns its errors into a CheckpointError
            found = self._load(path)
        except CheckpointError:
            return None
        except Exception as error:
            text = f"{type(error).__name__} ({error}) after {damage}"
            expect(False, found=text, expected="a CheckpointError")
            raise
        return (found,) if self.has_checksums else None

    def _load(self, path: Path) -> object:
        return ocp.load(path, reader=self.format())


class WritableFormatContract(FormatContract, SavedContract):
    """Tests of a format that is read and written; needs `contents` instead of `samples`."""

    @override
    def contents(self) -> Sequence[object]:
        """Return at least two different trees, as a load returns them, newly made each time."""
        raise NotImplementedError

    def unsupported(self) -> Sequence[object]:
        """Return trees with a leaf `bad` that the format cannot hold."""
        return [{"bad": object()}]

    @override
    def samples(self, directory: Path) -> Mapping[Path, object]:
        paths = [self.path_in(directory, str(i)) for i in range(len(self.contents()))]
        for path, content in zip(paths, self.contents(), strict=True):
            self.save(path, content)
        return dict(zip(paths, self.contents(), strict=True))

    @override
    def expect_same(self, found: object, expected: object, where: str = "what was loaded") -> None:
        FormatContract.expect_same(self, found, expected, where)

    @override
    def save(self, path: Path, content: object, *, overwrite: bool = False) -> None:
        self._writer().write(WriteRequest(path, content, overwrite=overwrite))

    @override
    def expect_kept(self, found: object, where: str) -> None:
        is_new = self.is_same(found, self.contents()[1])  # a rename may be all that succeeded
        self.expect_same(found, self.contents()[1 if is_new else 0], where)

    @override
    def save_in_background(self, path: Path, content: object) -> Callable[[], object]:
        self.save(path, content)
        return lambda: None

    @override
    def load(self, path: Path) -> object:
        return self._load(path)

    @promised
    def test_existing_file_is_kept(self, tmp_path: Path) -> None:
        """Nothing that exists is replaced unless the request says so."""
        path = self.path_in(tmp_path, "1")
        self.save(path, self.contents()[0])
        refused = False
        try:
            self.save(path, self.contents()[1])
        except CheckpointExistsError:
            refused = True
        expect(refused, found="a second write", expected="CheckpointExistsError")
        self.expect_same(self.load(path), self.contents()[0])

    @promised
    def test_unsupported_leaf_is_refused(self, tmp_path: Path) -> None:
        """A leaf that the format cannot hold is refused by name, and nothing is written."""
        for tree in self.unsupported():
            message = None
            try:
                self.save(self.path_in(tmp_path, "1"), tree)
            except UnsupportedLeafError as error:
                message = str(error)
            is_named = message is not None and "bad" in message
            expect(is_named, found=message, expected="UnsupportedLeafError that names the leaf")
            left = sorted(path.name for path in tmp_path.iterdir())
            expect(not left, found=f"{left} left behind", expected="nothing")

    def _writer(self) -> WritableFormat:
        known = self.format()
        assert isinstance(known, WritableFormat)  # noqa: S101 - the contract is for those
        return known


def _leaves(tree: object) -> dict[str, object]:
    flat = flatten(tree)
    return dict(zip(map(join_name, flat.names), flat.values, strict=True))


def _arrays(tree: object) -> dict[str, HostArray]:
    leaves = _leaves(tree).items()
    return {name: cast(HostArray, leaf) for name, leaf in leaves if isinstance(leaf, np.ndarray)}


def _is_none(leaf: object) -> bool:
    return leaf is None or (isinstance(leaf, dict | list | tuple) and not leaf)
