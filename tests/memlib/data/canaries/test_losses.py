"""Losses of canaries: scores in the order of the coins, and files that would bias the audit."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memlib.data.canaries.losses import LOSSES, read_losses, read_tokenized, score_canaries, write_losses
from memlib.errors import UserError


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


def test_scores_are_relative_to_the_base_in_the_order_of_the_coins() -> None:
    scores = score_canaries(table(BASE + MIDDLE + LAST), ["b", "a"])
    assert (scores.values.tolist(), scores.step, scores.relative) == ([7.0, 6.0], 9, True)
    assert score_canaries(table(BASE + MIDDLE + LAST), ["a", "b"], step=7).values.tolist() == [5.0, 3.0]


def test_scores_without_a_base_are_minus_the_loss() -> None:
    scores = score_canaries(table(LAST), ["a", "b"])
    assert (scores.values.tolist(), scores.relative) == ([-3.0, -1.0], False)


@pytest.mark.parametrize(
    ("rows", "step", "said"),
    [
        (BASE, None, "no losses of a trained model at step 0; recorded steps: 0"),
        (BASE + LAST, 8, "no losses of a trained model at step 8; recorded steps: 0, 9"),
        ([], None, "recorded steps: none"),
        (BASE + LAST[:1], None, "step 9 has 1 losses of 1 canaries, of which 1 are among the 2"),
        (BASE + LAST + LAST[:1], None, "step 9 has 3 losses of 2 canaries"),
        ([*LAST, ("c", 1.0, 1, 9)], None, "step 9 has 3 losses of 3 canaries, of which 2 are among the 2"),
        ([("a", 9.0, 4, 0), *BASE[1:], *LAST], None, "numbers of tokens of canaries differ between steps"),
    ],
)
def test_losses_must_have_one_row_per_canary(rows: list[tuple[str, float, int, int]], step: int | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        score_canaries(table(rows), ["a", "b"], step=step)


def test_losses_are_written_privately_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "l.parquet"
    write_losses(path, [table(BASE), table(LAST)])
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_losses(path).to_pylist() == table(BASE + LAST).to_pylist()
    with pytest.raises(UserError, match="already exists"):
        write_losses(path, [table(BASE)])


def test_losses_of_a_diverged_training_are_refused(tmp_path: Path) -> None:
    for number, value in enumerate((float("nan"), float("inf"), None)):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(table(BASE).set_column(1, "loss_sum", pa.array([1.0, value])), path)
        with pytest.raises(UserError, match="missing or not finite"):
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
