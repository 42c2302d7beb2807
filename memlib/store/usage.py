"""Resource usage of a piece of work (time, CPU, memory, bytes read), recorded in the manifest of its artifact."""

import contextlib
import resource
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any


class Usage:
    """A measurement of this process and its children that starts when the object is created; see `taken`."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), _cpu_seconds()
        self.read: dict[str, int] = {}  # bytes of each file that was read
        self.earlier = 0.0  # seconds spent by interrupted attempts at the same work
        cuda = _cuda()
        if cuda is not None:
            cuda.reset_peak_memory_stats()

    def taken(self) -> dict[str, float | int | None]:
        """Return seconds, cpu_seconds and bytes_in since the start; peak_memory_bytes of the process since it began; and
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
    """Measure the block; a nested block is counted as part of the outer one."""
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
    """Count a file as read by the measured work."""
    usage = _current.get()
    if usage is not None:
        usage.read[path] = size


def _cpu_seconds() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _cuda() -> Any:
    """Return torch.cuda if it is already in use; this module never imports torch."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None
