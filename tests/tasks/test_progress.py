"""Progress of a stage is shown in the status of its run and in Prefect."""

import io
import re
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from memlib.runs.journal import Journal, read_status
from memlib.specs.resources import RunOptions
from memlib.store import Store
from tasks import progress
from tasks.progress import TimeLeft, bars, duration
from tasks.runtime import Context


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_status_counts_cached_parts_and_progress_until_the_run_completes(store: Store) -> None:
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
    assert (train.state, train.done, train.total, train.note, train.left) == ("running", 5, 20, "fast", None)
    assert train.updated >= train.started > 0 == status.stages["decode"].started
    journal.end("failed", "no room")
    status = read_status(store, "r1")
    assert status is not None
    assert (status.state, status.problem) == ("failed", "no room")
    journal.end("completed")
    assert read_status(store, "r1") is None  # the run's manifest says it all


def test_without_a_terminal_progress_prints_at_most_one_line_per_30_seconds(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with bars(None, "train", Journal(store, "", {}), said.append, title="train models") as shown:
        for now[0], name, done in ((1, "a", 1), (29, "b", 1), (31, "a", 3), (45, "a", 4), (70, "b", 98), (300, "b", 99)):
            shown.move(name, done, 100)
    assert said == [
        "train models: 4 of 200, about 49 min left",  # 2 units in the 30 s since the first one
        "train models: 102 of 200, about 68 s left",
        "train models: 103 of 200, about 5 min left",
    ]


def pace(moves: Iterable[tuple[float, int]], total: int) -> Iterator[tuple[float, float | None]]:
    """Yield the time and the seconds left after each move of one part."""
    left, first = TimeLeft(0.0), None
    for now, done in moves:
        first = done if first is None else first
        left.update(done - first, total - done, now)
        yield now, left.seconds(now)


def test_the_duration_of_start_up_does_not_enter_the_time_left() -> None:
    """Three minutes of work after 40 s of start-up were once estimated as two hours."""
    found = dict(pace(((40 + second, second) for second in range(1, 181)), 180))
    assert all(left is None for now, left in found.items() if now < 82)  # as long as the first move took
    assert {now: left for now, left in found.items() if now in (82, 100, 160, 219)} == {82: 138, 100: 120, 160: 60, 219: 1}


def test_time_left_ignores_progress_made_by_an_earlier_attempt(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with bars(None, "train", Journal(store, "", {}), said.append) as shown:
        shown.expect(2)
        for now[0], name, done in ((5, "a", 1), (20, "b", 90), (35, "a", 2), (65, "a", 3)):
            shown.move(name, done, 100)
    assert said == ["train: 92 of 200, about 54 min left", "train: 93 of 200, about 54 min left"]


def test_parts_that_have_yet_to_begin_are_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now, said = [0.0], list[str]()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with bars(None, "train", Journal(store, "", {}), said.append) as shown:
        shown.expect(10)
        for now[0], done in ((1, 1), (31, 31)):
            shown.move("a", done, 100)
    assert said == ["train: 31 of 1,000, about 16 min left"]


def test_an_expired_estimate_of_time_left_is_not_shown() -> None:
    left = TimeLeft(0.0)
    assert left.seconds(100.0) is None
    left.update(0, 10, 1.0)
    left.update(5, 5, 21.0)
    assert [left.seconds(now) for now in (21.0, 31.0, 41.0)] == [20.0, 10.0, None]
    assert (left.sentence(31.0), left.sentence(50.0)) == ("about 10 s left", "")
    assert [duration(seconds) for seconds in (0.2, 12, 89, 100, 5399, 7200)] == [
        "0.2 s", "12 s", "89 s", "2 min", "90 min", "2.0 h",
    ]  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "MEMLIB_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    return Terminal()


def at_work(context: Context) -> None:
    with context.bars("train", "train models") as shown:
        shown.expect(3)
        shown.move("model A0", 1, 10, "loss 2")
        shown.move("model B0", 10, 10)
        context.warn("the disk is nearly full")
        print("from a library", file=sys.stderr)
        time.sleep(0.5)
    context.note("train models: done in 3 s")


def test_a_terminal_shows_bars_with_all_else_above_them(
    terminal: Terminal, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    at_work(Context(store))
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue()).replace("\r", "\n").splitlines()
    assert lines[-1] == "train models: done in 3 s"
    stage = [line for line in lines if "train models  " in line]
    assert any("11/30" in line and "━" in line for line in stage)
    assert any("model A0" in line and "1/10" in line and "loss 2" in line for line in lines)
    assert not any("model B0" in line and "10/10" in line for line in lines)  # finished
    assert "warning: the disk is nearly full" in lines
    assert "from a library" in lines
    assert "?25l" not in terminal.getvalue()  # a hidden cursor would stay hidden if the process were killed


def test_a_stream_that_replaces_stderr_while_bars_are_shown_is_kept(
    terminal: Terminal, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    other = io.StringIO()
    with Context(store).bars("train"):
        sys.stderr = other  # as on SIGTERM
    assert sys.stderr is other


@pytest.mark.parametrize("setting", ["", "FORCE_COLOR", "TTY_COMPATIBLE"])
def test_progress_on_a_pipe_is_plain_lines(
    setting: str, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MEMLIB_LOG", raising=False)
    if setting:
        monkeypatch.setenv(setting, "1")
    context = Context(store)
    at_work(context)
    context.say("training model A0: 1 in parallel")
    assert capsys.readouterr().err.splitlines() == [
        "warning: the disk is nearly full", "from a library", "train models: done in 3 s",
    ]  # fmt: skip
    Context(store, options=RunOptions(verbose=True)).say("starting Ray on this machine")
    assert capsys.readouterr().err == "starting Ray on this machine\n"
    Context(store, options=RunOptions(quiet=True, verbose=True)).note("train models: started")
    assert capsys.readouterr().err == ""


def test_stages_that_take_long_have_progress_in_prefect(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, str]] = []
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def create(share: float, description: str) -> str:
        told.append(("new", share, description))
        return "id"

    def update(artifact: str, progress: float, description: str) -> None:
        told.append((artifact, progress, description))

    monkeypatch.setattr(progress, "create_progress_artifact", create)
    monkeypatch.setattr(progress, "update_progress_artifact", update)
    monkeypatch.setattr(progress.TaskRunContext, "get", lambda: object())
    journal = Journal(store, "", {})
    with bars(None, "embed", journal) as shown:  # short: nobody would see it
        shown.move("embed", 1, 1)
    with bars(None, "train", journal) as shown:
        for seconds, done in ((1, 10), (6, 20), (7, 30), (12, 40), (13, 100)):
            now[0] = seconds
            shown.move("train", done, 100)
    assert told == [("new", 20.0, "train"), ("id", 40.0, "train, about 22 s left"), ("id", 100.0, "train")]
