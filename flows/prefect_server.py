"""The Prefect server of a run: one that is configured must answer, and the SQLite database of one that it starts is checked.

Prefect waits for minutes, in silence, for a database that another process has locked, for a damaged one, and for one of a
newer Prefect. A new database is a copy, which need not migrate.
"""

import contextlib
import os
import re
import sqlite3
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from memlib.errors import EngineLost, UserError
from memlib.store.permissions import PRIVATE, make_folder, user_folder

MOST_CHECKED = 2**26  # bytes of a database that is searched for damage, which takes about a second
LOCKED_SECONDS = 5.0  # other runs lock it for moments
PREFIX = "sqlite+aiosqlite:///"
MIGRATIONS = "server/database/_migrations/versions/sqlite"


def check_prefect() -> None:
    """Check that the Prefect server answers, if one is configured, and else that Prefect may start one."""
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_ENABLED

        if not (PREFECT_API_URL.value() or PREFECT_SERVER_EPHEMERAL_ENABLED.value()):
            raise UserError(
                "PREFECT_API_URL is not set, and PREFECT_SERVER_ALLOW_EPHEMERAL_MODE is off, so that there is no Prefect "
                "server; set one of them"
            )
        return
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=10):
            pass
    except urllib.error.HTTPError:
        pass  # it answers; Prefect itself reports whether it accepts the credentials
    except (OSError, ValueError) as error:
        raise UserError(f"no Prefect server at PREFECT_API_URL {url} ({error}); start it or unset the variable") from error


def database() -> Path | None:
    """Return the file of the database that a server started by this process would use; None for other databases."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    address = str(PREFECT_API_DATABASE_CONNECTION_URL.value() or "")
    if not address.startswith(PREFIX) or ":memory:" in address:
        return None
    return Path(address.removeprefix(PREFIX).partition("?")[0]).expanduser()


@contextlib.contextmanager
def ready_database() -> Iterator[None]:
    """Check the database before a server starts in the block; a new one begins as a copy of a new one of an earlier run.

    Raises:
        EngineLost: if another process keeps the database locked.
        UserError: if the database is of a newer Prefect, is damaged, or is none.
    """
    path = database()
    if path is None:
        yield
        return
    is_new = not path.exists()
    if is_new:
        with contextlib.suppress(OSError, sqlite3.Error, UserError):  # the server then makes its own
            _copy(_kept_at(), path)
    else:
        check_database(path)
    yield
    if is_new:
        with contextlib.suppress(OSError, sqlite3.Error, UserError):
            if not _kept_at().exists():
                _copy(path, _kept_at())


def _kept_at() -> Path:
    """Return the file of a new database that is kept; raise UserError for a user without a home folder."""
    return user_folder("cache") / f"prefect-{version('prefect')}.db"


def check_database(path: Path) -> None:
    """Raise an error of one line unless a database can be written, is intact, and is of this Prefect or an older one."""
    advice = "end that process, or set PREFECT_HOME to another folder"
    end = time.monotonic() + LOCKED_SECONDS
    while True:
        try:
            with contextlib.closing(sqlite3.connect(path, timeout=1.0, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
                if path.stat().st_size <= MOST_CHECKED and connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                    raise sqlite3.DatabaseError("it is damaged")
                _check_revision(path, connection)
                return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise UserError(f"Prefect's database {path} cannot be written ({error}); set PREFECT_HOME") from error
            if time.monotonic() > end:
                raise EngineLost(f"Prefect's database {path} is locked by another process; {advice}") from error
            time.sleep(0.2)
        except sqlite3.DatabaseError as error:
            message = (
                f"{path} is no intact database of Prefect ({error}); move it away, or set PREFECT_HOME to another folder"
            )
            raise UserError(message) from error


def _check_revision(path: Path, connection: sqlite3.Connection) -> None:
    try:
        found = [row[0] for row in connection.execute("SELECT version_num FROM alembic_version")]
    except sqlite3.OperationalError:  # empty so far
        return
    if newer := [revision for revision in found if revision not in _revisions()]:
        raise UserError(
            f"Prefect's database {path} is of a newer Prefect than {version('prefect')} (revision {newer[0]}); update "
            "Prefect, or set PREFECT_HOME to another folder"
        )


def _revisions() -> set[str]:
    """Return the revisions of the database that the installed Prefect knows."""
    import prefect

    folder = Path(str(prefect.__file__)).parent / MIGRATIONS
    found = (re.search(r"^revision\b[^=]*= *[\"'](\w+)", file.read_text(), re.MULTILINE) for file in folder.glob("*.py"))
    return {match[1] for match in found if match is not None}


def _copy(source: Path, target: Path) -> None:
    """Copy an intact database without runs to a new, private file; another process may do the same at the same time.

    Raises:
        OSError, sqlite3.Error: if there is no such database, or the target cannot be written.
    """
    make_folder(target.parent, PRIVATE.folder)
    part = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        part.touch(PRIVATE.file)
        with (
            contextlib.closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=1.0)) as original,
            contextlib.closing(sqlite3.connect(part)) as copy,
        ):
            original.backup(copy)
            if copy.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise sqlite3.DatabaseError(f"{source} is damaged")
            if _has_runs(copy):  # of another process, which has the same new database
                raise sqlite3.DatabaseError(f"{source} holds runs")
            copy.execute("PRAGMA journal_mode=WAL")  # as Prefect sets it
        os.link(part, target)  # fails if there is one meanwhile
    finally:
        part.unlink(missing_ok=True)


def _has_runs(connection: sqlite3.Connection) -> bool:
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")} & {"flow", "flow_run"}
    return any(connection.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in tables)
