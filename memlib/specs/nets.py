"""Specs of fleets of small nets."""

from pydantic import Field, model_validator

from memlib.specs.base import Spec
from memlib.specs.limits import MOST_MODELS


class NetsSpec(Spec):
    """How many models carry the feature, and how many do not."""

    seeds: int = Field(default=10, ge=1, le=MOST_MODELS)
    """Models of each canary, each from a seed of its own."""
    controls: int | None = Field(default=None, ge=1, le=MOST_MODELS)
    """Models without the feature, from the same seeds and then further ones; by default as many as with it.
    A model's own calibrated p-value needs at least 20; 100 are better."""
    chunk: int = Field(default=50, ge=1, le=MOST_MODELS)
    """Small models that are one artifact, so that an interrupted run loses at most these."""
    same_seed: bool = False
    """Give the models of all canaries the same seed, so that their units can be compared (Hartley 2022, A.6)."""

    @model_validator(mode="after")
    def _same_seed_is_one(self) -> "NetsSpec":
        if self.same_seed and self.seeds > 1:
            raise ValueError("nets.same_seed gives the nets of all canaries one seed; set nets.seeds to 1")
        return self
