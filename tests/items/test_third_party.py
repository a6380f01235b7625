"""Items of grain, flax and others whose handlers are registered with Orbax itself."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as orbax
import pytest
from etils import epath
from flax.training.train_state import TrainState
from orbax.checkpoint.experimental import v1

import orbit_ckpt as ocp
from orbit_ckpt.errors import CorruptionError
from tests.support import assert_same_tree, flip_every_bit

pytestmark = pytest.mark.filterwarnings("ignore")  # Orbax's own


class Squares:
    """A source of data as grain wants it."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: Any) -> int:
        return int(index) ** 2

    def __repr__(self) -> str:
        return "Squares()"


def dataset() -> Any:
    """Return an iterator whose state is a dict."""
    return iter(grain.MapDataset.range(40).shuffle(seed=1).to_iter_dataset())


def loader() -> Any:
    """Return an iterator whose state is bytes."""
    sampler = grain.samplers.IndexSampler(40, num_epochs=1, shuffle=True, seed=2)
    return iter(grain.DataLoader(data_source=Squares(), sampler=sampler, worker_count=0))


ITERATORS = pytest.mark.parametrize("make", [dataset, loader])


def take(iterator: Any, count: int) -> list[int]:
    return [int(value) for value in itertools.islice(iterator, count)]


@ITERATORS
@pytest.mark.parametrize("kind", ["grain", "grain by name", "ours"])
def test_an_iterator_goes_on_where_it_was_saved(
    kind: str, make: Callable[[], Any], tmp_path: Path
) -> None:
    by_name = kind == "grain by name"
    handlers: Any = {"ds": grain.checkpoint.CheckpointHandler()} if by_name else {}
    save: Any = ocp.args.StatefulSave if kind == "ours" else grain.checkpoint.CheckpointSave
    restore: Any = (
        ocp.args.StatefulRestore if kind == "ours" else grain.checkpoint.CheckpointRestore
    )
    iterator = make()
    take(iterator, 5)
    with ocp.AsyncCheckpointer(ocp.CompositeHandler(**handlers)) as checkpointer:
        items = {"ds": save(iterator), "params": ocp.args.StandardSave({"w": jnp.ones(3)})}
        checkpointer.save(tmp_path / "x", ocp.args.Composite(**items))
        expected = take(iterator, 10)
        wanted = {"ds": restore(make()), "params": ocp.args.StandardRestore()}
        found = checkpointer.restore(tmp_path / "x", ocp.args.Composite(**wanted))
    assert take(found.ds, 10) == expected
    assert_same_tree(found.params, {"w": jnp.ones(3)})


@ITERATORS
def test_grains_handler_works_alone_with_arguments_or_their_fields(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    iterator = make()
    take(iterator, 5)
    checkpointer = ocp.Checkpointer(grain.checkpoint.CheckpointHandler())
    checkpointer.save(tmp_path / "x", iterator)
    checkpointer.save(tmp_path / "y", args=grain.checkpoint.CheckpointSave(iterator))
    expected = take(iterator, 10)
    assert take(checkpointer.restore(tmp_path / "x", item=make()), 10) == expected
    wanted = grain.checkpoint.CheckpointRestore(make())
    assert take(checkpointer.restore(tmp_path / "y", args=wanted), 10) == expected


@ITERATORS
def test_orbax_and_grain_restore_what_is_saved_here(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    iterator = make()
    take(iterator, 5)
    items = {"ds": ocp.args.StatefulSave(iterator), "params": ocp.args.StandardSave({"w": 1})}
    ocp.Checkpointer(ocp.CompositeHandler()).save(tmp_path / "x", ocp.args.Composite(**items))
    expected = take(iterator, 10)
    with orbax.Checkpointer(orbax.CompositeCheckpointHandler()) as checkpointer:
        wanted = {"ds": grain.checkpoint.CheckpointRestore(make())}
        found = checkpointer.restore(tmp_path / "x", orbax.args.Composite(**wanted))
        assert take(found.ds, 10) == expected
    restored = make()
    v1.load_checkpointables(str(tmp_path / "x"), {"ds": restored})
    assert take(restored, 10) == expected


@ITERATORS
@pytest.mark.parametrize("api", ["v0", "v1"])
def test_what_orbax_and_grain_saved_is_restored(
    api: str, make: Callable[[], Any], tmp_path: Path
) -> None:
    iterator = make()
    take(iterator, 5)
    if api == "v1":
        v1.save_checkpointables(str(tmp_path / "x"), {"ds": iterator})
    else:
        with orbax.Checkpointer(orbax.CompositeCheckpointHandler()) as checkpointer:
            items = {"ds": grain.checkpoint.CheckpointSave(iterator)}
            checkpointer.save(tmp_path / "x", orbax.args.Composite(**items))
    expected = take(iterator, 10)
    wanted = ocp.args.Composite(ds=ocp.args.StatefulRestore(make()))
    found = ocp.Checkpointer(ocp.CompositeHandler()).restore(tmp_path / "x", wanted)
    assert take(found.ds, 10) == expected


def test_an_item_of_grain_without_arguments_says_what_it_needs(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler())
    items = ocp.args.Composite(ds=grain.checkpoint.CheckpointSave(dataset()))
    checkpointer.save(tmp_path / "x", items)
    expected = r"'ds' cannot be restored without arguments .*Composite\(ds=CheckpointRestore\("
    with pytest.raises(ValueError, match=expected):
        ocp.Checkpointer(ocp.CompositeHandler()).restore(tmp_path / "x")
    wanted = ocp.args.Composite(ds=ocp.args.StatefulRestore())
    assert checkpointer.restore(tmp_path / "x", wanted).ds == dataset().get_state()


def test_states_of_grain_are_split_anew_for_other_processes(tmp_path: Path) -> None:
    for index, read in enumerate([4, 6]):
        iterator = dataset()
        take(iterator, read)
        ocp.StatefulHandler(process_index=index, process_count=2).save(tmp_path, iterator)
    args = ocp.args.StatefulRestore(
        dataset(), resplit=lambda states, *_: max(states, key=lambda state: state["next_index"])
    )
    found = ocp.StatefulHandler().restore(tmp_path, args=args)
    assert take(found, 3) == take(dataset(), 9)[6:]


def test_damage_to_the_files_of_others_is_noticed(tmp_path: Path) -> None:
    iterator = dataset()
    composite = ocp.Checkpointer(ocp.CompositeHandler())
    items = {"ds": grain.checkpoint.CheckpointSave(iterator), "other": ocp.args.JsonSave(1)}
    composite.save(tmp_path / "x", ocp.args.Composite(**items))
    alone = ocp.Checkpointer(grain.checkpoint.CheckpointHandler())
    alone.save(tmp_path / "y", iterator)
    wanted = grain.checkpoint.CheckpointRestore(iterator)
    for _ in flip_every_bit(tmp_path / "x" / "ds" / "process_0-of-1.json"):
        with pytest.raises(CorruptionError, match=r"ds/process_0-of-1\.json is damaged"):
            composite.restore(tmp_path / "x", ocp.args.Composite(ds=wanted))
    assert composite.restore(tmp_path / "x", ocp.args.Composite(other=None)).other == 1
    for _ in flip_every_bit(tmp_path / "y" / "process_0-of-1.json"):
        with pytest.raises(CorruptionError, match=r"y/process_0-of-1\.json is damaged"):
            alone.restore(tmp_path / "y", args=wanted)
    (tmp_path / "x" / "ds" / "process_0-of-1.json").unlink()
    with pytest.raises(CorruptionError, match="it is missing"):
        composite.restore(tmp_path / "x", ocp.args.Composite(ds=wanted))


class NotesHandler(orbax.CheckpointHandler):
    """A third party's item, written for Orbax: it uses a method that only etils' paths have."""

    def save(self, directory: Any, args: NotesSave) -> None:
        assert directory.exists()
        (directory / "draft").write_text(args.text)
        (directory / "draft").copy(directory / "notes")

    def restore(self, directory: Any, args: NotesRestore | None = None) -> str:
        assert isinstance(directory, epath.Path)
        found = (directory / "notes").read_text()
        return found.upper() if args is not None and args.upper else found

    def metadata(self, directory: Any) -> Any:
        raise NotImplementedError


class NotesAsyncHandler(NotesHandler, orbax.AsyncCheckpointHandler):
    """The same, in two phases as Orbax has them."""

    async def async_save(self, directory: Any, args: NotesSave) -> Any:
        with ThreadPoolExecutor() as pool:
            return [pool.submit(self.save, directory, args)]


@orbax.args.register_with_handler(NotesHandler, for_save=True)
@dataclass
class NotesSave(orbax.args.CheckpointArgs):
    """What to save."""

    text: str


@orbax.args.register_with_handler(NotesHandler, for_restore=True)
@dataclass
class NotesRestore(orbax.args.CheckpointArgs):
    """What to restore."""

    upper: bool = False


@orbax.args.register_with_handler(NotesAsyncHandler, for_save=True)
class NotesAsyncSave(NotesSave):
    """What to save."""


@orbax.args.register_with_handler(NotesAsyncHandler, for_restore=True)
class NotesAsyncRestore(NotesRestore):
    """What to restore."""


@pytest.mark.parametrize(
    ("save", "restore"), [(NotesSave, NotesRestore), (NotesAsyncSave, NotesAsyncRestore)]
)
def test_handlers_written_for_orbax_work_unchanged(save: Any, restore: Any, tmp_path: Path) -> None:
    with ocp.AsyncCheckpointer(ocp.CompositeHandler()) as checkpointer:
        checkpointer.save(tmp_path / "x", ocp.args.Composite(notes=save("Read me")))
    fresh = ocp.Checkpointer(ocp.CompositeHandler())
    assert fresh.restore(tmp_path / "x").notes == "Read me"
    wanted = ocp.args.Composite(notes=restore(upper=True))
    assert fresh.restore(tmp_path / "x", wanted).notes == "READ ME"
    described: Any = fresh.metadata(tmp_path / "x").item_metadata
    assert described["notes"] is None
    with orbax.Checkpointer(orbax.CompositeCheckpointHandler()) as theirs:
        assert theirs.restore(tmp_path / "x").notes == "Read me"


def test_orbaxs_own_arguments_bring_orbaxs_own_handlers(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler())
    tree = {"w": jnp.arange(3.0)}
    items = {"p": orbax.args.StandardSave(tree), "j": orbax.args.JsonSave({"a": 1})}
    checkpointer.save(tmp_path / "x", ocp.args.Composite(**items))
    found = checkpointer.restore(tmp_path / "x")
    assert_same_tree(found.p, tree)
    assert found.j == {"a": 1}


def test_orbaxs_arguments_for_a_handler_of_ours_are_told_apart(tmp_path: Path) -> None:
    args: Any = orbax.args.StandardSave({"w": 1})
    expected = r"takes args\.StandardSave to save, found orbax\.checkpoint\..*StandardSaveArgs"
    with pytest.raises(ValueError, match=expected):
        ocp.Checkpointer(ocp.StandardHandler()).save(tmp_path / "x", args=args)
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler(p=ocp.StandardHandler()))
    with pytest.raises(ValueError, match=r"; found orbax\.checkpoint\..*StandardSaveArgs"):
        checkpointer.save(tmp_path / "x", ocp.args.Composite(p=args))


def test_arguments_registered_nowhere_are_refused(tmp_path: Path) -> None:
    class Unregistered(orbax.args.CheckpointArgs):
        pass

    checkpointer = ocp.Checkpointer(ocp.CompositeHandler())
    reasons = {"belongs to no item handler": Unregistered(), "must be CheckpointArgs, found 3": 3}
    for reason, args in reasons.items():
        with pytest.raises(ValueError, match=reason):
            checkpointer.save(tmp_path / "x", ocp.args.Composite(a=args))


OFFLINE = """
import sys
import orbit_ckpt as ocp

class Stream:
    def get_state(self):
        return {"at": 1}
    def set_state(self, state):
        self.state = state

checkpointer = ocp.Checkpointer(ocp.CompositeHandler())
items = {"ds": ocp.args.StatefulSave(Stream()), "j": ocp.args.JsonSave(1)}
checkpointer.save(sys.argv[1], ocp.args.Composite(**items))
assert checkpointer.restore(sys.argv[1]).ds == {"at": 1}
print(*{"orbax", "grain", "google"} & {name.partition(".")[0] for name in sys.modules})
"""


@pytest.mark.slow
def test_orbax_grain_and_protobuf_are_not_imported_for_items(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", OFFLINE, tmp_path / "x"], check=True, stdout=subprocess.PIPE
    )
    assert not result.stdout.split()


OPTIMIZER = optax.adam(0.1)


def train_state(scale: float) -> TrainState:
    params = {"dense": {"kernel": jnp.full((4, 2), scale), "bias": jnp.zeros(2)}}
    return TrainState.create(apply_fn=jnp.dot, params=params, tx=OPTIMIZER)


@jax.jit
def update(state: TrainState) -> TrainState:
    return state.apply_gradients(grads=jax.tree.map(jnp.ones_like, state.params))


@pytest.mark.parametrize("kind", ["standard", "pytree"])
def test_a_train_state_of_flax_goes_on_where_it_was_saved(kind: str, tmp_path: Path) -> None:
    state = update(train_state(1.0))
    expected = jax.tree.map(np.asarray, update(state))
    with ocp.AsyncCheckpointer(ocp.CompositeHandler()) as checkpointer:
        save: Any = ocp.args.StandardSave if kind == "standard" else ocp.args.PyTreeSave
        checkpointer.save(tmp_path / "x", ocp.args.Composite(state=save(state)))
        jax.tree.map(lambda leaf: leaf.delete() if isinstance(leaf, jax.Array) else None, state)
        target = train_state(2.0)
        restore: Any
        if kind == "standard":
            restore = ocp.args.StandardRestore(target)
        else:
            args = ocp.checkpoint_utils.construct_restore_args(target)
            restore = ocp.args.PyTreeRestore(target, args)
        found = checkpointer.restore(tmp_path / "x", ocp.args.Composite(state=restore)).state
    assert isinstance(found, TrainState)
    assert found.tx is target.tx
    assert_same_tree(jax.tree.map(np.asarray, update(found)), expected)
