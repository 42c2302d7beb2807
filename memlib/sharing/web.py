"""Requests to web servers with the standard library: a timeout, a few polite repetitions, and errors of one line.

Redirections are refused, as urllib would send the credentials on to another server.
"""

import contextlib
import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from memlib.errors import RunError, UserError
from memlib.sanitize import one_line

TIMEOUT_SECONDS = 30.0
TIMES_AT_MOST = 2.0  # timeouts that a whole answer may take
WAITS = (1.0, 2.0, 4.0)
"""Seconds before each repetition, unless the server names another time (Retry-After)."""
LONGEST_WAIT = 30.0
MOST_BYTES = 2**24  # read of an answer
BUSY = frozenset({429, 503})  # the server did not act on the request
PASSING = BUSY | {502, 504}  # it may have acted on it
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class WebError(RunError):
    """A request that failed.

    Attributes:
        status: status of the server's answer; None if there was no answer.
        content: the answer.
        wait: seconds after which the server asks for a repetition.
    """

    def __init__(self, message: str, *, status: int | None = None, content: bytes = b"", wait: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.content, self.wait = status, content, wait


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirection, so that it ends as an error."""

    def redirect_request(self, *_: Any) -> None:
        """Return None: no request follows."""


_opener = urllib.request.build_opener(_NoRedirect)


def check_url(url: str, *, name: str, remedy: str) -> None:
    """Check that an address is one of the web, without credentials; a message never repeats the address.

    Args:
        remedy: what to do with credentials instead.

    Raises:
        UserError: if it is anything else.
    """
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # of a port
        is_web = False
    if not is_web or any(character <= " " for character in url):
        raise UserError(f"{name} is not an address like https://host:5000")
    if "@" in parts.netloc:
        raise UserError(f"{name} contains credentials (before @); {remedy}")


def host_of(url: str) -> str:
    """Return scheme and host of an address; its path may be secret, as those of webhooks are."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def send(
    method: str,
    url: str,
    body: bytes | None = None,
    *,
    headers: Mapping[str, str] = NO_HEADERS,
    repeatable: bool = True,
    waits: Sequence[float] = WAITS,
    timeout: float = TIMEOUT_SECONDS,
) -> bytes:
    """Send a request and return the body of the answer; repeat it where the failure may pass.

    Args:
        repeatable: whether the request may reach the server twice; otherwise it is repeated only if the server refused it.
        waits: seconds before each repetition.
        timeout: seconds for which a silent server is waited for.

    Raises:
        WebError: if all attempts failed.
    """
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)
    for wait in waits:
        try:
            return _once(request, timeout)
        except WebError as error:
            if error.status not in (BUSY if not repeatable else (None, *PASSING)):
                raise
            time.sleep(min(max(wait, error.wait), LONGEST_WAIT))
    return _once(request, timeout)


def _once(request: urllib.request.Request, timeout: float) -> bytes:
    """Send a request once, in a thread: the timeouts of sockets begin again with each byte of a slow answer."""
    answer: Future[bytes] = Future()

    def work() -> None:
        try:
            answer.set_result(_sent(request, timeout))
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        return answer.result(TIMES_AT_MOST * timeout)
    except TimeoutError:
        host, seconds = host_of(request.full_url), TIMES_AT_MOST * timeout
        raise WebError(f"{host} has not answered within {seconds:.0f} s") from None


def _sent(request: urllib.request.Request, timeout: float) -> bytes:
    host = host_of(request.full_url)
    try:
        with _opener.open(request, timeout=timeout) as answer:
            content: bytes = answer.read(MOST_BYTES)
            return content
    except urllib.error.HTTPError as error:
        content, wait = b"", 0.0
        with contextlib.suppress(OSError, http.client.HTTPException):
            content = error.read(MOST_BYTES)
        with contextlib.suppress(ValueError):
            wait = float(error.headers.get("Retry-After") or 0)
        moved = " (it redirects; give the address that it redirects to)" if 300 <= error.code < 400 else ""
        raise WebError(f"{host} answered {error.code}{moved}", status=error.code, content=content, wait=wait) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise WebError(f"{host} cannot be reached ({one_line(str(reason)) or type(reason).__name__})") from None
