"""A few damaged files of every kind in each test run; `make fuzz` reads twenty thousand, and files of a store."""

from pathlib import Path

import pytest
from fuzz import LIMITS, attempt, mutant, recipes
from readers import of_data, of_models, of_recipes

MUTANTS = 12


def test_mutated_files_are_accepted_or_refused_by_every_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (LIMITS | {"XDG_CACHE_HOME": str(tmp_path / "cache")}).items():
        monkeypatch.setenv(name, value)
    readers = [*of_data(tmp_path / "data"), *of_models(tmp_path / "models"), *of_recipes(tmp_path / "recipes", recipes())]
    for reader in readers:
        for place, content in enumerate(reader.files):
            reader.read(place, content)
        for number in range(MUTANTS):
            assert attempt(reader, *mutant(reader, number, seed=1)) in ("accepted", "refused"), (reader.name, number)
