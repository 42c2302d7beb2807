"""More answers of the target: equal to those that the audit has already, whatever kind of model it is."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

from memlib.audits.membership.recipe import QueriesSpec
from memlib.audits.membership.shadows import FitEstimators, Observe, flat_points
from memlib.audits.membership.target import MOST_VALUES, Columns, Loaded, QueryTarget, ReadColumns, Refitted, TargetAnswers
from memlib.data.splits import TRAIN, column
from memlib.data.stages import HoldOut, TrainingData, decode
from memlib.data.subsets import TARGET, Subsets
from memlib.errors import UserError
from memlib.running.runners import PlainRunner
from memlib.specs import ClassifierSpec, DataSpec, ExternalClassifierSpec, HoldOutSpec, TrainingSpec
from memlib.specs.models import ForestSpec, LogisticSpec, SvmSpec
from memlib.store import Store
from memlib.training.small_nets import TrainSubsets
from tests.memlib.audits.membership.small_tables import COLUMNS, rows_of, write_table

TRAINING = {
    "objective": {"kind": "supervised"}, "epochs": 3, "batch_size": 20, "augment": None,
    "optimizer": {"learning_rate": 0.01, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"},
}  # fmt: skip


class World:
    """A table of 80 rows, decoded, with two hidden columns; one row has no colour."""

    def __init__(self, folder: Path) -> None:
        rows = rows_of(80)
        rows[7][2] = ""
        spec = DataSpec.model_validate(write_table(folder / "a.csv", rows))
        self.runner = PlainRunner(Store(str(folder / "store")))
        shard = decode(self.runner, spec)
        self.data = TrainingData(shard, self.runner.run(HoldOut(HoldOutSpec(), shard)))
        self.columns = self.runner.run(ReadColumns(spec, shard, None, ("colour", "sex")))
        self.subsets = Subsets(self.data, (TARGET,), 0.5, 0)

    def query(self, target: Refitted | Loaded) -> TargetAnswers:
        return self.runner.run(QueryTarget(self.data, target, self.columns)).content

    @property
    def points(self) -> Any:
        return flat_points(self.data)[column(self.data.members(TRAIN), "row")]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def own_odds(found: TargetAnswers, name: str) -> tuple[Any, Any]:
    """Return the odds at the true value of a column, and the rows that have one."""
    guesses = found.guesses[name]
    known = np.flatnonzero(guesses.values >= 0)
    return guesses.odds[known, guesses.values[known]], known


@pytest.mark.parametrize("model", [ForestSpec(kind="forest", trees=9), LogisticSpec(kind="logistic")])
def test_a_refitted_estimator_gives_the_same_answers(world: World, model: Any) -> None:
    answers = world.runner.run(FitEstimators(world.subsets, model, (5,))).content
    found = world.query(Refitted(world.subsets, model, 5))
    for name in ("colour", "sex"):
        odds, known = own_odds(found, name)
        assert np.allclose(odds, answers.odds[0, 0, known], atol=1e-6)
    assert (found.guesses["colour"].values < 0).sum() == 1
    assert found.guesses["colour"].odds.shape == (80, 3)
    assert np.allclose(found.outputs.sum(axis=1), 1)


def test_votes_are_not_smoothed(world: World) -> None:
    found = world.query(Refitted(world.subsets, ForestSpec(kind="forest", trees=9), 5))
    assert (found.outputs.max(axis=1) == 1).any()
    assert np.allclose(found.outputs * 9, np.rint(found.outputs * 9))
    assert found.parameters is None


def test_a_reloaded_small_net_gives_the_same_answers(world: World) -> None:
    model, training = ClassifierSpec(architecture="mlp", widths=(8,)), TrainingSpec.model_validate(TRAINING)
    nets = world.runner.run(TrainSubsets(world.subsets, model, training, (1,)))
    answers = world.runner.run(Observe(world.data, nets, 3, QueriesSpec())).content
    found = world.query(Loaded(nets, 3))
    odds, known = own_odds(found, "sex")
    assert np.allclose(odds, answers.odds[0, 0, known], atol=1e-4)
    assert found.parameters == (world.points.shape[1] + 1) * 8 + (8 + 1) * 2
    assert not found.instance_based


@pytest.fixture
def external(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that returns the spec of a factory of some model."""

    def spec_of(model: Any) -> ExternalClassifierSpec:
        module = ModuleType("mine")
        module.build = lambda: model  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mine", module)
        monkeypatch.setenv("MEMLIB_CODE", f"mine,{__name__}")
        return ExternalClassifierSpec(model="mine:build", version="1")

    return spec_of


def test_an_external_estimator_is_queried_for_its_votes(world: World, external: Any) -> None:
    rows, labels = world.subsets.seen_by(0)
    points = flat_points(world.data)
    nearest = KNeighborsClassifier(3).fit(points[rows], labels)
    found = world.query(Loaded(external(nearest), 0))
    assert np.allclose(found.outputs, nearest.predict_proba(world.points))
    assert found.instance_based
    assert found.guesses["sex"].odds.shape == (80, 2)


def test_an_external_net_is_queried_unchanged(world: World, external: Any) -> None:
    net = nn.Linear(world.points.shape[1], 2)
    found = world.query(Loaded(external(net), 0))
    logits = world.points @ net.weight.detach().numpy().T + net.bias.detach().numpy()
    assert np.allclose(np.log(found.outputs[:, 1] / found.outputs[:, 0]), logits[:, 1] - logits[:, 0], atol=1e-4)
    assert found.parameters == (world.points.shape[1] + 1) * 2


def test_a_support_vector_machine_is_reported_as_instance_based(world: World) -> None:
    assert world.query(Refitted(world.subsets, SvmSpec(kind="svm"), 0)).instance_based


def read(folder: Path, subgroup: str | None = None, hidden: tuple[str, ...] = (), *, constant: str = "") -> Columns:
    rows = rows_of(60)
    for row in rows if constant else []:
        row[COLUMNS.index(constant)] = "same"
    data, runner = DataSpec.model_validate(write_table(folder / "a.csv", rows)), PlainRunner(Store(str(folder / "store")))
    return runner.run(ReadColumns(data, decode(runner, data), subgroup, hidden)).content


def test_values_of_a_subgroup_column_withheld_from_the_model_are_read(tmp_path: Path) -> None:
    values = read(tmp_path, "region").subgroup
    assert values["0000003"] == rows_of(60)[3][COLUMNS.index("region")]
    assert len(values) == 60


def test_hidden_columns_have_their_coordinates_and_categories(tmp_path: Path) -> None:
    hidden = read(tmp_path, None, ("sex", "colour")).hidden
    assert list(hidden) == ["sex", "colour"]
    assert (hidden["colour"].start, hidden["colour"].categories) == (2, ("blue", "green", "red"))
    assert (hidden["sex"].start, hidden["sex"].categories, hidden["sex"].has_missing) == (5, ("f", "m"), False)


@pytest.mark.parametrize(
    ("subgroup", "hidden", "constant", "message"),
    [
        ("height", (), "", "score.subgroup names 'height', but the columns of the table are a, b, colour"),
        ("a", (), "", f"has 60 values; name one with at most {MOST_VALUES}"),
        ("region", (), "region", "has only 1 value; name a column with at least two"),
        (None, ("a",), "", "column a holds numbers; if they stand for categories"),
        (None, ("sex",), "sex", "nothing to guess"),
    ],
)
def test_unusable_columns_are_refused(
    tmp_path: Path, subgroup: str | None, hidden: tuple[str, ...], constant: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, subgroup, hidden, constant=constant)
