"""Specs of classifiers that name an object from its background crop: what stands for a second model where there is none."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from memlib.specs.base import Spec
from memlib.specs.limits import MOST_EXAMPLES, MOST_PIXELS, MOST_SEED, MOST_STEPS
from memlib.specs.models import ModelSpec
from memlib.specs.training import OptimizerSpec

MOST_FOLDS, MOST_WORDS = 100, 2**16


class Folds(Spec):
    """How audited images are shared out: each is named by a classifier that was fitted to the other folds alone."""

    folds: int = Field(default=5, ge=2, le=MOST_FOLDS)
    """Classifiers of each crop. Which fold an image is in depends on its id and class, never on who trained on it."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Of the folds and the classifiers."""


class CropNetwork(Folds):
    """A small network that is trained from nothing on background crops."""

    kind: Literal["network"]
    model: ModelSpec = ModelSpec(projector=(128,))
    """Its backbone, and the side to which crops are resized."""
    epochs: int = Field(default=20, ge=1, le=MOST_STEPS)
    """Of training, with crops mirrored at random."""
    batch_size: int = Field(default=64, ge=2, le=MOST_EXAMPLES)
    """Crops in one step."""
    optimizer: OptimizerSpec = OptimizerSpec(learning_rate=0.001, weight_decay=0.1, warmup_epochs=1)
    """How its weights are fitted."""


class VisualWords(Folds):
    """Naive Bayes over visual words: patches of the crop, each replaced by the nearest of some typical ones."""

    kind: Literal["visual_words"]
    words: int = Field(default=256, ge=2, le=MOST_WORDS)
    """Typical patches (k-means)."""
    side: int = Field(default=32, ge=8, le=MOST_PIXELS)
    """Side to which crops are resized, in pixels."""
    patch_size: int = Field(default=6, ge=2, le=MOST_PIXELS)
    """Side of a patch, in pixels."""
    stride: int = Field(default=3, ge=1, le=MOST_PIXELS)
    """Pixels from one patch to the next."""

    @model_validator(mode="after")
    def _patches_fit(self) -> "VisualWords":
        if self.patch_size > self.side:
            raise ValueError(f"patch_size {self.patch_size} is more than the side of {self.side} pixels")
        return self


BackgroundSpec = Annotated[CropNetwork | VisualWords, Field(discriminator="kind")]
"""The classifier of background crops that serves as reference."""
