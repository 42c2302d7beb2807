"""The benchmark of large audits: its recipes are valid, and its exponents are those of known laws."""

from pathlib import Path

import pytest

from benchmarks import larger
from memlib.audits import AUDITS
from memlib.recipes.files import validate


@pytest.mark.parametrize("name", larger.CASES)
def test_recipes_are_valid(name: str, tmp_path: Path) -> None:
    recipe = larger.CASES[name].recipe(400, tmp_path)
    assert validate(AUDITS[recipe["audit"].replace("_", "-")].recipe, recipe).title == recipe["title"]


def test_exponents_are_those_of_notable_stages_and_of_all() -> None:
    half, whole = {"linear": 1.0, "square": 1.0, "fast": 0.01}, {"linear": 2.0, "square": 4.0, "fast": 0.5}
    found = larger.exponents([100, 200], [half, whole])
    assert set(found) == {"linear", "square", "all"}
    assert found["linear"] == pytest.approx(1.0)
    assert found["square"] == pytest.approx(2.0)
    assert 1.0 < found["all"] < 2.0
