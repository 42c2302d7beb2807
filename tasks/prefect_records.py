"""Traces of erased examples in Prefect's own database, whose flow runs keep the recipes with which they were called."""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

DATABASE = "prefect.db"
URL, HOME = "PREFECT_API_DATABASE_CONNECTION_URL", "PREFECT_HOME"
SECONDS = 30.0  # for which a server may hold the database
KEPT = frozenset({"deployment", "block_document", "work_pool", "flow", "alembic_version"})
"""Tables of what users set up in Prefect, of which nothing is deleted."""


def local_database() -> Path | None:
    """Return the SQLite file in which Prefect records runs on this machine; None if there is none."""
    url = os.environ.get(URL, "")
    if url and not url.startswith("sqlite"):
        return None
    path = Path(url.partition(":///")[2].partition("?")[0]) if url else Path(os.environ.get(HOME) or "~/.prefect") / DATABASE
    path = path.expanduser()
    return path if path.is_file() else None


def count_rows(database: Path, names: Callable[[str], bool]) -> tuple[int, int]:
    """Return how many rows of a database name an example, and how many of these are in tables that are kept.

    Args:
        database: Prefect's SQLite file.
        names: function that decides whether a text names an example.
    """
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=SECONDS)) as opened:
        found = [(table, row) for table, row in _rows(opened, names)]
    return len(found), sum(table in KEPT for table, _ in found)


def delete_rows(database: Path, names: Callable[[str], bool]) -> None:
    """Delete the rows that name an example, with all that depends on them, and overwrite the space that they took."""
    with contextlib.closing(sqlite3.connect(database, timeout=SECONDS, isolation_level=None)) as opened:
        opened.execute("pragma foreign_keys = on")
        opened.execute("begin immediate")
        for table, row in list(_rows(opened, names)):
            if table not in KEPT:
                opened.execute(f'delete from "{table}" where rowid = ?', (row,))
        opened.execute("commit")
        opened.execute("vacuum")
        opened.execute("pragma wal_checkpoint(truncate)")


def _rows(opened: sqlite3.Connection, names: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
    """Yield table and number of each row in which a text names an example."""
    for (table,) in opened.execute("select name from sqlite_master where type = 'table'").fetchall():
        for number, *values in opened.execute(f'select rowid, * from "{table}"'):
            texts = (
                value if isinstance(value, str) else value.decode("utf-8", "replace") for value in values if _is_text(value)
            )
            if any(map(names, texts)):
                yield table, number


def _is_text(value: object) -> bool:
    return isinstance(value, str | bytes)
