"""What was made from another content than is there now is made again, and what comes after it; trained models only on demand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memlib.errors import RunError
from memlib.planning import Plan
from memlib.provenance import Declared
from memlib.store import Attempt, Ref, Store
from memlib.training.fit import TRAIN
from tasks.runtime import Context
from tasks.stage import run_stage

EMBED, SEARCH, SCORE = (Declared(name, 1, ("memlib.identity",)) for name in ("embed", "search", "score"))
LATER = Declared("search", 1, ("memlib.errors",))  # the same version, other code


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def pipeline(context: Context, neighbor: int = 1, search: Declared = SEARCH, last: Declared = SCORE) -> Any:
    """embed -> search -> score, with what each computes written down in the order of computing."""

    def stage(declared: Declared, inputs: dict[str, Any], value: Any) -> Ref:
        def compute(attempt: Attempt) -> None:
            np.save(attempt.path("a.npy"), value)

        found = run_stage(context, declared, spec={}, inputs=inputs, compute=compute)
        return found if isinstance(found, Ref) else found.data  # a state of Prefect's where it was there

    embedded = stage(EMBED, {"model": "m"}, np.ones(3, dtype=np.float32) + np.random.default_rng().uniform())
    searched = stage(search, {"queries": embedded.key}, np.array([neighbor]))
    stage(last, {"searches": [[searched.key]], "other": {"embedded": embedded.key}}, np.array([0]))
    return [name.split("/")[0] for name in context.computed]


def test_nothing_is_made_again_where_nothing_changed(store: Store) -> None:
    assert pipeline(Context(store)) == ["embed", "search", "score"]
    assert pipeline(Context(store)) == []
    assert pipeline(Context(store, forced=frozenset({"embed"}))) == ["embed"]  # its floats are rounded otherwise, no more


def test_what_reads_neighbors_that_have_changed_is_made_again(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline(Context(store))
    assert pipeline(Context(store, forced=frozenset({"search"})), neighbor=2) == ["search", "score"]
    assert "score" in capsys.readouterr().err
    assert pipeline(Context(store), neighbor=2) == []


def test_what_reads_floats_of_other_code_is_made_again(store: Store) -> None:
    pipeline(Context(store))
    other = Declared("embed", 1, ("memlib.errors",))
    context = Context(store, forced=frozenset({"embed"}))
    globals()["EMBED"], before = other, EMBED
    try:
        assert pipeline(context) == ["embed", "search", "score"]
    finally:
        globals()["EMBED"] = before


def test_changed_code_of_one_version_is_said_and_reused(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline(Context(store))
    assert pipeline(Context(store), search=LATER) == []
    assert "search: its code has changed" in capsys.readouterr().err.replace("\n", " ")
    plan = Plan(store)
    pipeline(Context(store, plan=plan), search=LATER)
    assert any("--force-stage search" in line for line in plan.limits)


def test_a_plan_names_the_cascade(store: Store) -> None:
    pipeline(Context(store))
    plan = Plan(store)
    pipeline(Context(store, plan=plan, forced=frozenset({"embed"})))
    assert plan.cascade() == {"search": ["embed"], "score": ["search", "embed"]}
    assert [part.hit for part in plan.parts.values()] == [False, True, True]
    settled = Plan(store)
    pipeline(Context(store, plan=settled))
    assert settled.cascade() == {}


def test_a_plan_knows_what_has_changed_already(store: Store) -> None:
    pipeline(Context(store))

    def compute(attempt: Attempt) -> None:
        np.save(attempt.path("a.npy"), np.array([7]))

    context = Context(store, forced=frozenset({"search"}))
    embedded = next(iter(context.store.names("artifacts/embed")))
    run_stage(context, SEARCH, spec={}, inputs={"queries": embedded}, compute=compute)  # by a run that was killed after it
    plan = Plan(store)
    pipeline(Context(store, plan=plan))
    assert [(part.ref.stage, part.hit) for part in plan.parts.values()] == [
        ("embed", True),
        ("search", True),
        ("score", False),
    ]


def test_models_are_trained_again_only_on_demand(store: Store) -> None:
    train = Declared("train", 1, ("memlib.identity",))
    assert train.name == TRAIN.name
    pipeline(Context(store), last=train)
    with pytest.raises(RunError, match="--cascade trains it again"):
        pipeline(Context(store, forced=frozenset({"search"})), neighbor=2, last=train)
    assert len(store.names("artifacts/train")) == 1
    assert pipeline(Context(store, cascade=True), neighbor=2, last=train) == ["train"]


def test_artifacts_of_before_contents_were_noted_are_reused(store: Store) -> None:
    pipeline(Context(store))
    for name in ("embed", "search", "score"):
        (key,) = store.names(f"artifacts/{name}")
        path = Path(store.uri) / "artifacts" / name / key / "manifest.json"
        said = json.loads(path.read_text())
        path.write_text(
            json.dumps({k: v for k, v in said.items() if k not in ("content", "reads", "code", "digest", "version")})
        )
    assert pipeline(Context(store)) == []
    assert pipeline(Context(store, forced=frozenset({"search"})), neighbor=2) == ["search"]  # nobody knows what score read
