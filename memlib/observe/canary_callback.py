"""A callback for the Trainer of transformers: losses of canary documents are recorded, and their training is checked."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from memlib.data.canaries.documents import read_documents
from memlib.data.canaries.losses import BASE_STEP, LOSSES, read_losses
from memlib.errors import UserError
from memlib.observe.canary_checks import BatchCheck, CanaryIndex, check_dataset
from memlib.observe.canary_likelihoods import BATCH, EncodedCanary, encode_canaries, measure_losses
from memlib.store.permissions import PRIVATE, write_file
from memlib.tables import write_table

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise UserError("CanaryCallback needs transformers: pip install -e '.[huggingface]' in memlib's folder") from error

LOSSES_FILE = "canary_losses.parquet"


class CanaryCallback(TrainerCallback):
    """Recorder of the losses of canaries before the training, at chosen steps or epochs, and after it.

    The training itself is the same with and without it: the model's mode and all random states are restored.

    Args:
        canaries: all.jsonl, or the folder of `memlib canaries make`; coins.parquet is not read.
        losses: file of the losses; by default canary_losses.parquet in the trainer's output folder.
        tokenizer: the model's tokenizer; by default the trainer's processing_class.
        every_steps: also record every so many optimizer steps.
        every_epochs: also record every so many epochs.
        batch_size: number of canaries per forward pass.
        on_problem: "raise" ends the training before its first step if its data do not train on the canaries; "warn" warns.
    """

    def __init__(
        self,
        canaries: str | os.PathLike[str],
        *,
        losses: str | os.PathLike[str] | None = None,
        tokenizer: Any = None,
        every_steps: int | None = None,
        every_epochs: int | None = None,
        batch_size: int = BATCH,
        on_problem: Literal["raise", "warn"] = "raise",
    ) -> None:
        self._documents = read_documents(Path(canaries))
        self._losses = None if losses is None else Path(losses)
        self._tokenizer, self._batch_size, self._on_problem = tokenizer, batch_size, on_problem
        self._every_steps, self._every_epochs = every_steps, every_epochs
        self._encoded: Sequence[EncodedCanary] = ()
        self._table: pa.Table = LOSSES.arrow.empty_table()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check the training data, and record the losses of the model before the training."""
        self._encoded = encode_canaries(self._documents, self._tokenizer_of(kwargs.get("processing_class")))
        self._check(kwargs.get("train_dataloader"), kwargs["model"])
        if state.global_step > BASE_STEP:
            self._table = _recorded(self._file(args), state.global_step)
        else:
            self._record(args, state, kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the losses after every `every_steps` steps."""
        if self._every_steps and state.global_step % self._every_steps == 0:
            self._record(args, state, kwargs["model"])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the losses after every `every_epochs` epochs."""
        if self._every_epochs and round(state.epoch) % self._every_epochs == 0:
            self._record(args, state, kwargs["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the losses of the trained model even if the step is known, as the best checkpoint may have been loaded."""
        if state.global_step > BASE_STEP:
            self._table = self._table.filter(pc.not_equal(self._table["step"], state.global_step))
        self._record(args, state, kwargs["model"])

    def _tokenizer_of(self, processing: Any) -> Any:
        tokenizer = self._tokenizer if self._tokenizer is not None else getattr(processing, "tokenizer", processing)
        if tokenizer is None:
            raise UserError("the trainer has no tokenizer; give it one as processing_class, or CanaryCallback as tokenizer")
        return tokenizer

    def _check(self, loader: Any, model: Any) -> None:
        dataset = getattr(loader, "dataset", None)
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            warnings.warn("the training data are a stream, which is not searched for canaries; use check_batch", stacklevel=2)
            return
        result = check_dataset(dataset, loader.collate_fn, CanaryIndex.of(self._encoded), model=model)
        for remark in result.remarks:
            warnings.warn(remark, stacklevel=2)
        self._tell(result)

    def _tell(self, result: BatchCheck) -> None:
        if result.problems and self._on_problem == "raise":
            raise UserError(f"the training would not learn the canaries: {'; '.join(result.problems)}")
        for problem in result.problems:
            warnings.warn(f"the training does not learn the canaries: {problem}", stacklevel=2)

    def _record(self, args: Any, state: Any, model: Any) -> None:
        """Measure the losses unless they are known for this step; all processes measure, as shards of a model need all."""
        step = int(state.global_step)
        if step in self._table["step"].to_pylist():
            return
        measured = measure_losses(model, self._encoded, step=step, batch_size=self._batch_size)
        self._table = pa.concat_tables([self._table, measured])
        if state.is_world_process_zero:
            _replace(self._file(args), self._table)

    def _file(self, args: Any) -> Path:
        return self._losses or Path(args.output_dir) / LOSSES_FILE


def _recorded(file: Path, step: int) -> pa.Table:
    """Return the losses that an interrupted training recorded up to a step."""
    if not file.exists():
        warnings.warn(f"the training resumes without {file}: losses of the base model are missing", stacklevel=2)
        return LOSSES.arrow.empty_table()
    table = read_losses(file)
    return table.filter(pc.less_equal(table["step"], step))


def _replace(file: Path, table: pa.Table) -> None:
    """Write the table to a file that only its owner can read, in place of an earlier one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    write_file(part, b"", PRIVATE.file)
    write_table(table, LOSSES, part)
    os.replace(part, file)
