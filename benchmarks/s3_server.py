"""A server that speaks the protocol of S3; prints its port.

It is moto with S3 alone: its own command looks through all services at every request. It keeps
connections open, as S3 does, and parses the time of an object once: moto formats it when the object
is written and parses it in every list, which is a third of the time of a list. It holds objects in
memory: moto reads all of a large one from a file for every range.
"""

from __future__ import annotations

import functools
import io
import logging

from botocore import utils
from moto.moto_server.werkzeug_app import create_backend_app
from moto.s3.models import FakeKey
from werkzeug.serving import WSGIRequestHandler, make_server


def _hold(key: FakeKey, value: bytes) -> None:
    vars(key).update(_value_buffer=io.BytesIO(value), contentsize=len(value))


if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not every request
    utils.parse_timestamp = functools.lru_cache(10_000)(utils.parse_timestamp)
    type.__setattr__(FakeKey, "value", vars(FakeKey)["value"].setter(_hold))
    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    server = make_server("127.0.0.1", 0, create_backend_app("s3"), threaded=True)
    print(server.port, flush=True)
    server.serve_forever()
