"""Progress of a stage is shown in the status of its run and in Prefect."""

from pathlib import Path

import pytest

from memlib.journal import Journal, read_status
from memlib.store import Store
from tasks import progress
from tasks.progress import bars


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_a_status_counts_what_was_computed_and_found(store: Store) -> None:
    journal = Journal(store, "r1", {"title": "t", "started": 1.0})
    journal.note("cached", "decode", "a")
    journal.note("computing", "train", count=3)
    with bars(None, "train", journal) as shown:
        shown.move("model 0", 1, 10)
        shown.move("model 1", 4, 10, "fast")
    journal.publish(now=True)
    status = read_status(store, "r1")
    assert status is not None
    assert (status.state, status.title) == ("running", "t")
    assert status.stages["decode"].cached == 1
    train = status.stages["train"]
    assert (train.state, train.done, train.total, train.note) == ("running", 5, 20, "fast")
    journal.end("failed", "no room")
    status = read_status(store, "r1")
    assert status is not None
    assert (status.state, status.problem) == ("failed", "no room")
    journal.end("completed")
    assert read_status(store, "r1") is None  # the run's manifest says it all


def test_without_a_terminal_there_is_a_line_now_and_then(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with bars(None, "train", Journal(store, "", {}), said.append) as shown:
        for now[0], name, done in ((1, "a", 1), (29, "b", 1), (31, "a", 3), (45, "a", 4), (70, "b", 98), (300, "b", 99)):
            shown.move(name, done, 100)
    assert said == [
        "train: 4 of 200, about 25 min left",
        "train: 102 of 200, about 1 min left",
        "train: 103 of 200, about 5 min left",
    ]


def test_stages_that_take_long_have_progress_in_prefect(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float]] = []
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "create_progress_artifact", lambda share, description: told.append(("new", share)) or "id")
    monkeypatch.setattr(progress, "update_progress_artifact", lambda artifact, progress: told.append((artifact, progress)))
    monkeypatch.setattr(progress.TaskRunContext, "get", lambda: object())
    journal = Journal(store, "", {})
    with bars(None, "embed", journal) as shown:  # short: nobody would see it
        shown.move("embed", 1, 1)
    with bars(None, "train", journal) as shown:
        for seconds, done in ((1, 10), (6, 20), (7, 30), (12, 40), (13, 100)):
            now[0] = seconds
            shown.move("train", done, 100)
    assert told == [("new", 20.0), ("id", 40.0), ("id", 100.0)]
