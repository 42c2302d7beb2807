"""Training and querying of shadow models: subsets, extension, queries, and the same answers in every arrangement."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memlib
from memlib.audits.membership.recipe import QueriesSpec, Recipe
from memlib.audits.membership.shadows import FitEstimators, variants
from memlib.data.stages import HoldOut, TrainingData, decode
from memlib.data.subsets import Subsets
from memlib.errors import UserError
from memlib.findings import Findings
from memlib.running.runners import PlainRunner
from memlib.specs import ClassifierSpec, DataSpec, HoldOutSpec, TrainingSpec
from memlib.specs.models import ForestSpec
from memlib.store import Store
from memlib.training.small_nets import TrainSubsets

DIGITS = {"source": {"kind": "digits"}, "image_size": 8, "channels": 1}
FILES = ("earlier.npy", "odds.npy")
NET = {
    "audit": "membership",
    "data": DIGITS,
    "split": {"train_per_class": 20, "held_out_per_class": 5},
    "model": {"architecture": "mlp", "widths": [16]},
    "training": {
        "objective": {"kind": "supervised"}, "epochs": 20, "batch_size": 25, "augment": None,
        "optimizer": {"learning_rate": 0.005, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"},
    },
    "shadows": {"count": 8, "chunk": 4},
    "score": {"redraws": 999},
    "report": {"gallery": 2},
}  # fmt: skip


def changed(**changes: Any) -> dict[str, Any]:
    return {**NET, **changes}


@pytest.fixture
def data(tmp_path: Path) -> TrainingData:
    """Twenty digits of each class."""
    runner = PlainRunner(Store(str(tmp_path / "store")))
    shard = decode(runner, DataSpec.model_validate(DIGITS))
    return TrainingData(shard, runner.run(HoldOut(HoldOutSpec(train_per_class=20), shard)))


def stages(store: str) -> dict[str, set[str]]:
    """Return the keys of committed artifacts by stage."""
    root = Path(store) / "artifacts"
    return {place.name: {one.name for one in place.iterdir()} for place in root.iterdir() if place.is_dir()}


@pytest.fixture(scope="module")
def few_shadows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("shadows") / "store"
    with pytest.warns(UserWarning, match="8 shadow models say little"):
        memlib.run(NET, store=str(store), quiet=True)
    return store


@pytest.fixture
def copy(few_shadows: Path, tmp_path: Path) -> str:
    """A copy of the store of the audit with few shadow models."""
    shutil.copytree(few_shadows, tmp_path / "store", symlinks=True)
    return str(tmp_path / "store")


def test_more_shadows_train_only_the_additional_ones(copy: str) -> None:
    store, few = copy, stages(copy)
    plan = memlib.plan(changed(shadows={"count": 16, "chunk": 4}), store=store)
    new = {stage: sum(not part.hit for part in parts) for stage, parts in plan.by_stage()}
    assert (new["train_subsets"], new["observe_members"]) == (2, 2)
    memlib.run(changed(shadows={"count": 16, "chunk": 4}), store=store, quiet=True)
    many = stages(store)
    assert few["train_subsets"] < many["train_subsets"]
    assert len(many["train_subsets"]) == 1 + 4


def test_a_plan_lists_all_stages_of_a_thousand_shadow_models(tmp_path: Path) -> None:
    plan = memlib.plan(changed(shadows={"count": 1000, "chunk": 4}), store=str(tmp_path / "store"))
    assert {stage: len(parts) for stage, parts in plan.by_stage()}["train_subsets"] == 251
    assert not plan.blocked


def test_estimators_answer_members_more_confidently(data: TrainingData) -> None:
    subsets = Subsets(data, tuple(range(6)), 0.5, 0)
    answers = (
        PlainRunner(data.store).run(FitEstimators(subsets, ForestSpec(kind="forest", trees=20), tuple(range(6)))).content
    )
    inside = subsets.inside
    assert answers.odds.shape == (6, 1, 200)
    assert answers.odds[:, 0][inside].mean() > answers.odds[:, 0][~inside].mean() + 1
    assert answers.correct[inside].mean() > answers.correct[~inside].mean()


def test_estimators_do_not_depend_on_the_chunk(data: TrainingData) -> None:
    runner, kind = PlainRunner(data.store), ForestSpec(kind="forest", trees=5)
    whole = runner.run(FitEstimators(Subsets(data, (0, 1, 2), 0.5, 0), kind, (5, 6, 7))).content
    single = runner.run(FitEstimators(Subsets(data, (1,), 0.5, 0), kind, (6,))).content
    assert (whole.odds[1] == single.odds[0]).all()


def test_queries_begin_with_the_unchanged_image() -> None:
    images = np.random.default_rng(0).integers(0, 255, (3, 6, 6, 1), dtype=np.uint8)
    found = variants(images, QueriesSpec(flip=True, shift=2))
    assert len(found) == QueriesSpec(flip=True, shift=2).count == 10
    assert (found[0] == images).all()
    assert (found[5] == images[:, :, ::-1]).all()
    assert (found[1][:, 2:] == images[:, :-2]).all()
    assert (found[1][:, 0] == images[:, 0]).all()


def test_a_flipped_query_adds_a_row_of_answers(copy: str) -> None:
    unflipped = set(Path(copy).rglob("odds.npy"))
    run = memlib.run(changed(queries={"flip": True}), store=copy, quiet=True)
    assert run.tables["units"].num_rows == 200
    odds = [np.load(path) for path in set(Path(copy).rglob("odds.npy")) - unflipped]
    assert odds
    assert {values.shape[1:] for values in odds} == {(2, 200)}
    assert all((values[:, 0] != values[:, 1]).any() for values in odds)


FOLLOWED: dict[str, Any] = {"score": {"redraws": 999, "attacks": ["lira", "trajectory"], "headline": "trajectory"}}


def test_answers_after_earlier_epochs_are_those_of_shorter_trainings(tmp_path: Path) -> None:
    stores = [str(tmp_path / name) for name in ("followed", "short")]  # two, as their answers are told apart by the store
    how = {**NET["training"], "checkpoint_epochs": [4, 10]}  # type: ignore[dict-item]
    run = memlib.run(changed(training=how, **FOLLOWED), store=stores[0], quiet=True)
    memlib.run(changed(training={**NET["training"], "epochs": 4}), store=stores[1], quiet=True)  # type: ignore[dict-item]
    earlier, short = ([np.load(path) for path in Path(store).rglob(name)] for store, name in zip(stores, FILES, strict=True))
    for values in earlier:
        assert values.shape[1] == 2
        assert min(float(np.abs(values[:, 0] - odds[:, 0]).max()) for odds in short if len(odds) == len(values)) < 1e-3
    scores = run.tables["units"]["trajectory"].to_numpy()
    assert np.isfinite(scores).all()
    assert "trajectory through training" in run.verdict.sentence


def test_self_influence_is_that_of_the_target_after_each_kept_epoch(tmp_path: Path) -> None:
    how = {**NET["training"], "checkpoint_epochs": [2, 5]}  # type: ignore[dict-item]
    followed = changed(training=how, score={"redraws": 999, "self_influence": True}, shadows={"count": 16, "chunk": 8})
    run = memlib.run(followed, store=str(tmp_path / "store"), quiet=True)
    rows = list(Findings.read(run.summary).all("self_influence_rank_correlation"))
    assert [(row.params["with"], row.params["checkpoints"]) for row in rows] == [("memorization", 3), ("lira", 3)]
    assert rows[0].value > 0.1  # an example that a model has to remember has large gradients
    assert {row.n for row in rows} == {run.tables["units"]["member"].to_pylist().count(True)}
    norms = [np.load(path) for path in (tmp_path / "store").rglob("norms.npy")]
    assert [values.shape for values in norms] == [(200,)] * 3
    assert all((one != other).any() for one, other in pairwise(norms))


def test_large_nets_are_trained_one_by_one(tmp_path: Path) -> None:
    large = changed(
        model={"architecture": "three_block"}, data={**DIGITS, "image_size": 28}, shadows={"count": 4},
        split={"train_per_class": 6}, training={**NET["training"], "epochs": 2, "batch_size": 10},  # type: ignore[dict-item]
    )  # fmt: skip
    run = memlib.run(large, store=str(tmp_path / "store"), quiet=True)
    assert len(stages(str(tmp_path / "store"))["train_subset"]) == 5
    assert run.tables["models"].num_rows == 5
    large["training"]["checkpoint_epochs"] = [1]
    run = memlib.run(large | FOLLOWED, store=str(tmp_path / "store"), quiet=True)
    assert run.tables["units"]["trajectory"].null_count == 0


def test_nets_without_a_batch_size_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size is missing"):
        Recipe.model_validate(changed(training={**NET["training"], "batch_size": None}))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": None}, "needs training; add it"),
        ({"model": {"kind": "forest"}}, "not for a forest; remove it"),
        ({"score": {"attacks": ["loss"]}}, "headline lira is not in"),
        ({"score": {"self_influence": True}, "model": {"kind": "forest"}, "training": None}, "leave it out"),
        (
            FOLLOWED | {"training": {**NET["training"], "checkpoint_epochs": [2], "patience": 3}},
            "set training.patience to null",
        ),
        (FOLLOWED, "after several epochs of a network"),
        (FOLLOWED | {"training": {**NET["training"], "checkpoint_epochs": [20]}}, "after several epochs of a network"),
        (FOLLOWED | {"model": {"kind": "forest"}, "training": None}, "after several epochs of a network"),
        ({"shadows": {"share": 0.7}, "privacy": {"epsilon": 1}}, "fair coin"),
        ({"target": {"members": "list.csv"}}, "give both or neither"),
        ({"target": {"outputs": {"path": "a.csv"}}}, "give both or neither"),
    ],
)
def test_membership_recipes_with_contradictory_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe.model_validate(changed(**changes))


def test_a_batch_larger_than_a_training_set_is_refused(tmp_path: Path) -> None:
    many = changed(training={**NET["training"], "batch_size": 5000})  # type: ignore[dict-item]
    with pytest.raises(UserError, match="batch_size 5000"):
        memlib.run(many, store=str(tmp_path / "store"), quiet=True)


def test_the_identity_of_a_stage_depends_on_its_subsets(data: TrainingData) -> None:
    training = TrainingSpec.model_validate(NET["training"])
    model = ClassifierSpec(architecture="mlp", widths=(16,))
    stage = TrainSubsets(Subsets(data, (0, 1), 0.5, 0), model, training, (1, 2))
    assert stage.identity.ref != TrainSubsets(Subsets(data, (0, 1), 0.5, 1), model, training, (1, 2)).identity.ref
    assert stage.spec["models"] == [0, 1]
