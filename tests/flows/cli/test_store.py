"""The printed result of a run."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import store as printing
from flows.cli.app import main
from memlib.console import PlainConsole
from memlib.findings import Interval, settle, tested
from memlib.runs.index import read_run
from memlib.store import Store
from memlib.store.records import sealed

SETTING = {"layer": "backbone", "epoch": 1, "crop": "corner", "k": 10}
ROOT = Path(__file__).parents[3]
ESCAPE = "\x1b["


def stored(folder: Path, word: str = "shown") -> Store:
    """Return a store with one run: a headline for both models, and the same for one of them."""
    store = Store(str(folder / "store"))
    store.begin()
    row = {"metric": "share_excess", "value": 0.25, "p_value": 0.01, "n": 8}
    findings = [row | {"params": json.dumps(SETTING | {"direction": name})} for name in ("both", "A")]
    verdict = {"word": word, "sentence": "The models remember.", "explanation": "By 25 % of the images."}
    run = {"run": "abc", "audit": "deja_vu", "title": "Two models", "finished": 1.0, "findings": findings, "verdict": verdict}
    store.publish("runs/abc/manifest.json", json.dumps(sealed(run)).encode())
    return store


def test_the_verdict_comes_first_and_a_short_listing_counts_what_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = stored(tmp_path)
    assert main(["show", "abc", "--store", store.uri]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:3] == ["Shown. The models remember.", "", "Two models"]
    assert lines[3].split() == ["metric", "value", "p", "n"]
    assert lines[4].split() == ["share_excess", "0.250", "0.01", "8"]
    assert lines[5:8] == ["and 1 more row: memlib show abc --all", "", "By 25 % of the images."]
    assert main(["show", "abc", "--all", "--store", store.uri]) == 0
    whole = capsys.readouterr().out
    assert whole.startswith("Shown. The models remember.\n")
    assert whole.count("share_excess") == 2
    assert "more row" not in whole


def test_tables_in_documents_have_the_printed_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr(printing, "console", PlainConsole(file=output, highlight=False, markup=False, width=120))
    row = tested("share_excess", {}, 0.15, n=9, interval=Interval(0.1, 0.2, "examples"), p_value=0.01, family="headline")
    printing._print_findings(settle([row], alpha=0.05))
    columns = output.getvalue().splitlines()[0].split()
    assert columns[-1] == "verdict"
    by_hand = [path for path in ROOT.glob("docs/**/*.md") if path.parent.name != "made"]  # make docs writes the others
    for path in (ROOT / "README.md", *by_hand):
        headings = [line for line in path.read_text().splitlines() if line.startswith("metric  ")]
        assert all(line.split() == columns for line in headings), path
        assert headings or path.name != "README.md"


@pytest.mark.parametrize(
    ("word", "code"), [("shown", "1;31"), ("bounded", "32"), ("inconclusive", "33"), ("descriptive", "34")]
)
def test_the_word_of_a_verdict_is_coloured_on_a_terminal_alone(
    word: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored(tmp_path, word)
    first = f"{word.capitalize()}. The models remember."

    def printed(**terminal: Any) -> str:
        output = io.StringIO()
        console = PlainConsole(file=output, highlight=False, markup=False, width=120, **terminal)
        monkeypatch.setattr(printing, "console", console)
        printing.print_run(store, read_run(store, "abc"))
        return output.getvalue().splitlines()[0]

    terminal = {"force_terminal": True, "color_system": "standard", "_environ": {}}
    assert printed(**terminal) == first.replace(word.capitalize(), f"{ESCAPE}{code}m{word.capitalize()}{ESCAPE}0m")
    assert printed(_environ={}) == first
    assert f"{ESCAPE}3" not in printed(**terminal | {"_environ": {"NO_COLOR": "1"}})
