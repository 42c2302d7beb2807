"""The documents agree with the code."""

import re
from pathlib import Path

from commands import settings_of

from flows.reference import pages
from memlib.audits import AUDITS
from memlib.audits.arrangement import resolved, stages_of
from memlib.recipes.files import load_recipe, shipped_recipes, validate

ROOT = Path(__file__).parents[1]


def test_reference_pages_are_up_to_date() -> None:
    made = dict(pages())
    stale = [path for path, text in made.items() if (ROOT / path).read_text() != text]
    assert stale == [], "run python -m flows.reference"
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "docs/reference").rglob("*.md")} <= made.keys()


def test_every_recipe_is_in_a_tutorial() -> None:
    tutorials = "".join(path.read_text() for path in (ROOT / "docs/tutorials").glob("*.md"))
    for name in shipped_recipes():
        assert f"`{name}`" in tutorials, f"{name}: say in docs/tutorials what this recipe shows"


def test_relative_links_of_documents_exist() -> None:
    written = [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *written):
        for target in re.findall(r"\]\(((?!http)[^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)


def test_every_audit_has_a_recipe_for_fault_injection() -> None:
    matrix = (ROOT / "benchmarks/faults.py").read_text()
    for name, audit in AUDITS.items():
        assert not stages_of(audit) or f'"{name}": ' in matrix, f"{name}: give RECIPES of benchmarks/faults.py a tiny recipe"


def test_commands_in_documents_have_valid_settings() -> None:
    """This includes the directives that shorten runs."""
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


WORDS = ("reproduced", "contradicted", "too small to tell", "other conditions", "not run")


def claims() -> dict[str, list[list[str]]]:
    """Return the rows of docs/claims.md by paper: claim, paper, ours, word, command."""
    papers = re.split(r"^## .*\((.*)\)$", (ROOT / "docs/claims.md").read_text(), flags=re.MULTILINE)[1:]
    tables = zip(papers[::2], papers[1::2], strict=True)
    return {
        paper: [re.split(r" \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("|")][2:]
        for paper, text in tables
    }


def test_every_claim_has_a_known_outcome_and_a_number_if_decided() -> None:
    for paper, rows in claims().items():
        for row in rows:
            assert len(row) == len(("claim", "paper", "ours", "word", "command")), (paper, row[0])
            assert row[3] in WORDS, (paper, row[0])
            decided = row[3] in ("reproduced", "contradicted")
            assert not decided or re.search(r"\d", row[2]), f"{row[0]}: without a number, nothing is decided"


def test_results_count_the_claims() -> None:
    results = (ROOT / "docs/results.md").read_text()
    for paper, rows in claims().items():
        counts = [sum(row[3] == word for row in rows) for word in WORDS]
        assert f"| {paper} | {' | '.join(map(str, counts))} |" in results


def test_every_shipped_recipe_has_a_line_in_results() -> None:
    said = (ROOT / "docs/results.md").read_text()
    missing = [name for name in shipped_recipes() if not re.search(rf"\b{name}\b", said)]
    assert not missing, "say in docs/results.md what was run, or what running it needs"


def test_recipes_of_claims_exist() -> None:
    for name in re.findall(r"--recipe ([\w-]+)", (ROOT / "docs/claims.md").read_text()):
        assert name in shipped_recipes(), name


def test_every_column_and_key_of_the_reference_has_a_description() -> None:
    for path, text in pages():
        assert "|  |\n" not in text, path
