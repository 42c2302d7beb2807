"""The table of kills: each way in which a kill can lose something is seen."""

import pytest

from benchmarks.imagenet import Outcome

BEFORE = {"split/a": "1", "embed/a": "2"}
AFTER = {**BEFORE, "embed/b": "3", "score/a": "4"}


def test_a_kill_within_a_stage_that_loses_nothing_has_no_faults() -> None:
    outcome = Outcome("embed", BEFORE, AFTER, equal=True)
    assert not outcome.faults
    assert (
        str(outcome) == "killed in embed, 1 of its 2 parts done: 2 artifacts were there, none was made again, equal findings"
    )


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (Outcome("embed", BEFORE, AFTER | {"split/a": "9"}, equal=True), "1 of them were made again"),
        (Outcome("embed", BEFORE, {"embed/a": "2", "embed/b": "3"}, equal=True), "1 of them were made again"),
        (Outcome("split", BEFORE, AFTER, equal=True), "the stage was finished before the kill"),
        (Outcome("decode_block", BEFORE, AFTER, equal=True), "the stage was finished before the kill"),
        (Outcome("embed", BEFORE, AFTER, equal=False), "the findings differ"),
    ],
)
def test_a_fault_is_printed(outcome: Outcome, fault: str) -> None:
    assert outcome.faults == [fault]
    assert str(outcome).endswith(f"FAILED: {fault}")
