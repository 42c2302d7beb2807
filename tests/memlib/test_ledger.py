"""Earlier audits of the same data are recorded once."""

from memlib.ledger import entry, in_words
from memlib.records import Finding, Ledger, RunEntry, RunRecord


def run(name: str, data: str, finished: float, p: float | None = 0.5, word: str = "inconclusive") -> RunEntry:
    return {
        "run": name, "audit": "a", "title": "t", "finished": finished, "verdict": {"word": word, "sentence": ""},
        "findings": [{"metric": "m", "params": "{}", "value": 1.0, "p_value": p, "verdict": word}], "ledger": {"data": data},
        "cells": {}, "scores": None, "asks": "", "memlib": "", "refs": [], "mark": (1, 1.0),
    }  # fmt: skip


def test_what_came_before_is_recorded_at_first_publication() -> None:
    store = [run("b", "d", 2.0, p=0.01, word="shown"), run("a", "d", 1.0), run("c", "other", 3.0), run("e", "d", 4.0, p=None)]
    made = entry(store, "new", "d", None)
    assert [one.run for one in made.earlier] == ["a", "b", "e"]
    assert "3 earlier audits of the same data in this store: 2 with a test, 1 with the verdict 'shown'" in in_words(
        made.earlier
    )
    findings = [Finding(metric="m", params="{}")]
    before = RunRecord(run="new", audit="a", title="t", finished=5.0, findings=findings, ledger=made)
    assert entry([*store, run("later", "d", 9.0)], "new", "d", before) == made
    assert entry([], "new", "d", None) == Ledger(data="d")
    assert entry([run("old", "", 1.0)], "new", "", None) == Ledger()
