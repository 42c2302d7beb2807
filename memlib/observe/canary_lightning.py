"""A callback for Lightning's Trainer: looks at canaries while a module trains."""

from collections.abc import Callable
from typing import Any

from memlib.errors import UserError
from memlib.observe.canary_audit import CanaryAudit

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise UserError("CanaryLightning needs Lightning: pip install lightning") from error


class CanaryLightning(Callback):  # type: ignore[misc]
    """Looks at canaries before the training, as their plan says, and after it; with the coins at hand, it can stop it.

    Args:
        audit: the audit, which says what is done when the test stops.
        model: function that returns the model within the Lightning module; by default the module itself.
    """

    def __init__(self, audit: CanaryAudit, *, model: Callable[[Any], Any] | None = None) -> None:
        self.audit, self._model = audit, model or (lambda module: module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Record the losses of the model before the training."""
        self.audit.begin(self._model(pl_module), int(trainer.global_step))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Make the look that is due after a step."""
        if self.audit.plan.every_epochs is None:
            steps = int(trainer.estimated_stepping_batches)
            trainer.should_stop |= self.audit.look(self._model(pl_module), int(trainer.global_step), of=steps)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Make the look that is due after an epoch."""
        if self.audit.plan.every_epochs is not None:
            epoch = int(trainer.current_epoch) + 1
            trainer.should_stop |= self.audit.look(self._model(pl_module), int(trainer.global_step), epoch=epoch)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Make the last look, at the trained model."""
        self.audit.end(self._model(pl_module), int(trainer.global_step))
