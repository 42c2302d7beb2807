"""Recipe of the unique-feature audit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from memlib.specs import (
    CanarySpec,
    ClassifierSpec,
    DataSpec,
    ExternalClassifierSpec,
    HoldOutSpec,
    InfluenceSpec,
    NetsSpec,
    ProbeSpec,
    Spec,
    TrainingSpec,
    changed,
)
from memlib.specs.base import MOST_DRAWS, MOST_NUMBER, MOST_PIXELS, MOST_SEED, MOST_TRAINED
from memlib.specs.level import LevelSpec
from memlib.specs.observing import WEIGHTLESS, check_numbers
from memlib.specs.question import PageSpec
from memlib.specs.subject import TrainIt

Output = Literal["probability", "logit"]
CONTROLS_FOR_P = 19  # with fewer controls, no net can reach a calibrated p of .05
HEADLINE, OWN = "headline", "own model"  # families of tests: of trained models, of an external one
HEADLINES = (HEADLINE, OWN)
NOT_SHOWN = (
    "Whether the model remembers other features: only this one was tested, as it was inserted here.",
    "That somebody who does not know the feature could read it out of the model: the audit shows it to the model.",
    "That one particular model trained with the feature remembers it, unless that model was audited as an external model.",
)
RANGE = 2.0  # largest difference of two scores on probabilities, each in [-1, 1]
FEWEST_CONTROLS = 50  # below which a share of trainings beyond them cannot be bounded to any use
SETTING = {"m_white": "white", "m_grey": "grey", "m_black": "black", "m_w": "white", "m_kl": "black"}
FLIPS = "flips"  # metric: share of other examples whose predicted class becomes the canary's when the feature is inserted
AT_LABEL = ("m_white", "m_w", FLIPS)  # metrics that are computed at the canary's label


class Config(LevelSpec):
    """Settings for scoring nets and testing their scores."""

    added_later: ClassVar[frozenset[str]] = frozenset({"looks", "bound", "per_epoch_also"})

    outputs: tuple[Output, ...] = ("probability", "logit")
    """Outputs on which M is computed; the first gives the headline. Eq. 1 uses probabilities, the published results
    logits."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Significance level of the tests and of the criteria for single nets."""
    max_examples: int = Field(default=1000, ge=2, le=MOST_DRAWS)
    """Maximum number of training examples of each label on which nets are scored; probe.count limits the probe data."""
    per_epoch: bool = False
    """Compute the white-box score after every epoch (mlp, cnn_1 and cnn_2 only)."""
    per_epoch_also: tuple[Literal["m_w", "m_kl"], ...] = ()
    """With per_epoch: scores of 2022 to compute after every epoch as well (Fig. 3c), M_w and, on the probe data, M_kl."""
    random_draws: int = Field(default=1, ge=1, le=MOST_DRAWS)
    """Number of evaluations of M_w and M_kl, each with newly drawn random partners of the feature (2022, Fig. 4)."""
    removed_pixels: tuple[Annotated[int, Field(ge=1, le=MOST_PIXELS)], ...] = ()
    """Also score with each of these numbers of pixels removed from the feature (2023, Fig. 5)."""
    latent: bool = False
    """Find the units of the last hidden layer that only the feature excites (2022, A.6); needs nets.same_seed."""
    null_features: int = Field(default=0, ge=0, le=MOST_TRAINED)
    """Number of other features of the same kind to score as well; they form the null distribution for an external model (see
    canary.feature.nulls)."""
    bound: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Mean difference in the headline's score (on the output probability) that is too small to matter, fixed before the run:
    if the 95 % upper bound lies below it, the verdict is bounded. The bound also holds if few trainings remember much, so n
    nets give none below 2 (1 - .05^(1/n)): .52 for 10 nets, .1 for 60. External models: difference from other features."""
    replicates: int = Field(default=2000, ge=100, le=MOST_DRAWS)
    """Number of bootstrap replicates."""
    permutations: int = Field(default=9999, ge=100, le=MOST_DRAWS)
    """Maximum number of exchanges of canary nets and controls for a p-value."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the examples drawn, random partners, bootstrap and permutations."""

    @field_validator("outputs")
    @classmethod
    def _some(cls, value: tuple[Output, ...]) -> tuple[Output, ...]:
        if not value:
            raise ValueError("score.outputs is empty; name probability, logit or both")
        return tuple(dict.fromkeys(value))

    @model_validator(mode="after")
    def _epochs_are_scored(self) -> "Config":
        if self.per_epoch_also and not self.per_epoch:
            raise ValueError("score.per_epoch_also adds scores to those of every epoch; set score.per_epoch to true as well")
        return self


class ReportSpec(PageSpec):
    """Contents of the page."""

    examples: int = Field(default=4, ge=0, le=MOST_DRAWS)
    """Number of canaries shown with and without the feature."""
    gradcam: bool = False
    """Show what a convolutional model and its control look at, with and without the feature, on training examples and on
    held-out ones (split.held_out_per_class; 2023, Fig. 8)."""
    boundaries: bool = True
    """Show decision boundaries with and without the feature, for data that are points (2023, Fig. 3)."""


class Recipe(Spec):
    """A unique-feature audit from data to report, of models trained for it or of an external model."""

    added_later: ClassVar[frozenset[str]] = frozenset({"baselines"})

    audit: Literal["unique_feature"] = "unique_feature"
    title: str = "Unique-feature audit"
    """Heading of the report."""
    data: DataSpec
    split: HoldOutSpec = HoldOutSpec()
    canary: CanarySpec
    model: ClassifierSpec | None = None
    """Architecture of the models that are trained for the audit."""
    training: TrainingSpec | None = None
    """Training of these models."""
    trained: ExternalClassifierSpec | None = None
    """External model to audit, instead of model and training."""
    nets: NetsSpec = NetsSpec()
    probe: ProbeSpec = ProbeSpec()
    score: Config = Config()
    influence: InfluenceSpec = InfluenceSpec()
    report: ReportSpec = ReportSpec()
    data_seeds: int = Field(default=1, ge=1, le=MOST_TRAINED)
    """Number of draws of the data, with the source's seed and the seeds that follow it. With two or more, intervals are over
    draws."""
    variants: Mapping[str, dict[str, Any]] = Field(default_factory=dict)
    """Named changes to this recipe, each audited separately within the run; keys may be dotted, as in {training.patience:
    5}."""
    baselines: Mapping[str, str] = Field(default_factory=dict)
    """Variants that are compared with another variant each: {variant: baseline}, such as {MLP dropout: MLP}. By default, all
    are compared with the first."""

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        subject = self.subject
        check_numbers(self.data.source, [self.trained])
        if isinstance(subject, ExternalClassifierSpec):
            self._check_external(subject)
        if self.data_seeds > 1 and not hasattr(self.data.source, "seed"):
            raise ValueError(f"data_seeds is {self.data_seeds}, but {self.data.source.kind} has no seed; set data_seeds to 1")
        if self.score.latent and not (self.nets.same_seed and self.model is not None and self.model.stackable):
            raise ValueError(
                "score.latent needs nets.same_seed: true and model.architecture mlp, cnn_1 or cnn_2; set these, or set "
                "score.latent to false"
            )
        if self.score.latent and self.data_seeds > 1:
            raise ValueError(
                "score.latent finds the units of one draw of the data; set data_seeds to 1, or score.latent to false"
            )
        for name in self.variants:
            variant = self._variant(name)
            if (variant.score, variant.report) != (self.score, self.report):
                raise ValueError(
                    f"variant {name!r} changes score or report, which all variants share; set them at the top level of the "
                    "recipe"
                )
        self._check_baselines()
        if isinstance(subject, TrainIt):
            self._check_training(subject)
            self._check_augmentation(subject.training)
        return self

    @property
    def subject(self) -> TrainIt[ClassifierSpec] | ExternalClassifierSpec:
        """Subject of the audit: models that are trained here, or an external model."""
        if self.model is not None and self.training is not None and self.trained is None:
            return TrainIt(self.model, self.training)
        if self.trained is None or self.model is not None or self.training is not None:
            raise ValueError("give either model and training, or trained")
        return self.trained

    def _check_baselines(self) -> None:
        unknown = [name for pair in self.baselines.items() for name in pair if name not in self.variants]
        if unknown:
            known = ", ".join(self.variants) or "none"
            raise ValueError(f"baselines names {unknown[0]!r}, which is not a variant; variants are: {known}")
        own = [name for name, baseline in self.baselines.items() if name == baseline]
        if own:
            raise ValueError(f"baselines compares {own[0]!r} with itself; name another variant, or leave it out")

    def _check_external(self, trained: ExternalClassifierSpec) -> None:
        if not trained.is_whole:
            raise ValueError(WEIGHTLESS)
        idle = {
            "variants": self.variants, "data_seeds": self.data_seeds > 1, "nets": self.nets != NetsSpec(),
            "influence": self.influence != InfluenceSpec(), "score.per_epoch": self.score.per_epoch,
            "score.removed_pixels": self.score.removed_pixels, "score.latent": self.score.latent,
            "canary (except its feature and label)": self.canary
            != CanarySpec(feature=self.canary.feature, label=self.canary.label),
        }  # fmt: skip
        used = [name for name, value in idle.items() if value]
        if used:
            raise ValueError(f"{', '.join(used)} apply only to models that memlib trains; leave them out")

    def _check_training(self, subject: TrainIt[ClassifierSpec]) -> None:
        model, training = subject.model, subject.training
        if training.objective.kind != "supervised":
            raise ValueError(f"training.objective {training.objective.kind} does not train a classifier; use supervised")
        if self.score.per_epoch and not model.stackable:
            raise ValueError(f"score.per_epoch is for mlp, cnn_1 and cnn_2, not for {model.architecture}; set it to false")
        if training.checkpoint_epochs:
            raise ValueError(
                "training.checkpoint_epochs has no effect here; leave it out (score.per_epoch scores every epoch)"
            )

    def _check_augmentation(self, training: TrainingSpec) -> None:
        augment = training.augment
        if augment is None:
            return
        if augment.crop_scale != (1.0, 1.0) or augment.crop_ratio != (1.0, 1.0):
            raise ValueError(
                "training.augment.crop_scale and crop_ratio could cut the feature away; set both to [1, 1] and use shift"
            )

    def _variant(self, name: str) -> "Recipe":
        return changed(self.model_copy(update={"variants": {}, "baselines": {}}), self.variants[name])

    @property
    def cells(self) -> list["Cell"]:
        """Cells of the audit: one per variant and draw of the data, each with a complete recipe."""
        named = [(name, self._variant(name)) for name in self.variants] or [("", self)]
        drawn = [
            (name, seed, changed(recipe, {"data_seeds": 1, "data.source.seed": _seed(recipe) + seed}))
            if recipe.data_seeds > 1
            else (name, 0, recipe)
            for name, recipe in named
            for seed in range(recipe.data_seeds)
        ]
        whole = [(name, seed, recipe, recipe.subject) for name, seed, recipe in drawn]
        return [Cell(name, seed, recipe, of) for name, seed, recipe, of in whole if isinstance(of, TrainIt)]


def _seed(recipe: Recipe) -> int:
    return int(getattr(recipe.data.source, "seed", 0))


@dataclass(frozen=True)
class Cell:
    """One variant of the recipe on one draw of the data."""

    variant: str
    data_seed: int
    recipe: Recipe
    subject: TrainIt[ClassifierSpec]
