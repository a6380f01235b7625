"""The contract of clients of object stores, see `orbit_ckpt.stores.ObjectClient`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.bucket import temporary_store
from orbit_ckpt.stores import ObjectClient
from orbit_ckpt.testing.comparison import expect_same
from orbit_ckpt.testing.promises import expect, promised

_DATA = bytes(range(256)) * 4
_ODD_KEYS = ("a b", "ü/ß", "a%2Fb", "a+b&c=d#e?f", "x.y-z_0/~", "a/b/c/d")
_TREE = {"w": np.arange(1000.0).reshape(10, 100), "step": 3, "name": "a"}


class ObjectClientContract:
    """Tests of the client of a store.

    Subclass it with a class whose name begins with `Test`, and define the fixture `client`.

    Example:
        ```python
        class TestMine(ObjectClientContract):
            @pytest.fixture
            def client(self):
                return MyClient("bucket-for-tests")
        ```
    """

    many: int = 1100
    """Number of objects to list; more than a store returns in one answer."""

    @pytest.fixture
    def client(self) -> ObjectClient:
        """The client of an empty bucket."""
        raise NotImplementedError

    @promised
    def test_read(self, client: ObjectClient) -> None:
        """A read returns the whole object, or None if it does not exist."""
        client.write("a/b", _DATA)
        client.write("empty", b"")
        found = [client.read("a/b"), client.read("empty"), client.read("a"), client.read("a/b/c")]
        expect(found == [_DATA, b"", None, None], found=_short(found), expected="what was written")

    @promised
    def test_read_ranges(self, client: ObjectClient) -> None:
        """A read of a range returns exactly its bytes, fewer where the object ends."""
        client.write("a", _DATA)
        for start, stop in [(0, 1), (10, 20), (1000, 2000), (1024, 1030), (5000, 5001), (7, None)]:
            found = client.read("a", start, stop)
            expected = _DATA[start:stop]
            expect(
                found == expected,
                found=f"{_short(found)} for the bytes {start} to {stop}",
                expected=_short(expected),
            )
        found = client.read("missing", 1, 2)
        expect(found is None, found=f"{found!r} for a missing object", expected="None")

    @promised
    def test_size(self, client: ObjectClient) -> None:
        """The size of an object is the number of its bytes, None if it does not exist."""
        client.write("a", _DATA)
        client.write("b", b"")
        found = [client.size("a"), client.size("b"), client.size("c")]
        expect(found == [len(_DATA), 0, None], found=found, expected=[len(_DATA), 0, None])

    @promised
    def test_version(self, client: ObjectClient) -> None:
        """The version of an object changes with every write of other bytes, None without one."""
        versions = [client.version("a")]
        for data in (b"1", b"2", b"3"):
            client.write("a", data)
            versions.append(client.version("a"))
        is_right = versions[0] is None and None not in versions[1:]
        is_right = is_right and len(set(versions)) == len(versions)
        expect(is_right, found=versions, expected="None, then three different values")
        expect(
            client.version("a") == versions[-1], found="another", expected="the same if asked again"
        )

    @promised
    def test_write_replaces(self, client: ObjectClient) -> None:
        """A write replaces the whole object."""
        client.write("a", _DATA)
        client.write("a", b"short")
        found = client.read("a")
        expect(found == b"short", found=_short(found), expected=b"short")

    @promised
    def test_delete(self, client: ObjectClient) -> None:
        """A deleted object is gone at once, and deleting a missing one does nothing."""
        client.write("a", _DATA)
        client.write("ab", _DATA)
        client.delete("a")
        client.delete("a")
        client.delete("never")
        found = [client.read("a"), client.size("a"), client.version("a"), sorted(client.list(""))]
        expect(found == [None, None, None, ["ab"]], found=_short(found), expected="only 'ab'")

    @promised
    def test_list(self, client: ObjectClient) -> None:
        """A listing has the full keys of all objects that begin with the prefix, and no others."""
        keys = ["a/b", "a/c/d", "ab", "b"]
        for key in keys:
            client.write(key, b"1")
        for prefix in ("", "a", "a/", "a/c", "b", "c", "a/b"):
            found = sorted(client.list(prefix))
            expected = [key for key in keys if key.startswith(prefix)]
            expect(found == expected, found=f"{found} for the prefix {prefix!r}", expected=expected)

    @promised
    def test_long_list(self, client: ObjectClient) -> None:
        """A listing is complete however many objects there are."""
        with ThreadPoolExecutor(16) as pool:
            for n in range(self.many):
                pool.submit(client.write, f"many/{n}", b"1")
        found = len(set(client.list("many/")))
        expect(found == self.many, found=f"{found} objects", expected=f"{self.many} objects")

    @promised
    @pytest.mark.parametrize("key", _ODD_KEYS)
    def test_odd_keys(self, client: ObjectClient, key: str) -> None:
        """A key may have any characters of a name: spaces, accents, percent and question marks."""
        client.write(f"odd/{key}", _DATA)
        found = client.read(f"odd/{key}"), list(client.list("odd/"))
        expect(found == (_DATA, [f"odd/{key}"]), found=_short(found), expected=f"odd/{key}")

    @promised
    def test_threads(self, client: ObjectClient) -> None:
        """Requests may come from several threads at once."""
        keys = [f"t/{n}" for n in range(64)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(client.write, keys, [key.encode() * 1000 for key in keys]))
            found = list(pool.map(client.read, keys))
        wrong = [k for k, data in zip(keys, found, strict=True) if data != k.encode() * 1000]
        expect(not wrong, found=f"{wrong[:3]} read wrongly", expected="what each thread wrote")

    @pytest.fixture
    def url(self, client: ObjectClient) -> Iterator[str]:
        """The URL of the bucket, while it is registered as a store."""
        scheme = f"contract-{secrets.token_hex(4)}"
        with temporary_store(scheme, lambda _: client):
            yield f"{scheme}://bucket"

    @promised
    def test_checkpoints(self, url: str) -> None:
        """Checkpoints are saved, checked, replaced, loaded and deleted as on a disk."""
        ocp.save(f"{url}/run/1", _TREE)
        ocp.save(f"{url}/run/1", {"w": np.zeros(3)}, overwrite=True)
        ocp.save(f"{url}/run/2", _TREE)
        report = ocp.verify(f"{url}/run/2")
        expect(bool(report), found=str(report), expected="an intact checkpoint")
        expect_same(ocp.load(f"{url}/run/2"), _TREE, "the checkpoint")
        expect_same(ocp.load(f"{url}/run/1"), {"w": np.zeros(3)}, "the replaced checkpoint")
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        with ocp.CheckpointManager(f"{url}/managed", options=options) as manager:
            for step in range(4):
                manager.save(step, args=ocp.args.StandardSave(_TREE))
            manager.wait_until_finished()
            found = manager.all_steps()
        expect(list(found) == [2, 3], found=list(found), expected=[2, 3])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 80 else f"{text[:80]}..."
