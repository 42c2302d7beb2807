"""A file of a store of which but parts are read."""

import io
from collections.abc import Callable
from typing import Any


class RangeFile(io.RawIOBase):
    """A file that is read by ranges, wherever it is, and never as a whole.

    Args:
        read: returns the bytes from one place to before another.
        size: of the file, in bytes.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size, self._place = read, size, 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Return the place from which is read next."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place, and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read what fits into a buffer, and return how many bytes that was."""
        end = min(self._size, self._place + len(buffer))
        if end <= self._place:
            return 0
        found = self._read(self._place, end)
        buffer[: len(found)] = found
        self._place += len(found)
        return len(found)
