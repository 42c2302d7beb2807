"""Every benchmark command that the documents print beside numbers starts as it stands there, and does not fail at once.

Most of them take minutes to hours; each is stopped after some seconds. Commands that need a file of the reader's are asked for their
help, so that at least their arguments are still known.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.evidence_pages import pages

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(
    r"(?:^|`)(?:OMP_NUM_THREADS=1 )?(python (?:-m )?benchmarks[/.][^`\n]*|make (?:faults|fuzz))(?:$|`)", re.MULTILINE
)
READERS = ("BEFORE", "DATA", "FOLDER", "my-model", "my-mailbox", "LeakPro", "tiny-imagenet-50")  # files that the reader has
SECONDS = float(os.environ.get("MEMLIB_EVIDENCE_SECONDS", "12"))


def printed_commands() -> list[str]:
    """Return the commands of all documents, each once."""
    texts = [path.read_text() for path in (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md")]
    texts += [text for _, text in pages()]
    found = [command.strip() for text in texts for command in COMMAND.findall(text)]
    return [command for command in dict.fromkeys(found) if "PART" not in command]


def test_the_documents_print_commands_of_each_benchmark() -> None:
    named = {match[1] for command in printed_commands() if (match := re.search(r"benchmarks[/.](\w+)", command))}
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if '"__main__"' in path.read_text()}
    scripts |= {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
    assert named == scripts - {"faults", "imagenet", "validity"}  # which make faults, scale.py imagenet and make validity run


@pytest.mark.slow
@pytest.mark.parametrize("command", printed_commands())
def test_commands_printed_in_documents_start_without_error(command: str) -> None:
    words = shlex.split(command)
    if words[0] == "python":
        words = [sys.executable, *(str(ROOT / word) if word.startswith("benchmarks/") else word for word in words[1:])]
    if needs_reader := any(name in command for name in READERS):
        words = [*words[:2], "--help"]
    with tempfile.TemporaryDirectory(prefix="m", ignore_cleanup_errors=True) as folder:  # a short path, for Ray's sockets
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": folder}
        process = subprocess.Popen(
            words, cwd=ROOT if words[0] == "make" else folder, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=60 if needs_reader else SECONDS)
        except subprocess.TimeoutExpired:
            assert not needs_reader, "help takes a minute"
            end(process)
            return
        assert process.returncode == 0, output[-3000:]


def end(process: "subprocess.Popen[str]") -> None:
    """Interrupt a process and its children, and kill what is left after some seconds."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
