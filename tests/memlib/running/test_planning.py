"""A plan knows what is in the store, and what its price leaves out."""

import json
from pathlib import Path

import pytest

from memlib.errors import MissingArtifact, UnknownUntilRun
from memlib.pricing.machines import ASSUMED
from memlib.pricing.price import Price, StagePrice
from memlib.running.planning import Plan, in_time
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


def test_plan_lists_hits_misses_and_the_stages_blocked_by_a_missing_artifact(store: Store) -> None:
    there, absent = Ref("decode", "0" * 32), Ref("split", "1" * 32)
    commit(store, there, {}, 1, 1)
    plan = Plan(store)
    with plan.following(("decode", "split", "train", "report")):
        plan.note(there)
        plan.note(there)
        plan.note(absent)
        store.artifacts.local_path(absent, "splits.parquet")
    assert [(part.ref, part.hit) for part in plan.parts.values()] == [(there, True), (absent, False)]
    assert plan.blocked == {absent: ("train", "report")}
    with plan.following(("decode", "report")):  # another flow, which gets to its end
        plan.note(Ref("report", "2" * 32))
    assert plan.blocked == {absent: ("train", "report")}
    assert [stage for stage, _ in plan.by_stage()] == ["decode", "split", "report"]
    forced = Plan(store)
    forced.note(there, forced=True)
    assert not forced.parts[there].hit


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


def priced(store: Store, seconds: float, **stopped: str) -> Plan:
    stages = {"decode": StagePrice("decode", 1, cpu_seconds=seconds, wall_seconds=seconds, factor=1.5)}
    return Plan(store, pricing=lambda: Price(ASSUMED, stages, stopped))


def test_a_price_is_a_lower_bound_where_a_stage_has_none(store: Store) -> None:
    there, missing = Ref("decode", "0" * 32), Ref("decode", "1" * 32)
    commit(store, there, {}, 30, 1)
    plan = priced(store, 30)
    plan.note(there)
    assert (plan.seconds, plan.cost) == (0, "nothing to compute: all stages are in the store")
    plan = priced(store, 30)
    plan.note(missing)
    assert plan.seconds == 30
    assert plan.cost.startswith("to compute: 30 s of one core, give or take a factor of 1.5;")
    plan = priced(store, 30, train="split decides")
    plan.note(missing)
    assert plan.cost.startswith("to compute: at least 30 s of one core")
    assert priced(store, 0.1, train="split decides").seconds is None


def test_a_stage_that_may_be_computed_again_is_not_free(store: Store) -> None:
    first, second = Ref("decode", "0" * 32), Ref("split", "1" * 32)
    commit(store, first, {}, 0.01, 1)
    commit(store, second, {}, 100, 1)
    plan = priced(store, 30)
    plan.note(first, forced=True)
    assert plan.cost.startswith("to compute: 30 s")
    plan.note(second, before=[first])
    assert plan.parts[second].hit
    assert plan.cost.startswith("to compute: at least 30 s")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "less than 1 s"), (0.6, "1 s"), (119, "119 s"), (180, "3 min"), (7200, "2.0 h")]
)
def test_in_time_prints_seconds_minutes_or_hours(seconds: float, text: str) -> None:
    assert in_time(seconds) == text
