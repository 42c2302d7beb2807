"""Rankings of several audits, joined: places and p-values solved by hand, a plant, and the null of records named together."""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from memlib.audits.dossier.report import _power_of_list
from memlib.audits.dossier.risk import Ranked, at_risk, fewest_that_can_pass, named_together
from memlib.audits.ranking import CANARY, EXAMPLE, Ranking

NAMES = tuple("abcdefgh")


def ranked(run: str, scores: list[float], p_values: list[float] | None = None, members: list[bool] | None = None) -> Ranked:
    """Return a ranking of the first examples."""
    count = len(scores)
    ranking = Ranking(
        name="score",
        kind=EXAMPLE,
        ids=NAMES[:count],
        scores=np.array(scores, dtype=float),
        members=np.array([True] * count if members is None else members),
        p_values=None if p_values is None else np.array(p_values),
        references=None if p_values is None else 9,
    )
    return Ranked(run, "membership", ranking)


def test_at_risk_multiplies_the_smallest_p_value_by_the_number_of_p_values() -> None:
    first, second = ranked("1", [3, 2, 1], [0.1, 0.2, 0.9]), ranked("2", [1, 2, 3], [0.9, 0.15, 0.3])
    rows = at_risk([first, second], {}, share=0.3).to_pylist()
    assert [row["id"] for row in rows] == ["a", "b", "c"]
    assert [row["p_value"] for row in rows] == pytest.approx([0.2, 0.3, 0.6])
    assert [row["p_adjusted"] for row in rows] == pytest.approx([0.45, 0.45, 0.6])  # Benjamini and Hochberg over three rows
    assert [row["smallest_p"] for row in rows] == pytest.approx([0.2] * 3)
    assert [row["named"] for row in rows] == [1, 0, 1]


def test_at_risk_joins_the_examples_of_a_group() -> None:
    only = ranked("1", [4, 3, 2, 1], [0.1, 0.2, 0.4, 0.8])
    rows = at_risk([only], {"b": "Anna", "c": "Anna", "d": "Anna"}, share=0.25).to_pylist()
    assert [(row["kind"], row["id"], row["examples"]) for row in rows] == [("example", "a", 1), ("group", "Anna", 3)]
    assert rows[1]["p_value"] == pytest.approx(3 * 0.2)
    assert json.loads(rows[1]["found"]) == [
        {"run": "1", "by": "score", "score": 3.0, "place": 2, "members": 4, "p": 0.2}
    ]  # her best place


def test_a_person_whom_an_audit_ranks_as_one_record_keeps_the_number_of_her_examples() -> None:
    ranking = Ranking(
        "lira", EXAMPLE, ["p1/0", "p2/0"], np.array([3.0, 1.0]), np.array([True, True]), sizes=np.array([60, 1])
    )
    persons = {f"p1/{n}": "p1" for n in range(60)} | {"p2/0": "p2"}
    rows = at_risk([Ranked("1", "membership", ranking)], persons, share=0.01).to_pylist()
    assert [(row["id"], row["examples"]) for row in rows] == [("p1", 60), ("p2", 1)]
    twice = Ranking("self_influence", EXAMPLE, ["p1/0", "p1/1"], np.array([2.0, 1.0]), np.array([True, True]))
    both = [Ranked("1", "membership", ranking), Ranked("2", "self_influence", twice)]
    assert at_risk(both, persons, share=0.01)["examples"].to_pylist()[0] == 60


def test_equal_ids_of_other_data_are_other_records() -> None:
    one, other = replace(ranked("1", [3, 2]), data="d"), replace(ranked("2", [3, 2]), data="e")
    rows = at_risk([one, other], {}, share=0.5).to_pylist()
    assert sorted((row["id"], row["data"], row["examined"]) for row in rows) == [
        ("a", "d", 1), ("a", "e", 1), ("b", "d", 1), ("b", "e", 1),
    ]  # fmt: skip
    assert {row["examined"] for row in at_risk([one, replace(other, data="d")], {}, share=0.5).to_pylist()} == {2}


def test_at_risk_lists_members_alone_and_keeps_kinds_apart() -> None:
    examples = ranked("1", [4, 3, 2, 1], members=[True, False, True, False])
    canaries = Ranked("2", "exposure", Ranking("exposure", CANARY, ["a"], np.array([9.0]), np.array([True])))
    rows = at_risk([examples, canaries], {}, share=0.5).to_pylist()
    assert {(row["kind"], row["id"]) for row in rows} == {("example", "a"), ("example", "c"), ("canary", "a")}
    assert all(row["p_value"] is None and row["p_adjusted"] is None for row in rows)


def test_canaries_of_two_runs_are_different_ones() -> None:
    ranking = Ranking("exposure", CANARY, ["3"], np.array([9.0]), np.array([True]))
    other = Ranking("exposure", CANARY, ["3"], np.array([8.0]), np.array([True]))
    rows = at_risk([Ranked("1", "exposure", ranking), Ranked("2", "exposure", other)], {}, share=0.5).to_pylist()
    assert [(row["id"], row["named"], row["examined"]) for row in rows] == [("3", 1, 1)] * 2
    twins = at_risk([Ranked("1", "exposure", ranking), Ranked("2", "exposure", ranking)], {}, share=0.5).to_pylist()
    assert [(row["id"], row["named"], row["examined"]) for row in twins] == [("3", 2, 2)]  # two runs of the same scores


def test_at_risk_names_none_of_the_records_that_tie_over_the_limit() -> None:
    rows = at_risk([ranked("1", [5, 1, 1, 1])], {}, share=0.5).to_pylist()  # two may be named, three tie for the second place
    assert [row["named"] for row in rows] == [1, 0, 0, 0]


def test_fewest_that_can_pass_is_solved_by_hand() -> None:
    scores, p_values = list(map(float, range(8))), [0.5] * 8
    risk = at_risk([ranked("1", scores, p_values)], {}, share=0.1)
    assert fewest_that_can_pass(risk, 0.2) == 4  # 8 rows, none below 1 / 10: 8 * .1 / k <= .2
    assert fewest_that_can_pass(at_risk([ranked("1", scores)], {}, share=0.1), 0.2) is None


def draws(members: NDArray[np.bool_], *columns: NDArray[np.float64]) -> list[Ranked]:
    """Return several scores of one run on one draw of the members."""
    ids, strata = [str(number) for number in range(len(members))], np.arange(len(members)) % 2
    return [
        Ranked("1", "membership", Ranking(str(place), EXAMPLE, ids, column, members, strata=strata))
        for place, column in enumerate(columns)
    ]


def test_named_together_holds_its_level_where_scores_depend_on_one_another() -> None:
    rng, rejected = np.random.default_rng(0), 0
    for _ in range(200):
        hardness = rng.normal(size=400)
        columns = [hardness + 0.2 * rng.normal(size=400) for _ in range(3)]  # name the same hard records, member or not
        (row,) = named_together(draws(rng.random(400) < 0.5, *columns), share=0.05)
        assert row.n > 10
        rejected += row.p_value is not None and row.p_value <= 0.05
    assert rejected <= 18  # binomial(200, .05): at most 18 in .994 of cases


def test_named_together_finds_memory_that_several_scores_share() -> None:
    rng = np.random.default_rng(1)
    members = rng.random(400) < 0.5
    memory = members * (rng.random(400) < 0.1) * 4.0
    (row,) = named_together(draws(members, *(memory + rng.normal(size=400) for _ in range(3))), share=0.05)
    assert row.p_value is not None
    assert row.p_value <= 0.01
    assert row.value > (row.null_value or 0)


def test_named_together_joins_only_scores_on_the_same_draw() -> None:
    rng = np.random.default_rng(2)
    members = rng.random(100) < 0.5
    one, other = draws(members, rng.normal(size=100)), draws(~members, rng.normal(size=100))
    assert named_together([*one, *other], share=0.05) == []


def test_planted_records_come_first() -> None:
    rng = np.random.default_rng(3)
    count, ids = 500, [f"{number:03}" for number in range(500)]
    members = np.arange(count) % 2 == 0
    planted = {0, 100, 200}
    runs = []
    for run in ("1", "2"):
        scores = rng.normal(size=count) + np.array([8.0 if number in planted else 0.0 for number in range(count)])
        others = scores[~members]
        p_values = (1 + (others[None] >= scores[:, None]).sum(axis=1)) / (1 + len(others))
        ranking = Ranking("lira", EXAMPLE, ids, scores, members, p_values, references=len(others))
        runs.append(Ranked(run, "membership", ranking))
    rows = at_risk(runs, {}, share=0.01).to_pylist()
    assert {row["id"] for row in rows[:3]} == {"000", "100", "200"}
    assert all(row["named"] == 2 for row in rows[:3])


def test_the_list_speaks_of_the_records_with_a_p_value_alone() -> None:
    found = at_risk(
        [ranked("a", [3.0, 2.0, 1.0], [0.9, 0.9, 0.9]), ranked("b", [3.0, 2.0], members=[True, True])], {}, share=0.5
    )
    said = _power_of_list(found)
    assert said.startswith(
        "Of the 3 records with a p-value, no single one is shown to stand out from records that the model was"
    )
    named = at_risk([ranked("a", [3.0, 2.0, 1.0], [0.001, 0.9, 0.9])], {}, share=0.5)
    assert _power_of_list(named).startswith("Of the 3 records with a p-value, 1 stands out from records that")
    assert _power_of_list(at_risk([ranked("a", [1.0])], {}, share=0.5)).endswith("nobody is singled out.")
