"""What an audit of forgetting is told."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from memlib.specs import ClassifierSpec, DataSpec, GroupSpec, OutputsSpec, SetSpec, Spec, TrainedSpec, TrainingSpec
from memlib.specs.data import CALIBRATION, KNOWN, POOL, PROVIDER, QUERY, WITHHELD
from memlib.specs.limits import MOST_DRAWS, MOST_MODELS, MOST_NUMBER, MOST_SEED
from memlib.specs.observing import WEIGHTLESS

RETAINED, REVERSED, FORGOTTEN = "retained", "unlearned too hard", "forgotten"
NO_TRACE, UNDECIDED = "no trace found", "undecided"
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
        if self.trained is not None and not self.trained.is_whole:
            raise ValueError(WEIGHTLESS)
        return self


class VerdictSpec(Spec):
    """What the verdict rests on: models that saw none of U, and redraws of D_Q."""

    null_mix: Mix | None = None
    """What null models train on: nothing of U. By default {calibration: 1, provider: 1} where there is a set
    `provider`, of images like D_Q but none of it; else {calibration: 0.8}. They predict how easy each example is; they
    decide the power of the test, not its level."""
    retained_mix: Mix = Field(default={CALIBRATION: 1.0, QUERY: 0.5})
    """What retained models train on: a known share of D_Q. They say with which power such a share would be found in a model
    that was trained like the auditor's."""
    models: int = Field(default=10, ge=3, le=MOST_MODELS)
    """Models of each kind."""
    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    """How often a target that used none of D_Q may be said to retain it, over all targets together (Holm 1979)."""
    share_bound: float = Field(default=0.2, gt=0, lt=1)
    """'Forgotten' needs a 95 % upper limit below this share of D_Q that could still be in the model as the known examples
    are."""
    drawn_elsewhere: bool = False
    """Says that D_Q, the known and the withheld examples, which come from different parts of the source, were drawn at random
    within each class from one pool before the target was trained."""

    @model_validator(mode="after")
    def _null_and_retained(self) -> "VerdictSpec":
        seen = [name for name in POOL if name in (self.null_mix or {})]
        if seen:
            raise ValueError(f"verdict.null_mix holds {seen[0]}; its models must have seen nothing of the pool of D_Q")
        if QUERY not in self.retained_mix:
            raise ValueError("verdict.retained_mix holds nothing of D_Q; say a share, as in {calibration: 1, query: 0.5}")
        return self


class Config(Spec):
    """How outputs are scored."""

    replicates: int = Field(default=500, ge=100, le=MOST_DRAWS)
    """Bootstrap replicates over the examples of D_Q."""
    permutations: int = Field(default=9999, ge=999, le=MOST_DRAWS)
    """Redraws of D_Q for its p-value."""
    resamples: int = Field(default=200, ge=50, le=MOST_DRAWS)
    """Redraws of the positive control (the known examples), of which 80 % must find it."""
    min_calibration: float = Field(default=0.05, gt=0, lt=1)
    """The smallest KS distance of query and calibration models that rho is divided by."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Of bootstrap and resampling."""


class ReportSpec(Spec):
    """What the page shows."""

    gallery: int = Field(default=8, ge=0, le=MOST_DRAWS)
    """Examples of D_Q that carry the signal most, with their pictures."""


class Recipe(Spec):
    """A forgetting audit from data to report."""

    audit: Literal["forgetting"] = "forgetting"
    title: str = "Forgetting audit"
    """Heading of the report."""
    data: DataSpec
    sets: Mapping[Annotated[str, Field(pattern=r"^\w[\w-]*$")], SetSpec]
    """Disjoint sets of examples by name, drawn in this order: query (D_Q), calibration (D_C), and others that mixes may
    hold; provider: images like D_Q but none of it. withheld (H): drawn at random with D_Q from one pool and given to nobody;
    without it there is no verdict. known: drawn likewise and known to be in every target, the positive control without
    which nothing is called forgotten."""
    split_seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Draws the sets."""
    near_duplicates: float | None = Field(default=2.0, gt=0, le=MOST_NUMBER)
    """Images of another set that lie so close to one of D_Q's pool (root mean square difference in grey levels of versions
    of 16 x 16) are taken out; in the pool they are drawn as one; null: only equal ones."""
    group: GroupSpec | None = None
    """Examples of one person, which are drawn as one."""
    model: ClassifierSpec
    """The target's design."""
    training: TrainingSpec
    """How the target was trained."""
    seeds: int = Field(default=5, ge=2, le=MOST_MODELS)
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
        self._check_pool(mixes)
        if self.compare is not None and (self.compare[0] == self.compare[1] or not set(self.compare) <= set(self.targets)):
            raise ValueError(f"compare names two of the targets {', '.join(self.targets)}, not {list(self.compare)}")
        if self.training.objective.kind != "supervised":
            raise ValueError(f"training.objective {self.training.objective.kind} makes no classifier; use supervised")
        if self.training.patience is not None or self.training.checkpoint_epochs:
            raise ValueError("training.patience and checkpoint_epochs have no use here: all models train for all epochs")
        return self

    def _check_pool(self, mixes: Mapping[str, Mix]) -> None:
        if self.group is not None and self.group.near is not None:
            raise ValueError("group.near has no use here: near_duplicates joins near copies already")
        if WITHHELD in self.verdict.retained_mix:
            raise ValueError("verdict.retained_mix holds withheld examples, which are given to nobody")
        parts = {spec.part for name, spec in self.sets.items() if name in POOL}
        if WITHHELD in self.sets and len(parts) > 1 and not self.verdict.drawn_elsewhere:
            raise ValueError(
                "query, known and withheld come from different parts of the source, so they are not drawn at random here; "
                "take them from one part, or set verdict.drawn_elsewhere where their owner has drawn them so"
            )
        open_ = [name for name, spec in self.sets.items() if name in POOL and spec.per_class is None]
        if len(parts) == 1 and len(open_) > 1:
            raise ValueError(f"sets.{open_[0]} and sets.{open_[1]} are drawn from one pool; give at least one a per_class")
        for place, mix in mixes.items():
            if WITHHELD in mix:
                raise ValueError(f"{place} holds withheld examples, which are given to nobody")
            if KNOWN in self.sets and mix.get(KNOWN) != 1:
                raise ValueError(f"{place} lacks known: 1; the known examples are in every target")

    @property
    def null_shares(self) -> Mix:
        """What null models train on."""
        if self.verdict.null_mix is not None:
            return self.verdict.null_mix
        return {CALIBRATION: 1.0, PROVIDER: 1.0} if PROVIDER in self.sets else {CALIBRATION: 0.8}

    @property
    def retained_shares(self) -> Mix:
        """What retained models train on: the known examples too, as every target."""
        return {**self.verdict.retained_mix, **({KNOWN: 1.0} if KNOWN in self.sets else {})}
