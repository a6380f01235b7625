"""Check that the server of an object store answers, before and during its first request.

Failed requests are repeated for about a minute, which suits an overloaded store. A server whose
name is unknown or that refuses connections is reported within seconds instead, and one that is
silent is named in the log.
"""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from orbit_ckpt._src.errors import StorageError

T = TypeVar("T")

_DEADLINE_S = 6.0
_SILENT_S = 5.0
"""How long a server may not answer its first request before the log says so."""

_PAUSE_S = 0.25
_PORTS = {"http": 80, "https": 443}

_logger = logging.getLogger(__name__)


class FirstAnswer:
    """Waits for requests to a server, and logs once if it has not answered any for seconds.

    Args:
        server: The URL of the server; empty if there is none.
    """

    def __init__(self, server: str = "") -> None:
        self._server = server
        self._is_known = not server  # has answered, or was said not to

    def wait(self, result: Callable[[float], T], where: str, deadline_s: float) -> T:
        """Return the result of a request.

        Args:
            result: Waits for it at most some seconds.
            where: What is requested.
            deadline_s: Maximum seconds to wait.

        Raises:
            TimeoutError: There is none in time.
        """
        if not self._is_known and deadline_s > _SILENT_S:
            try:
                found = result(_SILENT_S)
            except TimeoutError:
                was_known, self._is_known = self._is_known, True
            else:
                self._is_known = True
                return found
            if not was_known:
                _logger.warning(
                    "%s: no answer from %s for %g s; waiting up to %g s",
                    *(where, describe_route(self._server), _SILENT_S, deadline_s),
                )
            deadline_s -= _SILENT_S
        return result(deadline_s)


def check_reachable(where: str, endpoint: str) -> None:
    """Check that a connection to a server, or to the proxy in front of it, can be opened.

    Args:
        where: What messages call the store.
        endpoint: The URL of the server.

    Raises:
        StorageError: No connection was opened within some seconds.
    """
    url = urlsplit(endpoint)
    if url.hostname is None:
        return
    what, advice = "", "check the endpoint (AWS_ENDPOINT_URL of s3://)"
    variable, proxy = _proxy_of(url.scheme, url.hostname)
    if proxy:
        url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        what, advice = "the proxy ", f"check the variable {variable} (NO_PROXY has exceptions)"
    host = url.hostname or ""
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
            f"{where}: could not connect to {what}{host}:{port} within {_DEADLINE_S:g} s "
            f"({error}): {advice} and the network, and try again."
        )


def describe_route(endpoint: str) -> str:
    """Return where requests to a server go, for messages: the server, and the proxy if any."""
    url = urlsplit(endpoint)
    variable, proxy = _proxy_of(url.scheme, url.hostname or "")
    if not proxy:
        return endpoint
    host = proxy.rpartition("@")[2]  # without a password
    return f"{endpoint} through the proxy {host} of {variable}"


def _proxy_of(scheme: str, host: str) -> tuple[str, str]:
    """Return the variable that names the proxy in front of a server, and its URL; else blanks."""
    proxies = getproxies()
    for name in (scheme, "all"):
        if proxies.get(name) and not proxy_bypass(host):
            return f"{name.upper()}_PROXY", proxies[name]
    return "", ""


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
