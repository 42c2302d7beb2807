"""Rows of Prefect's own database that name an example are found and deleted, down to the bytes of the file."""

import sqlite3
from pathlib import Path

import pytest

from memlib.running.traces import Marks
from tasks.prefect_records import count_rows, delete_rows, local_database

HER = "zoe-quill-7319"
NAMES = Marks({HER}).in_text


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "prefect.db"
    with sqlite3.connect(path) as opened:
        opened.executescript(
            "create table flow_run (id text primary key, parameters json);"
            "create table task_run (id text, flow_run_id text references flow_run (id) on delete cascade);"
            "create table deployment (id text, parameters json);"
        )
        opened.executemany(
            "insert into flow_run values (?, ?)", [("1", f'{{"title": "{HER}"}}'), ("2", '{"title": "others"}')]
        )
        opened.executemany("insert into task_run values (?, ?)", [("a", "1"), ("b", "2")])
    opened.close()
    return path


def test_rows_that_name_her_are_deleted_with_what_depends_on_them(database: Path) -> None:
    assert count_rows(database, NAMES) == (1, 0)
    delete_rows(database, NAMES)
    with sqlite3.connect(database) as opened:
        rows = [opened.execute(f"select id from {table}").fetchall() for table in ("flow_run", "task_run")]
    assert rows == [[("2",)], [("b",)]]
    assert HER.encode() not in database.read_bytes()


def test_deployments_are_counted_but_kept(database: Path) -> None:
    with sqlite3.connect(database) as opened:
        opened.execute("insert into deployment values ('1', ?)", (HER,))
    opened.close()
    assert count_rows(database, NAMES) == (2, 1)
    delete_rows(database, NAMES)
    assert count_rows(database, NAMES) == (1, 1)


def test_the_local_database_is_found_by_the_environment(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_DATABASE_CONNECTION_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(database.parent))
    assert local_database() == database
    monkeypatch.setenv("PREFECT_HOME", str(database.parent / "none"))
    assert local_database() is None
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", f"sqlite+aiosqlite:///{database}")
    assert local_database() == database
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "postgresql+asyncpg://host/prefect")
    assert local_database() is None


@pytest.mark.ray
def test_flow_runs_of_prefect_are_deleted_from_its_own_database(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect import flow
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
    from prefect.testing.utilities import prefect_test_harness

    @flow(name="audit")
    def audit(title: str) -> str:
        return "done"

    with prefect_test_harness(server_startup_timeout=120):
        monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", str(PREFECT_API_DATABASE_CONNECTION_URL.value()))
        database = local_database()
        assert database is not None
        audit(HER)
        audit("others")
        rows, kept = count_rows(database, NAMES)
        assert rows > 0
        assert kept == 0
        delete_rows(database, NAMES)
        assert count_rows(database, NAMES) == (0, 0)
        assert count_rows(database, Marks({"others"}).in_text)[0] > 0
        assert not any(HER.encode() in path.read_bytes() for path in database.parent.glob(f"{database.name}*"))
