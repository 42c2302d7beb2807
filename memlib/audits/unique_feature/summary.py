"""From scores to a row a metric, with interval, null and verdict."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.stats
from numpy.typing import NDArray

from memlib.audits.unique_feature.analysis import Analysis, settings
from memlib.audits.unique_feature.recipe import SEEDS_FOR_INTERVAL, SETTING, Config
from memlib.audits.unique_feature.scoring import Pull
from memlib.identity import derive_seed
from memlib.stats.tests import (
    mcnemar_p,
    mean_interval,
    paired_interval,
    permutation_p,
    sign_flip_p,
    wilson_interval,
)
from memlib.tables import SUMMARY, summary_row


def summarize(units: pa.Table, config: Config, *, influence: Mapping[tuple[str, int, str], float] | None = None) -> pa.Table:
    """The findings for each variant, score and output; the paired difference of canary nets and controls first.

    That difference is what the feature's single appearance did to the nets, tested by exchanging nets within their
    pairs. The proportions say how many single nets could be called memorizing.

    With one draw of the data the units are nets (Wilson and bootstrap intervals, exact McNemar and sign-flip tests on
    pairs of canary net and control). With three draws or more the draws are the units.

    Args:
        units: tables.UNIQUE_FEATURE_UNITS, calibrated.
        config: alpha, replicates, permutations, seed.
        influence: self-influence by (variant, data seed, example id), where canaries were chosen by it.

    Returns:
        tables.SUMMARY.
    """
    influence = influence or {}
    rows: list[dict[str, Any]] = []
    for setting, draws in settings(units):
        analyses = [Analysis(part, config) for part in draws]
        if len(analyses) == 1:
            rows += _rows_of_nets(analyses[0], setting, config)
        else:
            rows += _rows_of_draws(analyses, setting, config)
    rows += _correlations(units, influence)
    return pa.Table.from_pylist(rows, schema=SUMMARY.arrow)


def _correlations(units: pa.Table, influence: Mapping[tuple[str, int, str], float]) -> Iterator[dict[str, Any]]:
    """How well the restricted settings follow the white box (2023, Figs. 6 and 7), and M self-influence (2022, 3.3)."""
    scores: dict[tuple[str, str], dict[str, dict[Any, float]]] = {}
    for row in units.to_pylist():
        if row["control"] or not row["own_label"] or row["draw"] or row["feature"] != "canary":
            continue
        net = (row["data_seed"], row["net"], row["example_id"])
        outputs = {row["output"]} if row["output"] in ("probability", "logit") else {"probability", "logit"}
        for output in outputs:
            scores.setdefault((row["variant"], output), {}).setdefault(row["metric"], {})[net] = row["value"]
    for (variant, output), found in scores.items():
        pairs = {
            ("m_white", other): (found["m_white"], found[other])
            for other in found
            if "m_white" in found and other != "m_white"
        }
        for metric in found:
            known = {
                net: influence[variant, net[0], net[2]] for net in found[metric] if (variant, net[0], net[2]) in influence
            }
            pairs["self_influence", metric] = (known, found[metric])
        for (first, second), (a, b) in pairs.items():
            nets = sorted(a.keys() & b.keys())
            x, y = np.array([a[net] for net in nets]), np.array([b[net] for net in nets])
            if first == "self_influence":  # one number a canary, so canaries are what is counted
                canaries = np.unique([f"{net[0]} {net[2]}" for net in nets], return_inverse=True)[1]
                counts = np.bincount(canaries)
                x, y = np.bincount(canaries, weights=x) / counts, np.bincount(canaries, weights=y) / counts
            if len(x) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
                continue
            result = scipy.stats.pearsonr(x, y)
            interval = result.confidence_interval()
            params = {"variant": variant} if variant else {}
            params |= {"metric": "correlation", "of": f"{first} and {second}", "output": output, "statistic": "Pearson"}
            low, high = float(interval.low), float(interval.high)
            yield summary_row("correlation", params, float(result.statistic), (low, high), n=len(x), null_value=0.0)


def pull_rows(variant: str, pulls: Sequence[Pull]) -> pa.Table:
    """Rows of tables.SUMMARY: each canary's self-influence with the feature and without; descriptive."""
    rows = []
    for pull in pulls:
        for group, value in (("with the feature", pull.with_feature), ("without", pull.without_feature)):
            params = {"variant": variant} if variant else {}
            params |= {"metric": "self_influence", "example": pull.example_id, "group": group}
            rows.append(summary_row("self_influence_canary", params, value, None, n=1))
    return pa.Table.from_pylist(rows, schema=SUMMARY.arrow)


def summarize_own(units: pa.Table, config: Config) -> pa.Table:
    """The findings on a model that was trained elsewhere: each score against features that it cannot know.

    Args:
        units: scores of one net, of the feature (canary) and of null features.
        config: alpha.

    Returns:
        tables.SUMMARY, black box first; p is the rank among the null features.
    """
    rows = []
    for metric in ("m_black", "m_grey"):
        for output in config.outputs:
            mine = [r for r in units.to_pylist() if r["metric"] == metric and r["output"] == output]
            known = [row["value"] for row in mine if row["feature"] == "canary"]
            nulls = np.array([row["value"] for row in mine if row["feature"] != "canary"])
            if not known or not len(nulls):
                continue
            p = permutation_p(known[0], nulls)
            params = {
                "metric": metric,
                "setting": SETTING[metric],
                "output": output,
                "null": "other features",
                "alpha": config.alpha,
            }
            row = summary_row(metric, params, known[0], None, n=len(nulls), null_value=float(nulls.mean()), p_value=p)
            rows.append(row | {"verdict": "above_null" if p <= config.alpha else "at_null"})
    return pa.Table.from_pylist(rows, schema=SUMMARY.arrow)


def _rows_of_nets(analysis: Analysis, setting: Mapping[str, Any], config: Config) -> Iterator[dict[str, Any]]:
    nets, controls, pairs = analysis.nets, analysis.controls, analysis.pairs
    params = {**setting, "interval": "nets", "nets": len(nets), "controls": len(controls), "alpha": config.alpha}
    metric = str(setting["metric"])
    yield from _score_rows(analysis, params, metric, config)
    if not analysis.one_seed:
        for name, memorized in analysis.criteria.items():
            at = {**params, "criterion": name}
            if len(pairs) >= SEEDS_FOR_INTERVAL:
                wins = int((memorized[pairs[:, 0]] & ~memorized[pairs[:, 1]]).sum())
                losses = int((~memorized[pairs[:, 0]] & memorized[pairs[:, 1]]).sum())
                gains = memorized[pairs[:, 0]].astype(float) - memorized[pairs[:, 1]]
                yield summary_row(
                    "proportion_excess", at, float(gains.mean()), paired_interval(gains),
                    n=len(pairs), null_value=0.0, p_value=mcnemar_p(wins, losses),
                )  # fmt: skip
            for title, members in (("proportion_memorized", nets), ("proportion_control", controls)):
                if len(members):
                    hits = int(memorized[members].sum())
                    interval = wilson_interval(hits, len(members))
                    yield summary_row(title, at, hits / len(members), interval, n=len(members))


def _score_rows(analysis: Analysis, params: Mapping[str, Any], metric: str, config: Config) -> Iterator[dict[str, Any]]:
    """The paired difference of the score, then mean and maximum of canary nets and of controls."""

    def interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
        if analysis.one_seed or len(values) < SEEDS_FOR_INTERVAL:
            return None
        return mean_interval(values, replicates=config.replicates, seed=derive_seed(config.seed, "bootstrap", metric))

    gains = analysis.gains
    if len(gains):
        at = {**params, "group": "canary - control", "statistic": "mean"}
        p = None
        if not analysis.one_seed and len(gains) >= SEEDS_FOR_INTERVAL:
            p = sign_flip_p(gains, permutations=config.permutations, seed=derive_seed(config.seed, "exchange", metric))
        yield summary_row(metric, at, float(gains.mean()), interval(gains), n=len(gains), null_value=0.0, p_value=p)
    for group, members in (("canary", analysis.nets), ("control", analysis.controls)):
        values = analysis.values[members]
        if len(values):
            at = {**params, "group": group}
            yield summary_row(metric, {**at, "statistic": "mean"}, float(values.mean()), interval(values), n=len(values))
            yield summary_row(metric, {**at, "statistic": "max"}, float(values.max()), None, n=len(values))


def _rows_of_draws(analyses: Sequence[Analysis], setting: Mapping[str, Any], config: Config) -> Iterator[dict[str, Any]]:
    """Means over draws of the data, which are the units; each draw's own proportion is in the curves."""
    metric = str(setting["metric"])
    count = len(analyses)
    params = {
        **setting, "interval": "data", "data_seeds": count, "alpha": config.alpha,
        "nets": sum(len(a.nets) for a in analyses), "controls": sum(len(a.controls) for a in analyses),
    }  # fmt: skip

    def row(title: str, at: Mapping[str, Any], values: Sequence[float], *, null: float | None = None) -> dict[str, Any]:
        array = np.array(values)
        wide = mean_interval(array, replicates=config.replicates, seed=derive_seed(config.seed, "draws", title))
        p = None
        if null == 0.0:
            p = sign_flip_p(array, permutations=config.permutations, seed=derive_seed(config.seed, "draws", title))
        return summary_row(title, at, float(array.mean()), wide if count >= 3 else None, n=count, null_value=null, p_value=p)

    at = {**params, "group": "canary - control", "statistic": "mean"}
    yield row(metric, at, [float(a.gains.mean()) for a in analyses], null=0.0)
    for name in analyses[0].criteria:
        at = {**params, "criterion": name}
        found = [a.criteria[name] for a in analyses]
        nets = [float(m[a.nets].mean()) for a, m in zip(analyses, found, strict=True)]
        controls = [float(m[a.controls].mean()) for a, m in zip(analyses, found, strict=True)]
        paired = [m[a.pairs] for a, m in zip(analyses, found, strict=True)]
        excess = [float((m[:, 0].astype(float) - m[:, 1]).mean()) for m in paired]
        yield row("proportion_excess", at, excess, null=0.0)
        yield row("proportion_memorized", at, nets)
        yield row("proportion_control", at, controls)
    for group, values in (
        ("canary", [float(a.values[a.nets].mean()) for a in analyses]),
        ("control", [float(a.values[a.controls].mean()) for a in analyses]),
    ):
        yield row(metric, {**params, "group": group, "statistic": "mean"}, values)


def in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Whether a finding with these params is shown in brief: the headline's score, and every score's difference."""
    same = all(params.get(name) == headline.get(name) for name in ("metric", "output"))
    return same or params.get("group") == headline.get("group", "")
