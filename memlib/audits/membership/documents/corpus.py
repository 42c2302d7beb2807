"""The documents of an audit in the store, and the owner's list of the documents that an external model was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.membership.supplied import ReadMembers
from memlib.data.blind_features import BlindFeatures, id_features, joined
from memlib.data.groups import groups_digest
from memlib.data.images.shards import WINDOWS
from memlib.data.images.stored import read_images
from memlib.data.splits import SPLITS_FILE
from memlib.data.stages import Decode, Split, TrainingData, described_data
from memlib.data.text.documents import open_documents
from memlib.data.text.rows import Sizes, build_rows
from memlib.data.text.streams import Documents
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Stage
from memlib.specs import GroupSpec, TextSpec
from memlib.store import Attempt
from memlib.tables import SPLITS, read_table, write_table
from memlib.training.pretrained import Pretrained

if TYPE_CHECKING:
    import torch

VOCABULARY, DOCUMENTS_FILE, SIZES, FEATURES, FEATURE_NAMES = (
    "vocabulary.json", "documents.parquet", "sizes.npy", "features.npy", "features.json",
)  # fmt: skip


class StoredDocuments:
    """Documents in the store, cut into windows that hold one document each."""

    def __init__(self, artifact: Artifact[StoredDocuments]) -> None:
        self._artifact = artifact

    @cached_property
    def vocabulary(self) -> list[str]:
        """The text of each symbol."""
        symbols: list[str] = json.loads(self._artifact.path(VOCABULARY).read_text())
        return symbols

    @property
    def windows(self) -> NDArray[Any]:
        """Symbols (num_windows, window), memory-mapped; -1 is padding."""
        return read_images(self._artifact.path(WINDOWS))

    @cached_property
    def table(self) -> pa.Table:
        """The documents, rows of tables.SPLITS in order of their ids."""
        return read_table(self._artifact.path(DOCUMENTS_FILE))

    @cached_property
    def sizes(self) -> Sizes:
        """The sizes of the documents."""
        return Sizes(*np.load(self._artifact.path(SIZES)))

    @property
    def features(self) -> BlindFeatures:
        """Features of the documents that are known without a model: of their texts, and of their places in the source."""
        described = json.loads(self._artifact.path(FEATURE_NAMES).read_text())
        texts = BlindFeatures(np.load(self._artifact.path(FEATURES)), tuple(described["names"]), tuple(described["families"]))
        return joined([id_features(self.table["example_id"].to_pylist()), texts])


@dataclass(frozen=True)
class MakeDocuments(Stage[StoredDocuments]):
    """Cut each document into windows of its own: windows.npy, documents.parquet, and sizes and features of the texts."""

    declared: ClassVar[Declared] = Declared("documents", 1)
    title: ClassVar[str] = "read documents"

    text: TextSpec  #: the source of the documents.
    shortest: int  #: smallest number of tokens of a document that is kept.
    group: GroupSpec | None = None  #: rules for documents that share a coin.
    base: Artifact[Pretrained] | None = None  #: the pretrained model whose tokenizer is used for the text; None without one.

    @cached_property
    def _content(self) -> Documents:
        return open_documents(self.text.source)

    @property
    def spec(self) -> Mapping[str, Any]:
        """Text, shortest document and groups, without locations of files."""
        group = None if self.group is None else self.group.model_dump(mode="json", exclude={"path"})
        return {"text": described_data(self.text), "shortest": self.shortest, "group": group}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Digests of the text and of the file of groups, and the key of the tokenizer."""
        tokenizer = {} if self.base is None else {"tokenizer": self.base.key}
        return {"text": self._content.measured.digest, **groups_digest(self.group), **tokenizer}

    def preview(self) -> list[str]:
        """Describe the amount of text."""
        return [f"{self._content.measured.length:,} documents", *self._content.remarks()]

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write windows, tables, sizes and features."""
        tokenizer = None if self.base is None else self.base.content.tokenizer
        found = build_rows(
            self._content, self.text, attempt.path(WINDOWS), shortest=self.shortest, group=self.group, tokenizer=tokenizer
        )
        for line in self._content.remarks():
            attempt.warn(f"text: {line}")
        attempt.path(VOCABULARY).write_text(json.dumps(found.vocabulary))
        write_table(found.windows, SPLITS, attempt.path(SPLITS_FILE))
        write_table(found.documents, SPLITS, attempt.path(DOCUMENTS_FILE))
        np.save(attempt.path(SIZES), np.stack(found.sizes))
        np.save(attempt.path(FEATURES), found.features.values)
        described = {"names": found.features.names, "families": found.features.families}
        attempt.path(FEATURE_NAMES).write_text(json.dumps(described))
        attempt.facts |= {"documents": found.documents.num_rows, "windows": found.windows.num_rows}

    @classmethod
    def open(cls, artifact: Artifact[StoredDocuments]) -> StoredDocuments:
        """Return the documents."""
        return StoredDocuments(artifact)

    @classmethod
    def described(cls, artifact: Artifact[StoredDocuments]) -> list[str]:
        """Describe the numbers of documents, groups, tokens and symbols."""
        content = artifact.content
        sizes, groups = content.sizes, len(set(content.table["group"].to_pylist()))
        return [
            f"{len(sizes.tokens):,} documents in {groups:,} groups, which share coins",
            f"{int(sizes.tokens.sum()):,} tokens in {int(sizes.windows.sum()):,} windows of {content.windows.shape[1]:,}; "
            f"vocabulary of {len(content.vocabulary):,}",
        ]


def training_data(corpus: Artifact[StoredDocuments]) -> TrainingData:
    """Return the windows of the documents as the pool from which training sets are drawn."""
    return TrainingData(corpus.seen_as(Decode), corpus.seen_as(Split))


@dataclass(frozen=True)
class ReadDocumentMembers(ReadMembers):
    """Read which documents an external target was trained on."""

    title: ClassVar[str] = "read members among documents"

    corpus: Artifact[StoredDocuments]  #: the documents.

    @property
    def pool(self) -> pa.Table:
        """The documents, rows of tables.SPLITS."""
        return self.corpus.content.table
