import numpy as np
import pytest
import torch

from memlib.objectives import build_objective
from memlib.objectives.ssl import covariance_loss, invariance_loss, variance_loss
from memlib.specs import SupervisedSpec, VICRegSpec


def slow_vicreg(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """Bardes 2022, Eqs. 1 to 6, written out one number at a time."""
    n, d = a.shape
    invariance = sum((a[i, j] - b[i, j]) ** 2 for i in range(n) for j in range(d)) / (n * d)
    variance = covariance = 0.0
    for z in (a, b):
        mean = z.mean(axis=0)
        for j in range(d):
            variance += max(0.0, 1 - np.sqrt(((z[:, j] - mean[j]) ** 2).sum() / (n - 1) + 1e-4)) / d / 2
        for j in range(d):
            for k in range(d):
                if j != k:
                    covariance += (((z[:, j] - mean[j]) * (z[:, k] - mean[k])).sum() / (n - 1)) ** 2 / d
    return invariance, variance, covariance


def test_vicreg_equals_its_formula() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 7, 5)) * 0.6
    expected = slow_vicreg(a, b)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    assert invariance_loss(x, y).item() == pytest.approx(expected[0])
    assert ((variance_loss(x) + variance_loss(y)) / 2).item() == pytest.approx(expected[1])
    assert (covariance_loss(x) + covariance_loss(y)).item() == pytest.approx(expected[2])
    objective = build_objective(VICRegSpec(kind="vicreg"))
    terms = objective(torch.nn.Identity(), [x.float(), y.float()], torch.zeros(7))
    assert terms["loss"].item() == pytest.approx(25 * expected[0] + 25 * expected[1] + expected[2], rel=1e-5)


def test_collapsed_embeddings_cost_the_whole_hinge_and_spread_decorrelated_ones_nothing() -> None:
    same = torch.ones(8, 4)
    assert variance_loss(same).item() == pytest.approx(0.99)
    spread = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]]) * 2
    assert variance_loss(spread).item() == 0
    assert covariance_loss(spread).item() == 0


def test_bfloat16_embeddings_get_a_float32_covariance() -> None:
    objective = build_objective(VICRegSpec(kind="vicreg"))
    view = torch.randn(64, 16).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(term.dtype == torch.float32 for term in objective(torch.nn.Identity(), [view, view], view).values())


def test_the_supervised_loss_is_cross_entropy() -> None:
    scores, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])
    terms = build_objective(SupervisedSpec(kind="supervised"))(torch.nn.Identity(), [scores], labels)
    assert terms["loss"].item() == pytest.approx((np.log(1 + np.exp(-2)) + np.log(1 + np.exp(1))) / 2, rel=1e-6)
    assert terms["training_accuracy"].item() == 0.5
