"""Stages of a membership audit of documents: corpus, language models and their scores of all documents, tables and page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.membership.audited import Audited
from memlib.audits.membership.documents.audited import DocumentsAudited
from memlib.audits.membership.documents.recipe import DocumentsRecipe
from memlib.audits.membership.shadows import TrainSubset
from memlib.audits.membership.stages import Report, Score
from memlib.audits.membership.supplied import UNLISTED, ReadMembers
from memlib.audits.membership.units import Copies, Pool
from memlib.data.blind_features import BlindFeatures
from memlib.data.groups import groups_digest
from memlib.data.images.shards import WINDOWS
from memlib.data.images.stored import read_images
from memlib.data.overlap import alike_captions
from memlib.data.splits import HELD_OUT, SPLITS_FILE, TRAIN
from memlib.data.stages import Decode, Split, TrainingData, described_data
from memlib.data.subsets import TARGET, Subsets
from memlib.data.text.documents import open_documents
from memlib.data.text.rows import OTHERS, PADDING, SCORED, Sizes, build_rows
from memlib.data.text.streams import Documents
from memlib.errors import UserError
from memlib.models.external.factory import external_language_digest
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact, Place, Stage
from memlib.specs import GroupSpec, HuggingFaceSpec, TextSpec
from memlib.store import Attempt, Ref
from memlib.tables import SPLITS, read_table, write_table
from memlib.training.fit import TrainedModel
from memlib.training.pretrained import Pretrained

if TYPE_CHECKING:
    import torch

    from memlib.models.sequence import LanguageModel
    from memlib.observe.service_checks import ServiceCheck
    from memlib.observe.token_scores import TokenScores
    from memlib.report.page import Content

VOCABULARY, DOCUMENTS_FILE, SIZES, FEATURES, FEATURE_NAMES, MARKS = (
    "vocabulary.json", "documents.parquet", "sizes.npy", "features.npy", "features.json", "marks.npy",
)  # fmt: skip


MOST_TOKENS = 400  # of a document that are shown on a page
SHARED = 0.5  # of the runs of four words of documents that count as alike, as in `memlib overlap`
MOST_COMPARED = 2**26  # characters of documents among which alike ones are looked for


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

    @property
    def marks(self) -> NDArray[np.uint8] | None:
        """Marks of the symbols that are scored, memory-mapped, see `memlib.data.text.rows`; None if all are."""
        return read_images(self._artifact.path(MARKS)) if MARKS in self._artifact.files else None

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
        """Features of the documents that are known without a model: of their texts alone, as their ids are positions."""
        described = json.loads(self._artifact.path(FEATURE_NAMES).read_text())
        return BlindFeatures(np.load(self._artifact.path(FEATURES)), tuple(described["names"]), tuple(described["families"]))


@dataclass(frozen=True)
class MakeDocuments(Stage[StoredDocuments]):
    """Cut each document into windows of its own: windows.npy, documents.parquet, and sizes and features of the texts."""

    declared: ClassVar[Declared] = Declared("documents", 1)
    title: ClassVar[str] = "read documents"

    text: TextSpec  #: the source of the documents.
    shortest: int  #: smallest number of tokens of a document that is kept.
    group: GroupSpec | None = None  #: rules for documents that share a coin.
    base: Artifact[Pretrained] | None = None  #: the pretrained model whose tokenizer is used for the text; None without one.
    scored: str | None = None  #: scored, packed: what is scored of a document, and how windows are cut; see `build_rows`.
    packed: bool = False

    @cached_property
    def _content(self) -> Documents:
        return open_documents(self.text.source)

    @property
    def spec(self) -> Mapping[str, Any]:
        """Text, shortest document and groups, without locations of files."""
        group = None if self.group is None else self.group.model_dump(mode="json", exclude={"path"})
        more: dict[str, Any] = {} if self.scored is None else {"scored": self.scored}
        more |= {"packed": True} if self.packed else {}
        return {"text": described_data(self.text), "shortest": self.shortest, "group": group, **more}

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
            self._content, self.text, attempt.path(WINDOWS), shortest=self.shortest, group=self.group, tokenizer=tokenizer,
            scored=self.scored, packed=self.packed,
            marks=attempt.path(MARKS) if self.packed or self.scored is not None else None,
        )  # fmt: skip
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


@dataclass(frozen=True)
class ScoreDocuments(Score):
    """Attack the target by its scores of documents, and test its coins.

    Attributes:
        shadows: the training sets of the shadow models.
    """

    declared: ClassVar[Declared] = Declared("score_documents", 7)
    title: ClassVar[str] = "score membership of documents"

    recipe: DocumentsRecipe  #: attacks, tests and claim.
    #: answers, target: the scores of the shadow models and of the target.
    answers: Sequence[Artifact[TokenScores]]  # type: ignore[assignment]
    target: Artifact[TokenScores]  # type: ignore[assignment]
    corpus: Artifact[StoredDocuments]  #: the documents.
    base: Artifact[TokenScores] | None  #: the scores of the pretrained model; None for models that were trained from scratch.
    checks: Sequence[Artifact[ServiceCheck]] = field(default=(), kw_only=True)  #: tests of services, before and after.
    asked: Sequence[AnyArtifact] = field(default=(), kw_only=True)  #: what was asked between them; it is in the scores.

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The documents, all scores, and tests of services."""
        checks = {"checks": [check.key for check in self.checks]} if self.checks else {}
        return {**super().inputs, **({} if self.base is None else {"base": self.base.key}), **checks}

    def audited(self) -> Audited:
        """Return the documents with all scores; of an external target, those that the owner's list names."""
        content = self.corpus.content
        inside = self._inside(self.shadows)
        if self.members is None:
            shadows = self.recipe.shadows
            own = self._inside([Subsets(self.data, (TARGET,), shadows.share, shadows.seed)])[0]
            listed = np.ones(len(own), dtype=bool)
        else:
            own, listed = self.members.content == 1, self.members.content != UNLISTED
        rows = content.table.filter(pa.array(listed))
        return DocumentsAudited.of(
            recipe=self.recipe, pool=Pool.of(content.table, listed), rows=rows, member=own, listed=listed, inside=inside,
            target=self.target.content, shadows=[answers.content for answers in self.answers],
            base=None if self.base is None else self.base.content, compressed=content.sizes.compressed,
            known=content.features, nobody=self.data.members(HELD_OUT),
            copies=copies_of(content, self.recipe.data.unit, listed, own[listed]),
            checks=[check.content for check in self.checks],
            asked=self.asked,
        )  # fmt: skip

    def _inside(self, subsets: Sequence[Subsets]) -> Any:
        """Return masks of the documents in each model's training set, (num_models, num_documents).

        A training set contains all windows of a document or none, so its first window decides.
        """
        first = self.corpus.content.sizes.first
        parts = [each.inside[:, first] for each in subsets]
        return np.concatenate([np.zeros((0, len(first)), dtype=bool), *parts])


def copies_of(content: StoredDocuments, unit: str, listed: NDArray[np.bool_], member: NDArray[np.bool_]) -> Copies:
    """Return the non-members that have a copy among the members; of much text, only equal documents are looked for.

    Args:
        unit: unit of the symbols: character, word or token.
        listed: (num_documents,) whether the document is audited.
        member: (num_listed,) whether the target was trained on it.
    """
    windows, marks = content.windows, content.marks
    own = windows if marks is None else np.where(marks == OTHERS, PADDING, windows)
    rows = np.split(own, np.cumsum(content.sizes.windows)[:-1])
    texts = [_text(rows[place], content.vocabulary, unit) for place in np.flatnonzero(listed).tolist()]
    outside, inside = np.flatnonzero(~member), [text for text, is_member in zip(texts, member, strict=True) if is_member]
    known, found = set(inside), np.zeros(len(texts), dtype=bool)
    found[outside] = [texts[place] in known for place in outside.tolist()]
    if sum(map(len, texts)) > MOST_COMPARED:
        return Copies(found)
    for row, _, _ in alike_captions([texts[place] for place in outside.tolist()], inside, SHARED):
        found[outside[row]] = True
    return Copies(found, shared=SHARED)


def _text(windows: NDArray[Any], vocabulary: Sequence[str], unit: str) -> str:
    """Return a document as words: those of its characters, or its symbols' numbers."""
    symbols = windows[windows >= 0].tolist()
    return "".join(vocabulary[symbol] for symbol in symbols) if unit == "character" else " ".join(map(str, symbols))


@dataclass(frozen=True)
class ReportDocuments(Report):
    """Draw the page of a membership audit of documents."""

    title: ClassVar[str] = "report membership of documents"

    recipe: DocumentsRecipe
    corpus: Artifact[StoredDocuments]
    target: Artifact[TokenScores]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The scores and the documents and, if their words are shown, their tokens' scores."""
        return {**super().inputs, **({"target": self.target.key} if self._shown else {})}

    @property
    def _shown(self) -> int:
        """Number of documents whose words are shown; tokens of a service that is sent texts are its own, and not known."""
        return 0 if self.recipe.sends_texts or not self.recipe.is_compared else self.recipe.report.documents

    def compose(self, attempt: Attempt) -> Content:
        """Return the content of the page, with words of the documents that have the highest scores, if asked for."""
        content = super().compose(attempt)
        if not self._shown:
            return content
        from memlib.audits.membership.sections import words_section

        units, corpus, scores = self.scores.content["units"], self.corpus.content, self.target.content
        best = units.sort_by([(self.recipe.score.headline, "descending")])["unit"].to_pylist()[: self._shown]
        places = {name: place for place, name in enumerate(corpus.table["example_id"].to_pylist())}
        shown = [(name, _tokens_of(corpus, scores, places[name])) for name in best]
        first, *rest = content.sections
        return replace(content, sections=[first, words_section(shown), *rest])

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """The documents."""
        return (self.corpus,)

    def _sizes(self) -> Mapping[str, int]:
        """Return the number of documents."""
        return {TRAIN: self.corpus.content.table.num_rows, HELD_OUT: 0}


def _tokens_of(corpus: StoredDocuments, scores: TokenScores, place: int) -> list[tuple[str, float | None]]:
    """Return the text of a document's first tokens, each with its gain; None for a token that is not scored."""
    sizes, gains, marks = corpus.sizes, scores.gains, corpus.marks
    assert gains is not None, "a target with a pretrained model has gains"
    rows = slice(int(sizes.first[place]), int(sizes.first[place] + sizes.windows[place]))
    symbols = corpus.windows[rows].ravel()
    own = np.where(symbols >= 0, SCORED, OTHERS) if marks is None else marks[rows].ravel()
    left = iter(gains[slice(*scores.places[place : place + 2])].tolist())
    kept = [
        (corpus.vocabulary[symbol], next(left) if mark == SCORED else None)
        for symbol, mark in zip(symbols.tolist(), own.tolist(), strict=True)
        if mark != OTHERS
    ]
    return kept[:MOST_TOKENS]


Observed = Artifact[TrainedModel] | Artifact[Pretrained] | HuggingFaceSpec


@dataclass(frozen=True, kw_only=True)
class TrainDocuments(TrainSubset):
    """Train one language model on the documents that its coins choose."""

    declared: ClassVar[Declared] = Declared("train_documents", 1)
    title: ClassVar[str] = "train language models"

    corpus: Artifact[StoredDocuments]  #: all documents.

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The documents and the model that is fine-tuned."""
        base = {} if self.base is None else {"base": self.base.key}
        return {**super().inputs, **base}

    def describe(self, images: NDArray[Any]) -> dict[str, Any]:
        """Return the description that `build_model` takes, with the vocabulary's size."""
        return super().describe(images) | {"classifier": len(self.corpus.content.vocabulary)}


@dataclass(frozen=True)
class ObserveDocuments(Stage["TokenScores"]):
    """Score every document under one model: .npy files of documents and of tokens, as `TokenScores.save` writes them."""

    declared: ClassVar[Declared] = Declared("observe_documents", 2)
    title: ClassVar[str] = "score documents by models"
    place: ClassVar[Place] = "anywhere"

    corpus: Artifact[StoredDocuments]  #: the documents.
    model: Observed  #: a model that memlib trained, the pretrained one, or an external one.
    epoch: int  #: the last epoch of a model that memlib trained; 0 for others.
    share: float  #: share of a document's tokens that Min-K%++ takes.
    #: scores under the pretrained model, to which tokens are compared; None for this model itself, and without one.
    reference: Artifact[TokenScores] | None

    @property
    def spec(self) -> Mapping[str, Any]:
        """The checkpoint and the share."""
        return {"epoch": self.epoch, "share": self.share}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The documents, the model and, if there is one, its reference."""
        model = self.model
        key = external_language_digest(model) if isinstance(model, HuggingFaceSpec) else model.key
        reference = {} if self.reference is None else {"reference": self.reference.key}
        return {"documents": self.corpus.key, "model": key, **reference}

    @property
    def near(self) -> Ref | None:
        """The model, if it is in the store."""
        return None if isinstance(self.model, HuggingFaceSpec) else self.model.ref

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the scores."""
        from memlib.observe.token_scores import token_scores

        content, model = self.corpus.content, self._load().to(device).float().eval()
        found = token_scores(
            model, content.windows, content.sizes.windows, share=self.share, device=device, marks=content.marks,
            reference=None if self.reference is None else self.reference.content.own,
            is_reference=isinstance(self.model, Artifact) and isinstance(self.model.content, Pretrained),
        )  # fmt: skip
        found.save(attempt.folder)

    def _load(self) -> LanguageModel:
        from memlib.models.sequence import LanguageModel

        model = self.model
        if isinstance(model, HuggingFaceSpec):
            return self._external(model)
        content = model.content
        loaded = content.model(None, seed=0) if isinstance(content, Pretrained) else content.load(epoch=self.epoch)[0]
        assert isinstance(loaded, LanguageModel)
        return loaded

    def _external(self, spec: HuggingFaceSpec) -> LanguageModel:
        """Return the external model.

        Raises:
            UserError: when its tokenizer is not the pretrained model's.
        """
        from memlib.models.external.language import HuggingFace

        loaded = HuggingFace(spec.path, spec.adapter)
        if [piece or "" for piece in loaded.pieces] != self.corpus.content.vocabulary:
            raise UserError(
                f"the tokenizer of target.trained ({spec.path}) is not that of model.path; set model.path to the model that "
                "was fine-tuned"
            )
        return loaded

    @classmethod
    def open(cls, artifact: Artifact[TokenScores]) -> TokenScores:
        """Return the scores."""
        from memlib.observe.token_scores import TokenScores

        return TokenScores.load([artifact.path(name) for name in artifact.files])
