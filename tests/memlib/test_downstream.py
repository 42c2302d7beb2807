"""The documented lines for DuckDB and Polars, on audits of every kind and age in one store."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memlib.audits import published_tables
from memlib.runs.index import publish_rows, results_path
from memlib.tables import Table, write_table

DOCUMENT = (Path(__file__).parents[2] / "docs/how-to/read-results.md").read_text()
VALUES = {pa.string(): "x", pa.int64(): 1, pa.float64(): 0.5, pa.bool_(): True}


class Entries:
    """Stands for a store whose runs are these."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.entries, self.damaged = folder, [], {}

    def trusting(self, key: Path | None) -> "Entries":
        return self

    def publish(self, path: str, source: Path | bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source if isinstance(source, bytes) else source.read_bytes())


def rows(table: Table, count: int) -> pa.Table:
    return pa.Table.from_pylist([{c.name: VALUES.get(c.type) for c in table.columns}] * count, schema=table.arrow)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of one question, one of each other audit, an orphan, and one as memlib 0.1 wrote it."""
    found = Entries(tmp_path / "memlib-store")
    wanted = [
        ("deja_vu", "new", "q", 2.0),
        ("deja_vu", "old", "q", 1.0),
        ("exposure", "secrets", "e", 1.0),
        ("forgetting", "trace", "f", 1.0),
    ]
    for audit, run, asks, finished in wanted:
        found.entries.append(
            {"run": run, "audit": audit, "title": run, "finished": finished, "verdict": None, "ledger": {"data": "d"}, "asks": asks,
             "scores": None, "memlib": "0.1"}
        )  # fmt: skip
    found.entries.sort(key=lambda entry: -entry["finished"])
    monkeypatch.setattr("memlib.runs.index.list_runs", lambda store: store)
    part = tmp_path / "part.parquet"
    for audit, run in [*((audit, run) for audit, run, *_ in wanted), ("deja_vu", "orphan")]:
        for name in ("summary", "units"):
            schema = published_tables()[name].get(audit) or published_tables()[name].get("")
            if schema is not None:
                write_table(rows(schema, 3), schema, part)
                found.publish(results_path(name, audit, run), part)
    summary = published_tables()["summary"][""]
    pq.write_table(rows(summary, 3).drop_columns(["role", "p_adjusted", "interval"]), part)  # of before its second version
    found.publish(results_path("summary", "self_influence", "ancient"), part)
    write_table(rows(published_tables()["sweep"]["sweep"], 3), published_tables()["sweep"]["sweep"], part)
    found.publish(results_path("sweep", "sweep", "cells"), part)
    ancient: dict[str, Any] = {**found.entries[0], "run": "ancient", "audit": "self_influence", "asks": "i", "finished": 0.0}
    found.entries += [ancient, {**ancient, "run": "cells", "audit": "sweep", "asks": "s"}]
    publish_rows(found, found.entries)  # type: ignore[arg-type]
    return found.folder


def test_the_documented_duckdb_and_polars_queries_count_each_run_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb
    import polars

    monkeypatch.chdir(store.parent)
    (block,) = re.findall(r"```python\nimport duckdb, polars\n(.*?)```", DOCUMENT, re.DOTALL)
    (sql,) = re.findall(r'duckdb\.sql\("""(.*?)"""\)', block, re.DOTALL)
    counted = duckdb.sql(f"select run, count(*) from ({sql}) group by run").fetchall()
    assert dict(counted) == {"new": 3, "secrets": 3, "trace": 3, "ancient": 3}
    assert duckdb.sql(f"select role from ({sql}) where run = 'ancient'").fetchall() == [(None,)] * 3
    scope: dict[str, Any] = {"duckdb": duckdb, "polars": polars}
    setup, last = block.strip().rsplit("\n", 1)
    exec(setup, scope)
    assert eval(last, scope)["run"].to_list() == ["new"] * 3
