"""The documents agree with the code."""

import re
from pathlib import Path

import pytest
import yaml
from commands import settings_of

from benchmarks import evidence_pages
from benchmarks.evidence import EVIDENCE, blocks, markdown, write
from benchmarks.evidence_pages import MADE, WORDS, claims, validity
from benchmarks.evidence_pages import pages as made_pages
from benchmarks.validity.__main__ import parts
from flows.reference import pages
from memlib.audits import AUDITS
from memlib.audits.arrangement import resolved, stages_of
from memlib.recipes.files import load_recipe, shipped_recipes, validate

ROOT = Path(__file__).parents[1]
INCLUDED = (
    "counts.md",
    "decided.md",
    "faults-matrix.md",
    "validity-parts.md",
    "validity-words.md",
)  # in pages of docs/evidence
LONGEST = 2600  # words of a page


def test_reference_pages_are_up_to_date() -> None:
    made = dict(pages())
    stale = [path for path, text in made.items() if (ROOT / path).read_text() != text]
    assert stale == [], "run python -m flows.reference"
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "docs/reference").rglob("*.md")} <= made.keys()


def test_every_recipe_is_in_a_tutorial() -> None:
    tutorials = "".join(path.read_text() for path in (ROOT / "docs/tutorials").glob("*.md"))
    for name in shipped_recipes():
        assert f"`{name}`" in tutorials, f"{name}: say in docs/tutorials what this recipe shows"


def hand_written() -> list[Path]:
    """Return the documents that are not made from the code or from the evidence."""
    others = {"_build", "made", "reference", "glossary.md"}
    return [page for page in sorted((ROOT / "docs").rglob("*.md")) if not others & {*page.parts, page.name}]


def test_relative_links_of_documents_exist() -> None:
    made = {ROOT / path: text for path, text in (*pages(), *made_pages())}
    written = {page: page.read_text() for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *hand_written())}
    for page, text in (made | written).items():
        place = ROOT / "docs/evidence" if page.name in INCLUDED else page.parent
        for target, _, anchor in re.findall(r"\]\(((?!http)[^)#]+)(#([^)]*))?\)", text):
            there = (place / target).resolve()
            assert there in made or there.exists(), (page, target)
            if there in made and anchor:
                headings = re.findall(r"^#+ (.*)$", made[there], re.MULTILINE)
                anchors = [re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower())) for heading in headings]
                assert {anchor, re.sub(r"-\d$", "", anchor)} & {*anchors}, (page, anchor)


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


def test_every_claim_has_a_known_outcome_and_a_number_if_decided() -> None:
    for name, paper in claims().items():
        for claim in paper["claims"]:
            assert claim.keys() == {"claim", "where", "paper", "ours", "word", "command"}, (name, claim["claim"])
            assert claim["word"] in WORDS, (name, claim["claim"])
            decided = claim["word"] in ("reproduced", "contradicted")
            assert not decided or re.search(r"\d", claim["ours"]), f"{claim['claim']}: without a number, nothing is decided"


def test_every_shipped_recipe_has_a_result_or_what_it_needs() -> None:
    said = "".join(path.read_text() for path in [*EVIDENCE.glob("results/*.yaml"), EVIDENCE / "recipes_not_run.yaml"])
    missing = [name for name in shipped_recipes() if not re.search(rf"\b{name}\b", said)]
    assert not missing, "say in evidence/results what was run, or in evidence/recipes_not_run.yaml what running it needs"


def test_recipes_of_claims_exist() -> None:
    for path in EVIDENCE.glob("claims/*.yaml"):
        for name in re.findall(r"--recipe ([\w-]+)", path.read_text()):
            assert name in shipped_recipes(), name


def test_records_of_commands_are_read_and_written_without_loss(tmp_path: Path) -> None:
    for page in ("results-exposure.md", "validity-gate.md", "reliability.md"):
        text = dict(made_pages()).get(MADE / page, "")
        shown = list(blocks(text.splitlines()))
        assert list(blocks(markdown(shown))) == shown
    write(tmp_path / "a.yaml", {"part": "a", "shown": shown})
    (tmp_path / "a.yaml").write_text((tmp_path / "a.yaml").read_text() + "remark: by hand\n")
    write(tmp_path / "a.yaml", {"part": "a", "shown": shown[:1]})
    assert yaml.safe_load((tmp_path / "a.yaml").read_text()) == {"part": "a", "shown": shown[:1], "remark": "by hand"}


def test_every_part_of_the_validity_study_has_its_record_and_its_page() -> None:
    listed = dict(made_pages())[MADE / "validity-parts.md"]
    for name in validity():
        assert f"[{name}]" in listed, "add the beginning of its name to PARTS of benchmarks/evidence_pages.py"
    assert set(validity()) <= set(parts())


def test_every_word_of_every_audit_has_a_rate_or_a_reason() -> None:
    listed = dict(made_pages())[MADE / "validity-words.md"].splitlines()[2:]  # without the heading
    assert len(listed) > 10
    assert all(all(cell.strip() for cell in line.strip("|").split("|")) for line in listed if line)


def test_rates_of_a_table_are_those_of_todays_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["a", "3 of 10 = 0.300 (...)", "9 of 10"], ["b, before", "8 of 10 = 0.800", ""], ["c", "1 of 20 = 0.050", ""]]
    shown = [{"text": "x"}, {"table": {"columns": ["kind", "shown", "shown before"], "rows": rows}}]
    monkeypatch.setattr(evidence_pages, "validity", lambda: {"part": {"shown": shown}})
    assert evidence_pages.rates_of({"part": "part", "columns": "shown"}) == [(3, 10), (1, 20)]
    assert evidence_pages.rates_of({"part": "part", "columns": "shown", "rows": "^c"}) == [(1, 20)]
    with pytest.raises(AssertionError, match="no rate"):
        evidence_pages.rates_of({"part": "part", "columns": "shown", "within": "other"})


def test_pages_written_by_hand_are_short_and_do_not_repeat_one_another() -> None:
    """Evidence is data; a run of twelve words stands in one page."""
    found: dict[tuple[str, ...], Path] = {}
    for page in hand_written():
        text = re.sub(r"```.*?```|<!--.*?-->", " ", page.read_text(), flags=re.DOTALL)
        words = re.findall(r"[\w'-]+", text.lower())
        assert len(words) <= LONGEST, f"{page}: {len(words)} words"
        for start in range(len(words) - 11):
            run = tuple(words[start : start + 12])
            assert found.setdefault(run, page) == page, f"{page} and {found[run]}: {' '.join(run)}"


def test_every_column_and_key_of_the_reference_has_a_description() -> None:
    for path, text in pages():
        assert "|  |\n" not in text, path
