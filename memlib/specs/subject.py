"""Who is audited: a model that is trained here, or one that was trained elsewhere."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from memlib.specs.models import ClassifierSpec, LanguageSpec, ModelSpec, PretrainedSpec
from memlib.specs.training import TrainingSpec

Model = TypeVar("Model", ModelSpec, ClassifierSpec, LanguageSpec, LanguageSpec | PretrainedSpec)


@dataclass(frozen=True)
class TrainIt(Generic[Model]):
    """A model that the audit trains itself.

    Attributes:
        model: its architecture.
        training: how it is trained.
    """

    model: Model
    training: TrainingSpec
