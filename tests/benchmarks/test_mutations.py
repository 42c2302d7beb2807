"""Mutations: changes of single expressions by hand, drawn by module and operator, swapped into a running function."""

import ast
from collections import Counter

import pytest

from benchmarks import mutations
from benchmarks.mutations import EQUIVALENT, Mutation, apart, changed, drawn, listed, mutated, sites, swap
from memlib.stats.inference import exceedance_p, threshold_rank


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a < b", ["a <= b"]),
        ("a >= 2", ["a > 2"]),
        ("a == b", ["a != b"]),
        ("a < b < c", []),  # two comparisons at once
        ("a is b", []),
        ("3", ["4"]),
        ("0.5", ["1.5"]),
        ("True", []),
        ("'text'", []),
        ("a + b", ["a", "b"]),
        ("a - b", ["a"]),
        ("a ** 2", ["a"]),
        ("a % b", []),
    ],
)
def test_an_expression_is_changed_by_its_operator(old: str, new: list[str]) -> None:
    assert [ast.unparse(expression) for _, expression in changed(ast.parse(old, mode="eval").body)] == new


def test_changes_are_drawn_by_module_and_operator_and_again_alike() -> None:
    found = drawn(3, 30)
    assert found == drawn(3, 30) != drawn(4, 30)
    assert len(set(found)) == len({one.module for one in found}) == 30
    kinds = Counter(kind for one in found for kind in mutations.OPERATORS if one in sites(one.module, kind))
    assert set(kinds.values()) == {10}


def test_every_listed_drawn_and_equivalent_change_fits_the_code() -> None:
    for mutation in [*listed(), *drawn(1, 30), *EQUIVALENT]:
        assert mutated(mutation).co_name == mutation.function.split(".")[-1]


def test_a_change_is_made_in_a_fork_alone() -> None:
    def changed_p() -> float:
        swap(Mutation("memlib.stats.inference", "exceedance_p", "num_controls + 1 - rank", "num_controls - rank"))
        return exceedance_p(1, 1, rank=5, num_controls=99)

    assert apart(changed_p, 60) == pytest.approx(5 / 99)
    assert exceedance_p(1, 1, rank=5, num_controls=99) == pytest.approx(5 / 100)


def test_a_change_that_never_ends_is_ended() -> None:
    def forever() -> None:
        while threshold_rank(99, 0.05):
            pass

    assert apart(forever, 0.2) is None
