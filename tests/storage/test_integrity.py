"""The manifest: which files it covers, and what it notices."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from orbit_ckpt._src.storage.amend import forget_files, replacing_item
from orbit_ckpt._src.storage.integrity import (
    CheckedDirectory,
    read_manifest,
    renew_manifest,
    write_manifest,
)
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, MANIFEST, OCDBT_MANIFEST
from orbit_ckpt._src.storage.manifest import DatabaseRecord, FileRecord, Manifest
from orbit_ckpt.errors import CorruptionError, FormatError, UnsafePathError


@pytest.fixture
def covered(tmp_path: Path) -> Path:
    """A directory with a manifest."""
    (tmp_path / "d").mkdir()
    (tmp_path / "a").write_bytes(b"hello")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "d" / "chunk").write_bytes(b"data" + crc32c(b"data").to_bytes(4, "little"))
    (tmp_path / COMMIT_MARKER).write_bytes(b"done")
    write_manifest(tmp_path)
    return tmp_path


def files_of(directory: Path) -> set[str]:
    manifest = read_manifest(directory)
    assert manifest is not None
    return set(manifest.files)


def test_every_file_but_the_marker_is_covered(covered: Path) -> None:
    assert files_of(covered) == {"a", "empty", "d/chunk"}


def test_every_file_of_many_folders_is_covered(tmp_path: Path) -> None:
    for number in range(130):
        folder = tmp_path / f"process_{number}" / "d"
        folder.mkdir(parents=True)
        (folder / "data").write_bytes(b"%d" % number)
        if number % 2:
            write_manifest(folder.parent)
    write_manifest(tmp_path)
    assert files_of(tmp_path) == {
        f"process_{number}/{MANIFEST if number % 2 else 'd/data'}" for number in range(130)
    }
    (tmp_path / "process_128" / "d" / "data").write_bytes(b"other")
    with pytest.raises(CorruptionError, match="process_128"):
        CheckedDirectory(tmp_path).verify("process_128/d/data")


def test_a_file_name_need_not_be_text(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / name).write_bytes(b"hello")
    write_manifest(tmp_path)
    assert files_of(tmp_path) == {name}
    assert CheckedDirectory(tmp_path).read_bytes(name) == b"hello"


def test_whole_files_pass(covered: Path) -> None:
    directory = CheckedDirectory(covered)
    assert directory.read_bytes("a") == b"hello"
    for name in ("a", "empty", "d/chunk", "not there"):
        directory.verify(name)
    assert directory.read_bytes("not there") is None
    assert directory.read_bytes(COMMIT_MARKER) == b"done"


@pytest.mark.parametrize("name", ["a", "d/chunk"])
def test_every_damage_of_a_covered_file_is_noticed(name: str, covered: Path) -> None:
    data = (covered / name).read_bytes()
    damages = [data[:-1], data + b"\0", b"", bytes(len(data)), data[::-1]]
    damages += [
        data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :]
        for i in range(len(data))
        for bit in range(8)
    ]
    for damaged in damages:
        (covered / name).write_bytes(damaged)
        for read in (CheckedDirectory(covered).verify, CheckedDirectory(covered).read_bytes):
            with pytest.raises(CorruptionError, match="is damaged: it") as caught:
                read(name)
            assert caught.value.file == str(covered / name)


def test_another_chunk_with_a_valid_checksum_is_noticed(covered: Path) -> None:
    (covered / "d" / "chunk").write_bytes(b"DATA" + crc32c(b"DATA").to_bytes(4, "little"))
    with pytest.raises(CorruptionError, match="checksum"):
        CheckedDirectory(covered).verify("d/chunk")


def test_a_missing_covered_file_is_noticed(covered: Path) -> None:
    (covered / "a").unlink()
    directory = CheckedDirectory(covered)
    for read in (directory.verify, directory.read_bytes):
        with pytest.raises(CorruptionError, match="a is damaged: it is missing"):
            read("a")


def test_every_damage_of_the_manifest_itself_is_noticed_or_harmless(covered: Path) -> None:
    file = covered / MANIFEST
    data = file.read_bytes()
    for size in range(len(data)):
        file.write_bytes(data[:size])
        if data[:size].rstrip(b"\n") == data.rstrip(b"\n"):
            continue
        with pytest.raises(CorruptionError, match=f"{MANIFEST} is damaged"):
            read_manifest(covered)
    file.write_bytes(data)
    whole = read_manifest(covered)
    for i in range(len(data)):
        file.write_bytes(data[:i] + bytes([data[i] ^ 1 << i % 8]) + data[i + 1 :])
        with contextlib.suppress(CorruptionError):
            assert read_manifest(covered) == whole


def test_a_manifest_of_a_later_version_is_not_guessed_at(covered: Path) -> None:
    (covered / MANIFEST).write_bytes(Manifest(version=2).to_bytes())
    with pytest.raises(FormatError, match=r"format version 2.*reads up to 1.*newer"):
        read_manifest(covered)


@pytest.mark.parametrize(
    "document", ["[]", "{}", '{"format_version": "1"}', '{"format_version":1,"files":{"a":[1]}}']
)
def test_a_manifest_that_means_nothing_is_a_format_error(document: str, covered: Path) -> None:
    body = document.encode()
    (covered / MANIFEST).write_bytes(body + b"\n%08x\n" % crc32c(body))
    with pytest.raises(FormatError, match=MANIFEST):
        read_manifest(covered)


def test_a_directory_without_a_manifest_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    directory = CheckedDirectory(tmp_path)
    directory.verify("a")
    assert directory.read_bytes("a") == b"hello"


def test_files_that_check_themselves_are_left_out(tmp_path: Path) -> None:
    for name in ("d/x/y", "d2/x", "manifest.ocdbt", "z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    write_manifest(tmp_path, known=Manifest({}, ("manifest.ocdbt", "d/")))
    assert files_of(tmp_path) == {"d2/x", "z"}
    (tmp_path / "later").touch()
    write_manifest(tmp_path)
    assert files_of(tmp_path) == {"d2/x", "later", "z"}


def test_a_second_call_keeps_what_the_first_recorded(covered: Path) -> None:
    (covered / "a").write_bytes(b"HELLO")
    (covered / "b").write_bytes(b"new")
    write_manifest(covered)
    assert files_of(covered) == {"a", "b", "empty", "d/chunk"}
    with pytest.raises(CorruptionError, match="a is damaged"):
        CheckedDirectory(covered).verify("a")


def test_what_is_forgotten_is_so_on_the_disk(
    covered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def record(name: str, operation: Any) -> None:
        def recorded(*args: Any) -> None:
            done.append(name)
            operation(*args)

        monkeypatch.setattr(os, name, recorded)

    record("fsync", os.fsync)
    record("replace", os.replace)
    forget_files(covered, "d/")
    assert files_of(covered) == {"a", "empty"}
    assert done == ["fsync", "replace", "fsync"]  # the file, its name
    forget_files(covered, "d/")
    assert len(done) == 3


def test_an_item_with_a_manifest_is_covered_by_it(covered: Path) -> None:
    (covered / "item").mkdir()
    (covered / "item" / "x").write_bytes(b"x")
    write_manifest(covered / "item")
    (covered / MANIFEST).unlink()
    write_manifest(covered)
    assert files_of(covered) == {"a", "empty", "d/chunk", f"item/{MANIFEST}"}


def test_the_manifest_is_json_that_tools_can_read(covered: Path) -> None:
    body, checksum, _ = (covered / MANIFEST).read_bytes().split(b"\n")
    assert int(checksum, 16) == crc32c(body)
    document = json.loads(body)
    assert document["format_version"] == 1
    assert document["files"]["a"] == [5, crc32c(b"hello")]
    assert document["files"]["d/chunk"] == [8, crc32c(b"data")]


def test_large_files_are_checked_in_blocks(tmp_path: Path) -> None:
    data = os.urandom((1 << 22) + 5)
    (tmp_path / "large").write_bytes(data)
    write_manifest(tmp_path)
    CheckedDirectory(tmp_path).verify("large")
    with open(tmp_path / "large", "r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(bytes([data[-2] ^ 1]))
    with pytest.raises(CorruptionError, match="large is damaged"):
        CheckedDirectory(tmp_path).verify("large")


@pytest.mark.parametrize(
    "database",
    [
        [],
        "x",
        {"index": 1},
        {"index": "1", "values": "", "files": {}},
        {"index": 1, "values": "A", "files": {}},
        {"index": 1, "values": "AAA=", "files": {}},
        {"index": 1, "values": "", "files": {"d/x": "1"}},
        {"index": 1, "values": "", "files": ["d/x"]},
    ],
)
def test_a_record_of_a_database_that_is_none_is_a_format_error(
    tmp_path: Path, database: object
) -> None:
    body = json.dumps(
        {"format_version": 1, "self_checked": [], "files": {}, "database": database}
    ).encode()
    (tmp_path / MANIFEST).write_bytes(body + b"\n" + f"{crc32c(body):08x}".encode() + b"\n")
    with pytest.raises(FormatError, match=MANIFEST):
        read_manifest(tmp_path)


def test_renewing_the_record_of_an_item_keeps_all_others(covered: Path) -> None:
    (covered / "item").mkdir()
    (covered / "item" / "x").write_bytes(b"x")
    (covered / MANIFEST).unlink()
    write_manifest(covered)
    (covered / "PINNED").touch()
    with replacing_item(covered / "item"):
        assert files_of(covered) == {"a", "empty", "d/chunk"}
        (covered / "item" / "x").write_bytes(b"yy")
    assert files_of(covered) == {"a", "empty", "d/chunk", "item/x"}
    CheckedDirectory(covered).verify("item/x")


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/passwd", "", "a//b", "./a", "a\0b", "d/" + "x" * 300]
)
@pytest.mark.parametrize("field", ["files", "database"])
def test_a_manifest_cannot_name_a_file_outside_of_its_directory(
    tmp_path: Path, field: str, name: str
) -> None:
    files = {name: FileRecord(1, 1)} if field == "files" else {}
    sizes = {name: 1} if field == "database" else {}
    document = Manifest(files, database=DatabaseRecord(0, b"", sizes)).to_bytes()
    (tmp_path / MANIFEST).write_bytes(document)
    with pytest.raises(UnsafePathError, match=MANIFEST):
        read_manifest(tmp_path)


@pytest.mark.parametrize("record", [[1], [1, "2"], [-1, 2], [1, 2**32], "12", [1.5, 2]])
def test_a_record_that_no_file_can_have_is_a_format_error(tmp_path: Path, record: object) -> None:
    body = json.dumps({"format_version": 1, "self_checked": [], "files": {"a": record}}).encode()
    (tmp_path / MANIFEST).write_bytes(body + b"\n" + f"{crc32c(body):08x}".encode() + b"\n")
    with pytest.raises(FormatError, match=MANIFEST):
        read_manifest(tmp_path)


@pytest.fixture
def with_database(tmp_path: Path) -> Path:
    """A directory whose manifest records a database."""
    (tmp_path / "d").mkdir()
    for name in (OCDBT_MANIFEST, "d/x", "a"):
        (tmp_path / name).write_bytes(name.encode())
    files = {OCDBT_MANIFEST: FileRecord.of(14, crc32c(b"manifest.ocdbt"), b"cdbt")}
    database = DatabaseRecord(7, b"1234", {"d/x": 3})
    write_manifest(tmp_path, known=Manifest(files, ("d/x",), database=database))
    return tmp_path


def test_records_made_anew_keep_that_of_an_unchanged_database(with_database: Path) -> None:
    before = read_manifest(with_database)
    (with_database / "a").write_bytes(b"changed")
    (with_database / "more").write_bytes(b"more")
    renew_manifest(with_database)
    after = read_manifest(with_database)
    assert before is not None
    assert after is not None
    assert after.database == before.database
    assert set(after.files) == {OCDBT_MANIFEST, "a", "more"}
    CheckedDirectory(with_database).verify_below("")


def test_records_made_anew_are_of_all_files_if_the_database_has_changed(
    with_database: Path,
) -> None:
    (with_database / OCDBT_MANIFEST).write_bytes(b"another one")
    renew_manifest(with_database)
    after = read_manifest(with_database)
    assert after is not None
    assert after.database is None
    assert set(after.files) == {OCDBT_MANIFEST, "a", "d/x"}


def test_a_directory_without_records_gets_none_anew(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    renew_manifest(tmp_path)
    assert os.listdir(tmp_path) == ["a"]


def test_a_data_file_that_is_a_link_out_of_the_directory_is_not_looked_at(
    with_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("outside") / "secret"
    secret.write_bytes(b"123")
    (with_database / "d" / "x").unlink()
    (with_database / "d" / "x").symlink_to(secret)
    (error,) = CheckedDirectory(with_database).check_database_files()
    assert isinstance(error, UnsafePathError)
