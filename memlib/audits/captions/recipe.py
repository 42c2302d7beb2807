"""The recipe of an audit of image-text models."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from memlib.specs import DataSpec, ImageTextSpec, PairTrainingSpec, Spec, SplitSpec
from memlib.specs.base import MOST_DRAWS, MOST_EXAMPLES, MOST_SEED, MOST_STEPS, MOST_TRAINED
from memlib.specs.captions import CaptionSpec, DoseSpec, PairModels
from memlib.specs.level import LevelSpec
from memlib.specs.question import PageSpec

Direction = Literal["A", "B"]
HEADLINE, DOSES = "headline", "doses"  # families of tests

NOT_SHOWN = (
    "That a pair is not remembered: this audit gives no upper bound, and memory that shows otherwise than by objects among "
    "neighbours is not looked for.",
    "What a single pair gave away: a gain on one pair may be chance; only means over many pairs are tested.",
    "Whether the public images are free of the audited ones: near copies are looked for by small versions and equal captions "
    "alone.",
)


class Config(LevelSpec):
    """Retrieval and scoring."""

    k: tuple[Annotated[int, Field(ge=1, le=MOST_EXAMPLES)], ...] = Field(default=(10,), min_length=1)
    """Numbers of public images nearest to a caption that vote; the first is the headline."""
    objects: int = Field(default=3, ge=1, le=1000)
    """Objects that are named for each caption: those with the most votes that the caption does not name."""
    epochs: tuple[Annotated[int, Field(ge=0, le=MOST_STEPS)], ...] = ()
    """Checkpoints to score in addition to the last one, which is the headline."""
    top: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.1,)
    """Shares of the pairs whose captions lie nearest to a public image under both models together, a key that does not see
    who was trained on what, on which the excess is shown, too."""
    replicates: int = Field(default=2000, ge=100, le=MOST_DRAWS)
    """Bootstrap replicates."""
    permutations: int = Field(default=2000, ge=100, le=MOST_DRAWS)
    """Redraws of the sides."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the bootstrap and the redraws."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Significance level of the headline, and of the family of doses."""

    @field_validator("k")
    @classmethod
    def _once(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(value))


class ReportSpec(PageSpec):
    """Contents of the report page."""

    gallery: int = Field(default=6, ge=0, le=MOST_DRAWS)
    """Number of pairs shown, the first by a hash of their ids."""
    neighbors: int = Field(default=6, ge=1, le=MOST_DRAWS)
    """Public images shown for each pair and model."""


class Recipe(Spec):
    """Pairs of image-text models, trained on the sets A and B, and their audit."""

    audit: Literal["captions"] = "captions"
    title: str = "Captions"
    """Heading of the report."""
    data: DataSpec
    captions: CaptionSpec = CaptionSpec()
    split: SplitSpec
    """Sets of pairs: train_per_class counts pairs in A (and in B), extra_per_class pairs that are held out from all models,
    public_per_class public pairs. The classes of the images are ignored."""
    dose: DoseSpec = DoseSpec()
    model: ImageTextSpec = ImageTextSpec()
    """Architecture of the models that are trained."""
    training: PairTrainingSpec | None = None
    """Training of the models; null for external models."""
    encoders: tuple[PairModels, ...] = ()
    """External models, instead of `training`; split.sets says which pairs they were trained on."""
    pairs: int = Field(default=1, ge=1, le=MOST_TRAINED)
    """Number of pairs of models that are trained, each with another seed."""
    reference: bool = True
    """false: only models on A are trained, and their pairs are compared with those of B, which no model has seen."""
    score: Config = Config()
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _fits(self) -> "Recipe":
        if (self.training is None) != bool(self.encoders):
            raise ValueError("give either training, or encoders for models that exist already")
        if bool(self.encoders) != (self.split.sets is not None):
            raise ValueError("split.sets and encoders go together: it says which pairs the external models were trained on")
        if self.training is None:
            self._check_external()
            return self
        if unknown := [epoch for epoch in self.score.epochs if epoch not in self.training.kept_epochs]:
            raise ValueError(f"score.epochs names epoch {unknown[0]}, which training.checkpoint_epochs does not keep")
        side = self.split.budget
        if self.dose.copies and len(self.dose.copies) * self.dose.pairs > 2 * side:
            asked = len(self.dose.copies) * self.dose.pairs
            raise ValueError(f"dose asks for {asked} pairs, but A and B have {2 * side} together; lower dose.pairs")
        return self

    def _check_external(self) -> None:
        if self.dose.copies or self.score.epochs or self.pairs > 1 or not self.reference:
            raise ValueError("dose, score.epochs, pairs and reference are for models that memlib trains; leave them out")
        if len({pair.b is None for pair in self.encoders}) > 1:
            raise ValueError("either all or none of the encoders have a model b")

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The sets on which models are trained."""
        has_reference = self.encoders[0].b is not None if self.encoders else self.reference
        return ("A", "B") if has_reference else ("A",)

    @property
    def epochs(self) -> tuple[int, ...]:
        """The checkpoints to score, the last one first."""
        return tuple(dict.fromkeys((0 if self.training is None else self.training.epochs, *self.score.epochs)))
