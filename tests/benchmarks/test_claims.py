"""Numbers of claims are those of the runs that they name."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
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


@pytest.mark.parametrize(
    ("asked", "value", "interval"),
    [
        ({"statistic": "largest"}, 0.9, ()),
        ({"statistic": "mean"}, 0.525, (0.2012, 0.8488)),
        ({"statistic": "share", "least": 0.5}, 0.75, (0.1941, 0.9937)),
        ({"statistic": "rank correlation", "by": "net", "other": "metric == 'b'"}, 0.4, (-0.9208, 0.985)),
    ],
)
def test_numbers_are_read_from_a_table(asked: dict[str, Any], value: float, interval: tuple[float, ...]) -> None:
    nets = {"net": [0, 1, 2, 3, 4] * 2, "metric": ["a"] * 5 + ["b"] * 5, "value": [0, 0.1, 0.5, 0.6, 0.9, 0, 8, 5, 7, 9]}
    number = {"table": "units", "column": "value", "where": "metric == 'a' and net > 0", **asked}
    found = claims.read_table(number, pa.table(nets))
    assert found["value"] == pytest.approx(value, abs=1e-4)
    assert found["of"] == 4
    assert found["interval"] == pytest.approx(interval, abs=1e-4)


def test_small_numbers_are_written_with_two_digits() -> None:
    assert evidence_pages._in_words({"value": 0.000192, "interval": [0.00014, 0.000244]}) == ".00019 (.00014 to .00024)"


def test_numbers_of_found_candidates_are_about_canaries_of_rank_1() -> None:
    texts = ["1234", "1235", "1243", "9999", "5678", "5679", "1111", "2222"]  # the second model found another text first
    found = [
        {"known": 0, "place": 1 + place % 4, "bits": f"{10 + place:.2f}", "text": text} for place, text in enumerate(texts)
    ]  # fmt: skip
    inserted = [{"insertions": times, "text": f"the number is {text}"} for times, text in ((4, "1234"), (1, "5670"))]
    secrets = {
        "inserted": inserted,
        "found by shortest path": [*found, {"known": 2, "place": 1, "bits": "1", "text": "5670"}],
    }
    assert claims.read_found({"found": "edits"}, secrets)["value"] == pytest.approx(2 / 3)
    assert claims.read_found({"found": "gap", "times": 4}, secrets)["value"] == 1
    assert [claims.edit_distance("760312943", text) for text in ("760031294", "760312944", "")] == [2, 1, 9]
