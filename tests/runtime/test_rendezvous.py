from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import pytest
from jax._src.distributed import global_state

import orbit_ckpt as ocp
from orbit_ckpt._src.runtime.jax_process_group import default_group
from orbit_ckpt._src.runtime.process import Process, Rendezvous, SingleProcess, this_process
from orbit_ckpt._src.runtime.rendezvous import KeyValueGroup
from orbit_ckpt.errors import ProcessFailedError, ProcessTimeoutError
from orbit_ckpt.testing.fakes import MemoryKeyValueStore, fake_processes

LONG, SHORT = 20.0, 0.1


def groups_in(store: MemoryKeyValueStore, count: int, prefix: str = "") -> list[KeyValueGroup]:
    return [KeyValueGroup(store, Process(index, count), prefix=prefix) for index in range(count)]


def on_all(count: int, run: Callable[[Process, Rendezvous], object]):
    """Return what every process returned or raised, and the store they met in."""
    store = MemoryKeyValueStore()
    return run_groups(groups_in(store, count), run), store


def run_groups(groups, run, *, primary_s: float = LONG, others_s: float = LONG):
    def main(group):
        try:
            timeout_s = primary_s if group.process.is_primary else others_s
            rendezvous = group.join("a save", timeout_s)
            try:
                return run(group.process, rendezvous)
            except Exception as error:  # raised again, or what had failed before
                raise rendezvous.fail(error, ["first", "second"]) or error from error
            finally:
                rendezvous.finish()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            return error

    with ThreadPoolExecutor(len(groups)) as pool:
        return list(pool.map(main, groups))


def test_barrier_lets_nobody_pass_before_all_have_come():
    came = []

    def run(process, rendezvous):
        came.append(process.index)
        rendezvous.barrier("first")
        return len(came)

    results, _ = on_all(4, run)
    assert results == [4] * 4


def test_broadcast_gives_all_what_the_primary_has():
    results, _ = on_all(
        3, lambda process, op: op.broadcast("first", b"x" if process.is_primary else None)
    )
    assert results == [b"x"] * 3


def test_gather_gives_the_primary_all_values_in_order():
    results, _ = on_all(12, lambda process, op: op.gather("first", bytes([process.index])))
    assert results[1:] == [[]] * 11
    assert results[0] == [bytes([i]) for i in range(12)]


def test_failure_reaches_all_with_text_and_index():
    def run(process, rendezvous):
        rendezvous.set_phase("writing")
        if process.index == 2:
            raise OSError("disk on fire")
        rendezvous.barrier("first")

    results, _ = on_all(3, run)
    assert isinstance(results[2], OSError)
    for error in results[:2]:
        assert isinstance(error, ProcessFailedError)
        assert error.process == 2
        assert "process 2 failed while writing: OSError: disk on fire" in str(error)


def test_what_fails_after_another_process_raises_that_ones_error():
    def run(process, rendezvous):
        if process.index == 1:
            raise OSError("first")
        try:
            rendezvous.barrier("first")
        except ProcessFailedError:
            raise ValueError("because of that") from None

    results, _ = on_all(2, run)
    assert isinstance(results[0], ProcessFailedError)
    assert "OSError: first" in str(results[0])
    assert isinstance(results[0].__cause__, ValueError)


def test_deadline_names_who_is_missing_and_what_it_was_doing():
    store = MemoryKeyValueStore()
    has_told = threading.Event()

    def run(process, rendezvous):
        if process.index == 1:
            rendezvous.set_phase("writing leaf 7")
            has_told.set()
            return
        if process.is_primary:
            assert has_told.wait(LONG)
            store.wait_for_key(lambda key: key.endswith("arrived/first/2"))
        rendezvous.barrier("first")

    results = run_groups(groups_in(store, 3), run, primary_s=SHORT)
    assert results[1] is None
    for error in (results[0], results[2]):
        assert isinstance(error, ProcessTimeoutError)
        assert error.missing == {1: "writing leaf 7"}
        assert "process 1 (last: writing leaf 7)" in str(error)
        assert "barrier 'first'" in str(error)


def test_process_that_never_begins_is_missing():
    store = MemoryKeyValueStore()

    def run(process, rendezvous):
        if process.is_primary:
            store.wait_for_key(lambda key: key.endswith("arrived/first/1"))
        rendezvous.barrier("first")

    errors = run_groups(groups_in(store, 3)[:2], run, primary_s=SHORT)
    assert [getattr(error, "missing", None) for error in errors] == [{2: "not here yet"}] * 2


def test_process_that_comes_at_the_very_end_is_not_missing():
    class Slow(MemoryKeyValueStore):
        def list(self, folder: str) -> dict[str, bytes]:
            if folder.endswith("/phase/"):  # it is being looked who is missing
                self.put(folder.replace("/phase/", "/arrived/first/") + "1", b"")
            return super().list(folder)

    group, _ = groups_in(Slow(), 2)
    (found,) = run_groups([group], lambda _, op: op.barrier("first"), primary_s=SHORT)
    assert found == [b"", b""]


@pytest.mark.parametrize(("count", "least_s", "most_s"), [(2, 0.1, 1.0), (4096, 2.0, 10.0)])
def test_the_more_processes_wait_the_less_often_each_asks(
    count: int, least_s: float, most_s: float
) -> None:
    asked: dict[str, float] = {}

    class Late(MemoryKeyValueStore):
        def get(self, key: str, timeout_s: float) -> bytes | None:
            if key not in asked:
                asked[key] = timeout_s
                return None
            return super().get(key, timeout_s)

    primary, other, *_ = groups_in(Late(), count)
    primary.join("a save", LONG).broadcast("first", b"")
    other.join("a save", LONG).broadcast("first", None)
    assert len(asked) == 2
    assert all(least_s <= timeout_s <= most_s for timeout_s in asked.values())


def test_others_do_not_wait_forever_for_a_primary_that_never_begins():
    (error,) = run_groups(fake_processes(2)[1:], lambda _, op: op.barrier("first"), others_s=SHORT)
    assert isinstance(error, ProcessTimeoutError)
    assert error.missing == {0: "it has not begun this"}


def test_same_name_can_be_used_again_at_once():
    groups = fake_processes(3)

    def run(process, rendezvous):
        rendezvous.barrier("first")
        return rendezvous.broadcast("second", value if process.is_primary else None)

    for value in (b"1", b"2", b"3"):
        assert run_groups(groups, run) == [value] * 3


def test_programs_with_other_prefixes_do_not_meet():
    store = MemoryKeyValueStore()
    programs = {prefix: groups_in(store, 2, prefix) for prefix in ("", "a", "a/b")}
    for prefix, (primary, _) in programs.items():  # which waits for nobody
        primary.join("a save", LONG).broadcast("first", prefix.encode())
    for prefix, (_, other) in programs.items():
        assert other.join("a save", LONG).broadcast("first", None) == prefix.encode()


def test_all_join_another_attempt_after_one_has_failed():
    groups = fake_processes(3)

    def fail(process, rendezvous):
        if process.index == 1:
            raise OSError("once")
        rendezvous.barrier("first")

    assert all(isinstance(e, Exception) for e in run_groups(groups, fail))
    found = run_groups(groups, lambda process, op: op.barrier("first", b"%d" % process.index))
    assert found == [[b"0", b"1", b"2"], [], []]


def test_process_that_comes_late_to_a_failed_attempt_learns_so_at_once():
    groups = fake_processes(2)
    (first,) = run_groups(groups[:1], lambda _, op: op.barrier("first"), primary_s=SHORT)
    (second,) = run_groups(groups[1:], lambda _, op: op.barrier("first"))
    assert isinstance(first, ProcessTimeoutError)
    assert isinstance(second, ProcessTimeoutError)
    assert str(first) == str(second)


def test_nothing_is_left_in_the_store():
    _, store = on_all(
        3, lambda _, op: [op.set_phase("x"), op.barrier("first"), op.barrier("second")]
    )
    assert store.keys == set()


def test_one_process_waits_for_nobody():
    rendezvous = SingleProcess().join("a save", 0)
    rendezvous.barrier("first")
    assert rendezvous.broadcast("first", b"x") == b"x"
    assert rendezvous.gather("first", b"x") == [b"x"]
    assert rendezvous.fail(ValueError(), ["second"]) is None


def test_a_coordination_service_that_is_gone_is_an_error_that_names_the_first_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone:
        def __getattr__(self, name: str) -> Callable[..., object]:
            def fail(*_: object, **__: object) -> object:
                raise jax.errors.JaxRuntimeError("UNAVAILABLE: failed to connect")

            return fail

    monkeypatch.setattr(global_state, "client", Gone())
    monkeypatch.setattr(global_state, "process_id", 1)
    monkeypatch.setattr(global_state, "num_processes", 2)
    for run in (lambda: ocp.save(tmp_path / "a", {}), lambda: ocp.CheckpointManager(tmp_path)):
        with pytest.raises(ProcessFailedError, match="UNAVAILABLE: failed to connect") as caught:
            run()
        assert caught.value.process == 0


def test_this_process_is_alone_without_jax_distributed():
    assert this_process() == Process(0, 1)
    assert isinstance(default_group(), SingleProcess)
