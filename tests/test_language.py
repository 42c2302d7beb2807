"""The prose of code and documents is idiomatic English in one spelling; CONTRIBUTING.md has the rule."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = sorted(
    path
    for folder in ("memlib", "tasks", "flows", "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if path != Path(__file__)  # which names offences
)
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [path for path in DOCUMENTS if not {"_build", "made"} & {*path.parts}]

OPENINGS = re.compile(r"(?:What|Who|Whose|Which|How|Whether|Where)\b")
"""A docstring says what a function does, by a verb, or what a class is, by a noun."""
THINGS = "row|line|file|folder|part|model|image|epoch|seed|process|stage|value|list|page|recipe|run|batch|child|canary|name"
RIDDLES = re.compile(
    rf"\b(?:anew|nobody's|one's own|(?:was|were|is|are) told(?! (?:apart|to\b))|(?:an?|one) (?:{THINGS}) an? (?:{THINGS}|metric|score|setting|class|layer))\b",
    re.IGNORECASE,
)
AMERICAN = re.compile(
    r"\b(?:behaviors?|colors?|colored|favor\w*|grays?|centers?|centered|neighbors?|neighboring|labeled|labeling|modeling|modeled|"
    r"(?:memor|random|regular|normal|summar|initial|general|organ|optim|standard|quant|util|penal)is(?:e|es|ed|ing|ation|er|ers))\b",
    re.IGNORECASE,
)
"""American forms, and -ise where the house writes -ize."""
VAGUE = re.compile(
    r"^what | (?:is|are) said\b|\bsays so\b| (?:is|are) none\b| (?:is|are) no | (?:is|are) a line\b| in a line\b|\bmade again\b|"
    r"\bnot there\b|\bthat is there\b|\bones own\b|\bone has\b|\bown models?\b|\bsays? one thing\b|\bmake no sense\b|"
    r"^(?:\w+ )?(?:by hand|the command|intervals|curves|outcomes)$"
)
"""Names of tests that do not state what is tested and expected."""
TITLES = ("Neural networks memorise personal information", "Unintended memorisation of unique features")
CODE_MARKS = re.compile(r"`[^`]*`|\{[^}]*\}|\S*[_/.(=:]\S*|```.*?```", re.DOTALL)  # what stands in prose and is none


def prose(text: str) -> str:
    """Return text without code, paths, names and titles of papers."""
    for title in TITLES:
        text = text.replace(title, "")
    return CODE_MARKS.sub(" ", text)


def docstrings(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def strings(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Texts of several words: docstrings, messages, descriptions."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 2:
            yield node.lineno, node.value


def names_of_tests(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Names of tests as sentences."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.lineno, node.name.removeprefix("test_").replace("_", " ")


def test_docstrings_and_messages_read_as_english() -> None:
    assert len(CODE) > 500
    wrong = [f"{path.relative_to(ROOT)}:{line}: {text}" for path in CODE for line, text in offences(path)]
    assert not wrong, "\n".join(wrong)


def offences(path: Path) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    yield from ((line, text.splitlines()[0]) for line, text in docstrings(nodes) if OPENINGS.match(text))
    for line, text in [*strings(nodes), *names_of_tests(nodes)]:
        yield from ((line, found[0]) for found in (*RIDDLES.finditer(prose(text)), *AMERICAN.finditer(prose(text))))
    yield from ((line, name) for line, name in names_of_tests(nodes) if VAGUE.search(name))


def test_documents_read_as_english() -> None:
    assert len(DOCUMENTS) > 20
    texts = {path.relative_to(ROOT): prose(path.read_text()) for path in DOCUMENTS}
    wrong = [
        f"{path}: {found[0]}" for path, text in texts.items() for found in (*RIDDLES.finditer(text), *AMERICAN.finditer(text))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("A row a metric", True),
        ("computed anew", True),
        ("the behavior of a model", True),
        ("regularisers", True),
        ("one row per metric", False),
        ("a recipe key `regularisers`", False),
        ("data.color and neighbors.py", False),
    ],
)
def test_the_language_rules_recognize_offences(text: str, wrong: bool) -> None:
    assert bool(RIDDLES.search(prose(text)) or AMERICAN.search(prose(text))) is wrong
