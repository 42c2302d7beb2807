"""Losses of canaries: scores in the order of the coins, and files that would bias the audit."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memlib.data.canaries.losses import (
    LOSSES,
    Recorded,
    read_losses,
    read_tokenized,
    replace_losses,
    score_canaries,
    write_losses,
)
from memlib.errors import UserError
from memlib.stats.canaries import Plan


def table(rows: list[tuple[str, float, int, int]]) -> pa.Table:
    """Rows of (canary, loss_sum, tokens, step)."""
    columns = {
        "canary": [row[0] for row in rows], "loss_sum": [row[1] for row in rows],
        "loss_mean": [row[1] / row[2] for row in rows], "tokens": [row[2] for row in rows], "step": [row[3] for row in rows],
    }  # fmt: skip
    return pa.table(columns, schema=LOSSES.arrow)


BASE, MIDDLE, LAST = (
    [("a", 9.0, 3, 0), ("b", 8.0, 2, 0)],
    [("b", 5.0, 2, 7), ("a", 4.0, 3, 7)],
    [("b", 1.0, 2, 9), ("a", 3.0, 3, 9)],
)


def scored(rows: list[tuple[str, float, int, int]], names: list[str], step: int) -> tuple[list[float], bool]:
    scores = score_canaries(table(rows), names, steps={step})
    return scores.values[step].tolist(), scores.relative


def test_scores_are_relative_to_the_base_in_the_order_of_the_coins() -> None:
    assert scored(BASE + MIDDLE + LAST, ["b", "a"], 9) == ([7.0, 6.0], True)
    assert scored(BASE + MIDDLE + LAST, ["a", "b"], 7) == ([5.0, 3.0], True)


def test_scores_without_a_base_are_minus_the_loss() -> None:
    assert scored(LAST, ["a", "b"], 9) == ([-3.0, -1.0], False)


@pytest.mark.parametrize(
    ("rows", "step", "said"),
    [
        (BASE, 0, "no losses of a trained model at step 0; recorded steps: 0"),
        (BASE + LAST, 8, "no losses of a trained model at step 8; recorded steps: 0, 9"),
        ([], 9, "recorded steps: none"),
        (BASE + LAST + LAST[:1], 9, "step 9 has 3 losses of 2 canaries"),
        ([*LAST, ("c", 1.0, 1, 9)], 9, "step 9 has 3 losses of 3 canaries, of which 2 are among the 2"),
        ([("a", 9.0, 4, 0), *BASE[1:], *LAST], 9, "numbers of tokens of canaries differ between steps"),
    ],
)
def test_losses_must_be_those_of_the_canaries(rows: list[tuple[str, float, int, int]], step: int, said: str) -> None:
    with pytest.raises(UserError, match=said):
        score_canaries(table(rows), ["a", "b"], steps={step})


def test_missing_losses_are_missing_scores_unless_most_are() -> None:
    names = ["a", "b", "c"]
    three = [*LAST, ("c", float("nan"), 1, 9)]
    assert np.isnan(scored(three, names, 9)[0]).tolist() == [False, False, True]
    assert np.isnan(scored(LAST, names, 9)[0]).tolist() == [False, False, True]
    with pytest.raises(UserError, match="step 9 has 1 losses of 1 canaries, of which 1 are among the 3"):
        score_canaries(table(LAST[:1]), names, steps={9})
    with pytest.raises(UserError, match="no loss is a finite number: the training had diverged"):
        score_canaries(table([(name, float("inf"), 1, 9) for name in names]), names, steps={9})


def test_losses_are_written_privately_and_read_back_with_their_looks(tmp_path: Path) -> None:
    path = tmp_path / "l.parquet"
    recorded = Recorded(table(BASE + MIDDLE + LAST), {1: 7, 2: 9}, (1,), 2)
    write_losses(path, recorded)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_losses(path) == recorded
    with pytest.raises(UserError, match="already exists"):
        write_losses(path, recorded)
    replace_losses(path, Recorded(table(BASE)))
    assert read_losses(path) == Recorded(table(BASE))
    assert [one.name for one in tmp_path.iterdir()] == ["l.parquet"]


def test_files_without_looks_have_their_last_step_as_the_only_look() -> None:
    assert Recorded(table(BASE + MIDDLE + LAST)).looks_in(Plan()) == {1: 9}
    assert Recorded(table(BASE)).looks_in(Plan()) == {}
    assert Recorded(table(BASE + LAST), {1: 9}).looks_in(Plan(looks=2)) == {1: 9}


@pytest.mark.parametrize(
    "recorded",
    [
        Recorded(table(BASE + MIDDLE + LAST)), Recorded(table(BASE + MIDDLE + LAST), {1: 9, 2: 9}),
        Recorded(table(BASE + MIDDLE + LAST), {1: 9, 2: 7}), Recorded(table(BASE + MIDDLE + LAST), {1: 7, 3: 9}),
        Recorded(table(BASE + LAST), {1: 8}), Recorded(table(BASE + LAST), {0: 9}),
    ],
    ids=["none", "one step twice", "backwards", "beyond the plan", "without losses", "before the first"],
)  # fmt: skip
def test_looks_that_no_training_makes_are_refused(recorded: Recorded) -> None:
    with pytest.raises(UserError, match="does not say at which steps the 2 planned looks were made, in their order"):
        recorded.looks_in(Plan(looks=2))


def test_losses_by_another_plan_are_refused() -> None:
    recorded = Recorded(table(BASE + LAST), {1: 9}, plan=Plan(looks=2).digest)
    assert recorded.looks_in(Plan(looks=2)) == {1: 9}
    with pytest.raises(
        UserError, match=r"recorded by another plan than that of the coins; record them with plan.json beside"
    ):
        recorded.looks_in(Plan(looks=2, alpha=0.1))


@pytest.mark.parametrize("name", ["looks", "stopped", "repeated"])
def test_damaged_metadata_of_losses_are_refused(name: str, tmp_path: Path) -> None:
    for number, said in enumerate(('"a"', "[[1]]", '{"1": 1e400}')):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table(BASE).replace_schema_metadata({f"memlib.{name}": said}), path)
        if (name, number) != ("repeated", 2):  # keys of a mapping are numbers, too
            with pytest.raises(UserError, match="and what it says of looks as it was written"):
                read_losses(path)


def test_files_without_losses_or_tokens_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "other.parquet")
    (tmp_path / "text.parquet").write_text("canary")
    for name in ("other.parquet", "text.parquet", "none.parquet"):
        with pytest.raises(UserError, match=r"cannot read the losses of .* the file needs the columns canary, loss_sum"):
            read_losses(tmp_path / name)
        with pytest.raises(UserError, match=r"cannot read|has no lists of tokens"):
            read_tokenized(tmp_path / name)


def test_tokenized_data_may_lack_labels(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [[1, 2]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"input_ids": [[1, 2]], "labels": [[-100, 2]], "more": ["x"]}), tmp_path / "b.parquet")
    assert read_tokenized(tmp_path / "a.parquet") == ([{"input_ids": [1, 2]}], False)
    assert read_tokenized(tmp_path / "b.parquet") == ([{"input_ids": [1, 2], "labels": [-100, 2]}], True)
