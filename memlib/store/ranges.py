"""Read access to parts of a file of a store."""

import io
from collections.abc import Callable
from typing import Any


class RangeFile(io.RawIOBase):
    """A read-only file, local or remote, that fetches only the requested ranges.

    Args:
        read: returns the bytes from a start position up to, but excluding, an end position.
        size: size of the file in bytes.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size, self._place = read, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the current position."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as fit into `buffer` and return their number."""
        end = min(self._size, self._place + len(buffer))
        if end <= self._place:
            return 0
        data = self._read(self._place, end)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)
