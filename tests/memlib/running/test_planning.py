"""Costs are estimated from the most similar artifacts; a plan knows what it cannot estimate."""

import json
from pathlib import Path

import pytest

from memlib.errors import MissingArtifact, UnknownUntilRun
from memlib.running.planning import Costs, Plan, in_time
from memlib.store import Ref, Store
from memlib.store.records import sealed


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def commit(store: Store, ref: Ref, spec: object, seconds: float, units: float) -> None:
    with store.artifacts.write(ref, spec=spec, units=units) as attempt:
        attempt.path("a").write_text("a")
    file = Path(store.uri) / "artifacts" / str(ref) / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["metrics"]["seconds"] = seconds
    file.write_text(json.dumps(sealed(manifest)))


def test_costs_are_estimated_per_unit_from_the_most_similar_artifacts(store: Store) -> None:
    for i in range(6):
        commit(store, Ref("train", f"{i:032d}"), {"model": {"kind": "small"}, "seed": i}, seconds=10 + i, units=100)
        commit(store, Ref("train", f"{i + 50:032d}"), {"model": {"kind": "large"}, "seed": i}, seconds=1000, units=100)
    costs = Costs(store)
    small = costs.estimate("train", {"model": {"kind": "small"}, "seed": 77}, 200)
    assert 20 <= small <= 30
    assert costs.estimate("train", {"model": {"kind": "large"}, "seed": 77}, 50) == 500
    assert costs.estimate("embed", {}, 1) is None


def test_plan_lists_hits_misses_and_the_stages_blocked_by_a_missing_artifact(store: Store) -> None:
    there, absent = Ref("decode", "0" * 32), Ref("split", "1" * 32)
    commit(store, there, {}, 1, 1)
    plan = Plan(store)
    with plan.following(("decode", "split", "train", "report")):
        plan.note(there, {}, 1)
        plan.note(there, {}, 1)
        plan.note(absent, {}, 1)
        store.artifacts.local_path(absent, "splits.parquet")
    assert [(part.ref, part.hit) for part in plan.parts.values()] == [(there, True), (absent, False)]
    assert plan.blocked == {absent: ("train", "report")}
    with plan.following(("decode", "report")):  # another flow, which gets to its end
        plan.note(Ref("report", "2" * 32), {}, 1)
    assert plan.blocked == {absent: ("train", "report")}
    assert [stage for stage, _ in plan.by_stage()] == ["decode", "split", "report"]
    forced = Plan(store)
    forced.note(there, {}, 1, forced=True)
    assert not forced.parts[there].hit
    assert forced.parts[there].seconds == 1


def test_missing_artifact_error_carries_its_reference(store: Store) -> None:
    with pytest.raises(MissingArtifact) as missing:
        store.artifacts.manifest(Ref("train", "0" * 32))
    assert missing.value.ref == Ref("train", "0" * 32)


def test_a_plan_that_knows_no_stage_estimates_nothing(store: Store) -> None:
    """Such a recipe has data made by code, which a plan does not run."""
    plan = Plan(store)
    with plan.following(("decode", "split")):
        raise UnknownUntilRun("the result of a:b")
    assert plan.seconds is None
    assert plan.cost == "no cost estimate: the stages to compute are not known before the run"
    assert plan.as_json()["seconds"] is None
    assert plan.cost in str(plan)


def test_cost_is_unknown_or_a_lower_bound_where_similar_artifacts_are_missing(store: Store) -> None:
    there, known, unknown = Ref("decode", "0" * 32), Ref("decode", "1" * 32), Ref("train", "2" * 32)
    commit(store, there, {}, 30, 1)
    plan = Plan(store)
    plan.note(there, {}, 1)
    assert (plan.seconds, plan.cost) == (0, "nothing to compute: all stages are in the store")
    plan.note(unknown, {}, 1)
    assert plan.seconds is None
    assert plan.cost == "no cost estimate: this store has no similar artifacts yet"
    plan.note(known, {}, 1)
    assert plan.seconds == 30
    assert plan.cost.startswith("to compute: at least 30 s on one worker")


def test_a_stage_that_may_be_computed_again_is_not_free(store: Store) -> None:
    first, second = Ref("decode", "0" * 32), Ref("split", "1" * 32)
    commit(store, first, {}, 0.01, 1)
    commit(store, second, {}, 100, 1)
    plan = Plan(store)
    plan.note(first, {}, 1, forced=True)
    assert plan.cost.startswith("to compute: less than 1 s on one worker")
    plan.note(second, {}, 1, before=[first])
    assert plan.parts[second].hit
    assert plan.cost == "no cost estimate: the stages to compute are not known before the run"


def test_a_plan_that_stops_early_is_a_lower_bound(store: Store) -> None:
    commit(store, Ref("split", "0" * 32), {}, 7, 1)
    plan = Plan(store)
    with plan.following(("split", "train")):
        plan.note(Ref("split", "1" * 32), {}, 1)
        store.artifacts.local_path(Ref("split", "1" * 32), "splits.parquet")
    assert plan.cost.startswith("to compute: at least 7 s on one worker")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "less than 1 s"), (0.6, "1 s"), (119, "119 s"), (180, "3 min"), (7200, "2.0 h")]
)
def test_in_time_prints_seconds_minutes_or_hours(seconds: float, text: str) -> None:
    assert in_time(seconds) == text
