"""Events of a run are recorded, and its progress can be read from the store."""

import json
import logging
from pathlib import Path

import pytest

from memlib.errors import StoreUnreachable
from memlib.runs import journal as journals
from memlib.runs.journal import Journal, JsonLines, read_status
from memlib.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_events_are_lines_of_json_with_run_stage_and_key(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="memlib")
    journal = Journal(store, "r1", {"title": "t"})
    journal.note("computing", "train", "abc", count=2)
    journal.note("failed", "train", "abc", problem="no room")
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert [(line["run"], line["stage"], line["key"], line["event"]) for line in lines] == [
        ("r1", "train", "abc", "computing"), ("r1", "train", "abc", "failed"),
    ]  # fmt: skip
    assert lines[0]["facts"] == {"count": 2}
    assert lines[1]["facts"] == {"problem": "no room"}


def test_a_status_that_cannot_be_written_does_not_stop_the_run(store: Store, tmp_path: Path) -> None:
    store.begin()
    (tmp_path / "store" / "status").write_text("in the way")
    Journal(store, "r1", {}).note("cached", "decode", "a")
    assert (tmp_path / "store" / "status").read_text() == "in the way"


def test_after_an_outage_the_status_is_written_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now, tries = [100.0], []

    def publish(*arguments: object, **options: object) -> None:
        tries.append(now[0])
        if now[0] < 150:
            raise StoreUnreachable("away")

    journal = Journal(store, "r1", {})
    monkeypatch.setattr(journals.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(journal._store, "publish", publish)
    for now[0] in (100, 110, 159, 161):
        journal.note("computing", "train")
    assert tries == [100, 161]
    now[0] = 161.5
    journal.end("failed", "no room")  # is always tried
    assert tries[-1] == 161.5


def test_read_status_returns_none_for_missing_and_broken_files(store: Store, tmp_path: Path) -> None:
    assert read_status(store, "r1") is None
    (tmp_path / "store" / "status").mkdir(parents=True)
    (tmp_path / "store" / "status" / "r1.json").write_text("{")
    assert read_status(store, "r1") is None
