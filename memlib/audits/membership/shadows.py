"""Shadow models and the target: their training sets, their training, and the observation of their answers on the pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from memlib.audits.membership.recipe import QueriesSpec
from memlib.data.images.stored import are_images
from memlib.data.splits import HELD_OUT, TRAIN, VALIDATION, column
from memlib.data.stages import Seen, TrainingData, rows_of
from memlib.data.subsets import Subsets
from memlib.errors import UserError
from memlib.observe.models import Trained, load_any, model_key, nets_in
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs import EstimatorSpec, ExternalClassifierSpec, TrainingSpec
from memlib.store import Attempt, Ref
from memlib.training.fit import Train

if TYPE_CHECKING:
    import torch

    from memlib.models.external.own import Trained as Net

FILES = ("odds.npy", "correct.npy", "held_out_correct.npy")
EARLIER = "earlier.npy"


@dataclass(frozen=True, kw_only=True)
class TrainSubset(Train):
    """Train one model on its subset of the pool."""

    declared: ClassVar[Declared] = Declared("train_subset", 1)
    title: ClassVar[str] = "train shadow models"

    subsets: Subsets  #: its training set.

    @property
    def spec(self) -> Mapping[str, Any]:
        """Architecture, training and coins."""
        return {**super().spec, **self.subsets.spec}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The examples and their roles."""
        return self.subsets.inputs

    @property
    def units(self) -> float:
        """The number of epochs."""
        return float(self.training.epochs)

    @property
    def seen(self) -> Seen:
        """The training examples."""
        return self.subsets.seen_by(0)


@dataclass(frozen=True)
class Answers:
    """The answers of some models on the pool and on the held-out examples, in order of example id."""

    odds: NDArray[np.float32]  #: (num_models, num_queries, num_pool) float32, log odds of the true class.
    correct: NDArray[np.bool_]  #: (num_models, num_pool) bool, right answers to the unchanged examples.
    held_out: NDArray[np.bool_]  #: (num_models, num_held_out) bool, the same on the held-out examples.
    #: (num_models, num_earlier, num_pool) float32, log odds of the unchanged examples after earlier epochs; None without
    #: such.
    earlier: NDArray[np.float32] | None = None

    @classmethod
    def read(cls, artifact: Artifact[Answers]) -> Answers:
        """Return the answers in an artifact."""
        return cls(*(np.load(artifact.path(name)) for name in (*FILES, EARLIER) if name in artifact.files))

    def write(self, attempt: Attempt) -> None:
        """Write the arrays."""
        for name, values in zip((*FILES, EARLIER), (self.odds, self.correct, self.held_out, self.earlier), strict=True):
            if values is not None:
                np.save(attempt.path(name), values)

    def of(self, listed: NDArray[np.bool_]) -> Answers:
        """Return the answers on the examples of the pool in a mask, (num_pool,) bool."""
        earlier = None if self.earlier is None else self.earlier[:, :, listed]
        return Answers(self.odds[:, :, listed], self.correct[:, listed], self.held_out, earlier)

    @property
    def none(self) -> Answers:
        """The answers of no model on the same examples."""
        return Answers(self.odds[:0], self.correct[:0], self.held_out[:0], None if self.earlier is None else self.earlier[:0])

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Answers:
        """Return the answers of all models of several artifacts."""
        names = [name for name in ("odds", "correct", "held_out", "earlier") if getattr(parts[0], name) is not None]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(frozen=True)
class FitEstimators(Stage[Answers]):
    """Fit estimators of scikit-learn, each to its own subset of the pool; only their answers are stored."""

    declared: ClassVar[Declared] = Declared("fit_estimators", 1)
    title: ClassVar[str] = "fit estimators"
    place: ClassVar[Place] = "cores"

    subsets: Subsets  #: the training sets.
    model: EstimatorSpec  #: kind and settings of the estimators.
    seeds: tuple[int, ...]  #: seed of each estimator.

    @property
    def units(self) -> float:
        """The number of estimators."""
        return float(len(self.seeds))

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Fit the estimators and write their answers."""
        from memlib.models.estimators import fit_estimator

        data = self.subsets.data
        points, classes = flat_points(data), data.num_classes
        parts = []
        for place, seed in enumerate(self.seeds):
            rows, labels = self.subsets.seen_by(place)
            fitted = fit_estimator(self.model, points[rows], labels, num_classes=classes, seed=seed)
            scores = [fitted.class_scores(points[column(data.members(role), "row")])[None] for role in (TRAIN, HELD_OUT)]
            parts.append(answers_of([scores[0]], scores[1], data))
            attempt.progress(place + 1, len(self.seeds))
        Answers.joined(parts).write(attempt)

    @classmethod
    def open(cls, artifact: Artifact[Answers]) -> Answers:
        """Return the answers."""
        return Answers.read(artifact)


@dataclass(frozen=True)
class TrainOwn(Stage[Answers]):
    """Train models of an external target's architecture, each on its own subset of the pool; only their answers are stored,
    so that no stored file decides which code is run."""

    declared: ClassVar[Declared] = Declared("train_own", 1)
    title: ClassVar[str] = "train models like the target"
    place: ClassVar[Place] = "anywhere"

    subsets: Subsets  #: the training sets.
    model: ExternalClassifierSpec  #: the untrained model.
    training: TrainingSpec | None  #: the training of a network; None for an estimator.
    seeds: tuple[int, ...]  #: seed of each model.
    queries: QueriesSpec  #: the variants of each image.

    @property
    def label(self) -> str:
        """The first and the last model."""
        return self.subsets.label

    @property
    def spec(self) -> Mapping[str, Any]:
        """Training, seeds, coins and queries."""
        training = None if self.training is None else self.training.model_dump(mode="json")
        queries = self.queries.model_dump(mode="json")
        return {"training": training, "seeds": list(self.seeds), "queries": queries, **self.subsets.spec}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The examples, their roles and the model."""
        return {**self.subsets.inputs, "model": model_key(self.model)}

    @property
    def units(self) -> float:
        """The number of models times that of epochs."""
        return float(len(self.seeds) * (1 if self.training is None else self.training.epochs))

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Train the models and write their answers."""
        from memlib.models.external.own import Trained as Net
        from memlib.models.external.own import untrained

        parts = []
        for place, seed in enumerate(self.seeds):
            model = untrained(self.model, self.subsets.data.num_classes, seed=seed)
            is_net = isinstance(model, Net)
            if is_net != (self.training is not None):
                raise UserError(
                    f"{self.model.model} is a network, whose training the recipe lacks; add training"
                    if is_net
                    else f"{self.model.model} is a {type(model).__name__}, which is fitted at once; remove training"
                )
            parts.append(self._of_net(model, place, seed, device) if is_net else self._of_estimator(model, place))
            attempt.progress(place + 1, len(self.seeds))
        Answers.joined(parts).write(attempt)

    def _of_net(self, model: Net, place: int, seed: int, device: torch.device) -> Answers:
        from memlib.objectives import build_objective
        from memlib.observe.models import single
        from memlib.observe.outputs import class_scores
        from memlib.training.augment import prepare
        from memlib.training.loop import Training, TrainingSet, Worker

        assert self.training is not None
        data, training = self.subsets.data, self.training.model_copy(update={"seed": seed})
        stopping = None
        if training.patience is not None:
            stopping = TrainingSet(data.images, *rows_of(data.splits, VALIDATION))
        run = Training(
            model, build_objective(training.objective), TrainingSet(data.images, *self.subsets.seen_by(place)), training,
            input_size=data.images.shape[1], worker=Worker(device=device), validation=stopping,
        )  # fmt: skip
        run.run()
        forward = single(run.model, device)
        pool, held_out = (data.images[column(data.members(role), "row")] for role in (TRAIN, HELD_OUT))
        nothing = np.zeros((1, 0, data.num_classes), dtype=np.float32)
        *by_query, of_held_out = [
            class_scores(forward, each, num_nets=1, device=device, take=prepare) if len(each) else nothing
            for each in (*variants(pool, self.queries), held_out)
        ]
        return answers_of(by_query, of_held_out, data)

    def _of_estimator(self, model: Any, place: int) -> Answers:
        from memlib.models.external.own import fit_own

        data, (rows, labels) = self.subsets.data, self.subsets.seen_by(place)
        points = flat_points(data)
        fitted = fit_own(model, self.model, points[rows], labels, data.num_classes)
        scores = [fitted.class_scores(points[column(data.members(role), "row")])[None] for role in (TRAIN, HELD_OUT)]
        return answers_of([scores[0]], scores[1], data)

    @classmethod
    def open(cls, artifact: Artifact[Answers]) -> Answers:
        """Return the answers."""
        return Answers.read(artifact)


@dataclass(frozen=True)
class Observe(Stage[Answers]):
    """Query models on the pool and on the held-out examples."""

    declared: ClassVar[Declared] = Declared("observe_members", 1)
    title: ClassVar[str] = "query models"
    place: ClassVar[Place] = "anywhere"

    data: TrainingData  #: the examples.
    models: Trained | ExternalClassifierSpec  #: nets that were trained together, one large model, or an external model.
    epoch: int  #: the last epoch of a model that memlib trained.
    queries: QueriesSpec  #: the variants of each image.
    earlier: tuple[int, ...] = ()  #: earlier epochs after which the unchanged examples are queried, too.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The checkpoints and the queries."""
        earlier = {"earlier": list(self.earlier)} if self.earlier else {}
        return {"epoch": self.epoch, "queries": self.queries.model_dump(mode="json"), **earlier}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The examples, their roles and the models."""
        return {"shard": self.data.shard.key, "splits": self.data.splits.key, "models": model_key(self.models)}

    @property
    def near(self) -> Ref | None:
        """The models, if memlib trained them."""
        return None if isinstance(self.models, ExternalClassifierSpec) else self.models.ref

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the answers."""
        from memlib.observe.models import check_varied

        pool, held_out = (self.data.images[column(self.data.members(role), "row")] for role in (TRAIN, HELD_OUT))
        asked = variants(pool, self.queries)
        *by_query, of_held_out = self._scores([*asked, held_out], self.epoch, device)
        check_varied(self.models, by_query[0], attempt)
        earlier = [self._scores([pool], epoch, device)[0] for epoch in self.earlier]
        answers_of(by_query, of_held_out, self.data, earlier).write(attempt)

    def _scores(self, asked: Sequence[NDArray[Any]], epoch: int, device: torch.device) -> list[NDArray[np.float32]]:
        """Return the class scores (num_models, num_examples, num_classes) on each of several sets of stored examples."""
        from memlib.observe.outputs import class_scores

        count = nets_in(self.models) or 1
        forward, take = load_any(self.models, epoch, self.data.num_classes, device)
        nothing = np.zeros((count, 0, self.data.num_classes), dtype=np.float32)
        return [
            class_scores(forward, examples, num_nets=count, device=device, take=take) if len(examples) else nothing
            for examples in asked
        ]

    @classmethod
    def open(cls, artifact: Artifact[Answers]) -> Answers:
        """Return the answers."""
        return Answers.read(artifact)


def flat_points(data: TrainingData) -> NDArray[np.float32]:
    """Return the stored examples as points: (num_stored, dim) float32; of images, the grey values in [0, 1]."""
    images = data.images
    if not are_images(images):
        return np.asarray(images, dtype=np.float32)
    points: NDArray[np.float32] = np.asarray(images, dtype=np.float32).reshape(len(images), -1) / np.float32(255)
    return points


def answers_of(
    by_query: Sequence[NDArray[Any]], held_out: NDArray[Any], data: TrainingData, earlier: Sequence[NDArray[Any]] = ()
) -> Answers:
    """Return the answers that follow from class scores.

    Args:
        by_query: class scores (num_models, num_pool, num_classes) for each query, the unchanged examples first.
        held_out: (num_models, num_held_out, num_classes) class scores on the held-out examples.
        data: the examples, for their labels.
        earlier: class scores on the unchanged examples after each earlier epoch.
    """
    from memlib.stats.likelihood import log_odds

    labels, others = (column(data.members(role), "label") for role in (TRAIN, HELD_OUT))
    asked, count = [*by_query, *earlier], len(by_query)
    odds = np.stack([[log_odds(scores, labels) for scores in each] for each in asked], axis=1).astype(np.float32)
    right, right_held_out = np.asarray(by_query[0]).argmax(axis=2) == labels, np.asarray(held_out).argmax(axis=2) == others
    return Answers(odds[:, :count], right, right_held_out, odds[:, count:] if earlier else None)


def variants(images: NDArray[Any], queries: QueriesSpec) -> list[NDArray[Any]]:
    """Return the queried variants of stored images (num, height, width, channels): unchanged first; edges are repeated."""
    shifts = [(0, 0)]
    if queries.shift:
        shifts += [(queries.shift, 0), (-queries.shift, 0), (0, queries.shift), (0, -queries.shift)]
    moved = [_shifted(images, *shift) for shift in shifts]
    return moved + ([image[:, :, ::-1] for image in moved] if queries.flip else [])


def _shifted(images: NDArray[Any], down: int, right: int) -> NDArray[Any]:
    if not down and not right:
        return images
    rows = np.clip(np.arange(images.shape[1]) - down, 0, images.shape[1] - 1)
    columns = np.clip(np.arange(images.shape[2]) - right, 0, images.shape[2] - 1)
    return images[:, rows][:, :, columns]
