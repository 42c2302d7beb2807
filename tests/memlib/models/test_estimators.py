"""Estimators against scikit-learn's own probabilities, and against votes counted by hand."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from memlib.errors import UserError
from memlib.models.estimators import FittedEstimator, fit_estimator, parameters_of, stores_examples
from memlib.specs import EstimatorSpec
from memlib.stats.likelihood import CLIP, log_odds

ADAPTER: TypeAdapter[EstimatorSpec] = TypeAdapter(EstimatorSpec)
OPTIONS: dict[str, dict[str, Any]] = {
    "forest": {"trees": 20}, "logistic": {}, "boosting": {"iterations": 10}, "nearest": {"k": 4}, "svm": {},
}  # fmt: skip
KINDS = sorted(OPTIONS)
SMOOTHED = {"forest": 20, "nearest": 4}  # votes


def spec_of(kind: str, **options: Any) -> EstimatorSpec:
    return ADAPTER.validate_python({"kind": kind, **OPTIONS.get(kind, {}), **options})


def blobs(num_classes: int, count: int = 120, spread: float = 1.0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Clouds around the corners of a triangle, which overlap."""
    rng = np.random.default_rng(3)
    labels = np.arange(count) % num_classes
    corners = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    return corners[labels] + rng.normal(size=(count, 2)) * spread, labels


def fitted(kind: str, num_classes: int = 3, seed: int = 0, **options: Any) -> FittedEstimator:
    points, labels = blobs(num_classes)
    return fit_estimator(spec_of(kind, **options), points, labels, num_classes=num_classes, seed=seed)


def plain_odds(p: NDArray[np.float64]) -> NDArray[np.float64]:
    odds: NDArray[np.float64] = np.log(p / (1 - p))
    return odds


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_log_odds_equal_those_of_the_librarys_probabilities(kind: str, num_classes: int) -> None:
    model = fitted(kind, num_classes)
    points, labels = blobs(num_classes, 60, spread=2.0)
    odds = model.log_odds(points, labels)
    if kind == "svm":
        decision = model.model.decision_function(points)
        expected = np.where(labels == 1, decision, -decision) if num_classes == 2 else log_odds(decision, labels)
    else:
        own = model.model.predict_proba(points)[np.arange(60), labels]
        votes = SMOOTHED.get(kind)
        expected = plain_odds(own if votes is None else (votes * own + 1 / num_classes) / (votes + 1))
    assert odds.dtype == np.float64
    assert np.allclose(odds, expected, atol=1e-6)
    scores = model.class_scores(points)
    assert scores.shape == (60, num_classes)
    assert np.allclose(np.exp(scores).sum(axis=1), 1)
    assert np.array_equal(log_odds(scores, labels), odds)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_equal_the_librarys_and_log_odds_are_positive_where_correct(kind: str) -> None:
    model = fitted(kind, 2)
    points, labels = blobs(2)
    assert np.array_equal(model.class_scores(points).argmax(axis=1), model.model.predict(points))
    right = model.class_scores(points).argmax(axis=1) == labels
    odds = model.log_odds(points, labels)
    assert (odds[right] >= 0).all()
    assert (odds[~right] <= 0).all()
    assert right.mean() > 0.7
    assert np.allclose(model.log_odds(points, 1 - labels), -odds)  # two classes: the other one has the opposite odds


def test_unanimous_votes_of_two_classes_are_smoothed_by_half_a_vote() -> None:
    points, labels = np.array([[0.0], [0.1], [9.0], [9.1]]), np.array([0, 0, 1, 1])
    forest = fit_estimator(spec_of("forest", trees=100, bootstrap=False), points, labels, num_classes=2, seed=1)
    assert np.allclose(forest.log_odds(points, labels), np.log(100.5 / 0.5))
    near = fit_estimator(spec_of("nearest", k=3), points, labels, num_classes=2, seed=1)
    assert np.allclose(near.log_odds(points, labels), np.log(2.5 / 1.5))  # two of three


def test_margins_do_not_pass_through_rounded_probabilities() -> None:
    points = np.array([[-1.0], [1.0]])
    model = fit_estimator(spec_of("logistic", c=1e6), points, np.array([0, 1]), num_classes=2, seed=0)
    far = points * 22 / float(model.model.coef_[0, 0]) - float(model.model.intercept_[0] / model.model.coef_[0, 0])
    odds = model.log_odds(far, np.array([0, 1]))
    assert np.allclose(odds, 22, atol=1e-6)
    assert np.allclose(model.log_odds(far * 1e4, np.array([0, 1])), CLIP)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_estimator(kind: str) -> None:
    points, labels = blobs(3, 60, spread=2.0)
    first, again = (fitted(kind, seed=5).log_odds(points, labels) for _ in range(2))
    assert np.array_equal(first, again)


def test_another_seed_gives_another_forest_and_the_same_regression() -> None:
    points, labels = blobs(3, 60, spread=2.0)
    odds = {
        (kind, seed): fitted(kind, seed=seed).log_odds(points, labels) for kind in ("forest", "logistic") for seed in (5, 6)
    }
    assert not np.array_equal(odds["forest", 5], odds["forest", 6])
    assert np.array_equal(odds["logistic", 5], odds["logistic", 6])


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_without_training_examples_scores_lowest(kind: str) -> None:
    points, labels = blobs(3)
    kept = labels != 1
    model = fit_estimator(spec_of(kind), points[kept], labels[kept], num_classes=3, seed=0)
    pair = fit_estimator(spec_of(kind), points[kept], labels[kept] // 2, num_classes=2, seed=0)
    scores = model.class_scores(points)
    assert model.present.tolist() == [0, 2]
    assert (scores[:, 1] <= scores.min(axis=1)).all()
    absent = model.log_odds(points, np.ones(len(points), dtype=np.int64))
    none = np.log((1 / 3) / (SMOOTHED[kind] + 2 / 3)) if kind in SMOOTHED else -CLIP
    assert np.allclose(absent, none)
    others = pair.class_scores(points).argmax(axis=1) * 2
    assert np.array_equal(model.class_scores(points).argmax(axis=1), others)
    if kind not in SMOOTHED:  # margins of the present classes do not know of the absent one
        assert np.allclose(model.log_odds(points[kept], labels[kept]), pair.log_odds(points[kept], labels[kept] // 2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_class_gives_a_constant_prediction(kind: str) -> None:
    points = blobs(3)[0]
    model = fit_estimator(spec_of(kind), points, np.full(len(points), 2), num_classes=3, seed=0)
    assert (model.class_scores(points).argmax(axis=1) == 2).all()
    certain = (SMOOTHED[kind] + 1 / 3) / (SMOOTHED[kind] + 1) if kind in SMOOTHED else None
    expected = CLIP if certain is None else np.log(certain / (1 - certain))
    assert np.allclose(model.log_odds(points, np.full(len(points), 2)), expected)
    assert np.isfinite(model.class_scores(points)).all()


def test_an_empty_array_of_points_gives_empty_scores() -> None:
    model = fitted("forest")
    assert model.class_scores(np.zeros((0, 2))).shape == (0, 3)
    assert model.log_odds(np.zeros((0, 2)), np.zeros(0, dtype=np.int64)).shape == (0,)


POINTS, LABELS = blobs(3)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fitted("forest").class_scores(np.zeros((2, 5))), r"points of 2 coordinates, but these examples have shape \(5,\)"),
        (lambda: fitted("forest").class_scores(np.zeros((2, 4, 4, 3))), "use a source of points"),
        (lambda: fitted("forest").log_odds(POINTS, LABELS[:-1]), r"120 points have labels of shape \(119,\)"),
        (lambda: fitted("forest").log_odds(POINTS, LABELS + 1), "labels range from 1 to 3; with 3 classes they must be 0 to 2"),
        (lambda: fitted("nearest", k=121), "k is 121, but a training set has only 120 examples"),
        (
            lambda: fit_estimator(spec_of("svm"), POINTS[:0], LABELS[:0], num_classes=3, seed=0),
            "svm has no training examples",
        ),
        (
            lambda: fit_estimator(spec_of("svm"), np.zeros((20_001, 1)), np.arange(20_001) % 2, num_classes=2, seed=0),
            "svm takes at most 20,000 training examples, but there are 20,001",
        ),
        (
            lambda: fit_estimator(spec_of("logistic"), POINTS * np.nan, LABELS, num_classes=3, seed=0),
            r"the estimator logistic cannot be fitted on 120 points \(Input X contains NaN",
        ),
    ],
)  # fmt: skip
def test_points_labels_and_training_sets_that_do_not_fit_are_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        call()


class _Margins:
    """A stand-in for XGBoost's classifier: margins by the distance from 0, one column for two classes."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def fit(self, points: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
        self.classes = np.unique(labels)

    def predict(self, points: NDArray[np.float64], *, output_margin: bool) -> NDArray[np.float32]:
        assert output_margin
        margins = points[:, :1] * np.arange(len(self.classes))
        return (margins[:, 1] if len(self.classes) == 2 else margins).astype(np.float32)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_xgboosts_margins_are_taken_as_they_are(num_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", SimpleNamespace(XGBClassifier=_Margins))
    points, labels = blobs(num_classes)
    model = fit_estimator(spec_of("xgboost", max_depth=3), points, labels, num_classes=num_classes, seed=0)
    assert model.model.options["max_depth"] == 3
    assert model.model.options["n_jobs"] == 1
    margins = points[:, :1] * np.arange(num_classes)
    assert np.allclose(model.log_odds(points, labels), log_odds(margins, labels), atol=1e-5)


def test_the_error_without_xgboost_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[xgboost\]'"):
        fitted("xgboost")


def test_xgboost_agrees_with_its_probabilities() -> None:
    pytest.importorskip("xgboost", reason="needs the extra xgboost")
    model = fitted("xgboost", iterations=5)
    points, labels = blobs(3, 60, spread=2.0)
    own = model.model.predict_proba(points)[np.arange(60), labels]
    assert np.allclose(model.log_odds(points, labels), plain_odds(own), atol=1e-4)


def test_nearest_neighbours_and_svm_are_marked_as_instance_based() -> None:
    marked = {kind for kind in (*KINDS, "xgboost") if spec_of(kind).is_instance_based}
    assert marked == {"nearest", "svm"}


def test_estimator_specs_refuse_invalid_settings() -> None:
    for wrong in ({"kind": "forest", "trees": 0}, {"kind": "svm", "gamma": -1}, {"kind": "tree"}, {"kind": "svm", "k": 2}):
        with pytest.raises(ValidationError):
            ADAPTER.validate_python(wrong)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "svm"])
def test_stated_probabilities_are_the_librarys(kind: str) -> None:
    model, (points, _) = fitted(kind), blobs(3, 30)
    assert np.allclose(model.probabilities(points), model.model.predict_proba(points), atol=1e-12)


def test_stated_probabilities_of_an_absent_class_are_zero() -> None:
    points, labels = blobs(2)
    model = fit_estimator(spec_of("forest"), points, 2 * labels, num_classes=3, seed=0)
    found = model.probabilities(points)
    assert (found[:, 1] == 0).all()
    assert np.allclose(found.sum(axis=1), 1)
    alone = fit_estimator(spec_of("logistic"), points, np.full(len(points), 1), num_classes=3, seed=0)
    assert (alone.probabilities(points) == [0, 1, 0]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_stores_examples_agrees_with_is_instance_based_of_the_spec(kind: str) -> None:
    assert stores_examples(fitted(kind).model) == spec_of(kind).is_instance_based


def test_the_number_of_parameters_is_known_for_linear_models_only() -> None:
    assert parameters_of(fitted("logistic").model) == 3 * (2 + 1)
    assert [parameters_of(fitted(kind).model) for kind in KINDS if kind != "logistic"] == [None] * 4
