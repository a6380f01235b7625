"""A server that speaks the protocol of Google's store; prints its port.

It is the package gcp-storage-emulator, with what Google's own servers do and it does not: a range
behind the end of an object is answered with 416, an object may be empty, and `startOffset` and
`endOffset` bound a listing (without them TensorStore would delete everything). At every change the
package writes a description of all objects; this server does not.
"""

from __future__ import annotations

import re
import threading
from http import HTTPStatus
from http.server import HTTPServer
from typing import Any

from gcp_storage_emulator.handlers import objects

_download: Any = objects.download
_ls: Any = objects.ls


def download(request: Any, response: Any, storage: Any, **given: Any) -> None:
    _download(request, response, storage, **given)
    found = re.fullmatch(r"bytes (\d+)-(-?\d+)/\d+", response._headers.get("Content-Range", ""))
    if found is not None and int(found[2]) < int(found[1]):
        del response._headers["Content-Range"]
        response.status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE


class Within:
    """The storage, of which a request lists a part."""

    def __init__(self, storage: Any, start: str, end: str) -> None:
        self._storage, self._start, self._end = storage, start, end

    def get_file_list(self, *args: Any, **given: Any) -> Any:
        files, prefixes = self._storage.get_file_list(*args, **given)
        return [file for file in files if self._has(file["name"])], prefixes

    def _has(self, name: str) -> bool:
        return name >= self._start and (not self._end or name < self._end)


def ls(request: Any, response: Any, storage: Any, **given: Any) -> None:
    start, end = (request.query.get(name, [""])[0] for name in ("startOffset", "endOffset"))
    _ls(request, response, Within(storage, start, end), **given)


objects.download, objects.ls = download, ls

from gcp_storage_emulator import server  # noqa: E402 - makes its table of handlers from those

_read_data: Any = server._read_data


def read_data(handler: Any, query: Any) -> Any:
    data = _read_data(handler, query)
    return b"" if data is None and "media" in query.get("uploadType", ()) else data


server._read_data = read_data


storage: Any = server.Storage
storage._write_config_to_file = lambda _: None
HTTPServer.request_queue_size = (
    128  # a connection that is not accepted is tried again a second later
)

if __name__ == "__main__":
    with server.create_server("127.0.0.1", 0, in_memory=True) as running:
        listening: Any = running._api._httpd
        print(listening.server_port, flush=True)
        threading.Event().wait()
