"""Values by training: their mean is the finding's value, and nets that are no independent trainings have none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memlib
from memlib.audits import AUDITS
from memlib.audits.unique_feature.answers import planned, trainings
from memlib.audits.unique_feature.recipe import Recipe
from memlib.findings import Finding, Findings
from memlib.runs.run import Run

MOONS: dict[str, Any] = {
    "audit": "unique_feature",
    "data": {"source": {"kind": "two_moons", "num_examples": 60}},
    "split": {"held_out_per_class": 10},
    "canary": {"feature": {"kind": "scalar", "value": 4}, "label": 1, "count": 2},
    "model": {"architecture": "mlp", "widths": [4]},
    "training": {"objective": {"kind": "supervised"}, "epochs": 2, "batch_size": None, "augment": None},
    "nets": {"seeds": 3},
    "probe": {"kind": "held_out", "count": 10},
    "score": {"replicates": 100, "permutations": 100},
}


def differences(run: Run) -> list[Finding]:
    rows = Findings.read(run.summary).all(group="canary - control", statistic="mean")
    return [row for row in rows if row.metric in ("m_white", "m_w", "m_kl")]


@pytest.mark.parametrize(("changes", "count"), [({}, 6), ({"data_seeds": 3, "canary.count": 1}, 3)])
def test_values_by_training_average_to_the_finding(tmp_path: Path, changes: dict[str, Any], count: int) -> None:
    run = memlib.run(MOONS, store=str(tmp_path), changes=changes, quiet=True)
    rows = differences(run)
    assert len(rows) >= 3
    for row in rows:
        found = trainings(run, row)
        assert found is not None
        assert found.values.mean() == pytest.approx(row.value, abs=1e-12)
        assert len(found.values) == planned(Recipe.model_validate(run.recipe)) == count
        assert np.ptp(found.values) > 0
    whole = Findings.read(run.summary)
    others = [whole.all("m_grey").head, whole.first("m_white", group="canary", statistic="mean")]
    assert [trainings(run, row) for row in others] == [None, None]


def test_nets_with_the_same_seed_are_not_independent_trainings() -> None:
    recipe = Recipe.model_validate(MOONS | {"nets": {"seeds": 1, "same_seed": True}})
    assert AUDITS["unique-feature"].planned_trainings(recipe) == 0
    assert planned(Recipe.model_validate(MOONS | {"nets": {"seeds": 3, "controls": 4}})) == 4
