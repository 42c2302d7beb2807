"""Stages that ask a service for canaries: their likelihoods or, where it gives none, the endings that it answers.

Inserted canaries and others are asked for in the order of their draw, which their coins do not depend on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.asked import changed_in
from memlib.audits.canaries.recipe import AnswersSpec, Recipe
from memlib.audits.canaries.stages import keep, kept, pseudonym
from memlib.data.canaries.documents import ALL_FILE, CanaryDocument, digest_of, read_documents
from memlib.data.canaries.losses import BASE_STEP, LOSSES, Recorded, Served
from memlib.data.canaries.pictures import is_of_pictures
from memlib.data.canaries.plan import read_coins, read_plan
from memlib.errors import RunError, UserError
from memlib.identity import file_digest
from memlib.observe.served import ANSWERS_FILE, CheckService, announce, ask, parts_of, require_scores
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import UNKEYED, Artifact, Runner, Stage
from memlib.sanitize import count_of
from memlib.specs import ServedSpec
from memlib.store import Attempt

if TYPE_CHECKING:
    import torch

    from memlib.models.external.served import Service
    from memlib.observe.service_checks import ServiceCheck

Answers = Mapping[str, NDArray[Any]]
TRAINED_STEP = 1
BY_TEXT = "Generated text alone is audited with the coins, without base (memlib canaries audit --url)"


@dataclass(frozen=True)
class AskCanaries(Stage[Answers]):
    """Ask a service for some of the canaries: answers.npz."""

    declared: ClassVar[Declared] = Declared("secret/ask_canaries", 1)
    title: ClassVar[str] = "ask for canaries"

    canaries: str = field(metadata=UNKEYED)  #: the folder; its documents are an input.
    service: ServedSpec = field(metadata=UNKEYED)
    check: Artifact[ServiceCheck]  #: the test of the service.
    how: AnswersSpec
    needs_scores: bool = field(metadata=UNKEYED)  #: whether only likelihoods will do.
    first: int  #: first, last: places of the canaries in all.jsonl, the last exclusive.
    last: int

    @property
    def label(self) -> str:
        """The canaries."""
        return f"canaries {self.first + 1} to {self.last}"

    @property
    def spec(self) -> Mapping[str, Any]:
        """The service, the canaries and how their endings are asked for."""
        return {**super().spec, "service": self.service.identity}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The test of the service, and a digest of the documents."""
        return {**super().inputs, "canaries": file_digest(Path(self.canaries) / ALL_FILE)}

    @property
    def units(self) -> float:
        """Number of canaries."""
        return float(self.last - self.first)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write what the service says of each canary."""
        if self.needs_scores:
            require_scores(self.check.content, "losses need", instead=BY_TEXT)
        check, some = self.check.content, documents_of(self.canaries)[self.first : self.last]
        prompts = {str(self.first + place): one for place, one in enumerate(some)}
        states = self.check.store.resume
        if check.level == "scores":
            found = ask(self.service, check, prompts, _likelihood, attempt, states)
        else:

            async def endings(service: Service, one: CanaryDocument) -> Answers:
                return await _endings(service, one, self.how)

            found = ask(self.service, check, prompts, endings, attempt, states)
        names = next(iter(found.values())).keys()
        np.savez(
            attempt.path(ANSWERS_FILE),
            allow_pickle=False,
            **{name: np.stack([one[name] for one in found.values()]) for name in names},
        )

    @classmethod
    def open(cls, artifact: Artifact[Answers]) -> Answers:
        """Return the answers in the order of the canaries: loss and tokens, or endings (num_canaries, draws, 3)."""
        with np.load(artifact.path(ANSWERS_FILE), allow_pickle=False) as arrays:
            return dict(arrays)


async def _likelihood(service: Service, one: CanaryDocument) -> Answers:
    """Return minus the log probability of a canary's random part, and its number of tokens."""
    from memlib.observe.service_checks import score_text

    text = one.text[: one.span[1]]
    scored = await score_text(service, text, "canaries")
    loss, tokens = scored.loss(text, *one.span)
    return {"loss": np.array(loss), "tokens": np.array(tokens)}


async def _endings(service: Service, one: CanaryDocument, how: AnswersSpec) -> Answers:
    """Return how near the answers to a canary's beginning come to its ending, (draws, 3): see `nearness`."""
    beginning, ending = parted(one, how.known)
    found = []
    for draw in range(how.draws):
        answer = await service.generate(beginning, tokens=len(ending.encode()), temperature=how.temperature, seed=draw)
        found.append(nearness(answer.text, ending))
    return {"endings": np.array(found, dtype=np.float64)}


def parted(one: CanaryDocument, known: float) -> tuple[str, str]:
    """Return what is sent of a canary, and the ending that should come back; of a chat, the user's turn and the answer.

    Args:
        known: share of the random part that is sent.

    Example:
        >>> parted(CanaryDocument("1", "code 123456.", (5, 11)), 0.5)
        ('code 123', '456')
    """
    if one.prompt is not None:
        return one.prompt, one.text[: one.span[1]]
    cut = one.span[0] + max(1, min(one.span[1] - one.span[0] - 1, round(known * (one.span[1] - one.span[0]))))
    return one.text[:cut], one.text[cut : one.span[1]]


def nearness(answer: str, ending: str) -> tuple[float, float, float]:
    """Return how near an answer comes to an ending: characters in common at their start, similarity by edits, and whether it
    brings the whole ending back.

    Example:
        >>> nearness(" 4567", "456"), nearness("4x6", "456")
        ((3.0, 1.0, 1.0), (1.0, 0.6666666666666667, 0.0))
    """
    from rapidfuzz.distance import Levenshtein

    answer, ending = answer.lstrip(), ending.lstrip()
    common = next((place for place, pair in enumerate(zip(answer, ending, strict=False)) if pair[0] != pair[1]), None)
    common = min(len(answer), len(ending)) if common is None else common
    similar = Levenshtein.normalized_similarity(answer[: len(ending)], ending)
    return float(common), float(similar), float(answer.startswith(ending))


@dataclass(frozen=True)
class JoinAnswers(Stage[Recorded]):
    """Join the answers of a service to losses under pseudonyms: losses.parquet and looks.json."""

    declared: ClassVar[Declared] = Declared("join_answers", 1)
    title: ClassVar[str] = "join answers"

    canaries: str = field(metadata=UNKEYED)  #: the folder; its coins are an input.
    service: ServedSpec = field(metadata=UNKEYED)
    parts: tuple[Artifact[Answers], ...]  #: parts, base: answers of the trained model and of the one before the training.
    base: tuple[Artifact[Answers], ...]
    checks: tuple[Artifact[ServiceCheck], ...]  #: tests of the services, before and after.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The service."""
        return {"service": self.service.identity}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Answers and tests and, keyed with their salt, the coins."""
        return {**super().inputs, "coins": read_coins(Path(self.canaries)).digest}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the losses; where endings were asked for, minus their similarity takes the place of a loss."""
        coins, documents = read_coins(Path(self.canaries)), documents_of(self.canaries)
        names = [pseudonym(one.canary, coins) for one in documents]
        checks = [check.content for check in self.checks]
        tables = [_losses(names, self.parts, TRAINED_STEP), *([_losses(names, self.base, BASE_STEP)] if self.base else [])]
        endings = [part.content["endings"] for part in self.parts if "endings" in part.content]
        whole = np.concatenate(endings)[:, :, 2].sum(axis=1).astype(int).tolist() if endings else []
        asked = Served(
            host=self.service.host, model=self.service.model, level=checks[0].level, said=checks[0].said,
            requests=sum(check.asked for check in checks) + sum(part.facts["requests"] for part in (*self.parts, *self.base)),
            noise=max(check.noise_of_texts for check in checks) if checks[0].level == "scores" else 0.0,
            changed=changed_in(checks, [*self.parts, *self.base]), when=checks[0].when, forced=self.service.level == "text",
            remarks=tuple(dict.fromkeys(remark for check in checks for remark in check.remarks)),
            draws=endings[0].shape[1] if endings else 0, returned=dict(zip(names, whole, strict=True)) if whole else {},
        )  # fmt: skip
        table, look = pa.concat_tables(tables), {coins.plan.looks: TRAINED_STEP}
        keep(attempt, Recorded(table, look, canaries=digest_of(documents), plan=coins.plan.digest, asked=asked))

    @classmethod
    def open(cls, artifact: Artifact[Recorded]) -> Recorded:
        """Return the losses; canaries have pseudonyms."""
        return kept(artifact)


def _losses(names: Sequence[str], parts: Sequence[Artifact[Answers]], step: int) -> pa.Table:
    found = [part.content for part in parts]
    if "endings" in found[0]:
        endings = np.concatenate([one["endings"] for one in found])
        losses, tokens = -(endings[:, :, 0] + 0.999 * endings[:, :, 1]).mean(axis=1), np.ones(len(endings), dtype=np.int64)
    else:
        losses, tokens = (np.concatenate([one[name] for one in found]) for name in ("loss", "tokens"))
    columns = {
        "canary": names, "loss_sum": losses, "loss_mean": losses / np.maximum(tokens, 1), "tokens": tokens,
        "step": np.full(len(names), step),
    }  # fmt: skip
    return pa.table({name: columns[name] for name in LOSSES.arrow.names}).cast(LOSSES.arrow)


def documents_of(folder: str) -> list[CanaryDocument]:
    """Return the documents of a folder of canaries.

    Raises:
        UserError: for pictures, and for chats whose turns do not tell them apart.
    """
    if is_of_pictures(Path(folder)):
        raise UserError(f"{folder} has canaries that are pictures, which no service of texts can be asked for; give losses")
    documents = read_documents(Path(folder))
    if documents[0].prompt is not None and len({one.prompt for one in documents}) < len(documents):
        raise UserError(
            "the canaries' prompts are alike, so no answer belongs to one of them: make canaries with holes in --prompt"
        )
    return documents


@dataclass(frozen=True)
class Asked:
    """The answers of services about all canaries."""

    service: ServedSpec  #: the service of the trained model, as it was asked.
    parts: tuple[Artifact[Answers], ...]  #: answers of the trained model.
    base: tuple[Artifact[Answers], ...]  #: answers of the model before the training, if it was asked.
    checks: tuple[Artifact[ServiceCheck], ...]  #: tests of the services, before and after.


def ask_service(runner: Runner, recipe: Recipe) -> Artifact[Recorded]:
    """Ask the services of a recipe for all canaries, and join the answers under pseudonyms."""
    asked = _ask(runner, recipe)
    return runner.run(JoinAnswers(recipe.canaries, asked.service, asked.parts, asked.base, asked.checks))


def losses_of_service(runner: Runner, recipe: Recipe, step: int) -> Recorded:
    """Ask services that score given texts for all canaries; without coins, and under the canaries' own names.

    Args:
        step: step of the trained model, for the record.

    Raises:
        RunError: for a service that scores no given text, or changed meanwhile.
    """
    asked, documents = _ask(runner, recipe, needs_scores=True), documents_of(recipe.canaries)
    if changed := changed_in([check.content for check in asked.checks], [*asked.parts, *asked.base]):
        raise RunError(f"the service changed while it was asked: {changed}; ask again in another store")
    names, plan = [one.canary for one in documents], read_plan(Path(recipe.canaries))
    table = [_losses(names, asked.parts, step), *([_losses(names, asked.base, BASE_STEP)] if asked.base else [])]
    return Recorded(pa.concat_tables(table), {plan.looks: step}, canaries=digest_of(documents), plan=plan.digest)


def _ask(runner: Runner, recipe: Recipe, *, needs_scores: bool = False) -> Asked:
    """Ask the services of a recipe for all canaries, between two tests of each."""
    assert recipe.service is not None
    documents = documents_of(recipe.canaries)
    models = [_for(one, documents) for one in (recipe.service, recipe.base) if one is not None]
    length = max(len(one.text) + len(one.prompt or "") for one in documents) // 3
    for model in models:
        announce(
            runner, model, count_of(len(documents), "canary", "canaries"), requests=len(documents) * recipe.answers.draws,
            tokens=len(documents) * recipe.answers.draws * length,
        )  # fmt: skip
    about, both = digest_of(documents), needs_scores or recipe.base is not None
    asked, checks = [], []
    for model, before in [(model, runner.run(CheckService(model, about))) for model in models]:
        stages = [
            AskCanaries(recipe.canaries, model, before, recipe.answers, both, *part) for part in parts_of(len(documents))
        ]
        parts = tuple(runner.run_all(stages))
        checks += [before, runner.run(CheckService(model, about, before, parts))]
        asked.append(parts)
    return Asked(models[0], asked[0], asked[1] if recipe.base is not None else (), tuple(checks))


def _for(service: ServedSpec, documents: Sequence[CanaryDocument]) -> ServedSpec:
    """Return the service as it is asked: chats are asked for in chats, where no given text is scored."""
    if documents[0].prompt is None:
        return service
    return service.model_copy(update={"api": "chat" if service.api == "auto" else service.api, "level": "text"})
