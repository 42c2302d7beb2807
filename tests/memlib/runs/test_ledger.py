"""Earlier audits of the same data are recorded once, and said with the number of the look."""

import pytest

from memlib.audits import AUDITS
from memlib.audits.arrangement import stages_of
from memlib.audits.deja_vu.generating import GenerateTrain
from memlib.audits.deja_vu.reconstruction.judging import TrainJudge
from memlib.audits.membership.shadows import FitEstimators
from memlib.runs.ledger import TRAINED, Past, entry, formerly_in_words, in_words, look_of, planned_looks, trained_in
from memlib.runs.records import Ledger, RunEntry
from memlib.training.fit import Train


def run(
    name: str, data: str, finished: float, p: float | None = 0.5, word: str = "inconclusive", **recorded: object
) -> RunEntry:
    return {
        "run": name, "audit": "a", "title": "t", "finished": finished, "verdict": {"word": word, "sentence": ""},
        "findings": [{"metric": "m", "params": "{}", "value": 1.0, "p_value": p, "verdict": word}],
        "ledger": {"data": data, **recorded},
        "cells": {}, "scores": None, "asks": "", "memlib": "", "refs": [], "mark": (1, 1.0),
    }  # fmt: skip


def past(runs: list[RunEntry]) -> list[Past]:
    return [Past.of(one) for one in runs]


def test_ledger_records_earlier_audits_of_the_same_data() -> None:
    store = [run("b", "d", 2.0, p=0.01, word="shown"), run("a", "d", 1.0), run("c", "other", 3.0), run("e", "d", 4.0, p=None)]
    made = entry(past(store), "new", "a", Ledger(data="d", look="new"))
    assert [one.run for one in made.earlier] == ["a", "b", "e"]
    assert "3 earlier audits of the same data in this store: 2 with a test, 1 with the verdict 'shown'" in in_words(made)
    assert look_of(made, "a").in_words().startswith("Look 3 at these data in this store; the verdict does not allow")
    assert (
        look_of(entry(past(store), "new", "another question", Ledger(data="d", look="new")), "another question").number == 1
    )
    published = made.model_copy(update={"earlier": []})
    assert (in_words(published), look_of(published, "a")) == (in_words(made), look_of(made, "a"))
    older = made.model_copy(update={"number": None, "is_paid_for": None, "audits": 0, "tests": 0, "shown": 0})
    assert (in_words(older), look_of(older, "a")) == (in_words(made), look_of(made, "a"))


def test_a_run_names_the_runs_that_no_other_names() -> None:
    first, second = run("first", "d", 1.0), run("second", "other", 2.0)
    chain = [entry(past([]), "first", "a", Ledger()), entry(past([first]), "second", "a", Ledger(data="other"))]
    assert [one.previous for one in chain] == [[], ["first"]]
    second = run("second", "other", 2.0, previous=["first"])
    beside = run("beside", "d", 2.0, previous=["first"])  # of another driver at the same time
    assert entry(past([first, second, beside]), "new", "a", Ledger()).previous == ["beside", "second"]
    gone = Past.of_deleted(Past.of(beside).deleted)  # as a store remembers a run that was deleted
    assert (gone.line, gone.data, gone.previous) == (Past.of(beside).line, "d", ["first"])
    again = entry([*past([first, second]), gone], "new", "a", Ledger(data="d", look="new"))
    assert (again.previous, again.number) == (["beside", "second"], 3)


def test_the_same_examples_in_another_file_are_the_same_data() -> None:
    store = [run("copy", "other file", 1.0, examples=["1", "2", "9"]), run("others", "third file", 2.0, examples=["2", "7"])]
    made = entry(past(store), "new", "a", Ledger(data="d", look="new", examples=["1", "2", "3"]))
    assert [one.run for one in made.earlier] == ["copy"]


def test_cells_of_one_sweep_count_as_one_look() -> None:
    cells = [run(name, "d", number, look="sweep") for number, name in enumerate("xyz")]
    assert look_of(entry(past(cells), "w", "a", Ledger(data="d", look="sweep")), "a").in_words() == ""
    after = entry(past(cells), "new", "a", Ledger(data="d", look="new"))
    assert look_of(after, "a").in_words().startswith("Look 2 at these data")


def test_the_ledger_allows_for_planned_looks_but_not_for_further_ones() -> None:
    store = [run("first", "d", 1.0, planned=2)]
    made = entry(past(store), "new", "a", Ledger(data="d", look="new", planned=2))
    assert look_of(made, "a").in_words() == "Look 2 of 2 planned at these data: each is tested at alpha / 2."
    third = entry(past([*store, run("second", "d", 2.0)]), "new", "a", Ledger(data="d", look="new", planned=2))
    assert "Look 3 at these data in this store, of which 2 were planned now; the verdict" in look_of(third, "a").in_words()
    late = entry(past([run("first", "d", 1.0)]), "new", "a", Ledger(data="d", look="new", planned=2))
    assert "does not allow" in look_of(late, "a").in_words()  # the first look spent all of alpha
    assert planned_looks({"decode": {"looks": 3}, "title": "t"}) == 3
    assert planned_looks({"decode": {"k": [3]}}) == 1


@pytest.mark.parametrize(
    ("p_value", "said"),
    [
        (0.035, "Shown only if this were the first look at these data: look 2 at these data in this store; the verdict does"),
        (0.035, "Allowing for 2 looks, p is 0.07, above the level of 0.05. Treat the result as inconclusive"),
        (0.02, "Allowing for 2 looks, p is 0.04, still at most the level of 0.05."),
        (0.6, ""),
    ],
)
def test_the_text_of_a_further_look_states_its_effect_on_the_p_value(p_value: float, said: str) -> None:
    made = entry(past([run("first", "d", 1.0)]), "new", "a", Ledger(data="d", look="new"))
    text = look_of(made, "a").in_words(p_value, 0.05)
    assert said in text
    assert ("Allowing for" in text) == bool(said)
    assert "unadjusted for earlier looks" in formerly_in_words(made, "a")  # pages published before are still verified


def test_an_audit_scored_again_from_the_same_models_is_not_a_further_look() -> None:
    store = [run("before", "d", 1.0) | {"asks": "same"}, run("other", "d", 2.0) | {"asks": "another recipe"}]
    ledger = Ledger(data="d", look="new")
    assert [one.run for one in entry(past(store), "new", "a", ledger, again=["before"]).earlier] == ["other"]
    assert [one.run for one in entry(past(store), "new", "a", ledger).earlier] == ["before", "other"]
    assert trained_in(["train/a", "train_nets/b", "score/c", "decode/d"]) == {"train/a", "train_nets/b"}


def test_models_of_every_audit_count_as_trained() -> None:
    """Generators and judges of reconstructions are not audited models."""
    kinds = {kind for audit in AUDITS.values() for kind in stages_of(audit)} - {GenerateTrain, TrainJudge}
    training = {
        kind.declared.name
        for kind in kinds
        if issubclass(kind, (Train, FitEstimators)) or "Nets" in str(kind.open.__annotations__.get("return"))
    }
    assert training == set(TRAINED)
