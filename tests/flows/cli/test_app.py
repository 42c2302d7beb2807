"""The list of commands, which imports none of them."""

import importlib
import inspect
import subprocess
import sys

import pytest
from cyclopts import App

from flows.cli.app import COMMANDS, app, commands_of, main

HEAVY = ("cyclopts.docs", "numpy", "pyarrow", "pydantic", "torch", "prefect", "ray", "memlib.specs", "memlib.store")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_the_list_of_commands_imports_no_library_of_theirs(arguments: list[str]) -> None:
    script = f"import sys; from flows.cli.app import main; main({arguments}); print([n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert "Run an audit: split, train, observe, score, report." in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_summaries_are_the_first_lines_of_docstrings() -> None:
    summarized, whole = commands_of(summarized=True), commands_of(summarized=False)
    for commands in COMMANDS.values():
        for name, place in commands.items():
            module, _, function = place.partition(":")
            target = getattr(importlib.import_module(f"flows.cli.{module}"), function)
            text = target.help if isinstance(target, App) else inspect.getdoc(target)
            assert text
            assert summarized[name].help == text.splitlines()[0]
            assert whole[name].help.startswith(text.splitlines()[0])


def test_an_unknown_command_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rum"]) == 2
    assert capsys.readouterr().err.startswith('memlib: Unknown command "rum".')
    assert "run" in app
