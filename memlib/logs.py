"""What code prints and logs while it makes an artifact, kept so that it can be read where the artifact is.

On a cluster a worker's own files go away with its machine.
"""

import contextlib
import io
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TextIO

LONGEST = 2**20  # characters; of more, the last ones are kept

_record: ContextVar[io.StringIO | None] = ContextVar("record", default=None)


class _Record(io.StringIO):
    """Text of which the end is kept."""

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.tell() > 2 * LONGEST:
            kept = self.getvalue()[-LONGEST:]
            self.seek(0)
            self.truncate()
            super().write(kept)
        return written


class _Tee(io.TextIOBase):
    """Writes to a stream and into a record."""

    def __init__(self, stream: TextIO, record: io.StringIO) -> None:
        self._stream, self._record = stream, record

    def write(self, text: str) -> int:
        self._record.write(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Records what Python code in this process prints, and logs as a warning or worse; one block at a time."""
    record = _Record()
    handler = logging.StreamHandler(record)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    token = _record.set(record)
    logging.getLogger().addHandler(handler)
    try:
        with contextlib.redirect_stdout(_Tee(sys.stdout, record)), contextlib.redirect_stderr(_Tee(sys.stderr, record)):
            yield
    finally:
        logging.getLogger().removeHandler(handler)
        _record.reset(token)


def recorded() -> str:
    """What was recorded so far, "" outside of a recording."""
    record = _record.get()
    return "" if record is None else record.getvalue()[-LONGEST:]
