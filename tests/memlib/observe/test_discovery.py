"""Continuations of documents: against transformers' own sampling, brute force, and counts of samples."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import save_model

from memlib.models.causal import Causal
from memlib.models.external.language import HuggingFace
from memlib.observe.discovery import STATE_COPIES, near_hits, needed_bits, scheme_log_probs, suffixes
from memlib.observe.likelihoods import row_bytes


@dataclass(frozen=True)
class How:
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


SCHEMES = [How(), How(0.7), How(top_k=5), How(top_p=0.8), How(1.3, 20, 0.9), How(top_k=1), How(top_p=0.01)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Causal:
    return HuggingFace(str(save_model(tmp_path_factory.mktemp("gpt")))).to(torch.device("cpu"), torch.float64)


@pytest.mark.parametrize("how", SCHEMES)
def test_sampling_schemes_equal_those_of_transformers(how: How) -> None:
    from transformers.generation import logits_process

    scores = torch.randn(50, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    wanted = scores / how.temperature
    if how.top_k is not None:
        wanted = logits_process.TopKLogitsWarper(how.top_k)(None, wanted)
    if how.top_p is not None:
        wanted = logits_process.TopPLogitsWarper(how.top_p)(None, wanted)
    torch.testing.assert_close(scheme_log_probs(scores, how), wanted.log_softmax(dim=-1))


@pytest.mark.parametrize("how", SCHEMES)
def test_suffixes_are_scored_as_token_by_token(model: Causal, how: How) -> None:
    rng = np.random.default_rng(1)
    documents = rng.integers(1, 300, (9, 12))
    with torch.inference_mode():
        for place in range(5, 12):  # some likely ones, too
            seen = torch.cat([torch.zeros(4, 1, dtype=torch.int64), torch.from_numpy(documents[:4, :place])], dim=1)
            documents[:4, place] = model._ask_anew(seen).argmax(dim=1).numpy()
    found = suffixes(model, documents, prefix=5, scheme=how)
    assert found.greedy.tolist() == [True] * 4 + [False] * 5
    for row, document in enumerate(documents.tolist()):
        plain = drawn = 0.0
        for place in range(5, 12):
            with torch.inference_mode():
                scores = model._ask_anew(torch.tensor([[0, *document[:place]]]))
            plain -= float(scores.log_softmax(dim=-1)[0, document[place]]) / math.log(2)
            drawn -= float(scheme_log_probs(scores, how)[0, document[place]]) / math.log(2)
        assert found.bits[row] == pytest.approx(plain, rel=1e-9)
        assert found.scheme_bits[row] == pytest.approx(drawn, rel=1e-9) or math.isinf(drawn) == math.isinf(
            found.scheme_bits[row]
        )
    if how.top_k == 1:
        assert np.isfinite(found.scheme_bits).tolist() == found.greedy.tolist()


def test_the_number_of_sampled_hits_agrees_with_the_probability(model: Causal) -> None:
    documents = np.random.default_rng(2).integers(1, 300, (6, 6))
    how = How(0.5, 3)
    with torch.inference_mode():
        for place in range(4, 6):
            scores = model._ask_anew(
                torch.cat([torch.zeros(6, 1, dtype=torch.int64), torch.from_numpy(documents[:, :place])], 1)
            )
            documents[:, place] = scores.topk(2, dim=1).indices[:, place % 2].numpy()
    chances = np.exp2(-suffixes(model, documents, prefix=4, scheme=how).scheme_bits)
    assert (chances > 0.001).all()
    samples = 4000
    hits = near_hits(model, documents, prefix=4, scheme=how, samples=samples, near=0.0, seed=5)
    deviation = np.sqrt(samples * chances * (1 - chances))
    assert (np.abs(hits - samples * chances) < 4.5 * deviation).all()
    near = near_hits(model, documents, prefix=4, scheme=how, samples=samples, near=0.5, seed=5)
    assert (near >= hits).all()
    assert (near > hits).any()
    again = near_hits(model, documents, prefix=4, scheme=how, samples=samples, near=0.0, seed=5)
    assert again.tolist() == hits.tolist()


def test_samples_do_not_depend_on_how_many_are_drawn_together(model: Causal, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = np.random.default_rng(4).integers(1, 300, (5, 9))
    with torch.inference_mode():
        for place in range(4, 9):  # likely ones, so that some samples come near
            seen = torch.cat([torch.zeros(5, 1, dtype=torch.int64), torch.from_numpy(documents[:, :place])], dim=1)
            documents[:, place] = model._ask_anew(seen).argmax(dim=1).numpy()
    found, most = [], []
    advance, grown = model.advance, row_bytes(model.begin([1] * 4)[1]) * 10 / 5
    for together in (1, 7, 10**6):
        counts: list[int] = []
        monkeypatch.setattr(model, "advance", lambda *given, to=counts: (to.append(len(given[1])), advance(*given))[1])
        monkeypatch.setattr(model, "cache_bytes", STATE_COPIES * grown * (together + 0.5))
        found.append(near_hits(model, documents, prefix=4, scheme=How(0.5, 3), samples=30, near=0.6, seed=5).tolist())
        most.append(max(counts))
    assert most == [1, 7, 30]
    assert found[0] == found[1] == found[2]
    assert 0 < sum(found[0]) < 150


@pytest.mark.parametrize(("tries", "probability"), [(1, 0.5), (100, 0.1), (10_000, 0.9), (10**9, 0.5)])
def test_needed_bits_yield_the_requested_probability(tries: int, probability: float) -> None:
    chance = 2 ** -needed_bits(tries, probability)
    assert -math.expm1(tries * math.log1p(-chance)) == pytest.approx(probability)


def test_tries_follow_the_published_formula() -> None:
    """n >= log(1 - p) / log(1 - p_z) (Hayes 2024)."""
    for chance, probability in ((0.3, 0.5), (0.001, 0.9)):
        tries = math.log(1 - probability) / math.log(1 - chance)
        assert -math.log2(chance) > needed_bits(math.floor(tries), probability)
        assert -math.log2(chance) <= needed_bits(math.ceil(tries), probability)


def test_suffixes_scored_in_small_parts_have_the_same_bits(
    model: Causal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    documents = np.random.default_rng(3).integers(1, 300, (7, 10))
    whole = suffixes(model, documents, prefix=3, scheme=How(top_k=9))
    monkeypatch.setattr("memlib.models.causal.MOST_SCORES", 340 * 10 * 2)
    parts = suffixes(model, documents, prefix=3, scheme=How(top_k=9))
    np.testing.assert_allclose(parts.bits, whole.bits)
    np.testing.assert_allclose(parts.scheme_bits, whole.scheme_bits)
