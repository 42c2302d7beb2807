"""Rows of the tables of a membership audit (whose schemas are in `tables`), and the curves of its page."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.membership.audited import SHOWN, Audited
from memlib.audits.membership.rankings import mean_odds, true_alarms
from memlib.audits.membership.tables import EXAMPLES, INFLUENCE, MODELS, UNITS
from memlib.audits.membership.verdict import NAMES
from memlib.data.subsets import TARGET
from memlib.stats.operating import auc, roc
from memlib.stats.shadows import log_p
from memlib.tables import CURVES, point

POINTS = 400  # of a curve
BINS = 40  # of the histogram
MOST_PAIRS = 1000  # pairs with influence that are listed


def unit_rows(audited: Audited) -> pa.Table:
    """Return tables.UNITS, the units with the highest headline score first."""
    units, rankings = audited.units, audited.rankings
    inner, outer = mean_odds(units.shadows)
    head = rankings.head.scores
    columns: dict[str, Any] = {
        "unit": pa.array(units.names),
        "examples": units.sizes,
        "label": units.labels,
        "class_name": pa.array(units.class_names),
        "member": units.member,
        "log_odds": units.odds.mean(axis=0, dtype=np.float64),
        "log_odds_in": _nullable(inner),
        "log_odds_out": _nullable(outer),
        "above_nonmembers": above_nonmembers(head, units.member),
    }
    found = {ranking.attack: ranking.scores for ranking in rankings.all}
    scored = [column.name for column in UNITS.columns if column.name in NAMES]
    columns |= {name: found[name] if name in found else pa.nulls(len(units), pa.float64()) for name in scored}
    table = pa.table([columns[name] for name in UNITS.arrow.names], names=UNITS.arrow.names).cast(UNITS.arrow)
    return table.take(pa.array(np.argsort(-head, kind="stable")))


def above_nonmembers(scores: NDArray[np.float64], member: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the share of non-members with a smaller score; for a non-member, the share among the other ones."""
    ordered = np.sort(scores[~member])
    below = np.searchsorted(ordered, scores, side="left")
    shares: NDArray[np.float64] = below / np.maximum(len(ordered) - ~member, 1)
    return shares


def example_rows(audited: Audited) -> pa.Table:
    """Return tables.EXAMPLES, the most memorized first."""
    found = audited.memorization
    low, high = found.interval()
    known = np.isfinite(found.difference)
    columns: dict[str, Any] = {
        "example_id": audited.rows["example_id"],
        "group": audited.rows["group"],
        "label": audited.pool.labels,
        "class_name": pa.array(audited.pool.class_names),
        "models_in": found.num_in,
        "models_out": found.num_out,
        "correct_in": _nullable(found.share_in),
        "correct_out": _nullable(found.share_out),
        "memorization": _nullable(found.difference),
        "ci_low": pa.array(low, mask=~known),
        "ci_high": pa.array(high, mask=~known),
        "p_adjusted": audited.memorization_p,
    }
    table = pa.table([columns[name] for name in EXAMPLES.arrow.names], names=EXAMPLES.arrow.names).cast(EXAMPLES.arrow)
    order = np.lexsort((np.arange(len(known)), -np.where(known, found.difference, -np.inf), audited.memorization_p))
    return table.take(pa.array(order))


def influence_rows(audited: Audited) -> pa.Table:
    """Return tables.INFLUENCE: the pairs with shown influence, the strongest first."""
    found, p = audited.influence
    difference = found.difference
    pairs = np.argwhere((p <= SHOWN) & (difference > 0))
    order = np.argsort(-difference[tuple(pairs.T)], kind="stable")[:MOST_PAIRS]
    ids, held_out = audited.pool.ids, audited.held_out["example_id"].to_pylist()
    rows = [
        {
            "example_id": ids[int(audited.examined[one])], "held_out_id": held_out[other],
            "influence": float(difference[one, other]), "p_adjusted": float(p[one, other]),
        }
        for one, other in pairs[order].tolist()
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=INFLUENCE.arrow)


def model_rows(audited: Audited) -> pa.Table:
    """Return tables.MODELS, the target first."""
    rows = [_target_row(audited), *_shadow_rows(audited)]
    return pa.Table.from_pylist(rows, schema=MODELS.arrow)


def _target_row(audited: Audited) -> dict[str, Any]:
    head = audited.rankings.head
    member = audited.units.member
    even, rates = audited.even, audited.recipe.score.false_alarms
    alarms = [true_alarms(head.scores[even], member[even], rate) for rate in rates]
    p = None if head.test is None else head.test.auc_p
    used = _utility(audited.target.odds[0, 0], audited.target.correct[0], audited.member)
    if audited.recipe.reads_scores:
        used = {name: value if name == "members" else None for name, value in used.items()}
    return {
        "model": TARGET,
        **used,
        "auc": auc(head.scores, member, blocks=audited.units.strata),
        "p_value": p,
        "true_alarms": alarms,
    }


def _shadow_rows(audited: Audited) -> Iterator[dict[str, Any]]:
    for number, result in enumerate(audited.survey[1]):
        used = _utility(audited.shadows.odds[number, 0], audited.shadows.correct[number], audited.inside[number])
        yield {
            "model": number, **used, "auc": result.auc, "p_value": result.p_value, "true_alarms": list(result.true_alarms)
        }  # fmt: skip


def _utility(odds: NDArray[np.float32], correct: NDArray[np.bool_], inside: NDArray[np.bool_]) -> Mapping[str, Any]:
    """Return accuracy and loss of a model on its training set and on the other examples."""
    loss = -log_p(odds)
    return {
        "members": int(inside.sum()),
        "accuracy_in": _mean(correct[inside]),
        "accuracy_out": _mean(correct[~inside]),
        "loss_in": _mean(loss[inside]),
        "loss_out": _mean(loss[~inside]),
    }


def _mean(values: NDArray[Any]) -> float | None:
    return float(values.mean()) if len(values) else None


def curves(audited: Audited) -> pa.Table:
    """Return the points that the page draws.

    Curves: roc (true over false alarms, by attack) and scores (share of members and of non-members by headline score).
    """
    rows: list[dict[str, Any]] = []
    for ranking in audited.rankings.all if audited.even.any() else ():
        fpr, tpr = roc(ranking.scores[audited.even], audited.units.member[audited.even])
        kept = _thinned(fpr)
        rows += [point("roc", ranking.attack, {}, x, y) for x, y in zip(fpr[kept], tpr[kept], strict=True)]
    rows += _histogram(audited)
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)


def _thinned(rates: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the places of at most about POINTS points, dense where rates are small, as they are drawn on a log axis."""
    count = len(rates)
    if count <= POINTS:
        return np.arange(count)
    wanted = np.concatenate([[0], np.geomspace(max(rates[rates > 0].min(), 1e-6), 1, POINTS)])
    return np.unique(np.searchsorted(rates, wanted, side="right") - 1)


def _histogram(audited: Audited) -> Iterator[dict[str, Any]]:
    scores, member = audited.rankings.head.scores, audited.units.member
    low, high = np.quantile(scores, [0.03, 0.97])  # scores have long tails
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    for name, side in (("members", member), ("non-members", ~member)):
        counts, _ = np.histogram(np.clip(scores[side], edges[0], edges[-1]), edges)
        for left, right, count in zip(edges[:-1], edges[1:], counts, strict=True):
            yield point("scores", name, {}, (left + right) / 2, count / side.sum())


def _nullable(values: NDArray[np.float64]) -> pa.Array:
    return pa.array(values, mask=~np.isfinite(values))
