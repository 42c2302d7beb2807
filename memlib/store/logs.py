"""Recording of the output printed and logged while an artifact is computed, so that it can be stored with the artifact.

On a cluster, a worker's own files are lost with its machine.
"""

import contextlib
import io
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TextIO

LONGEST = 2**20  # characters; only the end of longer output is kept

_record: ContextVar[io.StringIO | None] = ContextVar("record", default=None)


class _Record(io.StringIO):
    """A text buffer that discards its beginning once it exceeds twice LONGEST."""

    def write(self, text: str) -> int:
        length = super().write(text)
        if self.tell() > 2 * LONGEST:
            kept = self.getvalue()[-LONGEST:]
            self.seek(0)
            self.truncate()
            super().write(kept)
        return length


class _Tee(io.TextIOBase):
    """A stream that copies what is written to it into a record."""

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
    """Record what Python code in this process prints, and what it logs at level WARNING or above; blocks must not overlap."""
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
    """Return the last LONGEST characters recorded so far; "" outside a `recording` block."""
    record = _record.get()
    return "" if record is None else record.getvalue()[-LONGEST:]
