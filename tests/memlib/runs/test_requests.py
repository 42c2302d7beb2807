"""Requested runs that have not ended can be resumed; requests that can never run are discarded."""

import json
from pathlib import Path
from typing import Any

import pytest

import flows.cli.running
from flows.cli.app import main
from memlib.audits.exposure.recipe import Recipe
from memlib.errors import ResourcesError, RunError, UserError
from memlib.recipes.files import load_recipe, validate
from memlib.running.publishing import Work, _history
from memlib.runs.plans import given_plan
from memlib.runs.records import PlanFile
from memlib.runs.requests import announced, unfinished
from memlib.specs import Resources
from memlib.store import Store
from memlib.store.records import sealed
from tasks.runtime import Context

FINDING = {"metric": "m", "params": "{}", "value": 1.0, "p_value": None}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def recipe() -> Recipe:
    return validate(Recipe, load_recipe("exposure_smoke")[0])


@pytest.mark.parametrize(
    ("ended", "computed", "left"),
    [
        (None, ["a"], 0),
        (UserError("no"), [], 0),
        (UserError("no image has that crop"), ["a"], 0),  # nor would it be if it were resumed
        (ResourcesError("no such GPU"), [], 0),
        (ResourcesError("no such GPU"), ["a"], 1),  # with other machines it can go on
        (RunError("lost"), [], 1),
        (KeyboardInterrupt(), [], 1),
    ],
)
def test_a_request_note_is_kept_only_if_resuming_could_succeed(
    store: Store, ended: BaseException | None, computed: list[str], left: int
) -> None:
    try:
        with announced(store, "exposure", recipe(), Resources(), computed) as run:
            store.publish(f"requests/{run}.json.0123.part", b'{"run": ')  # of a killed driver, before tmp/ was there
            with announced(store, "exposure", recipe(), Resources(), []):
                assert len(unfinished(store)) == 1  # a second driver of the same run
            assert len(unfinished(store)) == 1  # whose end does not take the first one's note away
            if ended is not None:
                raise ended
    except (UserError, RunError, KeyboardInterrupt):
        pass
    assert len(unfinished(store)) == left


def test_notes_of_dead_drivers_are_removed_when_the_run_succeeds(store: Store) -> None:
    def note() -> str:
        with pytest.raises(KeyboardInterrupt), announced(store, "exposure", recipe(), Resources(), []):
            raise KeyboardInterrupt  # as a driver that is killed, its note stays
        (path,) = set(store.listing("requests")) - set(known)
        return path

    known: list[str] = []
    for process, stays in ((2**22 + 7, False), (1, True)):  # beyond every process; init
        path = note()
        said = json.loads(store.published(path) or b"")
        store.publish(path, json.dumps(said | {"pid": process}).encode())
        with announced(store, "exposure", recipe(), Resources(), []):
            pass
        assert (path in store.listing("requests")) is stays
        known = [path] if stays else []


def test_resume_recomputes_a_finished_run_with_its_recorded_resources(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = Resources(ray_address="auto", max_failures=7).model_dump(mode="json")
    record = {"run": "abcdef", "audit": "exposure", "recipe": recipe().model_dump(mode="json"), "resources": resources}
    (tmp_path / "manifest.json").write_text(
        json.dumps(record | {"finished": 1.0, "title": "t", "artifacts": {}, "findings": [FINDING]})
    )
    store.publish("runs/abcdef/manifest.json", tmp_path / "manifest.json")
    asked: list[Any] = []
    monkeypatch.setattr(flows.cli.running, "_carry_out", lambda *given, **more: asked.append(given))
    assert main(["resume", "abc", "--store", store.uri]) == 0
    assert asked[0][0].resources == Resources(max_failures=7)  # a store chooses no cluster


def test_a_damaged_record_of_a_run_is_replaced(store: Store, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"run": "abcd')
    store.publish("runs/abcdef/manifest.json", tmp_path / "manifest.json")
    (entry,) = _history(store, Work(), "abcdef")
    assert entry.computed == 0


def test_a_failed_run_is_listed_and_resumed_with_its_settings(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RunError), announced(store, "exposure", recipe(), Resources(max_failures=7), []):
        raise RunError("lost")
    (note,) = unfinished(store)
    asked: list[Any] = []
    monkeypatch.setattr(flows.cli.running, "_carry_out", lambda *given, **more: asked.append((*given, more)))
    where = ["--store", store.uri]
    assert main(["runs", *where]) == 0
    assert f"memlib resume {note.run}" in capsys.readouterr().out
    assert main(["resume", note.run[:5], "--set", "resources.workers_per_model=2", *where]) == 0
    (request, uri, *_) = asked[0]
    audit, content, machines = request.audit.name, request.recipe, request.resources
    assert (audit, uri) == ("exposure", store.uri)
    assert content == recipe()
    assert machines == Resources(max_failures=7, workers_per_model=2)
    assert main(["resume", note.run, "--set", "training.epochs=1", *where]) == 2
    assert "changes the recipe; resume can change only resources" in capsys.readouterr().err
    assert main(["resume", "zzz", *where]) == 2
    assert "no run" in capsys.readouterr().err


def test_a_run_that_is_resumed_keeps_its_plan_and_the_look_of_its_sweep(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {"audit": "exposure", "title": "t", "frozen": 1.0, "recipe": {}, "asks": "a" * 64, "looks": 1}
    file = PlanFile(format=1, plan=sealed(plan))
    with pytest.raises(RunError), announced(store, "exposure", recipe(), Resources(), [], plan=file, look="ab"):
        raise RunError("lost")
    (note,) = unfinished(store)
    asked: list[Any] = []
    monkeypatch.setattr(flows.cli.running, "_carry_out", lambda *given, **more: asked.append(given))
    assert main(["resume", note.run, "--store", store.uri]) == 0
    assert given_plan(asked[0][2]) == file
    assert asked[0][2].look == "ab"
    context = Context(store, options=asked[0][2])
    assert context.work.plan == file
    (path,) = Path(store.root).glob("requests/*.json")
    path.write_text(path.read_text().replace('"looks": 1', '"looks": 2'))
    monkeypatch.undo()
    assert main(["resume", note.run, "--store", store.uri]) == 2
    assert "the plan that the run was given is not intact" in capsys.readouterr().err


def test_a_store_reserves_no_more_for_a_stage_than_the_machine_has(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = {"cpus": 4096, "gpus": 8.0, "memory_gb": 1e6, "parallel": 3, "timeout": 60.0}
    planted = Resources.model_validate({"stages": {"train": needs, "score": {"cpus": 2}}})
    with pytest.raises(RunError), announced(store, "exposure", recipe(), planted, []):
        raise RunError("lost")
    (note,) = unfinished(store)
    asked: list[Any] = []
    monkeypatch.setattr(flows.cli.running, "_carry_out", lambda *given, **more: asked.append(given))
    monkeypatch.setattr(flows.cli.running, "cores", lambda: 4)
    monkeypatch.setattr(flows.cli.running, "_gpus", lambda: 1)
    monkeypatch.setattr(flows.cli.running, "memory", lambda: 16.0 * 2**30)
    assert main(["resume", note.run, "--store", store.uri]) == 0
    said = capsys.readouterr().err
    assert "resources of the run: stages" in said
    assert "'cpus': 4, " in said
    assert "4096" not in said
    granted = asked[0][0].resources.stages
    assert granted["train"].model_dump(exclude_defaults=True) == {
        "cpus": 4, "gpus": 1, "memory_gb": 16.0, "parallel": 3, "timeout": 60.0
    }  # fmt: skip
    assert granted["score"].model_dump(exclude_defaults=True) == {"cpus": 2}
    own = ["--set", "resources.stages.train.cpus=64", "--set", "resources.ray_address=10.0.0.1:6379"]
    assert main(["resume", note.run, "--store", store.uri, *own]) == 0
    assert asked[1][0].resources.stages["train"].cpus == 64
    assert asked[1][0].resources.stages["train"].gpus == 8  # of the user's cluster


def test_a_store_chooses_no_cluster_and_no_more_workers_than_there_are_cores(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever controls a Ray cluster runs code as the user who connects to it."""
    planted = Resources(ray_address="10.0.0.1:6379", workers_per_model=500, max_failures=7)
    with pytest.raises(RunError), announced(store, "exposure", recipe(), planted, []):
        raise RunError("lost")
    (note,) = unfinished(store)
    asked: list[Any] = []
    monkeypatch.setattr(flows.cli.running, "_carry_out", lambda *given, **more: asked.append(given))
    monkeypatch.setattr(flows.cli.running, "cores", lambda: 4)
    where = ["--store", store.uri]
    assert main(["resume", note.run, *where]) == 0
    said = capsys.readouterr().err
    assert "if you trust this address" in said
    assert "--set resources.ray_address=10.0.0.1:6379" in said
    assert "resources of the run: workers_per_model 4, max_failures 7" in said
    assert main(["resume", note.run, "--set", "resources.ray_address=10.0.0.1:6379", *where]) == 0
    assert [given[0].resources.ray_address for given in asked] == [None, "10.0.0.1:6379"]
    assert asked[0][0].resources.workers_per_model == 4
    recorded = next(p for p in store.listing("requests") if note.run in p)
    content = json.loads(store.published(recorded) or b"")
    for spelled in ("500", 500.0):
        content["resources"]["workers_per_model"] = spelled
        store.publish(recorded, json.dumps(content).encode())
        assert main(["resume", note.run, *where]) == 0
        assert asked[-1][0].resources.workers_per_model == 4
