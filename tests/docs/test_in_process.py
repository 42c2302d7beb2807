"""Commands in this process: which ones, what they answer, and that nothing of them is left behind."""

import gc
import os
import signal
import sys
import warnings
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("memlib runs", ({}, ["runs"])),
        (".venv/bin/memlib show 'a b'", ({}, ["show", "a b"])),
        (
            "PYTHONPATH=. memlib run mine.yaml --set 'k=[1, 2]'",
            ({"PYTHONPATH": "."}, ["run", "mine.yaml", "--set", "k=[1, 2]"]),
        ),
        (
            """memlib run r --set 'a="b > c"' --on-end "cat -n" """,
            ({}, ["run", "r", "--set", 'a="b > c"', "--on-end", "cat -n"]),
        ),
        ("memlib card x > card.md", None),
        ("memlib runs --json | head -1", None),
        ("memlib runs && memlib show x", None),
        ('memlib runs --store "$HOME/store"', None),
        ("memlib show $(cat name)", None),
        ("memlib verify *.json", None),
        ("python train.py", None),
        ("A=1", None),
    ],
)
def test_commands_of_memlib_that_need_no_shell_are_split(
    command: str, parts: tuple[dict[str, str], list[str]] | None
) -> None:
    from in_process import split

    assert split(command) == parts


def state() -> list[object]:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    os.umask(mask := os.umask(0o077))
    own = [os.getcwd(), dict(os.environ), list(sys.path), sys.argv, sys.unraisablehook, sys.stdout, sys.stderr]
    return [*handlers, mask, *own, list(warnings.filters), gc.get_threshold()]


def test_a_command_answers_with_status_and_output_and_leaves_nothing_behind(tmp_path: Path) -> None:
    from in_process import call

    before = state()
    assert call(["--version"], tmp_path, os.environ).returncode == 0
    wrong = call(["show", "abc"], tmp_path, {**os.environ, "MEMLIB_STORE": str(tmp_path / "none")})
    assert wrong.returncode == 2
    assert str(tmp_path / "none") in wrong.stderr
    assert "Traceback" not in wrong.stderr
    assert state() == before


def test_a_block_has_its_own_folder_names_and_modules(tmp_path: Path) -> None:
    from in_process import execute

    before = state()
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "my_numbers.py").write_text(f"number = {number}")
        block = "import os, my_numbers\nos.environ['A'] = 'b'\nprint(my_numbers.number, os.getcwd(), 'left' in globals())\nleft = 1"
        done = execute(block, folder, os.environ)
        assert (done.returncode, done.stdout) == (0, f"{number} {folder} False\n"), done.stderr
    assert "my_numbers" not in sys.modules
    assert state() == before


@pytest.mark.parametrize(
    ("block", "status", "said"),
    [
        ("assert 1 == 2", 1, "AssertionError"),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('no')", 1, "no"),
        ("", 0, ""),
    ],
)
def test_a_block_fails_as_its_process_would(block: str, status: int, said: str, tmp_path: Path) -> None:
    from in_process import execute

    done = execute(block, tmp_path, os.environ)
    assert done.returncode == status
    assert said in done.stderr
