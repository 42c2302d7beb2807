"""Numbers of claims are those of the runs that they name."""

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import claims, evidence_pages
from memlib.findings import Interval, Verdict, estimate, settle


def test_numbers_and_their_run_are_written_into_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    found = settle([estimate("rho", {"target": "a"}, 0.5, n=3, interval=Interval(0.25, 1.5, "models"))], alpha=0.05)

    def run(recipe: str, *, store: str, changes: dict[str, Any]) -> SimpleNamespace:
        asked.append((recipe, store, changes))
        return SimpleNamespace(id="abc", summary=found.table(Verdict("descriptive", "a", "b")))

    monkeypatch.setattr(claims.memlib, "run", run)
    paper: dict[str, Any] = {
        "runs": {"T1": {"recipe": "a", "changes": {"data.root": "DATA/x", "data.parts": {"path": "DATA/y", "count": 3}}}},
        "numbers": {"rho": {"run": "T1", "metric": "rho", "params": {"target": "a"}}},
    }
    claims.update(paper, [], data="here", store="s")
    assert asked == [("a", "s", {"data.root": "here/x", "data.parts": {"path": "here/y", "count": 3}})]
    assert paper["runs"]["T1"]["id"] == "abc"
    assert evidence_pages._in_words(paper["numbers"]["rho"]) == ".500 (.250 to 1.500)"
    with pytest.raises(SystemExit, match="the run has no ks"):
        claims.update({**paper, "numbers": {"ks": {"run": "T1", "metric": "ks"}}}, [], data="here", store="s")
