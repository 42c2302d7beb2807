"""What an audit of forgetting is told."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from memlib.data.sets import CALIBRATION, PROVIDER, QUERY
from memlib.specs import ClassifierSpec, DataSpec, OutputsSpec, SetSpec, Spec, TrainedSpec, TrainingSpec

RETAINED, FORGOTTEN, UNDECIDED = "retained", "forgotten", "undecided"
VERDICTS = (RETAINED, FORGOTTEN, UNDECIDED)
TARGET, NULL = "target", "null"
RARE = 0.001
NON_MEMBERS_FOR_RARE = 2000

Mix = Mapping[str, Annotated[float, Field(gt=0, le=1)]]
"""Share of each set by its name."""


class TargetSpec(Spec):
    """A model in question: trained here on a mix, brought with weights, or only its outputs."""

    mix: Mix | None = None
    """What its training data D* hold, as in {calibration: 1, query: 0.1}; it is trained here, once a seed."""
    trained: TrainedSpec | None = None
    """A model that was trained elsewhere, with its weights."""
    outputs: OutputsSpec | None = None
    """Its outputs on D_Q."""

    @model_validator(mode="after")
    def _one_of_three(self) -> "TargetSpec":
        given = [name for name in ("mix", "trained", "outputs") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of mix, trained and outputs, not {' and '.join(given) or 'none'}")
        if self.trained is not None and self.trained.weights is None:
            raise ValueError("trained.weights says where the model's weights are")
        return self


class VerdictSpec(Spec):
    """The models that the verdict rests on."""

    null_mix: Mix | None = None
    """What null models train on: nothing of D_Q. By default {calibration: 1, provider: 1} where there is a set
    `provider`, of images like D_Q but none of it; else {calibration: 0.8}, a margin estimated from seeds and splits
    of D_C, which cannot tell D_Q from its domain."""
    retained_mix: Mix = Field(default={CALIBRATION: 1.0, QUERY: 0.5})
    """What retained models train on: the share of D_Q that 'forgotten' is to exclude."""
    models: int = Field(default=10, ge=3)
    """Models of each kind."""
    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    """How often a null model may be called retained, and a retained one forgotten."""
    statistic: Literal["likelihood_ratio", "rho"] = "likelihood_ratio"
    """What is compared: the mean log-likelihood ratio of D_Q's examples, or rho, which has less power and no direction."""

    @model_validator(mode="after")
    def _null_and_retained(self) -> "VerdictSpec":
        if QUERY in (self.null_mix or {}):
            raise ValueError("verdict.null_mix holds D_Q; its models must have seen none of it")
        if QUERY not in self.retained_mix:
            raise ValueError("verdict.retained_mix holds nothing of D_Q; say a share, as in {calibration: 1, query: 0.5}")
        return self


class Config(Spec):
    """How outputs are scored."""

    replicates: int = Field(default=500, ge=100)
    """Bootstrap replicates over the examples of D_Q."""
    resamples: int = Field(default=40, ge=0)
    """Verdicts on resampled models and examples, to see how often they differ."""
    min_calibration: float = Field(default=0.05, gt=0, lt=1)
    """The smallest KS distance of query and calibration models that rho is divided by."""
    seed: int = Field(default=0, ge=0)
    """Of bootstrap and resampling."""


class ReportSpec(Spec):
    """What the page shows."""

    gallery: int = Field(default=8, ge=0)
    """Examples of D_Q that carry the signal most, with their pictures."""


class Recipe(Spec):
    """A forgetting audit from data to report."""

    audit: Literal["forgetting"] = "forgetting"
    title: str = "Forgetting audit"
    """Heading of the report."""
    data: DataSpec
    sets: Mapping[Annotated[str, Field(pattern=r"^\w[\w-]*$")], SetSpec]
    """Disjoint sets of examples by name, drawn in this order: query (D_Q), calibration (D_C), and others that mixes may
    hold; provider: images like D_Q but none of it."""
    split_seed: int = Field(default=0, ge=0)
    """Draws the sets."""
    near_duplicates: float | None = Field(default=2.0, gt=0)
    """Images of another set that lie so close to one of D_Q (root mean square difference in grey levels of versions of
    16 x 16) are taken out; null: only equal ones."""
    model: ClassifierSpec
    """The target's design."""
    training: TrainingSpec
    """How the target was trained."""
    seeds: int = Field(default=5, ge=2)
    """Query models, calibration models, and models of each mix."""
    targets: Mapping[str, TargetSpec] = Field(min_length=1)
    """The models in question by name."""
    compare: tuple[str, str] | None = None
    """Two targets, as before and after an unlearning step: the change of rho between them is reported."""
    verdict: VerdictSpec = VerdictSpec()
    score: Config = Config()
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        for name in (QUERY, CALIBRATION):
            if name not in self.sets:
                raise ValueError(f"sets lacks {name}")
        mixes = {f"targets.{name}": target.mix for name, target in self.targets.items() if target.mix is not None}
        for place, mix in (
            mixes | {"verdict.null_mix": self.null_shares, "verdict.retained_mix": self.verdict.retained_mix}
        ).items():
            unknown = [name for name in mix if name not in self.sets]
            if unknown or not mix:
                raise ValueError(f"{place} names {unknown[0] if unknown else 'no set'}; sets are {', '.join(self.sets)}")
        if self.compare is not None and (self.compare[0] == self.compare[1] or not set(self.compare) <= set(self.targets)):
            raise ValueError(f"compare names two of the targets {', '.join(self.targets)}, not {list(self.compare)}")
        if self.training.objective.kind != "supervised":
            raise ValueError(f"training.objective {self.training.objective.kind} makes no classifier; use supervised")
        if self.training.patience is not None or self.training.checkpoint_epochs:
            raise ValueError("training.patience and checkpoint_epochs have no use here: all models train for all epochs")
        return self

    @property
    def null_shares(self) -> Mix:
        """What null models train on."""
        if self.verdict.null_mix is not None:
            return self.verdict.null_mix
        return {CALIBRATION: 1.0, PROVIDER: 1.0} if PROVIDER in self.sets else {CALIBRATION: 0.8}

    @property
    def null_has_the_domain(self) -> bool:
        """Whether null models have seen images like D_Q, so that the verdict is about D_Q and not its domain."""
        return PROVIDER in self.null_shares
