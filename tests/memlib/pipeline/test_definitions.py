"""The code of a stage is what its class reaches: a change elsewhere, a move and other words leave its digest the same."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memlib.audits import AUDITS
from memlib.audits.arrangement import stages_of
from memlib.pipeline import definitions
from memlib.store import permissions

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
        _forget()
        return {name: definitions.code_of("memlib.stages", name) for name in ("First", "Second", "Third")}

    monkeypatch.setattr(definitions, "ROOT", tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    yield found
    monkeypatch.undo()
    _forget()


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


def _forget() -> None:
    for name in CACHED:
        getattr(definitions, name).cache_clear()
    definitions._TEXTS.clear()


def _read_again(stage: str = "First") -> str:
    """Return a stage's digest as a new process finds it."""
    _forget()
    return definitions.code_of("memlib.stages", stage)


def _only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a digest is computed."""
    forbidden = functools.cache(lambda module, name: pytest.fail("computed again"))
    monkeypatch.setattr(definitions, "reached", forbidden)


def _unwritable(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let writing below a folder fail, as in an installation of another user; tests of root may write anywhere."""
    real = permissions.make_folder

    def made(path: Path, bits: int) -> None:
        if path.is_relative_to(folder):
            raise PermissionError(13, "Permission denied", str(path))
        real(path, bits)

    monkeypatch.setattr(permissions, "make_folder", made)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of digests below an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/memlib/definitions"


Codes = Callable[[dict[str, str]], dict[str, str]]
KEPT = "definitions-*.json"


def test_code_digests_are_kept_beside_the_bytecode_for_unchanged_files_alone(
    codes: Codes, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = codes(PROGRAM)
    assert codes(PROGRAM | {"maths": PROGRAM["maths"].replace("LIMIT = 3", "LIMIT = 4")})["First"] != before["First"]
    assert codes(PROGRAM) == before
    (kept,) = (tmp_path / "memlib/__pycache__").iterdir()  # that of the other code is removed
    assert not cache.exists()
    for damage in ("", "[]", "{}", '{"digests": 1, "sha256": 2}', kept.read_text().replace(before["First"], "0" * 32)):
        kept.write_text(damage)
        assert _read_again() == before["First"]
    _only_read(monkeypatch)
    assert _read_again() == before["First"]


@pytest.mark.parametrize("why", ["the variable is set", "the folder is read-only"])
def test_code_digests_are_kept_in_the_cache_folder_where_bytecode_cannot_be_written(
    codes: Codes, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "the variable is set":
        monkeypatch.setattr("sys.dont_write_bytecode", True)
    else:
        _unwritable(monkeypatch, tmp_path / "memlib")
    before = codes(PROGRAM)
    assert not list((tmp_path / "memlib").rglob(KEPT))
    (kept,) = cache.iterdir()
    assert [path.stat().st_mode & 0o777 for path in (cache, kept)] == [0o700, 0o600]
    for damage in ("", "null", kept.read_text().replace(before["First"], before["Second"])):
        kept.write_text(damage)
        assert _read_again() == before["First"]
    changed = codes(PROGRAM | {"maths": PROGRAM["maths"].replace("LIMIT = 3", "LIMIT = 4")})
    assert changed["First"] != before["First"]  # what is kept of the earlier code is stale
    assert len(list(cache.iterdir())) == 2  # of two versions of memlib
    codes(PROGRAM)
    _only_read(monkeypatch)
    assert {name: _read_again(name) for name in before} == before


def test_digests_beside_the_bytecode_are_joined_by_those_in_the_cache_folder(
    codes: Codes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = codes(PROGRAM)
    beside, there = definitions._saved_at()
    beside.write_text(json.dumps(definitions._sealed({"memlib.stages.First": before["First"]})))
    there.parent.mkdir(parents=True)
    there.write_text(json.dumps(definitions._sealed({"memlib.stages.Second": before["Second"]})))
    _only_read(monkeypatch)
    assert [_read_again(name) for name in ("First", "Second")] == [before["First"], before["Second"]]


def test_the_cache_folder_keeps_the_digests_of_a_few_versions(
    codes: Codes, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    for version in range(definitions.MOST_KEPT + 3):
        codes(PROGRAM | {"maths": f"{PROGRAM['maths']}OTHER = {version}\n"})
    assert len(list(cache.iterdir())) == definitions.MOST_KEPT
    assert definitions._saved_at()[1].exists()


def test_without_any_folder_digests_are_computed(
    codes: Codes, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = codes(PROGRAM)
    _unwritable(monkeypatch, tmp_path)
    assert codes(PROGRAM | {"more": "x = 1"}) == before

    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    assert codes(PROGRAM | {"more": "x = 2"}) == before


def _forget_digests() -> None:
    definitions.code_of.cache_clear()
    definitions._saved().clear()


@pytest.mark.parametrize("step", [200, pytest.param(1, marks=pytest.mark.slow)])
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
    files = {file.name for file in definitions._files(definitions.reached("memlib.audits.deja_vu.stages", "Report"))}
    assert {"page.html.j2", "glossary.yaml"} <= files
