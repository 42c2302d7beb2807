"""All that is printed goes through one console, which replaces control characters."""

import ast
import io
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from memlib.console import PlainConsole, show_json, show_text
from tasks.progress import StderrConsole

ROOT = Path(__file__).parents[2]
EVIL = "a\x1b]8;;http://evil\x07b\x9b31mc\u202ed\re\ttab"
GOOD = "a�]8;;http://evilb�31mc�de"  # bells and returns are left out
PRINTERS = {  # modules that print by themselves: each replaces control characters, or prints a text of its own
    "memlib/console.py", "flows/cli/messages.py", "memlib/running/in_process.py", "tasks/display.py",
    "flows/cli/completing.py",
}  # fmt: skip


@pytest.mark.parametrize("kind", [PlainConsole, StderrConsole])
def test_lines_tables_and_texts_show_no_control_characters(kind: type[PlainConsole]) -> None:
    console = kind(highlight=False, markup=False) if kind is PlainConsole else kind()
    console.file, console._width = io.StringIO(), 200
    table = Table(EVIL)
    table.add_row(EVIL)
    for shown in (EVIL, Text(EVIL, "red"), table):
        console.print(shown, soft_wrap=True)
    printed = console.file.getvalue()
    assert printed.count(GOOD) == 4
    assert not set("\x1b\x07\x9b\u202e\r") & set(printed)


def test_a_terminal_still_gets_colours() -> None:
    console = PlainConsole(file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False, markup=False)
    console.print(f"\x1b[32m{EVIL}", style="red")
    assert console.file.getvalue().startswith("\x1b[31m�[32ma�")  # type: ignore[attr-defined]


def test_texts_and_json_show_none(capsys: pytest.CaptureFixture[str]) -> None:
    show_text(EVIL)
    show_json({EVIL: EVIL})
    assert not set("\x1b\x07\x9b\u202e") & set(capsys.readouterr().out)


def test_nothing_prints_in_another_way() -> None:
    for folder in ("memlib", "tasks", "flows"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            named = {call.id for call in calls if isinstance(call, ast.Name)}
            assert "print" not in named or name in PRINTERS, name
            assert "Console" not in named, name
            written = [call for call in calls if isinstance(call, ast.Attribute) and call.attr in ("write", "writelines")]
            assert not any(ast.unparse(call.value) in ("sys.stdout", "sys.stderr") for call in written), name


@pytest.mark.parametrize("encoding", ["ascii", "cp437", "latin-1"])
def test_characters_that_a_terminal_lacks_are_replaced(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = PlainConsole(file=file, highlight=False, markup=False)
    table = Table("déjà vu", "狗")
    table.add_row("ρ", "é")
    for shown in ("déjà vu 狗", Text("ρ"), table):
        console.print(shown)
    monkeypatch.setattr("sys.stdout", file)
    show_text("déjà vu 狗")
    file.flush()
    assert b"j" in file.buffer.getvalue()  # type: ignore[attr-defined]
