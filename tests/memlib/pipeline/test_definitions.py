"""The code of a stage is what its class reaches: a change elsewhere, a move and other words leave its digest the same."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memlib.audits import AUDITS
from memlib.audits.arrangement import stages_of
from memlib.pipeline import definitions

CACHED = (
    "code_of", "_saved", "_saved_at", "reached", "_steps", "_paths", "_source", "_module", "_bases", "_is_stage", "subclasses", "_openings",
)  # fmt: skip
PROGRAM = {
    "pipeline/stage": "class Stage: ...\nclass Artifact: ...\n",
    "audits/last_stages": "from memlib.pipeline.stage import Stage\nclass PageStage(Stage): ...\n",
    "store": "def kept(): return 1\n",
    "report": "def drawn(): return 1\n",
    "maths": '''
"""About numbers."""
LIMIT = 3
SCALE: float = 2.0
SCALE *= 2
def half(x): return x / LIMIT
def unused(x): return x
class Shape:
    def area(self): return 0
class Square(Shape):
    def area(self): return 1
class Tile(Square):
    def area(self): return 2
class Base:
    def grown(self): return 1
class Grown(Base): ...
class Sibling(Base):
    def grown(self): return 7
''',
    "asked": '''
from typing import Protocol
class Asked(Protocol):
    def answer(self): ...
class Clerk:
    def answer(self): return 4
''',
    "stages": '''
from __future__ import annotations
import memlib.maths as sums
from memlib.pipeline.stage import Artifact, Stage
from memlib.asked import Asked
from memlib.store import kept
class First(Stage):
    def write(self):
        from memlib.report import drawn
        return sums.half(kept() + drawn())
    @classmethod
    def open(cls, artifact: Artifact[Found]) -> Found: return Found(opened())
class Found:
    def rows(self): return 5
class Second(Stage):
    read: Artifact[Found]
    shape: "sums.Shape"
    def write(self): return kind(sums.Grown())
    @classmethod
    def open(cls, artifact: Artifact[int]) -> int: return 6
class Third(Stage):
    asked: Asked
    def write(self): return sums.SCALE
    @classmethod
    def open(cls, artifact): return 8
def opened(): return 9
def kind(x): return x
''',
}  # fmt: skip


@pytest.fixture
def codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], dict[str, str]]]:
    """A function that writes a program and returns the digest of each of its stages."""

    def found(program: dict[str, str]) -> dict[str, str]:
        folder = tmp_path / "memlib"
        folder.mkdir(exist_ok=True)
        for file in folder.rglob("*.py"):
            file.unlink()
        for name, text in {"__init__": "", **program}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / f"{name}.py").write_text(text)
        forget()
        return {name: definitions.code_of("memlib.stages", name) for name in ("First", "Second", "Third")}

    def forget() -> None:
        for name in CACHED:
            getattr(definitions, name).cache_clear()
        definitions._TEXTS.clear()

    monkeypatch.setattr(definitions, "ROOT", tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    yield found
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize(
    ("module", "old", "new", "changed"),
    [
        ("maths", "LIMIT = 3", "LIMIT = 4", {"First"}),
        ("maths", "x / LIMIT", "x / LIMIT / 2", {"First"}),
        ("maths", "def unused(x): return x", "def unused(x): return 2 * x", set()),
        ("maths", '"""About numbers."""', '"""About other numbers."""  # why', set()),
        ("maths", "SCALE *= 2", "SCALE *= 3", {"Third"}),
        ("maths", "return 2\n", "return 3\n", {"Second"}),  # of a subclass of what Second names
        ("maths", "def grown(self): return 1", "def grown(self): return 2", {"Second"}),  # of the base of what it makes
        ("maths", "return 7", "return 8", set()),  # of a sibling of what it makes
        ("asked", "return 4", "return 5", {"Third"}),  # has the members of the protocol
        ("store", "return 1", "return 2", set()),
        ("report", "return 1", "return 2", set()),
        ("stages", "return 9", "return 10", {"First", "Second"}),  # of the `open` that makes what Second reads
        ("stages", "def rows(self): return 5", "def rows(self): return 6", {"First", "Second"}),
        ("stages", "sums.half(kept()", "sums.half(2 * kept()", {"First"}),  # Second reads what First wrote, and no more
        ("stages", "return 6", "return 7", {"Second"}),
        ("stages", "def kind(x): return x", "def kind(x): return [x]", {"Second"}),
    ],
)
def test_exactly_the_stages_that_reach_a_changed_definition_change(
    codes: Callable[[dict[str, str]], dict[str, str]], module: str, old: str, new: str, changed: set[str]
) -> None:
    before = codes(PROGRAM)
    assert old in PROGRAM[module]
    after = codes(PROGRAM | {module: PROGRAM[module].replace(old, new)})
    assert {name for name in before if before[name] != after[name]} == changed


def test_moving_a_definition_changes_no_code_digest(codes: Callable[[dict[str, str]], dict[str, str]]) -> None:
    before = codes(PROGRAM)
    elsewhere = {
        "elsewhere": "from memlib.maths import LIMIT\ndef half(x): return x / LIMIT\n",
        "maths": PROGRAM["maths"].replace("def half(x): return x / LIMIT\n", "from memlib.elsewhere import half\n"),
    }
    assert codes(PROGRAM | elsewhere) == before


def test_cached_code_digests_are_used_only_for_unchanged_files(
    codes: Callable[[dict[str, str]], dict[str, str]], tmp_path: Path
) -> None:
    before = codes(PROGRAM)
    (kept,) = (tmp_path / "memlib/__pycache__").iterdir()
    kept.write_text(kept.read_text().replace(before["First"], "0" * 32))
    definitions.code_of.cache_clear()
    definitions._saved.cache_clear()
    assert definitions.code_of("memlib.stages", "First") == "0" * 32
    assert codes(PROGRAM | {"maths": f"{PROGRAM['maths']}OTHER = 1\n"})["First"] == before["First"]
    assert len(list((tmp_path / "memlib/__pycache__").iterdir())) == 1
    kept = next((tmp_path / "memlib/__pycache__").iterdir())
    for damage in ("", "[]", '{"memlib.stages.First": 1}'):
        kept.write_text(damage)
        definitions.code_of.cache_clear()
        definitions._saved.cache_clear()
        assert definitions.code_of("memlib.stages", "First") == before["First"]


def _forget_digests() -> None:
    definitions.code_of.cache_clear()
    definitions._saved().clear()


@pytest.mark.parametrize("step", [60, pytest.param(1, marks=pytest.mark.slow)])
def test_every_definition_of_memlib_belongs_to_the_stages_that_reach_it(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "_save", lambda digests: None)
    saved: dict[str, str] = {}
    monkeypatch.setattr(definitions, "_saved", lambda: saved)
    monkeypatch.setattr(definitions, "_files", functools.cache(definitions._files))  # which are not changed
    monkeypatch.setattr(definitions, "_nodes", functools.cache(definitions._nodes))
    definitions.code_of.cache_clear()
    stages = {(kind.__module__, kind.__name__) for audit in AUDITS.values() for kind in stages_of(audit)}
    reached = {stage: definitions.reached(*stage) for stage in stages}
    assert all(stage in places for stage, places in reached.items())
    before = {stage: definitions.code_of(*stage) for stage in stages}
    every = sorted(set().union(*reached.values()))
    assert len(every) > 800
    for place in every[::step]:
        nodes = definitions._nodes(place)
        texts = {id(node): definitions._text(node) for node in nodes}
        definitions._TEXTS.update({key: f"changed {text}" for key, text in texts.items()})
        _forget_digests()
        changed = {stage for stage in stages if definitions.code_of(*stage) != before[stage]}
        definitions._TEXTS.update(texts)
        _forget_digests()
        assert changed == {stage for stage, places in reached.items() if place in places}, place
    definitions.code_of.cache_clear()


def test_the_code_of_a_page_includes_its_template_and_glossary() -> None:
    files = {file.name for file in definitions._files(definitions.reached("memlib.audits.deja_vu.page", "Report"))}
    assert {"page.html.j2", "glossary.yaml"} <= files
