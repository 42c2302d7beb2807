"""Odd recipes, always the same, in each test run; `make fuzz` plans many more."""

from pathlib import Path

import pytest
from semantic import PLANNED, REFUSED, fuzz

RECIPES = 30


@pytest.mark.long
def test_random_recipes_are_planned_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMLIB_CODE", "")
    seen = fuzz(tmp_path, RECIPES)
    assert seen[PLANNED] > RECIPES / 20  # else the recipes would test nothing but the schema
    assert seen[REFUSED] > RECIPES / 20
