"""Findings and words of membership audits of worlds whose truth is known."""

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from memlib.audits.membership.alarms import tail_bound
from memlib.audits.membership.audited import Audited
from memlib.audits.membership.controls import Checks, difficulty_p
from memlib.audits.membership.findings import person_findings, summarize
from memlib.audits.membership.rankings import survey_halves
from memlib.audits.membership.recipe import ATTACKS, MEMBERS, AttackName, Config
from memlib.audits.membership.report import COLOURS, _can
from memlib.audits.membership.shadows import Answers
from memlib.audits.membership.units import Copies
from memlib.audits.membership.verdict import limits, shows_alone
from memlib.findings import BOUNDED, DESCRIPTIVE, INCONCLUSIVE, SHOWN, Findings, diagnostic
from memlib.report.format import floored, percent
from memlib.stats.blind import BlindBaseline
from memlib.stats.operating import auc, most_alarms, rank_above
from tests.memlib.audits.membership.worlds import recipe_of, world


def findings_of(audited: Audited) -> Findings:
    return Findings.read(summarize(audited, []))


def test_memory_common_to_all_members_is_shown() -> None:
    found = findings_of(world(memory=1.0))
    assert found.verdict.word == SHOWN
    assert found.head.params["attack"] == "lira"
    assert found.head.value > 0.6
    assert "LiRA" in found.verdict.sentence or "RMIA" in found.verdict.sentence


def test_rare_and_strong_memory_is_shown() -> None:
    memory = np.where(np.arange(1600) % 40 == 0, 8.0, 0.0)  # one in forty
    found = findings_of(world(1600, memory=memory, seed=2))
    assert found.verdict.word == SHOWN
    assert found.head.value < 0.6  # the area alone says little
    assert not shows_alone(found, "auc")
    assert "reveals some who were in its training set: for " in found.verdict.sentence
    assert "members stand out at the top of the ranking (AUC 0.5" in found.verdict.sentence
    assert _can(found) == (
        "Whoever can attack the model as was done here can say in which group of examples, those with the highest scores, there "
        "are more members than by chance."
    )


def test_a_model_without_memory_is_seldom_shown() -> None:
    words = [findings_of(world(120, seed=seed, score={"redraws": 999, "attacks": ["lira", "rmia", "loss"]})).verdict.word
             for seed in range(60)]  # fmt: skip
    hits = sum(word == SHOWN for word in words)
    assert scipy.stats.binomtest(hits, len(words), 0.05, alternative="greater").pvalue > 1e-3


def test_the_verdict_bounded_requires_both_limits_below_their_bounds() -> None:
    many = {"redraws": 999, "auc_bound": 0.55, "tail_bound": 0.05}
    found = findings_of(world(6000, seed=4, score=many))
    assert found.verdict.word == BOUNDED
    assert "none of 7 attacks (LiRA, offline LiRA, RMIA, " in found.verdict.sentence
    worst = max(row.value for row in found.all("true_alarms_limit"))
    assert found.first("true_alarms", attack="lira", false_alarms=0.01).value < worst < 0.05
    assert (
        f"names more than {percent(math.ceil(1000 * worst) / 1000)} of the members at 1 % false alarms with one threshold"
        in (found.verdict.sentence)
    )
    assert "Members who are fewer than this limit may still be named without fail" in found.verdict.explanation
    narrow = findings_of(world(6000, seed=4, score={**many, "tail_bound": 0.001}))
    assert narrow.verdict.word == INCONCLUSIVE


def test_nothing_is_bounded_where_a_possible_attack_was_not_run() -> None:
    """The gap alone sees nothing of losses that tell all."""
    found = findings_of(world(6000, seed=4, score={"redraws": 999, "attacks": ["gap"], "headline": "gap"}))
    assert found.verdict.word == INCONCLUSIVE
    assert "Nothing is bounded either, as attacks that were possible were not run: LiRA, offline LiRA, " in (
        found.verdict.explanation
    )
    said = list(limits(recipe_of(score={"attacks": ["gap"], "headline": "gap"})))
    assert any(
        line.startswith("attacks that are possible are left out of score.attacks (LiRA, offline LiRA, ") for line in said
    )


def test_by_default_a_model_without_memory_meets_the_bound_of_true_alarms_in_four_of_five_audits() -> None:
    """By sums over the numbers of members above the rank, for one attack."""
    config = Config(attacks=("loss",), headline="loss")
    for members, nonmembers in ((100, 100), (250, 250), (400, 1000)):
        bound = tail_bound(config, members, nonmembers)
        rank, error = rank_above(nonmembers, members, 0.01, config.error)
        hits = np.arange(members)
        below = scipy.stats.beta.isf(error, hits + 1, members - hits) < bound
        chance = scipy.stats.betabinom.pmf(hits, members, rank, nonmembers + 1 - rank)[below].sum()
        assert 0.8 <= chance < 0.95
    assert tail_bound(Config(tail_bound=0.05), 10, 10) == 0.05


@pytest.mark.parametrize(
    ("group", "noun"), [({"identical": True}, "records"), ({"pattern": "^p"}, "persons"), (None, "examples")]
)
def test_the_summary_names_units_by_the_kind_of_their_groups(group: dict[str, object] | None, noun: str) -> None:
    rows = None if group is None else np.repeat([1, 2], 60)
    found = findings_of(world(180, rows=rows, split={"group": group}))
    assert found.head.params["over"] == noun


def test_few_examples_are_inconclusive() -> None:
    found = findings_of(world(60, seed=5))
    assert found.verdict.word == INCONCLUSIVE
    assert found.head.detectable is not None
    assert found.head.detectable > 0.6


def test_a_target_without_a_random_draw_has_a_descriptive_verdict() -> None:
    audited = world(memory=1.0).withdrawn()
    found = findings_of(audited)
    assert found.verdict.word == DESCRIPTIVE
    assert not found.tests(MEMBERS)
    assert found.get("epsilon_lower_bound") is None


def test_false_alarm_rates_too_small_for_the_data_are_replaced_by_above_all() -> None:
    found = findings_of(world(200, memory=1.0))
    assert found.get("true_alarms", attack="lira", false_alarms=0.001) is None
    above = found.first("above_all", attack="lira")
    assert above.params["nonmembers"] == found.head.params["nonmembers"]


def test_epsilon_stays_below_its_ceiling() -> None:
    found = findings_of(world(400, memory=6.0))
    bound = found.first("epsilon_lower_bound")
    assert 1 < bound.value <= bound.params["ceiling"]
    assert bound.params["unit"] == "example"


def test_a_claim_is_refuted_by_strong_memory_alone() -> None:
    claim = {"epsilon": 0.5, "delta": 0.0}
    strong, weak = (findings_of(world(400, memory=memory, privacy=claim)) for memory in (6.0, 0.0))
    assert strong.first("privacy_claim").verdict == SHOWN
    assert "(delta 0) is refuted: epsilon is at least" in strong.verdict.sentence
    assert weak.first("privacy_claim").verdict != SHOWN


def test_a_claim_by_replacement_is_compared_with_twice_its_epsilon() -> None:
    claim = {"epsilon": 0.5, "adjacency": "replace"}
    found = findings_of(world(400, memory=6.0, privacy=claim))
    assert found.first("privacy_claim").params["compared_with"] == 1.0
    bound = found.first("epsilon_lower_bound").value
    assert (
        "The claim of epsilon 0.5 (delta 0) is refuted: for what the coins decided, it allows at most 1, and epsilon is at least "
        f"{floored(bound):.2f} (" in found.verdict.sentence
    )
    assert floored(bound) <= bound


def test_a_claim_about_examples_is_multiplied_for_persons() -> None:
    rows = np.array([1, 2, 5] * 40)
    pure = findings_of(world(rows=rows, privacy={"epsilon": 1.0}))
    assert pure.first("privacy_claim").params["compared_with"] == 5.0
    assert findings_of(world(rows=rows, privacy={"epsilon": 1.0, "delta": 1e-5})).get("privacy_claim") is None
    persons = {"epsilon": 1.0, "delta": 1e-5, "unit": "person"}
    assert findings_of(world(rows=rows, privacy=persons)).first("privacy_claim").params["compared_with"] == 1.0


def test_unfair_coins_give_no_epsilon() -> None:
    found = findings_of(world(shadows={"count": 16, "share": 0.7}, memory=1.0))
    assert found.get("epsilon_lower_bound") is None
    assert found.verdict.word == SHOWN


@pytest.mark.parametrize("combined", ["sum", "max", "trimmed"])
def test_scores_of_persons_do_not_depend_on_their_number_of_rows(combined: str) -> None:
    rows = np.tile([1, 3, 10, 60], 40)
    audited = world(rows=rows, seed=6, score={"redraws": 999, "persons": combined})
    scores, sizes = audited.rankings.head.scores, audited.units.sizes
    correlation = scipy.stats.spearmanr(scores, sizes)
    assert correlation.pvalue > 1e-3
    assert audited.units.noun == "persons"


def test_persons_are_the_units_of_intervals() -> None:
    rows = np.full(60, 20)
    by_person, by_row = findings_of(world(rows=rows, memory=0.3)), findings_of(world(1200, memory=0.3))
    assert by_person.head.n == 60
    widths = [found.head.high - found.head.low for found in (by_person, by_row)]  # type: ignore[operator]
    assert widths[0] > 2 * widths[1]


def test_the_interval_of_few_units_is_wider_than_delongs() -> None:
    audited = world(40, memory=2.0, seed=1)
    found, member = findings_of(audited).first("auc", attack="lira"), audited.units.member
    scores = audited.rankings.head.scores
    won = (scores[member][:, None] > scores[~member]).astype(float)
    half = 1.96 * np.sqrt(sum(won.mean(axis=axis).var(ddof=1) / won.shape[1 - axis] for axis in (0, 1)))
    assert found.low is not None
    assert found.low < found.value - half  # DeLong's covers 88 % where the AUC is .95
    assert found.upper_bound is not None
    assert found.value < found.upper_bound <= 1


def test_the_number_of_memorized_examples_equals_the_significant_p_values() -> None:
    audited = world(200, memory=4.0, shadows={"count": 64})
    found = findings_of(audited)
    count = found.first("memorized_examples")
    assert count.value == (audited.memorization_p <= 0.05).sum() > 0
    assert findings_of(world(200, seed=9, shadows={"count": 64})).first("memorized_examples").value <= 2


def test_many_models_bound_the_epsilon_of_training() -> None:
    found = findings_of(world(100, memory=8.0, shadows={"count": 128}))
    bound = found.first("epsilon_of_training")
    assert 0.5 < bound.value <= bound.params["ceiling"]
    assert findings_of(world(100, shadows={"count": 128}, seed=3)).first("epsilon_of_training").value < 0.5


@pytest.mark.parametrize("attack", ATTACKS)
def test_later_shadow_models_are_scored_against_the_first_ones_only(attack: str) -> None:
    score = {"redraws": 999, "attacks": [attack], "headline": attack}
    audited = world(50, memory=1.0, shadows={"count": 20}, score=score)
    first, second = survey_halves(audited.rankings, 12)
    other = world(50, memory=1.0, shadows={"count": 13}, score=score)
    assert np.allclose(survey_halves(other.rankings, 12)[1][0], second[0])
    assert first.shape == (12, 50)


def test_persons_with_few_rows_have_no_more_false_alarms_in_shadow_models() -> None:
    rows = np.tile([1, 60], 150)
    score = {"redraws": 999, "attacks": ["rmia"], "headline": "rmia"}
    audited = world(rows=rows, seed=8, score=score)
    scores, few = audited.survey[0], audited.units.sizes == 1
    flagged = scores > np.quantile(scores, 0.9, axis=1, keepdims=True)
    assert 0.06 < flagged[:, few].mean() < 0.14


def test_each_attack_has_a_line_of_its_own_colour() -> None:
    assert len(set(COLOURS)) == len(COLOURS) >= len(get_args(AttackName))


LOSS = {"redraws": 999, "attacks": ["loss"], "headline": "loss"}
ROWS = np.full(80, 12)


def alike(audited: Audited, strength: float) -> Audited:
    """Return the audit with log odds of the target that rows of a person share, `strength` times as much as they differ."""
    groups, rng = audited.pool.groups, np.random.default_rng(3)
    odds = (strength * rng.normal(size=groups.max() + 1)[groups] + rng.normal(size=len(groups)))[None, None]
    return replace(audited, target=replace(audited.target, odds=odds.astype(np.float32)))


def found(audited: Audited) -> Findings:
    return Findings(person_findings(audited))


def test_correlated_rows_of_a_person_widen_the_interval() -> None:
    rows = found(alike(world(rows=ROWS, score=LOSS), 3.0))
    assert rows.first("intraclass_correlation").value > 0.6
    ratio = rows.first("interval_width_ratio").value
    assert 2.2 < ratio < 3.8  # about sqrt(1 + 11 correlation)
    by_person, by_row = rows.first("auc_of_rows"), rows.first("auc_of_rows_alone")
    assert by_person.value == by_row.value
    assert by_person.low is not None
    assert by_row.low is not None
    assert by_person.low < by_row.low
    assert (by_person.n, by_row.n) == (80, 960)


def test_independent_rows_of_a_person_need_no_wider_interval() -> None:
    rows = found(alike(world(rows=ROWS, score=LOSS), 0.0))
    assert abs(rows.first("intraclass_correlation").value) < 0.05
    assert 0.75 < rows.first("interval_width_ratio").value < 1.3


def test_equal_memory_of_all_rows_of_a_person_is_not_counted_as_correlation() -> None:
    audited = alike(world(rows=ROWS, score=LOSS), 0.0)
    remembered = (audited.target.odds + 5 * audited.member).astype(np.float32)
    rows = found(replace(audited, target=replace(audited.target, odds=remembered)))
    assert rows.first("auc_of_rows").value > 0.9
    assert abs(rows.first("intraclass_correlation").value) < 0.05


def test_groups_of_copies_are_called_records_and_equal_scores_give_no_findings() -> None:
    audited = world(rows=ROWS, score=LOSS, split={"group": {"identical": True}})
    rows = found(alike(audited, 3.0))
    interval = rows.first("auc_of_rows").interval
    assert interval is not None
    assert (interval.over, rows.first("intraclass_correlation").params["over"]) == ("records", "records")
    constant = np.zeros_like(audited.target.odds)
    assert person_findings(replace(audited, target=replace(audited.target, odds=constant))) == []


def test_ungrouped_examples_give_no_person_findings() -> None:
    assert person_findings(world(100, score=LOSS)) == []


@pytest.mark.parametrize("rows", [None, np.tile([1, 2, 4], 30)])
def test_memorization_is_correlated_with_the_mean_score_of_members(rows: NDArray[np.int64] | None) -> None:
    memory = np.linspace(0, 6, 210)
    audited = world(210, memory=memory, rows=rows, shadows={"count": 24}, score={"redraws": 999, "attacks": ["lira"]})
    row = Findings.read(summarize(audited, [])).first("memorization_rank_correlation")
    scores, units = audited.survey[0], audited.units
    means, memorized = [], []
    for unit in range(len(units)):
        own = [scores[model, unit] for model in range(24) if units.shadows.inside[model, unit]]
        own += [audited.rankings.head.scores[unit]] if units.member[unit] else []
        means.append(np.mean(own))
        memorized.append(np.mean(audited.memorization.difference[audited.pool.groups == unit]))
    assert row.value == pytest.approx(scipy.stats.spearmanr(means, memorized).statistic, abs=1e-9)
    assert row.value > 0.1
    assert (row.n, row.params["models"]) == (len(units), 25)


def of_classes(audited: Audited, labels: NDArray[np.int64], *, drawn: str | None = None) -> Audited:
    """Return a world with other classes and, if its target is external, a declared draw."""
    changes = {} if drawn is None else {"target": {"outputs": {"path": "a.csv"}, "members": "b.csv", "drawn": drawn}}
    pool = replace(audited.pool, labels=labels, class_names=[f"{label}" for label in labels])
    recipe = recipe_of(score=audited.recipe.score.model_dump(mode="json"), **changes)
    return replace(audited, pool=pool, recipe=recipe, is_drawn=recipe.is_drawn)


def test_answers_that_are_all_alike_can_show_nothing() -> None:
    plain = world(200, score={"redraws": 999, "attacks": ["loss", "gap"], "headline": "loss"})
    same = Answers(np.ones_like(plain.target.odds), np.ones_like(plain.target.correct), plain.target.held_out)
    found = findings_of(replace(plain, target=same))
    assert found.verdict.word == INCONCLUSIVE
    assert (found.head.smallest_p, found.head.detectable) == (1.0, None)
    assert "or answers that are all alike, no result could have been significant" in found.verdict.explanation


def declared_world(seed: int, *, easier: float = 0.0, sharper: float = 1.0, memory: float = 0.0, count: int = 400) -> Audited:
    """Return a world of one class in which half of the examples are members, as declared.

    Args:
        easier: how much easier members are, in standard deviations of the difficulty.
        sharper: how much more the target's log odds depend on the difficulty than the shadow models'.
        memory: of the target, in nats.
    """
    plain = world(count, seed=seed, memory=2.0, score={"redraws": 999})
    rng, member = np.random.default_rng(seed), np.arange(count) < count // 2
    ease = 2 * (rng.normal(size=count) + easier * member)
    shadows = ease + rng.normal(size=plain.inside.shape) + 2.0 * plain.inside
    target = sharper * ease + rng.normal(size=(1, count)) + memory * member
    changed = of_classes(plain, np.zeros(count, dtype=np.int64), drawn="fixed")
    target_answers, others = (
        Answers(odds[:, None].astype(np.float32), odds > 0, np.zeros((len(odds), 0), dtype=bool))
        for odds in (target, shadows)
    )
    return replace(changed, member=member, target=target_answers, shadows=others)


def test_a_sharper_target_of_easier_members_is_not_guilty_by_declaration() -> None:
    raw, accused = 0, 0
    for seed in range(16):
        audited = declared_world(seed, easier=0.25, sharper=1.5)
        found = findings_of(audited)
        accused += found.verdict.word == SHOWN
        raw += found.first("auc_unadjusted", attack="loss").value > 0.55  # nearly two standard errors
        assert "without that, LiRA has an AUC of" in found.verdict.explanation
    assert raw > 8
    assert accused <= 5  # at a rate of .1, more in one of 300 cases


def test_memory_is_shown_in_a_declared_draw() -> None:
    assert sum(findings_of(declared_world(seed, memory=1.0)).verdict.word == SHOWN for seed in range(6)) >= 5


def test_members_who_are_easier_for_other_models_contradict_the_declaration() -> None:
    audited = declared_world(0, easier=0.8)
    checks = Checks(None, None, difficulty_p(audited))
    assert checks.contradicts
    assert "differ in how well models that were not trained on them know them" in checks.reason
    few = replace(audited, shadows=replace(audited.shadows, odds=audited.shadows.odds[:7]), inside=audited.inside[:7])
    assert few.difficulty is None
    assert difficulty_p(few) is None
    rare = replace(audited, inside=np.random.default_rng(0).random(audited.inside.shape) < 0.95)  # few models without a unit
    assert rare.difficulty is None


def test_a_declared_draw_is_examined_only_by_models_that_find_hard_what_the_target_does() -> None:
    audited = declared_world(3)
    blind = BlindBaseline(0.5, 0.4, 0.6, 0.7, {}, {})
    assert (audited.agreement or 0.0) > 0.8
    assert Checks(blind, None, 0.5, audited.agreement).is_examined
    odds = np.random.default_rng(0).normal(size=audited.target.odds.shape).astype(np.float32)
    other = replace(audited, target=replace(audited.target, odds=odds))
    assert not Checks(blind, None, 0.5, other.agreement).is_examined
    assert not Checks(None, None, 0.5, audited.agreement).is_examined
    declared = diagnostic("declared_draw", {"drawn": "fixed", "contradicted": False, "examined": False}, 0.5, n=400)
    found = Findings.read(summarize(declared_world(0, memory=2.0), [declared]))
    assert found.verdict.sentence.startswith("If members were drawn at random, as declared: the model reveals who was in")
    assert "As declared (target.drawn), it was drawn at random which examples were members" in found.verdict.explanation


def test_opposite_differences_of_two_classes_accuse_nobody() -> None:
    """Members are easier in one class and harder in the other, and the target is sharper in the first."""
    accused = []
    for seed in range(12):
        plain = declared_world(seed, count=800)
        rng, labels, member = np.random.default_rng(seed), np.arange(800) % 2, plain.member
        ease = 2 * (rng.normal(size=800) + 0.4 * np.where(labels == 0, 1, -1) * member)
        shadows = ease + rng.normal(size=plain.inside.shape) + 2.0 * plain.inside
        target = np.where(labels == 0, 2.0, 0.5) * ease + rng.normal(size=(1, 800))
        own, others = (
            Answers(odds[:, None].astype(np.float32), odds > 0, np.zeros((len(odds), 0), dtype=bool))
            for odds in (target, shadows)
        )
        audited = replace(of_classes(replace(plain, target=own, shadows=others), labels, drawn="fixed"), member=member)
        fallen = Checks(None, None, difficulty_p(audited)).contradicts
        accused.append(findings_of(audited).verdict.word == SHOWN and not fallen)
    assert sum(accused) <= 4  # at a rate of .1, more in one of 250 cases


def test_nothing_is_bounded_where_members_of_a_class_have_hardly_anybody_beside_them() -> None:
    plain = world(6000, seed=4, score={"redraws": 999})
    labels = np.where(np.arange(6000) < 1500, 1, 0)
    member = np.where(labels == 1, np.arange(6000) > 0, np.arange(6000) % 2 == 0)  # one non-member among 1,500
    odds = plain.target.odds + 10.0 * ((labels == 1) & member).astype(np.float32)
    audited = replace(
        of_classes(plain, labels, drawn="fixed"), member=member, target=replace(plain.target, odds=odds)
    )  # fmt: skip
    found = findings_of(audited)
    assert found.verdict.word != BOUNDED
    assert found.first("uneven").params["members"] > 1000


def test_the_limits_of_a_declared_draw_are_those_of_raw_scores_too() -> None:
    """Memory of the easiest members alone is partly taken away with difficulty."""
    audited = declared_world(1, count=3000)
    ease = audited.target.odds[0, 0] / 2
    odds = audited.target.odds + 4.0 * (audited.member & (ease > 2)).astype(np.float32)
    changed = replace(audited, target=replace(audited.target, odds=odds))
    found = findings_of(changed)
    for ranking in changed.rankings.all:
        most = max(most_alarms(scores, changed.units.member, 0.01) for scores in (ranking.scores, ranking.raw))
        assert found.first("true_alarms_limit", attack=ranking.attack).value == pytest.approx(most)


def test_copies_of_members_are_left_out_of_the_limits_and_many_leave_nothing_bounded() -> None:
    plain = world(6000, seed=4, score={"redraws": 999})
    outside = np.flatnonzero(~plain.member)
    for share, word in ((0.05, BOUNDED), (0.2, INCONCLUSIVE)):
        copies = np.zeros(6000, dtype=bool)
        copies[outside[: int(share * len(outside))]] = True
        found = findings_of(replace(plain, copies=Copies(copies, 2.0)))
        row = found.first("copied_nonmembers")
        assert (row.value, row.n) == (copies.sum(), len(outside))
        assert found.verdict.word == word
        said = (
            f"{int(copies.sum()):,} of {len(outside):,} non-members (equal content, or images whose small versions differ by"
        )
        assert said in found.verdict.explanation


def test_a_nearest_neighbour_of_copies_is_not_bounded_by_them() -> None:
    """Non-members that are copies of members rank with them, so that nothing seems to be remembered."""
    plain = world(1000, memory=0.0, seed=1, score={"redraws": 999})
    odds = plain.target.odds.copy()
    copies = ~plain.member & (np.arange(1000) % 20 == 0)
    odds[0, 0, plain.member | copies] += 30
    found = findings_of(replace(plain, target=replace(plain.target, odds=odds), copies=Copies(copies, 0.0)))
    rows = {row.params["attack"]: row for row in found.all("auc")}
    assert (rows["loss"].upper_bound or 0.0) > 0.99


def test_true_alarms_of_a_fixed_number_a_class_are_counted_with_equal_shares() -> None:
    """Nine in ten of one class are members, one in ten of the other, and the model fits the first one better."""
    plain = world(4000, seed=2, score={"redraws": 999, "attacks": ["loss"], "headline": "loss"})
    labels = np.arange(4000) % 2
    member = np.random.default_rng(0).random(4000) < np.where(labels == 1, 0.9, 0.1)
    odds = plain.target.odds + 3.0 * labels.astype(np.float32)
    answers = replace(plain.target, odds=odds)
    audited = replace(of_classes(plain, labels, drawn="fixed"), member=member, target=answers)
    found = findings_of(audited)
    row = found.first("true_alarms", attack="loss", false_alarms=0.01)
    assert row.n == found.first("true_alarms_limit", attack="loss").n < 1000
    assert abs(row.value - 0.01) < 0.03
    assert found.first("uneven").value == (~audited.even).sum() > 2000
    assert "drawn by lot, so that every class has the same share of members" in found.verdict.explanation


def test_identities_as_classes_are_tested_by_their_own_coins_and_otherwise_not_at_all() -> None:
    """Outputs that give every member away, and a class of its own for each example."""
    plain = world(200, memory=30.0, score={"redraws": 999})
    own = findings_of(of_classes(plain, np.arange(200)))
    assert own.verdict.word == SHOWN
    assert own.head.value > 0.99
    assert findings_of(of_classes(plain, np.arange(200), drawn="coins")).verdict.word == SHOWN  # a coin for each, as declared
    fixed = findings_of(of_classes(plain, np.arange(200), drawn="fixed"))
    assert fixed.verdict.word == DESCRIPTIVE
    assert fixed.verdict.sentence == "Nothing in this design can be tested: no class has members and non-members."
    assert (fixed.head.low, fixed.head.high) == (0.0, 1.0)
    assert not fixed.all("true_alarms", "above_all")


def test_the_smallest_p_and_the_detectable_effect_follow_from_the_design() -> None:
    plain, small = (world(count, score={"redraws": 9999, "attacks": ["loss"], "headline": "loss"}) for count in (400, 20))
    few = findings_of(of_classes(small, np.arange(20) // 2, drawn="fixed")).head
    assert (few.smallest_p or 0.0) >= 2**-10  # ten classes of two
    whole = findings_of(of_classes(plain, np.zeros(400, dtype=np.int64), drawn="fixed")).head
    pairs = findings_of(of_classes(plain, np.arange(400) // 2, drawn="fixed")).head
    assert (pairs.detectable or 0.0) - 0.5 > 1.25 * ((whole.detectable or 1.0) - 0.5)


def test_classes_that_a_model_fits_unequally_are_not_taken_for_memory() -> None:
    """More members in the class that it fits better: the AUC of all pairs is above one half, that within classes is not."""
    missed, over_all = 0, []
    for seed in range(40):
        plain = world(400, seed=seed, score={"redraws": 999, "attacks": ["loss"], "headline": "loss"})
        rng, labels = np.random.default_rng(seed), np.arange(400) % 2
        member = rng.random(400) < np.where(labels == 1, 0.7, 0.3)
        target = Answers(plain.target.odds + 2.0 * labels.astype(np.float32), plain.target.correct, plain.target.held_out)
        head = findings_of(replace(of_classes(plain, labels, drawn="fixed"), member=member, target=target)).head
        missed += not (head.low is not None and head.low <= 0.5 <= (head.high or 0.0))
        over_all.append(auc(target.odds[0, 0], member))
    assert np.mean(over_all) > 0.58
    assert missed <= 9  # a true coverage of 95 % has more in one of 10,000 cases
