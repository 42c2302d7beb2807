"""Structural risk of a classifier of a table, from its outputs on its training rows alone: no attack, and no shadow models.

The model parts its training rows into classes of equal output. Their sizes and labels are what a statistical office would
count before it releases a table of these classes by label. All numbers are diagnostics: they describe what the outputs can
tell apart, and do not test that a person is recognized. Related: the structural attack of SACRO-ML, whose definitions differ.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memlib.errors import UserError

K = 10  # rows that an output class, or a cell of a released table, should have


@dataclass(frozen=True)
class StructuralRisk:
    """Numbers of a model's classes of equal output, over its training rows."""

    rows: int  #: number of training rows.
    output_classes: int  #: number of distinct outputs.
    smallest: int  #: number of rows of the smallest output class: the k of k-anonymity.
    rows_below_k: int  #: number of rows in output classes of fewer than `k` rows.
    single_rows: int  #: number of rows that are alone in their output class.
    #: number of output classes, of at least two rows, whose rows all have the same label: knowing the output gives the label
    #: away without telling the rows apart.
    pure_classes: int
    pure_rows: int  #: number of rows in pure classes.
    certain_rows: int  #: number of rows whose output gives one label a probability of 1 (all votes).
    excluding_rows: int  #: number of rows whose output gives some label a probability of exactly 0 (no vote).
    small_cells: int  #: number of pairs of output class and label with at least one and fewer than `k` rows.
    small_cell_rows: int  #: number of rows in small cells.
    residual_freedom: int | None  #: number of rows less the number of parameters; None if the latter is not known.
    instance_based: bool  #: True if the model stores training rows (nearest neighbours, support vectors).
    k: int  #: size from which a group counts as large.


def output_classes(outputs: NDArray[np.floating | np.integer], *, decimals: int | None = None) -> NDArray[np.int64]:
    """Number the classes of equal output.

    Args:
        outputs: (num_rows, num_classes) probabilities or votes.
        decimals: places to which the model's outputs are rounded before anyone sees them; None: not rounded.

    Returns:
        (num_rows,) int from 0.

    Example:
        >>> import numpy as np
        >>> output_classes(np.array([[0.90, 0.10], [0.91, 0.09], [0.20, 0.80]]), decimals=1).tolist()
        [1, 1, 0]
    """
    number: NDArray[np.int64] = np.unique(_rounded(outputs, decimals), axis=0, return_inverse=True)[1].reshape(-1)
    return number


def structural_risk(
    outputs: NDArray[np.floating | np.integer],
    labels: NDArray[np.int64],
    *,
    decimals: int | None = None,
    parameters: int | None = None,
    instance_based: bool = False,
    k: int = K,
) -> StructuralRisk:
    """Count what a model's outputs can tell apart among its training rows.

    Args:
        outputs: (num_rows, num_classes) probabilities, or votes; or (num_rows,) probabilities of the second of two classes.
        labels: (num_rows,) classes of the training rows.
        decimals: places to which the model's outputs are rounded before anyone sees them; None: not rounded.
        parameters: number of fitted parameters; None if it is not known.
        instance_based: True if the model stores training rows.
        k: size from which a group counts as large.

    Raises:
        UserError: for outputs that are not finite or that do not fit the labels.

    Example:
        >>> import numpy as np
        >>> leaves = np.array([[1.0, 0.0]] * 3 + [[0.5, 0.5]] * 2)  # of a tree: one leaf is pure
        >>> risk = structural_risk(leaves, np.array([0, 0, 0, 0, 1]), parameters=1)
        >>> risk.smallest, risk.pure_rows, risk.certain_rows, risk.small_cells, risk.residual_freedom
        (2, 3, 3, 3, 4)
    """
    values = _rounded(_two_columns(outputs), decimals)
    _check(values, labels)
    number = output_classes(values)
    known, label = np.unique(labels, return_inverse=True)
    sizes = np.bincount(number)
    cells = np.bincount(number * len(known) + label, minlength=len(sizes) * len(known)).reshape(len(sizes), len(known))
    pure = (cells.max(axis=1) == sizes) & (sizes >= 2)
    small = (cells > 0) & (cells < k)
    return StructuralRisk(
        rows=len(labels),
        output_classes=len(sizes),
        smallest=int(sizes.min()),
        rows_below_k=int(sizes[sizes < k].sum()),
        single_rows=int((sizes == 1).sum()),
        pure_classes=int(pure.sum()),
        pure_rows=int(sizes[pure].sum()),
        certain_rows=int((values.max(axis=1) >= _whole(values)).sum()),
        excluding_rows=int((values == 0).any(axis=1).sum()),
        small_cells=int(small.sum()),
        small_cell_rows=int(cells[small].sum()),
        residual_freedom=None if parameters is None else len(labels) - parameters,
        instance_based=instance_based,
        k=k,
    )


def _two_columns(outputs: NDArray[np.floating | np.integer]) -> NDArray[np.floating | np.integer]:
    return outputs if outputs.ndim == 2 else np.stack([1 - outputs, outputs], axis=1)


def _rounded(outputs: NDArray[np.floating | np.integer], decimals: int | None) -> NDArray[np.floating | np.integer]:
    """Return outputs rounded as users see them, with 0 in place of -0."""
    return (outputs if decimals is None else np.round(outputs, decimals)) + 0


def _whole(values: NDArray[np.floating | np.integer]) -> NDArray[np.float64]:
    """Return the largest output that a row can have: 1 for probabilities, the number of votes for votes."""
    are_votes = np.issubdtype(values.dtype, np.integer) or values.max() > 1 + 1e-6
    return np.asarray(values.sum(axis=1) if are_votes else np.ones(len(values)), dtype=np.float64)


def _check(values: NDArray[np.floating | np.integer], labels: NDArray[np.int64]) -> None:
    if len(values) != len(labels) or not len(labels):
        raise UserError(f"{len(values)} outputs for {len(labels)} labels; give one output per training row")
    if not np.isfinite(values).all():
        wrong = int((~np.isfinite(values)).any(axis=1).sum())
        raise UserError(f"outputs of {wrong} of {len(values)} rows are not finite; leave these rows out")
