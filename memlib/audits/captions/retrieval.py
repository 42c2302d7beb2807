"""Stages that train image-text models on pairs, and find the public images nearest to a caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.data.images.caption_stages import CaptionSet
from memlib.data.splits import EXTRA, PUBLIC, REFERENCE, TARGET, members_digest
from memlib.data.stages import Shard, members_of
from memlib.errors import UserError
from memlib.identity import canonical_json, derive_seed
from memlib.observe.encoders import LAST, ExternalEncoder, encoder_key, given_layers, name_of
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact, Place, Stage, remembered
from memlib.specs import ImageTextSpec
from memlib.specs.captions import DoseSpec
from memlib.specs.encoders import OpenClipEncoder, SuppliedEmbeddings, TransformersEncoder
from memlib.store import Attempt, Ref
from memlib.tables import read_table
from memlib.training.fit import Train, TrainedModel

if TYPE_CHECKING:
    import torch

    from memlib.observe.image_text import PairEncoder
    from memlib.training.loop import TrainingSet

VECTORS, IDS, NEIGHBORS, DISTANCES = "vectors.npy", "ids.parquet", "neighbors.npy", "distances.npy"
QUERIED = (TARGET, REFERENCE, EXTRA)  # roles whose captions are asked
BLOCK_ROWS = 2**16  # public images per part
CAPTION = "caption"  # in the ids of captions for which a model's owner returns embeddings


@remembered
def copies_of(splits: Artifact[pa.Table], dose: DoseSpec, seed: int) -> Mapping[str, int]:
    """Return how often each repeated pair is trained on, by example id; pairs that are not listed are trained on once.

    The pairs are drawn from those of A and B together, whatever their side, so that tests that redraw the sides hold.

    Raises:
        UserError: when whole groups leave fewer pairs in A and B than are to be repeated.
    """
    ids = members_of(splits, TARGET, REFERENCE)["example_id"].to_pylist()
    wanted = [copies for copies in dose.copies for _ in range(dose.pairs)]
    if len(wanted) > len(ids):
        raise UserError(f"dose asks for {len(wanted)} pairs, but A and B have {len(ids)} together; lower dose.pairs")
    order = np.random.default_rng(derive_seed(seed, "dose")).permutation(len(ids))
    return {ids[place]: copies for place, copies in zip(order.tolist(), wanted, strict=False)}


class Words:
    """Words of the training captions, which take the place of labels in the training loop."""

    def __init__(self, words: NDArray[np.int32], rows: NDArray[np.int64]) -> None:
        self._words, self._rows = words, rows

    def __getitem__(self, chosen: NDArray[np.int64], /) -> NDArray[np.int64]:
        """Return the words of the chosen examples: (num,) -> (num, length)."""
        return self._words[self._rows[chosen]].astype(np.int64)


@dataclass(frozen=True)
class TrainPairs(Train):
    """Train an image-text model on pairs."""

    declared: ClassVar[Declared] = Declared("train_pairs", 1)
    title: ClassVar[str] = "train image-text models"

    num_classes: int = field(default=0, kw_only=True)  # there are no classes
    captions: Artifact[CaptionSet] = field(kw_only=True)  #: the captions.
    dose: DoseSpec = field(default=DoseSpec(), kw_only=True)  #: pairs that are trained on several times.
    dose_seed: int = field(default=0, kw_only=True)  #: seed of their draw.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The architecture and the training settings."""
        return {"model": self.model.model_dump(mode="json"), "training": self.training.model_dump(mode="json")}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Keys and digests of the pairs, and how often each is trained on."""
        repeated = sorted(self._copies.items())
        return {**super().inputs, "captions": self.captions.key} | ({"copies": canonical_json(repeated)} if repeated else {})

    @property
    def units(self) -> float:
        """The number of pairs, copies included, times the number of epochs."""
        return float(len(self._rows) * self.training.epochs)

    @cached_property
    def _copies(self) -> dict[str, int]:
        """Number of copies of each pair of this training set that is repeated, by example id."""
        repeated, own = copies_of(self.splits, self.dose, self.dose_seed), members_of(self.splits, *self.roles)["example_id"]
        return {name: repeated[name] for name in own.to_pylist() if name in repeated}

    @property
    def _rows(self) -> NDArray[np.int64]:
        """Stored rows of the training pairs, those of repeated pairs once per copy."""
        members = members_of(self.splits, *self.roles)
        counts = [self._copies.get(name, 1) for name in members["example_id"].to_pylist()]
        rows: NDArray[np.int64] = np.repeat(members["row"].to_numpy(), counts)
        return rows

    def training_set(self) -> TrainingSet:
        """Return the pairs; the words of a caption take the place of a label."""
        from memlib.training.loop import TrainingSet

        rows = self._rows
        return TrainingSet(self.shard.content.images, rows, Words(self.captions.content.words, rows))

    def validation_set(self) -> None:
        """Return None: image-text models are trained for a fixed number of epochs."""

    def describe(self, images: NDArray[Any]) -> dict[str, Any]:
        """Return the description that `build_model` takes: architecture, number of words and length of a caption."""
        words = self.captions.content
        return {
            "model": self.model.model_dump(mode="json"), "words": words.num_words, "length": words.words.shape[1],
            "input_shape": [images.shape[3], *images.shape[1:3]],
        }  # fmt: skip


Model = Artifact[TrainedModel] | ExternalEncoder


def supplied(model: Model, names: Sequence[str]) -> NDArray[np.float32] | None:
    """Return the embeddings that a model's owner computed, (num_names, dim) of length 1; None for other models.

    Args:
        names: ids of the images or captions, see `name_of`.
    """
    if not (isinstance(model, ExternalEncoder) and isinstance(model.spec, SuppliedEmbeddings)):
        return None
    vectors = given_layers(model.spec, names, (LAST,))[LAST]
    scaled: NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return scaled


def encoder_of(model: Model, epoch: int, device: torch.device) -> PairEncoder:
    """Return a model, or its checkpoint at an epoch, as a function of images and captions."""
    from memlib.models.external.pairs import ExternalPairEncoder
    from memlib.models.image_text import ImageText
    from memlib.observe.image_text import TrainedPairEncoder

    if isinstance(model, ExternalEncoder):
        assert isinstance(model.spec, TransformersEncoder | OpenClipEncoder)
        return ExternalPairEncoder(model.spec, device)
    network, spec = model.content.load(epoch=epoch)
    assert isinstance(network, ImageText)
    assert isinstance(spec, ImageTextSpec)
    return TrainedPairEncoder(network, spec.input_size, device)


@dataclass(frozen=True)
class EmbedPublic(Stage[NDArray[np.float32]]):
    """Embed a block of the public images with a model: vectors.npy, in order of example id."""

    declared: ClassVar[Declared] = Declared("embed_public", 1)
    title: ClassVar[str] = "embed public images"
    place: ClassVar[Place] = "anywhere"
    transient: ClassVar[str] = "*.npy"

    model: Model
    epoch: int
    shard: Artifact[Shard]
    splits: Artifact[pa.Table]
    rows: tuple[int, int]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The model and the images."""
        return {"model": encoder_key(self.model), "shard": self.shard.key, "examples": members_digest(self._members)}

    @property
    def units(self) -> float:
        """The number of images."""
        return float(self.rows[1] - self.rows[0])

    @property
    def spec(self) -> Mapping[str, Any]:
        """Checkpoint and rows."""
        return {"epoch": self.epoch, "rows": list(self.rows)}

    @property
    def near(self) -> Ref | None:
        """The model."""
        return None if isinstance(self.model, ExternalEncoder) else self.model.ref

    @property
    def _members(self) -> pa.Table:
        return members_of(self.splits, PUBLIC).slice(self.rows[0], self.rows[1] - self.rows[0])

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the embeddings."""
        from memlib.observe.image_text import embed_images

        rows = self._members["row"].to_numpy()
        vectors = supplied(self.model, [name_of(row, None, self.shard.key) for row in rows.tolist()])
        if vectors is None:
            encoder, images = encoder_of(self.model, self.epoch, device), self.shard.content.images
            vectors = embed_images(encoder, images, rows, device=device, progress=attempt.progress)
        np.save(attempt.path(VECTORS), vectors)

    @classmethod
    def open(cls, artifact: Artifact[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return the embeddings (num_images, dim), memory-mapped."""
        vectors: NDArray[np.float32] = np.load(artifact.path(VECTORS), mmap_mode="r")
        return vectors


def public_blocks(splits: Artifact[pa.Table]) -> list[tuple[int, int]]:
    """Return the first row, and the row after the last, of each block of the public images."""
    count = members_of(splits, PUBLIC).num_rows
    return [(start, min(start + BLOCK_ROWS, count)) for start in range(0, count, BLOCK_ROWS)]


class Retrieved:
    """The public images nearest to each caption under one model."""

    def __init__(self, artifact: Artifact[Retrieved]) -> None:
        self._artifact = artifact

    @cached_property
    def ids(self) -> pa.Table:
        """Example id and role of each caption, in order of example id."""
        return read_table(self._artifact.path(IDS))

    @cached_property
    def neighbors(self) -> NDArray[np.int64]:
        """Positions among the public images, in order of example id: (num_captions, k), nearest first."""
        array: NDArray[np.int64] = np.load(self._artifact.path(NEIGHBORS))
        return array

    @cached_property
    def distances(self) -> NDArray[np.float32]:
        """Squared distances of the neighbours, (num_captions, k)."""
        array: NDArray[np.float32] = np.load(self._artifact.path(DISTANCES))
        return array


@dataclass(frozen=True)
class Retrieve(Stage[Retrieved]):
    """Find the k public images nearest to the caption of each audited and held-out pair; for a smaller k, take the first.

    Files: ids.parquet, neighbors.npy (num_captions, k) int64, distances.npy (num_captions, k) float32, squared L2.
    """

    declared: ClassVar[Declared] = Declared("retrieve", 1)
    title: ClassVar[str] = "retrieve images by caption"
    place: ClassVar[Place] = "anywhere"

    model: Model
    epoch: int
    public: Sequence[Artifact[NDArray[np.float32]]]
    captions: Artifact[CaptionSet]
    splits: Artifact[pa.Table]
    k: int
    storage: str = "float32"  # affects only speed and memory

    @property
    def spec(self) -> Mapping[str, Any]:
        """Checkpoint and number of neighbours."""
        return {"epoch": self.epoch, "k": self.k}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The model, embeddings of the public images, captions and splits."""
        public = [part.key for part in self.public]
        return {"model": encoder_key(self.model), "public": public, "captions": self.captions.key, "splits": self.splits.key}

    @property
    def reads_transient(self) -> Sequence[AnyArtifact]:
        """The embeddings of the public images."""
        return self.public

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write ids, neighbours and distances."""
        from memlib.observe.embeddings import search
        from memlib.observe.image_text import embed_texts

        asked, captions = members_of(self.splits, *QUERIED).select(["example_id", "role"]), self.captions.content
        table = captions.chosen(asked["example_id"])
        rows = table["row"].to_numpy()
        said = zip(rows.tolist(), table["caption"].to_pylist(), strict=True)
        texts = supplied(self.model, [name_of(row, CAPTION, caption) for row, caption in said])
        if texts is None:
            encoder = encoder_of(self.model, self.epoch, device)
            texts = embed_texts(encoder, table["caption"].to_pylist(), captions.words[rows], device=device)
        arrays = [part.content for part in self.public]
        storage: Any = self.storage
        nearest, distances = search(texts, arrays, self.k, device=device, storage=storage, progress=attempt.progress)
        np.save(attempt.path(NEIGHBORS), nearest)
        np.save(attempt.path(DISTANCES), distances)
        pq.write_table(asked, attempt.path(IDS), compression="zstd")

    @classmethod
    def open(cls, artifact: Artifact[Retrieved]) -> Retrieved:
        """Return ids, neighbours and distances."""
        return Retrieved(artifact)


@dataclass(frozen=True)
class Retrievals:
    """The public images nearest to each caption, under the models of one pair at one checkpoint."""

    pair: int  #: pair, epoch: the setting.
    epoch: int
    #: under the model trained on A and, if there is one, under the model trained on B.
    by_model: tuple[Artifact[Retrieved], ...]
