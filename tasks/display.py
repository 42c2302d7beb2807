"""Calls to Prefect that survive the loss of its server: the run continues without it, and its results are in the store."""

import functools
import logging
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

Out = TypeVar("Out")
LOOKS, LOOK_SECONDS = 3, 2.0  # health checks before a server counts as gone, and the time limit of each
LOGGER = "memlib.prefect"
_gone = threading.Event()


def is_gone(error: BaseException | None = None) -> bool:
    """Return whether Prefect's server has stopped answering; once it has, it is never waited for again.

    Args:
        error: error raised by a call to the server. Prefect's client has already retried by then, so a server that answers
            with a server error counts as gone.
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
    logging.getLogger("prefect").setLevel(logging.CRITICAL + 1)  # it would repeat the error
    logging.getLogger("prefect._internal").setLevel(logging.CRITICAL + 1)
    print("warning: Prefect's server no longer responds; the run continues without it", file=sys.stderr)
    return True


def _is_refusal(error: BaseException | None) -> bool:
    """Return whether the server answered that it is overloaded or broken."""
    if error is None:
        return False
    from prefect.exceptions import PrefectHTTPStatusError

    return isinstance(error, PrefectHTTPStatusError) and error.response.status_code >= 500


def gone() -> bool:
    """Return whether the server was already found gone, without a request to it."""
    return _gone.is_set()


def _answers() -> bool:
    url = _api()
    if url is None:
        return True
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=LOOK_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True  # any answer will do
    except (OSError, ValueError):
        return False


def _api() -> str | None:
    """Return the address of the server: the configured one, or the one that this process has started."""
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import PREFECT_API_URL

    if configured := PREFECT_API_URL.value():
        return str(configured)
    for server in list(SubprocessASGIServer._instances.values()):
        if server.running or server.server_process is not None:
            return str(server.api_url)
    return None


def shown(through_prefect: Callable[[Callable[[], Out]], Out], work: Callable[[], Out]) -> Out:
    """Do some work through Prefect, or without Prefect if its server is gone; never do it twice.

    Args:
        through_prefect: calls its argument as a flow or task run.
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
    """Send Prefect information that is for display only; ignore errors if its server is gone."""
    if not _gone.is_set():
        try:
            tell(*facts, **named)
        except Exception as error:
            if not is_gone(error):
                raise


def tell(text: str, level: int = logging.INFO) -> None:
    """Add a line to the logs of the current Prefect run, if there is one whose server answers."""
    from prefect.context import FlowRunContext, TaskRunContext

    if not _gone.is_set() and (TaskRunContext.get() or FlowRunContext.get()):
        _logger().log(level, "%s", text)


@functools.cache
def _logger() -> logging.Logger:
    """Return a logger whose records go to Prefect's server alone, in batches.

    Prefect's own loggers of runs print to the console as well, and add tracebacks, which may quote data.
    """
    from prefect.logging.handlers import APILogHandler

    logging.raiseExceptions = False  # Prefect would print each batch that a lost server does not take
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(APILogHandler())
    return logger
