"""The database of a run's own Prefect server: a locked, newer or foreign one is one line within seconds; a new one is copied."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from flows import prefect_server
from flows.prefect_server import check_database, ready_database
from memlib.errors import RunError, UserError


def make(path: Path, revision: str = "") -> Path:
    """Make a database with a revision; by default the newest that Prefect knows."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES (?)", [revision or max(prefect_server._revisions())])
        connection.commit()
    return path


def revision_of(path: Path) -> str:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def test_a_database_of_this_prefect_and_an_empty_one_pass(tmp_path: Path) -> None:
    assert len(prefect_server._revisions()) > 100
    check_database(make(tmp_path / "prefect.db"))
    (tmp_path / "empty.db").touch()
    check_database(tmp_path / "empty.db")


def test_a_database_that_is_locked_for_moments_is_waited_for_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "prefect.db")
    monkeypatch.setattr(prefect_server, "LOCKED_SECONDS", 0.0)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RunError, match=r"prefect.db is locked by another process; end that process, or set PREFECT_HOME"):
            check_database(path)
        monkeypatch.setattr(prefect_server, "LOCKED_SECONDS", 60.0)
        monkeypatch.setattr(prefect_server.time, "sleep", lambda seconds: other.execute("ROLLBACK"))
        check_database(path)


def test_a_database_of_a_newer_prefect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is of a newer Prefect than .* \(revision ffffffffffff\); update Prefect, or set"):
        check_database(make(tmp_path / "prefect.db", "ffffffffffff"))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prefect.db").write_bytes(b"not a database, but as long as the header of one" * 100)
    with pytest.raises(UserError, match="is no intact database of Prefect"):
        check_database(tmp_path / "prefect.db")


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    """The page of the table of revisions is left alone, so that only a search through all pages finds the damage."""
    path = make(tmp_path / "prefect.db")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE flow_run (parameters TEXT)")
        connection.executemany("INSERT INTO flow_run VALUES (?)", [("x" * 1000,)] * 100)
        connection.commit()
    check_database(path)
    content = bytearray(path.read_bytes())
    content[-4096:-3800] = b"damaged " * 37
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"is no intact database of Prefect \(it is damaged\); move it away"):
        check_database(path)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(prefect_server, "database", lambda: tmp_path / "home" / "prefect.db")
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_the_first_new_database_is_kept_as_the_beginning_of_the_next_ones(home: Path) -> None:
    with ready_database():
        assert not (home / "prefect.db").exists()
        make(home / "prefect.db")  # the server does
    (kept,) = (home.parent / "cache").rglob("prefect-*.db")
    assert kept.stat().st_mode & 0o777 == 0o600
    (home / "prefect.db").unlink()
    with ready_database():
        assert revision_of(home / "prefect.db") == revision_of(kept)
        assert (home / "prefect.db").stat().st_mode & 0o777 == 0o600


def test_a_database_that_was_there_before_is_not_kept(home: Path) -> None:
    make(home / "prefect.db")
    with ready_database():
        pass
    assert not list((home.parent / "cache").rglob("*.db"))


def test_a_database_on_which_a_run_began_meanwhile_is_not_kept(home: Path) -> None:
    """A second run with the same new home may be faster; its recipe must not reach the databases of other homes."""
    with ready_database(), contextlib.closing(sqlite3.connect(make(home / "prefect.db"))) as connection:
        connection.execute("CREATE TABLE flow_run (parameters TEXT)")
        connection.execute("INSERT INTO flow_run VALUES ('a recipe')")
        connection.commit()
    assert not list((home.parent / "cache").rglob("*.db"))


def test_a_user_without_a_home_folder_gets_a_database_of_prefects(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    with ready_database():
        make(home / "prefect.db")


def test_a_damaged_copy_is_not_used(home: Path) -> None:
    with ready_database():
        make(home / "prefect.db")
    (home / "prefect.db").unlink()
    (kept,) = (home.parent / "cache").rglob("prefect-*.db")
    kept.write_bytes(b"damaged" * 100)
    with ready_database():
        assert not (home / "prefect.db").exists()


def test_a_server_that_is_not_sqlite_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_server, "database", lambda: None)
    with ready_database():
        pass


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("sqlite+aiosqlite:////somewhere/prefect.db", Path("/somewhere/prefect.db")),
        ("sqlite+aiosqlite:///file::memory:?cache=shared", None),
        ("postgresql+asyncpg://prefect@db/prefect", None),
    ],
)
def test_the_database_is_the_one_that_prefect_is_configured_with(address: str, path: Path | None) -> None:
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, temporary_settings

    with temporary_settings({PREFECT_API_DATABASE_CONNECTION_URL: address}):
        assert prefect_server.database() == path
