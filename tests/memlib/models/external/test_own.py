"""Models of a target's own architecture: random weights, inputs on its scale, settings kept."""

import sys
from types import ModuleType
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from memlib.models.external.classifiers import take_external
from memlib.models.external.own import Trained, fit_own, untrained
from memlib.specs import OwnSpec
from memlib.training.augment import prepare

CPU = torch.device("cpu")
RNG = np.random.default_rng(0)


@pytest.fixture
def nets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `nets` with the factories of a small network."""
    module = ModuleType("nets")
    module.build = lambda classes=3: nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, classes))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nets", module)
    monkeypatch.setenv("MEMLIB_CODE", f"nets,{__name__}")


def own(**spec: Any) -> Any:
    return OwnSpec.model_validate({"kind": "own", "model": "nets:build", **spec}).given


@pytest.mark.parametrize("scale", ["unit", "imagenet", "raw"])
def test_a_net_is_trained_on_the_inputs_on_which_the_target_is_queried(nets: None, scale: str) -> None:
    images = RNG.integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    spec = own(inputs=scale)
    net = untrained(spec, 3, seed=1)
    assert isinstance(net, Trained)
    assert torch.allclose(net(prepare(images, CPU)), net.model(take_external(spec, images, CPU)), rtol=1e-4, atol=1e-4)


def test_weights_follow_from_the_seed_alone(nets: None) -> None:
    one, again, other = (untrained(own(), 3, seed=seed).model[1].weight for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_a_name_stands_for_an_architecture() -> None:
    assert OwnSpec.model_validate("nets:build") == OwnSpec(kind="own", model="nets:build")


def test_an_estimator_keeps_its_settings_and_forgets_its_training(tmp_path: Any) -> None:
    points, labels = RNG.normal(size=(90, 2)), np.arange(90) % 3
    path = tmp_path / "forest.joblib"
    joblib.dump(RandomForestClassifier(7, max_depth=2, n_jobs=2).fit(points, labels), path)
    model = untrained(own(model=str(path)), 3, seed=4)
    assert (model.n_estimators, model.max_depth, model.n_jobs) == (7, 2, None)
    assert not hasattr(model, "estimators_")
    fitted = fit_own(model, own(model=str(path)), points, labels, 3)
    assert fitted.class_scores(points).shape == (90, 3)


def test_an_estimator_that_never_saw_a_class_gives_it_the_smallest_score(tmp_path: Any) -> None:
    points, labels = RNG.normal(size=(60, 2)), np.arange(60) % 2
    path = tmp_path / "pipeline.joblib"
    joblib.dump(make_pipeline(StandardScaler(), LogisticRegression()).fit(points, labels), path)
    spec = own(model=str(path))
    for kept in (labels, np.zeros(60, dtype=int)):  # two classes of three, and one
        scores = fit_own(untrained(spec, 3, seed=0), spec, points, kept, 3).class_scores(points)
        assert (scores[:, 2] < scores[:, 0] - 20).all()
