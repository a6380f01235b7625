"""Handlers for items and for leaves of other types, as public code writes them."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np


def tree():
    return {"w": np.arange(4.0, dtype=np.float32), "n": 2}


def filter_in_a_subclass(ocp, path):
    class Public(ocp.PyTreeCheckpointHandler):
        def save(self, directory, args):
            kept = {key: value for key, value in args.item.items() if key != "secret"}
            super().save(directory, args=ocp.args.PyTreeSave(kept))

    @ocp.args.register_with_handler(Public, for_save=True)
    @dataclasses.dataclass
    class PublicSave(ocp.args.PyTreeSave): ...

    @ocp.args.register_with_handler(Public, for_restore=True)
    @dataclasses.dataclass
    class PublicRestore(ocp.args.PyTreeRestore): ...

    checkpointer = ocp.Checkpointer(Public())
    checkpointer.save(path / "one", args=PublicSave({"a": np.arange(2), "secret": np.ones(1)}))
    return ocp.PyTreeCheckpointer().restore(path / "one")


def handler_around_another(ocp, path):
    class Wrapper(ocp.AsyncCheckpointHandler):
        def __init__(self):
            self._inner = ocp.PyTreeCheckpointHandler()

        async def async_save(self, directory, args):
            item = jax.tree.map(lambda leaf: leaf * 2, args.item)
            return await self._inner.async_save(directory, args=ocp.args.PyTreeSave(item))

        def save(self, directory, args):
            self._inner.save(directory, args=ocp.args.PyTreeSave(args.item))

        def restore(self, directory, args):
            return self._inner.restore(directory, args=ocp.args.PyTreeRestore(item=args.item))

        def finalize(self, directory):
            self._inner.finalize(directory)

    @ocp.args.register_with_handler(Wrapper, for_save=True)
    @dataclasses.dataclass
    class WrapperSave(ocp.args.CheckpointArgs):
        item: object

    @ocp.args.register_with_handler(Wrapper, for_restore=True)
    @dataclasses.dataclass
    class WrapperRestore(ocp.args.CheckpointArgs):
        item: object = None

    checkpointer = ocp.AsyncCheckpointer(Wrapper())
    checkpointer.save(path / "one", args=WrapperSave(tree()))
    checkpointer.wait_until_finished()
    return checkpointer.restore(path / "one", args=WrapperRestore(tree()))


def handler_of_a_text_item(ocp, path):
    class TextHandler(ocp.CheckpointHandler):
        def save(self, directory, args):
            (directory / "text.txt").write_text(args.text)

        def restore(self, directory, args=None):
            return (directory / "text.txt").read_text()

    @ocp.args.register_with_handler(TextHandler, for_save=True)
    @dataclasses.dataclass
    class TextSave(ocp.args.CheckpointArgs):
        text: str

    @ocp.args.register_with_handler(TextHandler, for_restore=True)
    @dataclasses.dataclass
    class TextRestore(ocp.args.CheckpointArgs): ...

    with ocp.CheckpointManager(path / "run", item_names=("state", "text")) as manager:
        items = {"state": ocp.args.StandardSave(tree()), "text": TextSave("hello")}
        manager.save(1, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
        return manager.restore(1, args=ocp.args.Composite(text=TextRestore()))["text"]


def handler_without_arguments(ocp, path):
    class Lines(ocp.CheckpointHandler):
        def save(self, directory, item, sort=False):
            lines = sorted(item) if sort else item
            (directory / "lines").write_text("\n".join(lines))

        def restore(self, directory, item=None):
            return (directory / "lines").read_text().split("\n")

    checkpointer = ocp.Checkpointer(Lines())
    checkpointer.save(path / "one", ["b", "a"], sort=True)
    return checkpointer.restore(path / "one")


def composite_checkpointer(ocp, path):
    handler = ocp.CompositeCheckpointHandler(
        **{"model": ocp.StandardCheckpointHandler(), "config": ocp.JsonCheckpointHandler()}
    )
    checkpointer = ocp.Checkpointer(handler)
    args = ocp.args.Composite(
        model=ocp.args.StandardSave(tree()), config=ocp.args.JsonSave({"a": 1})
    )
    checkpointer.save(path / "one", args=args)
    restored = checkpointer.restore(
        path / "one", args=ocp.args.Composite(model=ocp.args.StandardRestore(tree()))
    )
    return restored["model"], sorted(restored.keys())


def composite_by_names(ocp, path):
    handler = ocp.CompositeCheckpointHandler("state", "config")
    with ocp.AsyncCheckpointer(handler) as checkpointer:
        args = ocp.args.Composite(
            state=ocp.args.PyTreeSave(tree()), config=ocp.args.JsonSave({"a": 1})
        )
        checkpointer.save(path / "one", args=args)
        checkpointer.wait_until_finished()
        return checkpointer.restore(
            path / "one",
            args=ocp.args.Composite(
                config=ocp.args.JsonRestore(),
                state=ocp.args.PyTreeRestore(),
            ),
        ).config


def missing_item(ocp, path):
    handler = ocp.CompositeCheckpointHandler("state", "config")
    checkpointer = ocp.Checkpointer(handler)
    checkpointer.save(path / "one", args=ocp.args.Composite(state=ocp.args.PyTreeSave(tree())))
    args = ocp.args.Composite(config=ocp.args.JsonRestore())
    try:
        checkpointer.restore(path / "one", args=args)
    except KeyError:
        return "no item"
    return None


def registered_arguments(ocp, path):
    handler = ocp.PyTreeCheckpointHandler()
    save, restore = ocp.args.get_registered_args_cls(handler)
    found = ocp.args.get_registered_handler_cls(ocp.args.JsonSave({}))
    return (
        save is ocp.args.PyTreeSave,
        restore is ocp.args.PyTreeRestore,
        found is ocp.JsonCheckpointHandler,
        ocp.args.has_registered_args(handler),
    )


def base_handler(ocp, path):
    handler = (
        ocp.handlers.BasePyTreeCheckpointHandler(save_concurrent_bytes=10**6)
        if hasattr(ocp.handlers, "BasePyTreeCheckpointHandler")
        else ocp.BasePyTreeCheckpointHandler(save_concurrent_bytes=10**6)
    )
    return isinstance(handler, ocp.AsyncCheckpointHandler)


def type_handler_of_a_class(ocp, path):
    types = ocp.type_handlers

    @dataclasses.dataclass
    class Point:
        x: int
        y: int

    class PointHandler(types.TypeHandler):
        def typestr(self):
            return "Point"

        async def metadata(self, infos):
            return [ocp.metadata.Metadata(name=i.name, directory=i.parent_dir) for i in infos]

        async def serialize(self, values, infos, args=None):
            for value, info in zip(values, infos):
                file = info.parent_dir / f"{info.name}.json"
                file.write_text(json.dumps([value.x, value.y]))
            return []

        async def deserialize(self, infos, args=None):
            files = [info.parent_dir / f"{info.name}.json" for info in infos]
            return [Point(*json.loads(file.read_text())) for file in files]

    registry = types.create_type_handler_registry(
        (int, types.ScalarHandler()), (np.ndarray, types.NumpyHandler()), (Point, PointHandler())
    )
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(path / "one", {"p": Point(1, 2), "a": np.arange(3)})
        restored = checkpointer.restore(path / "one")
    return restored["a"], restored["p"].x, restored["p"].y


def type_handler_over_numpy(ocp, path):
    types = ocp.type_handlers

    class Masked:
        def __init__(self, values):
            self.values = values

    class MaskedHandler(types.NumpyHandler):
        def typestr(self):
            return "Masked"

        async def serialize(self, values, infos, args=None):
            return await super().serialize([value.values for value in values], infos, args)

        async def deserialize(self, infos, args=None):
            return [Masked(value) for value in await super().deserialize(infos, args)]

    types.register_type_handler(Masked, MaskedHandler(), override=True)
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"m": Masked(np.arange(3)), "n": 1})
    restored = checkpointer.restore(path / "one")
    return restored["m"].values, restored["n"], types.has_type_handler(Masked)


def lookup_of_type_handlers(ocp, path):
    types = ocp.type_handlers
    return (
        types.get_type_handler(int).typestr(),
        types.get_type_handler(jax.Array).typestr(),
        types.has_type_handler(dict),
        types.get_type_handler(np.ndarray).typestr(),
        types.is_supported_type(np.ones(2)),
        types.is_supported_type(object()),
        types.is_supported_empty_value({}),
        types.is_supported_empty_value({"a": 1}),
    )


def array_handler_options(ocp, path):
    types = ocp.type_handlers
    registry = types.create_type_handler_registry(
        (jax.Array, types.ArrayHandler(primary_host=0, replica_id=0)),
        (int, types.ScalarHandler()),
        (np.ndarray, types.NumpyHandler()),
        (str, types.StringHandler()),
    )
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    with ocp.AsyncCheckpointer(handler) as checkpointer:
        checkpointer.save(path / "one", {"j": jnp.arange(3), "n": 1, "s": "text"})
        checkpointer.wait_until_finished()
        return checkpointer.restore(path / "one")


def tensorstore_spec_of_a_leaf(ocp, path):
    import tensorstore as ts

    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"layer": {"w": np.arange(5)}})
    info = ocp.type_handlers.ParamInfo(
        name="layer.w",
        path=path / "one" / "layer.w",
        parent_dir=path / "one",
        is_ocdbt_checkpoint=True,
        use_zarr3=(path / "one" / "orbit_manifest.json").exists(),
    )
    spec = ocp.type_handlers.get_json_tspec_read(info, use_ocdbt=True)
    context = ocp.type_handlers.get_ts_context(use_ocdbt=True)
    return ts.open(ts.Spec(spec), open=True, context=context).result().read().result()


def ocdbt_or_not(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", tree())
    ocp.PyTreeCheckpointer(use_ocdbt=False).save(path / "two", tree())
    is_ocdbt = ocp.type_handlers.is_ocdbt_checkpoint
    return is_ocdbt(path / "one"), is_ocdbt(path / "two")


def own_future(ocp, path):
    class Done(ocp.Future):
        def result(self, timeout=None):
            return None

    chained = ocp.future.ChainedFuture([Done(), ocp.future.NoopFuture()], lambda: None)
    return chained.result()


def legacy_msgpack_handler(ocp, path):
    data = ocp.msgpack_utils.msgpack_serialize({"a": np.arange(3), "b": {"c": 1.5}})
    return ocp.msgpack_utils.msgpack_restore(data)


def single_replica_restore(ocp, path):
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    types = ocp.type_handlers
    mesh = Mesh(np.asarray(jax.devices()[:4]).reshape(2, 2), ("replica", "data"))
    sharding = NamedSharding(mesh, PartitionSpec(None, "data"))
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"w": jax.device_put(jnp.arange(8.0).reshape(2, 4), sharding)})
    replica = Mesh(np.asarray(jax.devices()[:2]), ("data",))
    args = types.SingleReplicaArrayRestoreArgs(
        sharding=sharding,
        single_replica_sharding=NamedSharding(replica, PartitionSpec(None, "data")),
        global_shape=(2, 4),
        dtype=jnp.float32,
    )
    array_handler = types.SingleReplicaArrayHandler(
        replica_axis_index=0, broadcast_memory_limit_bytes=1024**2
    )
    registry = types.create_type_handler_registry((jax.Array, array_handler))
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    return ocp.Checkpointer(handler).restore(path / "one", restore_args={"w": args})


def arrays_of_every_host_by_itself(ocp, path):
    types = ocp.type_handlers
    options = ocp.options.MultiprocessingOptions(primary_host=None, barrier_sync_key_prefix="local")
    array_handler = types.ArrayHandler(
        primary_host=None, replica_id=None, use_replica_parallel=False
    )
    registry = types.create_type_handler_registry((jax.Array, array_handler))
    handler = ocp.PyTreeCheckpointHandler(
        type_handler_registry=registry, multiprocessing_options=options, use_ocdbt=False
    )
    with ocp.Checkpointer(handler, multiprocessing_options=options) as checkpointer:
        checkpointer.save(path / "one", {"w": jnp.arange(3.0)})
        return checkpointer.restore(path / "one")


def iterator_state_by_a_scalar_handler(ocp, path):
    types = ocp.type_handlers

    class Numbers:
        def __init__(self):
            self.position = 0

        def __next__(self):
            self.position += 1
            return self.position

    class NumbersHandler(types.ScalarHandler):
        @dataclasses.dataclass
        class RestoreArgs(types.RestoreArgs):
            item: object = None

        def typestr(self):
            return "Numbers"

        async def serialize(self, values, infos, args=None):
            return await super().serialize([value.position for value in values], infos, args)

        async def deserialize(self, infos, args=None):
            found = await super().deserialize(infos)
            for position, arg in zip(found, args):
                arg.item.position = int(position)
            return [arg.item for arg in args]

    types.register_type_handler(Numbers, NumbersHandler(), override=True)
    numbers = Numbers()
    next(numbers), next(numbers)
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"it": numbers, "step": 1})
    other = Numbers()
    restore_args = {"it": NumbersHandler.RestoreArgs(item=other), "step": ocp.RestoreArgs()}
    restored = checkpointer.restore(path / "one", restore_args=restore_args)
    return restored["it"] is other, next(other)


def spans_of_a_sliced_array_handler(ocp, path):
    types = ocp.type_handlers
    seen = []

    class Watching(types.ArrayHandler):
        async def deserialize(self, infos, args=None):
            seen.extend(info.name for info in infos)
            return await super().deserialize(infos, args)

    types.register_type_handler(jax.Array, Watching(), override=True)
    try:
        checkpointer = ocp.PyTreeCheckpointer()
        checkpointer.save(path / "one", {"a": {"b": jnp.ones(2)}})
        restored = checkpointer.restore(path / "one")
    finally:
        types.register_type_handler(jax.Array, types.ArrayHandler(), override=True)
    return seen, restored
