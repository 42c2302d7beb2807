"""Earlier audits of the same data are recorded once."""

from typing import Any

from memlib.ledger import data_of, entry, in_words


def run(name: str, data: str, finished: float, p: float | None = 0.5, word: str = "inconclusive") -> dict[str, Any]:
    finding = {"metric": "m", "p_value": p}
    said = {"word": word}
    return {"run": name, "audit": "a", "finished": finished, "findings": [finding], "verdict": said, "ledger": {"data": data}}


def test_what_came_before_is_recorded_at_first_publication() -> None:
    store = [run("b", "d", 2.0, p=0.01, word="shown"), run("a", "d", 1.0), run("c", "other", 3.0), run("e", "d", 4.0, p=None)]
    made = entry(store, "new", "d", None)
    assert [one["run"] for one in made["earlier"]] == ["a", "b", "e"]
    assert "3 audits of the same data came before in this store: 2 tested something, 1 showed it" in in_words(made["earlier"])
    again = entry([*store, run("later", "d", 9.0)], "new", "d", {"ledger": made})
    assert again == made
    assert entry([], "new", "d", None) == {"data": "d", "earlier": []}


def test_runs_of_before_have_no_data() -> None:
    assert data_of({"run": "old"}) == ""
