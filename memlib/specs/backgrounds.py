"""Specs of classifiers that predict an object's class from its background crop; they replace a missing reference model."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from memlib.specs.base import MOST_EXAMPLES, MOST_PIXELS, MOST_SEED, MOST_STEPS, Spec
from memlib.specs.models import ModelSpec
from memlib.specs.training import OptimizerSpec

MOST_FOLDS, MOST_WORDS = 100, 2**16


class Folds(Spec):
    """Cross-fitting: the classifier applied to an audited image was trained on the other folds only."""

    folds: int = Field(default=5, ge=2, le=MOST_FOLDS)
    """Number of folds, and of classifiers for each kind of crop. The fold of an image depends on the image's id and class,
    but not on which model trained on the image."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the folds and the classifiers."""


class CropNetwork(Folds):
    """A small network that is trained from scratch on background crops."""

    kind: Literal["network"]
    model: ModelSpec = ModelSpec(projector=(128,))
    """The network's backbone, and the side to which crops are resized."""
    epochs: int = Field(default=20, ge=1, le=MOST_STEPS)
    """Epochs of training, with randomly mirrored crops."""
    batch_size: int = Field(default=64, ge=2, le=MOST_EXAMPLES)
    """Crops per step."""
    optimizer: OptimizerSpec = OptimizerSpec(learning_rate=0.001, weight_decay=0.1, warmup_epochs=1)
    """The network's optimizer."""


class VisualWords(Folds):
    """Naive Bayes over visual words: each patch of the crop is replaced by the nearest of a set of typical patches."""

    kind: Literal["visual_words"]
    words: int = Field(default=256, ge=2, le=MOST_WORDS)
    """Number of typical patches (k-means)."""
    side: int = Field(default=32, ge=8, le=MOST_PIXELS)
    """Side in pixels to which crops are resized."""
    patch_size: int = Field(default=6, ge=2, le=MOST_PIXELS)
    """Side of a patch, in pixels."""
    stride: int = Field(default=3, ge=1, le=MOST_PIXELS)
    """Distance in pixels between neighbouring patches."""

    @model_validator(mode="after")
    def _patches_fit(self) -> "VisualWords":
        if self.patch_size > self.side:
            raise ValueError(f"patch_size {self.patch_size} is larger than the side of {self.side} pixels")
        return self


BackgroundSpec = Annotated[CropNetwork | VisualWords, Field(discriminator="kind")]
"""The classifier of background crops that serves as the reference."""
