"""Baselines without the model: classifiers that tell members from non-members by features of the units alone.

Where the sides were drawn at random, the result is a test, with redraws of the sides (`tested_baseline`). Where they were
not, it is a description: the area under the ROC curve (AUC) of cross-validated classifiers with an interval
(`described_baseline`), beside which the AUC of an attack on the model stands.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.identity import derive_seed
from memlib.stats.multiplicity import largest_p
from memlib.stats.operating import auc, auc_interval
from memlib.stats.randomization import Design

RIDGE = 0.1  # penalty per unit, for standardized features
MOST_UNITS = 20_000  # units of a description; with more, its interval would hardly be narrower
ROUNDS, LEAVES = 100, 15  # boosting rounds, and leaves per tree
ALL = "all"  # name of all features together

Learner = Callable[[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64], int], NDArray[np.float64]]


@dataclass(frozen=True)
class BlindBaseline:
    """Success of telling members from non-members without the model."""

    auc: float  #: area under the ROC curve of held-out units, by the best of the learners from all features; .5 by chance.
    #: low, high: 95 % interval of the AUC of the best learner, over units (groups of units, if there are groups); it
    #: describes the classifiers that were fitted, not those that more units would give.
    low: float
    high: float
    #: adjusted for all families and all features together; None where membership was not drawn at random.
    p_value: float | None
    by_family: Mapping[str, float]  #: AUC by the best of the learners, from the features of one family alone.
    by_learner: Mapping[str, float]  #: AUC from all features by learner.

    @property
    def most(self) -> str:
        """The family of features that tells most."""
        return max(self.by_family.items(), key=lambda item: item[1])[0]


def tested_baseline(
    features: NDArray[np.float64],
    families: Sequence[str],
    design: Design,
    folds: NDArray[np.int64],
    *,
    redraws: int,
    seed: int,
) -> BlindBaseline:
    """Test, by redraws of a declared random draw, if features of the units tell the sides apart.

    Ridge regressions of the side are fitted to all features and to each family of them alone, to all folds but one. The
    statistic is the sum over units of the predicted times the actual side, each less the mean of its stratum. For every
    redraw the regressions are fitted again, so that the test is exact whatever the features (Fisher 1935). The p-value is
    adjusted over the families by the maximum of the standardized statistics (Westfall and Young 1993), so that one telling
    column is found among many others.

    Args:
        features: (num_units, num_features), finite.
        families: (num_features,) the family of each feature.
        design: the draw that was declared; members are the first side.
        folds: (num_units,) fold of each unit, as from `folds_by_group`; must not depend on the sides.

    Example:
        >>> import numpy as np
        >>> design = Design.of(np.arange(60) < 30, labels=np.zeros(60, dtype=int))
        >>> row = np.arange(60.0)[:, None]  # members come first in the file
        >>> found = tested_baseline(row, ["ids"], design, np.arange(60) % 5, redraws=99, seed=0)
        >>> found.auc, found.p_value
        (1.0, 0.01)
    """
    names = [ALL, *dict.fromkeys(families)]
    told = _told([_of_family(features, families, name) for name in names], design, folds, redraws=redraws, seed=seed)
    aucs = {name: auc(column, design.first) for name, column in zip(names, told.predicted.T, strict=True)}
    low, high = auc_interval(told.predicted[:, 0], design.first, groups=design.group, inflation=_inflation(folds))
    whole = aucs.pop(ALL)
    return BlindBaseline(whole, low, high, largest_p(told.agreement), aucs, {"linear": whole})


def described_baseline(
    features: NDArray[np.float64],
    families: Sequence[str],
    first: NDArray[np.bool_],
    groups: NDArray[np.int64],
    *,
    folds: int = 5,
    seed: int,
) -> BlindBaseline:
    """Describe to what degree features of the units tell members from non-members where membership was not drawn at random.

    A ridge regression and boosted trees are fitted to all folds but one, of whole groups, and rank the units of that fold;
    pairs of units are compared within folds. The interval holds for the better of the two learners: each has one of level
    97.5 %, and the larger ends count. At most 20,000 units are used, in whole groups.

    Args:
        features: (num_units, num_features), finite.
        families: (num_features,) the family of each feature.
        first: (num_units,) bool, the members.
        groups: (num_units,) int; units of one group are in one fold, and dependent. A group may have units on both sides.
        seed: seed of folds and learners.

    Example:
        >>> import numpy as np
        >>> member = np.arange(200) % 4 < 2
        >>> width = np.where(member, 640.0, 500.0)[:, None]
        >>> found = described_baseline(width, ["sizes"], member, np.arange(200), seed=0)
        >>> found.auc, found.low > 0.9, found.p_value
        (1.0, True, None)
    """
    kept = _whole_groups(groups, MOST_UNITS, seed=derive_seed(seed, "units"))
    some, sides, belongs = features[kept], first[kept], groups[kept]
    places = folds_by_group(belongs, folds, seed=derive_seed(seed, "folds"))

    def held_out(family: str, learner: str) -> NDArray[np.float64]:
        table = _standardized(_of_family(some, families, family))
        return _cross_predicted(table, sides, places, LEARNERS[learner], seed=derive_seed(seed, family, learner))

    whole = {learner: held_out(ALL, learner) for learner in LEARNERS}
    by_learner = {learner: auc(scores, sides, blocks=places) for learner, scores in whole.items()}
    level = 1 - 0.05 / len(LEARNERS)
    ends = [
        auc_interval(scores, sides, groups=belongs, blocks=places, inflation=_inflation(places), level=level)
        for scores in whole.values()
    ]
    by_family = {
        family: max(auc(held_out(family, learner), sides, blocks=places) for learner in LEARNERS)
        for family in dict.fromkeys(families)
    }
    low, high = max(low for low, _ in ends), max(high for _, high in ends)
    return BlindBaseline(max(by_learner.values()), low, high, None, by_family, by_learner)


def folds_by_group(groups: NDArray[np.int64], folds: int, *, seed: int) -> NDArray[np.int64]:
    """Deal whole groups to folds at random, largest groups first, so that folds have about equally many units.

    Args:
        groups: (num_units,) int.
        folds: number of folds; fewer are used if there are fewer groups.
        seed: seed of the order in which equally large groups are dealt.

    Returns:
        (num_units,) fold of each unit.

    Example:
        >>> import numpy as np
        >>> fold = folds_by_group(np.array([7, 7, 3, 3, 5, 5, 1, 1]), 2, seed=0)
        >>> np.bincount(fold).tolist(), bool((fold[::2] == fold[1::2]).all())
        ([4, 4], True)
    """
    _, number, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    shuffled = np.random.default_rng(seed).permutation(len(sizes))
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    turn = np.arange(len(order)) % (2 * folds)  # there and back, so that the first fold does not get all larger groups
    fold_of = np.empty(len(order), dtype=np.int64)
    fold_of[order] = np.minimum(turn, 2 * folds - 1 - turn)
    return fold_of[number]


@dataclass(frozen=True)
class _Told:
    """Predictions of ridge regressions, and their agreement with the sides."""

    predicted: NDArray[np.float64]  #: (num_units, num_tables) for the actual sides.
    agreement: NDArray[np.float64]  #: (1 + redraws, num_tables), first of the actual sides.


def _told(
    tables: Sequence[NDArray[np.floating]], design: Design, folds: NDArray[np.int64], *, redraws: int, seed: int
) -> _Told:
    """Fit ridge regressions on each table of features to the sides of a design and of its redraws, some redraws at a time."""
    scaled = [_standardized(table) for table in tables]
    solvers = [_Ridge(table, folds) for table in scaled]
    strata = np.unique(design.stratum, return_inverse=True)[1]
    predicted = np.zeros((len(folds), len(tables)))
    agreement = []
    for number, sides in enumerate(_draws(design, redraws, seed)):
        centred = centred_within(sides.astype(np.float64).T, strata)
        column = []
        for place, solver in enumerate(solvers):
            found = solver.predict(centred)
            column.append((found * centred).sum(axis=0))
            if number == 0:
                predicted[:, place] = found[:, 0]
        agreement.append(np.stack(column, axis=1))
    return _Told(predicted, np.concatenate(agreement))


def _inflation(folds: NDArray[np.int64]) -> float:
    """Return the factor by which shared training units of folds inflate the variance of a cross-validated mean.

    It is 1 + K n_test / n_train, or 1 + K / (K - 1) for K equal folds (Nadeau and Bengio 2003). With DeLong's
    variance alone, one in eight intervals for sides that do not differ would lie above .5.
    """
    count = len(np.unique(folds))
    return 1 + count / max(1, count - 1)


def _draws(design: Design, redraws: int, seed: int) -> Iterator[NDArray[np.bool_]]:
    yield design.first[None]
    yield from design.redraws(redraws, seed=seed)


def centred_within(columns: NDArray[np.float64], strata: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return columns (num_units, num_columns) less the means of their strata, which are numbered from 0."""
    units = np.arange(len(strata))
    membership = scipy.sparse.csr_array((np.ones(len(units)), (strata, units)), shape=(int(strata.max()) + 1, len(units)))
    means = np.asarray(membership @ columns) / np.bincount(strata)[:, None]
    return np.asarray(columns - means[strata])


class _Ridge:
    """Ridge regressions without intercept, one per fold, each fitted to the other folds, of many outcomes at once."""

    def __init__(self, table: NDArray[np.float64], folds: NDArray[np.int64]) -> None:
        self._table, self._folds, self._grams = table, folds, {}
        whole = table.T @ table
        for fold in np.unique(folds).tolist():
            inside = table[folds == fold]
            penalty = RIDGE * (len(table) - len(inside)) * np.eye(table.shape[1])
            self._grams[fold] = whole - inside.T @ inside + penalty

    def predict(self, outcomes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return held-out predictions of outcomes, (num_units, num_outcomes)."""
        predicted, whole = np.empty_like(outcomes), self._table.T @ outcomes
        for fold, gram in self._grams.items():
            inside = self._folds == fold
            here = self._table[inside]
            predicted[inside] = here @ np.linalg.solve(gram, whole - here.T @ outcomes[inside])
        return predicted


def _standardized(features: NDArray[np.floating]) -> NDArray[np.float64]:
    table = features.astype(np.float64)
    spread = table.std(axis=0)
    table -= table.mean(axis=0)
    table /= np.where(spread > 1e-12 * np.abs(features).max(axis=0, initial=0.0), spread, 1.0)
    return table


def _of_family(features: NDArray[np.float64], families: Sequence[str], family: str) -> NDArray[np.float64]:
    return features if family == ALL else features[:, [name == family for name in families]]


def _whole_groups(groups: NDArray[np.int64], most: int, *, seed: int) -> NDArray[np.int64]:
    """Return the places of all units, or of random whole groups with at most `most` units (at least one group)."""
    number, sizes = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    order = np.random.default_rng(seed).permutation(len(sizes))
    fits = np.cumsum(sizes[order]) <= most
    fits[:1] = True
    return np.flatnonzero(np.isin(number, order[fits]))


def _cross_predicted(
    table: NDArray[np.float64], first: NDArray[np.bool_], folds: NDArray[np.int64], learner: Learner, *, seed: int
) -> NDArray[np.float64]:
    """Return the scores of all units, each by a learner fitted to the other folds; 0 where those have one side only."""
    scores = np.zeros(len(first))
    for fold in np.unique(folds).tolist():
        inside = folds == fold
        if 0 < first[~inside].sum() < (~inside).sum():
            scores[inside] = learner(table[~inside], first[~inside], table[inside], seed)
    return scores


def _linear(table: NDArray[np.float64], first: NDArray[np.bool_], new: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    centre = table.mean(axis=0)
    rest = table - centre
    penalty = RIDGE * len(rest) * np.eye(rest.shape[1])
    return np.asarray((new - centre) @ np.linalg.solve(rest.T @ rest + penalty, rest.T @ (first - first.mean())))


def _boosted(
    table: NDArray[np.float64], first: NDArray[np.bool_], new: NDArray[np.float64], seed: int
) -> NDArray[np.float64]:
    from sklearn.ensemble import HistGradientBoostingClassifier  # imported late: too slow to load when only planning

    trees = HistGradientBoostingClassifier(
        max_iter=ROUNDS, max_leaf_nodes=LEAVES, early_stopping=False, random_state=seed % 2**32
    )
    return np.asarray(trees.fit(table, first).decision_function(new), dtype=np.float64)


LEARNERS: Mapping[str, Learner] = {"linear": _linear, "boosted trees": _boosted}
