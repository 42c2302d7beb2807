"""Specs of what models are shown, and of models that were trained elsewhere."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.specs.base import Spec
from memlib.specs.data import DataSpec
from memlib.specs.limits import MOST_EXAMPLES, MOST_MODELS, MOST_STEPS

Tie = Literal["nearest", "lowest_class"]
"""Which class wins a tied vote of neighbours: that of the nearest one, or the one of the lowest number."""


class OutputsSpec(Spec):
    """The outputs of a model on D_Q in a Parquet file, when there is nothing else."""

    path: str
    """The file; local or s3://."""
    id_column: str = "example_id"
    """The examples' ids, as in the source (with <part>/ in front for a joined one)."""
    scores_column: str = "scores"
    """A list of one number a class."""
    label_column: str | None = None
    """The label the model's owner gives each example, compared with D_Q's own."""
    kind: Literal["probabilities", "logits"] = "probabilities"
    """What the numbers are."""


class ProbeSpec(Spec):
    """The data D_r on which the black box is scored."""

    kind: Literal["noise", "held_out", "data"] = "noise"
    """noise: uniform over the training data's range; held_out: examples that no model saw; data: another source."""
    data: DataSpec | None = None
    """For data: which; stored in the same shape as the training data."""
    count: int = Field(default=500, ge=2, le=MOST_EXAMPLES)
    """Examples at most."""

    @model_validator(mode="after")
    def _data_where_named(self) -> "ProbeSpec":
        if (self.kind == "data") != (self.data is not None):
            raise ValueError("probe.data and probe.kind: data go together")
        return self


WEIGHTLESS = "trained.weights says where the model's weights are; a factory that loads them itself needs trained.version"


class TrainedSpec(Spec):
    """A classifier that was trained elsewhere."""

    added_later: ClassVar[frozenset[str]] = frozenset({"classes"})

    model: str = Field(pattern=r"^\w+(\.\w+)*:\w+$")
    """package.module:factory, a function that returns the torch module. Its outputs are class scores, a tensor of (batch,
    classes), or something that has them as `logits`, like the outputs of Hugging Face's models."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of the factory (plain JSON)."""
    weights: str | None = None
    """Its state dict: .safetensors, or a .pt file that holds nothing but tensors. null where the factory loads them itself;
    `version` then says which they are."""
    version: str | None = None
    """Part of the content key; by default the digest of the factory's module."""
    inputs: Literal["unit", "imagenet", "raw"] = "unit"
    """What the model takes: pixels in [0, 1], ImageNet-normalised pixels, or grey values from 0 to 255."""
    outputs: Literal["logits", "probabilities"] = "logits"
    """What it returns: logits, or probabilities in [0, 1]."""
    classes: tuple[Annotated[int, Field(ge=0, lt=MOST_EXAMPLES)], ...] | None = None
    """Its output for each class of the data, in the data's order (that of `memlib plan`); by default it has one for each, in
    that order. A model that knows more classes than the data hold needs it."""

    @model_validator(mode="after")
    def _has_a_name(self) -> "TrainedSpec":
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            raise ValueError(f"trained.classes names an output twice: {list(self.classes)}")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether it says which weights the model has."""
        return self.weights is not None or self.version is not None


class InfluenceSpec(Spec):
    """TracInCP (Pruthi 2020; Hartley 2022, A.5): which checkpoints, and how many examples are shown."""

    checkpoints: int = Field(default=10, ge=1, le=MOST_MODELS)
    """Checkpoints, evenly spaced over the epochs up to the fall of the loss."""
    loss_fall: float = Field(default=0.95, gt=0, le=1)
    """The last checkpoint is the first epoch at which the training loss has fallen by this share."""
    epochs: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    """Epochs of the model whose checkpoints are used; by default training.epochs."""
    pull: bool = False
    """Unique feature: train also with the feature in the first and last canary and compare their self-influence
    with and without it (2022, section 3.3)."""
    slow_modules: bool = False
    """Handle modules without a fast rule example by example instead of refusing them."""
    batch_size: int = Field(default=32, ge=1, le=MOST_EXAMPLES)
    """Examples in one pass; changes nothing but rounding."""
