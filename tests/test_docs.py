"""The documents agree with the code."""

import re
from pathlib import Path

import pytest
from commands import settings_of

from flows.reference import pages
from memlib.audits import AUDITS
from memlib.audits.arrangement import audit_of, resolved, stages_of
from memlib.recipes.files import load_recipe, shipped_recipes, validate
from memlib.specs import Resources

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("path", "text"), pages())
def test_reference_pages_are_up_to_date(path: str, text: str) -> None:
    assert (ROOT / path).read_text() == text, "run python -m flows.reference"


def test_every_recipe_is_in_a_tutorial() -> None:
    tutorials = "".join(path.read_text() for path in (ROOT / "docs/tutorials").glob("*.md"))
    for name in shipped_recipes():
        assert f"`{name}`" in tutorials, f"{name}: say in docs/tutorials what this recipe shows"


@pytest.mark.parametrize("path", ["README.md", "CONTRIBUTING.md", *map(str, (ROOT / "docs").rglob("*.md"))])
def test_links_of_documents_lead_somewhere(path: str) -> None:
    page = ROOT / path
    if "_build" in page.parts:
        return
    for target in re.findall(r"\]\(((?!http)[^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_audit_is_broken_in_every_way() -> None:
    matrix = (ROOT / "tests/end_to_end/faults.py").read_text()
    for name, audit in AUDITS.items():
        assert not stages_of(audit) or f'"{name}": ' in matrix, (
            f"{name}: give RECIPES of tests/end_to_end/faults.py a tiny recipe"
        )


def test_the_settings_of_the_documents_exist() -> None:
    """In commands, and in the directives that shorten them."""
    count = 0
    for path in (ROOT / "README.md", ROOT / "docs/quick-start.md", *(ROOT / "docs/tutorials").glob("*.md")):
        for directives, block in re.findall(
            r"((?:<!-- docs-test: [^\n]*-->\n)*)```sh\n(.*?)```", path.read_text(), re.DOTALL
        ):
            smaller = [one for text in re.findall(r"docs-test: with ([^\n]*) -->", directives) for one in settings_of(text)]
            for audit, recipe, rest in re.findall(r"memlib run (\S+) --recipe (\S+)((?: +--\S+ \S+)*)", block):
                if recipe in shipped_recipes():
                    content, _ = load_recipe(recipe, [*re.findall(r"--set (\S+)", rest), *smaller])
                    validate(AUDITS[audit].recipe, resolved(AUDITS[audit], content))
                    count += 1
    assert count >= 9


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
