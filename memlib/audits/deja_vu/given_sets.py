"""Checks, without the audited model, that sets drawn by somebody else look as if they were drawn at random.

The checks are for single models. With two models, one was trained on each image and the other was not, so that sets of
unequal difficulty do little harm. A single model is judged by its held-out images: sets that differ by more than chance would
be mistaken for memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.audits.deja_vu.backgrounds import Backgrounds
from memlib.audits.deja_vu.embedding import ShownRows, View, shown_rows
from memlib.audits.deja_vu.recipe import SETS
from memlib.audits.deja_vu.scores import ease
from memlib.audits.sides import numbers_of_groups
from memlib.data.splits import TARGET
from memlib.data.stages import Shard
from memlib.findings import Finding, diagnostic
from memlib.identity import derive_seed
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs.backgrounds import Folds
from memlib.stats.difficulty import difference_p, num_statistics
from memlib.stats.randomization import Design, detectable
from memlib.store import Attempt
from memlib.tables import read_table

if TYPE_CHECKING:
    import torch

CHECKS = "checks.parquet"
LEVEL = 0.025  # of each of the two checks
SIDE = 8  # of the thumbnails by which the images' sets are told
ROWS = 4096  # images that are made smaller at a time
MOST_CELLS = 2**26  # largest number of redrawn sides


@dataclass(frozen=True)
class CompareSets(Stage[pa.Table]):
    """Compare the images of A with those of B, without the audited model: checks.parquet."""

    declared: ClassVar[Declared] = Declared("compare_sets", 2)
    title: ClassVar[str] = "compare the given sets"
    place: ClassVar[Place] = "cores"

    folds: Folds  #: number and seed of the folds.
    view: View  #: the audited images and their crop.
    backgrounds: Backgrounds  #: answers of the classifiers that replace the second model.
    shard: Artifact[Shard]
    splits: Artifact[pa.Table]
    permutations: int  #: number of redraws.
    seed: int  #: seed of the redraws.

    @property
    def spec(self) -> Mapping[str, Any]:
        """Folds, crop and redraws."""
        folds = {"folds": self.folds.folds, "seed": self.folds.seed}
        return {"folds": folds, "permutations": self.permutations, "seed": self.seed, **self.view.spec()}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The images, their sets, and the classifiers' answers."""
        return {"shard": self.shard.key, "splits": self.splits.key, "backgrounds": self.backgrounds.key}

    @property
    def units(self) -> float:
        """Number of images."""
        return float(self._shown.members.num_rows)

    @property
    def _shown(self) -> ShownRows:
        return shown_rows(self.splits, self.shard, self.view)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write one row per check: by, value, n, p_value and detectable.

        Backgrounds are compared by how easy they are, see `ease`, as in `difference_p`; `value` is the difference in right
        answers, and `detectable` one that is found with a power of 80 % or more; null for pixels, whose value is an AUC.
        """
        from memlib.observe.backgrounds import folds_of
        from memlib.stats.blind import tell_sides

        members = self._shown.members
        ids, labels = members["example_id"], members["label"].to_numpy()
        groups = numbers_of_groups(members)
        design = Design.of(pc.equal(members["role"], TARGET).to_numpy(), labels, groups)
        seed = derive_seed(self.seed, "sets")
        answers = self.backgrounds.answers(ids)
        right = (answers.prediction == labels).astype(np.float64)
        p = difference_p(
            ease(right > 0, answers.confidence), design.first, labels, redraws=self.permutations, seed=seed, groups=groups
        )  # fmt: skip
        deviation = design.null_deviation(right) / design.balance
        missed = detectable(deviation, LEVEL / num_statistics(labels), two_sided=True)
        rows = [{"by": "backgrounds", "value": design.difference(right), "p_value": p, "detectable": missed}]
        folds = folds_of(ids.to_pylist(), labels, groups, self.folds.folds, self.folds.seed)
        redraws = max(99, min(self.permutations, MOST_CELLS // len(labels)))
        blind = tell_sides(
            thumbnails(self.shard.content.images, members["row"].to_numpy()), design, folds, redraws=redraws, seed=seed
        )
        rows.append({"by": "pixels", "value": blind.auc, "p_value": blind.p_value, "detectable": None})
        table = pa.Table.from_pylist([{**row, "n": len(labels)} for row in rows])
        pq.write_table(table, attempt.path(CHECKS), compression="zstd")

    @classmethod
    def open(cls, artifact: Artifact[pa.Table]) -> pa.Table:
        """Return by, value, p_value, detectable and n."""
        return read_table(artifact.path(CHECKS))


def thumbnails(images: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return features of stored images: sums of pixel values in 8 x 8 cells, and the standard deviation of each channel.

    Args:
        images: (num_stored, height, width, channels).
        rows: (num_rows,) of the images.

    Returns:
        (num_rows, 65 * channels).
    """
    height, width = images.shape[1:3]
    edges = [np.linspace(0, side, SIDE + 1).astype(int)[:-1] for side in (height, width)]
    parts = []
    for start in range(0, len(rows), ROWS):
        some = images[rows[start : start + ROWS]].astype(np.float32)
        cells = np.add.reduceat(np.add.reduceat(some, edges[0], axis=1), edges[1], axis=2)
        parts.append(np.concatenate([cells.reshape(len(some), -1), some.std(axis=(1, 2))], axis=1))
    return np.concatenate(parts)


def check_rows(checks: pa.Table) -> Iterator[Finding]:
    """Yield one diagnostic per check; params.differs is True if the sets differ, at a level of .05 over both checks.

    By backgrounds, the value is the share of images whose background gives their object away, in A minus that in B. By
    pixels, it is the probability that a classifier of thumbnails ranks an image of A above an image of B; .5 by chance.
    """
    for row in checks.to_pylist():
        params = {"by": row["by"], "p": row["p_value"], "differs": row["p_value"] <= LEVEL, "detectable": row["detectable"]}
        yield diagnostic(SETS, params, row["value"], n=row["n"])
