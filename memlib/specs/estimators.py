"""Specs of scikit-learn estimators: classifiers of points, fitted as a whole rather than in steps."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from memlib.specs.base import Spec
from memlib.specs.limits import MOST_EXAMPLES, MOST_NUMBER, MOST_STEPS, MOST_WIDTH


class _Estimator(Spec):
    """Base class of the specs of estimators."""

    stores_examples: ClassVar[bool] = False

    @property
    def is_instance_based(self) -> bool:
        """True if a fitted estimator contains training examples as they are, so that its release publishes them."""
        return self.stores_examples


class ForestSpec(_Estimator):
    """A random forest (Breiman 2001): decision trees on resampled rows, whose class shares are averaged."""

    kind: Literal["forest"]
    trees: int = Field(default=100, ge=1, le=MOST_WIDTH)
    """Number of trees."""
    max_depth: int | None = Field(default=None, ge=1, le=MOST_WIDTH)
    """Largest depth of a tree; null: trees grow until their leaves are pure or cannot be split."""
    min_samples_leaf: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """Smallest number of rows of a leaf."""
    max_features: Literal["sqrt", "log2", "all"] = "sqrt"
    """Number of coordinates among which each split is chosen: the root or the binary logarithm of their number, or all."""
    bootstrap: bool = True
    """Draw the rows of each tree with replacement; false: each tree sees all rows."""


class LogisticSpec(_Estimator):
    """Multinomial logistic regression with an L2 penalty, by L-BFGS."""

    kind: Literal["logistic"]
    c: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Inverse strength of the penalty: weight of the summed losses against half the squared norm of the weights."""
    iterations: int = Field(default=1000, ge=1, le=MOST_STEPS)
    """Largest number of iterations."""


class BoostingSpec(_Estimator):
    """Gradient-boosted trees on histograms (scikit-learn's HistGradientBoostingClassifier), without early stopping, which
    would hold out rows of its own choice."""

    kind: Literal["boosting"]
    iterations: int = Field(default=100, ge=1, le=MOST_STEPS)
    """Number of trees, of each class if there are more than two."""
    learning_rate: float = Field(default=0.1, gt=0, le=MOST_NUMBER)
    """Factor of each tree's contribution."""
    max_leaf_nodes: int = Field(default=31, ge=2, le=MOST_WIDTH)
    """Largest number of leaves of a tree."""
    min_samples_leaf: int = Field(default=20, ge=1, le=MOST_EXAMPLES)
    """Smallest number of rows of a leaf."""
    l2: float = Field(default=0.0, ge=0, le=MOST_NUMBER)
    """Strength of the L2 penalty on the values of leaves."""


class NearestSpec(_Estimator):
    """A vote of the nearest training points, which the estimator stores (instance-based)."""

    stores_examples: ClassVar[bool] = True

    kind: Literal["nearest"]
    k: int = Field(default=5, ge=1, le=MOST_EXAMPLES)
    """Number of neighbours."""
    weights: Literal["uniform", "distance"] = "uniform"
    """uniform: one vote each; distance: votes weigh by inverse distance, so that a training point decides its own class."""


class SvmSpec(_Estimator):
    """A support vector machine with a Gaussian kernel, for at most 20,000 rows. It stores its support vectors, which are
    training points (instance-based)."""

    stores_examples: ClassVar[bool] = True

    kind: Literal["svm"]
    c: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Inverse strength of the penalty."""
    gamma: Annotated[float, Field(gt=0, le=MOST_NUMBER)] | Literal["scale"] = "scale"
    """Coefficient of the kernel exp(-gamma d^2), d: the distance of two points; scale: the inverse of the number of
    coordinates times their variance over the training set."""


class XGBoostSpec(_Estimator):
    """Gradient-boosted trees of the library XGBoost (pip install 'memlib[xgboost]')."""

    kind: Literal["xgboost"]
    iterations: int = Field(default=100, ge=1, le=MOST_STEPS)
    """Number of trees, of each class if there are more than two."""
    learning_rate: float = Field(default=0.3, gt=0, le=MOST_NUMBER)
    """Factor of each tree's contribution."""
    max_depth: int = Field(default=6, ge=1, le=MOST_WIDTH)
    """Largest depth of a tree."""
    l2: float = Field(default=1.0, ge=0, le=MOST_NUMBER)
    """Strength of the L2 penalty on the values of leaves."""


EstimatorSpec = Annotated[
    ForestSpec | LogisticSpec | BoostingSpec | NearestSpec | SvmSpec | XGBoostSpec, Field(discriminator="kind")
]
"""Classifiers of points that are fitted by scikit-learn, or by XGBoost through the same interface."""
