"""The subject of an audit: a model that memlib trains itself (an external model is described by its own spec)."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from memlib.specs.models import ClassifierSpec, LanguageSpec, ModelSpec, PretrainedSpec
from memlib.specs.training import TrainingSpec

Model = TypeVar("Model", ModelSpec, ClassifierSpec, LanguageSpec, LanguageSpec | PretrainedSpec)


@dataclass(frozen=True)
class TrainIt(Generic[Model]):
    """A model that the audit trains itself."""

    model: Model  #: architecture of the model.
    training: TrainingSpec  #: settings of the model's training.
