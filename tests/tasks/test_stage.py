"""Parts run in turns near the data that they read; their errors are kept, and no more is discarded than is damaged."""

import contextlib
import json
import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest

from deployments.local.api import step_of
from memlib.audits.unique_feature.stages import TrainNets
from memlib.data.stages import Decode
from memlib.errors import CorruptArtifact, RunError
from memlib.runs.garbage import garbage
from memlib.specs import DataSpec, Resources
from memlib.specs.resources import RunOptions
from memlib.store import Ref, Store
from memlib.store.artifacts import Artifacts
from memlib.store.logs import LONGEST, recorded, recording
from tasks import remote
from tasks.news import Told
from tasks.remote import compute_there, log_kept
from tasks.runtime import Context, Shared
from tasks.stage import StageRunner, _at_work, _label, _nodes_near, committed

MODEL = Ref("train_nets", "0" * 32)


@dataclass(frozen=True)
class Part:
    near: Ref | None
    label: str = ""
    title: str = "score"


@pytest.mark.parametrize(
    ("uri", "address", "near", "found"),
    [
        ("memory://b/s", "auto", MODEL, "node-1"),
        ("memory://b/s", "auto", None, None),
        ("memory://b/s", None, MODEL, None),  # one machine has but one node
        ("local", "auto", MODEL, None),  # a shared folder is as near to all
    ],
)
def test_parts_on_a_cluster_prefer_the_node_that_computed_their_input(
    tmp_path: Path, uri: str, address: str | None, near: Ref | None, found: str | None
) -> None:
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    store = Store(str(tmp_path / "store") if uri == "local" else uri, cache=str(tmp_path / "cache"))
    with store.artifacts.write(MODEL) as attempt:
        attempt.facts["worker"] = {"node_id": "node-1"}
        attempt.path("a").write_text("a")
    part: Any = Part(near)
    assert _nodes_near(Context(store, Resources(ray_address=address)), [part, part]) == [found, found]


def test_an_artifact_that_was_recomputed_meanwhile_is_kept(tmp_path: Path) -> None:
    store = Store(str(tmp_path))

    def make() -> None:
        with store.artifacts.write(MODEL) as attempt:
            attempt.path("a").write_text("a")

    make()
    file = store.artifacts.local_path(MODEL, "a")
    for damaged in (False, True):  # another cell has made it anew; nobody has
        file.write_text("b" if damaged else "a")
        with pytest.raises(CorruptArtifact), _at_work(Context(store), {Ref("score", "1" * 32): Part(None)}):
            raise CorruptArtifact("file a is damaged", MODEL)
        assert store.artifacts.has(MODEL) is not damaged


def test_an_artifact_found_sound_on_the_second_lookup_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path))
    with store.artifacts.write(MODEL) as attempt:
        attempt.path("a").write_text("a")
    lookup, looked = Artifacts.lookup, []

    def damaged_at_first(self: Artifacts, stage: str, key: str) -> Ref | None:
        looked.append(key)
        if len(looked) == 1:  # another driver was about to replace it, or a listing was behind
            raise CorruptArtifact("file a is damaged", MODEL)
        return lookup(self, stage, key)

    monkeypatch.setattr(Artifacts, "lookup", damaged_at_first)
    assert committed(Context(store), MODEL, TrainNets)
    assert store.artifacts.has(MODEL)


def test_compute_there_skips_an_artifact_that_is_already_committed(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with store.artifacts.write(MODEL) as attempt:
        attempt.path("a").write_text("a")
    made, computed = store.artifacts.manifest(MODEL), []
    compute_there(store, MODEL, {}, lambda attempt, device: computed.append(attempt), Told(b"part"), 1)
    assert computed == []
    assert store.artifacts.manifest(MODEL) == made


def test_workers_log_the_events_of_an_artifact_as_json_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEMLIB_LOG", "json")
    monkeypatch.setattr(remote, "whereabouts", lambda: {"pid": 7})
    logger = logging.getLogger("memlib")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    with remote.telling(MODEL):
        pass
    with pytest.raises(RunError), remote.telling(MODEL):
        raise RunError("no room")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["computing", "computed", "computing", "failed"]
    assert {(line["stage"], line["key"], line["facts"]["pid"]) for line in lines} == {(MODEL.stage, MODEL.key, 7)}
    assert lines[1]["facts"]["seconds"] >= 0


def test_a_stage_waiting_for_a_lock_does_not_begin_after_the_sweep_stopped(tmp_path: Path) -> None:
    context, began = Context(Store(str(tmp_path))), []

    def cell() -> None:
        with contextlib.suppress(RunError), context.turn("train"):
            began.append("train")

    with context.turn("train"):
        waiting = threading.Thread(target=cell)
        waiting.start()
        context.shared.stopped.set()
    waiting.join(10)
    assert not waiting.is_alive()
    assert began == []


def test_the_printed_output_of_a_failed_part_is_kept_and_named(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with (
        pytest.raises(RunError, match=r"no room \(its output: .*/logs/train_nets/0+/failed-\w+\.log\)"),
        log_kept(store, MODEL),
    ):
        print("step 12: the loss is 3.5")
        raise RunError("no room")
    (kept,) = store.listing("logs")
    assert b"the loss is 3.5" in (store.published(kept) or b"")
    assert ("log", kept) in {(item.kind, item.path) for item in garbage(store, keep=[], days=-1)}


def test_recording_keeps_only_the_end_of_long_output() -> None:
    with recording():
        for line in range(300_000):
            print(f"line {line}")
        assert recorded().endswith("line 299999\n")
        assert len(recorded()) == LONGEST


def test_a_run_stops_after_max_hours_and_keeps_finished_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.display.is_gone", lambda: True)  # without Prefect
    data = Decode(DataSpec.model_validate({"source": {"kind": "two_moons", "num_examples": 20}}))
    store = Store(str(tmp_path))
    with pytest.raises(RunError, match=r"resources\.max_hours allows 1e-09; finished work is kept"):
        StageRunner(Context(store, Resources(max_hours=1e-9), RunOptions(quiet=True))).run(data)
    context = Context(store, Resources(max_hours=1e-9), RunOptions(quiet=True))
    assert StageRunner(context).run(data).content.images.shape == (20, 3)  # takes no worker
    assert not context.work.computed


def test_max_hours_limits_the_sum_over_all_workers_and_cells(tmp_path: Path) -> None:
    shared, limit = Shared(), Resources(max_hours=2)
    cells = [Context(Store(str(tmp_path)), limit, shared=shared) for _ in range(2)]
    cells[0].spend(3, 1800)
    with pytest.raises(RunError, match="workers have taken 2.5 hours"):
        cells[1].spend(1, 3600)


def test_a_step_is_labelled_by_its_title_and_the_names_of_its_parts() -> None:
    @dataclass
    class Step:
        label: str
        title = "train models"

    def named(*labels: str) -> str:
        return _label([Step(label) for label in labels])  # type: ignore[misc]

    assert named("") == "train models"
    assert named("model A0") == "train models: model A0"
    assert named("model A0", "model B0", "model A0") == "train models: model A0; model B0 (3 parts)"
    assert named(*"abcdef") == "train models: a; b; c; d; and 2 more (6 parts)"
    assert {step_of(named(*labels)) for labels in ([""], ["a"], ["a", "b"], ["", ""])} == {"train models"}
