"""Costs are estimated from the most similar artifacts; a plan knows what it cannot estimate."""

import json
from pathlib import Path

import pytest

from memlib.errors import MissingArtifact
from memlib.planning import Costs, Plan
from memlib.records import sealed
from memlib.store import Ref, Store


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


def test_costs_are_those_of_the_most_alike_by_unit(store: Store) -> None:
    for i in range(6):
        commit(store, Ref("train", f"{i:032d}"), {"model": {"kind": "small"}, "seed": i}, seconds=10 + i, units=100)
        commit(store, Ref("train", f"{i + 50:032d}"), {"model": {"kind": "large"}, "seed": i}, seconds=1000, units=100)
    costs = Costs(store)
    small = costs.estimate("train", {"model": {"kind": "small"}, "seed": 77}, 200)
    assert 20 <= small <= 30
    assert costs.estimate("train", {"model": {"kind": "large"}, "seed": 77}, 50) == 500
    assert costs.estimate("embed", {}, 1) is None


def test_a_plan_says_what_is_there_and_where_it_cannot_look_further(store: Store) -> None:
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


def test_what_is_missing_says_which_it_is(store: Store) -> None:
    with pytest.raises(MissingArtifact) as missing:
        store.artifacts.manifest(Ref("train", "0" * 32))
    assert missing.value.ref == Ref("train", "0" * 32)
