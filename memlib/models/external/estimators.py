"""External scikit-learn classifiers of points, built by the user's factory; memlib unpickles nothing."""

import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.models.estimators import SMALLEST, Points, Scores, log_softmax, margins_of, smoothed, votes_of


def is_estimator(model: Any) -> bool:
    """Return whether a factory's result is a classifier with scikit-learn's interface."""
    return not isinstance(model, nn.Module) and not inspect.isclass(model) and callable(getattr(model, "predict_proba", None))


class EstimatorModule(nn.Module):
    """A fitted scikit-learn classifier as a torch module without parameters.

    Args:
        model: the classifier.
        name: its name in error messages.
    """

    def __init__(self, model: Any, name: str) -> None:
        super().__init__()
        self.estimator, self._name = model, name

    def forward(self, inputs: Tensor) -> Tensor:
        """Return log-probabilities (batch, classes) float32 of points (batch, coordinates), in the order of `classes_`.

        Raises:
            UserError: when the inputs are no points, or the classifier's outputs are no probabilities.
        """
        if inputs.dim() != 2:
            raise UserError(
                f"{self._name} is a classifier of points, and the examples have shape {tuple(inputs.shape[1:])}; use a "
                "source of points, such as kind: table"
            )
        points = inputs.detach().cpu().numpy().astype(np.float64)
        return torch.from_numpy(external_scores(self.estimator, points, self._name)).float().to(inputs.device)


def external_scores(model: Any, points: Points, name: str) -> Scores:
    """Return log-probabilities (num_points, num_classes) from the most exact source that a fitted classifier has.

    Votes are smoothed. Margins are used if their softmax equals the result of `predict_proba`; otherwise its probabilities
    are used, with those below 1e-12 raised to 1e-12.

    Args:
        model: the classifier, or a pipeline that ends with one.
        points: (num_points, num_coordinates).
        name: the model's name in error messages.
    """
    model, points = _last_step(model, points)
    shares = np.asarray(model.predict_proba(points), dtype=np.float64)
    if shares.ndim != 2 or len(shares) != len(points):
        raise UserError(f"{name} returns probabilities of shape {shares.shape} for {len(points)} points; they must be "
                        "(points, classes)")  # fmt: skip
    if not ((shares >= 0).all() and np.allclose(shares.sum(axis=1), 1, atol=1e-3)):
        raise UserError(f"{name} returns numbers that are no probabilities; they must lie in [0, 1] and add up to 1")
    votes = votes_of(model)
    if votes is not None:
        return smoothed(shares, votes, shares.shape[1])[0]
    margins = _margins(model, points)
    if margins is not None and margins.shape == shares.shape and np.allclose(np.exp(margins), shares, atol=1e-5):
        return margins
    scores: Scores = np.log(shares.clip(min=SMALLEST))
    return scores


def _last_step(model: Any, points: Points) -> tuple[Any, Points]:
    """Return the last step of a pipeline and its inputs; a model that is no pipeline and the points unchanged."""
    from sklearn.pipeline import Pipeline

    if not isinstance(model, Pipeline):
        return model, points
    return model[-1], model[:-1].transform(points) if len(model) > 1 else points


def _margins(model: Any, points: Points) -> Scores | None:
    """Return the log-softmax of the classifier's margins, if it has margins."""
    is_xgboost = type(model).__module__.startswith("xgboost")
    return log_softmax(margins_of(model, points)) if is_xgboost or hasattr(model, "decision_function") else None
