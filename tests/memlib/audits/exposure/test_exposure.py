"""Exposure by hand, its null, its methods compared with each other, and the text of the page."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, norm, rankdata

from memlib.audits.exposure.curves import curves
from memlib.audits.exposure.findings import summarize
from memlib.audits.exposure.privacy import epsilon_bound, most_exposed, refuted_p
from memlib.audits.exposure.recipe import Config, Recipe
from memlib.audits.exposure.report import compose, pareto_front
from memlib.audits.exposure.scores import (
    Scored,
    canary_p,
    choose_method,
    exposure_by_sampling,
    exposure_of_rank,
    sampled_p,
    score,
    upper_exposure,
)
from memlib.audits.exposure.tables import DOCUMENTS, EXTRACTION
from memlib.audits.exposure.verdict import verdict
from memlib.findings import Finding, Findings, estimate
from memlib.observe.likelihoods import UNITS_PER_BIT
from memlib.report.page import Page, TableView, render
from memlib.stats.tails import goodness_of_fit
from tests.assignments import assert_exact, redraw_exactly

RECIPE = {
    "data": {"source": {"kind": "topics"}},
    "training": {"objective": {"kind": "language"}, "epochs": 4, "augment": None, "checkpoint_epochs": [2]},
}
OF_A_FILE = {"canaries": {"file": "secrets.txt", "unseen": "unseen.txt"}}
EXTERNAL = OF_A_FILE | {"training": None, "trained": {"kind": "import", "model": "their.module:factory"}}
SIZE = 10**6


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate(RECIPE | changes)


def seen(
    costs: list[float],
    insertions: list[int],
    *,
    seed: int = 0,
    epoch: int = 4,
    exact: dict[int, tuple[str, int, int]] | None = None,
) -> Scored:
    """References are normal around 40 bits."""
    rng = np.random.default_rng(seed)
    references = np.round(rng.normal(40, 4, 2000) * UNITS_PER_BIT).astype(np.int64)
    mine: NDArray[np.int64] = np.round(np.array(costs) * UNITS_PER_BIT).astype(np.int64)
    ids = tuple(range(len(costs)))
    kinds = tuple("inserted" if times else "never" for times in insertions)
    return Scored("", seed, epoch, ids, kinds, tuple(insertions), mine, references, 1.5, exact or {})


def ranked(ranks: list[int], *, variant: str = "", seed: int = 0) -> Scored:
    """Exact ranks of canaries that were inserted four times; references that nothing can be learnt of."""
    ids, exact = tuple(range(len(ranks))), {canary: ("enumerated", rank, 1) for canary, rank in enumerate(ranks)}
    costs = np.full(len(ranks), 40 << 16)
    same = np.full(100, 50 << 16)
    return Scored(variant, seed, 4, ids, ("inserted",) * len(ids), (4,) * len(ids), costs, same, 1.5, exact)


def tables_of(models: list[Scored], said: Recipe, *, size: int = SIZE, **config: Any) -> dict[str, pa.Table]:
    units, extractions = score(models, size, Config(**{"replicates": 20, **config})), EXTRACTION.arrow.empty_table()
    return {
        "units": units, "extractions": extractions, "documents": DOCUMENTS.arrow.empty_table(),
        "summary": summarize(models, units, extractions, said, size=size),
        "curves": curves(models, units, extractions, said),
    }  # fmt: skip


def rows_of(models: list[Scored], said: Recipe, *, size: int = SIZE, **config: Any) -> Findings:
    """Settled findings."""
    units = score(models, size, Config(**{"replicates": 20, **config}))
    return Findings.read(summarize(models, units, EXTRACTION.arrow.empty_table(), said, size=size))


def ends(row: Finding) -> tuple[float, float]:
    assert row.low is not None
    assert row.high is not None
    return row.low, row.high


def page_of(models: list[Scored], said: Recipe, folder: Path, **config: Any) -> Page:
    tables = tables_of(models, said, **config)
    content = compose(said, tables, {"text": "topics"}, folder)
    return Page(said.title, "exposure", "a", "", Findings.read(tables["summary"]).verdict, content)


def test_exposure_of_rank_equals_the_log_ratio_and_rejects_impossible_ranks() -> None:
    assert exposure_of_rank(1, 1024) == 10
    assert exposure_of_rank(1024, 1024) == 0
    assert exposure_of_rank(256, 1024) == 2
    assert exposure_of_rank(1, 10**30) == pytest.approx(30 * math.log2(10))
    for rank in (0, 1025):
        with pytest.raises(ValueError, match="between 1 and 1024"):
            exposure_of_rank(rank, 1024)


def test_exposure_by_sampling_counts_the_canary_itself() -> None:
    value, low, high = exposure_by_sampling(0, 1023)
    assert value == 10
    assert high is None
    assert low > 7
    value, low, high = exposure_by_sampling(511, 1023)
    assert value == 1
    assert high is not None
    assert low < 1 < high < low + 0.3
    assert exposure_by_sampling(1023, 1023)[0] == 0
    with pytest.raises(ValueError, match="cannot lie"):
        exposure_by_sampling(5, 4)


@pytest.mark.parametrize("level", [0.025, 0.05, 0.3])
def test_the_upper_exposure_is_the_share_of_which_so_many_references_are_just_likely_enough(level: float) -> None:
    """At the bound, c or more of n references lie at or below the canary with the probability of the level."""
    assert upper_exposure(0, 20, level=level) is None
    assert upper_exposure(1, 1, level=level) == pytest.approx(-math.log2(level))
    assert upper_exposure(20, 20, level=level) == pytest.approx(-math.log2(level) / 20)  # all of 20: share^20 is the level
    assert upper_exposure(1, 20, level=level) == pytest.approx(-math.log2(1 - (1 - level) ** (1 / 20)))
    for below in range(1, 21):
        bits = upper_exposure(below, 20, level=level)
        assert bits is not None
        assert binom.sf(below - 1, 20, 2**-bits) == pytest.approx(level)


def test_the_interval_of_exposure_by_sampling_covers_the_true_exposure_over_all_outcomes() -> None:
    found = [exposure_by_sampling(below, 30) for below in range(31)]
    for below, (_, low, high) in enumerate(found):
        assert binom.cdf(below, 30, 2**-low) == pytest.approx(0.025 if below < 30 else 1.0)
        assert high == upper_exposure(below, 30, level=0.025)
    for share in np.linspace(0.01, 1, 100):
        bits = -math.log2(share)
        held = [below for below, (_, low, high) in enumerate(found) if low <= bits <= (math.inf if high is None else high)]
        assert binom.pmf(held, 30, share).sum() >= 0.95


def test_p_values_of_canaries_drawn_like_the_references_are_exact_over_all_draws() -> None:
    """Four candidates and two references: all 4 x 4^2 draws; ranks at or below the canary's."""
    draws = list(itertools.product(range(1, 5), repeat=3))
    counts = [sum(reference <= rank for reference in references) for rank, *references in draws]
    for completed in range(5):  # walks to a rank of at most this are completed
        found = [
            canary_p(below, 2, size=4, exact=("pruned", rank, 1) if rank <= completed else None)
            for below, (rank, *_) in zip(counts, draws, strict=True)
        ]
        for p in set(found):
            assert sum(one <= p for one in found) <= p * len(draws) + 1e-9
    assert_exact(
        [canary_p(below, 2, size=4, exact=("enumerated", rank, 1)) for below, (rank, *_) in zip(counts, draws, strict=True)]
    )
    orders = [sum(other < rank for other in others) for rank, *others in itertools.permutations(range(5), 4)]
    assert_exact([sampled_p(below, 3) for below in orders])  # without ties


def test_auto_chooses_the_cheapest_method_that_is_precise_enough() -> None:
    config = Config()
    assert choose_method(config, at_or_below=0, size=10**6) == "enumerated"
    assert choose_method(config, at_or_below=30, size=10**9) == "sampled"
    assert choose_method(config, at_or_below=3, size=10**9) == "pruned"
    assert choose_method(Config(method="extrapolated"), at_or_below=500, size=10) == "extrapolated"


def test_scores_keep_the_order_of_canaries_and_name_their_method() -> None:
    model = replace(seen([40.0, 20.0, 10.0], [0, 1, 16], exact={2: ("pruned", 1, 77)}), fit_p=0.6)
    rows = score([model], 10**9, Config(method="auto")).to_pylist()
    assert [row["canary"] for row in rows] == [0, 1, 2]
    assert [row["method"] for row in rows] == ["sampled", "extrapolated", "pruned"]
    assert rows[0]["exposure"] == pytest.approx(1, abs=0.15)
    odd = score([seen([40.12699, 19.998], [0, 1])], 10**9, Config()).to_pylist()
    assert [row["log_perplexity"] for row in odd] == [40.13, 20.0]  # rounded to hundredths of a bit
    assert rows[1]["exposure"] == pytest.approx(-math.log2(2.87e-7), abs=2.5)  # five standard deviations
    assert rows[1]["ci_low"] < rows[1]["exposure"]
    assert rows[1]["ci_high"] is None  # the references say at least, the law says about
    assert rows[2]["ci_low"] is rows[2]["ci_high"] is None
    assert rows[2]["exposure"] == math.log2(10**9)
    assert rows[2]["rank"] == 1
    assert rows[2]["p_value"] == pytest.approx(1e-9)
    assert rows[2]["exposure_extrapolated"] > 30  # not bounded by the space
    assert rows[1]["p_value"] == pytest.approx(1 / 2001)


def test_auto_does_not_extrapolate_a_law_that_does_not_fit() -> None:
    """With costs in two humps, auto falls back on the lower bound from the references, whose interval holds the truth."""
    rng = np.random.default_rng(0)
    humps = np.concatenate([rng.normal(30, 1, 1000), rng.normal(50, 1, 1000)])
    fit_p = goodness_of_fit(humps, replicates=40, seed=0)
    costs = (humps * 65536).astype(np.int64)
    model = Scored("", 0, 4, (0,), ("inserted",), (2,), np.array([20 * 65536]), costs, 1.5, {}, None, fit_p)
    (row,) = score([model], 10**9, Config()).to_pylist()
    assert row["fit_p"] < 0.05
    assert row["method"] == "sampled"
    assert row["ci_low"] > 9
    assert row["ci_high"] is None
    assert score([model], 10**9, Config(method="extrapolated"))["method"][0].as_py() == "extrapolated"


def test_equal_costs_of_all_candidates_give_exposure_zero() -> None:
    model = Scored("", 0, 4, (0,), ("inserted",), (9,), np.array([500]), np.full(2000, 500), 1.5, {})
    (row,) = score([model], SIZE, Config(method="sampled")).to_pylist()
    assert row["exposure"] == 0
    assert row["exposure_extrapolated"] is None
    assert row["p_value"] == 1


def test_summary_calls_null_canaries_exposed_at_alpha_and_a_planted_one_shown() -> None:
    """Canaries at the quantiles of the references' law: 2^-exposure averages 1/2, at most alpha are called exposed.

    Only the 2,000 references are drawn: the mean of 2^-exposure deviates by .0065 (standard error), its interval reaches .028.
    """
    costs = norm.ppf((np.arange(400) + 0.5) / 400, 40, 4).tolist()
    null = seen([*costs, 12.0], [*([0] * 400), 16], seed=5)
    units = score([null], 10**9, Config(method="sampled"))
    rows = rows_of([null], recipe(), size=10**9, method="sampled")
    mean = rows.first("two_to_minus_exposure")
    assert mean.role == "diagnostic"
    low, high = ends(mean)
    assert low < 0.5 < high
    assert rows.first("exposure_median").value == pytest.approx(1, abs=0.2)
    planted = rows.first("exposure", canary=400)
    assert planted.verdict == "shown"
    assert planted.detectable == pytest.approx(math.log2(20))
    p_values = np.array([row["p_value"] for row in units.to_pylist() if row["insertions"] == 0])
    assert (p_values < 0.05).mean() == pytest.approx(0.05, abs=0.025)


@pytest.mark.long
def test_page_explains_a_found_exposure_and_the_power_of_an_inconclusive_test(tmp_path: Path) -> None:
    models = [
        seen([40.0, 12.0], [0, 16], epoch=epoch, exact={0: ("enumerated", 500_000, 9), 1: ("enumerated", 1, 9)})
        for epoch in (2, 4)
    ]
    page = page_of(models, recipe(title="<b>"), tmp_path, replicates=100)
    assert page.verdict.sentence == "The model gives away information about 1 of 1 inserted canary."
    assert page.style == "found"
    assert "one in 2^18.9" in page.lead
    assert "19.9 bits" in page.lead
    html = render(page)
    assert "<b>" not in html.replace("<b>", "", 0) or "&lt;b&gt;" in html
    assert html.count("<svg") == 3
    nothing = [seen([40.0, 41.0], [0, 1], exact={0: ("enumerated", 5, 9), 1: ("enumerated", 600_000, 9)})]
    page = page_of(nothing, recipe(), tmp_path, replicates=100)
    assert page.verdict.sentence == "This audit does not show that the model gives away its inserted canaries."
    assert page.style == "odd"
    assert "A single canary would have been found at 4.3 bits of exposure or more" in page.lead
    assert "A smaller exposure may exist" in page.lead


def test_any_canary_of_two_is_called_exposed_in_at_most_alpha_of_all_ranks() -> None:
    """Two canaries among 20 candidates: all 400 pairs of ranks are equally likely; one suffices by its own p-value.

    The headline is twice the smaller of Fisher's combination, which is w (1 - ln w) of the product w, and twice the smaller p.
    """
    wrong = np.zeros(2)
    for first in range(1, 21):
        for second in range(first, 21):
            weight, rows = 1 + (second > first), rows_of([ranked([first, second])], recipe(), size=20)
            w = first * second / 20**2
            assert rows.head.p_value == pytest.approx(min(1.0, 2 * min(w * (1 - math.log(w)), 2 * first / 20)))
            singles = sorted(row.p_value or 0 for row in rows.tests("canaries"))
            assert singles == pytest.approx([first / 20, second / 20])
            for place, level in enumerate((0.05, 0.2)):
                named = [row for row in rows.tests("canaries") if (row.p_adjusted or 0) <= level]
                wrong[place] += weight * bool(rows.head.p_value <= level or named)
    assert (wrong <= np.array([0.05, 0.2]) * 20**2).all()
    assert (wrong > 0).all()


def test_several_seeds_of_a_canary_count_as_one_canary(tmp_path: Path) -> None:
    models = [
        seen([12.0, 40.0], [8, 0], seed=seed, exact={0: ("enumerated", 1, 1), 1: ("enumerated", 9000, 1)})
        for seed in range(3)
    ]
    page = page_of(models, recipe(seeds=3), tmp_path)
    assert rows_of(models, recipe(seeds=3)).head.n == 1
    assert page.verdict.sentence == "The training (3 seeds) gives away information about 1 of 1 inserted canary."
    assert "the mean over 3 models" in page.lead


def test_a_page_shows_exposures_in_spaces_beyond_the_range_of_floats(tmp_path: Path) -> None:
    model = seen([1.0], [9])
    units = score([model], 16**256, Config(method="extrapolated", replicates=20))
    assert units["exposure"][0].as_py() > 60
    page = page_of([model], recipe(), tmp_path, size=16**256, method="extrapolated")
    assert "There are 2^1024.0 possible canaries" in page.lead


def tables_on(page: Page) -> list[TableView]:
    return [block for section in page.sections for block in section.blocks if isinstance(block, TableView)]


def test_pareto_front_holds_every_undominated_point_in_order() -> None:
    points = {"a": (1.0, 9.0), "b": (1.2, 3.0), "c": (1.3, 3.0), "d": (2.0, 0.5), "e": (1.2, 3.0), "f": (2.0, 0.6)}
    assert pareto_front(points) == ["a", "b", "e", "d"]


def test_page_lists_the_privacy_budget_of_a_private_variant(tmp_path: Path) -> None:
    plain = replace(seen([12.0], [8], exact={0: ("enumerated", 1, 1)}), variant="plain")
    spent = [{"epsilon": epsilon, "delta": 1e-5, "noise": 1.5, "accountant": "rdp"} for epsilon in (1.0, 2.0)]
    private = [
        replace(plain, variant="private", epoch=epoch, exact={0: ("enumerated", 9, 1)}, validation_loss=2.5, privacy=said)
        for epoch, said in zip((2, 4), spent, strict=True)
    ]
    models = [plain, *private]
    mine = recipe(variants={"plain": {}, "private": {"training": {"batch_size": 32, "privacy": {"noise": 1.5}}}})
    (row,) = rows_of(models, mine).all("epsilon")
    assert row.value == 2.0
    assert row.params == {"variant": "private", "delta": 1e-5, "noise": 1.5, "accountant": "rdp"}
    html = render(page_of(models, mine, tmp_path))
    assert "2 (delta 1e-05, noise 1.5, rdp)" in html
    assert "is no guarantee" in html
    assert (tmp_path / "utility.svg").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training": {"objective": {"kind": "supervised"}, "epochs": 1, "augment": None}}, "use language"),
        ({"training": {"objective": {"kind": "language"}, "epochs": 1}}, "set it to null for text"),
        (
            {"score": {"equal_loss": True}, "variants": {"b": {"training.checkpoint_epochs": []}}},
            r"give variants and training\.checkpoint_epochs",
        ),
        ({"sanitize": {}}, "set canaries.together to true"),
        ({**EXTERNAL, "sanitize": {}}, "sanitize trains models on a sanitized text"),
        ({**EXTERNAL, "score": {"equal_loss": True}}, "leave it out for an external model"),
        ({"sanitize": {}, "variants": {"b": {"quantize": True}}}, "and no variants"),
        ({"canaries": {"words": 9}}, "leave canaries.words out"),
        ({"canaries": {"format": "a {w}", "file": "secrets.txt"}}, r"list the words in canaries\.alphabets\.w"),
        ({"score": {"equal_loss": True}}, r"give variants and training\.checkpoint_epochs"),
        (
            {"variants": {"b": {"data.window": 50}}},
            "changes other settings than model, training, quantize",
        ),
        (
            {"canaries": {"format": "the {w}", "alphabets": {"w": ["a", "apple"]}}},
            r"canaries\.alphabets\.w contains 'apple', but data\.unit is character",
        ),
    ],
)
def test_recipes_with_contradictory_settings_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        recipe(**changes)


def test_alphabets_may_hold_words_or_characters_according_to_the_unit_of_the_text() -> None:
    words = {"format": "the {w}", "alphabets": {"w": ["apple", "pear"]}}
    assert recipe(canaries=words, data={"source": {"kind": "topics"}, "unit": "word"}).canaries.alphabets["w"] == (
        "apple",
        "pear",
    )
    assert recipe(canaries={"format": "the {w}", "alphabets": {"w": ["a", "p"]}}).canaries.alphabets["w"] == ("a", "p")


def test_cells_apply_the_settings_of_each_variant_to_the_recipe() -> None:
    found = recipe(variants={"plain": {}, "dropout": {"model.dropout": 0.5}, "8 bit": {"quantize": True}}).cells
    assert found["dropout"].model.dropout == 0.5
    assert found["8 bit"].quantize
    assert list(recipe().cells) == [""]


# -- what tests of exposure must not find -------------------------------------------------------------


@pytest.fixture
def no_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the fit of the skew-normal law, which no test rests on."""
    monkeypatch.setattr("memlib.audits.exposure.scores._extrapolate", lambda *_: None)


def given(costs: NDArray[np.float64], times: list[int], unseen: NDArray[np.float64], *, seed: int = 0) -> Scored:
    """A model that was asked for secrets of a file, for unseen ones of their kind, and for random candidates at 40 bits."""
    whole = np.round(np.concatenate([costs, unseen]) * UNITS_PER_BIT).astype(np.int64)
    references = np.round(np.random.default_rng(seed + 999).normal(40, 4, 1000) * UNITS_PER_BIT).astype(np.int64)
    kinds = ("given",) * len(costs) + ("unseen",) * len(unseen)
    insertions = (*times, *([0] * len(unseen)))
    return Scored("", seed, 4, tuple(range(len(whole))), kinds, insertions, whole, references, 1.5, {})


def skewed_costs(rng: np.random.Generator, count: int, digits: int = 9) -> NDArray[np.float64]:
    """Bits of numbers whose digits have 2.86 bits each, under a model that knows how they are distributed."""
    law = np.array([0.30, 0.20, 0.13, 0.10, 0.08, 0.06, 0.05, 0.04, 0.02, 0.02])
    return np.asarray(-np.log2(law)[rng.choice(10, size=(count, digits), p=law)].sum(axis=1))


def test_ranks_among_all_candidates_would_accuse_secrets_from_a_skewed_law_known_to_the_model() -> None:
    """Five unseen secrets are more likely than uniform candidates in most audits: so given ones are ranked among unseen ones."""
    law = np.array([0.30, 0.20, 0.13, 0.10, 0.08, 0.06, 0.05, 0.04, 0.02, 0.02])
    uniform = -np.log2(law)[np.random.default_rng(1).integers(0, 10, size=(10_000, 9))].sum(axis=1)
    costs = [skewed_costs(np.random.default_rng(seed), 5) for seed in range(80)]
    assert sum(min((uniform <= cost).mean() for cost in five) <= 0.05 / 5 for five in costs) >= 40


@pytest.mark.usefixtures("no_law")
@pytest.mark.parametrize("bits", [[1.0, 2, 3, 4, 5, 6, 7], [3.0, 3, 1, 1, 2, 5, 5]])
def test_given_secrets_are_tested_exactly_among_unseen_ones(bits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pair of seven secrets may have been the given one; the headline is twice the smaller of two exact p-values."""
    redraw_exactly(monkeypatch)
    monkeypatch.setattr("memlib.audits.exposure.evidence.PERMUTATIONS", 20)  # all pairs but the given one
    scores = -np.log(rankdata(bits, method="max") / 7)
    pairs, found = list(itertools.combinations(range(7), 2)), []
    for pair in pairs:
        others = np.delete(bits, pair)
        rows = rows_of([given(np.array(bits)[list(pair)], [1, 1], others)], recipe(**OF_A_FILE), method="sampled")
        singles = sorted((1 + sum(others <= bits[place])) / 6 for place in pair)
        assert sorted(row.p_value or 0 for row in rows.tests("canaries")) == pytest.approx(singles)
        together = np.mean([scores[list(one)].sum() >= scores[list(pair)].sum() - 1e-9 for one in pairs])
        assert rows.head.p_value == pytest.approx(min(1.0, 2 * min(together, 2 * singles[0])))
        found.append(rows.head.p_value)
    for p in found:
        assert sum(other <= p + 1e-9 for other in found) <= p * len(pairs) + 1e-9


def test_a_given_secret_that_stands_out_is_found() -> None:
    unseen = skewed_costs(np.random.default_rng(0), 400)
    costs = np.array([4.0, *np.quantile(unseen, (0.3, 0.5, 0.6, 0.8))])
    rows = rows_of([given(costs, [9, 1, 1, 1, 1], unseen)], recipe(**OF_A_FILE), method="sampled")
    assert rows.verdict.word == "shown"
    assert rows.verdict.sentence == "The model gives away information about 1 of 5 given secrets."
    assert "Of 400 secrets of its kind that were never seen, none is as likely" in rows.verdict.explanation
    assert {row.params["canary"] for row in rows.tests("canaries").shown()} == {0}
    assert {row.role for row in rows.all("exposure")} == {"estimate"}


@pytest.mark.usefixtures("no_law")
@pytest.mark.parametrize("external", [True, False])
def test_occurrences_of_secrets_for_an_external_model_are_attributed_to_the_list(tmp_path: Path, external: bool) -> None:
    unseen = skewed_costs(np.random.default_rng(0), 400)
    model = given(np.array([4.0, *np.quantile(unseen, (0.3, 0.6))]), [9, 1, 1], unseen)
    page = page_of([model], recipe(**(EXTERNAL if external else OF_A_FILE)), tmp_path)
    names = [name for _, name, _ in page.content.numbers]
    assert any("listed as seen 9x" in name for name in names) == external
    assert any("mean of those listed as seen" in name for name in names) == external  # nobody said how often
    assert any(", seen 9x;" in name for name in names) == (not external)
    assert ("is listed as having occurred 9 times" in page.lead) == external
    html = render(page)
    assert ("saw a secret most often" in html) == (not external)
    assert ("is listed as having seen" in html) == external
    (secrets,) = [view for view in tables_on(page) if "log-perplexity" in view.headings]
    place = next(place for place, heading in enumerate(secrets.headings) if heading.startswith("occurrences"))
    assert (secrets.headings[place] == "occurrences, as listed") == external
    assert [row[place] for row in secrets.rows] == (["9x", "", ""] if external else ["9x", "1x", "1x"])
    once = page_of([given(np.quantile(unseen, (0.3, 0.6)), [1, 1], unseen)], recipe(**EXTERNAL), tmp_path)
    assert "1x" not in render(once)
    assert not any("occurrences, as listed" in view.headings for view in tables_on(once))


def test_without_unseen_secrets_nothing_is_tested_and_the_verdict_inconclusive() -> None:
    model = given(np.array([1.0, 2.0]), [9, 9], np.zeros(0))
    rows = rows_of([model], recipe(canaries={"file": "secrets.txt"}), method="sampled")
    assert rows.verdict.word == "inconclusive"
    assert "canaries.unseen" in rows.verdict.explanation
    assert not rows.tests()
    assert "exposed" not in rows.verdict.sentence + rows.verdict.explanation
    units = score([model], SIZE, Config(method="sampled")).to_pylist()
    assert {unit["p_value"] for unit in units} == {None}


def test_few_unseen_secrets_are_shown_together_but_not_one_by_one() -> None:
    rng = np.random.default_rng(0)
    rows = rows_of([given(np.full(5, 1.0), [9] * 5, skewed_costs(rng, 20))], recipe(**OF_A_FILE), method="sampled")
    assert {row.smallest_p for row in rows.tests("canaries")} == {1 / 21}
    assert {row.detectable for row in rows.tests("canaries")} == {None}
    assert rows.verdict.word == "shown"  # all five lie below all others
    assert rows.verdict.sentence.endswith("together; by rank, no single one stands out.")


def test_canaries_of_several_shown_variants_are_not_said_to_stand_out_in_each() -> None:
    found = rows_of(
        [ranked([1, 1, 1, SIZE - 5], variant="a"), ranked([400, 300, 200, 500], variant="b")],
        recipe(variants={"a": {}, "b": {}}),
    )
    assert len(found.tests("headline").shown()) == 2
    assert found.verdict.sentence == (
        "Every variant gives away information about the 4 inserted canaries together; singly, 4 of 4 stand out in some variant."
    )


@pytest.mark.parametrize(
    ("changes", "rows", "said"),
    [
        ({"variants": {"a": {}, "b": {}}}, [("a", 1.0), ("b", 0.5)], "extracted 10 of 10 under variant 'a'."),
        ({"seeds": 5}, [("", 0.04)], "extracted 0.4 of 10 on average over 5 models."),
        ({}, [("", 0.3)], "extracted 3 of 10."),
        ({}, [("", 0.0)], None),
    ],
)
def test_the_sentence_on_extraction_counts_every_secret_once(
    changes: dict[str, Any], rows: list[tuple[str, float]], said: str | None
) -> None:
    found = Findings(
        estimate("extracted", {"search": "shortest_path", "known": 0, "variant": name, "insertions": times}, share, n=5)
        for name, share in rows
        for times in (4, 16)  # one row each
    )
    sentence = verdict(found, recipe(**changes), size=10**6).sentence
    assert ("a search extracted" in sentence) == (said is not None)
    assert sentence.endswith(said or sentence)


def test_variants_are_adjusted_together() -> None:
    """Of eight variants with one canary each, the smallest headline p counts eight times, the next seven times (Holm)."""
    variants: dict[str, Any] = {f"v{number}": {} for number in range(8)}
    ranks_ = [SIZE // 100, SIZE // 80, *[SIZE // 2] * 6]
    rows = rows_of(
        [ranked([rank], variant=name) for name, rank in zip(variants, ranks_, strict=True)], recipe(variants=variants)
    )
    p_values = {row.params["variant"]: (row.p_value, row.p_adjusted) for row in rows.tests("headline")}
    assert p_values["v0"] == (pytest.approx(0.01), pytest.approx(0.08))
    assert p_values["v1"] == (pytest.approx(1 / 80), pytest.approx(7 / 80))
    assert {p_values[f"v{number}"][1] for number in range(2, 8)} == {1.0}
    assert not rows.tests("headline", "canaries").shown()


@pytest.mark.usefixtures("no_law")
def test_nets_that_share_canaries_give_one_rank_per_canary() -> None:
    """Candidates likely under one net are likely under all: their costs are added, and ranked once, exactly."""
    by_net = np.array([[3.0, 9, 1, 14, 22, 40], [30.0, 4, 11, 2, 5, 1]])  # of six candidates, one of which is the canary
    total, found = by_net.sum(axis=0), []
    for canary in range(6):
        models = []
        for net, costs in enumerate(by_net):
            whole = np.round(costs * UNITS_PER_BIT).astype(np.int64)
            models.append(Scored("", net, 4, (0,), ("inserted",), (4,), whole[[canary]], np.delete(whole, canary), 1.5, {}))
        rows = rows_of(models, recipe(seeds=2), size=10**9, method="sampled")
        assert rows.head.p_value == pytest.approx((total <= total[canary]).sum() / 6)
        found.append(rows.head.p_value or 0.0)
    assert_exact(found)


@pytest.mark.usefixtures("no_law")
def test_sampled_canaries_are_combined_over_separate_references() -> None:
    """Of 8 references every second one is each canary's; p (1 + c) / 5, their product w: w (1 - ln w)."""
    references = np.arange(8) * 10 << 16
    for first, second in itertools.product((-5, 15, 35, 75), repeat=2):
        costs = np.array([first, second]) << 16
        model = Scored("", 0, 4, (0, 1), ("inserted",) * 2, (4, 4), costs, references, 1.5, {})
        parts = [(1 + (references[place::2] <= costs[place]).sum()) / 5 for place in (0, 1)]
        whole = min((1 + (references <= cost).sum()) / 9 for cost in costs)
        w = parts[0] * parts[1]
        p = rows_of([model], recipe(), size=10**9, method="sampled").head.p_value
        assert p == pytest.approx(min(1.0, 2 * min(w * (1 - math.log(w)), 2 * whole)))


def test_weak_traces_of_many_canaries_are_shown_jointly_but_for_no_single_canary() -> None:
    exact = dict.fromkeys(range(20), ("enumerated", SIZE // 40, 1))
    rows = rows_of([seen([40.0] * 20, [4] * 20, exact=exact)], recipe())
    assert rows.head.verdict == "shown"
    assert rows.head.value == pytest.approx(math.log2(40))
    assert rows.verdict.sentence.endswith("together; by rank, no single one stands out.")
    assert not rows.tests("canaries").shown()


@pytest.mark.parametrize("ends", [1, 5, 20, 300])
def test_exact_ranks_of_low_ranked_canaries_alone_keep_the_level(ends: int) -> None:
    """The exact p-value is used where it is known and no reference lies below; P(p <= alpha) never exceeds alpha."""
    size, references = 100_000, 999
    rng = np.random.default_rng(0)
    rank = rng.integers(1, size + 1, 400_000)
    rank[:200_000] = rng.integers(1, size // 100, 200_000)  # a weight of 1/100 on the low ones
    below = rng.binomial(references, rank / size)
    p = np.array([
        canary_p(int(b), references, size=size, exact=("pruned", int(r), 1) if r <= ends * size // 1000 else None)
        for r, b in zip(rank[:200_000].tolist(), below[:200_000].tolist(), strict=True)
    ])  # fmt: skip
    for alpha in (0.0005, 0.001, 0.002, 0.005):
        assert (p <= alpha).mean() * 0.01 <= alpha * 1.03


def test_verdict_is_bounded_only_if_the_upper_limit_lies_below_the_given_bound() -> None:
    model = seen([40.0, 41.0], [1, 4], exact={0: ("enumerated", SIZE // 3, 9), 1: ("enumerated", SIZE // 2, 9)})
    said = recipe(score={"bound": 6})
    rows = rows_of([model], said)
    assert rows.head.upper_bound == pytest.approx(math.log2(3), abs=1e-3)
    assert (rows.verdict.word, rows.verdict.sentence) == ("bounded", "No canary has more than 6 bits of exposure.")
    assert rows_of([model], recipe(score={"bound": 1})).verdict.word == "inconclusive"


def test_intervals_of_mean_exposure_stay_in_range_and_need_several_canaries() -> None:
    exact = {0: ("enumerated", 1, 9), 1: ("enumerated", SIZE // 2, 9), 2: ("enumerated", SIZE // 3, 9)}
    rows = rows_of([seen([12.0, 40.0, 40.0], [4] * 3, exact=exact)], recipe())
    mean = next(row for row in rows.all("exposure") if row.role == "estimate")
    low, high = ends(mean)
    assert (low, mean.interval and mean.interval.over) == (0.0, "canaries")
    assert high <= math.log2(SIZE)
    alone = rows_of([seen([12.0], [4], exact={0: ("enumerated", 1, 9)})], recipe())
    assert {row.interval for row in alone.all("exposure")} == {None}


def test_variants_are_compared_in_pairs_of_canaries() -> None:
    variants = {"plain": {}, "other": {"quantize": True}}
    low = {canary: ("enumerated", 10 + canary, 1) for canary in range(8)}
    high = {canary: ("enumerated", 40 + 4 * canary, 1) for canary in range(8)}
    models = [
        replace(seen([20.0] * 8, [4] * 8, exact=exact), variant=name) for name, exact in (("plain", low), ("other", high))
    ]
    (found,) = rows_of(models, recipe(variants=variants)).all("exposure_difference")
    assert found.params == {"variant": "other", "less": "plain"}
    assert found.value < -1.9
    assert ends(found)[1] < 0
    assert found.p_value == 2 / 2**8
    assert found.verdict == "shown"
    together = rows_of(models, recipe(variants=variants, canaries={"together": True}))
    assert together.first("exposure_difference").role == "estimate"  # one net each: no p speaks of trainings
    capped = [models[0], replace(seen([1.0] * 8, [4] * 8), variant="other")]  # cheaper than all references: a lower bound
    bounded = rows_of(capped, recipe(variants=variants)).first("exposure_difference")
    assert (bounded.role, bounded.interval) == ("estimate", None)


def at_epochs(variant: str, seed: int, losses: list[float], ranks: list[int]) -> list[Scored]:
    """One training at epochs 1, 2, ...: its loss, and the rank of its canary."""
    return [
        replace(ranked([rank], variant=variant, seed=seed), epoch=epoch, validation_loss=loss)
        for epoch, (loss, rank) in enumerate(zip(losses, ranks, strict=True), start=1)
    ]


def test_variants_are_compared_where_they_first_reach_the_lowest_common_loss(tmp_path: Path) -> None:
    """The fast variant is more exposed in the end, but not at 2, the final loss of the slow one."""
    models = at_epochs("slow", 0, [3, 2.5, 2], [900, 500, 100]) + at_epochs("fast", 0, [2.5, 1.9, 1], [700, 100, 1])
    mine = recipe(variants={"slow": {}, "fast": {"model.dropout": 0.1}}, score={"equal_loss": True})
    found = rows_of(models, mine)
    slow, fast = found.all("exposure_at_equal_loss")
    assert slow.params == {"variant": "slow", "validation_loss": 2, "epoch": 3}
    assert fast.params == {"variant": "fast", "validation_loss": 1.9, "epoch": 2}
    assert slow.value == fast.value == exposure_of_rank(100, SIZE)
    assert found.first("difference_at_equal_loss").value == 0
    assert found.first("exposure_difference").value == pytest.approx(math.log2(100))
    assert "Exposure at equal loss" in render(page_of(models, mine, tmp_path))
    assert not rows_of(models, recipe(variants=mine.variants)).all("exposure_at_equal_loss")


def test_a_difference_at_equal_loss_has_no_p_value_and_names_the_remaining_gap(tmp_path: Path) -> None:
    together = {"canaries": {"together": True}, "seeds": 8, "score": {"equal_loss": True}}
    mine = recipe(variants={"slow": {}, "fast": {}}, **together)
    models = []
    for seed in range(8):
        models += at_epochs("slow", seed, [3, 2], [10**5, 1000 + seed])
        models += at_epochs("fast", seed, [2.5, 1.75], [10**4, 100 + seed])
    (found,) = rows_of(models, mine).all("difference_at_equal_loss")
    assert (found.role, found.p_value) == ("estimate", None)
    assert found.params == {"variant": "fast", "less": "slow", "loss_gap": -0.25}
    assert found.interval is not None
    assert found.interval.over == "trainings"
    html = render(page_of(models, mine, tmp_path))
    assert "loss gap" in html
    assert "-0.2500" in html


def test_lower_bounds_are_not_compared_with_ranks_at_equal_loss() -> None:
    models = []
    for name, exact in (("slow", {0: 100, 1: 200}), ("fast", {0: 100})):  # of canary 1, the fast one has only a bound
        ranks = {canary: ("pruned", rank, 1) for canary, rank in exact.items()}
        models.append(replace(seen([20.0, 0.0], [4, 4], exact=ranks), variant=name))
    mine = recipe(variants={"slow": {}, "fast": {}}, score={"equal_loss": True})
    found = rows_of(models, mine, method="sampled")
    assert [(row.n, row.value) for row in found.all("exposure_at_equal_loss")] == [(1, exposure_of_rank(100, SIZE))] * 2
    assert found.first("difference_at_equal_loss").n == 1
    bounds = [replace(model, exact={}) for model in models]
    assert not rows_of(bounds, mine, method="extrapolated").all("exposure_at_equal_loss", "difference_at_equal_loss")


def overtrained(canaries: list[tuple[float, float]], **changes: Any) -> list[Scored]:
    """One model per canary: its log-perplexity at the lowest loss (epoch 2) and at the end (epoch 4), always first."""
    return [
        replace(
            seen([cost], [1], epoch=epoch, exact={0: ("pruned", 1, 9)}),
            seed=seed, validation_loss=1.0 + epoch / 10, **changes,
        )
        for seed, costs in enumerate(canaries)
        for epoch, cost in zip((2, 4), costs, strict=True)
    ]  # fmt: skip


def test_overtraining_lowers_only_the_extrapolated_exposure_of_top_ranked_canaries(tmp_path: Path) -> None:
    models = overtrained([(8 + seed / 10, 12 + seed / 5) for seed in range(8)])
    mine = recipe(canaries={"insertions": [1], "never": 0}, seeds=8)
    found = rows_of(models, mine)
    exact, law = found.all("overtraining_change")
    assert exact.params == {"of": "exposure", "from_epoch": 2.0, "to_epoch": 4.0}
    assert (exact.value, exact.p_value) == (0, 1)  # first before and after: exact exposure cannot fall
    assert law.params["of"] == "exposure_extrapolated"
    assert law.value < -8
    assert (law.role, law.n, law.p_value) == ("estimate", 8, None)  # no test rests on an extrapolation
    assert law.interval is not None
    assert law.interval.over == "trainings"
    page = page_of(models, mine, tmp_path)
    table = next(
        table for table in tables_on(page) if table.headings == ["epoch", "validation loss", "exposure", "extrapolated"]
    )
    assert [row[0] for row in table.rows] == ["2", "4"]
    assert table.rows[0][2] == table.rows[1][2] == f"{math.log2(SIZE):.2f}"
    assert float(table.rows[0][3]) > float(table.rows[1][3]) + 8


def test_a_model_that_never_overtrains_has_no_overtraining_change() -> None:
    models = [replace(model, validation_loss=1 / model.epoch) for model in overtrained([(8, 12), (9, 12)])]
    assert not rows_of(models, recipe(seeds=2)).all("overtraining_change")
    same = [replace(model, validation_loss=1) for model in models]  # patience: the last weights are the best ones
    assert not rows_of(same, recipe(seeds=2)).all("overtraining_change")


@pytest.mark.parametrize("method", ["sampled", "extrapolated"])
def test_overtraining_changes_leave_out_exposures_without_a_rank(method: str) -> None:
    ranked_twice = overtrained([(8 + seed / 10, 12) for seed in range(4)])
    one = [*ranked_twice[:-1], replace(ranked_twice[-1], exact={})]  # the last training ends with a bound
    changes = rows_of(one, recipe(seeds=4), method=method).all("overtraining_change")
    assert [(row.params["of"], row.n) for row in changes] == [("exposure", 3), ("exposure_extrapolated", 4)]
    none = [replace(model, exact={}) for model in ranked_twice]
    (law,) = rows_of(none, recipe(seeds=4), method=method).all("overtraining_change")
    assert law.params["of"] == "exposure_extrapolated"


def test_overtraining_changes_compare_only_checkpoints_common_to_all_trainings() -> None:
    models = at_epochs("", 0, [3, 1, 2, 9], [9, 9, 9, 1]) + at_epochs("", 1, [3, 2, 2], [9, 9, 9])
    exact = rows_of(models, recipe(seeds=2)).all("overtraining_change").head
    assert (exact.params["from_epoch"], exact.params["to_epoch"], exact.value) == (2, 3, 0)
    assert not rows_of(models[:4] + models[4:5], recipe(seeds=2)).all("overtraining_change")
    patient = RECIPE["training"] | {"patience": 2}
    assert not rows_of(models, recipe(seeds=2, training=patient)).all("overtraining_change")


# -- privacy ------------------------------------------------------------------------------------------


def test_epsilon_bound_and_refuted_p_equal_values_computed_by_hand() -> None:
    assert epsilon_bound(1e-6, looks=1) == pytest.approx(math.log(0.05e6))
    assert epsilon_bound(1e-6, looks=10, delta=1e-3) == pytest.approx(math.log((0.005 - 1e-3) * 1e6))
    assert epsilon_bound(1e-6, looks=10, windows=4) == pytest.approx(math.log(0.005e6) / 4)
    assert epsilon_bound(0.5, looks=1) == 0
    assert epsilon_bound(1e-6, looks=10, delta=0.01) is None
    assert epsilon_bound(1e-6, looks=10, delta=3e-3, windows=2) is None  # two deltas: more than .05 / 10
    assert refuted_p(1e-6, epsilon=2, delta=1e-5) == pytest.approx(math.e**2 * 1e-6 + 1e-5)
    assert refuted_p(1e-6, epsilon=1, delta=1e-5, windows=2) == pytest.approx(math.e**2 * 1e-6 + 2 * math.e * 1e-5)
    assert refuted_p(1e-6, epsilon=800, delta=0) == 1
    assert refuted_p(2 ** -(most_exposed(8, 1e-5) or 0), epsilon=8, delta=1e-5) == pytest.approx(0.05)
    assert most_exposed(8, 0.05) is None


@pytest.mark.parametrize(("rank", "windows", "truth"), [(1, 4, 2.38), (1000, 4, 2.30), (1, 16, 0.38)])
def test_an_epsilon_bound_from_several_windows_uses_the_delta_of_the_training(rank: int, windows: int, truth: float) -> None:
    bound = epsilon_bound(rank * 1e-9, looks=1, delta=1e-5, windows=windows)
    assert bound is not None
    assert bound == pytest.approx(truth, abs=5e-3)
    assert refuted_p(rank * 1e-9, epsilon=bound, delta=1e-5, windows=windows) <= 0.05
    assert refuted_p(rank * 1e-9, epsilon=bound + 1e-6, delta=1e-5, windows=windows) > 0.05


def test_larger_delta_more_looks_windows_and_higher_ranks_lower_the_epsilon_bound() -> None:
    def bound(p: float = 1e-8, looks: int = 2, delta: float = 1e-6, windows: int = 3) -> float:
        return epsilon_bound(p, looks=looks, delta=delta, windows=windows) or 0.0

    for bounds in (
        [bound(p=p) for p in (1e-9, 1e-8, 1e-6, 1e-3, 1.0)],
        [bound(looks=looks) for looks in (1, 2, 10, 1000)],
        [bound(delta=delta) for delta in (0.0, 1e-8, 1e-6, 1e-4, 1e-2)],
        [bound(windows=windows) for windows in (1, 2, 4, 16, 64)],
    ):
        assert bounds == sorted(bounds, reverse=True)
        assert bounds[0] > bounds[-1]


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 5.0])
def test_a_private_mechanism_is_refuted_at_most_five_times_in_a_hundred(epsilon: float) -> None:
    """Ranks of density e^epsilon below q and less above: the least favourable mechanism that is epsilon-private."""
    rng = np.random.default_rng(1)
    looks, odds = 3, math.exp(epsilon)
    share = (1 - 1 / odds) / (odds - 1 / odds)  # of all ranks, which are e^epsilon as likely; others 1 / e^epsilon
    low = rng.random((4000, looks)) < odds * share
    q = np.where(low, rng.random((4000, looks)) * share, share + rng.random((4000, looks)) * (1 - share))
    broken = [max(epsilon_bound(float(p), looks=looks) or 0.0 for p in row) > epsilon for row in q]
    assert np.mean(broken) <= 0.06
    refuted = [min(1.0, looks * min(refuted_p(float(p), epsilon=epsilon, delta=0) for p in row)) <= 0.05 for row in q]
    assert np.mean(refuted) <= 0.06


def test_a_claim_of_privacy_that_a_canary_refutes_is_a_finding(tmp_path: Path) -> None:
    said = {"epsilon": 1.0, "delta": 1e-5, "noise": 1.5, "accountant": "rdp"}
    private = replace(seen([12.0, 40.0], [1, 1], exact={0: ("enumerated", 1, 1), 1: ("enumerated", 9000, 1)}), privacy=said)
    rows = rows_of([private], recipe())
    (claim,) = rows.all("privacy_claim")
    assert claim.p_value == pytest.approx(2 * (math.e * 1e-6 + 1e-5))
    assert claim.verdict == "shown"
    (bound,) = rows.all("epsilon_lower_bound")
    assert bound.value == pytest.approx(math.log((0.025 - 1e-5) * SIZE))
    assert bound.value == pytest.approx(bound.params["ceiling"], abs=1e-3)
    assert rows.verdict.sentence.endswith("The training is not as private as claimed.")
    assert "epsilon is at least 10.12" in rows.verdict.explanation
    often = replace(private, insertions=(4, 4))
    (bound,) = rows_of([often], recipe()).all("epsilon_lower_bound")
    assert 2 * refuted_p(1e-6, epsilon=bound.value, delta=1e-5, windows=4) == pytest.approx(0.05)
    page = render(page_of([private], recipe(), tmp_path))
    assert "refuted" in page
    assert "5.76 bits" in page, "log2(e / (.05 - 1e-5))"
    honest = replace(private, exact={0: ("enumerated", 300_000, 1), 1: ("enumerated", 90_000, 1)})
    rows = rows_of([honest], recipe())
    assert rows.first("privacy_claim").verdict == "inconclusive"
    assert "private" not in rows.verdict.sentence


@pytest.mark.usefixtures("no_law")
def test_given_secrets_without_null_canaries_have_no_bound() -> None:
    rng = np.random.default_rng(0)
    model = given(skewed_costs(rng, 5), [1] * 5, skewed_costs(rng, 400))
    bounded = rows_of([model], recipe(**OF_A_FILE, score={"bound": 20.0}), method="sampled")
    assert bounded.head.bound == 20.0
    recurs = replace(model, kinds=("recurring", *model.kinds[1:]))
    rows = rows_of([recurs], recipe(**OF_A_FILE, score={"bound": 20.0}), method="sampled")
    assert rows.verdict.word != "bounded"
    assert (rows.head.bound, rows.head.params["recurring"]) == (None, 1)
    assert "1 further given secret" in rows.verdict.explanation
    alone = replace(model, kinds=("recurring",) * 5 + model.kinds[5:])
    said = rows_of([alone], recipe(**OF_A_FILE), method="sampled").verdict
    assert "none of them occurs just once in the text" in said.sentence
    assert "canaries.unseen" in said.explanation
    assert "data.hold_out" not in said.explanation


@pytest.mark.usefixtures("no_law")
def test_advice_to_hold_out_blocks_is_given_only_if_none_are_held_out() -> None:
    rng = np.random.default_rng(0)
    alone = replace(given(skewed_costs(rng, 5), [1] * 5, np.zeros(0, dtype=np.int64)))
    said = rows_of([alone], recipe(**OF_A_FILE), method="sampled").verdict.explanation
    assert said.endswith("held out at random (data.hold_out: blocks).")
    blocks = OF_A_FILE | {"data": {"source": {"kind": "topics"}, "hold_out": "blocks"}}
    assert "data.hold_out" not in rows_of([alone], recipe(**blocks), method="sampled").verdict.explanation


@pytest.mark.usefixtures("no_law")
def test_planned_looks_share_the_error_of_a_bound() -> None:
    rng = np.random.default_rng(0)
    model = given(skewed_costs(rng, 5), [1] * 5, skewed_costs(rng, 400))
    one, five = (
        rows_of([model], recipe(**OF_A_FILE, score={"looks": looks}), method="sampled").head.upper_bound or 0.0
        for looks in (1, 5)
    )
    assert five > one > 0
