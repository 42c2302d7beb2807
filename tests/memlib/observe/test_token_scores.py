"""Scores of documents: a plain version token by token, and the orientation of each score."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from memlib.data.text.rows import OTHERS, SCORED
from memlib.errors import RunError
from memlib.models.sequence import LanguageModel, build_language_model
from memlib.observe import token_scores as module
from memlib.observe.token_scores import WINDOWS, Keeping, TokenScores, lowest_mean, token_scores, zlib_ratio
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


def drawn(*lengths: int, seed: int = 0) -> tuple[TokenScores, list[Any], list[Any]]:
    """Return documents with random gains, and the gains and right tokens of each as lists."""
    rng = np.random.default_rng(seed)
    reference = rng.normal(-3, 1, sum(lengths)).astype(np.float32)
    kept, gains, right, place = Keeping(reference), [], [], 0
    for length in lengths:
        gained, sure = rng.standard_t(2, length), rng.random(length) < 0.6
        kept.add(reference[place : place + length] + gained, sure)
        gains.append(kept._gains[-1].astype(float).tolist())
        right.append(sure.tolist())
        place += length
    return kept.scores, gains, right


def plain_error_zone(gains: list[float], right: list[bool]) -> float:
    zone = [gain for gain, is_right in zip(gains, right, strict=True) if not is_right] or gains
    return math.log((sum(max(gain, 0) for gain in zone) + 1e-3) / (sum(max(-gain, 0) for gain in zone) + 1e-3))


def plain_windows(gains: list[float]) -> float:
    shares = []
    for length in [length for length in WINDOWS if length <= len(gains)] or [1]:
        sums = [sum(gains[start : start + length]) for start in range(len(gains) - length + 1)]
        shares.append(sum(one > 0 for one in sums) / len(sums))
    return sum(shares) / len(shares)


@pytest.mark.parametrize("at_once", [1, 50, 2**22])
def test_error_zone_and_windows_equal_plain_versions(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", at_once)  # documents of one block, or of several
    scores, gains, right = drawn(10, 1, 3, 61, 40, 2, 41, 7)
    expected = [plain_error_zone(*one) for one in zip(gains, right, strict=True)]
    np.testing.assert_allclose(scores.error_zone(), expected, atol=1e-9)
    np.testing.assert_allclose(scores.windows(), [plain_windows(one) for one in gains])


def test_where_no_token_is_wrong_the_error_zone_is_the_whole_document() -> None:
    reference = np.full(8, -2.0, dtype=np.float32)
    kept = Keeping(reference)
    kept.add(reference[:4] + np.array([1.0, 1.0, -0.5, 0.5]), np.ones(4, dtype=bool))
    kept.add(reference[4:], np.ones(4, dtype=bool))  # of which both models know as much
    np.testing.assert_allclose(kept.scores.error_zone(), [math.log(2.501 / 0.501), 0.0])


def test_the_sign_of_a_small_gain_survives_beside_large_log_probabilities() -> None:
    reference = np.array([-11.0, -11.0], dtype=np.float32)
    kept = Keeping(reference)
    kept.add(reference.astype(np.float64) + np.array([1e-5, -1e-5]), np.zeros(2, dtype=bool))
    gains = kept.scores.gains
    assert gains is not None
    assert np.sign(gains).tolist() == [1, -1]
    assert len(set(kept.scores.own.tolist())) == 1  # rounded by itself, each would lose it


def test_a_model_is_compared_with_its_reference_token_by_token() -> None:
    base, tuned = model(), build_language_model(LanguageSpec(width=8, layers=1, embedding=4), 8, WINDOW, seed=3).eval()
    alone = token_scores(base, *windows_of(DOCUMENTS), share=0.3, device=CPU, is_reference=True)
    found = token_scores(tuned, *windows_of(DOCUMENTS), share=0.3, device=CPU, reference=alone.own)
    assert alone.gains is None
    assert alone.own.dtype == np.float32
    assert found.gains is not None
    assert found.gains.dtype == found.own.dtype == np.float16
    ratios = np.add.reduceat(found.gains.astype(float), found.places[:-1])
    np.testing.assert_allclose(ratios, found.log_p - alone.log_p, atol=2e-2)
    itself = token_scores(base, *windows_of(DOCUMENTS), share=0.3, device=CPU, reference=alone.own)
    assert not itself.gains.any()  # type: ignore[union-attr]
    counts = [int(found.is_right(*found.places[place : place + 2].tolist()).sum()) for place in range(len(DOCUMENTS))]
    np.testing.assert_allclose(counts, found.correct * found.tokens)


def test_only_marked_tokens_are_scored_each_after_all_that_precedes_it() -> None:
    network = model()
    windows, counts = windows_of(DOCUMENTS)
    marks = np.random.default_rng(0).integers(OTHERS, SCORED + 1, windows.shape).astype(np.uint8)
    marks[np.cumsum(counts) - counts] = SCORED  # some of each document
    marks[windows < 0] = OTHERS
    found = token_scores(network, windows, counts, share=0.3, device=CPU, marks=marks)
    every = token_scores(network, windows, counts, share=0.3, device=CPU, is_reference=True)
    kept = (marks == SCORED)[windows >= 0]
    assert found.tokens.sum() == kept.sum()
    np.testing.assert_allclose(found.own, every.own[kept], atol=2e-3)


def test_token_scores_round_trip_through_files(tmp_path: Any) -> None:
    scores = drawn(5, 3)[0]
    scores.save(tmp_path)
    read = TokenScores.load(sorted(tmp_path.iterdir()))
    assert read.log_p.tolist() == scores.log_p.tolist()
    assert read.error_zone().tolist() == scores.error_zone().tolist()
    assert read.windows().tolist() == scores.windows().tolist()
