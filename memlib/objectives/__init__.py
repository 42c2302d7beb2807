"""Losses that make weights: any number of views, state of their own if they need it."""

from memlib.objectives.base import Objective
from memlib.objectives.ssl import VICReg
from memlib.objectives.supervised import Supervised
from memlib.specs import ObjectiveSpec, SupervisedSpec


def build_objective(spec: ObjectiveSpec) -> Objective:
    """The objective a spec names."""
    return Supervised(spec) if isinstance(spec, SupervisedSpec) else VICReg(spec)


def needs_classifier(spec: ObjectiveSpec) -> bool:
    """Whether the objective is about class scores, so that the encoder ends in a classifier."""
    return isinstance(spec, SupervisedSpec)


__all__ = ["Objective", "build_objective", "needs_classifier"]
