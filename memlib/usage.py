"""What a piece of work took: seconds, CPU, memory, bytes. A line in the manifest of what it made."""

import contextlib
import resource
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any


class Usage:
    """Measures from its making on, in this process and its children; see `taken`."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), _cpu_seconds()
        self.read: dict[str, int] = {}  # bytes of each file that was read
        self.earlier = 0.0  # seconds that interrupted attempts at the same work had spent
        cuda = _cuda()
        if cuda is not None:
            cuda.reset_peak_memory_stats()

    def taken(self) -> dict[str, float | int | None]:
        """seconds, cpu_seconds and bytes_in since the start; peak_memory_bytes of the process (the highest it ever had);
        gpu_peak_memory_bytes since the start, None without a GPU."""
        cuda = _cuda()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return {
            "seconds": round(self.earlier + time.monotonic() - self._wall, 3),
            "cpu_seconds": round(_cpu_seconds() - self._cpu, 3),
            "peak_memory_bytes": peak if sys.platform == "darwin" else peak * 1024,
            "gpu_peak_memory_bytes": None if cuda is None else int(cuda.max_memory_allocated()),
            "bytes_in": sum(self.read.values()),
        }


_current: ContextVar[Usage | None] = ContextVar("usage", default=None)


@contextlib.contextmanager
def measuring() -> Iterator[Usage]:
    """Measures the block; inside a block that is measured already it is part of that one."""
    running = _current.get()
    if running is not None:
        yield running
        return
    token = _current.set(usage := Usage())
    try:
        yield usage
    finally:
        _current.reset(token)


def note_read(path: str, size: int) -> None:
    """Counts a file that the work under way has read."""
    usage = _current.get()
    if usage is not None:
        usage.read[path] = size


def _cpu_seconds() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _cuda() -> Any:
    """torch.cuda where it is in use; this module loads nothing heavy."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
