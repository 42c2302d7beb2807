"""Memory by epoch and units of the last hidden layer, against numbers solved by hand, a plant and a null."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits.unique_feature.characterization import epoch_rows, latent_rows
from memlib.audits.unique_feature.curves import latent_curves
from memlib.audits.unique_feature.recipe import Config
from memlib.audits.unique_feature.report.figures import _latent_table
from memlib.audits.unique_feature.scoring import Net
from memlib.audits.unique_feature.stages import _latent_shares
from memlib.findings import Findings
from tests.chance import most_of

CONFIG = Config(replicates=200)


def net(seed: int, control: bool, values: list[float], best: int) -> list[dict[str, object]]:
    return [
        {
            "variant": "", "data_seed": 0, "net": seed, "canary": seed, "control": control, "seed": seed, "label": 0,
            "epoch": epoch, "best_epoch": best, "output": "probability", "value": value, "published_p": 0.5,
        }
        for epoch, value in enumerate(values, start=1)
    ]  # fmt: skip


def test_memory_by_epoch_is_the_mean_difference_within_pairs_and_keeps_stopped_nets() -> None:
    rows = [
        *net(0, False, [0.1, 0.5, 0.9], 3), *net(0, True, [0.1, 0.2, 0.3], 3),
        *net(1, False, [0.3, 0.7, 0.9], 3), *net(1, True, [0.1, 0.4], 1),  # stopped after epoch 2; that of epoch 1 was kept
    ]  # fmt: skip
    found = {row.params["epoch"]: row for row in epoch_rows(pa.Table.from_pylist(rows), CONFIG)}
    assert {epoch: round(row.value, 6) for epoch, row in found.items()} == {
        1: round((0.0 + 0.2) / 2, 6), 2: round((0.3 + 0.3) / 2, 6), 3: round((0.6 + 0.8) / 2, 6)
    }  # fmt: skip
    assert found[1].interval is not None
    assert found[1].interval.over == "canaries"


def test_memory_by_epoch_is_not_given_for_a_single_seed() -> None:
    rows = [*net(0, False, [0.1], 1), *net(0, True, [0.0], 1)]
    assert not list(epoch_rows(pa.Table.from_pylist(rows), CONFIG))


def shares(seed: int, nets: int = 40, units: int = 16) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.random.default_rng(seed).uniform(0, 0.02, (nets, units))


def test_a_unit_that_responds_to_the_feature_is_found_and_estimated_on_other_canaries() -> None:
    feature, random, control = shares(0), shares(1), shares(2, nets=5)
    feature[:, 11] += 0.3
    rows = {row.params["group"]: row for row in latent_rows("", feature, random, control, range(40), CONFIG)}
    assert {row.params["unit"] for row in rows.values()} == {11}
    assert rows["feature"].n == 20
    assert rows["feature"].value == pytest.approx(feature[20:, 11].mean())
    for group in ("feature - random", "feature - control"):
        assert rows[group].value == pytest.approx(0.3, abs=0.01)


def test_intervals_of_an_unresponsive_unit_cover_zero() -> None:
    missed = 0
    for seed in range(100):
        rows = latent_rows("", shares(3 * seed), shares(3 * seed + 1), shares(3 * seed + 2, nets=400), range(40), CONFIG)
        ends = {row.params["group"]: row.interval for row in rows}["feature - random"]
        missed += ends is None or ends.high is None or not ends.low <= 0 <= ends.high
    assert missed <= most_of(100, 0.05)


def cell_of(*nets: Net) -> Any:
    """Nets, each a chunk of its own, whose units are all excited in a share that is the net's number, or its negative."""
    latent = [np.full((2, 1, 3), float(-net.number if net.control else net.number)) for net in nets]
    return SimpleNamespace(
        nets=[[net] for net in nets], scores=[SimpleNamespace(content=SimpleNamespace(latent=x)) for x in latent]
    )


def test_units_are_compared_only_with_controls_of_the_same_seed() -> None:
    canaries = [Net(number, number, False, 7, 1) for number in range(4)]
    controls = [Net(0, 0, True, 8, 1), Net(1, 1, True, 7, 1)]
    found = _latent_shares(cell_of(*canaries, *controls))
    assert found["feature"][:, 0].tolist() == [0, 1, 2, 3]
    assert found["control"][:, 0].tolist() == [-1]
    none = _latent_shares(cell_of(*canaries, controls[0]))
    rows = list(latent_rows("", **none, canaries=range(4), config=CONFIG))
    assert [row.params["group"] for row in rows] == ["feature", "feature - random"]
    assert {point["series"] for point in latent_curves("", none)} == {"feature", "random"}


def test_the_table_of_units_gives_the_number_of_controls() -> None:
    rows = list(latent_rows("", shares(0), shares(1), shares(2, nets=5), range(40), CONFIG))
    (table,) = _latent_table(Findings(rows))
    assert {row[table.headings.index("controls of this seed")] for row in table.rows} == {"5"}
