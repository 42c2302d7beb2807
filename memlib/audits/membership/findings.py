"""The findings of a membership audit: tests of the target's coins, estimates, controls, and one verdict."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from memlib.audits.asked import is_void
from memlib.audits.membership.alarms import area, tail_bound, true_alarms
from memlib.audits.membership.audited import SHOWN, Audited
from memlib.audits.membership.privacy import privacy_findings
from memlib.audits.membership.rankings import ModelResult, Ranking, Scores, point_at
from memlib.audits.membership.recipe import ALL_MODELS, HEADLINES, MEMBERS, MOST_COPIED, MOST_UNPAIRED
from memlib.audits.membership.verdict import verdict
from memlib.findings import Finding, Interval, diagnostic, estimate, settle, tested, untested, voided
from memlib.identity import derive_seed
from memlib.stats.clusters import intraclass_correlation
from memlib.stats.coins import all_targets_p, smallest_p
from memlib.stats.inference import exact_interval, mean_interval
from memlib.stats.membership import rmia
from memlib.stats.operating import auc, auc_interval, interval_within, most_alarms

POWER = 0.8
REPLICATES = 999


def summarize(audited: Audited, more: list[Finding]) -> pa.Table:
    """Compute the findings, the headline attack first.

    Args:
        audited: pool, answers and coins.
        more: further findings: blind baseline, likeness, slices, persons, hidden columns and structure.

    Returns:
        tables.SUMMARY.
    """
    rankings = audited.rankings
    ordered = sorted(rankings.all, key=lambda ranking: ranking.attack != audited.recipe.score.headline)
    rows: list[Finding] = [row for ranking in ordered for row in _attack_rows(ranking, audited)]
    if audited.is_tested:
        rows += privacy_findings(rankings, audited.recipe)
    rows += _left_out(audited)
    rows += [] if audited.recipe.reads_scores else [_utility(audited)]
    rows += _model_rows(audited)
    rows += _levels(audited)
    rows += _memorization_rows(audited) if audited.has_memorization else []
    service = audited.service
    rows += [*([] if service is None else [service]), *more]
    if is_void(service):
        rows = [voided(row) for row in rows]
    if not audited.is_tested:
        rows = [untested(row) if row.family in HEADLINES else row for row in rows]
    settled = settle(rows, alpha=audited.recipe.score.level, headlines=HEADLINES)
    return settled.table(verdict(settled, audited.recipe))


def _attack_rows(ranking: Ranking, audited: Audited) -> Iterator[Finding]:
    """Yield the AUC of an attack with its test, and its true alarms."""
    units, config = audited.units, audited.recipe.score
    member, scores = units.member, ranking.scores
    params = {
        "attack": ranking.attack, "members": int(member.sum()), "nonmembers": int((~member).sum()), "over": units.noun,
        "strata": len(np.unique(units.strata)),
    }  # fmt: skip
    value, interval = area(scores, member, units.strata, units.noun)
    if ranking.test is None:
        yield estimate("auc", params, value, n=len(units), interval=interval)
    else:
        most = _most_alarms(ranking, audited)
        yield tested(
            "auc", params, value, n=len(units), p_value=ranking.test.p_value, p_adjusted=ranking.test.adjusted_p,
            family=MEMBERS, null_value=0.5, interval=interval, either_direction=True,
            smallest_p=_smallest_p(ranking, audited),
            detectable=_detectable(ranking.test.needed, audited),
            **_limits(ranking, audited, most),
        )  # fmt: skip
        if most is not None:
            at = {"attack": ranking.attack, "false_alarms": config.false_alarms[0]}
            yield diagnostic("true_alarms_limit", at, most, n=int((member & audited.even).sum()))
        tail = {"attack": ranking.attack}
        yield diagnostic("p_of_auc_alone", tail, ranking.test.auc_p, n=len(units))
        yield diagnostic("p_of_tail_alone", tail, ranking.test.tail_p, n=len(units))
    even = audited.even
    yield from true_alarms({"attack": ranking.attack}, scores[even], member[even], config.false_alarms, noun=units.noun)
    if audited.rankings.difficulty is not None:
        value = auc(ranking.raw, member, blocks=units.strata)
        yield diagnostic("auc_unadjusted", {"attack": ranking.attack}, value, n=len(units))


def _most_alarms(ranking: Ranking, audited: Audited) -> float | None:
    """Return the upper limit of true alarms at a true rate of `false_alarms[0]`; None if non-members are too few for it."""
    config, units = audited.recipe.score, audited.units
    kept = units.apart & audited.even
    member = units.member[kept]
    if point_at(ranking.scores[kept], member, config.false_alarms[0]) is None:
        return None
    most = max(most_alarms(scores[kept], member, config.false_alarms[0], error=config.error) for scores in ranking.both)
    return most if most < 1 else None


def _limits(ranking: Ranking, audited: Audited, most: float | None) -> dict[str, float]:
    """Return the upper limit of the AUC, and its bound if the limit of true alarms lies below its own bound, no attack
    that was possible is left out, and few units are left out of the limits. These are the larger ones of raw and adjusted
    scores, as memory that follows difficulty is partly taken away with it.

    Args:
        most: the limit of true alarms.
    """
    config, units = audited.recipe.score, audited.units
    apart, kept = units.apart, units.apart & audited.even
    member, strata = units.member[apart], units.strata[apart]
    high = max(interval_within(scores[apart], member, strata, level=1 - 2 * config.error)[1] for scores in ranking.both)
    limits = {"upper_bound": high}
    is_small = most is not None and most < tail_bound(
        config, *(int((kept & side).sum()) for side in (units.member, ~units.member))
    )
    is_whole = (
        not audited.recipe.left_out
        and (~units.apart).sum() <= MOST_COPIED * (~units.member).sum()
        and (~units.paired).mean() <= MOST_UNPAIRED
        and (units.member & ~audited.even).sum() <= MOST_UNPAIRED * units.member.sum()
    )
    return limits | ({"bound": config.auc_bound} if is_small and is_whole else {})


def _smallest_p(ranking: Ranking, audited: Audited) -> float:
    """Return the smallest p-value that the design and the redraws allow, which is 1 where all scores are equal."""
    if np.ptp(ranking.scores) == 0:
        return 1.0
    return max(1 / (1 + audited.recipe.score.redraws), smallest_p(audited.units.member, audited.units.strata))


def _detectable(needed: float, audited: Audited) -> float | None:
    """Return the AUC of pairs within strata that is found with a power of 80 % if all members stand out alike; None if none.

    Args:
        needed: see `CoinTest.needed`, by redraws of this design with the ranks of its own attacks.
    """
    units = audited.units
    inside = np.bincount(units.strata, weights=units.member)
    outside = np.bincount(units.strata, weights=~units.member)
    pairs = inside * outside
    if not pairs.sum() or not math.isfinite(needed):
        return None
    deviation = np.sqrt((pairs * (inside + outside + 1)).sum() / 12) / pairs.sum()
    return float(min(1.0, 0.5 + (needed + scipy.stats.norm.ppf(POWER)) * deviation))


def _left_out(audited: Audited) -> Iterator[Finding]:
    """Yield the numbers of units that nothing is compared with, by which no true alarms are counted, and of copies."""
    units, params = audited.units, {"over": audited.units.noun}
    if unpaired := int((~units.paired).sum()):
        yield diagnostic("unpaired", params | {"most": MOST_UNPAIRED}, unpaired, n=len(units))
    if uneven := int((~audited.even & units.apart).sum()):
        members = int((~audited.even & units.member).sum())
        yield diagnostic("uneven", params | {"members": members, "most": MOST_UNPAIRED}, uneven, n=len(units))
    yield from _copies(audited)


def _copies(audited: Audited) -> Iterator[Finding]:
    """Yield the number of non-members that have a copy among the members, if there are any."""
    units = audited.units
    number, outside = int((~units.apart).sum()), int((~units.member).sum())
    if audited.copies is not None and number:
        params = {"near": audited.copies.near, "most": MOST_COPIED, "over": units.noun}
        params |= {"shared": audited.copies.shared} if audited.copies.shared else {}
        yield diagnostic("copied_nonmembers", params, number, n=outside)


def _utility(audited: Audited) -> Finding:
    """Return the target's share of right answers on examples, or persons, that it was not trained on."""
    units, config = audited.units, audited.recipe.score
    right = units.correct[~units.member].astype(np.float64)
    if units.are_persons:
        ends = mean_interval(right, replicates=REPLICATES, seed=derive_seed(config.seed, "utility"))
    else:
        ends = exact_interval(float(right.sum()), len(right))
    params = {"measure": "right answers to non-members"}
    return estimate("utility", params, float(right.mean()), n=len(right), interval=Interval(*ends, units.noun))


def _model_rows(audited: Audited) -> Iterator[Finding]:
    """Yield the headline attack on all shadow models in turn: the range of its AUC, and twice the mean of the p-values."""
    results, config = audited.survey[1], audited.recipe.score
    if not results:
        return
    values = np.array([result.auc for result in results])
    low, high = np.quantile(values, [0.025, 0.975])
    params = {"attack": config.headline, "models": len(results)}
    yield tested(
        "auc_of_models", params, float(values.mean()), n=len(results),
        p_value=all_targets_p([result.p_value for result in results]), family=ALL_MODELS, null_value=0.5,
        interval=Interval(float(low), float(high), "models"), either_direction=True,
    )  # fmt: skip
    for place, rate in enumerate(config.false_alarms):
        yield from _alarms_of_models(results, place, rate)


def _alarms_of_models(results: list[ModelResult], place: int, rate: float) -> Iterator[Finding]:
    values = np.array([result.true_alarms[place] for result in results])
    if np.isfinite(values).all():
        low, high = np.quantile(values, [0.025, 0.975])
        interval = Interval(float(low), float(high), "models")
        yield estimate(
            "true_alarms_of_models", {"false_alarms": rate}, float(values.mean()), n=len(results), interval=interval
        )


def _levels(audited: Audited) -> Iterator[Finding]:
    """Yield the number of different values that RMIA's scores take, which limits how finely they rank units."""
    for ranking in audited.rankings.all:
        if ranking.attack in ("rmia", "rmia_offline"):
            _, levels = rmia(ranking.raw, ~audited.units.member)
            slope = {"a": audited.rankings.slope} if ranking.attack == "rmia_offline" else {}
            params = {"attack": ranking.attack, "gamma": 1, **slope}
            yield diagnostic("rmia_levels", params, levels, n=len(audited.units))


def _memorization_rows(audited: Audited) -> Iterator[Finding]:
    """Yield mean memorization, the numbers of memorized examples and of pairs with influence, and rank correlations."""
    found, p_adjusted = audited.memorization, audited.memorization_p
    known = np.isfinite(found.difference)
    models = int(found.num_in[0] + found.num_out[0])
    params = {"models": models}
    yield diagnostic("memorization_mean", params, float(found.difference[known].mean()), n=int(known.sum()))
    yield diagnostic("memorized_examples", {**params, "level": SHOWN}, int((p_adjusted <= SHOWN).sum()), n=int(known.sum()))
    yield from _agreement(audited)
    yield from _of_self_influence(audited)
    if audited.has_influence:
        pairs, adjusted = audited.influence
        p = pairs.p_values()
        params = {"memorized": len(audited.examined), "held_out": audited.held_out.num_rows}
        yield diagnostic("influence_pairs", {**params, "level": SHOWN}, int((adjusted <= SHOWN).sum()), n=p.size)
        single = {**params, "unadjusted": 0.001, "expected": round(0.001 * p.size, 4)}
        yield diagnostic("influence_pairs_unadjusted", single, int((p <= 0.001).sum()), n=p.size)


def _of_self_influence(audited: Audited) -> Iterator[Finding]:
    """Yield the rank correlations of self-influence with memorization and the headline's score, over the target's members."""
    influence, rankings = audited.self_influence, audited.rankings
    if influence is None:
        return
    others = {"memorization": audited.memorization.difference}
    if not audited.pool.has_groups:
        others[rankings.head.attack] = rankings.head.scores
    for name, values in others.items():
        params = {"with": name, "checkpoints": 0 if audited.norms is None else len(audited.norms)}
        yield from _rank_correlation("self_influence", params, influence, values, audited.member & np.isfinite(values))


def _rank_correlation(
    of: str, params: dict[str, Any], one: Scores, other: Scores, known: NDArray[np.bool_]
) -> Iterator[Finding]:
    """Yield the rank correlation (Spearman) of two scores of the known units, if there are enough and they vary."""
    if known.sum() >= 3 and np.ptp(one[known]) > 0 and np.ptp(other[known]) > 0:
        value = float(scipy.stats.spearmanr(one[known], other[known]).statistic)
        yield diagnostic(f"{of}_rank_correlation", params, value, n=int(known.sum()))


def _agreement(audited: Audited) -> Iterator[Finding]:
    """Yield the rank correlation of memorization with the headline attack's mean score over models trained on the unit."""
    units, own = audited.units, not audited.recipe.target.is_external
    scores, inside = audited.survey[0], units.shadows.inside
    if own:
        scores = np.concatenate([audited.rankings.head.scores[None], scores])
        inside = np.concatenate([units.member[None], inside])
    counts = inside.sum(axis=0)
    mean = np.where(inside, scores, 0.0).sum(axis=0) / np.maximum(counts, 1)
    groups, sizes = audited.pool.groups, units.sizes
    memory = np.bincount(groups, weights=audited.memorization.difference) / sizes  # of a person: the mean of her examples
    known = (counts > 0) & np.isfinite(memory)
    params = {"attack": audited.recipe.score.headline, "models": len(inside), "over": units.noun}
    yield from _rank_correlation("memorization", params, memory, mean, known)


def person_findings(audited: Audited) -> list[Finding]:
    """Return the intraclass correlation of the headline attack's scores of single rows, and their AUC with two intervals.

    Both intervals are of the AUC over rows: one treats rows as independent, the other persons. The list is empty without
    persons, or if all rows have the same score.
    """
    if not audited.units.are_persons:
        return []
    scores, member, groups = audited.row_scores, audited.member, audited.pool.groups
    if np.ptp(scores) == 0:
        return []
    value, count, persons, noun = auc(scores, member), len(scores), len(audited.units), audited.units.noun
    by_row, by_person = auc_interval(scores, member), auc_interval(scores, member, groups=groups)
    params = {"attack": audited.recipe.score.headline, "units": persons, "over": noun, "rows": count}
    correlation = intraclass_correlation(scores, groups, member.astype(np.int64))
    ratio = (by_person[1] - by_person[0]) / (by_row[1] - by_row[0])
    return [
        diagnostic("intraclass_correlation", params, correlation, n=count),
        estimate("auc_of_rows", params, value, n=persons, interval=Interval(*by_person, noun)),
        diagnostic("auc_of_rows_alone", params, value, n=count, interval=Interval(*by_row, "rows")),
        diagnostic("interval_width_ratio", params, ratio, n=persons),
    ]
