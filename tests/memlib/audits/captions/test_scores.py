"""Votes, recovered objects, likelihoods from words, and findings: by hand, against slow twins, under nulls and with plants."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy
from numpy.typing import NDArray

from memlib.audits.captions.findings import Setting, curves, summarize
from memlib.audits.captions.recipe import Config
from memlib.audits.captions.scores import Asked, WordModel, answers, chance, known_by_words, most_voted, votes_of
from memlib.audits.captions.tables import UNITS
from memlib.audits.captions.verdict import verdict
from memlib.data.given_sets import Difference
from memlib.findings import Findings, settle
from tests.assignments import assert_exact, redraw_exactly

ALIKE = Difference(0.5, 1.0, "ids", 240)
QUICK = Config(replicates=100, permutations=199)


def sparse(mask: NDArray[Any]) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array(mask.astype(np.float32))


def random_objects(seed: int, count: int, kinds: int, share: float) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.random.default_rng(seed).random((count, kinds)) < share
    return found


def test_votes_count_images_that_show_an_object_and_prefer_nearer_ones() -> None:
    public = sparse(np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]))
    votes = votes_of(np.array([[2, 0, 1]]), public).toarray()[0]
    assert votes.round(3).tolist() == [1, 2, 1, 1]
    assert votes[3] > votes[0] > votes[2]  # of equal votes, that of the nearest image comes first


@pytest.mark.parametrize("block", [1, 3, 4096])
def test_answers_equal_a_slow_count(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memlib.audits.captions.scores.BLOCK", block)
    rng = np.random.default_rng(1)
    public, objects = random_objects(2, 40, 9, 0.3), random_objects(3, 25, 9, 0.4)
    named = objects & random_objects(4, 25, 9, 0.4)
    implied = objects & ~named & random_objects(5, 25, 9, 0.3)
    neighbors = np.stack([rng.permutation(40)[:6] for _ in range(25)])
    asked = Asked(sparse(objects), sparse(named), sparse(implied))
    found = answers(votes_of(neighbors, sparse(public)), asked, 3)
    for row in range(25):
        votes = sorted(
            range(9), key=lambda kind: (-sum(public[n, kind] for n in neighbors[row]),
                                        -sum((6 - rank) * public[n, kind] for rank, n in enumerate(neighbors[row])), kind)
        )  # fmt: skip
        voted = [kind for kind in votes if public[neighbors[row], kind].any()]
        guesses = [kind for kind in voted if not named[row, kind]][:3]
        right = [kind for kind in guesses if objects[row, kind]]
        assert found.recovered[row] == len(right)
        assert found.wrong[row] == len(guesses) - len(right)
        assert found.unimplied[row] == sum(not implied[row, kind] for kind in right)
        top = votes[: named[row].sum()]
        assert found.named[row] == sum(named[row, kind] and kind in voted for kind in top)


def test_objects_without_votes_are_never_named() -> None:
    assert most_voted(np.zeros((2, 4)), 3).sum() == 0


def test_words_give_objects_that_they_come_with_and_no_others() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(2, 12, size=(3000, 3)).astype(np.int32)
    objects = rng.random((3000, 3)) < [0.3, 0.3, 0.05]
    objects[:, 2] |= (words == 7).any(axis=1)  # a word that implies an object
    model = WordModel.fit(words, sparse(objects))
    likely = model.likelihoods(np.array([[7, 2, 3], [2, 3, 4], [1, 0, 0]], dtype=np.int32))
    assert likely[0, 2] > 0.9
    assert np.abs(likely[:, :2] - 0.3).max() < 0.06
    assert likely[1, 2] < 0.15


def test_words_that_the_public_captions_lack_say_nothing() -> None:
    objects = np.array([[1, 0], [0, 1], [1, 0], [1, 0]])
    words = np.array([[2], [2], [2], [2]], dtype=np.int32)
    likely = WordModel.fit(words, sparse(objects)).likelihoods(np.array([[9], [0]], dtype=np.int32))
    assert likely[0].tolist() == likely[1].tolist()
    assert likely.mean(axis=0) == pytest.approx([0.75, 0.25], abs=0.01)
    words = np.array([[2, 1], [3, 0], [2, 1], [2, 1]], dtype=np.int32)  # 1 is any unknown word, 0 none
    likely = WordModel.fit(words, sparse(objects)).likelihoods(np.array([[1, 1], [0, 0]], dtype=np.int32))
    assert likely[0].tolist() == likely[1].tolist()


@pytest.mark.parametrize("block", [1, 7, 4096])
def test_implied_objects_are_unnamed_and_more_likely_than_not(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memlib.audits.captions.scores.BLOCK", block)
    rng = np.random.default_rng(0)
    words, objects = rng.integers(2, 12, size=(500, 3)).astype(np.int32), random_objects(1, 500, 4, 0.3)
    objects[:, 2] |= (words == 7).any(axis=1)
    named = objects & random_objects(2, 500, 4, 0.5)
    model = WordModel.fit(words, sparse(objects))
    implied, prior = known_by_words(model, words[:40], sparse(objects[:40]), sparse(named[:40]), 1)
    likely, unnamed = model.likelihoods(words[:40]), (objects & ~named)[:40]
    assert np.array_equal(implied.toarray() > 0, unnamed & (likely >= 0.5))
    assert implied.sum() > 0
    best = np.where(named[:40], -1.0, likely).argmax(axis=1)
    assert prior.tolist() == unnamed[np.arange(40), best].astype(int).tolist()


def test_chance_is_the_recall_of_neighbours_that_say_nothing() -> None:
    """Three of the nine other digits are unnamed, and three are named: a third of them by chance."""
    rng = np.random.default_rng(0)
    objects = np.zeros((600, 10), dtype=bool)
    for row in objects:
        row[rng.permutation(10)[:4]] = True
    named = np.zeros_like(objects)
    named[np.arange(600), objects.argmax(axis=1)] = True
    neighbors = np.stack([rng.permutation(600)[:10] for _ in range(600)])
    asked = Asked(sparse(objects), sparse(named), sparse(np.zeros_like(objects)))
    assert chance(votes_of(neighbors, sparse(objects)), asked, 3) == pytest.approx(1 / 3, abs=0.02)


def units(
    a: NDArray[np.int64],
    b: NDArray[np.int64] | None,
    *,
    direction: list[str],
    copies: Any = 1,
    groups: Any = None,
    pair: int = 0,
) -> pa.Table:
    """Return units with three unnamed objects, of which the models recover `a` and `b`."""
    count = len(a)
    number: dict[str, Any] = {name: np.zeros(count, dtype=np.int64) for name in UNITS.arrow.names}
    number |= {
        "example_id": [f"{place:04d}" for place in range(count)], "direction": direction, "pair": [pair] * count,
        "epoch": [5] * count, "k": [10] * count, "group": [None] * count if groups is None else groups,
        "copies": np.broadcast_to(copies, count), "num_named": np.ones(count), "num_unnamed": np.full(count, 3),
        "a_recovered": a, "a_unimplied": a, "b_recovered": [None] * count if b is None else b,
        "distance": np.random.default_rng(9).random(count),
    }  # fmt: skip
    number |= {name: [None] * count for name in ("b_wrong", "b_unimplied", "b_named") if b is None} | (
        {} if b is None else {"b_unimplied": b}
    )
    return pa.table(number).cast(UNITS.arrow)


def sides(count: int, held_out: int = 0) -> list[str]:
    return ["A"] * (count // 2) + ["B"] * (count // 2) + ["H"] * held_out


def found(table: pa.Table, config: Config = QUICK) -> Findings:
    return Findings(summarize(table, config, epochs=(5,), chance=1 / 3))


def test_the_excess_is_half_the_difference_in_differences() -> None:
    a, b = np.array([3, 2, 1, 0, 1, 2]), np.array([0, 1, 3, 3, 2, 0])
    rows = found(units(a, b, direction=["A", "A", "B", "B", "H", "H"]))
    own, other = (3 + 2 + 3 + 3) / 12, (0 + 1 + 1 + 0) / 12
    assert rows.head.value == pytest.approx(own - other)
    assert rows.head.n == 4
    assert [rows.first(f"recall_{who}").value for who in ("target", "reference")] == pytest.approx([own, other])
    gaps = {row.params["direction"]: row.value for row in rows.all("population_gap")}
    assert gaps == pytest.approx({"A": 1.0, "B": -1.0, "H": 0.0})
    assert not any(row.is_test for row in rows.all("population_gap"))


def test_one_model_alone_is_compared_on_pairs_that_it_has_not_seen() -> None:
    a = np.array([3, 3, 2, 1, 1, 0])
    rows = found(units(a, None, direction=["A"] * 3 + ["B"] * 3))
    assert rows.head.value == pytest.approx((8 - 2) / 9)
    assert [rows.first(f"recall_{who}").value for who in ("target", "reference")] == pytest.approx([8 / 9, 2 / 9])
    assert not rows.all("population_gap")


@pytest.mark.parametrize("alone", [False, True])
def test_the_sentence_names_the_models_that_were_compared(alone: bool) -> None:
    a, b = np.repeat([3, 0], 60), np.repeat([0, 3], 60)
    said = verdict(settle(list(found(units(a, None if alone else b, direction=["A"] * 60 + ["B"] * 60))), alpha=0.05))
    assert said.word == "shown"
    assert ("of images that it was not trained on" in said.sentence) == alone
    assert ("models that did not see the image" in said.sentence) != alone
    assert ("on pairs that were trained on" in said.explanation) == alone


@pytest.mark.usefixtures("without_power")
@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_without_memory_the_test_is_exact_for_every_draw(groups: bool, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of different quality, and persons with several pairs that are easy or hard together: 3 of 6 were drawn."""
    redraw_exactly(monkeypatch)
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(6), [1, 3, 2, 2, 4, 1] if groups else 1)
    hard = rng.random(6)[person]
    a, b = rng.binomial(3, 0.2 + 0.6 * hard), rng.binomial(3, 0.1 + 0.4 * hard)
    names, p_values = [f"person {number}" for number in person] if groups else None, []
    for first in itertools.combinations(range(6), 3):
        of_a = np.where(np.isin(person, first), "A", "B").tolist()
        head = found(
            units(a, None if alone else b, direction=of_a, groups=names), Config(replicates=100, permutations=100)
        ).head
        assert head.p_value is not None
        p_values.append(head.p_value)
    assert_exact(p_values)


def test_a_planted_memory_is_shown_and_grows_with_the_dose() -> None:
    rng = np.random.default_rng(0)
    direction, copies = sides(240, 40), np.tile([1, 4], 140)
    own = np.where(copies == 4, 0.9, 0.5)
    a = rng.binomial(3, np.where(np.array(direction) == "A", own, 1 / 3))
    b = rng.binomial(3, np.where(np.array(direction) == "B", own, 1 / 3))
    rows = found(units(a, b, direction=direction, copies=copies))
    assert rows.head.verdict == "shown"
    doses = {row.params["copies"]: row for row in rows.all("recall_excess") if "copies" in row.params}
    assert doses[4].value > doses[1].value + 0.2
    assert (doses[4].family, doses[4].verdict) == ("doses", "shown")
    assert "the models name more of the objects that it does not mention than models that did not" in verdict(rows).sentence


def easy_pairs(
    seed: int, *, easier: float = 0.0, sharper: float = 1.0, memory: tuple[float, float] = (0.0, 0.0), count: int = 400
) -> pa.Table:
    """Return units of pairs that differ in difficulty, which the words tell poorly.

    Args:
        easier: how much easier the pairs of A are, in standard deviations.
        sharper: how much more the first model's recall depends on the difficulty than the second's.
        memory: of the first and of the second model, in log odds of recall.
    """
    rng, of_a = np.random.default_rng(seed), np.arange(count) < count // 2
    ease = rng.normal(size=count) + easier * of_a
    logits = (sharper * ease + memory[0] * of_a, ease + memory[1] * ~of_a, ease / 2 - 1)
    a, b, words = (rng.binomial(3, 1 / (1 + np.exp(-each))) for each in logits)
    table = units(a, b, direction=sides(count))
    return table.set_column(table.column_names.index("prior_recovered"), "prior_recovered", pa.array(words))


def declared_word(table: pa.Table) -> str:
    return verdict(Findings(summarize(table, QUICK, epochs=(5,), chance=1 / 3, checks=ALIKE))).word


def test_a_declared_draw_is_withdrawn_where_what_is_known_without_a_model_tells_the_sides() -> None:
    dated = Difference(0.9, 0.001, "dates", 240)
    said = verdict(Findings(summarize(easy_pairs(0), QUICK, epochs=(5,), chance=1 / 3, checks=dated)))
    assert said.word == "descriptive"
    assert "But the sets can be told apart without any model (AUC 0.90, most by dates)" in said.explanation


def test_a_declared_draw_is_withdrawn_where_the_pairs_of_one_side_are_easier() -> None:
    assert sum(declared_word(easy_pairs(seed, easier=1.0)) == "descriptive" for seed in range(8)) >= 7


@pytest.mark.parametrize("memory", [(1.0, 1.0), (1.0, 0.0)])
def test_memory_is_shown_under_a_true_declared_draw(memory: tuple[float, float]) -> None:
    """Of both models, or of the first beside a public one."""
    assert sum(declared_word(easy_pairs(seed, memory=memory)) == "shown" for seed in range(8)) >= 6


def test_gains_of_a_declared_draw_are_adjusted_for_how_easy_pairs_are() -> None:
    ease = np.tile([0, 1, 2, 3], 10)
    table = units(ease, 0 * ease, direction=["A", "B"] * 20)  # the gain follows from the mean recall of both models
    declared = Setting.of(table, epoch=5, k=10, declared=True)
    assert np.ptp(declared.fair_gains()) == pytest.approx(0, abs=1e-9)
    assert declared.fair_gains().mean() == pytest.approx(declared.gains().mean())
    plain = Setting.of(table, epoch=5, k=10)
    assert np.array_equal(plain.fair_gains(), plain.gains())


def test_one_model_alone_shows_nothing_under_a_declared_draw() -> None:
    a = np.repeat([3, 0], 60)
    rows = Findings(summarize(units(a, None, direction=sides(120)), QUICK, epochs=(5,), chance=1 / 3, checks=ALIKE))
    assert not rows.head.is_test
    said = verdict(rows)
    assert said.word == "descriptive"
    assert "with one model alone" in said.sentence


def test_pairs_selected_by_what_was_found_show_a_gap_without_any_memory_and_ours_do_not() -> None:
    """The published key, the number of right objects under A less that under B, inflates every top share."""
    rng = np.random.default_rng(0)
    a, b = rng.binomial(3, 0.4, size=(2, 4000))
    rows = found(units(a, b, direction=sides(4000)), QUICK.model_copy(update={"top": (0.05, 0.1)}))
    gain = (a - b)[:2000] / 3
    published = {top: float(np.sort(gain)[::-1][: round(top * 2000)].mean()) for top in (0.05, 0.1)}
    assert min(published.values()) > 0.6
    for row in rows.all("recall_excess_top"):
        assert abs(row.value) < 0.1
        assert row.low is not None
        assert row.low < 0 < (row.high or 0)
    assert abs(rows.head.value) < 0.02


def test_pairs_whose_caption_names_everything_are_left_out() -> None:
    table = units(np.array([3, 0, 0, 3]), np.array([0, 0, 3, 0]), direction=["A", "A", "B", "B"])
    table = table.set_column(table.column_names.index("num_unnamed"), "num_unnamed", pa.array([3, 0, 3, 3]))
    rows = found(table)
    assert rows.head.n == 3


def test_further_models_are_averaged_over_the_same_pairs() -> None:
    rng = np.random.default_rng(0)
    tables = [units(*rng.binomial(3, 0.4, size=(2, 60)), direction=sides(60), pair=pair) for pair in range(2)]
    both, single = found(pa.concat_tables(tables)), [found(table).head.value for table in tables]
    assert both.head.value == pytest.approx(np.mean(single))
    assert (both.head.n, both.head.params["pairs"]) == (60, 2)


def test_curves_end_at_one_for_each_set() -> None:
    rng = np.random.default_rng(0)
    table = curves(units(*rng.binomial(3, 0.4, size=(2, 90)), direction=sides(60, 30)), epochs=(5,), k=10)
    for name in ("A", "B", "H"):
        y = [row["y"] for row in table.to_pylist() if row["series"] == name]
        assert y == sorted(y)
        assert y[-1] == 1.0
