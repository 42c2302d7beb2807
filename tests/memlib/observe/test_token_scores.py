"""Scores of documents: a plain version token by token, and the orientation of each score."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from memlib.errors import RunError
from memlib.models.sequence import LanguageModel, build_language_model
from memlib.observe.token_scores import TokenScores, lowest_mean, token_scores, zlib_ratio
from memlib.specs import LanguageSpec

CPU = torch.device("cpu")
DOCUMENTS = [[3, 1, 4, 1, 5, 2, 6, 5, 3, 0], [5, 0], [2, 7, 1, 0], [6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 0]]
WINDOW = 4


def model(**changes: Any) -> LanguageModel:
    return build_language_model(LanguageSpec(width=8, layers=1, embedding=4, **changes), 8, WINDOW, seed=2).eval()


def windows_of(documents: list[list[int]]) -> tuple[Any, Any]:
    padded = [row + [-1] * (-len(row) % WINDOW) for row in documents]
    flat = [symbol for row in padded for symbol in row]
    return np.array(flat, dtype=np.int32).reshape(-1, WINDOW), np.array([len(row) // WINDOW for row in padded])


def plain(network: LanguageModel, document: list[int], share: float) -> tuple[float, float, float]:
    """Mean log probability, Min-K%++ (Zhang 2024, equation 3) and share of predicted tokens, one token at a time."""
    logs, standardized, right = [], [], []
    for place, symbol in enumerate(document):
        before = document[place - place % WINDOW : place]
        with torch.no_grad():
            probabilities = torch.softmax(network.begin(before)[0][0].double(), dim=0).tolist()
        mean = sum(p * math.log(p) for p in probabilities)
        deviation = math.sqrt(sum(p * (math.log(p) - mean) ** 2 for p in probabilities))
        logs.append(math.log(probabilities[symbol]))
        standardized.append((logs[-1] - mean) / deviation)
        right.append(probabilities[symbol] == max(probabilities))
    lowest = sorted(standardized)[: max(1, int(share * len(document)))]
    return sum(logs) / len(logs), sum(lowest) / len(lowest), sum(right) / len(right)


@pytest.mark.parametrize("architecture", ["gru", "transformer", "cnn"])
@pytest.mark.parametrize("rows", [1, 2, 256])
def test_token_scores_equal_a_plain_version_for_any_batch_size(
    architecture: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = model(architecture=architecture)
    monkeypatch.setattr(type(network), "most_rows", lambda self, length: rows)
    found = token_scores(network, *windows_of(DOCUMENTS), share=0.3, device=CPU)
    expected = np.array([plain(network, document, 0.3) for document in DOCUMENTS]).T
    assert found.tokens.tolist() == [10, 2, 4, 15]
    np.testing.assert_allclose(found.mean_log_p, expected[0], rtol=1e-5)
    np.testing.assert_allclose(found.lowest, expected[1], rtol=1e-4)
    np.testing.assert_allclose(found.correct, expected[2])


class Knowing(LanguageModel):
    """A model that gives the next symbol of 1, 2, 3, 4, 5, ... a large score."""

    num_symbols = 8

    def following(self, seen: torch.Tensor) -> torch.Tensor:
        return 4.0 * torch.nn.functional.one_hot((seen + 1) % 8, 8).float()


def test_every_score_is_higher_for_a_document_that_the_model_knows() -> None:
    known, unknown = [1, 2, 3, 4, 1, 2, 3, 4], [1, 5, 3, 3, 1, 7, 2, 6]
    found = token_scores(Knowing(), *windows_of([known, unknown]), share=0.2, device=CPU)
    for scores in (found.mean_log_p, found.lowest, found.correct, zlib_ratio(found.log_p, np.array([20, 20]))):
        assert scores[0] > scores[1]


def test_a_certain_model_gives_finite_scores() -> None:
    class Certain(Knowing):
        def following(self, seen: torch.Tensor) -> torch.Tensor:
            return torch.where(super().following(seen) > 0, 0.0, -torch.inf)

    found = token_scores(Certain(), *windows_of([[1, 2, 3, 4]]), share=0.2, device=CPU)
    assert found.lowest.tolist() == found.log_p.tolist() == [0.0]


def test_a_model_that_returns_nan_is_refused() -> None:
    class Diverged(Knowing):
        def following(self, seen: torch.Tensor) -> torch.Tensor:
            return super().following(seen) * torch.nan

    with pytest.raises(RunError, match="diverged"):
        token_scores(Diverged(), *windows_of([[1, 2, 3, 4]]), share=0.2, device=CPU)


def test_padding_changes_no_score() -> None:
    network = model(architecture="gru")
    alone = token_scores(network, *windows_of(DOCUMENTS[1:2]), share=0.5, device=CPU)
    exact = token_scores(network, np.array([[5, 0]]), np.array([1]), share=0.5, device=CPU)
    np.testing.assert_allclose(alone.log_p, exact.log_p, rtol=1e-6)
    np.testing.assert_allclose(alone.lowest, exact.lowest, rtol=1e-6)


def test_lowest_mean_takes_one_value_at_least() -> None:
    assert lowest_mean(np.array([3.0, 1.0, 2.0]), 0.2) == 1.0


def test_token_scores_round_trip_through_a_file(tmp_path: Any) -> None:
    values = np.arange(3.0)
    TokenScores(values, values + 1, values + 2, values + 3).save(tmp_path / "scores.npz")
    read = TokenScores.load(tmp_path / "scores.npz")
    assert read.log_p.tolist() == [1, 2, 3]
    assert read.correct.tolist() == [3, 4, 5]
