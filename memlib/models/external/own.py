"""External models that memlib trains itself: the target's own architecture, with random weights."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.models.estimators import ABSENT, FittedEstimator, Points
from memlib.models.external.classifiers import ClassScores
from memlib.models.external.estimators import external_scores, is_estimator
from memlib.models.external.factory import made
from memlib.models.vision import MEAN, STD
from memlib.specs import ExternalClassifierSpec

SEED, CORES = "random_state", "n_jobs"  # settings of estimators of scikit-learn, at any depth


def untrained(spec: ExternalClassifierSpec, num_classes: int, *, seed: int) -> Any:
    """Return an untrained model: a network that takes the images of memlib's training, or an unfitted estimator.

    Args:
        seed: seed of the initial weights, or of the estimator.

    Raises:
        UserError: when the factory fails, or returns neither.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initial weights"))
        model = made(spec, is_trained=False)
    if is_estimator(model):
        return _unfitted(model, derive_seed(seed, "estimator") % 2**31)
    if not isinstance(model, nn.Module):
        raise UserError(f"{spec.model} returned a {type(model).__name__}, neither a torch module nor a classifier")
    return Trained(model, spec, num_classes)


def _unfitted(model: Any, seed: int) -> Any:
    """Return a copy of an estimator with its settings, on one core, and with another seed."""
    from sklearn.base import clone

    copy = clone(model)
    settings = copy.get_params()
    seeds = {name: seed for name in settings if name.rpartition("__")[2] == SEED}
    cores = {name: 1 for name in settings if name.rpartition("__")[2] == CORES and settings[name] is not None}
    return copy.set_params(**seeds, **cores)


class Trained(ClassScores):
    """A network that memlib trains: it takes images as memlib's training prepares them, and returns class scores."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return class scores (batch, outputs) of points, or of prepared images (batch, channels, height, width)."""
        return super().forward(_as_taken(self._spec, inputs) if inputs.dim() == 4 else inputs)


def _as_taken(spec: ExternalClassifierSpec, images: Tensor) -> Tensor:
    """Return images on the scale that the model takes; grey ones arrive in [0, 1], others normalized."""
    is_grey = images.shape[1] == 1
    if spec.inputs == "imagenet":
        if is_grey:
            raise UserError("inputs imagenet is for colour images; set data.channels to 3, or inputs to unit")
        return images
    if not is_grey:
        mean, std = (torch.tensor(part, device=images.device).view(1, 3, 1, 1) for part in (MEAN, STD))
        images = images * std + mean
    return images * 255 if spec.inputs == "raw" else images


class FittedOwn(FittedEstimator):
    """A fitted classifier of the target's kind."""

    def _present_scores(self, points: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        if self.model is None or not len(points):
            return np.zeros((len(points), len(self.present))), ABSENT
        found = external_scores(self.model, points, self.name)
        return found, min(ABSENT, float(found.min()))


def fit_own(
    model: Any, spec: ExternalClassifierSpec, points: Points, labels: NDArray[np.int64], num_classes: int
) -> FittedOwn:
    """Fit an unfitted estimator on points of some classes.

    Raises:
        UserError: when it cannot be fitted on them.
    """
    from threadpoolctl import threadpool_limits

    present, positions = np.unique(labels, return_inverse=True)
    if len(present) == 1:
        return FittedOwn(spec.model, points.shape[1], num_classes, present, None)
    with threadpool_limits(1):
        try:
            model.fit(np.asarray(points, dtype=np.float64), positions)
        except ValueError as error:
            reason = (str(error).splitlines() or [""])[0][:300]
            raise UserError(f"{spec.model} cannot be fitted on {len(points):,} points ({reason})") from error
    return FittedOwn(spec.model, points.shape[1], num_classes, present, model)
