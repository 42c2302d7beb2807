"""A row a metric, with interval, null and verdict; and what the report draws."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.stats
from numpy.typing import NDArray

from memlib.audits.forgetting.distances import Distances, Observed
from memlib.audits.forgetting.recipe import (
    NON_MEMBERS_FOR_RARE,
    NULL,
    RARE,
    RETAINED,
    TARGET,
    UNDECIDED,
    VERDICTS,
    Recipe,
    VerdictSpec,
)
from memlib.audits.forgetting.verdict import Judge
from memlib.data.sets import CALIBRATION, QUERY
from memlib.identity import derive_seed
from memlib.stats.likelihood import confidences
from memlib.stats.tests import wilson_interval
from memlib.tables import CURVES, SUMMARY, summary_row


def summarize(distances: Distances, examples: pa.Table, recipe: Recipe) -> pa.Table:
    """The findings: for each target rho, its KS distances and the verdict; then how far the verdict can be trusted.

    Intervals of rho are over the seeds of all models and the examples of D_Q together.

    Args:
        distances: of all models.
        examples: tables.FORGETTING_EXAMPLES.
        recipe: targets, verdict and config.

    Returns:
        tables.SUMMARY.
    """
    judge = Judge(distances, recipe.verdict)
    rows: list[dict[str, Any]] = []
    for name in recipe.targets:
        models = [m for m in distances.models.values() if m.group == TARGET and m.target == name]
        rows += _rows_of_target(name, models, distances, judge, recipe)
        rows += _membership_rows(name, examples)
    for group, models in ((NULL, judge.null), (RETAINED, judge.retained)):
        params = {"target": f"{group} models", "kind": group}
        rows.append(_rho_row(params, models, distances))
    rows += _trust_rows(judge, recipe.verdict)
    if recipe.compare is not None:
        rows.append(_change_row(recipe.compare, distances))
    return pa.Table.from_pylist(rows, schema=SUMMARY.arrow)


def _rows_of_target(
    name: str, models: Sequence[Observed], distances: Distances, judge: Judge, recipe: Recipe
) -> Iterator[dict[str, Any]]:
    decisions = [judge.judge(model) for model in models]
    counts = {verdict: sum(d.verdict == verdict for d in decisions) for verdict in VERDICTS}
    verdict = next((v for v in VERDICTS if 2 * counts[v] > len(models)), UNDECIDED)
    spec = recipe.verdict
    params = {
        "target": name, "kind": TARGET, "verdict": verdict, "compared": spec.statistic, "alpha": spec.alpha,
        "models": len(models),
    }  # fmt: skip
    p = decisions[0].p_null if len(decisions) == 1 else None
    yield _rho_row(params, models, distances) | {"p_value": p}
    to_query = np.stack([distances.to_query(model) for model in models]).mean(axis=0)
    yield _row("ks_target", {"target": name}, to_query, ())
    yield _row("ks_calibration", {"target": name}, distances.calibrations(models[0].decimals), (0, 1))
    if len(decisions) == 1:
        for which, value in (("null", decisions[0].p_null), ("retained", decisions[0].p_retained)):
            yield summary_row(
                f"p_{which}", {"target": name, "compared": spec.statistic}, value, None, n=recipe.verdict.models
            )
    seed = derive_seed(recipe.score.seed, "verdicts", name)
    drawn = judge.resampled(models, count=recipe.score.resamples, seed=seed)
    for title, found in (("models", [d.verdict for d in decisions]), ("resampled", drawn)):
        for verdict in VERDICTS if found else ():
            hits = sum(v == verdict for v in found)
            at = {"target": name, "verdict": verdict, "over": title}
            yield summary_row("share_of_verdicts", at, hits / len(found), wilson_interval(hits, len(found)), n=len(found))


def _rho_row(params: Mapping[str, Any], models: Sequence[Observed], distances: Distances) -> dict[str, Any]:
    values = np.stack([distances.rho(model) for model in models])
    seeds = (0, 1, 2) if len(models) > 1 else (1, 2)
    return _row("rho", params, values, seeds, null=1.0)


def _row(
    metric: str, params: Mapping[str, Any], values: NDArray[np.float64], seeds: Sequence[int], *, null: float | None = None
) -> dict[str, Any]:
    """A mean over all but the last axis (the sample, then bootstrap replicates of examples), with its interval.

    Args:
        metric, params: of the row.
        values: (..., 1 + num_replicates).
        seeds: axes that are seeds of models; each adds the variance of its means.
        null: the value without memory.
    """
    centre, half = _centre_and_half(values, seeds)
    params = {**params, "interval": "seeds and examples" if seeds else "examples"}
    interval = (max(0.0, centre - half), centre + half)
    return summary_row(metric, params, centre, interval, n=values[..., 0].size, null_value=null)


def _centre_and_half(
    values: NDArray[np.float64], seeds: Sequence[int], *, apart: Sequence[NDArray[np.float64]] = ()
) -> tuple[float, float]:
    """The mean over all but the last axis, and half its 95 % interval.

    Args:
        values: (..., 1 + num_replicates).
        seeds: axes that are seeds of models; each adds the variance of its means.
        apart: (num_models, ..., 1 + num_replicates) of models that were averaged already; each adds its seeds' variance.
    """
    over = tuple(range(values.ndim - 1))
    means = values.mean(axis=over)
    sample = values[..., 0]
    by_seed = [sample.mean(axis=tuple(other for other in over if other != axis)) for axis in seeds]
    by_seed += [side[..., 0].reshape(len(side), -1).mean(axis=1) for side in apart if len(side) > 1]
    variance = float(means[1:].var(ddof=1)) + sum(float(found.var(ddof=1)) / len(found) for found in by_seed)
    quantile = float(scipy.stats.t.ppf(0.975, min(len(found) for found in by_seed) - 1)) if by_seed else 1.96
    return float(means[0]), quantile * float(np.sqrt(variance))


def _change_row(names: tuple[str, str], distances: Distances) -> dict[str, Any]:
    """The change of rho from one target to another, on the same examples, query and calibration models."""
    sides = []
    for name in names:
        models = [m for m in distances.models.values() if m.group == TARGET and m.target == name]
        sides.append(np.stack([distances.rho(model) for model in models]))
    centre, half = _centre_and_half(sides[1].mean(axis=0) - sides[0].mean(axis=0), (0, 1), apart=sides)
    params = {"from": names[0], "to": names[1], "interval": "seeds and examples"}
    if min(len(side) for side in sides) == 1:
        params["interval"] = "the auditor's seeds and examples"  # a single target's own training is not in it
    return summary_row(
        "rho_change", params, centre, (centre - half, centre + half), n=sides[0][0][..., 0].size, null_value=0.0
    )


def _trust_rows(judge: Judge, spec: VerdictSpec) -> Iterator[dict[str, Any]]:
    """How often the verdict is right on models whose truth is known, each judged by the others."""
    for group, models in ((NULL, judge.null), (RETAINED, judge.retained)):
        found = [judge.judge(model).verdict for model in models]
        for verdict in VERDICTS:
            hits = found.count(verdict)
            params = {"target": f"{group} models", "verdict": verdict, "over": "models", "alpha": spec.alpha}
            yield summary_row("share_of_verdicts", params, hits / len(found), wilson_interval(hits, len(found)), n=len(found))


def _membership_rows(name: str, examples: pa.Table) -> Iterator[dict[str, Any]]:
    """How well the likelihood ratio tells which examples of D_Q a target has seen, where that is known."""
    frame = examples.to_pandas()
    frame = frame[(frame["target"] == name) & frame["member"].notna()]
    by_level: dict[float, list[float]] = {}
    for _, mine in frame.groupby("model"):
        member = mine["member"].to_numpy(dtype=bool)
        ratios = mine["log_likelihood_ratio"].to_numpy()
        if member.all() or not member.any():
            continue
        outside = np.sort(ratios[~member])
        for level in (0.01, RARE):
            if (level == RARE and len(outside) < NON_MEMBERS_FOR_RARE) or len(outside) * level < 1:
                continue
            allowed = int(level * len(outside))
            by_level.setdefault(level, []).append(float((ratios[member] > outside[-1 - allowed]).mean()))
    for level, rates in by_level.items():
        values = np.array(rates)
        interval = None
        if len(values) > 1 and np.ptp(values):
            low, high = scipy.stats.t.interval(0.95, len(values) - 1, values.mean(), scipy.stats.sem(values))
            interval = (max(0.0, float(low)), min(1.0, float(high)))
        params = {"target": name, "false_positive_rate": level, "compared": "likelihood_ratio"}
        yield summary_row("true_positive_rate", params, float(values.mean()), interval, n=len(values), null_value=level)


def in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Whether a finding with these params is shown in brief: rho of everything, and how far verdicts can be trusted."""
    return "kind" in params or "from" in params or (params.get("over") == "models" and "alpha" in params)


def curves(distances: Distances, recipe: Recipe) -> pa.Table:
    """ECDFs of the confidences on D_Q by kind of model (curve confidence_ecdf), and rho by share of D_Q (rho_by_share).

    The ECDFs are of the first model of each kind, whose gap the distances are about.
    """
    rows: list[dict[str, Any]] = []
    first: dict[tuple[str, str], Observed] = {}
    for model in distances.models.values():
        first.setdefault((model.group, model.target), model)
    shown = next(m.decimals for m in distances.models.values() if m.group == TARGET)  # all curves as the first target's
    for (group, target), model in first.items():
        values = np.sort(confidences(model.log_odds, shown))
        places = np.unique(np.linspace(0, len(values) - 1, min(400, len(values))).round().astype(int))
        for place in places:
            rows.append(
                _point("confidence_ecdf", target or group, {"group": group}, values[place], (place + 1) / len(values))
            )
    for name, spec in recipe.targets.items():
        if spec.mix is not None and CALIBRATION in spec.mix:
            for model in (m for m in distances.models.values() if m.target == name):
                y = float(distances.rho(model)[..., 0].mean())
                kind = "with other sets" if set(spec.mix) - {QUERY, CALIBRATION} else "D_C and D_Q"
                rows.append(_point("rho_by_share", kind, {"model": model.number}, spec.mix.get(QUERY, 0.0), y))
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)


def _point(curve: str, series: str, params: Mapping[str, Any], x: float, y: float) -> dict[str, Any]:
    return {
        "curve": curve,
        "series": series,
        "params": json.dumps(dict(params), sort_keys=True),
        "x": float(x),
        "y": float(y),
    }
