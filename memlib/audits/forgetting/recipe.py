"""The recipe of a forgetting audit."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.specs import ClassifierSpec, DataSpec, ExternalClassifierSpec, GroupSpec, OutputsSpec, SetSpec, Spec, TrainingSpec
from memlib.specs.base import MOST_DRAWS, MOST_NUMBER, MOST_SEED, MOST_TRAINED
from memlib.specs.data import CALIBRATION, KNOWN, POOL, PROVIDER, QUERY, WITHHELD
from memlib.specs.level import LevelSpec
from memlib.specs.observing import WEIGHTLESS, check_numbers
from memlib.specs.question import PageSpec

RETAINED, REVERSED, FORGOTTEN = "retained", "unlearned too hard", "forgotten"
NO_TRACE, UNDECIDED = "no trace found, inconclusive", "undecided"
TARGETS = "targets"  # the family of tests, one per target
HEADLINES = (TARGETS,)
NOT_SHOWN = (
    "Whether a single example of D_Q was used: the verdict is about D_Q as a whole.",
    "Whether other data of the same owner were used: only D_Q was tested.",
    "That an unlearning method works in general: the verdict is about these models and this data set.",
    "Anything about other models: that the tested model is the one in use has to be established by other means.",
)
TARGET, NULL = "target", "null"

Mix = Mapping[str, Annotated[float, Field(gt=0, le=1)]]
"""Share of each set, by the set's name."""


class TargetSpec(Spec):
    """A model under audit: trained by memlib on a mix, an external model with its weights, or an external model's outputs."""

    mix: Mix | None = None
    """Training data D*, as shares of sets such as {calibration: 1, query: 0.1}; memlib trains the model once per seed."""
    trained: ExternalClassifierSpec | None = None
    """An external model with its weights."""
    outputs: OutputsSpec | None = None
    """Outputs of an external model on D_Q and the rest of its pool."""

    @model_validator(mode="after")
    def _one_of_three(self) -> "TargetSpec":
        given = [name for name in ("mix", "trained", "outputs") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of mix, trained and outputs, not {' and '.join(given) or 'none'}")
        if self.outputs is not None and self.outputs.kind == "scores":
            raise ValueError("outputs.kind scores is for membership; give losses, logits or probabilities")
        if self.trained is not None and not self.trained.is_whole:
            raise ValueError(WEIGHTLESS)
        return self


class VerdictSpec(LevelSpec):
    """Basis of the verdict: models that saw no examples of the pool U of D_Q, and redraws of D_Q."""

    added_later: ClassVar[frozenset[str]] = frozenset({"looks", "known_drawn_afterwards"})

    null_mix: Mix | None = None
    """Training data of null models, which contain no examples of U. The default is {calibration: 1, provider: 1} if there is
    a set `provider` (images like those of D_Q, but not from D_Q), else {calibration: 0.8}. Null models predict how easy each
    example is; they determine the power of the test, not its level."""
    retained_mix: Mix = Field(default={CALIBRATION: 1.0, QUERY: 0.5})
    """Training data of retained models, which contain a known share of D_Q. They show the power with which such a share would
    be detected in a model that was trained like the auditor's."""
    models: int = Field(default=10, ge=3, le=MOST_TRAINED)
    """Number of null models, and of retained models."""
    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    """Significance level over all targets (Holm 1979): the largest probability of calling D_Q retained in any target that did
    not use it."""
    share_bound: float = Field(default=0.2, gt=0, lt=1)
    """'Forgotten' requires the 95 % upper limit of the trace of D_Q, as a share of the trace of the known examples, to lie
    below this value."""
    drawn_elsewhere: bool = False
    """Declares that D_Q, the known and the withheld examples, which come from different parts of the source, were drawn at
    random within each class from one pool before the target was trained."""
    known_drawn_afterwards: bool = False
    """Declares that the known examples were drawn at random from the training data of external targets after their training
    had ended. Otherwise an owner may have trained harder on them, and no external target is called forgotten."""

    @model_validator(mode="after")
    def _null_and_retained(self) -> "VerdictSpec":
        seen = [name for name in POOL if name in (self.null_mix or {})]
        if seen:
            raise ValueError(
                f"verdict.null_mix contains {seen[0]}; null models must not train on any examples of the pool of D_Q"
            )
        if QUERY not in self.retained_mix:
            raise ValueError(
                "verdict.retained_mix contains no examples of D_Q; give a share, as in {calibration: 1, query: 0.5}"
            )
        return self


class Config(Spec):
    """Scoring of outputs."""

    replicates: int = Field(default=500, ge=100, le=MOST_DRAWS)
    """Number of bootstrap replicates over the examples of D_Q."""
    permutations: int = Field(default=9999, ge=999, le=MOST_DRAWS)
    """Number of redraws of D_Q, from which the p-value is computed."""
    resamples: int = Field(default=200, ge=50, le=MOST_DRAWS)
    """Number of redraws of the positive control (the known examples), which must be detected in 80 % of them."""
    min_calibration: float = Field(default=0.05, gt=0, lt=1)
    """Smallest mean KS distance between query and calibration models for which rho is computed, as rho divides by it."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the bootstrap and the redraws."""


class ReportSpec(PageSpec):
    """Contents of the page."""

    gallery: int = Field(default=8, ge=0, le=MOST_DRAWS)
    """Number of pictures; they show the examples of D_Q with the strongest signal."""


class Recipe(Spec):
    """A forgetting audit from data to report."""

    audit: Literal["forgetting"] = "forgetting"
    title: str = "Forgetting audit"
    """Heading of the report."""
    data: DataSpec
    sets: Mapping[Annotated[str, Field(pattern=r"^\w[\w-]*$")], SetSpec]
    """Disjoint sets of examples by name, drawn in the order in which they are listed: query (D_Q); calibration (D_C);
    withheld (H), drawn at random with D_Q from one pool and used to train no model (required for a verdict); known, drawn in
    the same way and known to be in every target's training data (the positive control, required for 'forgotten'); provider,
    images like those of D_Q, but not from D_Q; and further sets for mixes."""
    split_seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the draw of the sets."""
    near_duplicates: float | None = Field(default=2.0, gt=0, le=MOST_NUMBER)
    """Distance (root mean square difference in grey levels of 16 x 16 versions) below which two images are copies. Images of
    other sets that are copies of an image in D_Q's pool are removed; copies within the pool are drawn together. null, and
    for points: only identical ones count as copies."""
    group: GroupSpec | None = None
    """Groups of examples, such as all images of one person, that are drawn together."""
    model: ClassifierSpec
    """Architecture of the target."""
    training: TrainingSpec
    """Training of the target."""
    seeds: int = Field(default=5, ge=2, le=MOST_TRAINED)
    """Number of query models, of calibration models, and of models per mix."""
    targets: Mapping[str, TargetSpec] = Field(min_length=1)
    """The models under audit, by name."""
    compare: tuple[str, str] | None = None
    """Two targets, such as before and after an unlearning step, between which the change of rho is reported."""
    verdict: VerdictSpec = VerdictSpec()
    score: Config = Config()
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        check_numbers(self.data.source, [target.trained for target in self.targets.values()])
        for name in (QUERY, CALIBRATION):
            if name not in self.sets:
                raise ValueError(f"sets has no {name}; add it")
        mixes = {f"targets.{name}": target.mix for name, target in self.targets.items() if target.mix is not None}
        for place, mix in (
            mixes | {"verdict.null_mix": self.null_shares, "verdict.retained_mix": self.verdict.retained_mix}
        ).items():
            unknown = [name for name in mix if name not in self.sets]
            if unknown or not mix:
                raise ValueError(f"{place} names {unknown[0] if unknown else 'no set'}; choose from {', '.join(self.sets)}")
        self._check_pool(mixes)
        if self.compare is not None and (self.compare[0] == self.compare[1] or not set(self.compare) <= set(self.targets)):
            raise ValueError(f"compare must name two of the targets {', '.join(self.targets)}, not {list(self.compare)}")
        if self.training.objective.kind != "supervised":
            raise ValueError(f"training.objective {self.training.objective.kind} does not train a classifier; use supervised")
        if self.training.patience is not None or self.training.checkpoint_epochs:
            raise ValueError(
                "training.patience and checkpoint_epochs have no effect here: all models train for all epochs; leave them out"
            )
        return self

    def _check_pool(self, mixes: Mapping[str, Mix]) -> None:
        if self.group is not None and self.group.near is not None:
            raise ValueError("group.near has no effect here: near_duplicates already joins near copies; leave it out")
        if WITHHELD in self.verdict.retained_mix:
            raise ValueError("verdict.retained_mix contains withheld examples, which no model may train on; leave them out")
        parts = {spec.part for name, spec in self.sets.items() if name in POOL}
        if WITHHELD in self.sets and len(parts) > 1 and not self.verdict.drawn_elsewhere:
            raise ValueError(
                "query, known and withheld come from different parts of the source, so memlib cannot draw them at random; "
                "take them from one part, or set verdict.drawn_elsewhere if the owner drew them at random"
            )
        open_ = [name for name, spec in self.sets.items() if name in POOL and spec.per_class is None]
        if len(parts) == 1 and len(open_) > 1:
            raise ValueError(f"sets.{open_[0]} and sets.{open_[1]} are drawn from one pool; set per_class for one of them")
        for place, mix in mixes.items():
            if WITHHELD in mix:
                raise ValueError(f"{place} contains withheld examples, which no model may train on; leave them out")
            if KNOWN in self.sets and mix.get(KNOWN) != 1:
                raise ValueError(f"{place} lacks known: 1; add it, as every target must be trained on all known examples")

    @property
    def is_declared(self) -> bool:
        """True if the owner declares that D_Q and the withheld examples were drawn at random from one pool."""
        return self.verdict.drawn_elsewhere and WITHHELD in self.sets

    def is_controlled(self, target: str) -> bool:
        """Return whether a target was trained on the known examples as on others.

        This holds if the auditor trained the target, or if the known examples were drawn after the training.
        """
        return self.targets[target].mix is not None or self.verdict.known_drawn_afterwards

    @property
    def null_shares(self) -> Mix:
        """Training data of null models."""
        if self.verdict.null_mix is not None:
            return self.verdict.null_mix
        return {CALIBRATION: 1.0, PROVIDER: 1.0} if PROVIDER in self.sets else {CALIBRATION: 0.8}

    @property
    def retained_shares(self) -> Mix:
        """Training data of retained models, including the known examples, as for every target."""
        return {**self.verdict.retained_mix, **({KNOWN: 1.0} if KNOWN in self.sets else {})}
