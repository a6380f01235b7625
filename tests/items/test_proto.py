"""Protocol buffers as items, in text form, as Orbax has them."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, duration_pb2, empty_pb2, struct_pb2

import orbit_ckpt as ocp
from orbit_ckpt.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatError,
    MissingPackageError,
)
from tests.support import flip_every_bit


def config() -> struct_pb2.Struct:
    """Return a message with nesting, floats, text beyond ASCII and an empty part."""
    message = struct_pb2.Struct()
    message.update({"lr": 0.1, "name": 'ä"\n', "layers": [1, {"on": True}], "none": None, "e": {}})
    return message


def saved(path: Path) -> ocp.Checkpointer:
    checkpointer = ocp.Checkpointer(ocp.ProtoCheckpointHandler())
    checkpointer.save(path, args=ocp.args.ProtoSave(config()))
    return checkpointer


def test_a_message_comes_back_equal_and_of_its_class(tmp_path: Path) -> None:
    found = saved(tmp_path / "x").restore(tmp_path / "x", ocp.args.ProtoRestore(struct_pb2.Struct))
    assert type(found) is struct_pb2.Struct
    assert found == config()


def test_a_file_may_have_another_name(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.ProtoHandler("config.pbtxt"))
    checkpointer.save(tmp_path / "x", config())
    assert (tmp_path / "x" / "config.pbtxt").exists()
    assert checkpointer.restore(tmp_path / "x", struct_pb2.Struct) == config()


def test_what_happens_to_a_message_after_the_call_is_not_saved(tmp_path: Path) -> None:
    message = config()
    with ocp.AsyncCheckpointer(ocp.ProtoHandler()) as checkpointer:
        checkpointer.save(tmp_path / "x", args=ocp.args.ProtoSave(message))
        message.Clear()
    assert checkpointer.restore(tmp_path / "x", struct_pb2.Struct) == config()


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore")
def test_orbax_restores_a_message_and_its_own_is_restored(tmp_path: Path) -> None:
    import orbax.checkpoint as orbax  # noqa: PLC0415 - optional

    ours = ocp.Checkpointer(ocp.CompositeHandler())
    theirs = orbax.Checkpointer(orbax.CompositeCheckpointHandler())
    ours.save(tmp_path / "ours", ocp.args.Composite(c=ocp.args.ProtoSave(config())))
    theirs.save(tmp_path / "theirs", orbax.args.Composite(c=orbax.args.ProtoSave(config())))
    recorded = [ours.metadata(tmp_path / name).item_handlers for name in ("ours", "theirs")]
    assert recorded[0] == recorded[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = orbax.args.Composite(c=orbax.args.ProtoRestore(struct_pb2.Struct))
        assert theirs.restore(tmp_path / "ours", wanted).c == config()
    wanted = ocp.args.Composite(c=ocp.args.ProtoRestore(struct_pb2.Struct))
    assert ours.restore(tmp_path / "theirs", wanted).c == config()


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeHandler())
    items = ocp.args.Composite(c=ocp.args.ProtoSave(duration_pb2.Duration(seconds=30)))
    checkpointer.save(tmp_path / "x", items)
    wanted = ocp.args.Composite(c=ocp.args.ProtoRestore(duration_pb2.Duration))
    for _ in flip_every_bit(tmp_path / "x" / "c" / "proto.pbtxt"):
        with pytest.raises(CorruptionError, match=r"c/proto\.pbtxt is damaged"):
            checkpointer.restore(tmp_path / "x", wanted)


@pytest.mark.parametrize("text", [b"fields {", b"no_such_field: 1", b"\xff\xfe", b"fields: 1"])
def test_a_file_that_is_no_such_message_is_named(text: bytes, tmp_path: Path) -> None:
    checkpointer = saved(tmp_path / "x")
    (tmp_path / "x" / "orbit_manifest.json").unlink()
    (tmp_path / "x" / "proto.pbtxt").write_bytes(text)
    with pytest.raises(FormatError, match=r"proto\.pbtxt: expected the text form of a google\."):
        checkpointer.restore(tmp_path / "x", ocp.args.ProtoRestore(struct_pb2.Struct))


def test_a_message_restored_as_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="or is of another message"):
        saved(tmp_path / "x").restore(tmp_path / "x", ocp.args.ProtoRestore(duration_pb2.Duration))


def test_a_restore_needs_the_class_of_the_message(tmp_path: Path) -> None:
    checkpointer = saved(tmp_path / "x")
    for wrong in (struct_pb2.Struct(), dict, None):
        with pytest.raises(TypeError, match=r"give the class of the message, as in ProtoRestore"):
            checkpointer.restore(tmp_path / "x", ocp.args.ProtoRestore(wrong))  # pyright: ignore[reportArgumentType] - a mistake
    composite = ocp.Checkpointer(ocp.CompositeHandler())
    items = ocp.args.Composite(config=ocp.args.ProtoSave(config()))
    composite.save(tmp_path / "y", items)
    with pytest.raises(ValueError, match=r"Item 'config' cannot be .* as in args\.Composite\(conf"):
        composite.restore(tmp_path / "y")


def test_what_is_no_message_is_refused_by_name(tmp_path: Path) -> None:
    composite = ocp.Checkpointer(ocp.CompositeHandler())
    items = ocp.args.Composite(config=ocp.args.ProtoSave({"lr": 1}))  # pyright: ignore[reportArgumentType] - a mistake
    with pytest.raises(TypeError, match="config: expected a message of protobuf, found dict"):
        composite.save(tmp_path / "x", items)
    with pytest.raises(TypeError, match=r"^x: expected a message of protobuf, found int"):
        ocp.Checkpointer(ocp.ProtoHandler()).save(tmp_path / "x", 1)
    assert not list(tmp_path.iterdir())


def test_fields_that_the_text_would_lose_are_refused(tmp_path: Path) -> None:
    inner = descriptor_pb2.FieldOptions(packed=True).SerializeToString()
    unknown = empty_pb2.Empty.FromString(inner)
    checkpointer = ocp.Checkpointer(ocp.ProtoHandler())
    with pytest.raises(ValueError, match=r"google\.protobuf\.Empty has fields that its class does"):
        checkpointer.save(tmp_path / "x", unknown)
    unknown.DiscardUnknownFields()
    checkpointer.save(tmp_path / "x", unknown)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"there is no file 'proto\.pbtxt'"):
        ocp.ProtoHandler().restore(tmp_path, struct_pb2.Struct)


def test_without_protobuf_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(MissingPackageError, match="pip install protobuf"):
        ocp.Checkpointer(ocp.ProtoHandler()).save(tmp_path / "x", {"lr": 1})
    assert not list(tmp_path.iterdir())
