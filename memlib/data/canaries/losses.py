"""Files of the losses of canary documents, as a trainer returns them, and attack scores computed from the losses."""

import itertools
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.data.opening import ParquetContent
from memlib.errors import UserError
from memlib.stats.canaries import Plan
from memlib.store.permissions import PRIVATE, write_file
from memlib.tables import FLOAT, INT, TEXT, Column, Table, write_table

BASE_STEP = 0  # before the training
NAMES = (b"memlib.looks", b"memlib.repeated", b"memlib.stopped", b"memlib.canaries", b"memlib.plan")  # of metadata

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
class Served:
    """A service that was asked for canaries, and its answers."""

    host: str  #: host, model: where it is, and its name there.
    model: str
    level: Literal["scores", "probabilities", "text"]  #: what it gives.
    said: str  #: the level, in a sentence.
    requests: int  #: number of requests.
    when: str  #: date of the first.
    noise: float  #: difference of mean log probabilities between equal requests, in nats a token.
    forced: bool  #: whether generated text alone was asked for, whatever the service gives.
    changed: str  #: how the model changed during the audit; "" if it did not.
    remarks: tuple[str, ...]
    draws: int  #: number of answers to each beginning; 0 where given texts were scored.
    #: by canary, the number of answers that brought the whole ending back; empty where given texts were scored.
    returned: Mapping[str, int]


@dataclass(frozen=True)
class Recorded:
    """The losses of canaries that a training recorded."""

    table: pa.Table  #: the losses, with the columns of LOSSES.
    #: step by number of the planned look; empty in files without looks, of which the last step is the last look.
    looks: Mapping[int, int] = field(default_factory=dict)
    repeated: tuple[int, ...] = ()  #: looks that a training which resumed from an earlier checkpoint passed once more.
    stopped: int | None = None  #: the look at which the test stopped the training, if the coins were at hand.
    canaries: str = ""  #: digest of the canaries; "" in files of earlier versions.
    plan: str = ""  #: digest of the plan of the looks; "" in files of earlier versions.
    asked: "Served | None" = None  #: the service that was asked; None for losses that a training recorded.

    def looks_in(self, plan: Plan) -> dict[int, int]:
        """Return the step of each look of a plan that was made; the base model is no look.

        Raises:
            UserError: for looks of another plan, out of order, or of steps without losses, and for a file without looks where
                several are planned.
        """
        steps = set(self.table["step"].to_pylist()) - {BASE_STEP}
        if self.plan not in ("", plan.digest):
            raise UserError(
                "the losses were recorded by another plan than that of the coins; record them with plan.json beside the "
                "canaries"
            )
        if not self.looks and plan.looks == 1:
            return {1: max(steps)} if steps else {}
        made = [self.looks[look] for look in sorted(self.looks)]
        in_order = all(first < second for first, second in itertools.pairwise(made))
        if not made or not in_order or not set(made) <= steps or not set(self.looks) <= set(range(1, plan.looks + 1)):
            raise UserError(
                f"the file of losses does not say at which steps the {plan.looks} planned looks were made, in their order; "
                "name the file as CanaryAudit, a callback or memlib canaries score wrote it"
            )
        return dict(self.looks)


@dataclass(frozen=True)
class CanaryScores:
    """Scores of a membership attack on canaries, higher for those that the model learned."""

    #: by step: (num_canaries,), minus the loss in nats; if the base model was recorded, its loss minus the model's; NaN
    #: where a loss is missing.
    values: Mapping[int, NDArray[np.float64]]
    relative: bool  #: True if the scores are relative to the base model's loss.


def read_losses(path: Path) -> Recorded:
    """Return the losses of canaries in a file of `write_losses`.

    Raises:
        UserError: when the file cannot be read, or lacks columns.
    """
    try:
        content = ParquetContent(str(path), str(path))
        table = content.read(LOSSES.arrow.names).cast(LOSSES.arrow)
        said = {name.decode(): json.loads(value) for name, value in (content.schema.metadata or {}).items() if name in NAMES}
        looks = {int(look): int(step) for look, step in said.get("memlib.looks", {}).items()}
        repeated, stopped = tuple(map(int, said.get("memlib.repeated", ()))), said.get("memlib.stopped")
        stopped = None if stopped is None else int(stopped)
        if any(table[name].null_count for name in ("canary", "step", "tokens")):
            raise ValueError("missing values")
    except (OSError, pa.ArrowException, ValueError, TypeError, AttributeError, OverflowError) as error:
        columns = ", ".join(LOSSES.arrow.names)
        raise UserError(
            f"cannot read the losses of {path} ({type(error).__name__}); the file needs the columns {columns}, and what it "
            "says of looks as it was written"
        ) from error
    return Recorded(
        table, looks, repeated, stopped, str(said.get("memlib.canaries", "")), str(said.get("memlib.plan", ""))
    )  # fmt: skip


def write_losses(path: Path, recorded: Recorded) -> None:
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
    write_table(recorded.table, LOSSES, path, metadata=_metadata(recorded))


def replace_losses(path: Path, recorded: Recorded) -> None:
    """Write losses to a file that only its owner can read, in place of an earlier one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)
        write_losses(part, recorded)
        os.replace(part, path)
    except OSError as error:
        raise UserError(f"cannot write the losses to {path} ({error.strerror}); name another file") from error


def _metadata(recorded: Recorded) -> dict[str, str]:
    found = {"memlib.looks": json.dumps({str(look): step for look, step in recorded.looks.items()})} if recorded.looks else {}
    found |= {"memlib.repeated": json.dumps(recorded.repeated)} if recorded.repeated else {}
    found |= {"memlib.canaries": json.dumps(recorded.canaries)} if recorded.canaries else {}
    found |= {"memlib.plan": json.dumps(recorded.plan)} if recorded.plan else {}
    return found | ({} if recorded.stopped is None else {"memlib.stopped": json.dumps(recorded.stopped)})


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


def score_canaries(losses: pa.Table, canaries: Sequence[str], *, steps: Collection[int]) -> CanaryScores:
    """Compute scores in the order of the canaries: the log ratio of the model to its base, else minus the loss.

    Args:
        losses: table LOSSES.
        canaries: ids, in the order of the coins.
        steps: steps of the audited models.

    Raises:
        UserError: when a step was not recorded, most canaries have no loss at a step, others than these have one or a canary
            has several (the scored canaries would then not be those of the coins), no loss is a finite number, or numbers of
            tokens differ between steps.
    """
    known = sorted(set(losses["step"].to_pylist()))
    if absent := [step for step in steps if step not in known or step == BASE_STEP]:
        listed = ", ".join(map(str, known)) or "none"
        raise UserError(f"no losses of a trained model at step {absent[0]}; recorded steps: {listed} (0 is the base model)")
    base, tokens = _at(losses, BASE_STEP, canaries) if BASE_STEP in known else (np.zeros(len(canaries)), None)
    values = {}
    for step in steps:
        final, counted = _at(losses, step, canaries)
        if tokens is not None and not np.array_equal(tokens[(tokens * counted) > 0], counted[(tokens * counted) > 0]):
            raise UserError("numbers of tokens of canaries differ between steps; record all losses with the same tokenizer")
        values[step] = base - final
    if values and not any(np.isfinite(one).any() for one in values.values()):
        raise UserError("no loss is a finite number: the training had diverged, and nothing can be said of it")
    return CanaryScores(values, relative=tokens is not None)


def _at(losses: pa.Table, step: int, canaries: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the losses (num_canaries,) and numbers of tokens (num_canaries,) at a step; NaN and 0 for missing ones."""
    rows = losses.filter(pc.equal(losses["step"], step))
    names = rows["canary"].to_pylist()
    place = {name: row for row, name in enumerate(names)}
    shared = len(place.keys() & set(canaries))
    if len(place) < len(names) or shared < len(place) or 2 * shared < len(canaries):
        raise UserError(
            f"step {step} has {len(names):,} losses of {len(place):,} canaries, of which {shared:,} are among the "
            f"{len(canaries):,} canaries with coins; record one loss of each of these and of no others"
        )
    number = {name: row for row, name in enumerate(canaries)}
    order = [number[name] for name in names]
    values, tokens = np.full(len(canaries), np.nan), np.zeros(len(canaries), dtype=np.int64)
    values[order] = rows["loss_sum"].to_numpy()
    tokens[order] = rows["tokens"].to_numpy()
    return np.where(np.isfinite(values), values, np.nan), tokens
