"""The documents say what the code does."""

import re
from pathlib import Path

import pytest

from flows.recipes import load_recipe, shipped_recipes, validate
from flows.reference import pages
from memlib.audits import AUDITS, audit_of
from memlib.specs import Resources

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("path", "text"), pages())
def test_reference_pages_are_up_to_date(path: str, text: str) -> None:
    assert (ROOT / path).read_text() == text, "run python -m flows.reference"


def test_every_recipe_and_document_is_named_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in shipped_recipes():
        assert name in readme, f"{name}: say in README.md what this recipe shows"
    for path in re.findall(r"\]\(((?!http)[^)#]+)\)", readme):
        assert (ROOT / path).exists(), path


def test_every_audit_is_broken_in_every_way() -> None:
    matrix = (ROOT / "tests/end_to_end/faults.py").read_text()
    for name, audit in AUDITS.items():
        assert audit.holds_others or f'"{name}": ' in matrix, (
            f"{name}: give RECIPES of tests/end_to_end/faults.py a tiny recipe"
        )


def test_the_settings_of_the_readme_exist() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"memlib run (\S+) --recipe (\S+)((?: +(?:\\\n *)?--\S+ \S+)*)", readme)
    assert len(commands) >= 6
    for audit, recipe, rest in commands:
        if recipe in shipped_recipes():
            content, _ = load_recipe(recipe, re.findall(r"--set (\S+)", rest))
            validate(AUDITS[audit].recipe, content)


@pytest.mark.parametrize("name", shipped_recipes())
def test_every_shipped_recipe_is_valid_as_it_stands(name: str) -> None:
    content, machines = load_recipe(name)
    spec = validate(AUDITS[audit_of(content["audit"])].recipe, content)
    validate(Resources, machines)
    if content["audit"] == "unique_feature" and content.get("variants"):
        assert len(spec.cells) >= len(content["variants"])  # every variant is a recipe


def test_every_column_and_key_has_a_meaning() -> None:
    for path, text in pages():
        assert "|  |\n" not in text, path
