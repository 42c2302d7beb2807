"""Stages that read captions and split image-text pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy
from numpy.typing import NDArray

from memlib.data.datasets import open_source
from memlib.data.examples import Caption
from memlib.data.groups import groups_of, joined, links_by_name
from memlib.data.id_files import said_of_examples
from memlib.data.images.captions import (
    SETTING,
    are_split_otherwise,
    captions_digest,
    is_named,
    read_captions,
    words_of,
)
from memlib.data.overlap import alike_captions
from memlib.data.splits import split_examples
from memlib.data.stages import Shard, Split
from memlib.data.tables.columns import hint_at_ids
from memlib.errors import UserError
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Stage
from memlib.specs import CropSpec, DataSpec, GroupSpec
from memlib.specs.captions import PADDING, UNKNOWN, CaptionSpec, CocoCaptions
from memlib.store import Attempt
from memlib.tables import read_table

if TYPE_CHECKING:
    import torch

CAPTIONS_FILE, WORDS_FILE = "captions.parquet", "words.npy"
BY_CHARACTERS = (
    "captions are compared word by word, in the composed form of their letters; where scripts have no spaces between words "
    "(Chinese, Japanese, Thai, Lao, Khmer, Burmese), character by character"
)
CAPTIONS = pa.schema(
    [("example_id", pa.string()), ("row", pa.int64()), ("caption", pa.string())]
    + [(name, pa.list_(pa.string())) for name in ("objects", "named")]
)


class CaptionSet:
    """The captions of a shard's images."""

    def __init__(self, artifact: Artifact[CaptionSet]) -> None:
        self._artifact = artifact

    @cached_property
    def table(self) -> pa.Table:
        """Table with the schema CAPTIONS, one row per image with a caption, in order of example id."""
        return read_table(self._artifact.path(CAPTIONS_FILE))

    @cached_property
    def words(self) -> NDArray[np.int32]:
        """Numbers of the words of each stored row's caption, (num_stored, length), padded; memory-mapped."""
        array: NDArray[np.int32] = np.load(self._artifact.path(WORDS_FILE), mmap_mode="r")
        return array

    @cached_property
    def num_words(self) -> int:
        """Number of words that occur, including padding and the unknown word."""
        return int(self._artifact.facts["num_words"])

    @cached_property
    def object_names(self) -> list[str]:
        """Names of all objects, in alphabetical order."""
        return sorted(pc.unique(pc.list_flatten(self.table["objects"])).to_pylist())

    def chosen(self, ids: pa.ChunkedArray) -> pa.Table:
        """Return the rows of the table for some example ids, in their order; each must have a caption."""
        known = self.table["example_id"].combine_chunks()
        return self.table.take(pc.index_in(ids, value_set=known).combine_chunks())

    def matrix(self, lists: pa.ChunkedArray) -> scipy.sparse.csr_array:
        """Return lists of objects as indicators: (num_lists, num_objects) of ones."""
        lists = lists.combine_chunks()
        flat = pc.list_flatten(lists)
        column = pc.index_in(flat, value_set=pa.array(self.object_names, pa.string())).to_numpy(zero_copy_only=False)
        row = pc.list_parent_indices(lists).to_numpy()
        shape = (len(lists), len(self.object_names))
        return scipy.sparse.csr_array((np.ones(len(row), dtype=np.float32), (row, column)), shape=shape)


@dataclass(frozen=True)
class Captions(Stage[CaptionSet]):
    """Read the captions of images: captions.parquet and, for models that read words, words.npy."""

    declared: ClassVar[Declared] = Declared("captions", 1)
    title: ClassVar[str] = "read captions"

    data: DataSpec  #: the source of the images, which may state captions.
    captions: CaptionSpec  #: the origin of the captions.
    shard: Artifact[Shard]  #: the images.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The settings; files count by their content."""
        return self.captions.model_dump(mode="json", exclude={"origin": {"path", "captions", "instances"}})

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The images, the digests of the files, and the rule of words if earlier versions split these captions otherwise."""
        rule = {"words": "characters of scripts without spaces"} if self._is_unspaced else {}
        return {"shard": self.shard.key, **captions_digest(self.captions), **rule}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write captions and words, and count what was read."""
        index, by_name = self.shard.content.index, isinstance(self.captions.origin, CocoCaptions)
        known, ids = self._known, index["example_id"].to_pylist()
        keys = [name.rpartition("/")[2] for name in ids] if by_name else ids
        found = [known.get(key) for key in keys]
        times = Counter(key for key in keys if key in known)
        if twice := next((key for key, count in times.items() if count > 1), None):
            raise UserError(
                f"{SETTING}: {times[twice]} images are named {twice}, in different folders, and COCO's files do not tell "
                "which is meant; give a table of captions by example id"
            )
        if not any(found):
            hint = hint_at_ids(list(known), ids)
            raise UserError(f"{SETTING} has no caption for any of the {len(ids)} images; ids look like {ids[0]!r}{hint}")
        rows = [
            (name, row, caption.text, list(caption.objects), self._named(caption))
            for name, row, caption in zip(ids, index["row"].to_pylist(), found, strict=True)
            if caption is not None
        ]
        columns = list(zip(*rows, strict=True))
        table = pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, CAPTIONS, strict=True)], schema=CAPTIONS
        )
        objects, named = (pc.sum(pc.list_value_length(table[name])).as_py() for name in ("objects", "named"))
        if not objects:
            raise UserError(f"{SETTING}: no image has an object; check the column of objects, and the separator")
        if objects == named:
            raise UserError(
                f"{SETTING}: the captions name all {objects:,} objects of their images, so that a model could name none from "
                "memory; list objects that captions do not mention, too, such as those of a detector or of annotators"
            )
        pq.write_table(table, attempt.path(CAPTIONS_FILE), compression="zstd")
        words, number = self._numbered(table, index.num_rows)
        np.save(attempt.path(WORDS_FILE), words)
        attempt.facts |= {"by_characters": True} if self._is_unspaced else {}
        attempt.facts |= {"num_words": number, "num_captions": table.num_rows, "without_caption": len(ids) - table.num_rows}

    @cached_property
    def _known(self) -> Mapping[str, Caption]:
        """The captions by example id, or by the names of images for COCO."""
        return read_captions(open_source(self.data.source, self.data.intensities, self.data.labels), self.captions)

    @cached_property
    def _is_unspaced(self) -> bool:
        """True if captions or objects have other words than earlier versions found; those that memlib makes have not."""
        if self.captions.origin == "source" and self.data.source.is_embedded:
            return False
        known = self._known.values()
        return are_split_otherwise(text for caption in known for text in (caption.text, *caption.objects))

    def preview(self) -> list[str]:
        """Describe the captions of the source or the files, so that a plan refuses those that cannot be read."""
        lines = [f"captions: {len(self._known):,} before they are joined with the images"]
        return [*lines, BY_CHARACTERS] if self._is_unspaced else lines

    def _named(self, caption: Caption) -> list[str]:
        words = words_of(caption.text)
        spoken = {name: (name, *self.captions.synonyms.get(name, ())) for name in caption.objects}
        return [name for name, forms in spoken.items() if any(is_named(form, words) for form in forms)]

    def _numbered(self, table: pa.Table, count: int) -> tuple[NDArray[np.int32], int]:
        """Return the numbers of the words of each stored row's caption (count, length), and how many numbers there are."""
        texts = [words_of(text)[: self.captions.length] for text in table["caption"].to_pylist()]
        by_count = Counter(word for words in texts for word in words)
        kept = sorted(by_count, key=lambda word: (-by_count[word], word))[: self.captions.vocabulary]
        numbers = {word: number for number, word in enumerate(kept, start=UNKNOWN + 1)}
        words = np.full((count, self.captions.length), PADDING, dtype=np.int32)
        for row, text in zip(table["row"].to_pylist(), texts, strict=True):
            words[row, : len(text)] = [numbers.get(word, UNKNOWN) for word in text]
        return words, len(kept) + UNKNOWN + 1

    @classmethod
    def open(cls, artifact: Artifact[CaptionSet]) -> CaptionSet:
        """Return the captions."""
        return CaptionSet(artifact)

    @classmethod
    def described(cls, artifact: Artifact[CaptionSet]) -> list[str]:
        """Describe the number of captions, objects and named objects."""
        table, lacking = artifact.content.table, artifact.facts["without_caption"]
        named, objects = (pc.sum(pc.list_value_length(table[name])).as_py() for name in ("named", "objects"))
        equal = table.num_rows - pc.count_distinct(table["caption"]).as_py()
        lines = [
            f"captions: {table.num_rows:,}, which name {named:,} of {objects:,} objects of "
            f"{len(artifact.content.object_names):,} kinds"
        ]
        lines += [f"images without a caption, which are left out: {lacking:,}"] if lacking else []
        lines += [BY_CHARACTERS] if artifact.facts.get("by_characters") else []
        return lines + ([f"captions equal to that of another image: {equal:,}, which are kept together"] if equal else [])


@dataclass(frozen=True)
class SplitPairs(Split):
    """Assign a role to every image with a caption; pairs with equal captions, copies and groups stay together."""

    declared: ClassVar[Declared] = Declared("split_pairs", 1)
    title: ClassVar[str] = "split pairs"

    captions: Artifact[CaptionSet]
    alike: float | None = None

    @property
    def spec(self) -> Mapping[str, Any]:
        """The split's settings, and the part of their runs of words that captions which are drawn together share."""
        return {**super().spec, **({} if self.alike is None else {"alike": self.alike})}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Images, captions and, if there are files of groups or sets, their digests."""
        return {**super().inputs, "captions": self.captions.key}

    def table(self) -> pa.Table:
        """Return the role of each pair (tables.SPLITS)."""
        table, index = self.captions.content.table, self.shard.content.index
        index = index.filter(pc.is_in(index["example_id"], value_set=table["example_id"].combine_chunks()))
        for name, value in (("label", 0), ("class_name", "pair")):  # sides are drawn among all pairs, whatever their classes
            place = index.schema.get_field_index(name)
            index = index.set_column(place, name, pa.array([value] * index.num_rows, index.schema.field(place).type))
        path, group = self.split.sets, self.split.group or GroupSpec(identical=True)
        given = None if path is None else said_of_examples(path, "set", setting="split.sets")
        images = self.shard.content.images if group.near is not None else None
        groups = groups_of(index.to_pylist(), images, group)
        spoken = [" ".join(words_of(text)) for text in table["caption"].to_pylist()]
        groups = joined(groups, links_by_name(spoken))
        if self.alike is not None:
            for row, other, _ in alike_captions(spoken, spoken, self.alike):
                groups = joined(groups, list(zip(row.tolist(), other.tolist(), strict=True)))
        spec = self.split.model_copy(update={"group": group, "crop": CropSpec(mode="corner")})
        table = split_examples(index, spec, groups, given)
        for name in (name for name in table.column_names if name.startswith("crop_")):  # no crop is shown to a model
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, pa.nulls(table.num_rows, table.schema.field(place).type))
        return table

    def preview(self) -> list[str]:
        """Return an empty list: classes are not balanced."""
        return []
