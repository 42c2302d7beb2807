"""The preflight of canaries: batches that were made by hand, with one fault each."""

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from memlib.errors import UserError
from memlib.observe.canary_checks import ENOUGH, BatchCheck, CanaryIndex, check_batch, check_dataset, same_random_states

RNG = np.random.default_rng(0)
CANARIES = [tuple(row) for row in RNG.integers(10, 90, size=(20, 14)).tolist()]
INDEX = CanaryIndex(CANARIES)


def row(number: int, *, start: int = 0, stop: int = 14, length: int = 20) -> list[int]:
    """A canary in other text (token 1), or a part of it."""
    inner = [1, 1, *CANARIES[number][start:stop]]
    return inner + [1] * (length - len(inner))


def check(ids: list[list[int]], labels: Any = None, **settings: Any) -> BatchCheck:
    return check_batch(
        {"input_ids": torch.tensor(ids), "labels": torch.tensor(ids if labels is None else labels)}, INDEX, **settings
    )


def test_a_correct_batch_has_no_problem() -> None:
    result = check([row(0), row(5), [1] * 20], model=torch.nn.Linear(1, 1))
    assert result == BatchCheck(seen=2, found=2, cut=0, masked=0, part_masked=0, problems=())


@pytest.mark.parametrize(
    ("ids", "labels", "said"),
    [
        ([row(0)], [[-100] * 20], "labels are -100 on all tokens of 1 of 1 canary"),
        ([row(0)], [[-100] * 8 + row(0)[8:]], "labels are -100 on some tokens of 1 of 1 canary"),
        (
            [row(0)],
            [[*row(0)[1:], 1]],
            "labels differ from the input tokens in some of 1 canary; leave shifting",
        ),
        ([row(0, stop=9), row(1)], None, "tokens are missing from 1 of 2 canaries; raise the maximum length"),
        ([row(0, start=6)], None, "tokens are missing from 1 of 1 canary"),
        ([[1] * 20], None, "no canary was found; add insert.jsonl"),
        ([row(0, stop=4)], None, "no canary was found"),
    ],
)
def test_each_fault_of_a_batch_is_reported_as_one_problem(ids: list[list[int]], labels: Any, said: str) -> None:
    problems = check(ids, labels).problems
    assert len(problems) == 1
    assert problems[0].startswith(said)


def test_a_missing_label_and_a_frozen_model_are_problems() -> None:
    frozen = torch.nn.Linear(1, 1).requires_grad_(False)
    result = check_batch({"input_ids": [row(0)]}, CANARIES, model=frozen)
    assert [problem.split(";")[0] for problem in result.problems] == [
        "no parameter of the model requires a gradient",
        "there are no labels, so that the model computes no loss",
    ]


def test_a_few_cut_canaries_are_a_remark() -> None:
    """Canaries are cut where texts are packed into blocks."""
    result = check([row(number) for number in range(9)] + [row(9, stop=8)])
    assert result.problems == ()
    assert result.remarks == ("tokens are missing from 1 of 10 canaries, as happens when texts are packed into blocks",)


def test_the_ends_of_a_canary_may_merge_with_the_text_around_it() -> None:
    merged = row(3)
    merged[2], merged[15] = 7, 8  # the first and the last token of the canary
    assert check([merged]).problems == ()


def test_canaries_are_recognized_by_the_tokens_that_they_do_not_share() -> None:
    shared = [[5, 6, 7, 8, 9, *own] for own in ([20, 21, 22, 23, 24, 25], [30, 31, 32, 33, 34, 35])]
    found = CanaryIndex(shared).find(np.array([1, *shared[1], 1]))
    assert [occurrence.canary for occurrence in found] == [1]
    with pytest.raises(UserError, match="cannot be told apart"):
        CanaryIndex([[1, 2, 3, 4, 5]] * 2)


def test_short_canaries_are_found_by_all_their_tokens() -> None:
    index = CanaryIndex([[4, 5], [4, 6]])
    assert [one.canary for one in index.find(np.array([9, 4, 6, 9]))] == [1]
    assert index.find(np.array([9])) == []


def test_digits_of_other_numbers_are_not_taken_for_canaries() -> None:
    """If tokens are single digits, any four of them soon occur in another number."""
    digits = np.random.default_rng(1).integers(0, 10, size=(500, 20))
    index = CanaryIndex(digits[:60].tolist())
    assert all(index.find(row) == [] for row in digits[60:])
    assert all([one.canary for one in index.find(row)] == [number] for number, row in enumerate(digits[:60]))


def collate(items: list[dict[str, list[int]]]) -> dict[str, Any]:
    random.random(), np.random.random(), torch.rand(1)  # as collators that mask at random
    ids = torch.tensor([item["input_ids"] for item in items])
    return {"input_ids": ids, "labels": ids}


INSIDE = np.arange(20) % 2 == 0


def with_others(numbers: Iterable[int]) -> list[dict[str, list[int]]]:
    return [{"input_ids": [1] * 20 if other else row(number)} for number in numbers for other in range(3)]


@pytest.mark.parametrize(
    ("numbers", "repeats", "said"),
    [
        (range(0, 20, 2), 1, ""),
        ([*range(0, 20, 2)] * 2, 2, ""),
        (range(20), 1, "10 of 10 canaries whose coin is 'out' are in the training data; add insert.jsonl, not all.jsonl"),
        (range(1, 20, 2), 1, "10 of 10 inserted canaries are not in the training data; add the whole of insert.jsonl"),
        ([0], 1, "9 of 10 inserted canaries are not in the training data; add the whole of insert.jsonl"),
    ],
)
def test_training_data_must_hold_the_inserted_canaries_and_no_others(numbers: Iterable[int], repeats: int, said: str) -> None:
    problems = check_dataset(with_others(numbers), collate, INDEX, inside=INSIDE, repeats=repeats).problems
    assert said in problems if said else problems == ()


def test_canaries_that_occur_more_often_than_asked_for_are_remarked_on() -> None:
    (remark,) = check_dataset(with_others([*range(0, 20, 2)] * 3), collate, INDEX, inside=INSIDE).remarks
    assert remark.startswith("a canary is in 3 rows on average, where 1 time was asked for; keep repeated texts")
    (remark,) = check_dataset(with_others(range(0, 20, 2)), collate, INDEX, inside=INSIDE, repeats=4).remarks
    assert remark.startswith("a canary is in 1 rows on average, where 4 times were asked for")


def test_a_part_of_a_canary_that_was_not_inserted_may_be_in_the_data_by_chance() -> None:
    rows = [*with_others(range(0, 20, 2)), {"input_ids": row(1, start=1, stop=8)}]
    assert check_dataset(rows, collate, INDEX, inside=INSIDE).problems == ()


def test_without_coins_all_canaries_are_a_problem_and_few_a_remark() -> None:
    many = [tuple(one) for one in RNG.integers(10, 90, size=(60, 14)).tolist()]
    index = CanaryIndex(many)

    def problems(count: int) -> tuple[str, ...]:
        return check_dataset([{"input_ids": [1, *one, 1]} for one in many[:count]], collate, index).problems

    assert problems(33) == ()
    assert "60 of 60 canaries are in the training data, where fair coins choose about half; add insert" in problems(60)[0]
    assert problems(3) == ()  # another process may hold the other data
    (few,) = check_dataset([{"input_ids": [1, *one, 1]} for one in many[:3]], collate, index).remarks
    assert few.startswith("3 of 60 canaries are in the training data, where fair coins choose about half; add the whole")
    missing = check_dataset([{"input_ids": [1] * 20}] * 30, collate, INDEX)
    assert missing.problems[0].startswith("no canary was found")
    assert len(missing.problems) == 1


def test_items_that_the_collator_tokenizes_are_searched() -> None:
    def tokenized(items: list[str]) -> dict[str, Any]:
        ids = [[int(token) for token in item.split()] for item in items]
        return {"input_ids": ids, "labels": ids}

    texts = [" ".join(map(str, row(number))) for number in range(20)]
    found = check_dataset(["1 1"] * 50 + texts, tokenized, INDEX)
    assert found.problems == ()
    assert ENOUGH <= found.seen < 20
    assert f"the first {found.seen} canaries were looked at" in found.remarks[0]


@pytest.mark.usefixtures("own_draws")
def test_the_check_of_a_data_set_restores_random_states() -> None:
    def states() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), torch.rand(1).item()

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = states()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    check_dataset([{"input_ids": row(0)}], collate, INDEX)
    with same_random_states():
        states()
    assert states() == expected
