"""Documents as units of the membership audit: a null of fresh coins, plants, persons, and each score by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from memlib.audits.membership.controls import Checks, difficulty_p
from memlib.audits.membership.documents import stages
from memlib.audits.membership.documents.audited import DocumentsAudited, answers_of, signals_of
from memlib.audits.membership.documents.recipe import ATTACKS, DocumentsRecipe
from memlib.audits.membership.documents.stages import copies_of
from memlib.audits.membership.findings import summarize
from memlib.audits.membership.units import Copies, Pool
from memlib.data.blind_features import id_features
from memlib.data.subsets import TARGET, toss
from memlib.data.text.rows import OTHERS, SCORED, pool_rows
from memlib.findings import INCONCLUSIVE, SHOWN, Findings
from memlib.observe.token_scores import TokenScores
from memlib.stats.shadows import log_p

RECIPE = {
    "data": {"source": {"kind": "topics"}},
    "training": {"objective": {"kind": "language"}, "epochs": 1, "augment": None},
    "score": {"redraws": 999},
}


def without_tokens(*values: Any) -> TokenScores:
    return TokenScores(*values, own=np.zeros(0), right=np.zeros(0, np.uint8))


def world(memory: float, *, seed: int, count: int = 160, shadows: int = 6, rows: int = 1, **changes: Any) -> DocumentsAudited:
    """Return documents of different difficulty, on which models gain `memory` nats per token by training."""
    recipe = DocumentsRecipe.model_validate({**RECIPE, "shadows": {"count": shadows}, **changes})
    groups = np.arange(count) // rows
    coins = toss(groups, [TARGET, *range(shadows)], share=0.5, seed=seed)
    rng, hardness = np.random.default_rng(seed + 10_000), np.random.default_rng(1).normal(-4, 1, count)
    tokens = np.full(count, 50.0)

    def scores(inside: Any) -> TokenScores:
        mean = np.minimum(hardness + rng.normal(0, 0.1, count) + memory * inside, -0.01)
        return without_tokens(tokens, tokens * mean, mean + rng.normal(0, 0.5, count), rng.random(count))

    found = [scores(inside) for inside in coins]
    ids = [f"document {number:08d}" for number in range(count)]
    table = pool_rows(ids, [f"group {group:08d}" for group in groups])
    return DocumentsAudited.of(
        recipe=recipe, pool=Pool.of(table), rows=table, member=coins[0], listed=np.ones(count, dtype=bool), inside=coins[1:],
        target=found[0], shadows=found[1:], base=None, compressed=np.full(count, 80), known=id_features(ids),
        nobody=table.slice(0, 0),
    )  # fmt: skip


def test_documents_without_memory_are_shown_at_most_at_the_level() -> None:
    p = [
        min(ranking.test.adjusted_p for ranking in world(0.0, seed=seed).rankings.all if ranking.test) for seed in range(100)
    ]
    assert np.mean(np.array(p) <= 0.05) <= 0.12  # .05 expected; 12 of 100 or fewer in 99.9 %
    assert np.mean(np.array(p) <= 0.5) >= 0.3


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_ranks_planted_members_higher(attack: str) -> None:
    rankings = {ranking.attack: ranking for ranking in world(2.0, seed=3).rankings.all}
    assert rankings[attack].test is not None
    assert rankings[attack].test.auc > 0.7


def test_the_ratio_finds_memory_smaller_than_the_differences_in_difficulty() -> None:
    rankings = {ranking.attack: ranking.test for ranking in world(0.4, seed=3).rankings.all}
    assert rankings["ratio"].auc > 0.95  # type: ignore[union-attr]
    assert rankings["loss"].auc < 0.8  # type: ignore[union-attr]


def test_the_summary_shows_planted_memory_and_is_inconclusive_without_memory() -> None:
    shown, null = (Findings.read(summarize(world(memory, seed=5), [])) for memory in (2.0, 0.0))
    assert shown.verdict.word == SHOWN
    assert null.verdict.word == INCONCLUSIVE
    assert shown.head.params["over"] == "documents"
    assert shown.first("epsilon_lower_bound").value > 0
    assert not shown.all("memorization_mean")


def test_without_shadow_models_only_the_target_is_tested() -> None:
    score = {"redraws": 999, "attacks": ["loss", "zlib", "min_k"], "headline": "loss"}
    found = Findings.read(summarize(world(2.0, seed=5, shadows=0, score=score), []))
    assert found.verdict.word == SHOWN
    assert found.get("auc_of_models") is None


def test_persons_are_units_of_several_documents() -> None:
    audited = world(2.0, seed=5, rows=4, split={"group": {"pattern": "^From: (.*)$"}})
    assert len(audited.units) == 40
    assert audited.units.noun == "persons"
    signal = audited.signals["zlib"]
    np.testing.assert_allclose(signal.target, audited.scores["zlib"].target.reshape(40, 4).mean(axis=1))
    assert signal.shadows.shape == (6, 40)


def test_only_listed_documents_are_audited() -> None:
    whole = world(2.0, seed=5)
    listed = np.arange(160) % 2 == 0
    part = DocumentsAudited.of(
        recipe=whole.recipe, pool=Pool.of(whole.rows, listed), rows=whole.rows, member=whole.member, listed=listed,  # type: ignore[arg-type]
        inside=whole.inside, target=scored(whole), shadows=[scored(whole)] * 6, base=None, compressed=np.full(160, 80),
        known=whole.known, nobody=whole.held_out,
    )  # fmt: skip
    assert len(part.units) == len(part.features.values) == len(part.scores["zlib"].target) == 80
    assert part.units.member.tolist() == whole.member[listed].tolist()


def scored(audited: DocumentsAudited) -> TokenScores:
    mean = log_p(audited.target.odds[0, 0])
    return without_tokens(np.full(160, 50.0), 50 * mean, mean, mean)


def test_ratio_min_k_and_zlib_equal_their_definitions() -> None:
    gains = {"own": np.zeros(4), "right": np.zeros(1, np.uint8), "gains": np.array([2.0, 1.0, -1.0, 2.0], np.float16)}
    one = TokenScores(np.array([4.0]), np.array([-8.0]), np.array([-1.5]), np.array([0.25]), **gains)  # type: ignore[arg-type]
    base = without_tokens(np.array([4.0]), np.array([-12.0]), np.array([-2.0]), np.array([0.0]))
    found = signals_of([one], base, np.array([10]))
    assert found["ratio"].tolist() == [[1.0]]  # (-8 + 12) / 4
    assert found["ez"][0, 0] == pytest.approx(np.log(5.001 / 1.001))
    assert found["wbc"][0, 0] == pytest.approx((2 / 3 + 2 / 2 + 1) / 3)  # of 2, 3 and 4 tokens; one mean is 0
    assert found["min_k"].tolist() == [[-1.5]]
    assert found["zlib"][0, 0] == pytest.approx(-8 / np.log(2) / 80)


def test_log_p_of_the_log_odds_is_the_mean_log_probability() -> None:
    means = np.array([-7.0, -0.3, -1e-4, 0.0])
    answers = answers_of([without_tokens(np.full(4, 2.0), 2 * means, means, means)])
    np.testing.assert_allclose(log_p(answers.odds[0, 0]), means, rtol=1e-5, atol=1e-11)


def test_nothing_is_bounded_where_many_documents_have_a_copy_among_the_members() -> None:
    audited = world(0.0, seed=0, shadows=8)
    copied = np.flatnonzero(~audited.member)[:15]
    found = Copies(np.isin(np.arange(160), copied), shared=0.5)
    read = Findings.read(summarize(replace(audited, copies=found), []))
    row = read.first("copied_nonmembers")
    assert (row.value, row.params["shared"]) == (15, 0.5)
    alike = "(equal content, or documents that have 50 % of their runs of four words in common) have a copy among the members"
    assert f"Nothing is bounded either, as 15 of {row.n} non-members {alike}." in read.verdict.explanation


@pytest.mark.parametrize("unit", ["character", "word"])
def test_copies_of_members_are_equal_documents_and_those_with_common_runs_of_words(unit: str) -> None:
    texts = [
        "one two three four five six",
        "seven eight nine ten one two",
        "one two three four five six",
        "one two three four five ten",
    ]
    texts += ["ten nine eight seven six five", "not listed not listed not listed"]
    symbols = [list(text) if unit == "character" else text.split() for text in texts]
    vocabulary = sorted({symbol for text in symbols for symbol in text})
    windows = np.full((2 * len(texts), 64), -1)  # a second window of each document is empty
    for place, text in enumerate(symbols):
        windows[2 * place, : len(text)] = [vocabulary.index(symbol) for symbol in text]
    content: Any = SimpleNamespace(
        windows=windows, vocabulary=vocabulary, marks=None, sizes=SimpleNamespace(windows=np.full(len(texts), 2))
    )  # fmt: skip
    listed, member = np.arange(len(texts)) < 5, np.array([True, True, False, False, False])
    found = copies_of(content, unit, listed, member)
    assert found.found.tolist() == [False, False, True, True, False]  # two of four runs of the fourth are the first's
    assert found.shared == 0.5
    others = np.pad(windows[:, :-4], ((0, 0), (4, 0)), constant_values=0)  # after the end of another document
    marks = np.where(np.arange(64) < 4, OTHERS, SCORED) * np.ones((len(windows), 1), int)
    packed = SimpleNamespace(**{**vars(content), "windows": others, "marks": marks})
    assert copies_of(packed, unit, listed, member).found.tolist() == found.found.tolist()  # type: ignore[arg-type]
    with patch.object(stages, "MOST_COMPARED", 10):
        found = copies_of(content, unit, listed, member)
    assert found.found.tolist() == [False, False, True, False, False]
    assert not found.shared


def test_a_declared_draw_of_documents_is_compared_by_the_pretrained_model_too_and_stays_declared() -> None:
    """A pretrained model that knows the members' source tells the sides, although shadow models know both alike."""
    sides = {"trained": {"kind": "huggingface", "path": "tuned"}, "members": "members.csv", "drawn": "fixed"}
    changes = {"model": {"kind": "huggingface", "path": "base"}, "target": sides}
    changes |= {"data": {"source": {"kind": "topics"}, "unit": "token"}}
    audited = world(0.0, seed=0, shadows=8, **changes)
    assert audited.difficulty is not None
    assert audited.difficulty.shape == (1, 160)
    rng, member = np.random.default_rng(0), audited.member
    for known, is_told in ((0.0, False), (2.0, True)):
        with_base = replace(audited, base=rng.normal(size=160) + known * member)
        assert with_base.difficulty.shape == (2, 160)
        checks = Checks(None, None, difficulty_p(with_base), with_base.agreement)
        assert checks.contradicts == is_told
        assert not checks.is_examined
