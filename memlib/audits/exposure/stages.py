"""Stages of an exposure audit: corpus, scores and page (stages that query models are in `observing`)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.asked import row_of
from memlib.audits.exposure.models import CANARIES_FILE, HEADS_FILE, VOCABULARY, WORDS, CorpusData, StoredCorpus, SubjectModel
from memlib.audits.exposure.observing import Costs
from memlib.audits.exposure.ranks import ScoredModel, exact_ranks
from memlib.audits.exposure.recipe import Recipe
from memlib.audits.exposure.tables import DOCUMENTS, EXTRACTION, UNITS
from memlib.audits.last_stages import CURVES_FILE, SUMMARY_FILE, UNITS_FILE, PageStage, ScoresStage
from memlib.data.canaries.secret_key import keyed_digest, read_secret
from memlib.data.images.shards import WINDOWS
from memlib.data.splits import SPLITS_FILE
from memlib.data.stages import described_data
from memlib.data.text.corpus import Secret, build_corpus, read_secrets
from memlib.data.text.documents import build_documents, open_documents
from memlib.data.text.formats import Format
from memlib.data.text.pairs import build_pairs, embedded_pairs
from memlib.data.text.sources import open_text
from memlib.data.text.streams import Documents, Text
from memlib.errors import UserError
from memlib.findings import Finding
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact, Stage
from memlib.pipeline.tables import Tables
from memlib.specs import LanguageSpec, PretrainedSpec, SecretsSpec, ServedSpec, TextSpec
from memlib.specs.subject import TrainIt
from memlib.specs.text import GIVEN, RECURRING, UNSEEN
from memlib.store import Attempt
from memlib.tables import CANARIES, CURVES, SPLITS, SUMMARY, write_table, write_tables
from memlib.training.pretrained import Pretrained

if TYPE_CHECKING:
    import torch

    from memlib.observe.service_checks import ServiceCheck
    from memlib.report.page import Content

EXTRACTIONS_FILE, DOCUMENTS_FILE = "extractions.parquet", "documents.parquet"
DOCUMENTS_VERSION = 2  # of the part of the corpus stage that holds out and packs documents
GIVEN_VERSION = 2  # of the choice of given secrets that are compared with held-out ones


class Given(NamedTuple):
    """Secrets that people chose: those that the text contains, and unseen secrets of the same kind."""

    known: Sequence[Secret]
    unseen: Sequence[Secret]


@dataclass(frozen=True)
class MakeCorpus(Stage[StoredCorpus]):
    """Build the corpus: windows of text with canaries, the vocabulary, splits and the secret list of canaries.

    The key contains digests keyed with the user's secret, so that nobody without this secret can test candidates against it.
    """

    declared: ClassVar[Declared] = Declared("secret/corpus", 4)
    title: ClassVar[str] = "build corpus"

    text: TextSpec  #: text, canaries: specs of the text and the canaries.
    canaries: SecretsSpec
    #: whether the model saw another text, which contained every secret of canaries.file at least once.
    elsewhere: bool = False
    #: the pretrained model to fine-tune, whose tokenizer is used for the text; None without one.
    base: Artifact[Pretrained] | None = None

    @cached_property
    def _content(self) -> Text | Documents:
        if self.base is not None:
            return open_documents(self.text.source)
        text = open_text(self.text.source)
        return Text.of(embedded_pairs("".join(text.read()))) if self.text.source.kind == "topic_pairs" else text

    @cached_property
    def given(self) -> Given:
        """The secrets that the text contains, and unseen secrets of the same kind."""
        form = Format(self.canaries.format, self.canaries.alphabets)
        known = read_secrets(self.canaries.file, form, self.text.unit) if self.canaries.file is not None else []
        unseen = read_secrets(self.canaries.unseen, form, self.text.unit) if self.canaries.unseen is not None else []
        counted = [number for number, secret in enumerate(known, start=1) if secret.times is not None]
        if counted and not self.elsewhere:
            raise UserError(
                f"canaries.file gives a number of occurrences with secret {counted[0]} of {len(known)}; remove these "
                "numbers: only external models (trained) need them, otherwise memlib counts occurrences itself"
            )
        if self.elsewhere:
            known = [replace(secret, times=secret.times or 1) for secret in known]
        return Given(known, unseen)

    @property
    def spec(self) -> Mapping[str, Any]:
        """Text and canaries, without the known prefix and suffix and without files of secrets."""
        left_out = {"known_prefix", "known_suffix", "file", "unseen"}
        documents = {} if self.base is None else {"documents": DOCUMENTS_VERSION}
        canaries = self.canaries.model_dump(mode="json", exclude=left_out)
        given = {} if self.canaries.file is None or self.elsewhere else {"given": GIVEN_VERSION}
        return {"text": described_data(self.text), "canaries": canaries, **documents, **given}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Digest of the text, keyed digest of the given and unseen secrets, and key of the tokenizer."""
        content, secret, given = self._content.measured.digest, read_secret(), self.given
        tokenizer = {} if self.base is None else {"tokenizer": self.base.key}
        if not given.known:
            return {"text": content, "secret": keyed_digest(secret, "corpus"), **tokenizer}
        listed: list[Any] = [[list(chosen.choices), chosen.times] for chosen in given.known]
        listed += [["unseen", list(chosen.choices)] for chosen in given.unseen]
        # a text that contains secrets is itself secret, so its digest is keyed as well
        digests = {"text": keyed_digest(secret, content), "secret": keyed_digest(secret, listed)}
        return digests | tokenizer

    def preview(self) -> list[str]:
        """Describe the amount of text, and the parts of it that are left out."""
        unit = "documents" if isinstance(self._content, Documents) else "characters"
        return [f"{self._content.measured.length:,} {unit} of text", *map(_of_text, self._content.remarks())]

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write windows, vocabulary, splits and canaries."""
        content, secret, given, windows = self._content, read_secret(), self.given, attempt.path(WINDOWS)
        if isinstance(content, Documents):
            assert self.base is not None
            corpus = build_documents(
                content, self.text, self.canaries, self.base.content.tokenizer, windows,
                secret=secret, known=given.known, unseen=given.unseen,
            )  # fmt: skip
        elif self.text.paired:
            corpus = build_pairs("".join(content.read()), self.text, self.canaries, windows, secret=secret)
        else:
            corpus = build_corpus(
                content, self.text, self.canaries, windows, secret=secret, known=given.known, unseen=given.unseen,
                count_here=not self.elsewhere,
            )  # fmt: skip
        for text in (*_said_of_given(given, Counter(corpus.canaries["kind"].to_pylist())), *map(_of_text, content.remarks())):
            attempt.warn(text)
        attempt.path(VOCABULARY).write_text(json.dumps(corpus.vocabulary))
        if corpus.words:
            attempt.path(WORDS).write_text(json.dumps(corpus.words))
        write_tables(corpus.rows.tables(), SPLITS, attempt.path(SPLITS_FILE))
        write_table(corpus.canaries, CANARIES, attempt.path(CANARIES_FILE))
        if corpus.heads is not None:
            np.save(attempt.path(HEADS_FILE), corpus.heads)
        attempt.facts["num_windows"] = len(corpus.windows)

    @classmethod
    def open(cls, artifact: Artifact[StoredCorpus]) -> StoredCorpus:
        """Return access to windows, vocabulary, splits and canaries."""
        return StoredCorpus(artifact)

    @classmethod
    def described(cls, artifact: Artifact[StoredCorpus]) -> list[str]:
        """Describe the amount of text and the number of canaries of each kind."""
        corpus = artifact.content
        count, window = corpus.windows.shape
        kinds = Counter(corpus.canaries["kind"].to_pylist())
        canaries = ", ".join(f"{number:,} {kind}" for kind, number in kinds.items())
        tokens = f"{count * window:,} tokens in {count:,} windows of {window:,}, vocabulary of {len(corpus.symbols):,}"
        return [tokens, f"canaries: {canaries or 'none'}"]

    def missing(self, level: float) -> str:
        """Explain why no single given secret can be detected; return an empty string if one can be.

        Args:
            level: significance level over all given secrets.
        """
        given, unseen = len(self.given.known), len(self.given.unseen)
        needed = math.ceil(given / level) - 1
        if given and not unseen:
            return (
                "without canaries.unseen, only secrets that occur once are tested, among those of text that was held out at "
                "random (documents, or data.hold_out: blocks); to test all, list secrets of the same kind that the text does "
                "not contain in canaries.unseen"
            )
        if unseen < needed:
            return (
                f"{unseen} unseen secrets are too few to detect any one of the {given} given secrets; that takes {needed:,}"
            )
        return ""


def _of_text(remark: str) -> str:
    return f"text: {remark}"


def _said_of_given(given: Given, kinds: Mapping[str, int]) -> Iterator[str]:
    """Yield warnings about given secrets that are missing from the training text, and about those that are not tested."""
    known, absent = len(given.known), len(given.known) - kinds[GIVEN] - kinds[RECURRING]
    if absent:
        compared = kinds[UNSEEN] if not given.unseen else 0
        yield (
            f"{absent} of the {known} secrets of canaries.file do not occur in the text that models train on; {compared} of "
            "them occur once in held-out text that was drawn at random, and count as unseen"
        )
    if kinds[RECURRING]:
        yield (
            f"{kinds[RECURRING]} of the {known} secrets of canaries.file recur in the text, share a "
            "document or lie across two blocks, and are listed without a test; to test them, list secrets of the same kind "
            "in canaries.unseen"
        )


@dataclass(frozen=True)
class Score(ScoresStage):
    """Compute exposures by canary, model and checkpoint; also write extractions.parquet and documents.parquet."""

    declared: ClassVar[Declared] = Declared("score_exposure", 14)
    title: ClassVar[str] = "score exposure"

    recipe: Recipe  #: variants, method, level.
    models: Sequence[ScoredModel]  #: the models under audit at their checkpoints.
    costs: Sequence[Artifact[Costs]]  #: costs of each model.
    counts: Sequence[Artifact[NDArray[np.int64]]]  #: counts of each part of `rank_stages`.
    laws: Mapping[int, Artifact[float]]  #: goodness of fit of each of `law_stages`, by position of the model.
    searches: Sequence[Artifact[pa.Table]]  #: results of the searches for canaries.
    documents: Sequence[Artifact[pa.Table]]  #: results of the extraction of documents.
    checks: Sequence[Artifact[ServiceCheck]] = field(default=(), kw_only=True)  #: tests of a service, before and after.
    #: asked, answers: what was asked between them, for costs and for an extraction, in which it is.
    asked: Sequence[AnyArtifact] = field(default=(), kw_only=True)
    answers: Sequence[AnyArtifact] = field(default=(), kw_only=True)

    @property
    def spec(self) -> Mapping[str, Any]:
        """Scoring settings, and the canaries that each model scored."""
        recipe = self.recipe
        return {
            "config": recipe.score.model_dump(mode="json", exclude={"cache_gb"}),
            "report": recipe.report.model_dump(mode="json"),
            "together": recipe.canaries.together,
            **self._documents_spec,
            "models": [[m.variant, m.seed, m.at.epoch, list(m.canaries), list(m.insertions)] for m in self.models],
        }

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Costs, counts, fits, searches and documents."""
        documents = {"documents": [one.key for one in self.documents]} if self.documents else {}
        laws = {"laws": [[number, law.key] for number, law in self.laws.items()]} if self.laws else {}
        of_models: dict[str, Sequence[AnyArtifact]]
        of_models = {"costs": self.costs, "counts": self.counts, "searches": self.searches}
        checks = {"checks": [check.key for check in self.checks]} if self.checks else {}
        return documents | laws | checks | {name: [one.key for one in artifacts] for name, artifacts in of_models.items()}

    @property
    def _documents_spec(self) -> dict[str, Any]:
        how = self.recipe.discoverable
        return {} if how is None else {"documents": how.model_dump(mode="json")}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write units, extractions, documents, curves and summary."""
        from memlib.audits.exposure.curves import curves
        from memlib.audits.exposure.findings import summarize
        from memlib.audits.exposure.scores import Scored, score

        recipe, size = self.recipe, self.models[0].at.data.space.size
        exact = exact_ranks(self.models, self.costs, self.counts)
        scored = []
        for number, (model, costs) in enumerate(zip(self.models, self.costs, strict=True)):
            values = costs.content
            unit = (model.variant, model.seed, model.at.epoch, model.canaries, model.kinds, model.insertions)
            fit_p = self.laws[number].content if number in self.laws else None
            seen = (values.canaries, values.references, values.validation_loss, exact[number])
            scored.append(Scored(*unit, *seen, _privacy(model.at), fit_p))
        units = score(scored, size, recipe.score)
        extractions = pa.concat_tables([EXTRACTION.arrow.empty_table(), *(search.content for search in self.searches)])
        write_table(units, UNITS, attempt.path(UNITS_FILE))
        write_table(extractions, EXTRACTION, attempt.path(EXTRACTIONS_FILE))
        documents = pa.concat_tables([DOCUMENTS.arrow.empty_table(), *(one.content for one in self.documents)])
        write_table(documents, DOCUMENTS, attempt.path(DOCUMENTS_FILE))
        summary = summarize(scored, units, extractions, recipe, size=size, documents=documents, service=self._service())
        write_table(summary, SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(curves(scored, units, extractions, recipe), CURVES, attempt.path(CURVES_FILE))

    def _service(self) -> Finding | None:
        """Return what was asked of a service; None of a model at hand."""
        trained, checks = self.recipe.trained, [check.content for check in self.checks]
        if not checks:
            return None
        assert isinstance(trained, ServedSpec)
        answers = {name: np.concatenate([part.content[name] for part in self.asked]) for name in ("loss", "tokens")}
        spread = float(np.std(answers["loss"] / np.maximum(1, answers["tokens"])))
        return row_of(trained, checks, [*self.asked, *self.answers], spread=spread, n=len(answers["loss"]))


def _privacy(at: SubjectModel) -> dict[str, Any] | None:
    """Return the privacy budget that private training had spent at a checkpoint; None at epoch 0 or without privacy."""
    budget = None if at.model is None else at.model.facts.get("privacy")
    if budget is None or at.epoch == 0:
        return None
    epsilon = budget["epsilons"][math.ceil(at.epoch) - 1]
    loose = {} if budget.get("tight", True) else {"tight": False}
    return {name: budget[name] for name in ("delta", "noise", "accountant")} | {"epsilon": epsilon} | loose


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the page of an exposure audit."""

    declared: ClassVar[Declared] = Declared("report", 15)
    title: ClassVar[str] = "report exposure"

    recipe: Recipe
    run: str
    scores: Artifact[Tables]
    data: CorpusData

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The scores."""
        return {"scores": self.scores.key}

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """The corpus."""
        return (self.data.corpus,)

    def compose(self, attempt: Attempt) -> Content:
        """Draw the figures and return the content of the page."""
        from memlib.audits.exposure.report import compose

        tables = {name: self.scores.content[name] for name in ("units", "extractions", "documents", "summary", "curves")}
        return compose(self.recipe, tables, _facts(self.recipe, self.data), attempt.path("figures"))


def _described(model: LanguageSpec | PretrainedSpec) -> str:
    if isinstance(model, PretrainedSpec):
        lora = model.lora
        merged = "" if model.adapter is None else f" with the adapter {model.adapter}"
        return f"{model.path}{merged}, " + (
            "all weights train" if lora is None else f"adapters of rank {lora.rank} train (scale {lora.alpha:g}/{lora.rank})"
        )
    return ", ".join(f"{k} {v}" for k, v in model.model_dump(mode="json").items() if k != "kind")


def _facts(recipe: Recipe, data: CorpusData) -> Mapping[str, str]:
    training, windows = recipe.training, data.corpus.facts["num_windows"]
    match recipe.subject:
        case TrainIt(model, training):
            how = {
                "model": _described(model),
                "training": f"{training.epochs} epochs, batch {training.batch_size or 'all'}, {recipe.seeds} seeds",
                "optimizer": ", ".join(f"{k} {v}" for k, v in training.optimizer.model_dump(mode="json").items()),
            }
        case trained:
            said = (
                trained.identity if isinstance(trained, ServedSpec) else trained.model_dump(mode="json", exclude={"options"})
            ).items()
            how = {"model": ", ".join(f"{name} {value}" for name, value in said if value not in (None, [], {}))}
    return {
        "text": f"{recipe.data.source.kind}, {windows} windows of {recipe.data.window} {recipe.data.unit}s, "
        f"{len(data.corpus.content.symbols):,} symbols",
        "canaries": f"format {recipe.canaries.format!r}, {data.space.bits:.1f} bits; "
        + (
            f"secrets contained in the text, {data.table['kind'].to_pylist().count(UNSEEN)} unseen secrets of the same kind"
            if recipe.canaries.file is not None
            else "all in one model"
            if recipe.canaries.together
            else "each in a separate model"
        ),
        "known": " and ".join(name for name in ("prefix", "suffix") if getattr(recipe.canaries, f"known_{name}"))
        or "neither prefix nor suffix",
        **how,
        "scoring": f"method {recipe.score.method}, {recipe.score.references} references, {recipe.score.precision}",
    }
