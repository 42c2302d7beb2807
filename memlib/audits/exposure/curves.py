"""Points of every curve of an exposure audit."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.exposure.findings import at_last
from memlib.audits.exposure.recipe import Recipe
from memlib.audits.exposure.scores import Scored
from memlib.observe.likelihoods import UNITS_PER_BIT
from memlib.specs.text import INSERTED, UNSEEN
from memlib.stats.tails import fit_skew_normal
from memlib.tables import CURVES, point

LAW_DIGITS = 3  # decimals of the parameters of the fitted distribution


def curves(models: Sequence[Scored], units: pa.Table, extractions: pa.Table, recipe: Recipe) -> pa.Table:
    """Compute the points that the page draws.

    Curves: exposure_by_insertions, exposure_by_epoch, extrapolated_by_epoch, loss_by_epoch, utility (exposure by validation
    loss), queries_by_exposure, and perplexity_histogram (density of the references' costs).
    """
    frame = units.to_pandas()
    points = []
    for unit in frame.to_dict("records"):
        series = f"{unit['variant']} {unit['insertions']}x".strip()
        params = {"canary": int(unit["canary"]), "seed": int(unit["seed"])}
        if unit["insertions"]:
            points.append(point("exposure_by_epoch", series, params, unit["epoch"], unit["exposure"]))
            if not np.isnan(unit["exposure_extrapolated"]):
                points.append(point("extrapolated_by_epoch", series, params, unit["epoch"], unit["exposure_extrapolated"]))
    for (variant, epoch), group in frame.groupby(["variant", "epoch"], sort=False):
        points.append(point("loss_by_epoch", variant, {}, epoch, group["validation_loss"].mean()))
    last = at_last(frame)
    points += _query_points(last, extractions)
    for unit in last.to_dict("records"):
        params = {"canary": int(unit["canary"]), "seed": int(unit["seed"])}
        if unit["kind"] != UNSEEN and not (unit["variant"] == recipe.selected and unit["kind"] == INSERTED):
            points.append(point("exposure_by_insertions", unit["variant"], params, unit["insertions"], unit["exposure"]))
    compared = last[(last["insertions"] > 0) & (last["variant"] != recipe.selected)]
    for (variant, seed), group in compared.groupby(["variant", "seed"], sort=False):
        params = {"seed": int(seed)}
        points.append(point("utility", variant, params, group["validation_loss"].mean(), group["exposure"].mean()))
    shown = max(models, key=lambda m: (m.epoch, max(m.insertions)))
    heights, edges = np.histogram(shown.references / UNITS_PER_BIT, bins=recipe.report.histogram_bins, density=True)
    most = int(np.argmax(shown.insertions))
    marked: dict[str, Any] = {
        "canary": shown.canaries[most], "insertions": shown.insertions[most], "variant": shown.variant,
        "log_perplexity": round(float(shown.costs[most] / UNITS_PER_BIT), 2), **_law(shown.references / UNITS_PER_BIT),
    }  # fmt: skip
    for height, left, right in zip(heights, edges[:-1], edges[1:], strict=True):
        points.append(point("perplexity_histogram", "references", marked, (left + right) / 2, height))
    return pa.Table.from_pylist(points, schema=CURVES.arrow)


def _query_points(last: pd.DataFrame, extractions: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield a point (exposure, number of prefixes queried) for each shortest-path search without a known prefix."""
    searched = extractions.to_pandas()
    searched = searched[(searched["search"] == "shortest_path") & (searched["known"] == 0)]
    keys = ["variant", "seed", "canary", "insertions"]
    for row in searched.merge(last, on=keys, how="inner").to_dict("records"):
        params = {"variant": row["variant"], "canary": int(row["canary"]), "seed": int(row["seed"])}
        series = "extracted" if row["extracted"] else "not extracted"
        yield point("queries_by_exposure", series, params, row["exposure"], row["queries"])


def _law(references: NDArray[np.float64]) -> dict[str, float]:
    """Return the fitted parameters, rounded to digits that do not depend on summation order; empty for equal references."""
    law = asdict(fit_skew_normal(references)) if np.ptp(references) else {}
    return {name: round(value, LAW_DIGITS) for name, value in law.items()}
