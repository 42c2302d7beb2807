"""Stages that ask a service for the log probabilities of documents' tokens.

With a pretrained model at hand, its tokens are sent, in the windows in which it is observed itself. Without one, texts are
sent in pieces, and the tokens are the service's own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from memlib.audits.membership.documents.recipe import DocumentsRecipe
from memlib.audits.membership.documents.stages import StoredDocuments
from memlib.data.text.documents import open_documents
from memlib.data.text.rows import SCORED, parts_of
from memlib.errors import RunError
from memlib.observe.served import ANSWERS_FILE, CHARACTERS, CheckService, announce, ask, order_of, require_scores
from memlib.observe.served import parts_of as parts_of_all
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import UNKEYED, AnyArtifact, Artifact, Runner, Stage
from memlib.sanitize import count_of
from memlib.specs import ServedSpec, TextSpec
from memlib.store import Attempt
from memlib.training.pretrained import Pretrained

if TYPE_CHECKING:
    import torch

    from memlib.models.external.served import Service
    from memlib.observe.service_checks import ServiceCheck
    from memlib.observe.token_scores import TokenScores

Piece = tuple[str | list[int], Sequence[tuple[int, int]]]
"""What is sent, and the parts of it that are scored: of characters, or of tokens."""


@dataclass(frozen=True)
class AskedTokens:
    """Log probabilities of the tokens of some documents, as a service gives them."""

    counts: NDArray[np.int64]  #: (num_documents,) number of tokens.
    log_p: NDArray[np.float32]  #: (num_tokens,) log probability of each, document after document.
    right: NDArray[np.bool_]  #: (num_tokens,) whether it has the largest probability.
    spelled: NDArray[np.uint64]  #: (num_documents,) digest of the tokens' texts, by which two services are compared.


@dataclass(frozen=True)
class AskDocuments(Stage[AskedTokens]):
    """Ask a service for some of the documents: answers.npz."""

    declared: ClassVar[Declared] = Declared("ask_documents", 1)
    title: ClassVar[str] = "ask for documents' tokens"

    corpus: Artifact[StoredDocuments]  #: the documents.
    text: TextSpec = field(metadata=UNKEYED)  #: their source; the documents are an input.
    base: Artifact[Pretrained] | None  #: the pretrained model whose tokens are sent; None: texts are sent.
    scored: str | None = field(metadata=UNKEYED)  #: what is scored of a text; it is part of the documents.
    service: ServedSpec = field(metadata=UNKEYED)
    check: Artifact[ServiceCheck]  #: the test of the service.
    first: int  #: first, last: the documents in the order in which they are asked for, the last exclusive.
    last: int

    @property
    def places(self) -> list[int]:
        """Places of the documents, in the order in which they are asked for."""
        places: list[int] = order_of(len(self.corpus.content.sizes.tokens))[self.first : self.last].tolist()
        return places

    @property
    def label(self) -> str:
        """The service and the documents."""
        return f"{self.service.model}, documents {self.first + 1} to {self.last}"

    @property
    def spec(self) -> Mapping[str, Any]:
        """The service, and the documents."""
        return {**super().spec, "service": self.service.identity}

    @property
    def units(self) -> float:
        """Number of documents."""
        return float(self.last - self.first)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write what the service says of each document.

        Raises:
            RunError: for a service that does not score given texts.
        """
        require_scores(self.check.content, "membership of documents needs")
        prompts = {str(place): pieces for place, pieces in zip(self.places, self._pieces(), strict=True)}
        found = ask(self.service, self.check.content, prompts, _tokens_of, attempt, self.check.store.resume)
        joined = {name: np.concatenate([one[name] for one in found.values()]) for name in ("log_p", "right")}
        each = {"counts": np.array([len(one["log_p"]) for one in found.values()])}
        each["spelled"] = np.array([one["spelled"] for one in found.values()], dtype=np.uint64)
        np.savez(attempt.path(ANSWERS_FILE), allow_pickle=False, **joined, **each)

    def _pieces(self) -> Iterator[list[Piece]]:
        """Yield what is sent of each document: windows of tokens, after one for the beginning, or pieces of text."""
        sizes, places = self.corpus.content.sizes, self.places
        if self.base is not None:
            start, windows, marks = self.base.content.tokenizer.start, self.corpus.content.windows, self.corpus.content.marks
            for first, count in zip(sizes.first[places].tolist(), sizes.windows[places].tolist(), strict=True):
                rows, pieces = windows[first : first + count], list[Piece]()
                scored = rows >= 0 if marks is None else marks[first : first + count] == SCORED
                for row, mask in zip(rows, scored, strict=True):
                    pieces.append(([start, *row[row >= 0].tolist()], _runs(np.concatenate([[False], mask[row >= 0]]))))
                yield pieces
            return
        numbers = sizes.number[places].tolist()
        wanted = set(numbers)
        texts = islice(enumerate(open_documents(self.text.source).read()), max(numbers) + 1)
        found = {number: text for number, text in texts if number in wanted}
        for text in map(found.__getitem__, numbers):
            yield [
                (text[place : place + self.text.window], _inside(parts_of(text, self.scored), place, self.text.window))
                for place in range(0, len(text), self.text.window)
            ]

    @classmethod
    def open(cls, artifact: Artifact[AskedTokens]) -> AskedTokens:
        """Return the answers."""
        with np.load(artifact.path(ANSWERS_FILE), allow_pickle=False) as arrays:
            return AskedTokens(*(arrays[name] for name in ("counts", "log_p", "right", "spelled")))


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return start and end of each run of true values.

    Example:
        >>> _runs(np.array([False, True, True, False, True]))
        [(1, 3), (4, 5)]
    """
    turns = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(start), int(stop)) for start, stop in turns.reshape(-1, 2)]


def _inside(parts: Sequence[tuple[int, int]], place: int, length: int) -> list[tuple[int, int]]:
    """Return parts of a text as parts of the piece that begins at a place."""
    cut = [(max(0, start - place), min(length, stop - place)) for start, stop in parts]
    return [(start, stop) for start, stop in cut if start < stop]


async def _tokens_of(service: Service, pieces: Sequence[Piece]) -> Mapping[str, NDArray[Any]]:
    """Return log probabilities of the tokens of one document."""
    from memlib.observe.service_checks import score_text

    log_p, right, spelled = [], [], hashlib.sha256()
    for piece, parts in pieces:
        if isinstance(piece, str):
            scored = await score_text(service, piece, "documents")
            kept = np.zeros(len(scored.log_p), dtype=bool)
            for part in parts:
                kept |= scored.within(piece, *part)
        else:
            scored = await service.score(piece)
            kept = np.zeros(len(piece), dtype=bool)
            for start, stop in parts:
                kept[start:stop] = True
            if len(scored.log_p) != len(piece):
                scores = int(np.isfinite(scored.log_p).sum())
                raise RunError(
                    f"the service scores {scores} of {len(piece) - 1} tokens that were sent: it adds or cuts tokens, or has "
                    "another tokenizer than the pretrained model"
                )
            scored.check(kept)
        log_p.append(scored.log_p[kept])
        right.append(scored.right[kept])
        spelled.update(json.dumps(scored.pieces).encode())
    digest = int.from_bytes(spelled.digest()[:8], "little")
    return {
        "log_p": np.concatenate(log_p).astype(np.float32), "right": np.concatenate(right),
        "spelled": np.array(digest, dtype=np.uint64),
    }  # fmt: skip


@dataclass(frozen=True)
class JoinScores(Stage["TokenScores"]):
    """Join a service's answers to scores of documents, as `ObserveDocuments` writes them of a model at hand."""

    declared: ClassVar[Declared] = Declared("join_scores", 1)
    title: ClassVar[str] = "join scores of documents"

    corpus: Artifact[StoredDocuments]  #: the documents.
    parts: tuple[Artifact[AskedTokens], ...]  #: the answers.
    reference: Artifact[TokenScores] | None  #: scores under the pretrained model; None for itself, and without one.
    #: answers of the service with the pretrained model, whose tokens are compared; empty for a model at hand.
    others: tuple[Artifact[AskedTokens], ...] = ()
    is_reference: bool = False  #: whether it is the pretrained model itself.

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the scores.

        Raises:
            RunError: when two services have other tokens.
        """
        from memlib.observe.token_scores import Keeping

        if self.others:
            own, other = (np.concatenate([part.content.spelled for part in parts]) for parts in (self.parts, self.others))
            if unlike := int((own != other).sum()):
                raise RunError(
                    f"the two services cut {unlike} of {len(own)} documents into other tokens, so none can be compared: "
                    "leave model out, or name the model from which the target was fine-tuned"
                )
        kept = Keeping(None if self.reference is None else self.reference.content.own, is_reference=self.is_reference)
        log_p, right = (
            [one for part in self.parts for one in np.split(getattr(part.content, name), np.cumsum(part.content.counts)[:-1])]
            for name in ("log_p", "right")
        )
        for place in np.argsort(order_of(len(log_p))).tolist():
            kept.add(log_p[place].astype(np.float64), right[place])
        kept.scores.save(attempt.folder)

    @classmethod
    def open(cls, artifact: Artifact[TokenScores]) -> TokenScores:
        """Return the scores."""
        from memlib.observe.token_scores import TokenScores

        return TokenScores.load([artifact.path(name) for name in artifact.files])


def say_what_is_sent(runner: Runner, recipe: DocumentsRecipe) -> None:
    """State which texts go where, before anything is sent."""
    window = recipe.data.window * (1 if recipe.sends_texts else CHARACTERS)
    sizes = [len(text) for text in open_documents(recipe.data.source).beginning(recipe.data.fraction)]
    pieces = sum(-(-size // window) for size in sizes)
    for service in services_of(recipe):
        tokens = sum(sizes) // CHARACTERS + pieces
        announce(runner, service, count_of(len(sizes), "document"), requests=pieces, tokens=tokens)


def services_of(recipe: DocumentsRecipe) -> list[ServedSpec]:
    """Return the services that are asked, the target's first."""
    return [one for one in (recipe.target.trained, recipe.model) if isinstance(one, ServedSpec)]


def ask_for_documents(
    runner: Runner,
    recipe: DocumentsRecipe,
    corpus: Artifact[StoredDocuments],
    base: Artifact[Pretrained] | None,
    of_base: Artifact[TokenScores] | None,
) -> tuple[Artifact[TokenScores], Artifact[TokenScores] | None, dict[str, tuple[AnyArtifact, ...]]]:
    """Ask for all documents, of the pretrained model as well if it is behind a service.

    Returns:
        scores under the target and under the pretrained model, and tests of all services and answers between them, as
        `ScoreDocuments` takes them.
    """
    count = len(corpus.content.sizes.tokens)
    parts, checks = [], []
    tested = {one.model_dump_json(): runner.run(CheckService(one, corpus.key)) for one in services_of(recipe)}
    for service in services_of(recipe):
        before = tested[service.model_dump_json()]
        asked = [
            AskDocuments(corpus, recipe.data, base, recipe.scored, service, before, *part) for part in parts_of_all(count)
        ]
        found = tuple(runner.run_all(asked))
        checks += [before, runner.run(CheckService(service, corpus.key, before, found))]
        parts.append(found)
    if len(parts) > 1:
        of_base = runner.run(JoinScores(corpus, parts[1], None, is_reference=True))
    scores = runner.run(JoinScores(corpus, parts[0], of_base, parts[1] if len(parts) > 1 else ()))
    return scores, of_base, {"checks": tuple(checks), "asked": tuple(one for found in parts for one in found)}
