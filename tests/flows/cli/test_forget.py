"""The command lists by default, deletes on request, and ends with a status that tells mistakes from uncertainty."""

import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli.app import main
from memlib.store import Ref, Store

HER = "zoe-quill-7319"
SHARD, MODEL, FOREIGN = Ref("decode", "a" * 32), Ref("train", "b" * 32), Ref("train", "c" * 32)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with one decoded example and a model that was trained on it; no database of Prefect."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    found = Store(str(tmp_path / "store"))
    with found.artifacts.write(SHARD) as attempt:
        pq.write_table(pa.table({"example_id": [f"{HER}/1"], "digest": ["0"]}), attempt.path("index.parquet"))
    with found.artifacts.write(MODEL, inputs={"shard": SHARD.key}) as attempt:
        attempt.path("epoch-00001.safetensors").write_bytes(bytes(8))
    return found


def call(capsys: pytest.CaptureFixture[str], store: Store, *arguments: str) -> tuple[int, str, str]:
    status = main(["forget", "--store", store.uri, *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_forget_lists_by_default_and_deletes_models_only_on_request(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(store.listing(""))
    status, said, _ = call(capsys, store, "--example", f"{HER}/1")
    assert status == 0
    assert f"artifacts with her rows: 1 (0.0 MiB)\n  {SHARD.folder}\n" in said
    assert f"models trained on them: 1 (0.0 MiB)\n  {MODEL.folder}\n" in said
    assert "found 1 item to erase" in said
    assert set(store.listing("")) == before
    status, said, _ = call(capsys, store, "--example", f"{HER}/1", "--delete")
    assert (status, store.artifacts.has(SHARD), store.artifacts.has(MODEL)) == (0, False, True)
    assert "erased 1 item; no run affected\n1 model or unfinished item remain" in said
    status, said, _ = call(capsys, store, "--example", f"{HER}/1", "--delete", "--models", "--json")
    found = json.loads(said)
    assert (status, store.artifacts.has(MODEL)) == (0, False)
    assert [(item["kind"], item["path"], item["deleted"]) for item in found["items"]] == [("model", MODEL.folder, True)]
    assert HER not in said
    status, said, _ = call(capsys, store, "--example", f"{HER}/1", "--delete", "--models")
    assert (status, said.splitlines()[-1]) == (0, "erased 0 items; no run affected")


def test_mistakes_end_with_one_line_and_status_2(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("--person", HER, "--example", HER), ("--person", ""), ("--person", "nobody"), ("--example", HER)):
        status, said, wrong = call(capsys, store, *arguments)
        assert (status, said, len(wrong.splitlines())) == (2, "", 1), arguments


def test_items_that_cannot_be_searched_end_with_status_3(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with store.artifacts.write(FOREIGN) as attempt:
        attempt.path("weights.xyz").write_bytes(b"1")
    for arguments in (("--person", "nobody"), ("--example", f"{HER}/1"), ("--example", f"{HER}/1", "--delete")):
        status, said, _ = call(capsys, store, *arguments)
        assert status == 3
        assert f"  {FOREIGN.folder}: file weights.xyz is in a format that is not searched\n" in said
        assert "1 item cannot be searched and may hold more of her" in said


def test_flow_runs_in_the_database_of_prefect_are_erased_with_her(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "prefect" / "prefect.db"
    database.parent.mkdir()
    with sqlite3.connect(database) as opened:
        opened.executescript(
            f"create table flow_run (id text, parameters json); insert into flow_run values ('1', '{HER}/1');"
        )
    opened.close()
    _, said, _ = call(capsys, store, "--example", f"{HER}/1")
    assert f"Prefect's database: 1 (0.0 MiB)\n  {database}: 1 row\n" in said
    assert HER.encode() in database.read_bytes()
    assert call(capsys, store, "--example", f"{HER}/1", "--delete")[0] == 0
    assert HER.encode() not in database.read_bytes()
