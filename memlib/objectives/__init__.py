"""Training objectives: losses over any number of views of a batch, some with a state."""

from typing import assert_never

from memlib.objectives.base import Objective
from memlib.objectives.denoising import Decoding, Denoising
from memlib.objectives.distillation import BYOL, DINO
from memlib.objectives.language import NextSymbol
from memlib.objectives.ssl import BarlowTwins, Contrastive, SimCLR, VICReg
from memlib.objectives.supervised import Supervised
from memlib.specs import (
    BarlowTwinsSpec,
    BYOLSpec,
    ContrastiveSpec,
    DecodingSpec,
    DenoisingSpec,
    DINOSpec,
    GeneratorObjectiveSpec,
    LanguageObjectiveSpec,
    ObjectiveSpec,
    SimCLRSpec,
    SupervisedSpec,
    VICRegSpec,
)


def build_objective(spec: ObjectiveSpec | GeneratorObjectiveSpec | ContrastiveSpec) -> Objective:
    """Build the objective that a spec describes."""
    match spec:
        case SupervisedSpec():
            return Supervised(spec)
        case LanguageObjectiveSpec():
            return NextSymbol()
        case VICRegSpec():
            return VICReg(spec)
        case BarlowTwinsSpec():
            return BarlowTwins(spec)
        case SimCLRSpec():
            return SimCLR(spec)
        case BYOLSpec():
            return BYOL(spec)
        case DINOSpec():
            return DINO(spec)
        case DenoisingSpec():
            return Denoising(spec)
        case DecodingSpec():
            return Decoding()
        case ContrastiveSpec():
            return Contrastive(spec)
    assert_never(spec)


__all__ = ["Objective", "build_objective"]
