"""Runs that ask a service are killed at every stage that asks, and ask nothing twice that was answered."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_service import serving

from benchmarks.served import Served
from memlib.data.canaries.documents import Form, write_canaries

pytestmark = pytest.mark.ray  # real processes
SCRIPT = "import json, sys, memlib; print(memlib.run(json.load(sys.stdin), store='store', quiet=True).verdict.word)"
DRAWS = 2


def canaries(part: dict[str, Any]) -> dict[str, Any]:
    write_canaries(Path("c"), Form("Record {a8}: {l6} {d6}."), 40, secret=b"s" * 32, seed=2)
    return {"audit": "canaries", "canaries": "c", "service": part, "answers": {"draws": DRAWS}}


def documents(part: dict[str, Any]) -> dict[str, Any]:
    rng = random.Random(0)
    texts = ["".join(rng.choices("abcdefgh ", k=30)) for _ in range(40)]
    Path("d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    rows = [f"document {number:08d},{'yes' if number % 2 else 'no'}" for number in range(40)]
    Path("m.csv").write_text("\n".join(["example_id,member", *rows]))
    return {
        "audit": "membership", "data": {"source": {"kind": "jsonl", "path": "d.jsonl", "field": "text"}, "window": 64},
        "shadows": {"count": 0}, "target": {"trained": part, "members": "m.csv", "drawn": "fixed"},
    }  # fmt: skip


def secrets(part: dict[str, Any]) -> dict[str, Any]:
    rng = random.Random(7)
    for name, count in (("known.txt", 2), ("unseen.txt", 20)):
        Path(name).write_text("".join(f"my pin is {rng.randrange(10**5, 10**6)}\n" for _ in range(count)))
    Path("t.txt").write_text("The river was so low in summer that people walked across it. " * 60)
    return {
        "audit": "exposure", "data": {"source": {"kind": "text", "path": "t.txt"}, "window": 60}, "trained": part,
        "canaries": {"format": "my pin is {d6}", "file": "known.txt", "unseen": "unseen.txt"},
        "score": {"method": "sampled", "references": 100}, "extraction": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "level"), [(canaries, "scores"), (canaries, "text"), (documents, "scores"), (secrets, "scores")]
)
def test_a_killed_run_goes_on_and_asks_nothing_twice_that_was_answered(
    recipe: Callable[[dict[str, Any]], dict[str, Any]], level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(level=level) as (served, part):
        served.pause = 0.02
        content = recipe({**part, "together": 2})
        first = killed_after(served, 15, content)
        assert killed_after(served, 10, content) > 0
        served.pause = 0.0
        done = start(content)
        assert done.wait(120) == 0
        repeats = DRAWS if level == "text" else 1
        twice = {text: count for text, count in served.asked.items() if count > repeats and not text.startswith("[")}
        asked = {text for text in twice if not is_of_the_test(text)}
        assert first > 0
        assert len(asked) <= 2 * 2  # what was under way at two kills


def start(recipe: dict[str, Any]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(recipe).encode())
    process.stdin.close()
    return process


def killed_after(served: Served, count: int, recipe: dict[str, Any]) -> int:
    """Start a run, and kill it once it has asked for some texts beyond those of the test; return their number."""
    before = texts_in(served)
    process = start(recipe)
    while texts_in(served) - before < count:
        assert process.poll() is None, "the run ends before it is killed"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return texts_in(served) - before


def texts_in(served: Served) -> int:
    return sum(1 for text in list(served.asked) if not text.startswith("[") and not is_of_the_test(text))


def is_of_the_test(text: str) -> bool:
    """Return whether a text is of the test of services, whose words are public."""
    from memlib.observe.service_checks import SENTENCES

    words = {word for sentence in SENTENCES for word in sentence.split()}
    return set(text.split()) <= words
