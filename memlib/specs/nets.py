"""Specs of fleets of small nets."""

from pydantic import Field, model_validator

from memlib.specs.base import Spec
from memlib.specs.limits import MOST_MODELS


class NetsSpec(Spec):
    """Numbers of models that are trained with the feature and without it."""

    seeds: int = Field(default=10, ge=1, le=MOST_MODELS)
    """Models per canary, each from a different seed."""
    controls: int | None = Field(default=None, ge=1, le=MOST_MODELS)
    """Number of models without the feature (controls); by default as many as with the feature. They use the same seeds as the
    models with the feature, then further seeds. A calibrated p-value for a single model needs at least 20 controls; 100 are
    better."""
    chunk: int = Field(default=50, ge=1, le=MOST_MODELS)
    """Number of small models that are trained and stored as one artifact; an interrupted run loses at most one such chunk."""
    same_seed: bool = False
    """Use the same seed for the models of all canaries, so that their units can be compared (Hartley 2022, A.6)."""

    @model_validator(mode="after")
    def _same_seed_is_one(self) -> "NetsSpec":
        if self.same_seed and self.seeds > 1:
            raise ValueError("nets.same_seed uses one seed for the nets of all canaries; set nets.seeds to 1")
        return self
