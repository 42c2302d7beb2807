"""A callback for the Trainer of transformers, and those of TRL: looks at canary documents, whose training is checked."""

import os
import warnings
from pathlib import Path
from typing import Any, Literal

from memlib.errors import UserError
from memlib.observe.canary_audit import CanaryAudit, Stop
from memlib.observe.canary_checks import BatchCheck, CanaryIndex, check_dataset
from memlib.observe.canary_likelihoods import BATCH
from memlib.stats.canaries import Scope

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise UserError("CanaryCallback needs transformers: pip install -e '.[huggingface]' in memlib's folder") from error

LOSSES_FILE = "canary_losses.parquet"
PART = 1e-6  # of an epoch that rounding may leave


class CanaryCallback(TrainerCallback):
    """Looks at canaries before the training, as their plan says, and after it; with the coins at hand, it can stop it.

    Args:
        canaries: folder of `memlib canaries make`, or its all.jsonl beside plan.json.
        losses: file of the losses; by default canary_losses.parquet in the trainer's output folder.
        tokenizer: the model's tokenizer; by default the trainer's processing_class.
        coins, stop, epsilon, delta, scope, batch_size: as for `CanaryAudit`; stop=True ends the training.
        on_problem: "raise" ends the training before its first step if its data do not train on the canaries; "warn" warns.
    """

    def __init__(
        self,
        canaries: str | os.PathLike[str],
        *,
        losses: str | os.PathLike[str] | None = None,
        tokenizer: Any = None,
        coins: str | os.PathLike[str] | None = None,
        stop: Stop = False,
        epsilon: float | None = None,
        delta: float = 0.0,
        scope: Scope = "checkpoints",
        batch_size: int = BATCH,
        on_problem: Literal["raise", "warn"] = "raise",
    ) -> None:
        self.audit = CanaryAudit(
            canaries, losses or LOSSES_FILE, tokenizer=tokenizer, coins=coins, stop=stop, epsilon=epsilon, delta=delta,
            scope=scope, batch_size=batch_size,
        )  # fmt: skip
        self._is_default, self._on_problem = losses is None, on_problem

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Check the training data, and record the losses of the model before the training."""
        if not self.audit.encoded:
            self.audit.encode(_tokenizer_of(kwargs.get("processing_class")))
        if self._is_default:
            self.audit.file = Path(args.output_dir) / LOSSES_FILE
        self._check(kwargs.get("train_dataloader"), kwargs["model"])
        self.audit.begin(kwargs["model"], int(state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the look that is due after a step."""
        if self.audit.plan.every_epochs is None and self.audit.look(
            kwargs["model"], int(state.global_step), of=int(state.max_steps)
        ):
            control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the look that is due after an epoch."""
        is_whole = abs(state.epoch - round(state.epoch)) < PART  # a training that ends within an epoch ends it, too
        if self.audit.plan.every_epochs is not None and self.audit.look(
            kwargs["model"], int(state.global_step), epoch=round(state.epoch) if is_whole else None
        ):
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the last look, at the trained model: the best checkpoint may have been loaded."""
        self.audit.end(kwargs["model"], int(state.global_step))

    def _check(self, loader: Any, model: Any) -> None:
        dataset = getattr(loader, "dataset", None)
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            warnings.warn("the training data are a stream, which is not searched for canaries; use check_batch", stacklevel=2)
            return
        result = check_dataset(dataset, loader.collate_fn, CanaryIndex.of(self.audit.encoded), model=model)
        for remark in result.remarks:
            warnings.warn(remark, stacklevel=2)
        self._tell(result)

    def _tell(self, result: BatchCheck) -> None:
        if result.problems and self._on_problem == "raise":
            raise UserError(f"the training would not learn the canaries: {'; '.join(result.problems)}")
        for problem in result.problems:
            warnings.warn(f"the training does not learn the canaries: {problem}", stacklevel=2)


def _tokenizer_of(processing: Any) -> Any:
    tokenizer = getattr(processing, "tokenizer", processing)
    if tokenizer is None:
        raise UserError("the trainer has no tokenizer; give it one as processing_class, or CanaryCallback as tokenizer")
    return tokenizer
