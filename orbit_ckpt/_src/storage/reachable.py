"""Check that the server of an object store answers, before its first request.

TensorStore retries a failed request for about a minute, which suits an overloaded store. A server
whose name is unknown or that refuses connections is reported within seconds instead.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from orbit_ckpt._src.errors import StorageError

_DEADLINE_S = 6.0
_PAUSE_S = 0.25
_PORTS = {"http": 80, "https": 443}


def check_reachable(where: str, endpoint: str) -> None:
    """Check that a connection to a server can be opened; a proxy is not asked.

    Args:
        where: What messages call the store.
        endpoint: The URL of the server.

    Raises:
        StorageError: No connection was opened within some seconds.
    """
    url = urlsplit(endpoint)
    host = url.hostname
    if host is None or _is_behind_proxy(url.scheme, host):
        return
    port = url.port or _PORTS.get(url.scheme, 443)
    found: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
    threading.Thread(  # resolving a name has no timeout of its own
        target=lambda: found.put(_connect(host, port)), name="orbit_ckpt-connect", daemon=True
    ).start()
    try:
        error = found.get(timeout=_DEADLINE_S + _PAUSE_S)
    except queue.Empty:
        error = TimeoutError("no answer")
    if error is not None:
        raise StorageError(
            f"{where}: could not connect to {host}:{port} within {_DEADLINE_S:g} s ({error}): "
            "check the endpoint (AWS_ENDPOINT_URL of s3://) and the network, and try again."
        )


def _is_behind_proxy(scheme: str, host: str) -> bool:
    proxies = getproxies()
    return bool({scheme, "all"} & proxies.keys()) and not proxy_bypass(host)


def _connect(host: str, port: int) -> OSError | None:
    """Connect, retrying until the deadline; return what prevented it."""
    deadline = time.monotonic() + _DEADLINE_S
    pause = _PAUSE_S
    while True:
        try:
            left = max(deadline - time.monotonic(), _PAUSE_S)
            socket.create_connection((host, port), timeout=left).close()
        except OSError as error:
            if time.monotonic() + pause >= deadline:
                return error
        else:
            return None
        time.sleep(pause)
        pause *= 2
