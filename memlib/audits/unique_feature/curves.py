"""Curves for the report: scores by epoch, draw of the data, removed pixels and canary, as rows of tables.CURVES."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature.analysis import Analysis, counting, of_variant, settings
from memlib.audits.unique_feature.recipe import Config
from memlib.audits.unique_feature.scoring import calibrated_p
from memlib.tables import point

Point = dict[str, Any]


def _series(control: bool) -> str:
    return "control" if control else "canary"


def epoch_curves(history: pa.Table, config: Config) -> Iterator[Point]:
    """Yield proportion memorized, mean M, accuracy and losses of canary nets and controls by epoch (2023, Fig. 4).

    Curves: proportion_by_epoch, m_by_epoch, accuracy_by_epoch, training_loss_by_epoch, validation_loss_by_epoch.

    Args:
        history: columns variant, data_seed, net, control, seed, label, epoch, best_epoch, output, value, published_p,
            accuracy, training_loss, validation_loss; value and published_p may be null.
        config: significance level.
    """
    frame = carried_forward(history.to_pandas())
    for (variant, control, epoch), part in frame.groupby(["variant", "control", "epoch"]):
        series, at = _series(control), of_variant(variant)
        nets = part.drop_duplicates(["data_seed", "net"])
        for name in ("accuracy", "training_loss", "validation_loss"):
            if nets[name].notna().any():
                yield point(f"{name}_by_epoch", series, at, epoch, nets[name].mean())
        for output, scored in part[part["value"].notna()].groupby("output"):
            where = {**at, "output": output}
            published = (scored["published_p"] < config.alpha) & (scored["value"] > 0)
            yield point("m_by_epoch", series, where, epoch, scored["value"].mean())
            yield point("proportion_by_epoch", series, {**where, "criterion": "published"}, epoch, published.mean())
    yield from _calibrated_by_epoch(frame[frame["value"].notna()], config)


def carried_forward(frame: Any) -> Any:
    """Repeat a net's scores of its best epoch after it has stopped early, so that later epochs include all nets."""
    keys = ["variant", "data_seed", "net", "control", "output"]
    last = frame.groupby(keys[:2], dropna=False)["epoch"].transform("max")
    end = frame.groupby(keys, dropna=False)["epoch"].transform("max")
    stopped = frame[(frame["epoch"] == frame["best_epoch"]) & (end < last)]
    ends = zip(end[stopped.index], last[stopped.index], strict=True)
    added = [stopped.iloc[[i]].assign(epoch=epoch) for i, (a, b) in enumerate(ends) for epoch in range(a + 1, b + 1)]
    return pd.concat([frame, *added], ignore_index=True) if added else frame


def _calibrated_by_epoch(frame: Any, config: Config) -> Iterator[Point]:
    """Yield the proportion of nets above the controls at their label by epoch, over labels with enough controls."""
    for (variant, epoch, output), part in frame.groupby(["variant", "epoch", "output"]):
        hits: dict[str, list[bool]] = {"canary": [], "control": []}
        for _, draw in part.groupby(["data_seed", "label"]):
            null = draw[draw["control"]]
            values, seeds = draw["value"].to_numpy(), draw["seed"].to_numpy()
            ranks = calibrated_p(values, seeds, null["value"].to_numpy(), null["seed"].to_numpy())
            for control, p in zip(draw["control"], ranks, strict=True):
                if p is not None and len(null) * config.alpha >= 1:
                    hits[_series(control)].append(p <= config.alpha)
        at = of_variant(variant) | {"output": output, "criterion": "calibrated"}
        for series, beyond in hits.items():
            if beyond:
                yield point("proportion_by_epoch", series, at, epoch, np.mean(beyond))


def draw_curves(units: pa.Table, config: Config) -> Iterator[Point]:
    """Yield the share of nets that each criterion flags on each draw of the data (2023, Fig. 3): proportion_by_data_seed."""
    for setting, parts in settings(units):
        if len(parts) == 1:
            continue
        for seed, part in enumerate(parts):
            analysis = Analysis(part, config)
            for name, memorized in analysis.criteria.items():
                for series, members in (("canary", analysis.nets), ("control", analysis.controls)):
                    at = {**setting, "criterion": name}
                    yield point("proportion_by_data_seed", series, at, seed, memorized[members].mean())


def removal_curves(units: pa.Table) -> Iterator[Point]:
    """Yield mean white-box M of canary nets and controls by the number of pixels removed from the feature (2023, Fig. 5).

    Curve: m_by_removed_pixels, left out if no pixels were removed.
    """
    scores: dict[tuple[str, str, str, int], list[float]] = {}
    for row in units.to_pylist():
        name = row["feature"]
        removed = 0 if name == "canary" else int(name.split()[2]) if name.startswith("canary without") else None
        if removed is not None and row["metric"] == "m_white" and row["own_label"]:
            scores.setdefault((row["variant"], row["output"], _series(row["control"]), removed), []).append(row["value"])
    if any(removed for *_, removed in scores):
        for (variant, output, series, removed), values in sorted(scores.items()):
            yield point("m_by_removed_pixels", series, of_variant(variant) | {"output": output}, removed, np.mean(values))


def canary_curves(units: pa.Table) -> Iterator[Point]:
    """Yield mean, lowest and highest m_white, m_w and m_kl over each canary's nets (2022, Figs. 3a to 6): score_by_canary.

    Variants and scores with a single canary are left out.
    """
    frame = units.filter(pa.array(counting(units) & ~np.array(units["control"].to_pylist(), dtype=bool))).to_pandas()
    frame = frame[frame["metric"].isin(["m_white", "m_w", "m_kl"])]
    for (variant, metric, output), part in frame.groupby(["variant", "metric", "output"]):
        by_canary = part.groupby(["data_seed", "canary"])["value"].agg(["mean", "min", "max"]).sort_values("mean")
        if len(by_canary) < 2:
            continue
        at = of_variant(variant) | {"metric": metric, "output": output}
        for place, (_, values) in enumerate(by_canary.iterrows()):
            for series in ("mean", "min", "max"):
                yield point("score_by_canary", series, at, place, values[series])


def latent_curves(variant: str, shares: Mapping[str, NDArray[np.float64]]) -> Iterator[Point]:
    """Yield how often each unit of the last hidden layer is excited only by the feature, and only by random partners.

    Curve: latent_by_unit, normalized to a maximum of 1 (2022, Fig. 3b).

    Args:
        variant: the recipe's variant.
        shares: by series (feature, random, control), (num_nets, num_units) share of examples that excite the unit only
            with the feature (random: only with the partner; control: the feature in nets that never saw it).
    """
    means = {series: values.mean(axis=0) for series, values in shares.items() if len(values)}
    top = max(1e-12, *(float(values.max()) for values in means.values()))
    for series, values in means.items():
        for unit, value in enumerate(values):
            yield point("latent_by_unit", series, of_variant(variant), unit, value / top)


def strongest(units: pa.Table, output: str) -> list[int]:
    """Return the numbers of the canary nets in order of their white-box M, highest first."""
    rows = [
        (row["value"], row["net"])
        for row in units.to_pylist()
        if row["metric"] == "m_white" and row["output"] == output and not row["control"] and row["own_label"]
    ]
    return [net for _, net in sorted(rows, key=lambda pair: (-pair[0], pair[1]))]
