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
