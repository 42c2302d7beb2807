"""Losses that make weights: any number of views, state of their own if they need it."""

from memlib.objectives.base import Objective
from memlib.objectives.language import NextSymbol
from memlib.objectives.ssl import VICReg
from memlib.objectives.supervised import Supervised
from memlib.specs import LanguageObjectiveSpec, ObjectiveSpec, SupervisedSpec


def build_objective(spec: ObjectiveSpec) -> Objective:
    """The objective a spec names."""
    if isinstance(spec, LanguageObjectiveSpec):
        return NextSymbol()
    return Supervised(spec) if isinstance(spec, SupervisedSpec) else VICReg(spec)


def needs_classifier(spec: ObjectiveSpec) -> bool:
    """Whether the objective is about scores of classes (or symbols), which the model then ends in."""
    return isinstance(spec, SupervisedSpec | LanguageObjectiveSpec)


__all__ = ["Objective", "build_objective", "needs_classifier"]
