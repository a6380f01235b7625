"""Named checkpointables and handlers in the v1 API, as public code uses them."""

import asyncio
import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np


def several():
    return {"params": {"w": jnp.arange(6.0).reshape(2, 3)}, "opt": [jnp.zeros(3), 4]}


class Iterator:
    """An iterator that saves its own position."""

    def __init__(self, position=0):
        self.position = position

    def __next__(self):
        self.position += 1
        return self.position

    async def save(self, directory):
        text = json.dumps({"position": self.position})

        async def write():
            place = await directory.await_creation()
            await asyncio.to_thread((Path(place) / "position.json").write_text, text)

        return write()

    async def load(self, directory):
        async def read():
            text = await asyncio.to_thread((Path(directory) / "position.json").read_text)
            self.position = json.loads(text)["position"]

        return read()


@dataclasses.dataclass
class Vocabulary:
    words: list[str] | None = None


class VocabularyHandler:
    """Saves a vocabulary as text."""

    def is_handleable(self, checkpointable):
        return isinstance(checkpointable, Vocabulary)

    def is_abstract_handleable(self, abstract_checkpointable):
        return isinstance(abstract_checkpointable, Vocabulary) or None

    async def save(self, directory, checkpointable):
        text = "\n".join(checkpointable.words)

        async def write():
            place = await directory.await_creation()
            await asyncio.to_thread((Path(place) / "words.txt").write_text, text)

        return write()

    async def load(self, directory, abstract_checkpointable=None):
        async def read():
            text = await asyncio.to_thread((Path(directory) / "words.txt").read_text)
            return Vocabulary(text.split("\n"))

        return read()

    async def metadata(self, directory):
        return Vocabulary(None)


class LoudHandler(VocabularyHandler):
    """Loads words in capitals."""

    async def load(self, directory, abstract_checkpointable=None):
        inner = await super().load(directory, abstract_checkpointable)

        async def read():
            found = await inner
            return Vocabulary([word.upper() for word in found.words])

        return read()


def save_then_load_several(ocp, path):
    ocp.v1.save_checkpointables(path / "step", several())
    return ocp.v1.load_checkpointables(path / "step")


def load_some_of_several(ocp, path):
    ocp.v1.save_checkpointables(path / "step", several())
    abstract = jax.eval_shape(several)
    return (
        ocp.v1.load_checkpointables(path / "step", {"params": abstract["params"]}),
        ocp.v1.load_checkpointables(path / "step", {"opt": None}),
    )


def one_of_several_as_a_state(ocp, path):
    ocp.v1.save_checkpointables(path / "step", several())
    abstract = jax.eval_shape(several)
    found = ocp.v1.load(path / "step", abstract["params"], checkpointable_name="params")
    return found, ocp.v1.load(path / "step", checkpointable_name="opt")


def state_and_others(ocp, path):
    ocp.v1.save_checkpointables(path / "step", {"state": {"a": 1}, "extra": {"b": 2}})
    return ocp.v1.load(path / "step"), sorted(ocp.v1.load_checkpointables(path / "step"))


def another_name_of_the_state(ocp, path):
    ocp.v1.save(path / "step", {"a": jnp.ones(2)}, checkpointable_name="params")
    return (
        ocp.v1.load(path / "step", checkpointable_name="params"),
        ocp.v1.load_checkpointables(path / "step"),
    )


def several_in_the_background(ocp, path):
    ocp.v1.save_checkpointables_async(path / "step", several()).result()
    return ocp.v1.load_checkpointables(path / "step")


def metadata_of_several(ocp, path):
    ocp.v1.save_checkpointables(path / "step", several(), custom_metadata={"k": [1]})
    found = ocp.v1.checkpointables_metadata(path / "step")
    w = found.metadata["params"]["w"]
    return sorted(found.metadata), w.shape, str(w.dtype), found.custom_metadata


def several_by_their_metadata(ocp, path):
    ocp.v1.save_checkpointables(path / "step", several())
    return ocp.v1.load_checkpointables(
        path / "step", ocp.v1.checkpointables_metadata(path / "step")
    )


def one_as_numpy_by_its_metadata(ocp, path):
    ocp.v1.save_checkpointables(path / "step", {"params": several()["params"]})
    described = ocp.v1.checkpointables_metadata(path / "step").metadata["params"]
    abstract = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), described)
    return ocp.v1.load_checkpointables(path / "step", {"params": abstract})


def missing_one(ocp, path):
    ocp.v1.save_checkpointables(path / "step", several())
    try:
        ocp.v1.load_checkpointables(path / "step", {"params": None, "data": None})
    except KeyError:
        return "KeyError"
    return "loaded"


def missing_state(ocp, path):
    ocp.v1.save_checkpointables(path / "step", several())
    try:
        ocp.v1.load(path / "step", checkpointable_name="model")
    except (ocp.v1.errors.InvalidLayoutError, KeyError) as error:
        return isinstance(error, ocp.v1.errors.InvalidLayoutError)
    return "loaded"


def json_beside_a_state(ocp, path):
    handlers = ocp.v1.handlers
    registry = handlers.local_registry().add(handlers.JsonHandler, checkpointable_name="config")
    with ocp.v1.Context(
        checkpointables_options=ocp.v1.options.CheckpointablesOptions(registry=registry)
    ):
        config = {"lr": 1e-3, "layers": [1, 2], "name": None}
        ocp.v1.save_checkpointables(path / "step", {"state": {"a": 1}, "config": config})
        found = ocp.v1.load_checkpointables(path / "step")
    return found, json.loads((path / "step" / "config" / "data.json").read_text())


def json_read_without_registration(ocp, path):
    handlers = ocp.v1.handlers
    registry = handlers.local_registry()
    registry.add(handlers.JsonHandler, checkpointable_name="config")
    context = ocp.v1.Context()
    context.checkpointables.registry = registry
    with context:
        ocp.v1.save_checkpointables(path / "step", {"state": {"a": 1}, "config": {"lr": 1}})
    return ocp.v1.load(path / "step")


def stateful_iterator(ocp, path):
    data = Iterator()
    next(data), next(data)
    ocp.v1.save_checkpointables(path / "step", {"state": {"a": 1}, "data": data})
    other = Iterator()
    found = ocp.v1.load_checkpointables(path / "step", {"state": {"a": 0}, "data": other})
    return other.position, found["state"], isinstance(Iterator(), ocp.v1.StatefulCheckpointable)


def stateful_iterator_in_the_background(ocp, path):
    data = Iterator(5)
    response = ocp.v1.save_checkpointables_async(path / "step", {"data": data})
    next(data)
    response.result()
    other = Iterator()
    ocp.v1.load_checkpointables(path / "step", {"data": other})
    return other.position


def iterator_left_out(ocp, path):
    ocp.v1.save_checkpointables(path / "step", {"state": {"a": 1}, "data": Iterator(5)})
    return ocp.v1.load(path / "step"), ocp.v1.load(path / "step", {"a": 0})


def handler_of_a_local_registry(ocp, path):
    context = ocp.v1.Context()
    context.checkpointables.registry = ocp.v1.handlers.local_registry().add(VocabularyHandler)
    with context:
        ocp.v1.save_checkpointables(
            path / "step", {"state": {"a": 1}, "words": Vocabulary(["x", "y"])}
        )
        return (
            ocp.v1.load_checkpointables(path / "step"),
            ocp.v1.load_checkpointables(path / "step", {"words": Vocabulary()}),
            ocp.v1.checkpointables_metadata(path / "step").metadata["words"],
        )


def handler_of_one_name(ocp, path):
    registry = ocp.v1.handlers.local_registry()
    registry.add(VocabularyHandler)
    registry.add(LoudHandler, checkpointable_name="loud")
    context = ocp.v1.Context()
    context.checkpointables.registry = registry
    with context:
        words = {"loud": Vocabulary(["x"]), "calm": Vocabulary(["y"])}
        ocp.v1.save_checkpointables(path / "step", words)
        return ocp.v1.load_checkpointables(path / "step")


def handler_of_older_checkpoints(ocp, path):
    context = ocp.v1.Context()
    context.checkpointables.registry = ocp.v1.handlers.local_registry().add(VocabularyHandler)
    with context:
        ocp.v1.save_checkpointables(path / "step", {"words": Vocabulary(["x"])})
    typestr = f"{VocabularyHandler.__module__}.{VocabularyHandler.__qualname__}"
    context = ocp.v1.Context()
    context.checkpointables.registry = ocp.v1.handlers.local_registry().add(
        LoudHandler, secondary_typestrs=[typestr]
    )
    with context:
        return ocp.v1.load_checkpointables(path / "step")


def unknown_kind(ocp, path):
    try:
        ocp.v1.save_checkpointables(path / "step", {"words": Vocabulary(["x"])})
    except (ValueError, KeyError):
        return (path / "step").exists()
    return "saved"


def registries(ocp, path):
    handlers = ocp.v1.handlers
    registry = handlers.local_registry(include_global_registry=False)
    empty = list(registry.get_all_entries())
    registry.add(handlers.JsonHandler, checkpointable_name="config")
    copied = handlers.local_registry(registry, include_global_registry=False)
    try:
        registry.add(handlers.JsonHandler, checkpointable_name="config")
    except ValueError:
        empty.append("again")
    return empty, registry.has("config"), copied.has("config"), copied.has("other")


def registry_of_a_new_context(ocp, path):
    context = ocp.v1.Context()
    try:
        context.checkpointables.registry.add(VocabularyHandler)
    except NotImplementedError:
        return "refused"
    return "added"


def deleted_checkpointable(ocp, path):
    ocp.v1.save_checkpointables(path / "step", several())
    deleted = ocp.v1.delete(path / "step", checkpointable_name="opt")
    again = ocp.v1.delete(path / "step", checkpointable_name="opt", missing_ok=True)
    return deleted, again, ocp.v1.load_checkpointables(path / "step")


def reserved_names(ocp, path):
    found = []
    for name in ("metrics", "", "AUTO"):
        try:
            ocp.v1.save_checkpointables(path / f"step{len(found)}", {name: {"a": 1}})
            found.append((name, "saved"))
        except ValueError:
            found.append((name, "refused"))
    return found


def items_of_an_older_manager(ocp, path):
    with ocp.CheckpointManager(path / "run") as manager:
        manager.save(
            3,
            args=ocp.args.Composite(
                model=ocp.args.StandardSave({"w": jnp.ones(3)}), config=ocp.args.JsonSave({"a": 1})
            ),
        )
    return ocp.v1.load_checkpointables(path / "run" / "3")


def read_by_an_older_manager(ocp, path):
    ocp.v1.save_checkpointables(path / "run" / "3", several())
    with ocp.CheckpointManager(path / "run") as manager:
        args = ocp.args.Composite(params=ocp.args.StandardRestore(), opt=ocp.args.PyTreeRestore())
        found = manager.restore(3, args=args)
    return found["params"], found["opt"]
