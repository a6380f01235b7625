"""Metrics from event files, written by T5X, by tensorboardX, or damaged on purpose."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboardX import SummaryWriter
from tensorboardX.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2

import orbit_ckpt as ocp
from orbit_ckpt import policies
from orbit_ckpt._src.manager.tensorboard import TensorBoardMetrics
from orbit_ckpt.errors import StorageError
from tests.support import scratch

# generated when they are imported, which type checkers do not see
Event: Any = vars(event_pb2)["Event"]
Summary: Any = vars(summary_pb2)["Summary"]
TensorProto: Any = vars(tensor_pb2)["TensorProto"]
TensorShapeProto: Any = vars(tensor_shape_pb2)["TensorShapeProto"]

SAMPLE = Path(__file__).parent.parent / "golden" / "t5x_savebest"
SAMPLE_VALUES = {
    42: 0.8999999761581421,
    43: 0.800000011920929,
    44: 0.699999988079071,
    45: 0.949999988079071,
    46: 0.9900000095367432,
}
STEPS = range(100)


def record(data: bytes) -> bytes:
    """Return data as a record of an event file."""

    def masked(part: bytes) -> bytes:
        crc = crc32c.crc32c(part)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def event(step: int, value: float, tag: str = "loss") -> bytes:
    """Return the record of one scalar."""
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    return record(Event(step=step, summary=summary).SerializeToString())


def tensor_event(step: int, tensor: Any, tag: str = "loss") -> bytes:
    """Return the record of one tensor."""
    summary = Summary(value=[Summary.Value(tag=tag, tensor=tensor)])
    return record(Event(step=step, summary=summary).SerializeToString())


def write(path: Path, *records: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(records))
    return path


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return tmp_path / "train" / "events.out.tfevents.1"


@pytest.fixture
def metrics(tmp_path: Path) -> TensorBoardMetrics:
    return TensorBoardMetrics(tmp_path, "train/loss")


def test_t5x_sample_gives_the_values_that_t5x_read() -> None:
    assert TensorBoardMetrics(SAMPLE, "train/accuracy").values(STEPS) == SAMPLE_VALUES


def test_a_run_keeps_its_best_steps_by_what_t5x_logged(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path / "run")  # T5X logs below the checkpoints
    name = "train/accuracy"
    options = ocp.CheckpointManagerOptions(
        metrics_source=ocp.TensorBoardMetrics(tmp_path / "run", name),
        preservation_policy=policies.SaveBest(get_metric_fn=lambda found: found[name], n=1),
    )
    with ocp.CheckpointManager(tmp_path / "run", options=options) as run:
        for step in range(42, 46):
            run.save(step, {"step": step})
        run.wait_until_finished()
        assert run.all_steps() == [42, 45]
        assert run.best_step() == 45
    assert (tmp_path / "run" / "train").is_dir()


def test_only_the_steps_asked_for_are_given() -> None:
    metrics = TensorBoardMetrics(SAMPLE, "train/accuracy")
    assert metrics.values([43, 47]) == {43: SAMPLE_VALUES[43]}
    assert metrics.values([]) == {}
    assert metrics.values({46}) == {46: SAMPLE_VALUES[46]}


def test_values_of_tensorboardx_are_read(tmp_path: Path) -> None:
    metrics = TensorBoardMetrics(tmp_path, "train/eval/loss")
    with SummaryWriter(str(tmp_path / "train")) as writer:
        for step in range(5):
            writer.add_scalar("eval/loss", step / 4, step)
            writer.add_scalar("eval/other", 9.0, step)
            writer.add_histogram("eval/loss", np.arange(3.0), step)
            writer.add_text("eval/loss", "none", step)
    assert metrics.values(STEPS) == {step: step / 4 for step in range(5)}
    with SummaryWriter(str(tmp_path / "train"), filename_suffix=".later") as writer:
        writer.add_scalar("eval/loss", 5.0, 7, summary_description="with metadata")
    assert metrics.values([4, 7]) == {4: 1.0, 7: 5.0}


def test_the_shortest_run_that_holds_event_files_is_the_run(tmp_path: Path) -> None:
    # as T5X itself did: `inference_eval` is a directory, but not a run
    name = "events.out.tfevents.1"
    write(tmp_path / "inference_eval" / "glue" / name, event(3, 0.5, "eval/accuracy"))
    write(tmp_path / "inference_eval" / "glue" / "eval" / name, event(3, 0.7, "accuracy"))
    metrics = TensorBoardMetrics(tmp_path, "inference_eval/glue/eval/accuracy")
    assert metrics.values(STEPS) == {3: 0.5}


def test_a_run_once_found_stays(tmp_path: Path) -> None:
    name = "events.out.tfevents.1"
    write(tmp_path / "a" / "b" / name, event(3, 0.5, "c"))
    metrics = TensorBoardMetrics(tmp_path, "a/b/c")
    assert metrics.values(STEPS) == {3: 0.5}
    write(tmp_path / "a" / name, event(3, 0.25, "b/c"))
    assert metrics.values(STEPS) == {3: 0.5}
    assert TensorBoardMetrics(tmp_path, "a/b/c").values(STEPS) == {3: 0.25}


@pytest.mark.parametrize("metric", ["loss", "train/loss"])
def test_without_a_run_the_files_of_the_directory_itself_are_read(
    metric: str, tmp_path: Path
) -> None:
    write(tmp_path / "events.out.tfevents.1", event(3, 0.5, metric))
    metrics = TensorBoardMetrics(tmp_path, metric)
    assert metrics.values(STEPS) == {3: 0.5}


def test_a_run_that_appears_later_replaces_the_directory_s_own_files(
    tmp_path: Path, run_file: Path, metrics: TensorBoardMetrics
) -> None:
    write(tmp_path / "events.out.tfevents.1", event(3, 0.5, "train/loss"))
    assert metrics.values(STEPS) == {3: 0.5}
    write(run_file, event(4, 0.25))
    assert metrics.values(STEPS) == {4: 0.25}


def test_a_directory_that_does_not_exist_has_no_values(tmp_path: Path) -> None:
    assert TensorBoardMetrics(tmp_path / "none", "train/loss").values(STEPS) == {}


@pytest.mark.parametrize("metric", ["", "train/"])
def test_a_metric_without_a_tag_is_refused(metric: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no tag; give run and tag"):
        TensorBoardMetrics(tmp_path, metric)


def test_the_last_value_of_a_step_counts(run_file: Path, metrics: TensorBoardMetrics) -> None:
    write(run_file, event(3, 0.5), event(4, 1.0), event(3, 0.25))
    assert metrics.values(STEPS) == {3: 0.25, 4: 1.0}


def test_files_count_in_the_order_of_their_names(
    run_file: Path, metrics: TensorBoardMetrics
) -> None:
    first, second = run_file, run_file.with_name("events.out.tfevents.2")
    write(second, event(3, 2.0))
    write(first, event(3, 1.0), event(2, 1.0))
    assert metrics.values(STEPS) == {2: 1.0, 3: 2.0}
    append(first, event(3, 1.5))
    assert metrics.values(STEPS) == {2: 1.0, 3: 2.0}
    append(second, event(2, 2.5))
    assert metrics.values(STEPS) == {2: 2.5, 3: 2.0}


def test_all_values_of_a_summary_are_looked_at(run_file: Path, metrics: TensorBoardMetrics) -> None:
    values = [Summary.Value(tag=tag, simple_value=i) for i, tag in enumerate(["a", "b", "loss"])]
    write(run_file, record(Event(step=3, summary=Summary(value=values)).SerializeToString()))
    assert metrics.values(STEPS) == {3: 2.0}


def test_a_tag_must_be_equal(run_file: Path, metrics: TensorBoardMetrics) -> None:
    write(run_file, event(1, 1.0, "los"), event(2, 1.0, "loss2"), event(3, 1.0, "eval/loss"))
    assert metrics.values(STEPS) == {}


SCALAR = TensorShapeProto()
MATRIX = TensorShapeProto(dim=[TensorShapeProto.Dim(size=2)] * 2)


@pytest.mark.parametrize(
    ("tensor", "value"),
    [
        (TensorProto(dtype=1, tensor_shape=SCALAR, float_val=[0.5]), 0.5),
        (TensorProto(dtype=1, float_val=[0.0]), 0.0),
        (TensorProto(dtype=1, tensor_shape=SCALAR), 0.0),
        (TensorProto(dtype=1, tensor_content=np.float32(0.5).tobytes()), 0.5),
        (TensorProto(dtype=2, double_val=[0.1]), 0.1),
        (TensorProto(dtype=2, tensor_content=np.float64(0.1).tobytes()), 0.1),
        (TensorProto(dtype=1, float_val=[-np.inf]), -np.inf),
    ],
    ids=["float", "zero", "empty", "float bytes", "double", "double bytes", "infinite"],
)
def test_tensors_of_one_number_are_read(
    tensor: Any, value: float, run_file: Path, metrics: TensorBoardMetrics
) -> None:
    write(run_file, tensor_event(3, tensor))
    assert metrics.values(STEPS) == {3: value}


@pytest.mark.parametrize(
    "tensor",
    [
        TensorProto(dtype=1, float_val=[0.5, 1.5]),
        TensorProto(dtype=1, tensor_shape=MATRIX),
        TensorProto(dtype=7, string_val=[b"text"]),
        TensorProto(dtype=3, int_val=[3]),
        TensorProto(),
    ],
    ids=["two", "matrix", "text", "integer", "none"],
)
def test_other_tensors_are_no_values(
    tensor: Any, run_file: Path, metrics: TensorBoardMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    write(run_file, tensor_event(3, tensor))
    assert metrics.values(STEPS) == {}
    assert not caplog.records


@given(st.integers(0, 2**63 - 1), st.floats(width=32, allow_nan=False), st.text(min_size=1))
def test_whatever_protobuf_writes_is_read(step: int, value: float, tag: str) -> None:
    with scratch() as logdir:
        write(logdir / "events.out.tfevents.1", event(step, value, f"x{tag}x"))
        assert TensorBoardMetrics(logdir, f"x{tag}x").values([step]) == {step: value}


def test_only_what_was_appended_is_read(run_file: Path, metrics: TensorBoardMetrics) -> None:
    first = event(1, 1.0)
    write(run_file, first)
    assert metrics.values(STEPS) == {1: 1.0}
    # what was read already is not looked at again
    write(run_file, bytes(len(first)), event(2, 2.0))
    assert metrics.values(STEPS) == {1: 1.0, 2: 2.0}


@given(st.lists(st.integers(0, 400), max_size=6))
def test_reading_in_parts_gives_what_reading_at_once_does(cuts: list[int]) -> None:
    with scratch() as logdir:
        file = logdir / "events.out.tfevents.1"
        data = b"".join(event(step % 5, step / 8) for step in range(9))
        metrics = TensorBoardMetrics(logdir, "loss")
        logdir.mkdir()
        for cut in sorted(cuts):
            write(file, data[:cut])
            assert metrics.values(STEPS) == TensorBoardMetrics(logdir, "loss").values(STEPS)
        write(file, data)
        assert metrics.values(STEPS) == {0: 0.625, 1: 0.75, 2: 0.875, 3: 1.0, 4: 0.5}


def test_every_cut_of_the_last_record_is_ignored_quietly(
    run_file: Path, metrics: TensorBoardMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    whole, last = event(1, 1.0), event(2, 2.0)
    for cut in range(len(last)):
        write(run_file, whole, last[:cut])
        assert metrics.values(STEPS) == {1: 1.0}
    write(run_file, whole, last)
    assert metrics.values(STEPS) == {1: 1.0, 2: 2.0}
    assert not caplog.records


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("at", [12, -5, -1])
def test_a_damaged_record_is_skipped_with_one_warning(
    at: int, run_file: Path, metrics: TensorBoardMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    first, bad = event(1, 1.0), event(2, 2.0)
    write(run_file, first, flipped(bad, at % len(bad)), event(3, 3.0))
    for _ in range(2):
        assert metrics.values(STEPS) == {1: 1.0, 3: 3.0}
    [warning] = caplog.messages
    assert warning.startswith(f"{run_file}: the record at byte {len(first)} differs")


def test_a_damaged_last_record_is_looked_at_again(
    run_file: Path, metrics: TensorBoardMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    last = event(2, 2.0)
    write(run_file, event(1, 1.0), flipped(last, -2))
    assert metrics.values(STEPS) == {1: 1.0}
    write(run_file, event(1, 1.0), last)
    assert metrics.values(STEPS) == {1: 1.0, 2: 2.0}
    assert not caplog.records


@pytest.mark.parametrize("at", [0, 7, 8])
def test_after_a_damaged_length_nothing_is_read(
    at: int, run_file: Path, metrics: TensorBoardMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    first = event(1, 1.0)
    write(run_file, first, flipped(event(2, 2.0), at), event(3, 3.0))
    for _ in range(2):
        assert metrics.values(STEPS) == {1: 1.0}
    [warning] = caplog.messages
    assert f"the record at byte {len(first)} has a damaged length" in warning
    assert str(run_file) in warning


@pytest.mark.parametrize(
    "data",
    [
        b"*\xfflosslosslossloss",  # a summary longer than the record
        b"*\x08\n\xfflossloss",  # a value longer than its summary
        b"\x10loss\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",  # a number that does not end
        b"\x0bloss",  # a group
        b"\x28\x04loss",  # a number where the summary should be
    ],
)
def test_a_record_that_is_no_event_is_skipped(
    data: bytes, run_file: Path, metrics: TensorBoardMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    write(run_file, record(data), event(3, 3.0))
    assert metrics.values(STEPS) == {3: 3.0}
    assert "the record at byte 0 is no event" in caplog.text


@given(st.binary(max_size=40))
def test_any_bytes_are_survived(data: bytes) -> None:
    with scratch() as logdir:
        write(logdir / "events.out.tfevents.1", record(b"loss" + data), event(3, 3.0))
        assert TensorBoardMetrics(logdir, "loss").values([3]) == {3: 3.0}


def test_a_file_that_was_replaced_by_a_shorter_one_is_read_anew(
    run_file: Path, metrics: TensorBoardMetrics
) -> None:
    write(run_file, event(1, 1.0), event(2, 2.0))
    assert metrics.values(STEPS) == {1: 1.0, 2: 2.0}
    write(run_file, event(1, 4.0))
    assert metrics.values(STEPS) == {1: 4.0}


def test_values_of_a_deleted_file_stay(run_file: Path, metrics: TensorBoardMetrics) -> None:
    write(run_file, event(1, 1.0))
    assert metrics.values(STEPS) == {1: 1.0}
    shutil.rmtree(run_file.parent)
    assert metrics.values(STEPS) == {1: 1.0}


def test_a_file_that_cannot_be_read_is_an_error(
    run_file: Path, metrics: TensorBoardMetrics
) -> None:
    os.makedirs(run_file)
    with pytest.raises(StorageError, match=r"reading metrics failed.*tfevents"):
        metrics.values(STEPS)
