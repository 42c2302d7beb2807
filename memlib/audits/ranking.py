"""Rankings of the records that an audit examined, by how exposed they are; the dossier joins those of several audits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EXAMPLE, CANARY, DOCUMENT = "example", "canary", "document"


@dataclass(frozen=True)
class Ranking:
    """The records of an audit in the order of one of its scores.

    Attributes:
        name: the score, as in the audit's tables.
        kind: kind of the records: example (or the first example of a person), canary or document.
        ids: (num_records,) id of each record.
        scores: (num_records,) the score; larger for more exposed records.
        members: (num_records,) whether the audited model was trained on the record.
        p_values: (num_records,) p-value of each record against records that the model was not trained on; NaN where there is
            none. None if the scores were not calibrated in this way.
        references: number of records against which p-values were computed: none can be smaller than 1 / (references + 1).
            None if they are exact.
        sizes: (num_records,) number of examples of each record, a person's or 1; None if each is one example.
        strata: (num_records,) records within which members were drawn at random; None if they were not drawn at random, or
            if the score depends on who was drawn.
    """

    name: str
    kind: str
    ids: Sequence[str]
    scores: NDArray[np.float64]
    members: NDArray[np.bool_]
    p_values: NDArray[np.float64] | None = None
    references: int | None = None
    strata: NDArray[np.int64] | None = None
    sizes: NDArray[np.int64] | None = None
