"""The recipe of a self-influence audit."""

from typing import Literal

from pydantic import Field, model_validator

from memlib.specs import ClassifierSpec, DataSpec, HoldOutSpec, InfluenceSpec, Spec, TrainedSpec, TrainingSpec


class CheckpointSpec(Spec):
    """A checkpoint of a model that was trained elsewhere."""

    weights: str
    """Its state dict: .safetensors, or a .pt file that holds nothing but tensors."""
    learning_rate: float = Field(gt=0)
    """The learning rate of the optimiser at that point."""


class ReportSpec(Spec):
    """What the page shows."""

    gallery: int = Field(default=12, ge=0)
    """Examples in each of the two galleries."""


class Recipe(Spec):
    """Self-influence of every training example, for a model that is trained here or for one's own."""

    audit: Literal["self_influence"] = "self_influence"
    title: str = "Self-influence"
    """Heading of the report."""
    data: DataSpec
    split: HoldOutSpec = HoldOutSpec()
    model: ClassifierSpec | None = None
    """The model that is trained."""
    training: TrainingSpec | None = None
    """How it is trained."""
    trained: TrainedSpec | None = None
    """One's own model instead of model and training; its weights are those of the checkpoints."""
    checkpoints: tuple[CheckpointSpec, ...] = ()
    """One's own model's checkpoints."""
    influence: InfluenceSpec = InfluenceSpec()
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        if (self.model is None) != (self.training is None) or (self.trained is None) == (self.model is None):
            raise ValueError("give either model and training, or trained")
        if self.influence.pull:
            raise ValueError("influence.pull compares canaries and is for the unique-feature audit")
        chosen = self.influence.model_dump(include={"checkpoints", "loss_fall", "epochs"})
        if self.trained is not None and chosen != InfluenceSpec().model_dump(include=set(chosen)):
            raise ValueError(f"influence.{', influence.'.join(chosen)} choose checkpoints of a model that is trained here")
        if self.trained is not None and self.trained.weights is not None:
            raise ValueError("trained.weights has no use here; checkpoints names the weights")
        if (self.trained is None) == bool(self.checkpoints):
            raise ValueError("trained and checkpoints go together")
        if self.training is not None and self.training.objective.kind != "supervised":
            raise ValueError(f"training.objective {self.training.objective.kind} makes no classifier; use supervised")
        if self.training is not None and self.training.checkpoint_epochs:
            raise ValueError("training.checkpoint_epochs has no use here; influence chooses the checkpoints")
        if self.training is not None and not (self.influence.epochs or self.training.epochs):
            raise ValueError("self-influence needs a trained model; training.epochs is 0")
        return self
