"""Typical mistakes: each is an error of a known type that names what is wrong and what to do.

A row is the name of a mistake, the call that makes it, the type of the error, what the message must
name (the argument, the leaf or the place) and what it must advise. The types are those that the
documentation promises: never an error from inside the library or of a package below it.
"""

# ruff: noqa: E501 - rows of a table

from __future__ import annotations

import os
import pathlib
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import orbit_ckpt
from orbit_ckpt import errors

ocp: Any = orbit_ckpt  # the calls below are wrong on purpose
args, transform, type_handlers = ocp.args, ocp.transform, ocp.type_handlers
Rename = transform.Rename

Mistake = tuple[str, Callable[["Place"], object], type[Exception], str, str]

NOT_FOUND = errors.CheckpointNotFoundError
UNSUPPORTED = errors.UnsupportedLeafError
MISMATCH = errors.TreeMismatchError
NO_RULE = errors.TransformError
EXISTS = errors.CheckpointExistsError


class Odd:
    """Of no type that can be saved."""


TREE: Any = {
    "layer": {"kernel": jnp.ones((4, 8)), "bias": np.zeros(8, np.float32)},
    "step": 3,
    "name": "x",
}


class Reader:
    """A reader of a plug-in that does not work."""

    name, extra = "mine", None

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    def sniff(self, path: pathlib.Path) -> None:
        """Recognize everything."""

    def open(self, path: pathlib.Path) -> Any:
        if self.fails:
            raise RuntimeError("boom", path.name)
        return 3


class Place:
    """A directory with checkpoints, runs and other files; nothing in it is changed."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.ck = root / "ck"
        self.run = root / "run"
        self.new = root / "new"
        self.mesh = jax.make_mesh((8,), ("x",))
        ocp.save(self.ck, TREE)
        with ocp.CheckpointManager(self.run) as run:
            run.save(1, TREE)
            run.save(2, TREE)
        with ocp.CheckpointManager(root / "items", item_names=("state", "meta")) as run:
            run.save(1, args=args.Composite(state=args.StandardSave(TREE), meta=args.JsonSave({})))
        self.models = root / "models"
        for name in ("alice", "bob"):
            ocp.save(self.models / name, TREE)
        (root / "empty").mkdir()
        (root / "file.txt").write_text("hi")
        (root / "m.pt").write_bytes(b"PK\x03\x04" + b"0" * 100)
        np.savez(root / "a.npz", a=np.ones(3))
        np.save(root / "a.npy", np.ones(3))
        (root / "a.pkl").write_bytes(pickle.dumps({"a": 1}))

    def like(self, **changes: object) -> object:
        """Return a target like the checkpoint, with some changes."""
        return {**TREE, **changes}

    def layer(self, **changes: object) -> object:
        """Return the same with changes in its layer."""
        return self.like(layer={**TREE["layer"], **changes})

    def sharding(self, *spec: str | None) -> NamedSharding:
        """Return a sharding over all devices."""
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def manager(self, **options: object) -> Any:
        """Return a manager of a run without steps."""
        return ocp.CheckpointManager(self.root / "empty", **options)

    def opened(self) -> Any:
        """Return a manager of the run with two steps."""
        return ocp.CheckpointManager(self.run)

    def saving(self) -> pathlib.Path:
        """Return a run whose step 3 another process is saving."""
        (self.root / "saving" / "3.orbax-checkpoint-tmp-17").mkdir(parents=True, exist_ok=True)
        return self.root / "saving"

    def several(self) -> Any:
        """Return a manager of the run with several items."""
        return ocp.CheckpointManager(self.root / "items", item_names=("state", "meta"))

    def tree_checkpointer(self) -> Any:
        """Return what saves trees."""
        return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Make what the mistakes are about; relative paths are in it."""
    root = tmp_path_factory.mktemp("mistakes")
    before = pathlib.Path.cwd()
    os.chdir(root)
    yield Place(root)
    os.chdir(before)


def save_tracer(p: Place) -> None:
    jax.jit(lambda x: ocp.save(p.new, {"x": x}))(jnp.ones(2))


def save_deleted(p: Place) -> None:
    array = jnp.ones(3)
    array.delete()
    ocp.save(p.new, {"x": array})


def closed(p: Place) -> Any:
    manager = p.manager()
    manager.close()
    return manager


def without_protobuf(p: Place) -> None:
    handler, save = ocp.ProtoHandler(), args.ProtoSave(3)  # imported before modules are patched
    with mock.patch.dict(sys.modules, {"google.protobuf": None}):
        ocp.Checkpointer(handler).save(p.new, args=save)


def wait(p: Place, **options: object) -> None:
    with ocp.checkpoint_utils.wait_for_new_checkpoint(p.root / "empty", **options):
        pass


OPTIONS = ocp.CheckpointManagerOptions
A_PATH = "path of a checkpoint"
PATH_FIRST = r"Give a path; it comes first, as in save\(path, tree\)"
NEXT_TO_IT = "next to it: .*Give the directory that was saved to"
TRUE_OR_FALSE = "give True or False"
DTYPES = r"give one of .*jnp\.bfloat16"
SHARDINGS = r"Give a jax\.sharding\.NamedSharding.*transform\.partition"
GIVE_LEAVES = "Give SaveArgs for leaves|with SaveArgs for leaves"
KERNEL = r"layer[./]kernel"

# fmt: off
PATHS: list[Mistake] = [
    ("tree before path", lambda _: ocp.save(TREE, "p"), TypeError, f"{A_PATH}.*dict", PATH_FIRST),
    ("save to None", lambda _: ocp.save(None, TREE), TypeError, f"{A_PATH}.*None", PATH_FIRST),
    ("save to a number", lambda _: ocp.save(3, TREE), TypeError, f"{A_PATH}.*int", PATH_FIRST),
    ("NUL in a path", lambda _: ocp.save("a\0b", TREE), ValueError, r"path 'a\\x00b'", "remove it"),
    ("empty path", lambda _: ocp.save("", TREE), ValueError, "is empty", "give a directory"),
    ("save to the root", lambda _: ocp.save("/", TREE), ValueError, "^/ ", "give a directory in"),
    ("long name", lambda p: ocp.save(p.root / ("x" * 300), TREE), ValueError, "path", "a shorter"),
    ("long path", lambda _: ocp.save("/x" * 3000, TREE), ValueError, "path", "a shorter"),
    ("pathlib of a URL", lambda _: ocp.save(pathlib.Path("s3://b/x"), TREE), ValueError, "s3:/b/x", "as a string"),
    ("http", lambda _: ocp.save("http://host/x", TREE), ValueError, "http://host", "local directory"),
    ("hf", lambda _: ocp.load("hf://host/x"), ValueError, "hf://host", "local directory"),
    ("save below a file", lambda p: ocp.save(p.root / "file.txt" / "x", TREE), errors.StorageError, r"file\.txt", "Check that"),
    ("save again", lambda p: ocp.save(p.ck, TREE), EXISTS, "/ck ", "overwrite=True"),
    ("overwrite other files", lambda p: ocp.save(p.root, TREE, overwrite=True), EXISTS, "is no checkpoint", "another path"),
    ("save over a file", lambda p: ocp.save(p.root / "file.txt", TREE), EXISTS, r"file\.txt", "another path"),
    ("load None", lambda _: ocp.load(None), TypeError, f"{A_PATH}.*None", PATH_FIRST),
    ("load a number", lambda _: ocp.load(3), TypeError, f"{A_PATH}.*int", PATH_FIRST),
    ("load target before path", lambda p: ocp.load(TREE, p.ck), TypeError, f"{A_PATH}.*dict", PATH_FIRST),
    ("load bytes of nothing", lambda _: ocp.load(b"x"), NOT_FOUND, "/x", NEXT_TO_IT),
    ("load nothing", lambda p: ocp.load(p.root / "nothing"), NOT_FOUND, "/nothing", NEXT_TO_IT),
    ("misspelt checkpoint", lambda p: ocp.load(p.root / "ckk"), NOT_FOUND, r"/ckk: .*next to it: ck,", "Give the directory"),
    ("load an empty directory", lambda p: ocp.load(p.root / "empty"), NOT_FOUND, "/empty: it is an empty", "Give the directory"),
    ("load a text file", lambda p: ocp.load(p.root / "file.txt"), NOT_FOUND, r"file\.txt: it is a text file", "Give the directory"),
    ("load PyTorch's file", lambda p: ocp.load(p.root / "m.pt"), NOT_FOUND, r"m\.pt: it is a PyTorch file", "save_file"),
    ("load npz", lambda p: ocp.load(p.root / "a.npz"), NOT_FOUND, r"a\.npz: it is an archive of NumPy", r"save\(path"),
    ("load npy", lambda p: ocp.load(p.root / "a.npy"), NOT_FOUND, r"a\.npy: it is a NumPy", r"save\(path"),
    ("load pickle", lambda p: ocp.load(p.root / "a.pkl"), NOT_FOUND, r"a\.pkl: it is a pickle", r"save\(path"),
    ("load a directory of checkpoints", lambda p: ocp.load(p.models), NOT_FOUND, r"/models holds several checkpoints", "give one of them.*/models/bob"),
    ("load a step that is not there", lambda p: ocp.load(p.run / "7"), NOT_FOUND, "/run/7", NEXT_TO_IT),
    ("metadata of nothing", lambda p: ocp.metadata(p.root / "nothing"), NOT_FOUND, "/nothing", NEXT_TO_IT),
    ("metadata of a directory", lambda p: ocp.metadata(p.models), NOT_FOUND, "/models holds", "give one of them"),
    ("metadata of None", lambda _: ocp.metadata(None), TypeError, A_PATH, PATH_FIRST),
    ("plan of nothing", lambda p: ocp.plan(p.root / "nothing"), NOT_FOUND, "/nothing", NEXT_TO_IT),
    ("plan of a tree", lambda _: ocp.plan(TREE), TypeError, A_PATH, PATH_FIRST),
    ("verify nothing", lambda p: ocp.verify(p.root / "nothing"), NOT_FOUND, "/nothing", NEXT_TO_IT),
    ("verify None", lambda _: ocp.verify(None), TypeError, A_PATH, PATH_FIRST),
    ("diff with nothing", lambda p: ocp.diff(p.ck, p.root / "nothing"), NOT_FOUND, "/nothing", NEXT_TO_IT),
    ("diff with a tree", lambda p: ocp.diff(p.ck, TREE), TypeError, f"{A_PATH}.*dict", "Give a path"),
    ("diff with no memory", lambda p: ocp.diff(p.ck, p.ck, max_bytes=0), ValueError, "max_bytes", "at least 1"),
    ("diff with memory as text", lambda p: ocp.diff(p.ck, p.ck, max_bytes="1GB"), TypeError, "max_bytes", "an integer"),
    ("convert nothing", lambda p: ocp.convert(p.root / "nothing", p.new), NOT_FOUND, "/nothing", NEXT_TO_IT),
    ("convert to PyTorch", lambda p: ocp.convert(p.ck, p.new, to="pytorch"), ValueError, "to is 'pytorch'", "give one of 'orbit'"),
    ("convert to None", lambda p: ocp.convert(p.ck, p.new, to=None), ValueError, "to is None", "give one of 'orbit'"),
    ("convert text to safetensors", lambda p: ocp.convert(p.ck, p.new, to="safetensors"), UNSUPPORTED, r"name \(str\)", "Skip 'name'"),
    ("convert keys to Flax", lambda p: (ocp.save(p.root / "key", {"k": jax.random.key(0)}), ocp.convert(p.root / "key", p.new, to="flax")), UNSUPPORTED, r"k \(key", "Skip 'k'"),
    ("convert into itself", lambda p: ocp.convert(p.ck, p.ck / "x"), ValueError, "/ck/x is inside", "another destination"),
    ("convert over a checkpoint", lambda p: ocp.convert(p.ck, p.ck), EXISTS, "/ck ", "overwrite=True"),
    ("convert with progress=True", lambda p: ocp.convert(p.ck, p.new, progress=True), TypeError, "progress", "Give one that takes"),
    ("convert with no memory", lambda p: ocp.convert(p.ck, p.new, max_bytes=0), ValueError, "max_bytes", "at least 1"),
    ("verify with memory as text", lambda p: ocp.verify(p.ck, max_bytes="1GB"), TypeError, "max_bytes", "an integer"),
    ("verify with progress=True", lambda p: ocp.verify(p.ck, progress=True), TypeError, "progress", "Give one that takes"),
    ("diff values='no'", lambda p: ocp.diff(p.ck, p.ck, values="no"), TypeError, "values is 'no'", TRUE_OR_FALSE),
    ("convert overwrite='no'", lambda p: ocp.convert(p.ck, p.new, overwrite="no"), TypeError, "overwrite is 'no'", TRUE_OR_FALSE),
    ("construct_restore_args strict='no'", lambda _: ocp.checkpoint_utils.construct_restore_args(TREE, strict="no"), TypeError, "strict is 'no'", TRUE_OR_FALSE),
    ("register_type_handler override='no'", lambda _: type_handlers.register_type_handler(bytearray, type_handlers.NumpyHandler(), override="no"), TypeError, "override is 'no'", TRUE_OR_FALSE),
    ("apply_transformations with a flag as text", lambda _: ocp.transform_utils.apply_transformations(TREE, {}, TREE, default_to_original="no"), TypeError, "default_to_original is 'no'", TRUE_OR_FALSE),
    ("dataset_prefix of a list", lambda p: ocp.t5x.dataset_prefix(p.ck, [1], 2), TypeError, "shard ", "an integer"),
    ("translate_t5 of a number", lambda _: ocp.t5x.translate_t5(3), TypeError, "variables must be a dict", "Give the variables"),
    ("FunctionPolicy(None)", lambda _: ocp.checkpoint_managers.FunctionPolicy(None), TypeError, "FunctionPolicy.function", "Give a function"),
    ("TemporaryPolicy(None)", lambda _: ocp.checkpoint_managers.TemporaryPolicy(None), TypeError, "TemporaryPolicy.policy", "Give FixedIntervalPolicy"),
    ("decide with a number", lambda _: ocp.checkpoint_managers.decide(3, None, [], context=None), TypeError, "policy must be", "Give FixedIntervalPolicy"),
    ("copy nothing", lambda p: ocp.copy(p.root / "nothing", p.new), NOT_FOUND, "/nothing", NEXT_TO_IT),
    ("copy overwrite='no'", lambda p: ocp.copy(p.ck, p.new, overwrite="no"), TypeError, "overwrite is 'no'", TRUE_OR_FALSE),
    ("copy with a number of workers", lambda p: ocp.copy(p.ck, p.new, executor=8), TypeError, "executor", "ProcessPoolExecutor"),
    ("statistics with no memory", lambda p: ocp.statistics(p.ck, max_bytes=0), ValueError, "max_bytes", "at least 1"),
    ("statistics of nothing", lambda p: ocp.statistics(p.root / "nothing"), NOT_FOUND, "/nothing", NEXT_TO_IT),
    ("statistics of a leaf that is not there", lambda p: ocp.statistics(p.ck, only="nothing"), ValueError, "nothing", "matches"),
    ("convert to a list", lambda p: ocp.convert(p.ck, p.new, to=["orbit"]), ValueError, "to is ", "give one of 'orbit'"),
    ("convert with metadata as list", lambda p: ocp.convert(p.ck, p.new, custom_metadata=[1]), TypeError, "custom_metadata .*list", "Give {"),
    ("convert with shards of text", lambda p: ocp.convert(p.ck, p.new, to="safetensors", max_shard_bytes="1GB"), TypeError, "max_shard_bytes", "an integer"),
    ("convert to orbit with shards", lambda p: ocp.convert(p.ck, p.new, max_shard_bytes=9), ValueError, "max_shard_bytes", "leave it out"),
    ("name format of a step", lambda p: ocp.step.build_step_path(p.run, 3, 1), TypeError, "name_format .*3", "Give StepNameFormat"),
]

SAVES: list[Mistake] = [
    ("object as leaf", lambda p: ocp.save(p.new, {"a": Odd()}), UNSUPPORTED, r"a: .*Odd", "Convert the leaves.*register"),
    ("function as leaf", lambda p: ocp.save(p.new, {"f": lambda x: x}), UNSUPPORTED, "f: .*function", "leave them out"),
    ("set as leaf", lambda p: ocp.save(p.new, {"a": {1, 2}}), UNSUPPORTED, "a: .*set", "Convert the leaves"),
    ("arguments for a tree", lambda p: ocp.save(p.new, args.StandardSave(TREE)), TypeError, r"tree .*args\.StandardSave", "Give the tree itself"),
    ("path for a tree", lambda p: ocp.save(p.new, p.ck), TypeError, "tree .*/ck", "Give the tree itself"),
    ("tracer", save_tracer, UNSUPPORTED, "x: it is a tracer", "save outside of jit"),
    ("deleted array", save_deleted, UNSUPPORTED, "x: the array has been deleted", "save it before"),
    ("objects in an array", lambda p: ocp.save(p.new, {"a": np.array([1, "x"], object)}), UNSUPPORTED, "a: dtype object", "convert it to numbers"),
    ("texts in an array", lambda p: ocp.save(p.new, {"a": np.array(["a"])}), UNSUPPORTED, "a: dtype <U1", "save a list of str"),
    ("bytes in an array", lambda p: ocp.save(p.new, {"a": np.array([b"a"])}), UNSUPPORTED, "a: dtype .S1", "save a list of bytes"),
    ("fields in an array", lambda p: ocp.save(p.new, {"a": np.zeros(2, "i4,f4")}), UNSUPPORTED, "a: dtype", "fields as leaves"),
    ("masked array", lambda p: ocp.save(p.new, {"a": np.ma.ones(2)}), UNSUPPORTED, "a: its mask", "as two leaves"),
    ("shape without values", lambda p: ocp.save(p.new, {"a": jax.ShapeDtypeStruct((2,), int)}), UNSUPPORTED, "a: a ShapeDtypeStruct", "save the array"),
    ("placeholder", lambda p: ocp.save(p.new, {"a": ocp.PLACEHOLDER}), UNSUPPORTED, "a: a PLACEHOLDER", "save the value"),
    ("70 dimensions", lambda p: ocp.save(p.new, {"a": jnp.ones((1,) * 70)}), UNSUPPORTED, "a: 70 dimensions", "reshape it"),
    ("large integer", lambda p: ocp.save(p.new, {"a": 2**70}), UNSUPPORTED, "a: the integer", "save it as a str"),
    ("dot in a name", lambda p: ocp.save(p.new, {"a.b": 1, "a": {"b": 2}}), errors.NameCollisionError, r"\['a'\]\['b'\] and \['a\.b'\]", "Rename a key"),
    ("keys that do not sort", lambda p: ocp.save(p.new, {"a": 1, 2: 3}), ValueError, "tree cannot be flattened", "give keys of one type"),
    ("object in metadata", lambda p: ocp.save(p.new, TREE, custom_metadata={"f": Odd()}), TypeError, "custom_metadata", "Use a dict of"),
    ("list as metadata", lambda p: ocp.save(p.new, TREE, custom_metadata=[1]), TypeError, "custom_metadata", "Use a dict of"),
    ("number as key of metadata", lambda p: ocp.save(p.new, TREE, custom_metadata={1: 2}), TypeError, "custom_metadata.*key 1", "keys of str"),
    ("cast misspelt", lambda p: ocp.save(p.new, TREE, cast={"layr/**": jnp.bfloat16}), NO_RULE, "cast: 'layr", r"layer/\*\*"),
    ("cast to no dtype", lambda p: ocp.save(p.new, TREE, cast={"**": "float99"}), TypeError, r"cast\['\*\*'\]", DTYPES),
    ("cast to a number", lambda p: ocp.save(p.new, TREE, cast=3), TypeError, "cast is 3", DTYPES),
    ("overwrite='yes'", lambda p: ocp.save(p.new, TREE, overwrite="yes"), TypeError, "overwrite is 'yes'", TRUE_OR_FALSE),
    ("async overwrite='no'", lambda p: ocp.save_async(p.new, TREE, overwrite="no"), TypeError, "overwrite is 'no'", TRUE_OR_FALSE),
    ("force=", lambda p: ocp.save(p.new, TREE, force=True), TypeError, "'force'", "overwrite="),
    ("item=", lambda p: ocp.save(p.new, item=TREE), TypeError, "'item'", "tree="),
    ("rules on save", lambda p: ocp.save(p.new, TREE, transforms=[Rename("a", "b")]), TypeError, "transforms.*Rename", "for load and convert"),
    ("a function for transforms", lambda p: ocp.save(p.new, TREE, transforms=lambda s, i: (s, i)), TypeError, "transforms", "Give a list of functions"),
]

LOADS: list[Mistake] = [
    ("target=", lambda p: ocp.load(p.ck, target=TREE), TypeError, "'target'", "like="),
    ("item=", lambda p: ocp.load(p.ck, item=TREE), TypeError, "'item'", "like="),
    ("plan target=", lambda p: ocp.plan(p.ck, target=TREE), TypeError, "'target'", "like="),
    ("text as target", lambda p: ocp.load(p.ck, "other"), MISMATCH, "<root>", "give a tree"),
    ("path as target", lambda p: ocp.load(p.ck, p.ck), TypeError, "like .*/ck", "Give a tree"),
    ("arguments as target", lambda p: ocp.load(p.ck, args.StandardRestore(TREE)), TypeError, r"like .*args\.StandardRestore", "Give a tree"),
    ("class of arguments as target", lambda p: ocp.load(p.ck, args.StandardRestore), TypeError, r"like .*args\.StandardRestore", "Give a tree"),
    ("leaf that was not saved", lambda p: ocp.load(p.ck, p.like(extra=1)), MISMATCH, "extra", "fallback"),
    ("leaves that are not wanted", lambda p: ocp.load(p.ck, {"step": 1}), MISMATCH, KERNEL, "unexpected='ignore'"),
    ("misspelt leaf", lambda p: ocp.load(p.ck, {"layr": TREE["layer"], "step": 1, "name": "x"}), MISMATCH, r"layr[./]bias \(nearest: layer[./]bias", "Change the target"),
    ("another shape", lambda p: ocp.load(p.ck, p.layer(kernel=jnp.ones((8, 4)))), MISMATCH, rf"{KERNEL}: shape \(8, 4\)", "strict=False"),
    ("another dtype", lambda p: ocp.load(p.ck, p.layer(kernel=jnp.ones((4, 8), int))), MISMATCH, f"{KERNEL}: dtype", "cast='unsafe'"),
    ("text for a number", lambda p: ocp.load(p.ck, p.like(step="x")), MISMATCH, "step: the target has a string", "Change the target"),
    ("misspelt only", lambda p: ocp.load(p.ck, only="layer/kernl"), NO_RULE, "only: 'layer/kernl'", "layer/kernel"),
    ("only a container", lambda p: ocp.load(p.ck, only="layer"), NO_RULE, "only: 'layer'", r"layer/\*\* matches"),
    ("only=3", lambda p: ocp.load(p.ck, only=3), TypeError, "only .*found 3", "Give a string"),
    ("only=[None]", lambda p: ocp.load(p.ck, only=[3, "a"]), TypeError, "only .*found 3", "Give a string"),
    ("only a tree", lambda p: ocp.load(p.ck, only={"layer": True}), TypeError, "only .*dict", "Give a string"),
    ("misspelt skip", lambda p: ocp.load(p.ck, skip="optt/**"), NO_RULE, "skip: 'optt", "There are layer/bias"),
    ("skip a function", lambda p: ocp.load(p.ck, skip=len), TypeError, "skip ", "Give a string"),
    ("cast='safe'", lambda p: ocp.load(p.ck, cast="safe"), ValueError, "cast is 'safe'", DTYPES),
    ("cast=3", lambda p: ocp.load(p.ck, cast=3), TypeError, "cast is 3", DTYPES),
    ("cast=None", lambda p: ocp.load(p.ck, cast=None), TypeError, "cast is None", DTYPES),
    ("misspelt cast", lambda p: ocp.load(p.ck, cast={"layr/**": jnp.bfloat16}), NO_RULE, "cast: 'layr", r"layer/\*\*"),
    ("cast to no dtype", lambda p: ocp.load(p.ck, cast={"**": "float99"}), TypeError, r"cast\['\*\*'\]", DTYPES),
    ("spec as sharding", lambda p: ocp.load(p.ck, sharding=PartitionSpec("x")), TypeError, "sharding: ", SHARDINGS),
    ("name as sharding", lambda p: ocp.load(p.ck, sharding="cpu:0"), TypeError, "sharding: .*cpu:0", SHARDINGS),
    ("list as sharding", lambda p: ocp.load(p.ck, sharding=[1]), TypeError, "sharding: ", SHARDINGS),
    ("mesh as sharding", lambda p: ocp.load(p.ck, sharding=p.mesh), TypeError, "sharding: .*Mesh", SHARDINGS),
    ("specs as shardings", lambda p: ocp.load(p.ck, sharding={"**": PartitionSpec("x")}), TypeError, r"sharding\['\*\*'\]", SHARDINGS),
    ("spec of too many axes", lambda p: ocp.load(p.ck, sharding=p.sharding(None, None, "x")), ValueError, rf"{KERNEL}: shape \(4, 8\)", "Give this leaf another"),
    ("dimension that is not divisible", lambda p: ocp.load(p.ck, sharding=p.sharding("x")), ValueError, rf"{KERNEL}: shape \(4, 8\)", "Give this leaf another"),
    ("misspelt sharding", lambda p: ocp.load(p.ck, sharding={"layr/**": p.sharding("x")}), NO_RULE, "sharding: .*layer/kernel", "Add one"),
    ("missing='ignore'", lambda p: ocp.load(p.ck, missing="ignore"), ValueError, "missing is 'ignore'", "give one of"),
    ("missing=True", lambda p: ocp.load(p.ck, missing=True), ValueError, "missing is True", "give one of"),
    ("unexpected='skip'", lambda p: ocp.load(p.ck, unexpected="skip"), ValueError, "unexpected is 'skip'", "give one of"),
    ("names as rules", lambda p: ocp.load(p.ck, transforms=["a"]), TypeError, "transforms .*'a'", "orbit_ckpt.transform"),
    ("a single rule", lambda p: ocp.load(p.ck, transforms=Rename("a", "b")), TypeError, "transforms .*Rename", r"\[Rename"),
    ("class of rules", lambda p: ocp.load(p.ck, transforms=[Rename]), TypeError, "transforms .*Rename", "orbit_ckpt.transform"),
    ("Orbax's transforms", lambda p: ocp.load(p.ck, transforms={"a": ocp.Transform()}), TypeError, "transforms .*dict", "PyTreeRestore"),
    ("rule without a function", lambda _: transform.Map("a", ocp.args), TypeError, "Map: fn", "Give one that takes a value"),
    ("rule with a number as pattern", lambda _: transform.Drop(ocp.args), TypeError, "pattern", "give a string"),
    ("misspelt rule", lambda p: ocp.load(p.ck, transforms=[Rename("layr/kernel", "w")]), NO_RULE, "Rename.*layr", "nearest names are layer/kernel"),
    ("reader by name", lambda p: ocp.load(p.ck, reader="t5x"), TypeError, "reader .*'t5x'", "T5XFormat"),
    ("class of readers", lambda p: ocp.load(p.ck, reader=ocp.t5x.T5XFormat), TypeError, "reader .*class T5XFormat", r"T5XFormat\(\)"),
    ("verify reader by name", lambda p: ocp.verify(p.ck, reader="t5x"), TypeError, "reader .*'t5x'", "T5XFormat"),
    ("diff reader by name", lambda p: ocp.diff(p.ck, p.ck, reader="t5x"), TypeError, "reader .*'t5x'", "T5XFormat"),
    ("convert reader by name", lambda p: ocp.convert(p.ck, p.root / "r", to="orbit", reader="t5x"), TypeError, "reader .*'t5x'", "T5XFormat"),
    ("verify of a PyTorch file", lambda p: ocp.verify(p.root / "m.pt"), NOT_FOUND, r"m\.pt: it is a PyTorch file", "save_file"),
    ("metadata reader by name", lambda p: ocp.metadata(p.ck, reader="t5x"), TypeError, "reader .*'t5x'", "T5XFormat"),
    ("map_leaf=3", lambda p: ocp.load(p.ck, map_leaf=3), TypeError, "map_leaf .*3", "takes a leaf and its name"),
    ("strict='no'", lambda p: ocp.load(p.ck, strict="no"), TypeError, "strict is 'no'", TRUE_OR_FALSE),
    ("lazy='yes'", lambda p: ocp.load(p.ck, lazy="yes"), TypeError, "lazy is 'yes'", TRUE_OR_FALSE),
    ("report='yes'", lambda p: ocp.load(p.ck, report="yes"), TypeError, "report is 'yes'", TRUE_OR_FALSE),
    ("memory_limit='2GB'", lambda p: ocp.load(p.ck, memory_limit="2GB"), TypeError, "memory_limit", r"Give 256 \* 2\*\*20"),
    ("memory_limit=0", lambda p: ocp.load(p.ck, memory_limit=0), ValueError, "memory_limit", r"256 \* 2\*\*20"),
    ("path as fallback", lambda p: ocp.load(p.ck, p.like(extra=1), fallback=p.ck), TypeError, "fallback .*/ck", "Give a tree"),
    ("no such wildcard", lambda p: ocp.load(p.ck, transforms=[Rename("layer/*", r"x/\1/\2")]), ValueError, r"'layer/\*'", "has 1 wildcards"),
    ("rule that matches no array", lambda p: ocp.load(p.ck, sharding=transform.partition(p.mesh, {"no": PartitionSpec()})), NO_RULE, "sharding: .*layer/kernel", "Add one"),
    ("partition without a mesh", lambda _: transform.partition(ocp, {"**": PartitionSpec()}), TypeError, "mesh ", "Give it first"),
    ("partition without specs", lambda p: transform.partition(p.mesh, {"**": ocp}), TypeError, r"rules\['\*\*'\]", "Give PartitionSpec"),
    ("text as fallback", lambda p: ocp.load(p.ck, fallback="x"), TypeError, "fallback .*'x'", "Give the leaves"),
    ("number as fallback beside a target", lambda p: ocp.load(p.ck, TREE, fallback=3), TypeError, "fallback .*3", "Give the leaves"),
    ("number as new name", lambda _: Rename("a", 3), TypeError, r"\(to\) .*3", "Give 'layer/kernel'"),
    ("cast rule to no dtype", lambda _: transform.Cast("a", "float99"), TypeError, "Cast: dtype is 'float99'", r"Give one such as jnp\.bfloat16"),
    ("cast rule to a number", lambda _: transform.Cast("a", 3), TypeError, "Cast: dtype is 3", r"Give one such as jnp\.bfloat16"),
    ("rule overwrite='no'", lambda _: Rename("a", "b", overwrite="no"), TypeError, "Rename.overwrite is 'no'", TRUE_OR_FALSE),
    ("inputs as number", lambda _: transform.Combine(3, "b", min), ValueError, "Combine: inputs is 3", "give a list"),
    ("axis as text", lambda _: transform.Unstack("a", r"b/\g<i>", axis="0"), TypeError, "Unstack: axis .*'0'", "an integer"),
    ("axes as number", lambda _: transform.Transpose("a", 3), TypeError, "Transpose: axes .*3", "a tuple of integers"),
    ("assignments as number", lambda _: transform.AssignmentMap(3), TypeError, "AssignmentMap: rules .*3", "Give {'new"),
    ("partition with a number", lambda p: transform.partition(p.mesh, 3), TypeError, "rules .*3", "Give {'"),
    ("T5X uint16 misspelt", lambda _: ocp.t5x.T5XFormat(uint16="bf16"), ValueError, "uint16 is 'bf16'", "give one of 'error'"),
    ("reader that fails", lambda p: ocp.load(p.ck, reader=Reader(fails=True)), errors.FormatError, r"/ck: the reader 'mine' .*RuntimeError: .*boom", "another reader="),
    ("reader that returns no tree", lambda p: ocp.load(p.ck, reader=Reader()), errors.FormatError, r"/ck: the reader 'mine' .*returned 3", "another reader="),
    ("step that is being saved", lambda p: ocp.load(p.saving() / "3"), NOT_FOUND, "/3: a save of it is in progress", NEXT_TO_IT.removeprefix("next to it: ")),
    ("step that is not finished", lambda p: ocp.load(p.saving() / "3.orbax-checkpoint-tmp-17"), errors.IncompleteCheckpointError, "tmp-17", "Restore an earlier one"),
]

MANAGERS: list[Mistake] = [
    ("positional options", lambda p: ocp.CheckpointManager(p.run, OPTIONS()), TypeError, "checkpointers .*Options", "options="),
    ("dict as options", lambda p: p.manager(options={"max_to_keep": 3}), TypeError, "options .*dict", "Give CheckpointManagerOptions"),
    ("class of options", lambda p: p.manager(options=OPTIONS), TypeError, "options .*the class", r"Give CheckpointManagerOptions\("),
    ("no directory", lambda _: ocp.CheckpointManager(None), TypeError, A_PATH, "Give a path"),
    ("checkpoint as a run", lambda p: ocp.CheckpointManager(p.ck), ValueError, "directory: .*/ck is a checkpoint", "Give the run's directory"),
    ("file as a run", lambda p: ocp.CheckpointManager(p.root / "file.txt"), errors.StorageError, r"file\.txt", "Check that it is a writable directory"),
    ("restore what is to be saved", lambda p: p.opened().restore(1, args=args.StandardSave(TREE)), ValueError, r"args\.StandardSave", r"Give args\.StandardRestore"),
    ("save what is to be restored", lambda p: p.manager().save(1, args=args.StandardRestore(TREE)), ValueError, r"args\.StandardRestore", r"Give args\.StandardSave"),
    ("like=", lambda p: p.opened().restore(1, like=TREE), TypeError, "'like'", "items="),
    ("item=", lambda p: p.opened().restore(1, item=TREE), TypeError, "'item'", "items="),
    ("restore the first of none", lambda p: p.manager().restore(), errors.StepNotFoundError, "/empty", "Check the directory"),
    ("restore a step that is not there", lambda p: p.opened().restore(9), errors.StepNotFoundError, r"step 9 .*1, 2", r"call reload\(\)"),
    ("step as text", lambda p: p.opened().restore("1"), TypeError, "step .*'1'", r"Give int\("),
    ("step below zero", lambda p: p.opened().restore(-1), ValueError, "step .*-1", "from 0"),
    ("step after tree", lambda p: p.manager().save(TREE, 1), TypeError, "step .*dict", "the step comes first"),
    ("step as float", lambda p: p.manager().save(1.5, TREE), TypeError, r"step .*1\.5", r"Give int\("),
    ("step as bool", lambda p: p.manager().save(True, TREE), TypeError, "step .*True", r"Give int\("),
    ("step as array", lambda p: p.manager().save(np.ones(2, int), TREE), TypeError, "step .*ndarray", r"Give int\("),
    ("step None", lambda p: p.manager().save(None, TREE), TypeError, "step .*None", r"Give int\("),
    ("save a negative step", lambda p: p.manager().save(-1, TREE), ValueError, "step .*-1", "from 0"),
    ("nothing to save", lambda p: p.manager().save(1), ValueError, "Nothing to save", "args="),
    ("two things to save", lambda p: p.manager().save(1, TREE, args=args.StandardSave(TREE)), ValueError, "Two things", "give an item, or args="),
    ("save a step again", lambda p: p.opened().save(2, TREE, force=True), errors.StepAlreadyExistsError, "Step 2", "Save another step"),
    ("tree as args", lambda p: p.manager().save(1, args=TREE), ValueError, "args .*dict", r"args\.StandardSave\(tree\)"),
    ("class as args", lambda p: p.manager().save(1, args=args.StandardSave), TypeError, r"args .*args\.StandardSave", r"args\.StandardSave\(\.\.\.\)"),
    ("args as items", lambda p: p.manager().save(1, args.StandardSave(TREE)), ValueError, "`items`", "args="),
    ("save after close", lambda p: closed(p).save(1, TREE), errors.CheckpointError, r"save\(1\) after close", "Open the run again"),
    ("delete after close", lambda p: closed(p).delete(1), errors.CheckpointError, r"delete\(1\) after close", "Open the run again"),
    ("object as metric", lambda p: p.manager().save(1, TREE, metrics={"l": Odd()}), TypeError, "metrics", "must be of dicts"),
    ("number as metrics", lambda p: p.manager().save(1, TREE, metrics=0.5), TypeError, "metrics", r"\{'loss': 0\.5\}"),
    ("number as metrics of a step that is not saved", lambda p: p.manager(options=OPTIONS(save_interval_steps=5)).save(3, TREE, metrics=0.5), TypeError, "metrics", "Give names"),
    ("delete a step that is not there", lambda p: p.opened().delete(9), errors.StepNotFoundError, "step 9", "the latest are: 1, 2"),
    ("pin a step that is not there", lambda p: p.opened().pin(9), errors.StepNotFoundError, "step 9", "the latest are: 1, 2"),
    ("metadata of a step that is not there", lambda p: p.opened().metadata(9), errors.StepNotFoundError, "step 9", "the latest are: 1, 2"),
    ("metrics of a step that is not there", lambda p: p.opened().metrics(9), errors.StepNotFoundError, "step 9", "the latest are: 1, 2"),
    ("pin read-only", lambda p: p.manager(options=OPTIONS(read_only=True)).pin(1), ValueError, "read-only", "open it without"),
    ("items of a single item", lambda p: p.opened().restore(1, args=args.Composite(state=args.StandardRestore())), ValueError, "one item without a name", "its own arguments"),
    ("one of several without a name", lambda p: p.several().save(2, args=args.StandardSave(TREE)), ValueError, "several items", r"args\.Composite"),
    ("several without handlers", lambda p: p.several().save(2, {"state": TREE}), ValueError, "item 'state'", "give args="),
    ("misspelt item on save", lambda p: p.several().save(2, args=args.Composite(stat=args.StandardSave(TREE))), ValueError, "'stat'", "did you mean state"),
    ("misspelt item on restore", lambda p: p.several().restore(1, args=args.Composite(stat=args.StandardRestore())), errors.ItemNotFoundError, "'stat'", "'state'"),
    ("tree for arguments of an item", lambda p: p.several().save(2, args=args.Composite(state=TREE)), ValueError, "Item 'state'", r"args\.StandardSave\(tree\)"),
    ("list of handlers", lambda p: p.manager(item_handlers=[ocp.StandardCheckpointHandler()]), TypeError, "item_handlers .*list", r"Give \{'state'"),
    ("class of handlers", lambda p: p.manager(item_handlers=ocp.StandardCheckpointHandler), TypeError, "item_handlers .*the class", "calling it"),
    ("class of handlers of an item", lambda p: p.manager(item_handlers={"a": ocp.StandardCheckpointHandler}), TypeError, r"item_handlers\['a'\]", "calling it"),
    ("name of items", lambda p: p.manager(item_names="state"), TypeError, "item_names is 'state'", "give a list of names"),
    ("handler as checkpointer", lambda p: ocp.CheckpointManager(p.root / "empty", ocp.StandardCheckpointHandler()), TypeError, "checkpointers .*Handler", "item_handlers="),
    ("save_interval_steps=0", lambda _: OPTIONS(save_interval_steps=0), ValueError, "save_interval_steps", "at least 1"),
    ("save_interval_steps='10'", lambda _: OPTIONS(save_interval_steps="10"), TypeError, "save_interval_steps", "an integer"),
    ("max_to_keep='3'", lambda _: OPTIONS(max_to_keep="3"), TypeError, "max_to_keep", "an integer"),
    ("max_to_keep=-1", lambda _: OPTIONS(max_to_keep=-1), ValueError, "max_to_keep", "at least 0"),
    ("keep_period=0", lambda _: OPTIONS(keep_period=0), ValueError, "keep_period", "at least 1"),
    ("keep_time_interval=3600", lambda _: OPTIONS(keep_time_interval=3600), TypeError, "keep_time_interval", "give timedelta"),
    ("negative time", lambda _: OPTIONS(keep_time_interval=timedelta(-1)), ValueError, "keep_time_interval", "must not be negative"),
    ("best_mode='lowest'", lambda _: OPTIONS(best_mode="lowest"), ValueError, "best_mode .*'lowest'", "must be 'min' or 'max'"),
    ("best_fn='loss'", lambda _: OPTIONS(best_fn="loss"), TypeError, "best_fn .*'loss'", "lambda metrics"),
    ("should_save_fn=True", lambda _: OPTIONS(should_save_fn=True), TypeError, "should_save_fn", "Give a function"),
    ("misspelt option", lambda _: OPTIONS(max_to_kep=3), TypeError, "'max_to_kep'", ""),
    ("async_options=30", lambda _: OPTIONS(async_options=30), TypeError, "async_options .*30", "Give AsyncOptions"),
    ("multiprocessing_options={}", lambda _: OPTIONS(multiprocessing_options={}), TypeError, "multiprocessing_options", "Give Multi"),
    ("atomicity_options=mode", lambda _: OPTIONS(atomicity_options=ocp.AtomicityMode.AUTO), TypeError, "atomicity_options", "Give AtomicityOptions"),
    ("save_on_steps=5", lambda _: OPTIONS(save_on_steps=5), TypeError, "save_on_steps", "a list of steps"),
    ("number as a policy", lambda _: OPTIONS(preservation_policy=3), TypeError, "preservation_policy .*3", "Give LatestN"),
    ("class as a policy", lambda _: OPTIONS(save_decision_policy=ocp.AsyncOptions), TypeError, "save_decision_policy", "Give FixedInterval"),
    ("text as step names", lambda _: OPTIONS(step_name_format="step_"), TypeError, "step_name_format .*'step_'", "Give StepNameFormat"),
    ("number as prefix", lambda _: OPTIONS(step_prefix=3), TypeError, "step_prefix .*3", "Give "),
    ("StepNameFormat(3)", lambda _: ocp.StepNameFormat(3), TypeError, "prefix .*3", "Give StepNameFormat"),
    ("prefix with a slash", lambda _: ocp.StepNameFormat("a/b"), ValueError, "a/b", "without slashes"),
    ("timeout as text", lambda p: wait(p, timeout="x"), TypeError, "timeout .*'x'", "a positive number"),
    ("pause as text", lambda p: wait(p, seconds_to_sleep="x"), TypeError, "seconds_to_sleep", "a positive number"),
    ("wait for no function", lambda p: wait(p, timeout_fn=3), TypeError, "timeout_fn .*3", "Give one"),
    ("number as logger", lambda p: p.manager(logger=3), TypeError, "logger .*3", "Give an object whose log_entry"),
    ("list as metadata of a run", lambda p: p.manager(metadata=[1]), TypeError, "metadata .*list", "Give {'name'"),
    ("dict as registry", lambda p: p.manager(handler_registry={}), TypeError, "handler_registry .*dict", "Give a DefaultCheckpointHandlerRegistry"),
    ("number as item names", lambda p: p.manager(item_names=3), TypeError, "item_names .*3", "Give a list"),
    ("numbers as item names", lambda p: p.manager(item_names=[1]), TypeError, "item_names: .*1", "Give a list"),
    ("signal as text", lambda p: p.opened().install_signal_handler("TERM"), TypeError, "signum .*'TERM'", "an integer"),
    ("signal that cannot be handled", lambda p: p.opened().install_signal_handler(9), ValueError, "signum is 9", r"Give signal\.SIGTERM"),
    ("force='no'", lambda p: p.manager().save(1, TREE, force="no"), TypeError, "force is 'no'", TRUE_OR_FALSE),
    ("fallback='no'", lambda p: p.opened().restore(1, fallback="no"), TypeError, "fallback .*'no'", "Give the leaves"),
    ("restore with an unknown option", lambda p: p.opened().restore(1, casts=1), TypeError, "restore.*'casts'", "unexpected keyword"),
    ("restore with options and arguments", lambda p: p.opened().restore(1, args=args.StandardRestore(), lazy=True), ValueError, "lazy", "items="),
    ("cast of a step given by args", lambda p: p.manager().save(1, args=args.StandardSave(TREE), cast=np.float16), ValueError, "cast=", "save_args"),
    ("list as keyword arguments", lambda p: p.opened().restore(1, TREE, restore_kwargs=[1]), TypeError, "restore_kwargs .*list", "Give arguments"),
    ("read_only='no'", lambda _: OPTIONS(read_only="no"), TypeError, "read_only is 'no'", TRUE_OR_FALSE),
    ("item metadata of no step", lambda p: p.opened().item_metadata(None), TypeError, "step .*None", r"Give int\("),
    ("number as processes", lambda _: ocp.MultiprocessingOptions(active_processes=3), TypeError, "active_processes .*3", "a list of"),
    ("callback that is none", lambda _: ocp.AsyncOptions(post_finalization_callback=3), TypeError, "post_finalization_callback .*3", "Give a function"),
    ("policy of a number", lambda _: ocp.policies.FunctionPolicy(3), TypeError, r"FunctionPolicy\.function .*3", "Give a function"),
    ("policies as a number", lambda _: ocp.policies.AnySavePolicy(3), TypeError, r"AnySavePolicy\.policies .*3", "Give FixedIntervalPolicy"),
    ("policy for saving among those for keeping", lambda _: ocp.policies.InTurn([ocp.policies.FixedIntervalPolicy(2)]), TypeError, r"InTurn\.policies", r"Give LatestN\(3\)"),
    ("intervals as numbers", lambda _: ocp.policies.IntervalsPolicy([3]), TypeError, r"IntervalsPolicy\.intervals", "Give CheckpointInterval"),
    ("restore a step that is being saved", lambda p: ocp.CheckpointManager(p.saving()).restore(3), errors.StepNotFoundError, "step 3 .*a save of it is in progress", r"call reload\(\)"),
]

CHECKPOINTERS: list[Mistake] = [
    ("class of handlers", lambda _: ocp.Checkpointer(ocp.PyTreeCheckpointHandler), TypeError, "handler .*the class", "calling it"),
    ("no handler", lambda _: ocp.Checkpointer(None), TypeError, "handler .*None", "Give PyTreeCheckpointHandler"),
    ("name of a handler", lambda _: ocp.Checkpointer("pytree"), TypeError, "handler .*'pytree'", "Give PyTreeCheckpointHandler"),
    ("async class of handlers", lambda _: ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler), TypeError, "handler .*the class", "calling it"),
    ("file_options=3", lambda _: ocp.Checkpointer(ocp.PyTreeCheckpointHandler(), file_options=3), TypeError, "file_options .*3", "Give FileOptions"),
    ("async_options=3", lambda _: ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(), async_options=3), TypeError, "async_options .*3", "Give AsyncOptions"),
    ("atomicity mode as text", lambda _: ocp.AtomicityOptions(mode="rename"), TypeError, "mode .*'rename'", r"Give AtomicityMode\.AUTO"),
    ("class of handlers of an item", lambda _: ocp.CompositeCheckpointHandler(state=ocp.StandardCheckpointHandler), TypeError, "Item 'state' .*the class", "calling it"),
    ("arguments of another handler", lambda p: p.tree_checkpointer().save(p.new, args=args.JsonSave({})), ValueError, r"args: .*args\.JsonSave", r"Give args\.PyTreeSave"),
    ("restore what is to be saved", lambda p: p.tree_checkpointer().restore(p.ck, args=args.PyTreeSave(TREE)), ValueError, r"args\.PyTreeSave", r"Give args\.PyTreeRestore"),
    ("save what is to be restored", lambda p: p.tree_checkpointer().save(p.new, args=args.PyTreeRestore(TREE)), ValueError, r"args\.PyTreeRestore", r"Give args\.PyTreeSave"),
    ("no tree", lambda p: p.tree_checkpointer().save(p.new), TypeError, "PyTreeHandler: .*'item'", r"args=args\.PyTreeSave"),
    ("unknown field", lambda p: p.tree_checkpointer().save(p.new, TREE, overwrite=True), TypeError, "PyTreeHandler: .*'overwrite'", "Give item"),
    ("class as args", lambda p: p.tree_checkpointer().save(p.new, args=args.PyTreeSave), TypeError, r"args is the class", r"args\.PyTreeSave\(\.\.\.\)"),
    ("tree as args", lambda p: p.tree_checkpointer().save(p.new, args=TREE), ValueError, "args .*dict", r"args\.StandardSave\(tree\)"),
    ("restore nothing", lambda p: p.tree_checkpointer().restore(p.root / "nothing"), NOT_FOUND, "/nothing", "Give the directory"),
    ("object in JSON", lambda p: ocp.Checkpointer(ocp.JsonCheckpointHandler()).save(p.new, args=args.JsonSave({"a": Odd()})), TypeError, "new: a JSON item", "must be of dicts"),
    ("tree as JSON", lambda p: ocp.Checkpointer(ocp.JsonCheckpointHandler()).restore(p.ck), NOT_FOUND, "No JSON item at .*/ck", r"use load\(path\)"),
    ("item that is not there", lambda p: ocp.Checkpointer(ocp.CompositeCheckpointHandler()).restore(p.run / "1", args=args.Composite(stat=None)), errors.ItemNotFoundError, "'stat'", "one of its items: 'default'"),
    ("tree for arguments of an item", lambda p: ocp.Checkpointer(ocp.CompositeCheckpointHandler()).save(p.new, args=args.Composite(state=TREE)), ValueError, "'state'", r"args\.StandardSave\(tree\)"),
    ("slash in the name of an item", lambda _: args.Composite(**{"a/b": 1}), ValueError, "'a/b'", "cannot be the name"),
    ("SaveArgs of no dtype", lambda _: ocp.SaveArgs(dtype="float99"), TypeError, r"SaveArgs\.dtype is 'float99'", r"Give one such as jnp\.bfloat16"),
    ("RestoreArgs of no dtype", lambda _: ocp.RestoreArgs(dtype="float99"), TypeError, r"RestoreArgs\.dtype is 'float99'", "Give one such as"),
    ("ArrayRestoreArgs of no dtype", lambda _: ocp.ArrayRestoreArgs(dtype=3), TypeError, r"ArrayRestoreArgs\.dtype is 3", "Give one such as"),
    ("save_args of other leaves", lambda p: p.tree_checkpointer().save(p.new, args=args.PyTreeSave(TREE, save_args={"b": ocp.SaveArgs()})), ValueError, "save_args: b", GIVE_LEAVES),
    ("save_args of dtypes", lambda p: p.tree_checkpointer().save(p.new, args=args.PyTreeSave(TREE, save_args={"step": np.float32})), ValueError, "save_args: step", GIVE_LEAVES),
    ("restore_args of other leaves", lambda p: p.tree_checkpointer().restore(p.ck, args=args.PyTreeRestore(restore_args={"nope": ocp.RestoreArgs()})), ValueError, "restore_args: nope", "Give RestoreArgs for leaves"),
    ("restore_args=3", lambda p: p.tree_checkpointer().restore(p.ck, args=args.PyTreeRestore(TREE, restore_args=3)), ValueError, "restore_args: <root>", "Give RestoreArgs for leaves"),
    ("text restored as an array", lambda p: p.tree_checkpointer().restore(p.ck, args=args.PyTreeRestore(restore_args={"name": ocp.ArrayRestoreArgs()})), MISMATCH, "name: .*jax.Array", "can only be restored as"),
    ("both transforms", lambda p: p.tree_checkpointer().restore(p.ck, args=args.PyTreeRestore(TREE, transforms={}, legacy_transform_fn=min)), ValueError, "`transforms`", "Cannot provide both"),
    ("transforms without item", lambda p: p.tree_checkpointer().restore(p.ck, args=args.PyTreeRestore(transforms={})), ValueError, "`transforms`", "must provide `item`"),
    ("no memory", lambda _: ocp.PyTreeCheckpointHandler(save_concurrent_gb=0), ValueError, "save_concurrent_gb", "must be positive"),
    ("memory as text", lambda _: ocp.PyTreeCheckpointHandler(save_concurrent_gb="1"), TypeError, "save_concurrent_gb", "a positive number"),
    ("use_ocdbt='no'", lambda _: ocp.PyTreeCheckpointHandler(use_ocdbt="no"), TypeError, "use_ocdbt is 'no'", TRUE_OR_FALSE),
    ("timeout as text", lambda _: ocp.AsyncOptions(timeout_secs="1"), TypeError, "timeout_secs .*'1'", "a positive number"),
    ("shardings of other leaves", lambda _: ocp.checkpoint_utils.construct_restore_args(TREE, {"a": 1}), ValueError, "sharding_tree has 1", "give one sharding per leaf"),
    ("class of type handlers", lambda _: type_handlers.register_type_handler(Odd, type_handlers.NumpyHandler), TypeError, "handler .*the class NumpyHandler", "calling it"),
    ("number as type handler", lambda _: type_handlers.register_type_handler(Odd, 3), TypeError, "handler .*3", "Derive a class from"),
    ("object as type", lambda _: type_handlers.register_type_handler(Odd(), type_handlers.NumpyHandler()), TypeError, "ty .*Odd", "Register a handler for the class"),
    ("typestr of another handler", lambda _: type_handlers.register_type_handler(Odd, type_handlers.NumpyHandler()), ValueError, "typestr", "Return another typestr"),
    ("type without a handler", lambda _: type_handlers.get_type_handler(Odd), ValueError, "Odd", "register_type_handler"),
    ("number as registry of types", lambda _: ocp.PyTreeHandler(type_handler_registry=3), TypeError, "type_handler_registry .*3", "leave it out"),
    ("True as metadata options", lambda _: ocp.PyTreeHandler(pytree_metadata_options=True), TypeError, "pytree_metadata_options .*True", "Give PyTreeMetadataOptions"),
    ("True as metadata options of a standard handler", lambda _: ocp.StandardHandler(pytree_metadata_options=True), TypeError, "pytree_metadata_options .*True", "Give PyTreeMetadataOptions"),
    ("number as memory options", lambda _: ocp.PyTreeHandler(memory_options=3), TypeError, "memory_options .*3", r"Give MemoryOptions\("),
    ("number as file name", lambda _: ocp.JsonHandler(3), TypeError, "filename .*3", "Give the name of a file"),
    ("number as key name", lambda _: ocp.JaxRandomKeyHandler(3), TypeError, "key_name .*3", "Give the name"),
    ("dict as multiprocessing options", lambda _: ocp.StandardCheckpointer(multiprocessing_options={"a": 1}), TypeError, "multiprocessing_options .*dict", "Give MultiprocessingOptions"),
    ("checkpointer force='no'", lambda p: p.tree_checkpointer().save(p.new, TREE, force="no"), TypeError, "force is 'no'", TRUE_OR_FALSE),
    ("partial_restore='no'", lambda _: args.PyTreeRestore(partial_restore="no"), TypeError, "partial_restore is 'no'", TRUE_OR_FALSE),
    ("strict='no' in restore args", lambda _: ocp.ArrayRestoreArgs(strict="no"), TypeError, r"ArrayRestoreArgs\.strict is 'no'", TRUE_OR_FALSE),
    ("number as shape", lambda _: ocp.ArrayRestoreArgs(global_shape=3), TypeError, r"ArrayRestoreArgs\.global_shape .*3", "a tuple of integers"),
    ("text as chunk size", lambda _: ocp.SaveArgs(chunk_byte_size="1MB"), TypeError, r"SaveArgs\.chunk_byte_size .*'1MB'", "an integer"),
    ("text as size of data files", lambda _: args.PyTreeSave(TREE, ocdbt_target_data_file_size="1GB"), TypeError, "ocdbt_target_data_file_size .*'1GB'", "an integer"),
    ("object in metadata of a tree", lambda p: p.tree_checkpointer().save(p.new, args=args.PyTreeSave(TREE, custom_metadata=Odd())), TypeError, "custom_metadata .*Odd", "Use dicts"),
    ("number as transform function", lambda _: args.PyTreeRestore(TREE, legacy_transform_fn=3), TypeError, "legacy_transform_fn .*3", "Give a function"),
    ("number as type", lambda _: type_handlers.has_type_handler(3), TypeError, "ty .*3", "Give its class"),
    ("missing package", without_protobuf, errors.MissingPackageError, "package protobuf", "pip install protobuf"),
]

# fmt: on

GROUPS = {
    "path": PATHS,
    "save": SAVES,
    "load": LOADS,
    "manager": MANAGERS,
    "checkpointer": CHECKPOINTERS,
}


@pytest.mark.parametrize(
    ("call", "kind", "named", "advice"),
    [
        pytest.param(call, kind, named, advice, id=f"{group}: {name}")
        for group, rows in GROUPS.items()
        for name, call, kind, named, advice in rows
    ],
)
def test_mistake_is_named_with_what_to_do(
    call: Callable[[Place], object],
    kind: type[Exception],
    named: str,
    advice: str,
    place: Place,
) -> None:
    with pytest.raises(kind) as caught:
        call(place)
    message = str(caught.value)
    is_ours = isinstance(caught.value, errors.CheckpointError)
    assert is_ours or type(caught.value) in (TypeError, ValueError)
    assert re.search(named, message, re.DOTALL), message
    assert re.search(advice, message, re.DOTALL), message
    assert len(message) < 1500
