"""The share excess of each pair of models: its mean is the headline's value, whatever the design."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.validity.gate import RECIPE
from memlib.audits import AUDITS
from memlib.audits.deja_vu.answers import trainings
from memlib.audits.deja_vu.findings import summarize
from memlib.audits.deja_vu.scores import Decoding, score
from memlib.findings import Findings

PAIRS = 3


def units(*, groups: bool, uneven: bool) -> pa.Table:
    """Return random answers of three pairs about the same images, the classes unevenly drawn if asked for."""
    rng, found = np.random.default_rng(0), []
    shares = {"A": [0.5, 0.3, 0.2], "B": [0.2, 0.3, 0.5]} if uneven else {}
    for direction in ("A", "B"):
        labels = rng.choice(3, size=30, p=shares[direction]) if uneven else np.repeat(np.arange(3), 10)
        names = [f"{direction}{place:02}" for place in range(len(labels))]
        own = [f"{direction} {label} {place % 4}" for place, label in enumerate(labels)] if groups else None
        for pair in range(PAIRS):
            votes = [
                np.where(rng.random(30) < right, labels, (labels + 1) % 3)[:, None].repeat(5, axis=1) for right in (0.7, 0.4)
            ]
            found.append(Decoding(direction, pair, "last", 5, "maximal", names, labels, votes[0], votes[1], own))  # type: ignore[arg-type]
    return score(found, ["cat", "dog", "hen"], RECIPE.decode)


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("alone", [False, True])
def test_values_by_pair_average_to_the_headline(groups: bool, uneven: bool, alone: bool) -> None:
    content: dict[str, Any] = RECIPE.model_dump(mode="json") | {"reference": {"kind": "network"} if alone else None}
    answers = units(groups=groups, uneven=uneven)
    config = RECIPE.decode.model_copy(update={"replicates": 100, "permutations": 100})
    summary = Findings.read(summarize(answers, config, num_classes=3, reference="network" if alone else None))
    run: Any = SimpleNamespace(units=answers, recipe=content)
    found = trainings(run, summary.head)
    assert found is not None
    assert found.values.mean() == pytest.approx(summary.head.value, abs=1e-12)
    assert (len(found.values), len(set(np.round(found.values, 9)))) == (PAIRS, PAIRS)
    assert trainings(run, summary.first("share_excess", direction="A")) is None
    assert trainings(run, summary.first("deja_vu_score", direction="both")) is None


def test_only_pairs_that_memlib_trains_are_planned_trainings() -> None:
    plan = AUDITS["deja-vu"].planned_trainings
    assert plan(RECIPE.model_copy(update={"pairs": 4})) == 4
    assert plan(SimpleNamespace(encoders=(1, 2), num_pairs=2)) == 0
