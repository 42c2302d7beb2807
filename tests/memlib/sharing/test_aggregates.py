"""Names of findings are short, distinct and stable; recipes leave the store without locations."""

from typing import Any

import pytest

from memlib.findings import Findings, estimate
from memlib.sharing.aggregates import names_of, shared_recipe


def named(*params: dict[str, Any]) -> list[str]:
    return names_of(Findings(estimate("m", one, 0.5, n=9) for one in params))


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ([{"k": 10}], ["m"]),  # one finding needs no setting
        ([{"k": 10, "side": "A"}, {"k": 10, "side": "B"}], ["m A", "m B"]),
        ([{"attack": "lira", "largest": 0.71}, {"attack": "loss", "largest": 0.62}], ["m lira", "m loss"]),  # not by a result
        ([{"k": 5}, {"k": 10}, {"k": 10, "top": 0.1}], ["m k 5", "m k 10", "m k 10 top 0.1"]),
        ([{"k": 5}, {"k": 5}, {"k": 5}], ["m", "m #2", "m #3"]),
    ],
)
def test_findings_of_a_metric_are_named_by_the_fewest_params(params: list[dict[str, Any]], names: list[str]) -> None:
    assert named(*params) == names


def test_a_sweep_shares_no_location_of_its_cells() -> None:
    recipe = {
        "audit": "sweep", "title": "t", "recipe": "/home/ann/base.yaml", "set": {"data.source.path": "/home/ann/x", "training.epochs": 3},
        "grid": {"data.source.path": ["/home/ann/1", "/home/ann/2"], "training.epochs": [1, 2]},
        "cells": [{"name": "a", "recipe": {"title": "Ann", "report": {"examples": 9}, "split": {"sets": "/home/ann/s"}, "model": "ann.code:net"}}],
    }  # fmt: skip
    assert shared_recipe(recipe) == {
        "audit": "sweep", "set.training.epochs": "3", "grid.training.epochs": "[1, 2]", "cells.0.name": "a",
    }  # fmt: skip
