"""Artifacts made from earlier content are recomputed, with all that depends on them; trained models only on demand."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tasks.stage
from memlib.errors import RunError
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Runner, Stage
from memlib.running.planning import Plan, PlanRunner
from memlib.specs.resources import RunOptions
from memlib.store import Attempt, Ref, Store
from tasks.runtime import Context
from tasks.stage import StageRunner


@dataclass(frozen=True)
class Step(Stage[None]):
    """Writes an array; each step is a class of its own."""

    read: dict[str, Any]
    value: Any

    @property
    def spec(self) -> dict[str, Any]:
        return {}

    @property
    def inputs(self) -> dict[str, Any]:
        return self.read

    def write(self, attempt: Attempt, device: torch.device) -> None:
        np.save(attempt.path("a.npy"), self.value)

    @classmethod
    def open(cls, artifact: Artifact[None]) -> None:
        return None


def step(name: str, code: str = "first", place: str = "driver") -> type[Step]:
    kind = {"declared": Declared(name, 1), "title": name, "place": place, "code": classmethod(lambda cls: code)}
    return dataclass(frozen=True)(type(f"Step_{name}", (Step,), kind))


EMBED, SEARCH, SCORE = step("embed"), step("search"), step("score")
LATER = step("search", "second")  # the same version, other code


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr("tasks.display.is_gone", lambda: True)  # without Prefect
    return Store(str(tmp_path / "store"))


def pipeline(
    context: Context, neighbor: int = 1, search: type[Step] = SEARCH, last: type[Step] = SCORE, embed: type[Step] = EMBED
) -> list[str]:
    """embed -> search -> score, with what each computes written down in the order of computing."""
    carry_out(StageRunner(context), neighbor, search, last, embed)
    return [name.split("/")[0] for name in context.computed]


def carry_out(
    runner: Runner,
    neighbor: int = 1,
    search: type[Step] = SEARCH,
    last: type[Step] = SCORE,
    embed: type[Step] = EMBED,
) -> None:
    floats = np.ones(3, dtype=np.float32) + np.random.default_rng().uniform()
    embedded = runner.run(embed({"model": "m"}, floats))
    searched = runner.run(search({"queries": embedded.key}, np.array([neighbor])))
    runner.run(last({"searches": [[searched.key]], "other": {"embedded": embedded.key}}, np.array([0])))


def test_a_forced_stage_recomputes_its_readers_if_it_gives_other_floats(store: Store) -> None:
    assert pipeline(Context(store)) == ["embed", "search", "score"]
    assert pipeline(Context(store)) == []
    assert pipeline(Context(store, options=RunOptions(force=("embed",)))) == ["embed", "search", "score"]
    assert pipeline(Context(store, options=RunOptions(force=("search",)))) == ["search"]  # its numbers are equal


def test_scores_of_changed_neighbours_are_recomputed(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline(Context(store))
    assert pipeline(Context(store, options=RunOptions(force=("search",))), neighbor=2) == ["search", "score"]
    assert "score" in capsys.readouterr().err
    assert pipeline(Context(store), neighbor=2) == []


def test_changed_code_recomputes_the_stages_that_read_its_floats(store: Store) -> None:
    pipeline(Context(store))
    context = Context(store, options=RunOptions(force=("embed",)))
    assert pipeline(context, embed=step("embed", "second")) == ["embed", "search", "score"]


def test_artifacts_of_changed_code_with_the_same_version_are_reused_with_a_warning(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline(Context(store))
    assert pipeline(Context(store), search=LATER) == []
    assert "search: its code has changed" in capsys.readouterr().err.replace("\n", " ")
    plan = Plan(store)
    carry_out(PlanRunner(plan), search=LATER)
    assert any("--force-stage search" in line for line in plan.all_limits)


def test_plan_names_the_stages_that_depend_on_a_forced_one(store: Store) -> None:
    pipeline(Context(store))
    plan = Plan(store)
    carry_out(PlanRunner(plan, forced={"embed"}))
    assert plan.cascade() == {"search": ["embed"], "score": ["search", "embed"]}
    assert [part.hit for part in plan.parts.values()] == [False, True, True]
    settled = Plan(store)
    carry_out(PlanRunner(settled))
    assert settled.cascade() == {}


def test_plan_counts_stages_after_an_already_changed_artifact_as_misses(store: Store) -> None:
    pipeline(Context(store))
    context = Context(store, options=RunOptions(force=("search",)))
    embedded = next(iter(context.store.names("artifacts/embed")))
    StageRunner(context).run(SEARCH({"queries": embedded}, np.array([7])))  # by a run that was killed after it
    plan = Plan(store)
    carry_out(PlanRunner(plan))
    assert [(part.ref.stage, part.hit) for part in plan.parts.values()] == [
        ("embed", True),
        ("search", True),
        ("score", False),
    ]


def trained_here(context: Context, missing: dict[Ref, Step], of: int, bars: object) -> None:
    for ref, stage in missing.items():
        with context.store.artifacts.write(ref, **context.record_of(stage)) as attempt:
            stage.write(attempt, torch.device("cpu"))


def test_models_are_trained_again_only_on_demand(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    train = step("train", place="fleet")
    monkeypatch.setattr(tasks.stage, "train_missing", trained_here)
    pipeline(Context(store), last=train)
    with pytest.raises(RunError, match="--cascade trains the model again"):
        pipeline(Context(store, options=RunOptions(force=("search",))), neighbor=2, last=train)
    assert len(store.names("artifacts/train")) == 1
    assert pipeline(Context(store, options=RunOptions(cascade=True)), neighbor=2, last=train) == ["train"]


def test_artifacts_without_recorded_content_digests_are_reused(store: Store) -> None:
    pipeline(Context(store))
    for name in ("embed", "search", "score"):
        (key,) = store.names(f"artifacts/{name}")
        path = Path(store.uri) / "artifacts" / name / key / "manifest.json"
        said = json.loads(path.read_text())
        path.write_text(
            json.dumps({k: v for k, v in said.items() if k not in ("content", "reads", "code", "digest", "version")})
        )
    assert pipeline(Context(store)) == []
    assert pipeline(Context(store, options=RunOptions(force=("search",))), neighbor=2) == [
        "search"
    ]  # nobody knows what score read
