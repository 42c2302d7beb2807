"""SSLMem: memory without labels or boxes (Wang 2024), from the same pairs of models and with the same exact test.

A model places augmented views of its training images closer together than a model that never saw them. The value of an
audited image is the mean distance between its views under the model that did not train on it, minus the mean distance under
the model that did, divided by the largest absolute difference of this kind; it lies in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.audits.deja_vu.embedding import BATCH_ROWS, BLOCK_ROWS, encoder_of
from memlib.audits.deja_vu.recipe import STABILITY, Config, StabilitySpec
from memlib.data.splits import PUBLIC, REFERENCE, TARGET, members_digest
from memlib.data.stages import Shard, members_of
from memlib.findings import Finding, Interval, diagnostic, tested
from memlib.identity import derive_seed
from memlib.observe.encoders import encoder_key
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs import AugmentSpec
from memlib.stats.inference import mean_interval, permutation_p
from memlib.stats.power import detectable_shift
from memlib.stats.randomization import Design
from memlib.stats.totals import grouped_interval, resampled_differences
from memlib.store import Attempt, Ref
from memlib.tables import read_table

if TYPE_CHECKING:
    import torch

    from memlib.observe.encoders import ExternalEncoder
    from memlib.training.fit import TrainedModel

DISTANCES = "distances.parquet"
AUDITED = (TARGET, REFERENCE)


@dataclass(frozen=True)
class Stability(Stage[pa.Table]):
    """Measure the mean distance between the views of each image under a model: distances.parquet."""

    declared: ClassVar[Declared] = Declared("stability", 1)
    title: ClassVar[str] = "compare views"
    place: ClassVar[Place] = "anywhere"

    model: Artifact[TrainedModel] | ExternalEncoder
    epoch: int
    roles: tuple[str, ...]  #: roles of the images in the splits.
    rows: tuple[int, int]  #: first row and end of a block of the images with these roles.
    shard: Artifact[Shard]
    splits: Artifact[pa.Table]
    layers: tuple[str, ...]
    views: StabilitySpec  #: number of views and seed.
    augment: AugmentSpec  #: augmentations that produce the views.

    @property
    def spec(self) -> Mapping[str, Any]:
        """Checkpoint, layers and views."""
        drawn = {"views": self.views.views, "seed": self.views.seed, "augment": self.augment.model_dump(mode="json")}
        return {"epoch": self.epoch, "layers": list(self.layers), "rows": list(self.rows), **drawn}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The model and the examples."""
        return {"model": encoder_key(self.model), "shard": self.shard.key, "examples": members_digest(self._members)}

    @property
    def units(self) -> float:
        """Number of views."""
        return float(self._members.num_rows * self.views.views)

    @property
    def label(self) -> str:
        """Roles and rows of the examples."""
        return f"{' and '.join(self.roles)} {self.rows[0]} to {self.rows[1]}"

    @property
    def near(self) -> Ref | None:
        """The model."""
        return self.model.ref if isinstance(self.model, Artifact) else None

    @property
    def _members(self) -> pa.Table:
        return members_of(self.splits, *self.roles).slice(self.rows[0], self.rows[1] - self.rows[0])

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write one row per image: example_id, and the mean distance between its views at each layer."""
        from memlib.observe.stability import view_distances

        members, (encoder, side) = self._members, encoder_of(self.model, self.epoch)
        by_layer = view_distances(
            encoder,
            self.shard.content.images,
            members["row"].to_numpy(),
            first=self.rows[0] // BATCH_ROWS,
            input_size=side,
            layers=self.layers,
            augment=self.augment,
            views=self.views.views,
            seed=self.views.seed,
            batch_size=BATCH_ROWS,
            device=device,
            progress=attempt.progress,
        )
        pq.write_table(
            pa.table({"example_id": members["example_id"], **by_layer}), attempt.path(DISTANCES), compression="zstd"
        )

    @classmethod
    def open(cls, artifact: Artifact[pa.Table]) -> pa.Table:
        """Return example_id and one column of distances per layer."""
        return read_table(artifact.path(DISTANCES))


def blocks_of(splits: Artifact[pa.Table], views: StabilitySpec) -> list[tuple[tuple[str, ...], tuple[int, int]]]:
    """Return the roles and rows of each part: all audited images, then public images, on which neither model trained."""
    size, count = BLOCK_ROWS // BATCH_ROWS * BATCH_ROWS, members_of(splits, *AUDITED).num_rows
    disjoint = min(views.disjoint, members_of(splits, PUBLIC).num_rows)
    blocks: list[tuple[tuple[str, ...], tuple[int, int]]] = [
        (AUDITED, (start, min(start + size, count))) for start in range(0, count, size)
    ]
    return [*blocks, ((PUBLIC,), (0, disjoint))] if disjoint else blocks


@dataclass(frozen=True)
class Compared:
    """The distances between views under both models of a pair, for audited and for disjoint (public) images."""

    pair: int  #: number of the pair.
    #: the artifacts for model A and for model B, in row order, audited images first.
    by_model: tuple[Sequence[Artifact[pa.Table]], Sequence[Artifact[pa.Table]]]

    @property
    def key(self) -> Any:
        """Keys by which downstream stages refer to the distances."""
        return [[part.key for part in parts] for parts in self.by_model]

    def gains(self, layer: str) -> tuple[pa.ChunkedArray, NDArray[np.float64]]:
        """Return ids of images and, for each, the distance under model B less that under A, in units of the mean distance."""
        a, b = (pa.concat_tables([part.content for part in parts]) for parts in self.by_model)
        assert a["example_id"].equals(b["example_id"]), "the two models were shown different images"
        under_a, under_b = (table[layer].to_numpy() for table in (a, b))
        return a["example_id"], (under_b - under_a) / float(np.mean([under_a, under_b]) or 1.0)


def stability_rows(
    found: Sequence[Compared], splits: pa.Table, layers: Sequence[str], config: Config, *, beyond: bool = False
) -> Iterator[Finding]:
    """Yield for each layer `sslmem`, tested by redrawing the sides, and `sslmem_disjoint` for public images.

    Args:
        splits: tables.SPLITS, with the side of each image.
        layers: layers, the headline's first.
        config: level, permutations, replicates, seed.
        beyond: whether memory beyond the class is tested, too.
    """
    level = config.headline_level(beyond=beyond) / len(layers)
    for layer in layers:
        parts = [pair.gains(layer) for pair in found]
        ids, gains = parts[0][0], np.mean([values for _, values in parts], axis=0)
        places = pc.index_in(ids, value_set=splits["example_id"].combine_chunks())
        members = splits.take(places)
        audited = pc.is_in(members["role"], value_set=pa.array(AUDITED)).to_numpy()
        yield from _rows_of(layer, gains, members, audited, len(parts), config, level=level)


def _rows_of(
    layer: str,
    gains: NDArray[np.float64],
    who: pa.Table,
    audited: NDArray[np.bool_],
    pairs: int,
    config: Config,
    *,
    level: float,
) -> Iterator[Finding]:
    from memlib.audits.sides import numbers_of_groups, sampled_units

    members, values = who.filter(pa.array(audited)), gains[audited]
    scale = float(np.abs(values).max(initial=0.0)) or 1.0
    values = values / scale
    of_a, labels = pc.equal(members["role"], TARGET).to_numpy(), members["label"].to_numpy()
    groups = numbers_of_groups(members)
    design = Design.of(of_a, labels, groups)
    value, seed = design.difference(values) / 2, derive_seed(config.seed, "stability", layer)
    replicates = (
        resampled_differences(values[:, None], design, config.replicates, seed=derive_seed(seed, "bootstrap"))[:, 0] / 2
    )
    null = design.redrawn_differences(values, config.permutations, seed=seed) / 2
    enough = detectable_shift(design, values, alpha=level, seed=derive_seed(seed, "power"))
    params, (low, high) = {"layer": layer, "pairs": pairs}, grouped_interval(replicates, design)
    yield tested(
        "sslmem", params, value, n=len(values),
        interval=Interval(max(-1.0, low), min(1.0, high), sampled_units(design)),
        p_value=permutation_p(value, null), family=STABILITY,
        detectable=None if enough is None else enough / 2,
        smallest_p=1 / (1 + len(null)) if np.ptp(null) else 1.0,
    )  # fmt: skip
    if not audited.all():
        others = gains[~audited] / scale
        interval = Interval(*mean_interval(others, replicates=config.replicates, seed=seed), "examples")
        yield diagnostic("sslmem_disjoint", params, float(others.mean()), n=len(others), interval=interval)


def augment_of(views: StabilitySpec, training: AugmentSpec | None) -> AugmentSpec:
    """Return the augmentations of the views: those of the recipe, else those of training, else the default."""
    return views.augment or training or AugmentSpec()
