"""News of parts under way: workers put them into Ray's own key-value table, where the driver looks them up.

Any worker of any cluster reaches the table, and no further process is needed. Workers load this module.
"""

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.progress import Bars

NEWS_SECONDS = 0.5  # between two looks of the driver, and between two entries of a part
MOST_LOOKED_UP = 64  # parts per look
NAMESPACE = b"memlib"


@dataclass(frozen=True)
class Told:
    """The entry of one part in the table."""

    key: bytes  #: key of the entry.

    def reporter(self) -> Callable[..., None]:
        """Return, on a worker, a function that reports progress: (done, total, note). Failures to report are ignored."""
        started = time.monotonic()
        last = 0.0

        def tell(done: float, total: float, note: str = "") -> None:
            nonlocal last
            now = time.monotonic()
            if now - last < NEWS_SECONDS and done < total:
                return
            last = now
            with contextlib.suppress(Exception):  # it is for display only
                from ray.experimental.internal_kv import _internal_kv_put

                entry = json.dumps({"done": done, "total": total, "note": note, "seconds": now - started})
                _internal_kv_put(self.key, entry.encode(), overwrite=True, namespace=NAMESPACE)

        return tell


class News:
    """The driver's view of the parts of a step: it shows their progress, and counts the worker time that they take.

    Args:
        names: names of the parts in the display.
        bars: display of the progress.
        spend: called with (workers, seconds) for the time that parts have taken.
    """

    def __init__(self, names: Sequence[str], bars: "Bars", spend: Callable[[int, float], None]) -> None:
        self._names, self._bars, self._spend = names, bars, spend
        self._prefix = f"memlib-news-{uuid.uuid4().hex}-".encode()
        self._totals: dict[int, int] = {}
        self._spent: dict[int, float] = {}
        self._tries: dict[int, int] = {}
        self._looked = time.monotonic()

    def of(self, number: int) -> Told:
        """Return the entry of a new try of a part; what an earlier try took stays spent, and its entry is not read again."""
        self._spent[number] = 0.0
        self._tries[number] = self._tries.get(number, 0) + 1
        return Told(self._key(number))

    def look(self, running: Iterable[int]) -> None:
        """Look up the parts under way, unless this was done moments ago."""
        if time.monotonic() - self._looked < NEWS_SECONDS:
            return
        self._looked = time.monotonic()
        for number in list(running)[:MOST_LOOKED_UP]:
            entry = self._entry(number)
            if entry is not None:
                self._totals[number] = entry["total"]
                self._bars.move(self._names[number], entry["done"], entry["total"], entry["note"])
                self._count(number, entry["seconds"])

    def _entry(self, number: int) -> dict[str, Any] | None:
        from ray.experimental.internal_kv import _internal_kv_get

        with contextlib.suppress(Exception):  # Ray is slow, or shutting down
            found = _internal_kv_get(self._key(number), namespace=NAMESPACE)
            return None if found is None else dict(json.loads(found))
        return None

    def _key(self, number: int) -> bytes:
        return self._prefix + f"{number}-{self._tries.get(number, 0)}".encode()

    def end(self, number: int, seconds: float) -> None:
        """Show that a part has ended, and count its time."""
        total = self._totals.get(number) or max(self._totals.values(), default=1)
        self._bars.move(self._names[number], total, total)
        self._count(number, seconds)

    def _count(self, number: int, seconds: float) -> None:
        before = self._spent.get(number, 0.0)
        if seconds > before:
            self._spent[number] = seconds
            self._spend(1, seconds - before)

    def clear(self) -> None:
        """Delete all entries from the table."""
        from ray.experimental.internal_kv import _internal_kv_del

        with contextlib.suppress(Exception):
            _internal_kv_del(self._prefix, del_by_prefix=True, namespace=NAMESPACE)


@contextlib.contextmanager
def hearing(names: Sequence[str], bars: "Bars", spend: Callable[[int, float], None]) -> Iterator[News]:
    """Yield the news of the parts of a step; their entries are deleted at the end of the block."""
    news = News(names, bars, spend)
    try:
        yield news
    finally:
        news.clear()
