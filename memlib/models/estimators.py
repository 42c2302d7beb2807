"""Scikit-learn estimators as classifiers of points: fitted on one core, and scored by the log odds of the true class.

Probabilities that an estimator rounds to 1 have no finite log odds, and clipping them would distort pooled variances. So
scores come from the most exact source that an estimator has: its margins before the softmax, or its votes, smoothed by one
additional vote that is shared equally by all classes.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.specs import (
    BoostingSpec,
    EstimatorSpec,
    ForestSpec,
    LogisticSpec,
    NearestSpec,
    SvmSpec,
    XGBoostSpec,
)
from memlib.stats.likelihood import CLIP, log_odds

Points: TypeAlias = NDArray[np.floating]
Scores: TypeAlias = NDArray[np.float64]
ABSENT = -2 * CLIP  # log-probability of a class without training examples, beyond the clip of log odds
SMALLEST = 1e-12  # smallest probability that is taken from an estimator without margins and votes
MOST_ROWS_OF_SVM = 20_000  # time and memory of its fit grow with their square


class _Classifier(Protocol):
    """A scikit-learn classifier."""

    def fit(self, points: Points, labels: NDArray[np.int64]) -> Any: ...


@dataclass(frozen=True)
class FittedEstimator:
    """A fitted classifier of points. It lives in memory alone: it is fitted again where it is needed, and never pickled.

    Example:
        >>> import numpy as np
        >>> from memlib.specs import NearestSpec
        >>> points, labels = np.array([[0.0], [1.0], [5.0]]), np.array([0, 0, 1])
        >>> fitted = fit_estimator(NearestSpec(kind="nearest", k=1), points, labels, num_classes=2, seed=0)
        >>> fitted.log_odds(points, labels).round(2).tolist()  # log (1.5 / 0.5)
        [1.1, 1.1, 1.1]
    """

    name: str  #: kind of the estimator.
    dim: int  #: number of coordinates of a point.
    num_classes: int  #: number of classes of the data.
    present: NDArray[np.int64]  #: (num_present,) classes of the training examples, ascending.
    #: the scikit-learn classifier of positions in `present`; None if only one class is present and the estimator cannot be
    #: fitted on one.
    model: Any

    def class_scores(self, points: Points) -> Scores:
        """Return log-probabilities (num_points, num_classes), which are exact near 1.

        Raises:
            UserError: when the points have another number of coordinates than the training examples.
        """
        _check_points(points, self.dim)
        found, absent = self._present_scores(np.asarray(points, dtype=np.float64))
        scores = np.full((len(points), self.num_classes), absent)
        scores[:, self.present] = found
        return scores

    def log_odds(self, points: Points, labels: NDArray[np.int64]) -> Scores:
        """Return log p / (1 - p) of the true class (num_points,), clipped as all log odds are.

        Raises:
            UserError: when points or labels do not fit the estimator.
        """
        _check_labels(labels, len(points), self.num_classes)
        return log_odds(self.class_scores(points), labels)

    def probabilities(self, points: Points) -> Scores:
        """Return probabilities (num_points, num_classes) as the estimator states them: votes are not smoothed.

        Raises:
            UserError: when the points have another number of coordinates than the training examples.
        """
        _check_points(points, self.dim)
        found = np.zeros((len(points), self.num_classes))
        given = np.asarray(points, dtype=np.float64)
        found[:, self.present] = 1.0 if self.model is None else stated_probabilities(self.model, given)
        return found

    def _present_scores(self, points: Scores) -> tuple[Scores, float]:
        """Return the scores (num_points, num_present) of the present classes, and the score of an absent class."""
        if self.model is None or not len(points):
            return np.zeros((len(points), len(self.present))), ABSENT
        with _one_core():
            votes = votes_of(self.model)
            if votes is None:
                return log_softmax(margins_of(self.model, points)), ABSENT
            return smoothed(self.model.predict_proba(points), votes, self.num_classes)


def fit_estimator(
    spec: EstimatorSpec, points: Points, labels: NDArray[np.int64], *, num_classes: int, seed: int
) -> FittedEstimator:
    """Fit an estimator on one core; the same rows in the same order and the same seed give the same estimator.

    Args:
        points: (num_examples, num_coordinates), at least one example.
        labels: (num_examples,) classes; some may have no example.
        num_classes: number of classes of the data.
        seed: seed from which the estimator's own is derived.

    Raises:
        UserError: when the estimator cannot be fitted on these examples, or its library is not installed.
    """
    _check_points(points, None)
    _check_labels(labels, len(points), num_classes)
    _check_rows(spec, len(points))
    present, positions = np.unique(labels, return_inverse=True)
    fixed = len(present) == 1 and not isinstance(spec, ForestSpec | NearestSpec)  # these can be fitted on one class
    model = None if fixed else _fitted(spec, np.asarray(points, dtype=np.float64), positions, seed=seed)
    return FittedEstimator(spec.kind, points.shape[1], num_classes, present, model)


def _fitted(spec: EstimatorSpec, points: Scores, positions: NDArray[np.int64], *, seed: int) -> _Classifier:
    model = build(spec, derive_seed(seed, "estimator", spec.kind) % 2**31)  # the libraries take 32 bits, some signed
    with _one_core(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of slow convergence
        try:
            model.fit(points, positions)
        except ValueError as error:
            reason = (str(error).splitlines() or [""])[0][:300]
            raise UserError(f"the estimator {spec.kind} cannot be fitted on {len(points):,} points ({reason})") from error
    return model


def build(spec: EstimatorSpec, seed: int) -> _Classifier:
    """Return the unfitted classifier of a spec.

    Raises:
        UserError: when its library is not installed.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier  # imported late: too slow for plans
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.svm import SVC

    model: _Classifier
    match spec:
        case ForestSpec():
            features = None if spec.max_features == "all" else spec.max_features
            model = RandomForestClassifier(
                spec.trees, max_depth=spec.max_depth, min_samples_leaf=spec.min_samples_leaf, max_features=features,
                bootstrap=spec.bootstrap, n_jobs=1, random_state=seed,
            )  # fmt: skip
        case LogisticSpec():
            model = LogisticRegression(C=spec.c, max_iter=spec.iterations, random_state=seed)
        case BoostingSpec():
            model = HistGradientBoostingClassifier(
                max_iter=spec.iterations, learning_rate=spec.learning_rate, max_leaf_nodes=spec.max_leaf_nodes,
                min_samples_leaf=spec.min_samples_leaf, l2_regularization=spec.l2, early_stopping=False, random_state=seed,
            )  # fmt: skip
        case NearestSpec():
            model = KNeighborsClassifier(spec.k, weights=spec.weights, n_jobs=1)
        case SvmSpec():
            model = SVC(C=spec.c, gamma=spec.gamma, random_state=seed)
        case XGBoostSpec():
            model = _xgboost(spec, seed)
        case _:
            assert_never(spec)
    return model


def _xgboost(spec: XGBoostSpec, seed: int) -> _Classifier:
    try:
        import xgboost
    except ImportError as error:
        raise UserError("estimators of kind xgboost need XGBoost: pip install -e '.[xgboost]' in memlib's folder") from error
    model: _Classifier = xgboost.XGBClassifier(
        n_estimators=spec.iterations, learning_rate=spec.learning_rate, max_depth=spec.max_depth, reg_lambda=spec.l2,
        tree_method="hist", n_jobs=1, random_state=seed,
    )  # fmt: skip
    return model


def stated_probabilities(model: Any, points: Scores) -> Scores:
    """Return a fitted classifier's own probabilities (num_points, num_present), or the softmax of its margins."""
    with _one_core():
        if hasattr(model, "predict_proba"):
            return np.asarray(model.predict_proba(points), dtype=np.float64)
        return np.exp(log_softmax(margins_of(model, points)))


def stores_examples(model: Any) -> bool:
    """Return whether a fitted classifier contains training examples as they are: neighbours, support vectors, processes."""
    return any(hasattr(_last_of(model), name) for name in ("_fit_X", "support_vectors_", "X_train_"))


def parameters_of(model: Any) -> int | None:
    """Return the number of coefficients of a fitted linear classifier; None for any other."""
    last = _last_of(model)
    if stores_examples(last) or not hasattr(last, "coef_"):
        return None
    return int(np.size(last.coef_) + np.size(last.intercept_))


def _last_of(model: Any) -> Any:
    """Return the last step of a pipeline, or the model itself."""
    steps = getattr(model, "steps", None)
    return steps[-1][1] if steps else model


def votes_of(model: Any) -> int | None:
    """Return the number of trees or neighbours over which a fitted forest or k-NN classifier averages; None for any other."""
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
    from sklearn.neighbors import KNeighborsClassifier

    if isinstance(model, RandomForestClassifier | ExtraTreesClassifier):
        return len(model.estimators_)
    return int(model.n_neighbors) if isinstance(model, KNeighborsClassifier) else None


def smoothed(shares: Scores, votes: int, num_classes: int) -> tuple[Scores, float]:
    """Return log-probabilities from shares of votes, and the log-probability of a class that got none.

    One more vote is shared equally by all classes: with two classes, p = (votes for the class + 1/2) / (votes + 1). Unlike a
    clip, this changes no order, and no share of 1 stays 1.

    Args:
        shares: (num_points, num_present) of the classes that the classifier knows.
        votes: number of votes.
        num_classes: number of classes, including those that the classifier does not know.

    Example:
        >>> import numpy as np
        >>> smoothed(np.array([[1.0, 0.0]]), 100, 2)[0].round(3).tolist()  # 100.5 / 101 and 0.5 / 101
        [[-0.005, -5.308]]
    """
    scores: Scores = np.log((votes * shares + 1 / num_classes) / (votes + 1))
    return scores, -float(np.log(num_classes * (votes + 1)))


def margins_of(model: Any, points: Points) -> Scores:
    """Return the margins of a fitted classifier (num_points, num_present), which a softmax turns into probabilities."""
    if hasattr(model, "decision_function"):
        margins = model.decision_function(points)
    else:  # XGBoost
        margins = model.predict(points, output_margin=True)
    margins = np.asarray(margins, dtype=np.float64)
    return np.column_stack([np.zeros(len(margins)), margins]) if margins.ndim == 1 else margins


def log_softmax(margins: Scores) -> Scores:
    """Return the log-probabilities (num_points, num_classes) of margins of the same shape."""
    shifted = margins - margins.max(axis=1, keepdims=True)
    scores: Scores = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return scores


def _one_core() -> Any:
    """Return a context in which the libraries' own threads are limited to one."""
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    return threadpool_limits(1)


def _check_points(points: Points, dim: int | None) -> None:
    if points.ndim != 2 or (dim is not None and points.shape[1] != dim):
        expected = "points of one dimension" if dim is None else f"points of {dim} coordinates"
        raise UserError(
            f"estimators take {expected}, but these examples have shape {points.shape[1:]}; "
            "use a source of points, such as kind: table"
        )


def _check_labels(labels: NDArray[np.int64], count: int, num_classes: int) -> None:
    if labels.shape != (count,):
        raise UserError(f"{count:,} points have labels of shape {labels.shape}; give one label per point")
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        raise UserError(f"labels range from {labels.min()} to {labels.max()}; with {num_classes} classes they must be 0 to "
                        f"{num_classes - 1}")  # fmt: skip


def _check_rows(spec: EstimatorSpec, count: int) -> None:
    if not count:
        raise UserError(f"the estimator {spec.kind} has no training examples; raise the share of members")
    if isinstance(spec, NearestSpec) and spec.k > count:
        raise UserError(f"k is {spec.k}, but a training set has only {count:,} examples; lower k")
    if isinstance(spec, SvmSpec) and count > MOST_ROWS_OF_SVM:
        raise UserError(
            f"svm takes at most {MOST_ROWS_OF_SVM:,} training examples, but there are {count:,}; use boosting or logistic"
        )
