"""Decisions that the feature flips: shares counted by hand, the null of the test, a plant."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits.unique_feature.flips import flip_rows
from memlib.audits.unique_feature.recipe import FLIPS, Config
from memlib.audits.unique_feature.report.tables import flips_section
from memlib.audits.unique_feature.scoring import Net, Shown, calibrate, flips, unit
from memlib.audits.unique_feature.tables import UNITS, with_column
from memlib.findings import Finding, settle
from tests.assignments import assert_exact

CONFIG = Config(outputs=("probability",), replicates=100, permutations=499)


def scores_of(*predicted: list[int]) -> np.ndarray:
    """(num_nets, num_examples, 3) class scores that predict these classes."""
    return np.stack([np.eye(3)[classes] for classes in predicted])


def test_shares_of_flipped_decisions_are_counted_by_hand() -> None:
    """Label 1: of the four training examples of classes 0 and 2, one flips in net 0 and three in net 1."""
    by_label = {
        0: (scores_of([0, 0], [0, 0]), scores_of([1, 0], [1, 1])),
        1: (scores_of([0, 1], [0, 0]), scores_of([1, 1], [1, 1])),  # examples of the canary's own class do not count
        2: (scores_of([1, 2], [2, 2]), scores_of([1, 2], [1, 0])),  # the first is called 1 without the feature in net 0
    }
    other = scores_of([0, 1, 2, 0], [2, 2, 2, 2]), scores_of([1, 0, 1, 0], [2, 2, 2, 1])
    nets = [Net(0, 0, False, 5, 1), Net(0, 0, True, 5, 1)]
    shown = Shown([1], by_label, other, {}, [], np.array([0, 1, 2, 2]))
    rows = {(row["output"], row["control"]): row for row in flips(nets, shown).to_pylist()}
    assert {key: row["value"] for key, row in rows.items()} == {
        ("training_examples", False): 1 / 4,
        ("training_examples", True): 3 / 4,
        ("held_out_examples", False): 2 / 3,
        ("held_out_examples", True): 1 / 3,
    }
    training = rows["training_examples", False]
    assert (training["with_feature"], training["without_feature"], training["n"]) == (2 / 4, 1 / 4, 4)
    assert training["own_label"]
    probed = Shown([1], by_label, other, {}, [])
    assert {row["output"] for row in flips(nets, probed).to_pylist()} == {"training_examples"}
    assert flips(nets, Shown([1], {1: by_label[1]}, other, {}, [])).num_rows == 0  # no other class


def units_of(canary: Any, control: Any, *, variant: str = "") -> pa.Table:
    rows = []
    for is_control, values in ((False, canary), (True, control)):
        for i, value in enumerate(values):
            net = Net(i, 0, is_control, i, 1)
            rows.append(unit(net, FLIPS, "training_examples", (float(value), 1.0), 1, (float(value), 0.0), 100))
    table = calibrate(pa.Table.from_pylist(rows, schema=UNITS.arrow))
    for name, value in (("variant", variant), ("data_seed", 0), ("example_id", "x")):
        table = with_column(table, name, [value] * table.num_rows)
    return table


def found_in(*units: pa.Table) -> list[Finding]:
    return list(flip_rows(pa.concat_tables(units), CONFIG))


def test_planted_flips_are_found_and_given_beside_both_groups() -> None:
    rng = np.random.default_rng(0)
    control = rng.uniform(0, 0.1, 20)
    difference, canary, controls = found_in(units_of(control + 0.3, control))
    assert difference.value == pytest.approx(0.3)
    assert (difference.family, difference.params["pairs"]) == (FLIPS, 20)
    assert difference.p_value is not None
    assert difference.p_value <= 0.01
    assert difference.interval is not None
    assert canary.value - controls.value == pytest.approx(0.3)
    assert canary.interval is not None
    assert canary.interval.low < canary.value < (canary.interval.high or 0)


@pytest.mark.parametrize("apart", [[0.01, 0.02, 0.04, 0.08, 0.16], [0.1, 0.1, 0.1, 0.2, 0.2], [0.0, 0.1, 0.1, 0.1, 0.3]])
def test_p_values_of_flips_are_exact_for_every_exchange_of_canaries_and_controls(apart: list[float]) -> None:
    """Any net of a seed reacts to the feature; without memory each of the two is the canary with equal probability."""
    reaction, p_values = np.array([0.2, 0.3, 0.05, 0.25, 0.4]), []
    for signs in itertools.product((0, 1), repeat=5):
        more = np.array(apart)
        difference = found_in(units_of(reaction + more * signs, reaction + more * (1 - np.array(signs))))[0]
        assert difference.p_value is not None
        p_values.append(difference.p_value)
    assert_exact(p_values)


def test_no_flip_at_all_still_has_an_interval_and_a_power() -> None:
    difference, *_ = found_in(units_of(np.zeros(20), np.zeros(20)))
    assert (difference.value, difference.p_value) == (0, 1)
    assert difference.interval is not None
    assert difference.low is not None
    assert difference.high is not None
    assert difference.low < 0 < difference.high
    assert difference.detectable is not None
    assert difference.detectable > 0.01


def test_flips_of_variants_form_one_family_and_are_on_the_page() -> None:
    rng = np.random.default_rng(0)
    parts = [units_of(rng.uniform(0, 0.1, 8), rng.uniform(0, 0.1, 8), variant=name) for name in ("a", "b")]
    settled = settle(found_in(*parts), alpha=0.05)
    tests = settled.tests(FLIPS)
    assert [row.params["variant"] for row in tests] == ["a", "b"]
    assert all((row.p_adjusted or 0) >= (row.p_value or 0) for row in tests)
    section = flips_section(settled)
    assert section is not None
    assert "training examples" in str(section)
    assert "%" in str(section)
