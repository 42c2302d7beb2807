"""Answers to other parts of memlib about a unique-feature audit: memory of each net, and the ranking of canaries.

The face of the audit names them; they load neither scipy nor torch, which are slow to load.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memlib.audits.base import Trainings
from memlib.audits.ranking import EXAMPLE, Ranking
from memlib.audits.unique_feature.recipe import Recipe
from memlib.findings import Finding, Findings
from memlib.pipeline.tables import Tables
from memlib.runs.run import Run

AT_ONE_LABEL = ("m_white", "m_w", "m_kl")  # the maxima of the others are centred by controls that all nets share
SETTING = ("variant", "metric", "output")


def trainings(run: Run, row: Finding) -> Trainings | None:
    """Return the score of each canary net minus that of its control; with several draws of the data, their means by draw.

    None for findings other than the mean of these differences, and for nets that share one seed.
    """
    is_difference = row.params.get("group") == "canary - control" and row.params.get("statistic") == "mean"
    if row.metric not in AT_ONE_LABEL or not is_difference:
        return None
    setting = {name: row.params.get(name, "") for name in SETTING}
    scores = [
        one for one in run.units.to_pylist()
        if one["own_label"] and one["feature"] == "canary" and not one["draw"]
        and all(one[name] == value for name, value in setting.items())
    ]  # fmt: skip
    controls = {(one["data_seed"], one["seed"], one["canary"]): one["value"] for one in scores if one["control"]}
    nets = {(one["data_seed"], one["seed"], one["canary"]): one for one in scores if not one["control"]}
    paired = [key for key in nets if key in controls]
    if len({(draw, seed) for draw, seed, _ in paired}) < len(paired):
        return None
    gains: dict[int, list[float]] = {}
    for key in paired:
        gains.setdefault(key[0], []).append(nets[key]["value"] - controls[key])
    by_draw = [np.array(values) for values in gains.values()]
    values = by_draw[0] if len(by_draw) == 1 else np.array([values.mean() for values in by_draw])
    return Trainings(values, setting, frozenset((key[0], nets[key]["example_id"]) for key in paired))


def planned(recipe: Recipe) -> int:
    """Return the number of draws of the data or, if there is one, of pairs of a net and its control in each variant."""
    if recipe.trained is not None or recipe.nets.same_seed:
        return 0
    if recipe.data_seeds > 1:
        return recipe.data_seeds
    counts = [(cell.recipe.canary.count * cell.recipe.nets.seeds, cell.recipe.nets.controls) for cell in recipe.cells]
    return min(nets if controls is None else min(nets, controls) for nets, controls in counts)


def rankings(tables: Tables, findings: Findings) -> Sequence[Ranking]:
    """Return the examples by the mean of the headline's score over the nets; it has no p-value per example."""
    metric = findings.head.params.get("metric")
    counts = (pc.field("metric") == metric) & pc.field("own_label") & ~pc.field("control") & (pc.field("feature") == "canary")
    units = tables["units"].filter(counts & pc.field("example_id").is_valid())
    if not units.num_rows:
        return []
    by_id = pa.table(units.select(["example_id", "value"])).group_by("example_id").aggregate([("value", "mean")])
    scores = by_id["value_mean"].to_numpy()
    return [Ranking(str(metric), EXAMPLE, by_id["example_id"].to_pylist(), scores, np.ones(len(scores), dtype=bool))]
