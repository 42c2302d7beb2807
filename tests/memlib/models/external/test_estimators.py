"""Fitted scikit-learn classifiers from a factory are observed like modules."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.ensemble import AdaBoostClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from memlib.errors import UserError
from memlib.models.external.classifiers import ClassScores, load_external
from memlib.models.external.estimators import EstimatorModule, external_scores
from memlib.observe.models import load_any
from memlib.specs import ExternalClassifierSpec
from memlib.stats.likelihood import log_odds

Factory = Callable[..., ExternalClassifierSpec]
CPU = torch.device("cpu")
RNG = np.random.default_rng(0)
LABELS = np.arange(90) % 3
POINTS = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])[LABELS] + RNG.normal(size=(90, 2))


@pytest.fixture
def factory(monkeypatch: pytest.MonkeyPatch) -> Factory:
    """A module `mine` with a function `build`, and a recipe's section that names it."""

    def made(build: Callable[..., Any], **spec: Any) -> ExternalClassifierSpec:
        module = ModuleType("mine")
        module.build = build  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mine", module)
        monkeypatch.setenv("MEMLIB_CODE", f"mine,{__name__}")
        return ExternalClassifierSpec.model_validate({"model": "mine:build", "version": "1", **spec})

    return made


def observed(spec: ExternalClassifierSpec, points: NDArray[Any] = POINTS, num_classes: int = 3) -> NDArray[np.float32]:
    """Return the class scores that audits see, (num_points, num_classes)."""
    forward, take = load_any(spec, 0, num_classes, CPU)
    scores: NDArray[np.float32] = forward(take(points.astype(np.float32), CPU))[0].numpy()
    return scores


@pytest.mark.parametrize("outputs", ["logits", "probabilities"])
@pytest.mark.parametrize("model", [LogisticRegression(), GaussianNB(), make_pipeline(StandardScaler(), LogisticRegression())])
def test_scores_are_the_logarithms_of_the_estimators_probabilities(factory: Factory, model: Any, outputs: str) -> None:
    model.fit(POINTS, LABELS)
    scores = observed(factory(lambda: model, outputs=outputs))
    assert np.allclose(np.exp(scores), model.predict_proba(POINTS.astype(np.float32)), atol=1e-5)


@pytest.mark.parametrize(("model", "votes"), [(RandomForestClassifier(20, random_state=0), 20), (KNeighborsClassifier(5), 5)])
def test_votes_of_external_estimators_are_smoothed_into_probabilities(factory: Factory, model: Any, votes: int) -> None:
    model.fit(POINTS, LABELS)
    points = POINTS.astype(np.float32)
    expected = (votes * model.predict_proba(points) + 1 / 3) / (votes + 1)
    assert np.allclose(np.exp(observed(factory(lambda: model))), expected, atol=1e-5)


def test_margins_of_external_estimators_are_used_only_if_they_are_logits() -> None:
    far = np.array([[40.0, 0.0], [0.0, 40.0]])  # float64 probabilities of 1
    binary = LogisticRegression(C=10).fit(POINTS, LABELS == 1)
    odds = log_odds(external_scores(binary, far / 4, "mine"), np.array([1, 0]))
    assert np.allclose(odds, binary.decision_function(far / 4) * [1, -1], atol=1e-9)
    boosted = HistGradientBoostingClassifier(max_iter=5).fit(POINTS, LABELS)
    assert np.allclose(np.exp(external_scores(boosted, POINTS, "mine")), boosted.predict_proba(POINTS))
    other = AdaBoostClassifier(n_estimators=5, random_state=0).fit(POINTS, LABELS)  # its margins are no logits
    assert np.allclose(np.exp(external_scores(other, POINTS, "mine")), other.predict_proba(POINTS), atol=1e-9)


def test_a_module_stays_a_module_and_an_estimator_takes_no_weights(factory: Factory) -> None:
    net = nn.Linear(2, 3)
    assert load_external(factory(lambda: net), None) is net
    fitted = GaussianNB().fit(POINTS, LABELS)
    with pytest.raises(UserError, match=r"a GaussianNB, a fitted estimator, which takes no trained\.weights"):
        load_external(factory(lambda: fitted), "w.safetensors")
    with pytest.raises(UserError, match="not a torch module"):
        load_external(factory(lambda: GaussianNB), None)


class _Odd:
    """A classifier with fixed outputs."""

    def __init__(self, outputs: NDArray[Any]) -> None:
        self.outputs = outputs

    def predict_proba(self, points: NDArray[Any]) -> NDArray[Any]:
        return self.outputs


@pytest.mark.parametrize(
    ("model", "points", "num_classes", "said"),
    [
        (GaussianNB().fit(POINTS, LABELS), POINTS[:, [0, 1, 1]], 3, r"cannot take examples of shape \(3,\)"),
        (GaussianNB(), POINTS, 3, "NotFittedError"),
        (GaussianNB().fit(POINTS, LABELS), POINTS, 4, "returns 3 scores per example, but the data have 4 classes"),
        (_Odd(np.full(90, 0.5)), POINTS, 3, r"probabilities of shape \(90,\) for 90 points"),
        (_Odd(np.full((90, 3), 0.5)), POINTS, 3, "no probabilities; they must lie in"),
    ],
)
def test_external_estimators_of_wrong_input_or_output_shape_are_refused(
    factory: Factory, model: Any, points: NDArray[Any], num_classes: int, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        observed(factory(lambda: model), points, num_classes)


def test_images_are_refused_by_an_estimator(factory: Factory) -> None:
    model = EstimatorModule(GaussianNB().fit(POINTS, LABELS), "mine:build")
    with pytest.raises(UserError, match=r"a classifier of points, and the examples have shape \(3, 8, 8\)"):
        ClassScores(model, factory(lambda: model), 3)(torch.zeros(2, 3, 8, 8))
