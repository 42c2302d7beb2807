"""Pages of the evidence: `make docs` writes them below docs/evidence/made from the files of evidence/; nothing is typed there.

Tables of many rows have a box that shows the rows with the words typed into it.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.evidence import EVIDENCE, Record, markdown

MADE = Path("docs/evidence/made")
WORDS = ("reproduced", "contradicted", "too small to tell", "other conditions", "not run")
PAPERS = ("carlini-2019", "liu-2020", "hartley-2022", "hartley-2023", "meehan-2023")
AUDITS = {
    "deja-vu": "Déjà vu",
    "captions": "Captions",
    "unique-feature": "Unique features and self-influence",
    "forgetting": "Forgetting",
    "membership": "Membership",
    "exposure": "Exposure",
}
PARTS = {  # beginnings of the names of parts of `make validity`, by page
    "deja-vu": ("deja-vu", "persons", "reconstruction", "smoke", "declared-sets"),
    "captions": ("captions", "declared-captions"),
    "unique-feature": ("unique-feature", "own-model"),
    "forgetting": ("forgetting", "declared-data-sets"),
    "membership": ("membership", "declared-members", "declared-coins", "declared-documents", "documents-attacks", "look"),
    "exposure": ("exposure",),
    "all": ("words", "gate", "sweep-trends", "stated-power", "dossier", "canaries", "served"),
}
FRONT = "---\nnosearch: true\norphan: true\n---\n"  # a search for a common word should find what explains it
FORMER = re.compile(r"\bbefore\b|unadjusted|pooled")  # rates of former rules, which stand beside today's
FILTER = '```{raw} html\n<input class="filter" type="search" placeholder="rows with these words" aria-label="rows with these words">\n```'


@cache
def claims() -> dict[str, Record]:
    """Return the claims of each paper, with the paper's name, title and the conditions of our runs; numbers are filled in."""
    papers = {name: _read(EVIDENCE / "claims" / f"{name}.yaml") for name in PAPERS}
    for paper in papers.values():
        for name, number in paper.get("numbers", {}).items():
            for claim in paper["claims"]:
                claim["ours"] = claim["ours"].replace(f"{{{name}}}", _in_words(number))
    return papers


def _in_words(number: Mapping[str, Any]) -> str:
    """Return a number that a command has read, with its interval: three decimals, of small numbers two digits."""
    size = abs(number["value"])
    decimals = 3 if size == 0 or size >= 0.01 else 1 - math.floor(math.log10(size))
    found = [
        f"{value:.{decimals}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{decimals}f}"
        for value in (number["value"], *number["interval"])
    ]
    return found[0] if len(found) == 1 else f"{found[0]} ({found[1]} to {found[2]})"


def results() -> dict[str, list[Record]]:
    """Return the results on each audit, in the order of its page."""
    return {audit: _read(EVIDENCE / "results" / f"{audit}.yaml") for audit in AUDITS}


@cache
def validity() -> dict[str, Record]:
    """Return the parts of `make validity` by name."""
    return {path.stem: _read(path) for path in sorted((EVIDENCE / "validity").glob("*.yaml"))}


def pages() -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of each page; paths are relative to the root of the project."""
    yield MADE / "counts.md", _counts()
    yield MADE / "decided.md", _decided()
    yield MADE / "claims.md", _joined("Claims of the papers", _claims())
    for audit, records in results().items():
        yield MADE / f"results-{audit}.md", _joined(f"Results: {AUDITS[audit]}", _results(records))
    yield MADE / "not-run.md", _joined("Recipes without results", _not_run())
    yield MADE / "validity-parts.md", "\n".join(_parts())
    yield MADE / "validity-words.md", "\n".join(_words())
    for page, names in PARTS.items():
        parts = {name: part for name, part in validity().items() if name.startswith(names)}
        title = f"Validity: {AUDITS.get(page, 'all audits')}"
        yield MADE / f"validity-{page}.md", _joined(title, _validity(parts))
    yield MADE / "faults-matrix.md", "\n".join(_matrix())
    yield MADE / "faults.md", _joined("Every stage of every audit, broken", _faults())
    for name, title in (("reliability", "Failures, observed"), ("performance", "Speed and scale, measured")):
        yield MADE / f"{name}.md", _joined(title, _measured(_read(EVIDENCE / f"{name}.yaml")))


def write_pages(root: Path) -> None:
    """Write all pages below the root of the project."""
    for path, text in pages():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        if not (root / path).exists() or (root / path).read_text() != text:  # Sphinx reads what has changed
            (root / path).write_text(text)


def _read(path: Path) -> Any:
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _joined(title: str, lines: Iterable[str]) -> str:
    return "\n".join([FRONT, f"# {title}", "", *lines]) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [*markdown([{"table": {"columns": list(columns), "rows": [list(row) for row in rows]}}])]


def _anchor(title: str) -> str:
    """Return a title's anchor, as MyST makes it."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.lower()))


def _counts() -> str:
    rows = [
        [paper["paper"], *(str(sum(claim["word"] == word for claim in paper["claims"])) for word in WORDS)]
        for paper in claims().values()
    ]
    return "\n".join(_table(["paper", *WORDS], rows))


def _decided() -> str:
    """Return the table of the claims that our runs decide."""
    rows = [
        [f"{paper['paper']}, {claim['where']}", claim["claim"], claim["paper"], claim["ours"], claim["word"]]
        for paper in claims().values()
        for claim in paper["claims"]
        if claim["word"] in ("reproduced", "contradicted")
    ]
    return "\n".join([FILTER, "", *_table(("paper", "claim", "theirs", "ours", "word"), rows)])


def _claims() -> Iterator[str]:
    yield FILTER
    yield ""
    for paper in claims().values():
        yield f"## {paper['paper']}: {paper['title']}"
        yield ""
        yield paper["conditions"]
        yield ""
        rows = (
            (
                f"{claim['claim']}<br>*{claim['where']}*",
                claim["paper"],
                f"{claim['ours']}<br>{claim['command']}",
                claim["word"],
            )
            for claim in paper["claims"]
        )
        yield from _table(("claim", "paper", "ours, by which command", "word"), rows)


def _results(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        yield f"## {record['title']}"
        yield ""
        if "command" in record:
            yield from ("```sh", record["command"], "```", "")
        if record.get("former_words"):
            yield "Older than today's verdicts: values, intervals of single rows and unadjusted p-values are valid, words are not.\n"
        yield from markdown(record["shown"])
        if decided := list(dict.fromkeys(_claims_of(record))):
            yield f"What the papers claim about it: {len(decided)} rows of [claims](claims.md) name this command.\n"


def _claims_of(record: Record) -> Iterator[str]:
    names = re.findall(r"--recipe ([\w-]+)", record.get("command", ""))
    for paper in claims().values():
        for claim in paper["claims"]:
            if any(re.search(rf"--recipe {name}\b", claim["command"]) for name in names):
                yield claim["claim"]


def _not_run() -> Iterator[str]:
    found = _read(EVIDENCE / "recipes_not_run.yaml")
    yield found["note"]
    yield ""
    yield from _table(("recipe", "needs"), ((row["recipes"], row["needs"]) for row in found["recipes"]))


def _parts() -> Iterator[str]:
    """Yield the table of all parts, each with its question, a link to what it printed, and its rates by the rule."""
    rows = []
    for page, names in PARTS.items():
        for name, part in validity().items():
            if name.startswith(names):
                rows.append((f"[{name}](made/validity-{page}.md#{_anchor(name)})", part["question"], _ruled(part)))
    yield from _table(("part", "what it asks", "rates of errors by the rule"), rows)


def _words() -> Iterator[str]:
    """Yield the table of words by audits: the worst rate of each part that stands behind a word, or a sentence."""
    said = _read(EVIDENCE / "words.yaml")
    columns = said["columns"]
    rows = [
        [audit, *(cells[name] if isinstance(cells[name], str) else _cell(cells[name], of["worst"]) for name, of in columns.items())]
        for audit, cells in said["audits"].items()
    ]  # fmt: skip
    yield from _table(["audit", *(of["title"] for of in columns.values())], rows)


def _cell(references: Sequence[Record], worst: str) -> str:
    return "; ".join(_rate(each, "largest" if each.get("wrong") else worst) for each in references)


def _rate(reference: Record, worst: str) -> str:
    """Return the worst of the rates that a reference names, with its numbers and a link to the part."""
    name = reference["part"]
    found = sorted(rates_of(reference), key=lambda rate: rate[0] / rate[1])
    hits, count = found[-1 if worst == "largest" else 0]
    (page,) = [page for page, names in PARTS.items() if name.startswith(names)]
    several = f", {len(found)} rates" if len(found) > 1 else ""
    bound = "" if not several else "at most " if worst == "largest" else "at least "
    return f"{bound}{hits / count:.3f} ({hits:,} of {count:,}{several}) [{name}](made/validity-{page}.md#{_anchor(name)})"


def rates_of(reference: Record) -> list[tuple[int, int]]:
    """Return the hits and counts of all rates that a reference names: those of today's rules, at least one.

    Args:
        reference: `part`, and patterns of `columns` (whole names), `rows` (cells joined by " / ") and `within` (first headings).
    """
    found = []
    for block in validity()[reference["part"]]["shown"]:
        table = block.get("table", {"columns": [""], "rows": []})
        head = str(table["columns"][0])
        chosen = [place for place, name in enumerate(table["columns"]) if re.fullmatch(reference["columns"], str(name))]
        for row in table["rows"]:
            is_today = not FORMER.search(f"{head} {row[0]}")
            if (
                is_today
                and re.search(reference.get("rows", ""), " / ".join(map(str, row)))
                and re.search(reference.get("within", ""), head)
            ):
                cells = [re.match(r"(\d+) of (\d+)\b", str(row[place])) for place in chosen]
                found += [(int(cell[1]), int(cell[2])) for cell in cells if cell]
    assert found, f"no rate of {reference}"
    return found


def _ruled(part: Record) -> str:
    """Return how many rates hold, are open, or fail, those of former rules left out."""
    words: Counter[str] = Counter()
    for block in part["shown"]:
        table = block.get("table", {"columns": [], "rows": []})
        if table["columns"] and str(table["columns"][-1]).endswith("by the rule"):
            name = table["columns"][0]
            words.update(str(row[-1]) for row in table["rows"] if row[-1] and not FORMER.search(f"{name} {row[0]}"))
    return ", ".join(f"{count} {word.removesuffix('s')}" for word, count in words.most_common()) or "none"


def _validity(parts: Mapping[str, Record]) -> Iterator[str]:
    yield FILTER
    yield ""
    for name, part in parts.items():
        yield f"## {name}"
        yield ""
        yield part["question"]
        yield ""
        yield f"`{part['command']}`, {part['made']}"
        yield ""
        yield from markdown(part["shown"])
        if "remark" in part:
            yield from (part["remark"], "")


@cache
def faults() -> list[Record]:
    """Return the rows of the fault matrix."""
    return [json.loads(line) for line in (EVIDENCE / "faults.jsonl").read_text().splitlines()]


def _matrix() -> Iterator[str]:
    """Yield the number of rows as promised by audit and fault, of all rows that there are."""
    kinds = list(dict.fromkeys(row["fault"] for row in faults()))
    rows = []
    for audit in dict.fromkeys(row["audit"] for row in faults()):
        found = [[row for row in faults() if row["audit"] == audit and row["fault"] == kind] for kind in kinds]
        kept = [[row for row in of if row["equal"] and not row["recomputed"]] for of in found]
        rows.append([audit, *(f"{len(good)} of {len(of)}" if of else "" for good, of in zip(kept, found, strict=True))])
    yield from _table(["audit: stages as promised", *kinds], rows)


def _faults() -> Iterator[str]:
    rows = faults()
    yield FILTER
    yield ""
    yield from _table([str(name) for name in rows[0]], ([str(cell) for cell in row.values()] for row in rows))


def _measured(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        yield f"## {record['title']}"
        yield ""
        yield from markdown(record["shown"])
