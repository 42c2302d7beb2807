"""Interrupts by signals, which libraries may turn into errors of their own."""

import contextlib
from collections.abc import Iterator
from typing import NoReturn

_stopping = False  # whether a signal has asked this process to stop


def interrupt() -> NoReturn:
    """Raise an interrupt, as a signal handler, and remember that one was asked for."""
    global _stopping
    _stopping = True
    raise KeyboardInterrupt


@contextlib.contextmanager
def keep_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt again where a library turned it into an error of its own, as pydantic's serializer does."""
    try:
        yield
    except Exception as error:
        if _stopping:
            raise KeyboardInterrupt from error
        raise
