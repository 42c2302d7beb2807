"""Completion of recipes and run ids in a shell."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.cli import completing
from flows.cli.app import COMMANDS, app, main
from memlib.audits import PACKAGES
from memlib.recipes.files import shipped_recipes

ROOT = Path(__file__).parents[3]
Complete = Callable[..., list[str]]

OFFERED = {*PACKAGES} - {"canaries"}  # no recipe is shipped of canaries, whose folders are their owners'


def publish(store: Path, name: str, title: str = "") -> None:
    """Write as much of a finished run as completion reads."""
    (store / "runs" / name).mkdir(parents=True)
    (store / "runs" / name / "manifest.json").write_text("{}")
    index = store / "index/runs.json"
    index.parent.mkdir(exist_ok=True)
    index.write_text(json.dumps({"entries": {name: {"title": title}}}))


@pytest.fixture
def complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Complete:
    """Return a function that completes the last word of a command line in bash, in a folder with a store and a recipe."""
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    command = tmp_path / "bin/memlib"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m flows.cli.entry "$@"\n')
    command.chmod(0o755)
    publish(tmp_path / "memlib-store", "3f2a00000001")
    publish(tmp_path / "other", "91c000000002")
    (tmp_path / "memlib-store/requests").mkdir()
    (tmp_path / "memlib-store/requests/abc000000003-12345678.json").write_text("{}")
    (tmp_path / "mine.yaml").write_text("extends: smoke\n")
    paths = {"PYTHONPATH": str(ROOT), "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}
    environment = {name: value for name, value in os.environ.items() if name != "MEMLIB_STORE"} | paths

    def completed(*words: str) -> list[str]:
        typed = " ".join(shlex.quote(word) for word in ("memlib", *words))
        asked = f"{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words)}; _memlib; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        done = subprocess.run(
            ["bash", "-c", asked], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    return completed


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_recipes_and_runs(complete: Complete) -> None:
    assert set(complete("run", "")) == {*OFFERED, *shipped_recipes(), "mine.yaml"}
    assert set(complete("validate", "membership_s")) == {
        name for name in shipped_recipes() if name.startswith("membership_s")
    }
    assert complete("plan", "deja-vu", "--recipe", "mi") == ["mine.yaml"]
    assert complete("show", "") == complete("open", "3") == complete("verify", "3f2a") == ["3f2a00000001"]
    assert complete("show", "9") == []
    assert complete("show", "--store", "other", "") == complete("diff", "--store", "=", "other", "") == ["91c000000002"]
    assert complete("resume", "") == ["abc000000003", "3f2a00000001"]
    assert complete("gc", "--keep", "3") == ["3f2a00000001"]
    assert complete("show", "--store", "s3://bucket", "") == []


def test_parameters_name_the_completers_that_answer() -> None:
    """The scripts ask where a parameter has a completer; the answer is found without the parameters."""
    asked = set()
    for name in (name for group in COMMANDS.values() for name in group if name not in ("canaries", "completion")):
        for argument in app[name].assemble_argument_collection():
            completer = argument.parameter.completer
            is_run = argument.field_info.name in ("run_id", "run_ids", "baseline", "keep")
            assert not is_run or completer in (completing.finished, completing.all_runs), (name, argument.name)
            if completer is not None:
                asked.add(name)
                words = [argument.name] if argument.name.startswith("--") else []
                assert completing.completer_of([name, *words, ""]) is completer, (name, argument.name)
    assert asked >= {*completing.OF_COMMANDS, "show", "open", "verify", "diff", "check", "card", "risk", "ids", "export"}


def test_candidates_are_shipped_recipes_audits_and_files_in_the_folder_that_the_word_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert list(completing.shipped()) == list(shipped_recipes())
    Path("kept").mkdir()
    Path("kept/one.yml").touch()
    Path("kept/notes.txt").touch()
    for word in ("kept/", "kept/o", "--recipe=kept/o"):
        monkeypatch.setattr("sys.argv", ["memlib", completing.ASK, "run", word])
        found = completing.audits_and_recipes()
        assert found.keys() - {*OFFERED, *shipped_recipes()} == {"kept/one.yml"}
        assert {*found} >= OFFERED


@pytest.mark.parametrize("words", [[], [""], ["show"], ["show", "--store", "'", ""], ["show", "--store", "", ""]])
def test_an_unfinished_line_gets_an_empty_answer(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["memlib", completing.ASK, *words])
    assert completing.answer(words) == 0
    assert capsys.readouterr().out == f"{completing.BEGIN}\n"


def test_titles_of_a_store_cannot_add_lines_or_move_the_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(tmp_path, "abc", title="a\nb\tc\x1b[31m")
    (tmp_path / "runs/a b").mkdir()
    (tmp_path / "runs/a b/manifest.json").touch()
    monkeypatch.setattr("sys.argv", ["memlib", completing.ASK, "show", "--store", str(tmp_path), ""])
    assert completing.answer(["show", "--store", str(tmp_path), ""]) == 0
    assert capsys.readouterr().out == f"{completing.BEGIN}\nabc\ta b c\N{REPLACEMENT CHARACTER}[31m\n"


def test_answering_loads_no_library() -> None:
    code = (
        "import sys; sys.argv = ['memlib', '__complete', 'run', '']\n"
        "from flows.cli.entry import command; command()\n"
        "print({'cyclopts', 'pydantic', 'rich', 'numpy', 'yaml', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
