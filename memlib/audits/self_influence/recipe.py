"""The recipe of a self-influence audit."""

from typing import Literal

from pydantic import Field, model_validator

from memlib.specs import ClassifierSpec, DataSpec, ExternalClassifierSpec, HoldOutSpec, InfluenceSpec, Spec, TrainingSpec
from memlib.specs.base import MOST_DRAWS, MOST_NUMBER
from memlib.specs.observing import check_numbers
from memlib.specs.question import PageSpec
from memlib.specs.subject import TrainIt

NOT_SHOWN = (
    "Whether an example is memorized: nothing here says what self-influence would be without memory, and hard examples have "
    "large values too.",
    "The exact effect of leaving an example out of the training: the measure approximates it from gradients at checkpoints.",
)


class CheckpointSpec(Spec):
    """A checkpoint of an external model."""

    weights: str
    """State dict: .safetensors, or a .pt file that contains only tensors."""
    learning_rate: float = Field(gt=0, le=MOST_NUMBER)
    """Learning rate of the optimizer at this checkpoint."""


class ReportSpec(PageSpec):
    """Contents of the report page."""

    gallery: int = Field(default=12, ge=0, le=MOST_DRAWS)
    """Number of examples in each of the two galleries."""


class Recipe(Spec):
    """Self-influence of every training example, for a model that memlib trains or for an external model."""

    audit: Literal["self_influence"] = "self_influence"
    title: str = "Self-influence"
    """Heading of the report."""
    data: DataSpec
    split: HoldOutSpec = HoldOutSpec()
    model: ClassifierSpec | None = None
    """The model to train."""
    training: TrainingSpec | None = None
    """Training of the model."""
    trained: ExternalClassifierSpec | None = None
    """An external model, instead of model and training; its weights come from `checkpoints`."""
    checkpoints: tuple[CheckpointSpec, ...] = ()
    """Checkpoints of the external model."""
    influence: InfluenceSpec = InfluenceSpec()
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        subject = self.subject
        check_numbers(self.data.source, [self.trained])
        if self.influence.pull:
            raise ValueError("influence.pull compares canaries of the unique-feature audit; leave it out here")
        if isinstance(subject, TrainIt) == bool(self.checkpoints):
            raise ValueError("trained and checkpoints go together: give both or neither")
        if isinstance(subject, TrainIt):
            self._check_training(subject.training)
        else:
            self._check_external(subject)
        return self

    @property
    def subject(self) -> TrainIt[ClassifierSpec] | ExternalClassifierSpec:
        """The subject of the audit: a model to train, or an external model."""
        if self.model is not None and self.training is not None and self.trained is None:
            return TrainIt(self.model, self.training)
        if self.trained is None or self.model is not None or self.training is not None:
            raise ValueError("give either model and training, or trained")
        return self.trained

    def _check_external(self, trained: ExternalClassifierSpec) -> None:
        chosen = self.influence.model_dump(include={"checkpoints", "loss_fall", "epochs"})
        if chosen != InfluenceSpec().model_dump(include=set(chosen)):
            raise ValueError(
                f"influence.{', influence.'.join(chosen)} apply only to models that memlib trains; leave them out"
            )
        if trained.weights is not None:
            raise ValueError("trained.weights has no effect here; give the weights under checkpoints")

    def _check_training(self, training: TrainingSpec) -> None:
        if training.objective.kind != "supervised":
            raise ValueError(f"training.objective {training.objective.kind} does not train a classifier; use supervised")
        if training.checkpoint_epochs:
            raise ValueError("training.checkpoint_epochs has no effect here; choose them by influence.checkpoints")
        if not (self.influence.epochs or training.epochs):
            raise ValueError(
                "training.epochs is 0, but self-influence needs a trained model; raise it, or give influence.epochs"
            )
