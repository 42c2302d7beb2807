"""Further queries of a table's target: its outputs, its answers with a column set to each of its values, and the columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.audits.membership.shadows import flat_points
from memlib.data.datasets import open_source
from memlib.data.splits import TRAIN, column
from memlib.data.stages import Shard, TrainingData
from memlib.data.subsets import Subsets
from memlib.data.tables.source import OneHot
from memlib.errors import UserError
from memlib.observe.models import Trained, forward_of, load_logits, load_net, model_key, single
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs import DataSpec, EstimatorSpec, ExternalClassifierSpec
from memlib.store import Attempt, Ref
from memlib.tables import read_table

if TYPE_CHECKING:
    import torch

    from memlib.observe.models import Take
    from memlib.observe.outputs import Forward

SUBGROUP_FILE, HIDDEN_FILE = "subgroup.parquet", "hidden.json"
MOST_VALUES = 50  # of a subgroup column


@dataclass(frozen=True)
class Columns:
    """Columns of a table."""

    subgroup: Mapping[str, str]  #: value of the subgroup column by example id; examples without a value are left out.
    hidden: Mapping[str, OneHot]  #: coordinates of each hidden column, by name.


@dataclass(frozen=True)
class ReadColumns(Stage[Columns]):
    """Read the columns of a table that the scores name: subgroup.parquet and hidden.json."""

    declared: ClassVar[Declared] = Declared("read_columns", 1)
    title: ClassVar[str] = "read columns"

    data: DataSpec  #: the table.
    shard: Artifact[Shard]  #: its decoded rows.
    subgroup: str | None  #: the subgroup column, if there is one.
    hidden: tuple[str, ...]  #: the hidden columns.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The names of the columns."""
        return {"subgroup": self.subgroup, "hidden": list(self.hidden)}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The decoded table, whose key contains the digest of the file."""
        return {"shard": self.shard.key}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write values by example id, and coordinates by column."""
        source: Any = open_source(self.data.source, self.data.intensities, self.data.labels)
        values = {} if self.subgroup is None else subgroup_values(source.attributes, self.subgroup)
        table = pa.table({"example_id": pa.array(values, pa.string()), "value": pa.array(values.values(), pa.string())})
        pq.write_table(table, attempt.path(SUBGROUP_FILE))
        hidden = {name: asdict(hideable(source.one_hot(name), name)) for name in self.hidden}
        attempt.path(HIDDEN_FILE).write_text(json.dumps(hidden), encoding="utf-8")

    @classmethod
    def open(cls, artifact: Artifact[Columns]) -> Columns:
        """Return the columns."""
        table = read_table(artifact.path(SUBGROUP_FILE))
        values = dict(zip(table["example_id"].to_pylist(), table["value"].to_pylist(), strict=True))
        described = json.loads(artifact.path(HIDDEN_FILE).read_text(encoding="utf-8"))
        hidden = {
            name: OneHot(each["start"], tuple(each["categories"]), each["has_missing"]) for name, each in described.items()
        }
        return Columns(values, hidden)

    @classmethod
    def described(cls, artifact: Artifact[Columns]) -> list[str]:
        """Describe the number of values of each column."""
        content = artifact.content
        lines = [f"subgroups: {len(set(content.subgroup.values()))} values"] if content.subgroup else []
        return lines + [f"hidden: {name}, {len(column.categories)} values" for name, column in content.hidden.items()]


def subgroup_values(stated: Mapping[str, Mapping[str, str]], name: str) -> Mapping[str, str]:
    """Return the values of the subgroup column by example id.

    Raises:
        UserError: for a column that the table lacks, or that has a single value or too many.
    """
    if name not in stated:
        raise UserError(
            f"score.subgroup names {name!r}, but the columns of the table are {', '.join(stated)}; name one of them"
        )
    values = stated[name]
    count = len(set(values.values()))
    if count < 2:
        raise UserError(f"score.subgroup: column {name} has only {count} value; name a column with at least two")
    if count > MOST_VALUES:
        raise UserError(
            f"score.subgroup: column {name} has {count:,} values; name one with at most {MOST_VALUES}, such as age by decades"
        )
    return values


def hideable(column: OneHot, name: str) -> OneHot:
    """Return the column if it has several values, so that they can be guessed.

    Raises:
        UserError: for a column with a single value.
    """
    if len(column.categories) < 2:
        raise UserError(
            f"score.hidden: column {name} has only {len(column.categories)} value, so nothing to guess; remove it"
        )
    return column


OUTPUTS_FILE = "outputs.npy"
Points = NDArray[np.float32]
Query = Callable[[Points], NDArray[Any]]


@dataclass(frozen=True)
class Opened:
    """A target in memory."""

    scores: Query  #: function that returns class scores (num_points, num_classes), exact where the target is sure.
    probabilities: Query  #: function that returns its probabilities (num_points, num_classes) as it states them.
    parameters: int | None  #: number of fitted parameters; None if it is not known.
    instance_based: bool  #: True if it contains training examples as they are.


@dataclass(frozen=True)
class Refitted:
    """An estimator that memlib trains: it is fitted again on its training set, as estimators are never stored."""

    subsets: Subsets  #: its training set.
    model: EstimatorSpec  #: kind and settings.
    seed: int  #: seed of the fit.

    @property
    def spec(self) -> Mapping[str, Any]:
        """Training set, kind and seed."""
        return {**self.subsets.spec, "model": self.model.model_dump(mode="json"), "seed": self.seed}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The pool."""
        return self.subsets.inputs

    def open(self, data: TrainingData, device: torch.device) -> Opened:
        """Fit the estimator."""
        from memlib.models.estimators import fit_estimator, parameters_of

        (rows, labels), classes = self.subsets.seen_by(0), data.num_classes
        fitted = fit_estimator(self.model, flat_points(data)[rows], labels, num_classes=classes, seed=self.seed)
        parameters = parameters_of(fitted.model)
        return Opened(fitted.class_scores, fitted.probabilities, parameters, self.model.is_instance_based)


@dataclass(frozen=True)
class Loaded:
    """A network that memlib trained, or an external model."""

    models: Trained | ExternalClassifierSpec  #: the only network of an artifact, or the external model.
    epoch: int  #: the last epoch of a model that memlib trained.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The checkpoint."""
        return {"epoch": self.epoch}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The model."""
        return {"models": model_key(self.models)}

    def open(self, data: TrainingData, device: torch.device) -> Opened:
        """Load the model."""
        if isinstance(self.models, ExternalClassifierSpec):
            return _external(self.models, data.num_classes, device)
        from memlib.training.augment import prepare

        net = load_net(self.models, 0, epoch=self.epoch)
        scores = _scores(forward_of(self.models, epoch=self.epoch, device=device), prepare, device)
        return Opened(scores, lambda points: _softmax(scores(points)), _count(net), False)


def _external(spec: ExternalClassifierSpec, num_classes: int, device: torch.device) -> Opened:
    from memlib.models.estimators import parameters_of, stated_probabilities, stores_examples
    from memlib.models.external.estimators import EstimatorModule

    module, take = load_logits(spec, spec.weights, num_classes)
    inner = module.model
    scores = _scores(single(module, device), take, device)
    if not isinstance(inner, EstimatorModule):
        return Opened(scores, lambda points: _softmax(scores(points)), _count(module), False)
    model = inner.estimator

    def stated(points: Points) -> NDArray[Any]:
        return stated_probabilities(model, points.astype(np.float64))  # classes in the model's own order

    return Opened(scores, stated, parameters_of(model), stores_examples(model))


def _scores(forward: Forward, take: Take, device: torch.device) -> Query:
    from memlib.observe.outputs import class_scores

    return lambda points: class_scores(forward, points, num_nets=1, device=device, take=take)[0]


def _count(net: torch.nn.Module) -> int:
    return sum(each.numel() for each in net.parameters())


def _softmax(scores: NDArray[Any]) -> NDArray[np.float64]:
    from memlib.models.estimators import log_softmax

    return np.exp(log_softmax(scores.astype(np.float64)))


@dataclass(frozen=True)
class Guesses:
    """The target's answers to the examples of the pool with one column hidden."""

    odds: NDArray[np.float32]  #: (num_pool, num_values) log odds of the true class with the column set to each value.
    values: NDArray[np.int64]  #: (num_pool,) number of the true value; -1 where it is missing.


@dataclass(frozen=True)
class TargetAnswers:
    """More answers of the target on the pool, in order of example id."""

    outputs: NDArray[np.float64]  #: (num_pool, num_classes) probabilities as the target states them.
    guesses: Mapping[str, Guesses]  #: answers by hidden column.
    parameters: int | None  #: number of fitted parameters; None if it is not known.
    instance_based: bool  #: True if the target contains training examples as they are.


@dataclass(frozen=True)
class QueryTarget(Stage[TargetAnswers]):
    """Query the target on a table: its outputs, and its answers with each hidden column set to each of its values."""

    declared: ClassVar[Declared] = Declared("query_target", 1)
    title: ClassVar[str] = "query the target"
    place: ClassVar[Place] = "anywhere"

    data: TrainingData  #: the examples.
    target: Refitted | Loaded  #: the model.
    columns: Artifact[Columns] | None  #: the hidden columns; None if there are none.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The target."""
        return self.target.spec

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The examples, the target and the columns."""
        columns = {} if self.columns is None else {"columns": self.columns.key}
        return {"shard": self.data.shard.key, "splits": self.data.splits.key, **self.target.inputs, **columns}

    @property
    def where(self) -> Place:
        """CPU cores for an estimator that is fitted again; otherwise any machine."""
        return "cores" if isinstance(self.target, Refitted) else "anywhere"

    @property
    def near(self) -> Ref | None:
        """The model, if memlib trained and stored it."""
        models = None if isinstance(self.target, Refitted) else self.target.models
        return None if models is None or isinstance(models, ExternalClassifierSpec) else models.ref

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write outputs.npy, and for each hidden column its odds and values."""
        opened, pool = self.target.open(self.data, device), self.data.members(TRAIN)
        points, labels = flat_points(self.data)[column(pool, "row")], column(pool, "label")
        np.save(attempt.path(OUTPUTS_FILE), opened.probabilities(points))
        hidden = {} if self.columns is None else self.columns.content.hidden
        for number, place in enumerate(hidden.values()):
            np.save(attempt.path(_odds_file(number)), _guessed(opened.scores, place, points, labels))
            np.save(attempt.path(_values_file(number)), place.codes(points))
            attempt.progress(number + 1, len(hidden))
        attempt.facts |= {
            "hidden": list(hidden), "parameters": opened.parameters, "instance_based": opened.instance_based
        }  # fmt: skip

    @classmethod
    def open(cls, artifact: Artifact[TargetAnswers]) -> TargetAnswers:
        """Return the answers."""
        facts = artifact.facts
        guesses = {
            name: Guesses(np.load(artifact.path(_odds_file(number))), np.load(artifact.path(_values_file(number))))
            for number, name in enumerate(facts["hidden"])
        }
        outputs = np.load(artifact.path(OUTPUTS_FILE))
        return TargetAnswers(outputs, guesses, facts["parameters"], facts["instance_based"])


def _guessed(scores: Query, place: OneHot, points: Points, labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the log odds of the true class with a column set to each of its values, (num_points, num_values)."""
    from memlib.stats.likelihood import log_odds

    found = [log_odds(scores(place.replaced(points, code)), labels) for code in range(len(place.categories))]
    return np.stack(found, axis=1).astype(np.float32)


def _odds_file(number: int) -> str:
    return f"odds_{number}.npy"


def _values_file(number: int) -> str:
    return f"values_{number}.npy"
