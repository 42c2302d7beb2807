"""Rankings of the records that an audit examined, by how exposed they are; the dossier joins those of several audits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EXAMPLE, CANARY, DOCUMENT = "example", "canary", "document"


@dataclass(frozen=True)
class Ranking:
    """The records of an audit in the order of one of its scores."""

    name: str  #: the score, as in the audit's tables.
    kind: str  #: kind of the records: example (or the first example of a person), canary or document.
    ids: Sequence[str]  #: (num_records,) id of each record.
    scores: NDArray[np.float64]  #: (num_records,) the score; larger for more exposed records.
    members: NDArray[np.bool_]  #: (num_records,) whether the audited model was trained on the record.
    #: (num_records,) p-value of each record against records that the model was not trained on; NaN where there is none. None
    #: if the scores were not calibrated in this way.
    p_values: NDArray[np.float64] | None = None
    #: number of records against which p-values were computed: none can be smaller than 1 / (references + 1). None if they are
    #: exact.
    references: int | None = None
    #: (num_records,) records within which members were drawn at random; None if they were not drawn at random, or if the
    #: score depends on who was drawn.
    strata: NDArray[np.int64] | None = None
    #: (num_records,) number of examples of each record, a person's or 1; None if each is one example.
    sizes: NDArray[np.int64] | None = None


def strata_of(labels: NDArray[np.int64], *, fewest: int) -> NDArray[np.int64]:
    """Return the class of each unit, numbered from 0; classes of fewer units than `fewest` share a stratum.

    Example:
        >>> import numpy as np
        >>> strata_of(np.array([3, 3, 5, 9]), fewest=2).tolist(), strata_of(np.array([3, 3, 5, 9]), fewest=0).tolist()
        ([0, 0, 3, 3], [0, 0, 1, 2])
    """
    classes, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    strata: NDArray[np.int64] = np.where((counts < fewest)[place], len(classes), place)
    return strata
