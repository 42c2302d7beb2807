"""Stages that ask a service for the costs of secrets and of random references, as `Perplexities` computes them of a model at
hand."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.exposure.models import CorpusData
from memlib.audits.exposure.observing import COSTS, FOUND, Costs, Perplexities, Search, reference_rng
from memlib.audits.exposure.ranks import ScoredModel
from memlib.audits.exposure.recipe import Recipe
from memlib.audits.exposure.tables import EXTRACTION
from memlib.data.splits import VALIDATION, column
from memlib.errors import RunError
from memlib.identity import canonical_json
from memlib.observe.served import ANSWERS_FILE, CHARACTERS, CheckService, announce, ask, order_of, parts_of, require_scores
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact, Runner, Stage
from memlib.sanitize import count_of
from memlib.specs import ServedSpec
from memlib.store import Attempt
from memlib.tables import write_table

if TYPE_CHECKING:
    import torch

    from memlib.models.external.served import Service
    from memlib.observe.likelihoods import Predictor
    from memlib.observe.service_checks import ServiceCheck

ANSWERS = "answers"  # name of an extraction by generated texts
WINDOWS = 20  # of the text, of which the loss is measured


@dataclass(frozen=True)
class ServedModel:
    """A model behind a service, which answers about single texts."""

    data: CorpusData  #: the corpus, whose `trained` names the service.
    service: ServedSpec
    model: None = None
    epoch: float = 0
    precision: str = "float32"

    @property
    def spec(self) -> dict[str, Any]:
        """The part of a content key that describes the model's settings."""
        return {}

    @property
    def inputs(self) -> dict[str, Any]:
        """The part of a content key that identifies the model and its corpus."""
        return {"service": self.service.identity} | self.data.key

    def load(self, device: torch.device) -> Predictor:
        """Refuse: a service does not give the probabilities of all next symbols."""
        raise RunError("a service answers about single texts; only score.method sampled and extrapolated ask that")

    def loss(self, model: Predictor, windows: NDArray[Any], device: torch.device) -> float:
        """Refuse, as `load`."""
        raise RunError("a service answers about single texts")


@dataclass(frozen=True)
class AskCandidates(Stage[Mapping[str, NDArray[np.float64]]]):
    """Ask a service for some of the secrets, references and windows of text: answers.npz."""

    declared: ClassVar[Declared] = Declared("secret/ask_candidates", 1)
    title: ClassVar[str] = "ask for candidates"

    at: ServedModel
    check: Artifact[ServiceCheck]  #: the test of the service.
    canaries: tuple[int, ...]  #: ids of the secrets.
    references: int  #: number of random candidates.
    seed: int  #: seed of the random candidates.
    first: int  #: first, last: the texts in the order in which they are asked for, the last exclusive.
    last: int

    @property
    def label(self) -> str:
        """The texts."""
        return f"texts {self.first + 1} to {self.last}"

    @property
    def units(self) -> float:
        """Number of texts."""
        return float(self.last - self.first)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write minus the log probability of each text after what precedes it, in nats, and its number of tokens.

        Raises:
            RunError: for a service that does not score given texts.
        """
        check, instead = self.check.content, "Canaries can be tested by generated text alone (memlib init canaries)"
        require_scores(check, "exposure needs", instead=instead)
        every = self._texts()
        texts = {str(place): every[place] for place in order_of(len(every))[self.first : self.last].tolist()}
        found = ask(self.at.service, check, texts, _cost, attempt, self.check.store.resume)
        loss, tokens = (np.array([one[name] for one in found.values()]) for name in ("loss", "tokens"))
        np.savez(attempt.path(ANSWERS_FILE), allow_pickle=False, loss=loss, tokens=tokens)

    def _texts(self) -> list[tuple[str, str]]:
        """Return what precedes each text, and the text: secrets, references, windows."""
        data = self.at.data
        before, space = data.text_of(data.context), data.space
        every = [data.choices(self.canaries), space.sample(self.references, reference_rng(self.seed))]
        candidates = [
            (before, data.text_of([token for token in row if token >= 0]))
            for some in every
            for row in space.tokens(some).tolist()
        ]
        return [*candidates, *(("", text) for text in windows_of(data))]

    @classmethod
    def open(cls, artifact: Artifact[Mapping[str, NDArray[np.float64]]]) -> Mapping[str, NDArray[np.float64]]:
        """Return losses and numbers of tokens."""
        with np.load(artifact.path(ANSWERS_FILE), allow_pickle=False) as arrays:
            return dict(arrays)


def windows_of(data: CorpusData) -> list[str]:
    """Return the text of the first windows that no model trains on."""
    corpus = data.corpus.content
    rows = np.array(corpus.windows[column(corpus.members(VALIDATION), "row")[:WINDOWS]])
    return ["".join(corpus.symbols[token] for token in row) for row in rows.tolist()]


async def _cost(service: Service, asked: tuple[str, str]) -> Mapping[str, NDArray[Any]]:
    from memlib.observe.service_checks import score_text

    before, text = asked
    whole = before + text
    scored = await score_text(service, whole, "texts")
    loss, tokens = scored.loss(whole, len(before), len(whole))
    return {"loss": np.array(loss), "tokens": np.array(float(tokens))}


@dataclass(frozen=True)
class JoinCosts(Stage[Costs]):
    """Join the answers of a service to costs: costs.npz, as `Perplexities` writes them."""

    declared: ClassVar[Declared] = Declared("join_costs", 1)
    title: ClassVar[str] = "join costs"

    parts: tuple[Artifact[Mapping[str, NDArray[np.float64]]], ...]  #: the answers.
    canaries: int  #: canaries, references: numbers of secrets and of references.
    references: int
    symbols: int  #: number of symbols in the windows of text.

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the costs."""
        from torch import from_numpy

        from memlib.observe.likelihoods import costs_of

        asked = np.concatenate([part.content["loss"] for part in self.parts])
        losses = asked[np.argsort(order_of(len(asked)))]
        costs, end = costs_of(from_numpy(-losses)).numpy(), self.canaries + self.references
        np.savez(
            attempt.path(COSTS), canaries=costs[: self.canaries], references=costs[self.canaries : end],
            validation_loss=np.array(losses[end:].sum() / max(1, self.symbols)),
        )  # fmt: skip

    @classmethod
    def open(cls, artifact: Artifact[Costs]) -> Costs:
        """Return the costs."""
        return Perplexities.open(artifact)


@dataclass(frozen=True)
class AskAnswers(Stage[NDArray[np.bool_]]):
    """Ask a service to continue the text before the secrets: answers.npz, which secrets each of some answers begins with."""

    declared: ClassVar[Declared] = Declared("secret/ask_answers", 1)
    title: ClassVar[str] = "ask for continuations"

    at: ServedModel
    check: Artifact[ServiceCheck]  #: the test of the service.
    canaries: tuple[int, ...]  #: ids of the secrets.
    first: int  #: first, last: numbers of the answers, the last exclusive.
    last: int

    @property
    def label(self) -> str:
        """The answers."""
        return f"answers {self.first + 1} to {self.last}"

    @property
    def units(self) -> float:
        """Number of answers."""
        return float(self.last - self.first)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write whether each answer begins with each secret."""
        data = self.at.data
        before, rows = data.text_of(data.context), data.space.tokens(data.choices(self.canaries)).tolist()
        secrets = [data.text_of([token for token in row if token >= 0]).strip() for row in rows]
        longest = max(len(secret.encode()) for secret in secrets)

        async def answer(service: Service, number: int) -> Mapping[str, NDArray[Any]]:
            found = await service.generate(before, tokens=longest + 2, temperature=1.0, seed=number)
            return {"begins": np.array([found.text.lstrip().startswith(secret) for secret in secrets])}

        numbers = {str(number): number for number in range(self.first, self.last)}
        answers = ask(self.at.service, self.check.content, numbers, answer, attempt, self.check.store.resume)
        begins = np.stack([one["begins"] for one in answers.values()])
        np.savez(attempt.path(ANSWERS_FILE), allow_pickle=False, begins=begins)

    @classmethod
    def open(cls, artifact: Artifact[NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Return whether each answer begins with each secret, (num_answers, num_secrets)."""
        with np.load(artifact.path(ANSWERS_FILE), allow_pickle=False) as arrays:
            found: NDArray[np.bool_] = arrays["begins"]
        return found


@dataclass(frozen=True)
class JoinExtraction(Stage[pa.Table]):
    """Join answers to results of an extraction: found.parquet (tables.EXTRACTION), as `Search` writes them."""

    declared: ClassVar[Declared] = Declared("join_extraction", 1)
    title: ClassVar[str] = "join continuations"

    parts: tuple[Artifact[NDArray[np.bool_]], ...]  #: the answers.
    canaries: tuple[int, ...]  #: canaries, insertions: ids of the secrets, and how often the model saw each.
    insertions: tuple[int, ...]
    size: int  #: number of candidates.

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the results."""
        begins = np.concatenate([part.content for part in self.parts])
        count = len(begins)
        chance = -math.expm1(count * math.log1p(-1 / self.size)) if self.size > 1 else 1.0
        rows = [
            {
                "variant": "", "seed": 0, "canary": canary, "insertions": insertions, "known": 0, "search": ANSWERS,
                "extracted": bool(hits.any()), "by_chance": chance, "queries": count, "ended": ANSWERS, "exact": False,
                "position": int(hits.argmax()) + 1 if hits.any() else None,
            }
            for canary, insertions, hits in zip(self.canaries, self.insertions, begins.T, strict=True)
        ]  # fmt: skip
        write_table(pa.Table.from_pylist(rows, schema=EXTRACTION.arrow), EXTRACTION, attempt.path(FOUND))

    @classmethod
    def open(cls, artifact: Artifact[pa.Table]) -> pa.Table:
        """Return the results as tables.EXTRACTION."""
        return Search.open(artifact)


def say_what_is_sent(runner: Runner, recipe: Recipe, service: ServedSpec, secrets: int) -> None:
    """State which texts go where, before anything is sent."""
    references = recipe.score.references
    characters = (secrets + references) * (len(recipe.canaries.format) + 20) + WINDOWS * recipe.data.window
    answers = 0 if recipe.extraction is None else recipe.extraction.answers
    announce(
        runner, service, f"{count_of(secrets, 'secret')}, {references:,} random ones and {WINDOWS} windows of the text",
        requests=secrets + references + WINDOWS + answers,
        tokens=(characters + answers * (len(recipe.canaries.format) + 20)) // CHARACTERS,
    )  # fmt: skip


def ask_for_costs(
    runner: Runner, recipe: Recipe, scored: ScoredModel
) -> tuple[Artifact[Costs], list[Artifact[pa.Table]], dict[str, tuple[AnyArtifact, ...]]]:
    """Ask a service for all secrets and references, and for continuations, between two tests of it.

    Returns:
        the costs, the extraction if the recipe has one, and tests and answers as `Score` takes them.
    """
    at, config = scored.at, recipe.score
    assert isinstance(at, ServedModel)
    windows = windows_of(at.data)
    about = canonical_json([at.inputs, list(scored.canaries), config.references, config.seed])
    about = hashlib.sha256(about.encode()).hexdigest()
    before = runner.run(CheckService(at.service, about))
    total = len(scored.canaries) + config.references + len(windows)
    stages = [AskCandidates(at, before, scored.canaries, config.references, config.seed, *part) for part in parts_of(total)]
    parts = tuple(runner.run_all(stages))
    seen = {canary: times for canary, times in zip(scored.canaries, scored.insertions, strict=True) if times}
    how, extraction = recipe.extraction, list[Artifact[pa.Table]]()
    answers: tuple[Artifact[NDArray[np.bool_]], ...] = ()
    if how is not None:
        answers = tuple(runner.run_all([AskAnswers(at, before, tuple(seen), *part) for part in parts_of(how.answers)]))
        size = at.data.space.size
        extraction = [runner.run(JoinExtraction(answers, tuple(seen), tuple(seen.values()), size))]
    after = runner.run(CheckService(at.service, about, before, (*parts, *answers)))
    costs = runner.run(JoinCosts(parts, len(scored.canaries), config.references, sum(map(len, windows))))
    return costs, extraction, {"checks": (before, after), "asked": parts, "answers": answers}
