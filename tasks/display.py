"""Prefect, which shows and arranges runs, may go away: the computing goes on without it, and is in the store."""

import logging
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

Out = TypeVar("Out")
LOOKS, LOOK_SECONDS = 3, 2.0  # that a server is given to answer
_gone = threading.Event()


def is_gone(error: BaseException | None = None) -> bool:
    """Whether Prefect's server has stopped answering; once it has, nobody waits for it again.

    Args:
        error: what was raised while it was told something. Prefect's client has tried again by then, so that a server which
            says that it cannot is as good as gone.
    """
    if _gone.is_set():
        return True
    if not _is_refusal(error):
        for look in range(LOOKS):
            if _answers():
                return False
            if look + 1 < LOOKS:
                time.sleep(LOOK_SECONDS)
    _gone.set()
    logging.getLogger("prefect").setLevel(logging.CRITICAL + 1)  # it would say so again and again
    logging.getLogger("prefect._internal").setLevel(logging.CRITICAL + 1)
    print("warning: Prefect's server does not answer any more; the run goes on without it", file=sys.stderr)
    return True


def _is_refusal(error: BaseException | None) -> bool:
    """Whether the server said that it is overloaded or broken."""
    if error is None:
        return False
    from prefect.exceptions import PrefectHTTPStatusError

    return isinstance(error, PrefectHTTPStatusError) and error.response.status_code >= 500


def gone() -> bool:
    """Whether it has been found gone; nobody is asked."""
    return _gone.is_set()


def _answers() -> bool:
    url = _api()
    if url is None:
        return True
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=LOOK_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True  # what it thinks of us is not the question
    except (OSError, ValueError):
        return False


def _api() -> str | None:
    """Where the server is: the one that is configured, or the one that this process has started."""
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import PREFECT_API_URL

    if configured := PREFECT_API_URL.value():
        return str(configured)
    for server in list(SubprocessASGIServer._instances.values()):
        if server.running or server.server_process is not None:
            return str(server.api_url)
    return None


def shown(through_prefect: Callable[[Callable[[], Out]], Out], work: Callable[[], Out]) -> Out:
    """Does some work as Prefect's, or without Prefect where its server is gone; never twice.

    Args:
        through_prefect: calls what it is given as a flow or task run.
        work: what is to be done.
    """
    if is_gone():
        return work()
    outcome: list[Out] = []
    failure: list[BaseException] = []

    def noted() -> Out:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)
            raise
        return outcome[0]

    try:
        return through_prefect(noted)
    except Exception as error:
        if failure or not is_gone(error):
            raise
        return outcome[0] if outcome else work()


def quietly(tell: Callable[..., Any], *facts: Any, **named: Any) -> None:
    """Tells Prefect something that only it shows."""
    if not _gone.is_set():
        try:
            tell(*facts, **named)
        except Exception as error:
            if not is_gone(error):
                raise
