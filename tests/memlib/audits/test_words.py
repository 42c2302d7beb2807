"""One word a run: over all combinations of outcomes of an audit's headline families, word and sentence agree."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memlib.audits.deja_vu import recipe as deja_vu
from memlib.audits.deja_vu.findings import check_row
from memlib.audits.deja_vu.findings import settled as settled_as_table
from memlib.audits.deja_vu.verdict import UPSIDE_DOWN
from memlib.audits.deja_vu.verdict import verdict as of_deja_vu
from memlib.audits.exposure import recipe as exposure
from memlib.audits.exposure.verdict import misranked
from memlib.audits.exposure.verdict import verdict as of_exposure
from memlib.audits.forgetting import recipe as forgetting
from memlib.audits.forgetting.report import _advice as advice_on_forgetting
from memlib.audits.forgetting.verdict import verdict as of_forgetting
from memlib.audits.outcomes import Outcome
from memlib.audits.self_influence import recipe as self_influence
from memlib.audits.self_influence.findings import curves as influence_curves
from memlib.audits.self_influence.findings import summarize as summarize_influence
from memlib.audits.self_influence.report import compose as influence_page
from memlib.audits.self_influence.scores import score as of_influence
from memlib.audits.sweep.scores import verdict as of_sweep
from memlib.audits.unique_feature import recipe as unique_feature
from memlib.audits.unique_feature.verdict import verdict as of_unique_feature
from memlib.audits.unique_feature.verdict import verdict_on_external
from memlib.data.given_sets import Difference
from memlib.findings import Finding, Findings, Interval, diagnostic, estimate, settle, tested, word_of
from memlib.report.page import advice_of
from memlib.runs.records import FindingRecord, RunRecord, VerdictRecord

WORDS = ("shown", "bounded", "inconclusive")
OUTCOMES = {  # what makes a test end in a word
    "shown": {"p_value": 1e-9, "upper_bound": 9.0, "bound": 5.0},
    "bounded": {"p_value": 0.6, "upper_bound": 0.03, "bound": 0.05},
    "inconclusive": {"p_value": 0.6, "upper_bound": 0.2, "bound": 0.05},
}  # fmt: skip
NOT_SHOWN = (
    "not shown",
    "does not show",
    "neither shown nor ruled out",
    "cannot tell",
    "fewer than",
    "No canary",
    "No given",
    "less than",
)


def outcome_of(name: str, family: str, word: str, /, **params: Any) -> Finding:
    value = 3.0 if word == "shown" else 0.01
    return tested(
        name, params, value, n=50, family=family, interval=Interval(value - 0.01, value + 1, "examples"), detectable=0.5,
        smallest_p=1e-9, **OUTCOMES[word],
    )  # fmt: skip


@pytest.mark.parametrize(("names", "views"), list(itertools.product(WORDS, ("shown", "inconclusive", None))))
def test_verdict_and_sentence_of_deja_vu_follow_from_its_tests(names: str, views: str | None) -> None:
    rows = [outcome_of("share_excess", deja_vu.HEADLINE, names), outcome_of("deja_vu_score", "settings", "shown")]
    if views is not None:
        rows.append(replace(outcome_of("sslmem", deja_vu.STABILITY, views), bound=None))
    found = settle(rows, alpha=0.05, headlines=deja_vu.HEADLINES)
    said = of_deja_vu(found)
    expected = "shown" if "shown" in (names, views) else "bounded" if names == "bounded" and views is None else "inconclusive"
    assert said.word == word_of(found, deja_vu.HEADLINES) == expected
    assert ("training images: from backgrounds" in said.sentence) == (names == "shown")
    assert ("fewer than" in said.sentence) == (names == "bounded")
    if views is not None and names != "inconclusive":
        assert "closer together" in said.sentence  # a sentence of several findings states each
    if expected == "inconclusive":
        assert any(text in said.sentence for text in NOT_SHOWN)
    score = found[1]
    assert score.verdict == ("shown" if expected == "shown" else None)  # no word outside headline families before the run's


def test_a_difference_against_memory_is_not_shown() -> None:
    rows = [
        tested("share_excess", {}, -0.2, n=50, p_value=1e-9, family="headline", interval=Interval(-0.3, -0.1, "examples"))
    ]
    found = settle(rows, alpha=0.05, headlines=deja_vu.HEADLINES)
    assert (of_deja_vu(found).word, of_deja_vu(found).sentence) == ("inconclusive", UPSIDE_DOWN)


@pytest.mark.parametrize(("low", "bound", "word"), [(0.01, None, "inconclusive"), (0.01, 0.3, "bounded"), (-0.01, None, "")])
def test_the_explanation_states_that_intervals_decide_nothing_if_one_lies_above_zero(
    low: float, bound: float | None, word: str
) -> None:
    for metric, family in (("share_excess", deja_vu.HEADLINE), ("sslmem", deja_vu.STABILITY)):
        row = tested(
            metric, {}, 0.1, n=20, p_value=0.08, family=family, interval=Interval(low, 0.2, "examples"), upper_bound=0.2,
            bound=bound, detectable=0.3,
        )  # fmt: skip
        none = tested(
            "share_excess", {}, 0.0, n=20, p_value=0.9, family=deja_vu.HEADLINE, interval=Interval(-0.1, 0.1, "examples")
        )
        found = settle([row] if family == deja_vu.HEADLINE else [none, row], alpha=0.05, headlines=deja_vu.HEADLINES)
        said = of_deja_vu(found)
        assert ("intervals are approximate and decide nothing" in said.explanation) == (low > 0)
        if word and family == deja_vu.HEADLINE:
            assert said.word == word


KINDS = ("canary", "secret")
EXPOSURE = list(itertools.product(KINDS, (*WORDS, None), ("shown", "inconclusive", None), (True, False, None), (0, 2)))


@pytest.mark.parametrize(("kind", "canaries", "documents", "refuted", "extracted"), EXPOSURE)
def test_verdict_and_sentence_of_exposure_follow_from_its_tests(
    kind: str, canaries: str | None, documents: str | None, refuted: bool | None, extracted: int
) -> None:
    recipe = exposure.Recipe.model_validate(
        {
            "data": {"source": {"kind": "topics"}},
            "model": {},
            "training": {"objective": {"kind": "language"}, "epochs": 1, "augment": None},
        }
        | ({"canaries": {"file": "s.txt", "format": "{d4}"}} if kind == "secret" else {})
    )
    metric, rows = {"canary": "exposure", "secret": "exposure_among_unseen"}[kind], []
    if canaries is not None:
        rows.append(outcome_of(metric, exposure.HEADLINE, canaries, unseen=100))
        rows.append(outcome_of(metric, "canaries", canaries, unseen=100, canary=0, insertions=4))
    if documents is not None:
        rows.append(replace(outcome_of("document_bits", exposure.DOCUMENTS, documents), bound=None))
        shares = [
            estimate("discoverable", {"side": side, "tries": 10, "probability": 0.5}, 0.5, n=9)
            for side in ("trained", "held_out")
        ]
        rows += shares
    if refuted is not None:
        claim = {"canary": 0, "insertions": 1, "epsilon": 2.0, "delta": 1e-5}
        rows.append(
            replace(
                outcome_of("privacy_claim", exposure.PRIVACY, "shown" if refuted else "inconclusive", **claim), bound=None
            )
        )
    if extracted:
        rows.append(estimate("extracted", {"search": "shortest_path", "known": 0}, extracted / 5, n=5))
    given = [estimate("exposure", {"canary": 0, "insertions": 4}, 13.3, n=1, interval=Interval(11.4, None, "references"))]
    found = settle([*rows, *given], alpha=0.05, headlines=exposure.HEADLINES)
    said = of_exposure(found, recipe, size=10**6)
    tests = (canaries, documents, "shown" if refuted else None)
    expected = "inconclusive"
    if "shown" in tests:
        expected = "shown"
    elif canaries == "bounded" and documents is None and not extracted:
        expected = "bounded"
    assert said.word == expected
    assert ("gives away information about 1 of 1" in said.sentence) == (canaries == "shown")
    assert ("not as private" in said.sentence) == bool(refuted)
    assert ("extracted 2 of 5" in said.sentence) == bool(extracted)
    assert ("remembers documents" in said.sentence) == (documents == "shown")
    assert ("not shown to remember documents" in said.sentence) == (documents == "inconclusive")
    if canaries == "bounded":
        assert ("has more than" in said.sentence) == (not extracted)  # an extraction contradicts any bound
        if kind == "secret":  # like is compared with like, and the other exposure stands beside it
            assert "among unseen secrets" in said.explanation
            assert "13.3 bits" in said.explanation
    if canaries is None:
        assert "cannot tell" in said.sentence
    assert said.sentence.split(". ")[0] != said.explanation.split(". ")[0]
    assert "  " not in said.sentence + said.explanation


@pytest.mark.parametrize("variants", [*itertools.product(WORDS), *itertools.product(WORDS, WORDS)])
def test_verdict_and_sentence_of_unique_feature_follow_from_its_variants(variants: tuple[str, ...]) -> None:
    params = {"metric": "m_white", "output": "probability", "group": "canary - control", "pairs": 9, "exchanged": "pairs"}
    rows = [
        outcome_of("m_white", unique_feature.HEADLINE, word, **params, **({"variant": f"v{n}"} if len(variants) > 1 else {}))
        for n, word in enumerate(variants)
    ]
    found = settle(rows, alpha=0.05, headlines=unique_feature.HEADLINES)
    said = of_unique_feature(found, alpha=0.05)
    assert said.word == word_of(found, unique_feature.HEADLINES)
    assert said.word == ("shown" if "shown" in variants else "bounded" if set(variants) == {"bounded"} else "inconclusive")
    assert ("less than" in said.sentence) == (said.word == "bounded")
    assert (" remember the feature." in said.sentence) == (said.word == "shown")


@pytest.mark.parametrize("words", list(itertools.product((*WORDS, "descriptive", None), repeat=2)))
def test_verdict_of_a_sweep_follows_from_the_verdicts_of_its_cells(words: tuple[str | None, ...]) -> None:
    outcomes = []
    for number, word in enumerate(words):
        if word is None:
            outcomes.append(Outcome(f"c{number}", "exposure", {}, None, "broken"))
            continue
        # the first family of the cell is never the one that decides
        rows = [estimate("exposure", {}, 1.0, n=9)]
        if word != "descriptive":
            rows += [outcome_of("exposure", exposure.HEADLINE, "inconclusive" if word == "shown" else word)]
            rows += [outcome_of("document_bits", exposure.DOCUMENTS, "shown")] if word == "shown" else []
        found = settle(rows, alpha=0.05, headlines=exposure.HEADLINES)
        findings = [FindingRecord(**row.row()) for row in found]
        run = RunRecord(
            run=f"r{number}", audit="exposure", title="t", finished=1.0, findings=findings, artifacts={"scores": f"s/{number}"},
            verdict=VerdictRecord(word=word, sentence=""),
        )  # fmt: skip
        outcomes.append(Outcome(f"c{number}", "exposure", {}, run))
    said, done = of_sweep(outcomes), [word for word in words if word is not None]
    tests = [word for word in done if word != "descriptive"]
    expected = "shown" if "shown" in tests else "inconclusive"
    if not tests:
        expected = "descriptive"
    elif set(tests) == {"bounded"} and len(done) == len(words):
        expected = "bounded"
    assert said.word == expected
    if expected == "shown":
        assert said.sentence.startswith(f"{tests.count('shown')} of {len(tests)} audits show memorization")
    assert ("does not rule out" in said.explanation) == (expected == "inconclusive")
    assert ("none of them includes a test" in said.sentence) == (expected == "descriptive")
    without = ", ".join(f"c{number}" for number, word in enumerate(words) if word == "descriptive")
    if tests and without:
        assert f"Without a test, and without a bound: {without}." in said.explanation
    if expected == "bounded":
        assert said.sentence.startswith(f"Each of {len(tests)} audit{'s' if len(tests) > 1 else ''} with a test bounds")


def agree(word: str, explanation: str, advice: str) -> None:
    """Check that explanation and advice say nothing that the word denies."""
    assert ("Do not report this as a pass" in advice) == (word == "inconclusive")
    assert advice.startswith("Report the bound") == (word == "bounded")
    assert ("Do not use these numbers as evidence" in advice) == (word == "descriptive")
    if word == "bounded":
        assert not any(text in explanation for text in ("absence is not shown", "cannot be shown", "could have been missed"))
    if word != "shown":
        assert "training images: from backgrounds" not in explanation
        assert "Shown at level" not in explanation
    assert explanation
    assert "  " not in explanation + advice


TARGETS = {  # what makes a target end in an outcome
    "retained": {"p_value": 1e-9, "value": 0.4}, "reversed": {"p_value": 1e-9, "value": -0.4},
    "forgotten": {"p_value": 0.6, "value": 0.01, "limit": 0.1}, "no trace": {"p_value": 0.6, "value": 0.01, "limit": 0.9},
    "no control": {"p_value": 0.6, "value": 0.01, "limit": 0.9, "power": 0.3},
}  # fmt: skip


def recipe_of(targets: Sequence[str], *, external: bool) -> forgetting.Recipe:
    kind = {"trained": {"model": "a:b", "version": "1"}} if external else {"mix": {"calibration": 1}}
    return forgetting.Recipe.model_validate(
        {
            "data": {"source": {"kind": "digits"}}, "sets": {"query": {}, "calibration": {}, "provider": {}}, "model": {"architecture": "mlp"},
            "training": {"objective": {"kind": "supervised"}, "epochs": 1}, "targets": dict.fromkeys(targets, kind),
            "verdict": {"known_drawn_afterwards": True},
        }
    )  # fmt: skip


@pytest.mark.parametrize("external", [True, False])
@pytest.mark.parametrize("outcomes", [*itertools.product(TARGETS), *itertools.product(TARGETS, TARGETS), ("",), ("", "")])
def test_verdict_and_advice_of_forgetting_follow_from_its_targets(outcomes: tuple[str, ...], external: bool) -> None:
    names = [f"t{number}" for number in range(len(outcomes))]
    recipe = recipe_of(names, external=external)
    rows: list[Finding] = []
    for name, outcome in zip(names, outcomes, strict=True):
        at = {"target": name, "kind": forgetting.TARGET, "examples": 90, "withheld": 90}
        if not outcome:  # nothing was withheld
            rows.append(estimate("rho", at, 0.4, n=9))
            continue
        given = {"limit": 0.9, "power": 0.9} | TARGETS[outcome]
        value, limit = given["value"], given["limit"]
        rows.append(
            tested(
                "trace", at, value, n=180, p_value=given["p_value"], family=forgetting.HEADLINES[0], detectable=0.2, either_direction=True,
                interval=Interval(value - 0.1, value + 0.1, "examples"), upper_bound=limit, bound=0.2,
            )
        )  # fmt: skip
        rows += [diagnostic("control_power", {"target": name}, given["power"], n=90)]
        rows += [diagnostic("share_limit", {"target": name}, limit, n=90)]
        rows += [diagnostic("control_strength", {"target": name, "strongest": 5.0}, 3.0, n=90)]
    found = settle(rows, alpha=0.01, headlines=forgetting.HEADLINES)
    said, advice = of_forgetting(found, recipe), advice_on_forgetting(of_forgetting(found, recipe).word, found, recipe)
    used = [outcome in ("retained", "reversed") for outcome in outcomes]
    expected = "shown" if any(used) else "bounded" if set(outcomes) == {"forgotten"} else "inconclusive"
    assert said.word == expected
    if len(outcomes) == 1:
        assert ("At most 10 % of the trace" in said.sentence or "at most 10 % of the trace" in said.sentence) == (
            expected == "bounded"
        )
        assert ("has used this data set, at least" in said.sentence) == (outcomes[0] == "retained")
    elif outcomes[0]:
        subject = "models" if external else "targets (of 5 models each)"
        assert said.sentence.startswith(f"{sum(used)} of 2 {subject} were shown to have used")
        assert ("nothing can be concluded" in said.sentence) == bool({"no trace", "no control"} & set(outcomes))
    if expected == "shown":
        assert advice.startswith("If D_Q had to be removed")
        assert ("Do not report a pass for" in advice) == bool({"no trace", "no control"} & set(outcomes))
        assert ("a false alarm" in said.explanation) == (not external)  # the auditor knows that these never saw D_Q
    else:
        agree(expected, said.explanation, advice)
        if expected == "inconclusive":  # a model that is given cannot be audited with more models
            assert ("Run a larger audit" in advice) == (not external)


@pytest.mark.parametrize(("finite", "count"), list(itertools.product((True, False), (15, 20, 300))))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_verdict_and_advice_of_self_influence_follow_from_finite_values(finite: bool, count: int, tmp_path: Path) -> None:
    values = np.random.default_rng(0).lognormal(0, 1.5, count)
    values[0] = values[0] if finite else np.nan
    names = [f"e{number}" for number in range(count)]
    units = of_influence(names, np.zeros(count, np.int64), ["x"] * count, values[None], [1.0], [1])
    summary = summarize_influence(units)
    recipe = self_influence.Recipe.model_validate(
        {
            "data": {"source": {"kind": "digits"}}, "model": {"architecture": "mlp"},
            "training": {"objective": {"kind": "supervised"}, "epochs": 1, "augment": None},
        }
    )  # fmt: skip
    page = influence_page(recipe, units, summary, influence_curves(units), lambda _: None, {}, tmp_path)
    said = Findings.read(summary).verdict
    assert said.word == "descriptive"
    assert ("account" in said.sentence) == finite
    assert ("not a finite number" in said.sentence) == (not finite)
    assert ("does not prove it" in said.explanation) == finite
    text = f"{said.sentence} {said.explanation} {page.meaning} {page.advice} {page.numbers}"
    assert "nan" not in text
    assert not any(claim in text for claim in ("has memorized", "Report the bound", "report this as a pass"))
    assert ("first candidates" in page.meaning) == finite  # nothing is at the top of a list of numbers that are none
    assert ("Inspect the examples at the top" in page.advice) == finite


@pytest.mark.parametrize("scores", [*itertools.product(WORDS), *itertools.product(WORDS, ("shown", "inconclusive"))])
@pytest.mark.parametrize("nulls", [9, 99])
def test_verdict_on_an_external_model_with_a_feature_follows_from_its_tests(scores: tuple[str, ...], nulls: int) -> None:
    rows = []
    for number, word in enumerate(scores):
        at = {"metric": ("m_black", "m_grey")[number], "output": "probability", "null": "names", "nulls": nulls}
        row = outcome_of(at["metric"], unique_feature.OWN, word, **at)
        if nulls == 9:  # no rank among ten reaches .05
            row = replace(row, p_value=max(row.p_value or 0.0, 0.1), upper_bound=None, smallest_p=0.1, detectable=None)
        rows.append(replace(row, bound=None) if number else row)
    found = settle(rows, alpha=0.05, headlines=unique_feature.HEADLINES)
    said = verdict_on_external(found)
    expected = "inconclusive" if nulls == 9 else "shown" if "shown" in scores else scores[0]
    assert said.word == expected
    assert said.sentence.startswith("The feature stands out") == (expected == "shown")
    assert ("exceeds that of others by less than" in said.sentence) == (expected == "bounded")
    assert ("too small" in said.sentence) == (nulls == 9)
    assert ("not shown to stand out" in said.sentence) == (nulls == 99 and expected == "inconclusive")
    advice = advice_of(expected, shown="Remove it.", more="compare the feature with more others (score.null_features)")
    agree(expected, said.explanation, advice)
    assert "Run a larger audit" not in advice  # nothing else can be trained


ALONE = list(itertools.product(WORDS, (None, "alike", "differ"), (False, True), (True, False)))


@pytest.mark.parametrize(("names", "sets", "blind", "by_chance"), ALONE)
def test_verdict_on_a_single_model_follows_from_its_test_and_its_sets(
    names: str, sets: str | None, blind: bool, by_chance: bool
) -> None:
    config = deja_vu.Config(bound=0.05)
    rows = [outcome_of("share_excess", deja_vu.HEADLINE, names, reference="network", layer="backbone")]
    rows.append(estimate("accuracy_target", {"chance": 0.25}, 0.5, n=50, interval=Interval(0.4, 0.6, "examples")))
    low = 0.2 if blind else 0.4
    rows.append(
        estimate("knn_accuracy", {"probe_layer": "backbone"}, low + 0.05, n=50, interval=Interval(low, 0.6, "examples"))
    )
    if sets is not None:
        params = {"by": "backgrounds", "p": 0.3, "differs": False, "detectable": 0.12}
        rows.append(diagnostic("sets_compared", params, 0.1, n=50))
        rows.append(check_row(Difference(0.6, 0.01 if sets == "differ" else 0.3, "pixels", 50)))
    said = Findings.read(settled_as_table(rows, config, by_chance=by_chance)).verdict
    if sets == "differ" or not by_chance:
        expected = "descriptive"
    elif names == "bounded" and blind:
        expected = "inconclusive"
    else:
        expected = names
    assert said.word == expected
    assert ("Nothing was tested" in said.sentence) == (expected == "descriptive")
    assert ("training images: from backgrounds" in said.sentence) == (expected == "shown")
    assert ("fewer than" in said.sentence) == (expected == "bounded")
    assert ("cannot see anything" in said.sentence) == (expected == "inconclusive" and blind)
    limits = (
        "a difference of 12 % in what their backgrounds reveal",
        "no such size is known for the comparison of names, dates, sizes and small versions",
    )
    assert all((text in said.explanation) == (sets == "alike" and expected != "descriptive") for text in limits)
    assert ("as declared. Compared without" in said.explanation) == (sets == "alike" and expected != "descriptive")
    assert "model that never saw them" not in said.explanation  # there is no second model
    agree(expected, said.explanation, advice_of(expected, shown="Treat it confidentially.", more="audit more of its images"))


def test_every_audit_with_tests_names_its_headline_families() -> None:
    from memlib.audits import AUDITS

    assert {name for name, audit in AUDITS.items() if not audit.headlines} == {"dossier", "self-influence", "sweep"}
    assert AUDITS["forgetting"].headlines == forgetting.HEADLINES


@pytest.mark.parametrize(("p_value", "said"), [(None, "No difference between two cells was tested"), (0.6, "None of 1 tested differences"), (1e-4, "1 of 1 tested differences")])  # fmt: skip
def test_verdict_of_a_sweep_says_whether_a_cell_was_shown_to_differ(p_value: float | None, said: str) -> None:
    found = settle([outcome_of("exposure", exposure.HEADLINE, "shown")], alpha=0.05, headlines=exposure.HEADLINES)
    findings = [FindingRecord(**row.row()) for row in found]
    outcomes = [
        Outcome(name, "exposure", {}, RunRecord(
            run=name, audit="exposure", title="t", finished=1.0, findings=findings, artifacts={"scores": f"s/{name}"},
            verdict=VerdictRecord(word="shown", sentence=""),
        ))
        for name in ("a", "b")
    ]  # fmt: skip
    at = {"cell": "a", "other": "b"}
    row = estimate("difference", at, -0.2, n=9)
    if p_value is not None:
        row = tested("difference", at, -0.2, n=9, p_value=p_value, family="differences", either_direction=True)
    explanation = of_sweep(outcomes, {"exposure": settle([row], alpha=0.05)}).explanation
    assert said in explanation
    assert ("b over a" in explanation) == (p_value == 1e-4)
    assert ("no cell is shown to be better" in explanation or "none is shown to be better" in explanation) == (
        p_value != 1e-4
    )


@pytest.mark.parametrize(
    ("mean", "count", "warned"), [(0.45, 203, False), (0.35, 203, True), (0.35, 20, False), (0.65, 203, False)]
)
def test_the_verdict_warns_if_never_inserted_canaries_are_misranked(mean: float, count: int, warned: bool) -> None:
    recipe = exposure.Recipe.model_validate(
        {"data": {"source": {"kind": "topics"}}, "model": {}, "training": {"objective": {"kind": "language"}, "epochs": 1, "augment": None}}
    )  # fmt: skip
    for word in ("shown", "inconclusive"):
        rows = [outcome_of("exposure", name, word, canary=0, insertions=4) for name in (exposure.HEADLINE, exposure.CANARIES)]
        rows.append(diagnostic("two_to_minus_exposure", {"insertions": 0}, mean, n=count))
        said = of_exposure(settle(rows, alpha=0.05, headlines=exposure.HEADLINES), recipe, size=10**6)
        assert ("do not rely on the exposures" in said.explanation) == warned


def test_means_of_uniform_ranks_are_called_misranked_once_in_five_hundred_runs() -> None:
    rng, runs = np.random.default_rng(0), 20_000
    means = rng.random((runs, 20)).mean(axis=1)
    found = [diagnostic("two_to_minus_exposure", {"run": run}, mean, n=20) for run, mean in enumerate(means)]
    rate = sum(len(misranked(Findings(found), side)) for side in (-1, 1)) / runs
    assert 0.001 < rate < 0.004


@pytest.mark.parametrize("together", [True, False])
def test_sentence_of_exposure_says_whether_canaries_share_a_model(together: bool) -> None:
    recipe = exposure.Recipe.model_validate(
        {"data": {"source": {"kind": "topics"}}, "model": {}, "canaries": {"together": together},
         "training": {"objective": {"kind": "language"}, "epochs": 1, "augment": None}}
    )  # fmt: skip
    rows = [outcome_of("exposure", exposure.HEADLINE, "shown", canary=0, insertions=4)]
    rows += [outcome_of("exposure", exposure.CANARIES, "shown", canary=n, insertions=4) for n in range(3)]
    sentence = of_exposure(settle(rows, alpha=0.05, headlines=exposure.HEADLINES), recipe, size=10**6).sentence
    subject = "The model gives" if together else "Models trained with one canary each give"
    assert sentence == f"{subject} away information about 3 of 3 inserted canaries."


def test_the_explanation_gives_limit_and_bound_of_every_target_without_a_shown_trace() -> None:
    at = {"kind": "target", "examples": 90, "withheld": 90}
    rows = [
        tested(
            "trace", {**at, "target": name}, 0.0, n=180, p_value=0.7, family=forgetting.HEADLINES[0], either_direction=True,
            interval=Interval(-0.1, 0.1, "examples"), upper_bound=limit, bound=0.2,
        )
        for name, limit in (("t0", 0.22), ("t1", 0.1))
    ]  # fmt: skip
    for name, limit in (("t0", 0.22), ("t1", 0.1)):
        rows += [
            diagnostic(metric, {"target": name}, value, n=90)
            for metric, value in (("control_power", 0.9), ("share_limit", limit))
        ]
        rows += [diagnostic("control_strength", {"target": name, "strongest": 5.0}, 3.0, n=90)]
    recipe = recipe_of(("t0", "t1"), external=False)
    text = of_forgetting(settle(rows, alpha=0.01, headlines=forgetting.HEADLINES), recipe).explanation
    assert (
        "t0: no trace found, inconclusive (p = 1; may keep up to 22 % of the trace that known examples leave; forgotten means less"
        in text
    )
    assert (
        "t1: forgotten (p = 1; may keep up to 10 % of the trace that known examples leave; forgotten means less than 20 %)"
        in text
    )
