"""Files of the losses of canary documents, as a trainer returns them, and attack scores computed from the losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.data.opening import ParquetContent, read_parquet
from memlib.errors import UserError
from memlib.store.permissions import PRIVATE, write_file
from memlib.tables import FLOAT, INT, TEXT, Column, Table, write_table

BASE_STEP = 0  # before the training

LOSSES = Table(
    name="canary_losses",
    version=1,
    meaning="The model's loss on each canary document, one row per canary and step.",
    columns=(
        Column("canary", TEXT, "", "id of the canary in all.jsonl"),
        Column("loss_sum", FLOAT, "nat", "minus the log-probability of the canary's random part"),
        Column("loss_mean", FLOAT, "nat per token", "loss_sum divided by tokens"),
        Column("tokens", INT, "token", "tokens of the random part that the model predicts"),
        Column("step", INT, "step", "optimizer steps taken; 0: the model before the training"),
    ),
    keys=("canary", "step"),
)


@dataclass(frozen=True)
class CanaryScores:
    """Scores of a membership attack on canaries, higher for those that the model learned."""

    #: (num_canaries,), minus the loss in nats; if the base model's loss was recorded, its loss minus the model's.
    values: NDArray[np.float64]
    step: int  #: optimizer steps of the audited model.
    relative: bool  #: True if the scores are relative to the base model's loss.


def read_losses(path: Path) -> pa.Table:
    """Return the losses of canaries in a file of `write_losses`, with the columns of LOSSES.

    Raises:
        UserError: when the file cannot be read, lacks columns, or has losses that are missing or not finite.
    """
    try:
        table = read_parquet(str(path), str(path), LOSSES.arrow.names).cast(LOSSES.arrow)
    except (OSError, pa.ArrowException, ValueError) as error:
        columns = ", ".join(LOSSES.arrow.names)
        raise UserError(
            f"cannot read the losses of {path} ({type(error).__name__}); the file needs the columns {columns}"
        ) from error
    if table["loss_sum"].null_count or not pc.all(pc.is_finite(table["loss_sum"])).as_py():
        raise UserError(
            f"{path} has losses that are missing or not finite; audit a step at which the training had not diverged"
        )
    return table


def write_losses(path: Path, tables: Sequence[pa.Table]) -> None:
    """Write losses to a new file that only its owner can read.

    Raises:
        UserError: when the file exists or cannot be written.
    """
    try:
        write_file(path, b"", PRIVATE.file)  # private before its content
    except FileExistsError as error:
        raise UserError(f"{path} already exists; choose another file") from error
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror})") from error
    write_table(pa.concat_tables(list(tables)), LOSSES, path)


def read_tokenized(path: Path) -> tuple[list[dict[str, list[int]]], bool]:
    """Read tokenized training data from a Parquet file.

    Returns:
        items with input_ids and, if the file has the column, labels; True if the file has labels.

    Raises:
        UserError: when the file cannot be read or has no input_ids.
    """
    try:
        content = ParquetContent(str(path), str(path))
        labelled = "labels" in content.schema.names
        items = content.read(["input_ids", *(["labels"] if labelled else [])]).to_pylist()
    except (OSError, pa.ArrowException, ValueError) as error:
        raise UserError(f"cannot read {path} ({type(error).__name__}); name a Parquet file") from error
    if not items or any(not isinstance(value, list) for value in items[0].values()) or "input_ids" not in items[0]:
        raise UserError(f"{path} has no lists of tokens in a column input_ids; name tokenized training data")
    return items, labelled


def score_canaries(losses: pa.Table, canaries: Sequence[str], *, step: int | None = None) -> CanaryScores:
    """Compute scores in the order of the canaries: the log ratio of the model to its base, else minus the loss.

    Args:
        losses: table LOSSES.
        canaries: ids, in the order of the coins.
        step: step of the audited model; by default the last.

    Raises:
        UserError: when the step was not recorded, a canary has no loss or several at a step (the scored canaries would then
            not be those of the coins), or numbers of tokens differ between steps.
    """
    steps = sorted(set(losses["step"].to_pylist()))
    audited: int = (steps or [BASE_STEP])[-1] if step is None else step
    if audited not in steps or audited == BASE_STEP:
        listed = ", ".join(map(str, steps)) or "none"
        raise UserError(f"no losses of a trained model at step {audited}; recorded steps: {listed} (0 is the base model)")
    final, tokens = _at(losses, audited, canaries)
    if BASE_STEP not in steps:
        return CanaryScores(-final, audited, relative=False)
    base, base_tokens = _at(losses, BASE_STEP, canaries)
    if not np.array_equal(tokens, base_tokens):
        raise UserError("numbers of tokens of canaries differ between steps; record all losses with the same tokenizer")
    return CanaryScores(base - final, audited, relative=True)


def _at(losses: pa.Table, step: int, canaries: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the losses (num_canaries,) and numbers of tokens (num_canaries,) at a step."""
    rows = losses.filter(pc.equal(losses["step"], step))
    names = rows["canary"].to_pylist()
    place = {name: row for row, name in enumerate(names)}
    if len(place) < len(names) or place.keys() != set(canaries):
        known = len(place.keys() & set(canaries))
        raise UserError(
            f"step {step} has {len(names):,} losses of {len(place):,} canaries, of which {known:,} are among the "
            f"{len(canaries):,} canaries with coins; record one loss of each of these and of no others"
        )
    order = [place[name] for name in canaries]
    return rows["loss_sum"].to_numpy()[order], rows["tokens"].to_numpy()[order]
