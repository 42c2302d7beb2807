"""The linear probe against scikit-learn's, whole and in batches, and with rows in parts."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from memlib.stats import probe
from memlib.stats.probe import Rows, probe_accuracies

RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 4, size=3000)
VECTORS = (RNG.normal(size=(4, 12))[LABELS] + 1.2 * RNG.normal(size=(3000, 12))).astype(np.float32) * 3 + 5
TRAIN = np.arange(3000) < 2000


@pytest.mark.parametrize("cuts", [[3000], [1, 1234, 3000]])
def test_rows_of_several_arrays_equal_their_concatenation(cuts: list[int]) -> None:
    rows = Rows(np.split(VECTORS, cuts[:-1]), LABELS, TRAIN)
    x, y = rows.whole()
    assert len(rows) == 2000
    assert np.array_equal(x.numpy(), VECTORS[TRAIN])
    assert np.array_equal(y.numpy(), LABELS[TRAIN])
    blocks = list(rows.blocks(300))
    assert max(len(part) for part, _ in blocks) <= 300
    assert np.array_equal(torch.cat([part for part, _ in blocks]).numpy(), VECTORS[TRAIN])


@pytest.mark.parametrize("whole", [True, False])
def test_probe_accuracies_equal_those_of_scikit_learn(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not whole:
        monkeypatch.setattr(probe, "WHOLE", 100)
        monkeypatch.setattr(probe, "BLOCK_ROWS", 700)
        monkeypatch.setattr(probe, "BATCH", 64)
    arrays = [VECTORS[:500], VECTORS[500:]]
    found = probe_accuracies(Rows(arrays, LABELS, TRAIN), Rows(arrays, LABELS, ~TRAIN), num_classes=4)
    mean, scale = VECTORS[TRAIN].mean(axis=0), VECTORS[TRAIN].std(axis=0, ddof=1)
    scaled = (VECTORS - mean) / scale
    model = LogisticRegression(C=1 / (2 * 1e-3 * TRAIN.sum()), max_iter=500).fit(scaled[TRAIN], LABELS[TRAIN])
    expected = model.score(scaled[TRAIN], LABELS[TRAIN]), model.score(scaled[~TRAIN], LABELS[~TRAIN])
    assert found == pytest.approx(expected, abs=0.002 if whole else 0.015)


def many_classes(count: int = 4000, classes: int = 200) -> tuple[Rows, Rows]:
    """Return rows of many classes, few of each, half of them to train on."""
    rng = np.random.default_rng(1)
    labels = rng.permutation(count) % classes
    vectors = (rng.normal(size=(classes, 24))[labels] + 0.7 * rng.normal(size=(count, 24))).astype(np.float32)
    train = np.arange(count) % 2 == 0
    return Rows([vectors], labels, train), Rows([vectors], labels, ~train)


def test_weights_that_are_fitted_in_batches_are_penalized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "BATCH", 2)
    monkeypatch.setattr(probe, "LEARNING_RATE", 0.05)
    rng, labels = np.random.default_rng(0), np.arange(256) % 2
    vectors = rng.normal(size=(256, 4)).astype(np.float32) + 3 * labels[:, None].astype(np.float32)
    rows, sizes = Rows([vectors], labels, np.ones(256, dtype=bool)), []
    for weight_decay in (0.0, 1.0):
        weight, bias = torch.full((2, 4), 5.0, requires_grad=True), torch.zeros(2, requires_grad=True)
        probe._fit_in_batches(rows, torch.zeros(4), torch.ones(4), weight, bias, weight_decay)
        sizes.append(float(weight.detach().square().sum()))
    assert sizes[1] < 0.5 * sizes[0]


def test_batches_come_close_to_the_full_batch_for_few_rows_of_many_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    full = probe_accuracies(*many_classes(), num_classes=200)
    monkeypatch.setattr(probe, "WHOLE", 0)
    assert probe_accuracies(*many_classes(), num_classes=200) == pytest.approx(full, abs=0.05)


@pytest.mark.parametrize(
    ("count", "dim", "classes", "full"),
    [(10_000, 64, 1000, False), (5000, 64, 1000, True), (2000, 500, 5000, False), (20_000, 512, 100, True)],
)
def test_a_full_batch_is_used_only_where_it_takes_seconds(
    count: int, dim: int, classes: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = []
    monkeypatch.setattr(probe, "_fit_whole", lambda *_: chosen.append(True))
    monkeypatch.setattr(probe, "_fit_in_batches", lambda *_: chosen.append(False))
    rows = Rows([np.zeros((count, dim), dtype=np.float32)], np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool))
    probe_accuracies(rows, rows, num_classes=classes)
    assert chosen == [full]
    for most, expected in ((probe.step_cost(count, dim, classes), True), (probe.step_cost(count, dim, classes) - 1, False)):
        monkeypatch.setattr(probe, "WHOLE", most)
        probe_accuracies(rows, rows, num_classes=classes)
        assert chosen.pop() == expected
