"""The stage that draws audited images from an encoder's representations of their background crops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.audits.deja_vu.embedding import IDS, EmbeddedView, taken
from memlib.audits.deja_vu.generating import Scale, generator_of, noise_bank
from memlib.audits.deja_vu.reconstruction.spec import ReconstructSpec
from memlib.audits.deja_vu.searching import Found
from memlib.audits.deja_vu.tables import NEIGHBORS
from memlib.data.candidates import hashed_order
from memlib.data.groups import groups_in
from memlib.data.splits import REFERENCE, TARGET
from memlib.data.stages import members_of
from memlib.identity import derive_seed
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact, Place, Stage
from memlib.specs import DenoisingSpec
from memlib.store import Attempt, Ref
from memlib.tables import read_table

if TYPE_CHECKING:
    import torch

    from memlib.training.fit import TrainedModel

CROP_ITSELF, WHOLE, SHUFFLED = "crop", "whole image", "shuffled"
CONDITIONED = (NEIGHBORS, CROP_ITSELF, WHOLE, SHUFFLED)
UNCONDITIONED, DECODED = "none", "decoder"
SAMPLED = (*CONDITIONED, DECODED, UNCONDITIONED)  # sources of what a model draws
IS_SHUFFLED = "is_shuffled"  # column of the ids: whether there is another image of its class
IMAGES_PER_PART = 64
LEAST_OF_CLASS = 20
STARTING = 0.1  # share of the first weights in an average that draws noise


class Reconstructions:
    """Pictures that one model draws of some audited images."""

    def __init__(self, artifact: Artifact[Reconstructions]) -> None:
        self._artifact = artifact

    @cached_property
    def ids(self) -> pa.Table:
        """The images: example_id, row, label, crop_x0 ... crop_y1, is_shuffled."""
        return read_table(self._artifact.path(IDS))

    def drawn(self, source: str) -> NDArray[np.uint8]:
        """Return the pictures (num_images, num_samples, side, side, 3) from a source of SAMPLED; no samples if unused."""
        array: NDArray[np.uint8] = np.load(self._artifact.path(f"{source.replace(' ', '_')}.npy"), mmap_mode="r")
        return array


@dataclass(frozen=True)
class Reconstruct(Stage[Reconstructions]):
    """Draw some audited images with one model's generator: <source>.npy for each of SAMPLED, and ids.parquet."""

    declared: ClassVar[Declared] = Declared("reconstruct", 1)
    title: ClassVar[str] = "reconstruct images"
    place: ClassVar[Place] = "anywhere"

    name: str
    #: generator, decoder: trained on the public images' representations under the same encoder.
    generator: Artifact[TrainedModel]
    decoder: Artifact[TrainedModel] | None
    crops: EmbeddedView  #: the encoder's representations of the audited images' crops.
    found: Found  #: the crops' public neighbours at the headline's layer.
    public: EmbeddedView  #: public, whole: the encoder's representations of whole public and whole audited images.
    whole: EmbeddedView
    splits: Artifact[pa.Table]  #: the sides and classes of the images.
    layers: tuple[str, ...]
    settings: ReconstructSpec  #: layers, numbers, guidance and seed.
    rows: tuple[int, int]  #: first place and end of the block among the chosen images.

    @property
    def label(self) -> str:
        """The model and the block."""
        return f"{self.name}, images {self.rows[0]} to {self.rows[1]}"

    @property
    def spec(self) -> Mapping[str, Any]:
        """Layers, numbers, guidance and seed."""
        names = ("neighbors", "images", "samples", "steps", "guidance", "seed")
        drawn = {name: getattr(self.settings, name) for name in names}
        return {"layers": list(self.layers), "rows": list(self.rows), **drawn}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The generators, the representations and the neighbours."""
        decoder = {} if self.decoder is None else {"decoder": self.decoder.key}
        views = {name: getattr(self, name).key for name in ("crops", "found", "public", "whole")}
        return {"generator": self.generator.key, **decoder, **views, "splits": self.splits.key}

    @property
    def reads_transient(self) -> Sequence[AnyArtifact]:
        """The representations."""
        return (*self.crops.parts, *self.public.parts, *self.whole.parts)

    @property
    def units(self) -> float:
        """Number of pictures."""
        return float((self.rows[1] - self.rows[0]) * self.settings.samples * len(CONDITIONED))

    @property
    def near(self) -> Ref | None:
        """The generator."""
        return self.generator.ref

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the pictures and the ids of the images."""
        self._warn(attempt)
        settings, bank = self.settings, noise_bank(self.settings.samples, self.settings.side, seed=self.settings.seed)
        chosen = chosen_images(self.crops.ids, settings)
        block = chosen[slice(*self.rows)]
        others = another_of_its_class(self.crops.ids.take(pa.array(chosen)), members_of(self.splits, TARGET, REFERENCE))
        others = others[slice(*self.rows)]
        conditions = self._conditions(block, chosen[others])
        ids = self.crops.ids.take(pa.array(block)).append_column(IS_SHUFFLED, pa.array(others >= 0))
        draw = generator_of(self.generator, settings.generator.training.epochs)
        how: Any = {"steps": settings.steps, "guidance": settings.guidance, "device": device}
        for number, (source, values) in enumerate(conditions.items()):
            noise = np.tile(bank, (len(block), 1, 1, 1))
            pictures = draw(np.repeat(values, len(bank), axis=0), noise, **how)
            self._save(attempt, source, pictures.reshape(len(block), len(bank), *pictures.shape[1:]))
            attempt.progress(number + 1, len(conditions) + 1)
        alike = draw(None, bank, **how)[None]  # every image's, as nothing but the noise enters
        self._save(attempt, UNCONDITIONED, np.broadcast_to(alike, (len(block), *alike.shape[1:])))
        decoded = np.zeros((len(block), 0, settings.side, settings.side, 3), dtype=np.uint8)
        if self.decoder is not None:
            assert settings.baseline is not None
            decode = generator_of(self.decoder, settings.baseline.training.epochs)
            decoded = decode(conditions[NEIGHBORS], np.tile(bank[:1], (len(block), 1, 1, 1)), **how)[:, None]
        self._save(attempt, DECODED, decoded)
        pq.write_table(ids, attempt.path(IDS), compression="zstd")

    def _warn(self, attempt: Attempt) -> None:
        """Warn of a generator that was trained for so few steps that its average of the weights is still the first ones."""
        objective, steps = self.settings.generator.training.objective, self.generator.facts["num_steps"]
        assert isinstance(objective, DenoisingSpec)
        if objective.ema**steps > STARTING:
            attempt.warn(
                f"reconstruct: after {steps} steps, initial weights still make up {objective.ema**steps:.0%} of the "
                "generator's average of weights, so it draws noise; raise generator.training.epochs, or lower objective.ema"
            )

    @staticmethod
    def _save(attempt: Attempt, source: str, pictures: NDArray[np.uint8]) -> None:
        np.save(attempt.path(f"{source.replace(' ', '_')}.npy"), np.ascontiguousarray(pictures))

    def _conditions(self, block: NDArray[np.int64], others: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:
        """Return the representations of the images of the block by source, (num_images, dim) each.

        Args:
            block: places of the images among the crops.
            others: places of the images whose neighbours replace those of the block's images (shuffled).
        """
        scale = Scale.of(self.public, self.layers)
        ids, nearest = self.crops.ids["example_id"].take(pa.array(block)), self.found.rows[:, : self.settings.neighbors]
        whole = pc.index_in(ids, value_set=self.whole.ids["example_id"].combine_chunks()).to_numpy()

        def meant(places: NDArray[np.int64]) -> NDArray[np.float32]:
            near = scale.apply(self._of(self.public, nearest[places].reshape(-1)))
            return mean_of(near.reshape(*nearest[places].shape, -1))

        return {
            NEIGHBORS: meant(block),
            CROP_ITSELF: scale.apply(self._of(self.crops, block)),
            WHOLE: scale.apply(self._of(self.whole, whole)),
            SHUFFLED: meant(others),
        }

    def _of(self, view: EmbeddedView, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return some rows of a view's representations, the layers side by side: (num_rows, dim)."""
        return np.concatenate([taken(view.layer(layer), rows) for layer in self.layers], axis=1)

    @classmethod
    def open(cls, artifact: Artifact[Reconstructions]) -> Reconstructions:
        """Return the pictures."""
        return Reconstructions(artifact)


def chosen_images(ids: pa.Table, settings: ReconstructSpec) -> NDArray[np.int64]:
    """Return the places of the images to reconstruct, in hashed order, whatever their side: (num_chosen,).

    Of many classes, some are chosen, with `LEAST_OF_CLASS` images each: images are compared within classes.
    """
    order = hashed_order(ids["example_id"].to_pylist(), derive_seed(settings.seed, "reconstructed"))
    labels = ids["label"].to_numpy()
    classes = list(dict.fromkeys(labels[order].tolist()))  # in hashed order
    each = max(LEAST_OF_CLASS, -(-settings.images // len(classes)))
    chosen = np.concatenate([order[labels[order] == label][:each] for label in classes])[: settings.images]
    return order[np.isin(order, chosen)]


def mean_of(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of each image's neighbours, with the length of a typical neighbour: (num_images, dim).

    A mean of vectors is shorter than they are, and the generator was trained on representations of single images.

    Args:
        vectors: (num_images, num_neighbors, dim).
    """
    mean = vectors.mean(axis=1)
    length = np.linalg.norm(vectors, axis=2).mean(axis=1, keepdims=True)
    scaled: NDArray[np.float32] = (mean * length / np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)).astype(
        np.float32
    )
    return scaled


def another_of_its_class(ids: pa.Table, members: pa.Table) -> NDArray[np.int64]:
    """Return, for each image, the place of the next one of the same class and another group, -1 without one: (num_images,).

    Args:
        ids: the chosen images in hashed order.
        members: rows of the splits, which name the groups.
    """
    rows = members.take(pc.index_in(ids["example_id"], value_set=members["example_id"].combine_chunks()))
    labels, groups = rows["label"].to_numpy(), groups_in(rows)
    others = np.arange(len(labels))
    for place in range(len(labels)):
        after = np.roll(np.arange(len(labels)), -place)
        fitting = after[(labels[after] == labels[place]) & (groups[after] != groups[place])]
        others[place] = fitting[0] if len(fitting) else -1
    return others
