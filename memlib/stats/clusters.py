"""Dependence of units within clusters, such as the rows of a person."""

import numpy as np
from numpy.typing import NDArray


def intraclass_correlation(
    values: NDArray[np.floating], clusters: NDArray[np.int64], strata: NDArray[np.int64] | None = None
) -> float:
    """Return the correlation of two units of one cluster: the ANOVA estimator, for clusters of any sizes (Donner 1986).

    With strata, clusters are compared with the mean of their stratum, so that differences between strata (such as members and
    non-members) do not count as correlation.

    Args:
        values: (num_units,).
        clusters: (num_units,) int.
        strata: (num_units,) int, constant within a cluster; by default all units form one stratum.

    Returns:
        the estimate, at most 1; it may be negative. NaN where all clusters are single units, no stratum has two clusters, or
        all values are equal.

    Example:
        >>> import numpy as np
        >>> intraclass_correlation(np.array([1.0, 1.0, 5.0, 5.0]), np.array([0, 0, 1, 1]))  # equal within, different between
        1.0
        >>> intraclass_correlation(np.array([1.0, 5.0, 1.0, 5.0]), np.array([0, 0, 1, 1]))  # the other way round
        -1.0
    """
    cluster = np.unique(clusters, return_inverse=True)[1]
    stratum = np.zeros(len(values), dtype=np.int64) if strata is None else np.unique(strata, return_inverse=True)[1]
    sizes, totals = np.bincount(cluster), np.bincount(stratum)
    between, within = len(sizes) - len(totals), len(values) - len(sizes)
    if between < 1 or within < 1:
        return float("nan")
    centred = values - (np.bincount(stratum, weights=values) / totals)[stratum]
    means = np.bincount(cluster, weights=centred) / sizes
    across = float((sizes * means**2).sum()) / between
    inside = float(np.square(centred - means[cluster]).sum()) / within
    home = stratum[np.unique(cluster, return_index=True)[1]]
    squares = float((np.bincount(home, weights=sizes.astype(np.float64) ** 2) / totals).sum())
    size = (len(values) - squares) / between  # of a typical cluster
    total = across + (size - 1) * inside
    return (across - inside) / total if total > 0 else float("nan")
