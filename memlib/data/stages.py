"""Stages that decode and split the examples, and classes that read their artifacts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.data.data_summary import Understood, described, preview, understood, warnings
from memlib.data.datasets import open_source
from memlib.data.examples import Source
from memlib.data.groups import groups_digest, groups_of, near_copies
from memlib.data.id_files import named_digest, said_of_examples
from memlib.data.images.shards import (
    BLOCKS_FILE,
    INDEX_FILE,
    Written,
    examples_file,
    join_blocks,
    read_index,
    write_shard,
)
from memlib.data.images.stored import Blocks, Ranges, are_images, read_images
from memlib.data.splits import (
    MOST_NAMED,
    SPLITS_FILE,
    TRAIN,
    column,
    hold_out,
    members_digest,
    named_classes,
    read_members,
    select,
    small_classes,
    split_examples,
)
from memlib.errors import CorruptArtifact, RunError
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Runner, Stage, remembered
from memlib.runs.pins import AS_READ
from memlib.specs import DataSpec, GroupSpec, HoldOutSpec, SplitSpec, TextSpec
from memlib.specs.question import without_whereabouts
from memlib.store import Attempt, Ref, Store
from memlib.tables import AS_READ_ROWS, SPLITS, read_table, write_table

if TYPE_CHECKING:
    import torch


def described_data(spec: DataSpec | TextSpec) -> dict[str, Any]:
    """Return a spec without the locations of its files."""
    return without_whereabouts(spec.model_dump(mode="json"))


class Shard:
    """Decoded examples and their index, each read on first access."""

    def __init__(self, artifact: Artifact[Shard]) -> None:
        self._artifact = artifact

    @property
    def _blocks(self) -> tuple[list[int], list[Artifact[Shard]]]:
        """The number of images in each block of a large source, and the blocks themselves."""
        listed = json.loads(self._artifact.path(BLOCKS_FILE).read_text(encoding="utf-8"))
        blocks = [Artifact(self._artifact.store, Ref.parse(one["block"]), DecodeBlock) for one in listed]
        return [one["images"] for one in listed], blocks

    @cached_property
    def images(self) -> NDArray[Any]:
        """The examples (num_stored, ...), memory-mapped; blocks of a large source are read on first access."""
        if BLOCKS_FILE not in self._artifact.files:
            name = examples_file(self._artifact.files)
            return read_images(self._artifact.path(name), name)
        counts, blocks = self._blocks
        return cast(NDArray[Any], Blocks(counts, lambda number: blocks[number].content.images))

    @property
    def has_images(self) -> bool:
        """True for images, False for points or windows of text; opens no block of a large source."""
        return BLOCKS_FILE in self._artifact.files or are_images(self.images)

    @cached_property
    def pictures(self) -> Callable[[int], NDArray[np.uint8]]:
        """A function that maps a stored row to its image; of a large source, only that image is read, not its block.

        Raises (in each call of the returned function):
            CorruptArtifact: when the image cannot be decoded, or does not match its digest in the index (images stored as
                JPEG cannot be compared with a digest).
        """
        if BLOCKS_FILE not in self._artifact.files:
            return lambda row: self.images[row]
        counts, blocks = self._blocks
        starts = np.cumsum([0, *counts])
        digests = self.index["digest"]
        is_exact = self._artifact.store.artifacts.manifest(self._artifact.ref).spec.get("storage") != "jpeg"

        @cache
        def opened(number: int) -> Ranges:
            name = examples_file(blocks[number].files)
            return Ranges(cast(BinaryIO, blocks[number].opened(name)), name)

        def picture(row: int) -> NDArray[np.uint8]:
            if not 0 <= row < starts[-1]:
                raise IndexError(f"row {row} of {starts[-1]} examples")
            number = int(np.searchsorted(starts, row, side="right")) - 1
            block, digest = blocks[number].ref, digests[int(self.places[row])].as_py()
            damage = f"artifact {block}: image {row - starts[number]} is damaged"
            try:
                image: NDArray[np.uint8] = opened(number)[row - starts[number]]
            except RunError:  # the store cannot be reached, or the block was deleted
                raise
            except Exception as error:  # on unverified bytes Pillow, Arrow and NumPy may raise anything
                raise CorruptArtifact(f"{damage} ({type(error).__name__})", block) from error
            if is_exact and digest and hashlib.sha256(image.data).hexdigest() != digest:
                raise CorruptArtifact(damage, block)
            return image

        return picture

    @cached_property
    def index(self) -> pa.Table:
        """The index (tables.INDEX), sorted by example id."""
        return read_index(self._artifact.path(INDEX_FILE))

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """The position of each stored row in the index: (num_stored,)."""
        places: NDArray[np.int64] = np.argsort(self.geometry["row"].to_numpy())
        return places

    @cached_property
    def geometry(self) -> pa.Table:
        """The columns row, boxes, content and unreadable of the index, a third of its size."""
        return read_index(self._artifact.path(INDEX_FILE), ["row", "boxes", "content", "unreadable"])

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The label of each stored row: (num_stored,)."""
        labels = np.zeros(self.index.num_rows, dtype=np.int64)
        labels[self.index["row"].to_numpy()] = self.index["label"].to_numpy()
        return labels


LOOKED_BLOCKS = 4  # number of blocks that are searched for near copies
BLOCK_BYTES, BLOCK_IMAGES = 2**30, 2**16  # limits of a block; a larger source is decoded in several


def decode(runner: Runner, data: DataSpec) -> Artifact[Shard]:
    """Decode a source, in parallel blocks if it is large; reuse an existing shard that is not divided into blocks."""
    whole = Decode(data)
    blocks = [] if _is_whole(runner.store, whole) else whole.in_blocks()
    return runner.run(replace(whole, blocks=tuple(runner.run_all(blocks))) if blocks else whole)


def _is_whole(store: Store, stage: Decode) -> bool:
    with contextlib.suppress(CorruptArtifact):
        return BLOCKS_FILE not in store.artifacts.manifest(stage.identity.ref).files
    return False


@dataclass(frozen=True)
class DecodeBlock(Stage[Shard]):
    """Decode a block of a source into images.npy (or images.arrow) and index.parquet, with rows numbered from 0."""

    declared: ClassVar[Declared] = Declared("decode_block", 1)
    title: ClassVar[str] = "decode a block of images"
    place: ClassVar[Place] = "cores"

    data: DataSpec  #: the source.
    digest: str  #: digest of the source's content.
    first: int  #: first, last: first row of the block in the source, and the row after its last.
    last: int

    @property
    def spec(self) -> Mapping[str, Any]:
        """The data spec without file locations, and the rows."""
        return {**described_data(self.data), "rows": [self.first, self.last]}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The digest of the source's content."""
        return {"source": self.digest}

    @property
    def units(self) -> float:
        """The number of images."""
        return float(self.last - self.first)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write images and index."""
        source, rows = open_source(self.data.source, self.data.intensities, self.data.labels), range(self.first, self.last)
        written = write_shard(source, self.data, attempt.folder, rows=rows, progress=attempt.progress)
        attempt.facts |= {"num_examples": written.index.num_rows, "oddities": dict(written.oddities)}

    @classmethod
    def open(cls, artifact: Artifact[Shard]) -> Shard:
        """Return images and index."""
        return Shard(artifact)


@dataclass(frozen=True)
class Decode(Stage[Shard]):
    """Decode a source into the shard that all later stages read."""

    declared: ClassVar[Declared] = Declared("decode", 1)
    title: ClassVar[str] = "decode examples"

    data: DataSpec  #: the source.
    blocks: tuple[Artifact[Shard], ...] = ()  #: the decoded blocks of a large source; they are not part of any key.

    @property
    def where(self) -> Place:
        """The place of the stage: cores if blocks are joined; else driver, as the source may be reachable only from there."""
        return "cores" if self.blocks else "driver"

    @cached_property
    def _source(self) -> Source:
        return open_source(self.data.source, self.data.intensities, self.data.labels)

    def in_blocks(self) -> list[DecodeBlock]:
        """Return the stages that decode the source block by block; an empty list if it is small or holds points."""
        fitting = BLOCK_BYTES // (self.data.image_size**2 * self.data.channels)
        count, most = len(self._source), max(1, min(BLOCK_IMAGES, fitting))
        if count <= most or getattr(self._source, "point_dim", None) is not None:
            return []
        digest, size = self.identity.inputs["source"], math.ceil(count / math.ceil(count / most))  # blocks of equal size
        return [DecodeBlock(self.data, digest, start, min(start + size, count)) for start in range(0, count, size)]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The data spec without file locations."""
        return described_data(self.data)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The digest of the source's content."""
        return {"source": self._source.content_digest()}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write images and index; for a source decoded in blocks, write the list of blocks instead of the images."""
        if self.blocks:
            written = self._join(attempt)
        else:
            written = write_shard(self._source, self.data, attempt.folder, progress=attempt.progress)
            if (digests := getattr(self._source, "row_digests", None)) is not None:
                named = [{"example_id": name, "digest": digests[name]} for name in written.index["example_id"].to_pylist()]
                write_table(pa.Table.from_pylist(named, schema=AS_READ_ROWS.arrow), AS_READ_ROWS, attempt.path(AS_READ))
        summary = understood(written.index, written.oddities, self._source)
        attempt.facts |= {"num_examples": written.index.num_rows, "understood": summary}
        for line in warnings(summary):
            attempt.warn(f"data: {line}")

    def check_reads(self, ref: Ref) -> None:
        """Compare the digest of the source with the one in the key; a source may not allow to be opened twice."""
        if self._source.content_digest() != self.identity.inputs["source"]:
            raise RunError(f"the data changed while they were read ({ref}); run the same command again")

    def _join(self, attempt: Attempt) -> Written:
        indexes = [block.content.index for block in self.blocks]
        listed = [{"block": str(block), "images": index.num_rows} for block, index in zip(self.blocks, indexes, strict=True)]
        attempt.path(BLOCKS_FILE).write_text(json.dumps(listed), encoding="utf-8")
        oddities: Counter[str] = Counter()
        for block in self.blocks:
            oddities.update(block.facts["oddities"])
        return Written(join_blocks(indexes, self._source.class_names, attempt.folder), oddities)

    @classmethod
    def open(cls, artifact: Artifact[Shard]) -> Shard:
        """Return images and index."""
        return Shard(artifact)

    @classmethod
    def described(cls, artifact: Artifact[Shard]) -> list[str]:
        """Describe images, classes, sizes, boxes and oddities; for older shards, these are derived from the index."""
        summary: Understood = artifact.facts.get("understood") or understood(artifact.content.index, {})
        return [*described(summary), *warnings(summary)]

    def preview(self) -> list[str]:
        """Describe the source from a sample of its images."""
        return preview(self._source)


class Seen(NamedTuple):
    """Examples that a model sees."""

    rows: NDArray[np.int64]  #: (num_examples,) stored rows of the examples.
    labels: NDArray[np.int64]  #: (num_examples,) labels of the examples.


@remembered
def members_of(splits: Artifact[pa.Table], *roles: str) -> pa.Table:
    """Return the rows of the splits table that have one of the roles, in order of example id."""
    return select(splits.content, *roles)


@remembered
def digest_of(splits: Artifact[pa.Table], *roles: str) -> str:
    """Return the digest that identifies the examples with one of the roles in stage keys."""
    return members_digest(read_members(splits.path(SPLITS_FILE), *roles, columns=("example_id", "label")))


@remembered
def rows_of(splits: Artifact[pa.Table], *roles: str) -> Seen:
    """Return the stored rows and labels of the examples with one of the roles, in order of example id."""
    members = read_members(splits.path(SPLITS_FILE), *roles, columns=("row", "label"))
    return Seen(column(members, "row"), column(members, "label"))


@remembered
def class_names_of(splits: Artifact[pa.Table]) -> tuple[str, ...]:
    """Return the names of the classes, by label."""
    return tuple(named_classes(splits.content).values())


class SplitsStage(Stage[pa.Table]):
    """A stage that assigns a role to each example and writes splits.parquet (tables.SPLITS)."""

    @classmethod
    def open(cls, artifact: Artifact[pa.Table]) -> pa.Table:
        """Return the splits table (tables.SPLITS)."""
        return read_table(artifact.path(SPLITS_FILE))

    def _write(self, table: pa.Table, attempt: Attempt, shard: Shard) -> None:
        """Write the table, and warn about images that look like an image of another role."""
        write_table(table, SPLITS, attempt.path(SPLITS_FILE))
        copies = _near_copies(table, shard.images) if shard.has_images else []
        attempt.facts |= {"near_copies": copies[:MOST_NAMED], "num_near_copies": len(copies)}
        for line in _of_copies(attempt.facts):
            attempt.warn(f"data: {line}")

    @classmethod
    def described(cls, artifact: Artifact[pa.Table]) -> list[str]:
        """Describe the number of examples per role, the number of groups, and the size of the background crops."""
        splits = artifact.content
        roles = pc.value_counts(splits["role"]).to_pylist()
        counts = ", ".join(f"{role['counts']:,} {role['values'].replace('_', ' ')}" for role in roles)
        groups = pc.count_distinct(splits["group"], mode="only_valid").as_py() if "group" in splits.column_names else 0
        lines = [f"examples by role: {counts}" + (f"; in {groups:,} groups" if groups else "")]
        return [*lines, *_of_crops(splits), *_of_copies(artifact.facts)]


def _near_copies(table: pa.Table, images: Any) -> list[tuple[str, str]]:
    """Return `near_copies`; of a source with many blocks, search only some."""
    if isinstance(images, Blocks):
        table = table.filter(pa.array(images.are_in_few(table["row"].to_numpy(), LOOKED_BLOCKS)))
    return near_copies(table, images)


def _of_crops(splits: pa.Table) -> list[str]:
    """Describe the size of the background crops in stored pixels; return an empty list if there are none."""
    if "crop_x0" not in splits.column_names:
        return []
    sides = [splits[f"crop_{end}"].drop_null().to_numpy() for end in ("x0", "y0", "x1", "y1")]
    if not len(sides[0]):
        return []
    wide, high = sides[2] - sides[0], sides[3] - sides[1]
    area = int(np.median(wide * high))
    size = f"{int(np.median(wide))} x {int(np.median(high))}"
    return [f"{len(wide):,} images have a background crop; their median area is {area:,} stored pixels ({size})"]


def _of_copies(facts: Mapping[str, Any]) -> list[str]:
    """Describe the images that look like an image of another role; return an empty list if there are none."""
    count = facts.get("num_near_copies", 0)
    if not count:
        return []
    named = "; ".join(f"{one} and {other}" for one, other in facts["near_copies"])
    more = f"; and {count - MOST_NAMED:,} more" if count > MOST_NAMED else ""
    return [
        f"{count:,} pairs of images look alike but have different roles, so a model may appear to know an image that it "
        f"never saw: {named}{more}. Set group.near to keep such images together"
    ]


@dataclass(frozen=True)
class Split(SplitsStage):
    """Assign a role to every example."""

    declared: ClassVar[Declared] = Declared("split", 1)
    title: ClassVar[str] = "split examples"
    place: ClassVar[Place] = "cores"

    split: SplitSpec
    shard: Artifact[Shard]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The split's settings; a file of given sets enters by its digest in `inputs`, not by its path."""
        spec = self.split.model_dump(mode="json") | (self.split.crop.rule if self.split.crop.mode == "official" else {})
        return spec if self.split.sets is None else spec | {"sets": "given, whole"}  # independent of the file's location

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The shard's key and, if there are files of groups or sets, their digests."""
        path = self.split.sets
        given = {} if path is None else {"sets": named_digest(path, setting="split.sets")}
        return {"shard": self.shard.key} | groups_digest(self.split.group) | given

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write splits.parquet."""
        self._write(self.table(), attempt, self.shard.content)

    def table(self) -> pa.Table:
        """Return the role of each example (tables.SPLITS)."""
        path, groups = self.split.sets, _groups(self.shard, self.split.group)
        given = None if path is None else said_of_examples(path, "set", setting="split.sets")
        return split_examples(self.shard.content.index, self.split, groups, given)

    def preview(self) -> list[str]:
        """List the classes that are too small; return an empty list if the images are not decoded yet."""
        if self.split.sets is not None or not self.shard.store.artifacts.has(self.shard.ref):
            return []
        small = small_classes(self.shard.content.index, self.split)
        problem = "are left out" if self.split.small_classes == "leave_out" else "have too few images for split"
        more = f" and {len(small) - MOST_NAMED} more" if len(small) > MOST_NAMED else ""
        return [f"classes that {problem}: {', '.join(small[:MOST_NAMED])}{more}"] if small else []


@dataclass(frozen=True)
class HoldOut(SplitsStage):
    """Choose training examples, validation examples for early stopping, and held-out examples that no model sees."""

    declared: ClassVar[Declared] = Declared("hold_out", 1)
    title: ClassVar[str] = "hold out examples"
    place: ClassVar[Place] = "cores"

    split: HoldOutSpec
    shard: Artifact[Shard]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The settings of the sets that are held out."""
        return self.split.model_dump(mode="json")

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The shard's key and, if there is a file of groups, its digest."""
        return {"shard": self.shard.key} | groups_digest(self.split.group)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write splits.parquet."""
        self._write(self.table(), attempt, self.shard.content)

    def table(self) -> pa.Table:
        """Return the role of each example (tables.SPLITS)."""
        return hold_out(self.shard.content.index, self.split, _groups(self.shard, self.split.group))


def _groups(shard: Artifact[Shard], spec: GroupSpec | None) -> NDArray[np.int64] | None:
    if spec is None:
        return None
    images = shard.content.images if spec.near is not None else None
    return groups_of(shard.content.index.to_pylist(), images, spec)


@dataclass(frozen=True)
class TrainingData:
    """Stored examples and their roles."""

    shard: Artifact[Shard]
    splits: Artifact[pa.Table]

    @property
    def store(self) -> Store:
        """The store that holds the examples."""
        return self.shard.store

    @property
    def images(self) -> NDArray[Any]:
        """The stored examples, memory-mapped."""
        return self.shard.content.images

    @property
    def labels(self) -> NDArray[np.int64]:
        """The label of each stored row: (num_stored,)."""
        return self.shard.content.labels

    @property
    def table(self) -> pa.Table:
        """The splits table (tables.SPLITS)."""
        return self.splits.content

    def members(self, *roles: str) -> pa.Table:
        """Return the rows of the splits table that have one of the roles, in order of example id."""
        return select(self.table, *roles)

    def pictures(self, *roles: str) -> Callable[[str], NDArray[np.uint8] | None]:
        """Return a function from ids to images: the image of an example with one of the roles; None for others and points."""
        if not self.shard.content.has_images:
            return lambda _: None
        members, images = self.members(*roles), self.images
        places = dict(zip(members["example_id"].to_pylist(), members["row"].to_pylist(), strict=True))
        return lambda name: images[places[name]] if name in places else None

    @property
    def num_classes(self) -> int:
        """The number of classes among the training examples."""
        return len(set(self.members(TRAIN)["label"].to_pylist()))

    def inputs(self, *roles: str) -> dict[str, str]:
        """Return the stage inputs for examples with these roles: the shard's key, and one digest of ids and labels per role.

        A stage that reads other columns of the splits, such as the group, must include `splits.key` as well.
        """
        return {"shard": self.shard.key} | {role: members_digest(self.members(role)) for role in roles}
