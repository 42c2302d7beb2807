"""The recipe of a membership audit."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from memlib.specs import (
    ClassifierSpec,
    DataSpec,
    EstimatorSpec,
    ExternalClassifierSpec,
    HoldOutSpec,
    OutputsSpec,
    OwnSpec,
    Spec,
    TableSource,
    TrainingSpec,
)
from memlib.specs.base import MOST_DRAWS, MOST_MODELS, MOST_NUMBER, MOST_PIXELS, MOST_SEED, source_of
from memlib.specs.external import WithMembers
from memlib.specs.level import LevelSpec
from memlib.specs.observing import WEIGHTLESS, check_numbers, is_estimator_file, is_path
from memlib.specs.question import PageSpec

MEMBERS, PRIVACY = "members", "privacy"
FEWEST_OF_STRATUM = 5  # units of a class that is a stratum of its own
FEWEST_COMPARED = 8  # shadow models by which the sides of a declared draw are compared
MOST_COPIED = 0.1  # share of the non-members with a copy among the members beyond which nothing is bounded
MOST_UNPAIRED = 0.1  # share of the units whose class has members alone, or non-members alone, beyond which nothing is bounded
MET = 0.8  # chance with which a model without memory meets the default of `tail_bound`
HEADLINES = (MEMBERS, PRIVACY)
NOT_SHOWN = (
    "That a given person was in the training set: a rank is evidence about a group of examples. The share of false "
    "alarms counts non-members who are named; among all who are named, the share of non-members may be much higher.",
    "That nobody can do better: only the listed attacks were tried.",
    "Anything about other models: that the audited model is the one in use has to be established by other means.",
)
SLICES, COLUMNS = "slices", "hidden columns"  # families of tests of their own; no headlines
ALL_MODELS = "all models"  # the family of the tests over all models; no headline, as it is about the auditor's models, too
AttackName = Literal["lira", "lira_offline", "rmia", "rmia_offline", "calibrated_loss", "loss", "gap", "trajectory", "scores"]
ATTACKS: tuple[AttackName, ...] = ("lira", "lira_offline", "rmia", "rmia_offline", "calibrated_loss", "loss", "gap")
SHADOWLESS = ("loss", "gap", "scores")  # attacks that need no shadow model
FEWEST_SHADOWS = 4  # of attacks that fit a law to shadow models
Drawn = Literal["coins", "fixed", "unknown"]


def _kind_of(given: Any) -> Any:
    if isinstance(given, str):
        return "own"
    kind = given.get("kind") if isinstance(given, dict) else getattr(given, "kind", None)
    return {None: "classifier", "classifier": "classifier", "own": "own"}.get(kind, "estimator")


AuditedModelSpec = Annotated[
    Annotated[ClassifierSpec, Tag("classifier")]
    | Annotated[EstimatorSpec, Tag("estimator")]
    | Annotated[OwnSpec, Tag("own")],
    Discriminator(
        _kind_of, custom_error_type="model", custom_error_message="a model is a mapping, such as {kind: forest, trees: 100}"
    ),
]
"""A network or an estimator of scikit-learn; a recipe without a kind specifies a network, and a text the architecture of an
external model, package.module:factory."""


def _loads_itself(trained: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    """Return whether a factory gives a trained network, from whose weights a shadow model must not start."""
    return content.get("training") is not None and trained.get("weights") is None and not is_path(str(trained.get("model")))


def is_of_texts(content: Any) -> bool:
    """Return whether the content of a recipe names a source of text."""
    for name in ("data", "source", "kind"):
        content = content.get(name) if isinstance(content, Mapping) else getattr(content, name, None)
    return source_of(content).holds == "texts"


class QueriesSpec(Spec):
    """The queries of each image: variants whose answers are combined. Points are queried once, as they are."""

    flip: bool = False
    """Also query the mirrored image."""
    shift: int = Field(default=0, ge=0, le=MOST_PIXELS)
    """Also query the image shifted by this many pixels up, down, left and right; 0: not shifted."""

    @property
    def count(self) -> int:
        """The number of queries per image."""
        return (2 if self.flip else 1) * (5 if self.shift else 1)


class ShadowsSpec(Spec):
    """Shadow models: trained like the target, each on its own random part of the pool."""

    count: int = Field(default=64, ge=0, le=MOST_MODELS)
    """Number of shadow models. A larger set contains every smaller one: only the additional models are trained. 0: none, for
    the attacks loss and gap on an external target; other attacks need four or more."""
    share: float = Field(default=0.5, gt=0, lt=1)
    """Probability that an example (with `split.group`: a person) is in the training set of a model. For an external model,
    give the share that it was trained on, so that the training sets are as large as its own; epsilon needs fair coins
    (0.5)."""
    chunk: int = Field(default=32, ge=1, le=MOST_MODELS)
    """Number of small models that are trained and stored as one artifact. Models are never retrained when `count` grows by
    whole chunks."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the coins."""


class TargetSpec(WithMembers):
    """The model under audit: by default memlib trains it, on examples that it draws by coins like those of the shadow
    models."""

    trained: ExternalClassifierSpec | None = None
    """An external model with its weights, or a fitted estimator of scikit-learn that its factory returns."""
    outputs: OutputsSpec | None = None
    """Outputs of an external model on all examples of the pool."""
    drawn: Drawn = "unknown"
    """For an external model: how its training examples were chosen. coins: each example (or person) by an independent fair
    coin; fixed: a fixed number per class at random, as in a random hold-out; unknown: anything else. With `unknown`, members
    may differ from non-members in more than membership, so nothing is tested."""
    coins: float = Field(default=0.5, gt=0, lt=1)
    """With `drawn: coins`: the probability of each coin."""

    @model_validator(mode="after")
    def _one_of_three(self) -> "TargetSpec":
        if self.trained is not None and self.outputs is not None:
            raise ValueError("give trained or outputs, not both")
        if self.is_external != (self.members is not None):
            raise ValueError(
                "members lists the training examples of an external model (trained or outputs): give both or neither"
            )
        if self.trained is not None and not self.trained.is_whole:
            raise ValueError(WEIGHTLESS)
        return self

    @property
    def is_external(self) -> bool:
        """True if memlib does not train the target."""
        return self.trained is not None or self.outputs is not None


class Config(LevelSpec):
    """Attacks, tests and intervals."""

    added_later: ClassVar[frozenset[str]] = frozenset({"self_influence"})

    attacks: tuple[AttackName, ...] = Field(default=ATTACKS, min_length=1)
    """lira: likelihood ratio of models that were and were not trained on the example (Carlini 2022); rmia: confidence beyond
    that of all shadow models, compared with non-members' (Zarifzadeh 2024; BASE, Lassila 2025, ranks alike); *_offline: using
    only models that were not trained on the example; calibrated_loss and loss; gap: whether the answer is right;
    trajectory: likelihood ratio of the answers after several epochs (training.checkpoint_epochs), for a target that memlib
    trains; scores: those of an attack elsewhere (target.outputs.kind)."""
    headline: AttackName = "lira"
    """The attack whose numbers are at the top of the page. All attacks are tested, adjusted for their number."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Significance level over all attacks (Westfall and Young), and of each other family of tests."""
    auc_bound: float = Field(default=0.55, gt=0.5, lt=1)
    """The verdict is 'bounded' if nothing is shown, and the upper limits of each attack's AUC and of its rate of true alarms
    lie below this bound and `tail_bound`."""
    tail_bound: float | None = Field(default=None, gt=0, lt=1)
    """Bound of the true alarm rate at `false_alarms[0]`, so that rare and strong memory is not called bounded. By default the
    bound that all attacks on a model without memory meet in four of five audits of as many members and non-members."""
    false_alarms: tuple[Annotated[float, Field(gt=0, lt=0.5)], ...] = Field(default=(0.01, 0.001), min_length=1)
    """Rates of false alarms at which the rate of true alarms is given."""
    persons: Literal["sum", "max", "trimmed"] = "sum"
    """With `split.group`: how the log odds of a person's examples are combined before she is compared with herself in models
    that were not trained on her: their mean; the largest; or the mean of the upper 60 % (RaMIA)."""
    redraws: int = Field(default=9999, ge=999, le=MOST_DRAWS)
    """Number of redraws of the target's coins, from which p-values are computed."""
    memorized: int = Field(default=50, ge=0, le=MOST_DRAWS)
    """Number of the most memorized examples for which the influence on held-out examples is examined; 0: none."""
    self_influence: bool = False
    """For a network that memlib trains: also compare memorization with the self-influence of the target's training examples
    (TracInCP, Pruthi 2020), summed over training.checkpoint_epochs and the last epoch."""
    subgroup: str | None = Field(default=None, min_length=1)
    """For a table: column by whose values the headline attack is also tested slice by slice, as it is by class. Any column of
    the file will do, even if the model does not see it."""
    hidden: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """For a table: categorical columns that are hidden one at a time and guessed from the model's answers. The test asks if
    the guesses are better for members than for non-members (attribute inference)."""
    blind: bool = True
    """Also tell members from non-members without the model, by ids, sizes, dates and content."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of all random draws."""


class ClaimSpec(Spec):
    """A claim of (epsilon, delta)-differential privacy for the target's training."""

    epsilon: float = Field(gt=0, le=MOST_NUMBER)
    """The claimed epsilon, as computed by the owner's accountant."""
    delta: float = Field(default=0.0, ge=0, lt=1)
    """The claimed delta."""
    unit: Literal["example", "person"] = "example"
    """Unit whose addition or removal the claim is about. An epsilon of examples is compared with coins of persons only after
    the bound is divided by the largest number of a person's examples, and only if delta is 0."""
    adjacency: Literal["add_remove", "replace"] = "add_remove"
    """Neighbouring data sets: one unit is added or removed, as the coins do; or replaced by another, which costs up to twice
    as much: such a claim is compared with twice the epsilon."""
    chosen_among: int = Field(default=1, ge=1, le=MOST_MODELS)
    """Number of training runs (settings, seeds) among which the audited model was chosen by its results on the data. The
    accountant of a single run does not cover that choice: from 2 on, a refutation concerns the whole procedure, including
    the choice."""


class ReportSpec(PageSpec):
    """Contents of the page."""

    gallery: int = Field(default=12, ge=0, le=MOST_DRAWS)
    """Number of the most memorized examples that are shown."""


class Recipe(Spec):
    """A membership audit from data to report; with a source of text, see `documents.recipe.DocumentsRecipe`."""

    reads_texts: ClassVar[bool] = False

    audit: Literal["membership"] = "membership"
    title: str = "Membership audit"
    """Heading of the report."""
    data: DataSpec
    """Images, points or tables; for documents, a source of text."""
    split: HoldOutSpec = HoldOutSpec()
    """The pool from which training sets are drawn (`train_per_class`; by default all examples), examples for early stopping,
    and held-out examples, on which the influence of memorized examples is measured."""
    model: AuditedModelSpec | None = None
    """The target's architecture, or the kind of estimator. By default that of `target.trained`, whose factory is called for
    each shadow model; without shadow models it is not needed."""
    training: TrainingSpec | None = None
    """Training of a network; estimators have none."""
    target: TargetSpec = TargetSpec()
    shadows: ShadowsSpec = ShadowsSpec()
    queries: QueriesSpec = QueriesSpec()
    score: Config = Config()
    privacy: ClaimSpec | None = None
    """A claim of differential privacy that is tested."""
    report: ReportSpec = ReportSpec()

    @model_validator(mode="before")
    @classmethod
    def _with_nonmembers(cls, content: Any) -> Any:
        """Read members and non-members that are two tables as the files of one."""
        target = content.get("target") if isinstance(content, Mapping) else None
        if not isinstance(target, Mapping) or "nonmembers" not in target:
            return content
        data, sides = content.get("data"), {name: target.get(name) for name in ("members", "nonmembers")}
        source = data.get("source") if isinstance(data, Mapping) else None
        if not isinstance(source, Mapping) or source.get("kind") != "table" or source.get("path") or source.get("files"):
            raise ValueError("target.nonmembers names the second of two tables: data.source is of kind table, without a path")
        kept = {name: value for name, value in target.items() if name != "nonmembers"}
        return {
            **content, "data": {**data, "source": {**source, "files": sides}}, "target": {**kept, "members": "members/"},
        }  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _with_own_model(cls, content: Any) -> Any:
        """Fill in the architecture of the shadow models where the target's own is meant."""
        if cls.reads_texts or not isinstance(content, Mapping) or content.get("model") is not None:
            return content
        target = content.get("target")
        trained = target.get("trained") if isinstance(target, Mapping) else getattr(target, "trained", None)
        if isinstance(trained, ExternalClassifierSpec):
            trained = trained.model_dump()
        if not isinstance(trained, Mapping) or _loads_itself(trained, content):
            return content
        kept = {name: trained[name] for name in OwnSpec.model_fields if trained.get(name) is not None and name != "version"}
        return {**content, "model": {**kept, "kind": "own"}}

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        check_numbers(self.data.source, [self.target.trained])
        for problem in self._problems():
            raise ValueError(problem)
        return self

    def _problems(self) -> Iterator[str]:
        yield from self._model_problems()
        yield from self._given_problems()
        training = self.training
        if training is not None and training.objective.kind != "supervised":
            yield f"training.objective {training.objective.kind} does not train a classifier; use supervised"
        if training is not None and training.batch_size is None and getattr(self.model, "stackable", False):
            yield "training.batch_size is missing; set it, as training sets drawn by coins differ in size"
        if self.score.headline not in self.score.attacks:
            yield f"score.headline {self.score.headline} is not in score.attacks ({', '.join(self.score.attacks)}); add it"
        if (self.queries.flip or self.queries.shift) and not self.are_nets:
            kind = "model without shadow models" if self.model is None else self.model.kind
            yield f"queries are for images, but a {kind} is queried once per example; remove queries"
        if self.queries.count > 1 and self.target.outputs is not None:
            yield "target.outputs holds one answer per example; remove queries"
        if self.follows and (self.target.is_external or training is None or not training.earlier_epochs):
            yield (
                "the attack trajectory needs answers after several epochs of a network that memlib trains; name them in "
                "training.checkpoint_epochs, or leave trajectory out of score.attacks"
            )
        if self.score.self_influence and (self.target.is_external or training is None):
            yield "score.self_influence is only for networks that memlib trains; leave it out"
        if (self.follows or self.score.self_influence) and training is not None and training.patience is not None:
            yield (
                "training.patience stops models after different epochs, but the attack trajectory and score.self_influence "
                "need the same epochs of all models; set training.patience to null"
            )
        if self.privacy is not None and self.coins != 0.5:
            yield (
                f"privacy needs an independent fair coin for each example or person; the target's were {self._chosen}; "
                "remove privacy, or set shadows.share to 0.5"
            )
        yield from self._column_problems()

    def _model_problems(self) -> Iterator[str]:
        """Yield problems with the shadow models and with their training."""
        model, training, count = self.model, self.training, self.shadows.count
        if isinstance(model, ClassifierSpec) and training is None:
            yield "a network needs training; add it"
        if training is not None and model is not None and not self.are_nets:
            yield f"training is for networks, not for a {model.kind}; remove it"
        if not count and not self.target.is_external:
            yield "shadows.count is 0, but a model that memlib trains is compared with others; give 4 or more"
        if isinstance(model, OwnSpec) and not self.target.is_external and self.data.source.holds == "tables":
            yield f"model {model.model} on a table needs an external target; give target.trained or target.outputs"
        if model is None and (count or training is not None):
            yield (
                "the recipe lacks model, by which shadow models are trained: name one like the target's, such as "
                "{kind: forest}, or a factory, my_package.models:build, with random weights; or set "
                "shadows.count to 0 and score.attacks to [loss, gap]"
            )
        needing = [name for name in self.score.attacks if name not in SHADOWLESS]
        if needing and count < FEWEST_SHADOWS:
            yield (
                f"the attack {needing[0]} needs {FEWEST_SHADOWS} shadow models or more, but shadows.count is {count}; raise "
                "it, or leave the attack out of score.attacks"
            )

    def _given_problems(self) -> Iterator[str]:
        """Yield problems with scores, and with examples of which only ids are known."""
        if self.reads_scores and (self.shadows.count or set(self.score.attacks) != {"scores"}):
            yield (
                "outputs.kind scores are an attack's already; set shadows.count to 0, and score.attacks and score.headline "
                "to scores"
            )
        if "scores" in self.score.attacks and not self.reads_scores:
            yield "the attack scores ranks scores that the owner gives; set target.outputs.kind to scores, or leave it out"
        if self.data.source.holds == "ids" and (self.target.outputs is None or self.shadows.count):
            yield "examples of kind ids cannot be trained or queried on; give target.outputs, and set shadows.count to 0"

    @property
    def are_nets(self) -> bool:
        """True if the shadow models are networks: an own factory without training fits estimators."""
        model = self.model
        if isinstance(model, OwnSpec):
            return self.training is not None and not is_estimator_file(model.model)
        return isinstance(model, ClassifierSpec)

    def _column_problems(self) -> Iterator[str]:
        """Yield problems with the columns that the scores name."""
        score, source = self.score, self.data.source
        named = [name for name in ("subgroup", "hidden") if getattr(score, name)]
        if named and not isinstance(source, TableSource):
            yield f"score.{named[0]} needs columns of a table, but data.source is of kind {source.kind}; remove it"
            return
        if score.hidden and self.target.outputs is not None:
            yield "score.hidden needs an answer for every value of a column, but target.outputs has only one; remove it"
        if len(set(score.hidden)) < len(score.hidden):
            yield f"score.hidden names a column twice ({', '.join(score.hidden)}); name each once"
        used = source.columns if isinstance(source, TableSource) else ()
        if unused := [name for name in score.hidden if used and name not in used]:
            yield f"score.hidden names {unused[0]!r}, but data.source.columns does not; name it in both or neither"

    @property
    def possible(self) -> tuple[str, ...]:
        """The attacks that the recipe's data, target and shadow models allow, but for those that need further queries."""
        return ATTACKS

    @property
    def left_out(self) -> tuple[str, ...]:
        """Possible attacks that the recipe leaves out; what they would see is not bounded."""
        return tuple(name for name in self.possible if name not in self.score.attacks)

    @property
    def queries_target(self) -> bool:
        """True if the target of a table is queried for its structural risk and hidden columns."""
        return self.data.source.holds == "tables" and self.target.outputs is None

    @property
    def follows(self) -> bool:
        """True if an attack reads answers after earlier epochs."""
        return "trajectory" in self.score.attacks

    @property
    def group_noun(self) -> str:
        """The word for units that have several examples, in the plural."""
        group = self.split.group
        return "records" if group is not None and group.joins_copies_alone else "persons"

    @property
    def reads_losses(self) -> bool:
        """True if the owner of the target supplies losses, from which its predicted classes do not follow."""
        return self.target.outputs is not None and self.target.outputs.kind == "losses"

    @property
    def reads_scores(self) -> bool:
        """True if the owner supplies scores of an attack, from which nothing else follows about the target's answers."""
        return self.target.outputs is not None and self.target.outputs.kind == "scores"

    @property
    def _chosen(self) -> str:
        return f"drawn with probability {self.coins:g}" if self.coins is not None else f"drawn {self.target.drawn}"

    @property
    def coins(self) -> float | None:
        """The probability of the target's coins; None if it was not trained on examples drawn by coins."""
        if not self.target.is_external:
            return self.shadows.share
        return self.target.coins if self.target.drawn == "coins" else None

    @property
    def is_drawn(self) -> bool:
        """True if the target's training examples were drawn at random, so that membership can be tested."""
        return not self.target.is_external or self.target.drawn != "unknown"
