"""The recipe of a membership audit of documents."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from memlib.audits.membership.recipe import FEWEST_SHADOWS, ClaimSpec, Config, Recipe, ReportSpec, ShadowsSpec, TargetSpec
from memlib.specs import HoldOutSpec, HuggingFaceSpec, LanguageSpec, PretrainedSpec, ServedSpec, TextSpec
from memlib.specs.base import MOST_DRAWS, MOST_EXAMPLES, MOST_MODELS

DocumentAttack = Literal["ratio", "ez", "wbc", "min_k", "zlib", "loss", "lira", "lira_offline", "rmia", "rmia_offline"]
ATTACKS: tuple[DocumentAttack, ...] = ("ratio", "min_k", "zlib", "loss")
OF_TOKENS: tuple[DocumentAttack, ...] = ("ez", "wbc")  # compare tokens with the pretrained model's
OF_SHADOWS = ("lira", "lira_offline", "rmia", "rmia_offline")


AuditedLanguageSpec = Annotated[
    Annotated[LanguageSpec, Tag("language")]
    | Annotated[PretrainedSpec, Tag("huggingface")]
    | Annotated[ServedSpec, Tag("served")],
    Discriminator(
        lambda given: given.get("kind", "language") if isinstance(given, Mapping) else getattr(given, "kind", None),
        custom_error_type="model",
        custom_error_message="a model is a mapping, such as {architecture: gru}, or {kind: huggingface, path: ...}",
    ),
]


class DocumentsShadowsSpec(ShadowsSpec):
    """Shadow models: trained like the target, each on its own random part of the documents."""

    count: int = Field(default=8, ge=0, le=MOST_MODELS)
    """Number of shadow models; 0: none. A larger set contains every smaller one: only the additional models are trained."""


class DocumentsTargetSpec(TargetSpec):
    """The model under audit: by default memlib trains it, on documents that it draws by coins like those of the shadow
    models."""

    trained: Annotated[HuggingFaceSpec | ServedSpec, Field(discriminator="kind")] | None = None  # type: ignore[assignment]
    """An external model that was fine-tuned from `model`, with the same tokenizer: a folder, or behind a service."""
    members: str | None = None
    """For an external model: a CSV or Parquet file with columns example_id and member (yes or no), for every document that
    may be audited. Documents are numbered in the order of the source: document 00000000, document 00000001, ..."""

    @model_validator(mode="after")
    def _one_of_three(self) -> "DocumentsTargetSpec":
        if self.outputs is not None:
            raise ValueError("target.outputs is for classifiers; give target.trained, the folder of the fine-tuned model")
        if self.is_external != (self.members is not None):
            raise ValueError("members lists the training documents of an external model (trained): give both or neither")
        return self


class DocumentsConfig(Config):
    """Attacks, tests and intervals."""

    attacks: tuple[DocumentAttack, ...] = Field(default=ATTACKS, min_length=1)  # type: ignore[assignment]
    """Scores of a document's own tokens. ratio: mean log probability beyond that of the pretrained model or, without one,
    beyond its mean in shadow models that were not trained on the document; ez: gains beyond the pretrained model over losses,
    where the target's likeliest token is wrong (Ilic 2026); wbc: share of windows of tokens with a gain (Chen 2026); min_k:
    Min-K%++ (Zhang 2024); zlib: log probability relative to the compressed size (Carlini 2021); loss; lira and rmia as for
    classifiers, from the mean log probability, from four shadow models on: without them, their kind of memory is not bounded.
    With a pretrained model, ez and wbc are among the default."""
    headline: DocumentAttack = "ratio"  # type: ignore[assignment]
    """The attack whose numbers are at the top of the page. All attacks are tested, adjusted for their number."""
    lowest: float = Field(default=0.2, gt=0, le=1)
    """Share of a document's tokens that min_k takes: those that surprise the model most."""
    memorized: int = Field(default=0, ge=0, le=0)
    """Not for documents."""


class DocumentsReportSpec(ReportSpec):
    """Contents of the page."""

    added_later: ClassVar[frozenset[str]] = ReportSpec.added_later | {"documents"}

    documents: int = Field(default=0, ge=0, le=MOST_DRAWS)
    """Number of documents whose words are shown, shaded by how much more likely the target finds each than the pretrained
    model does: those with the highest scores. 0: none, so that the page quotes no text."""


class DocumentsRecipe(Recipe):
    """A membership audit of documents, from text to report."""

    reads_texts: ClassVar[bool] = True
    added_later: ClassVar[frozenset[str]] = Recipe.added_later | {"scored", "windows"}

    data: TextSpec  # type: ignore[assignment]
    """The documents: records of Parquet, JSON lines or mail; passages between blank lines of other text. Each is cut into
    windows that hold nothing else; `validation` and `hold_out` have no effect, as the coins decide which documents are held
    out."""
    shortest: int = Field(default=20, ge=2, le=MOST_EXAMPLES)
    """Smallest number of tokens (data.unit) of a document that are scored; shorter documents are left out."""
    scored: str | None = Field(default=None, min_length=1)
    """What is scored of a document: the first group of a regular expression, as in `(?s)### Response:\\n(.*)`, for a trainer
    that computes no loss on the rest (completions only, masked labels); null: all of it. Chats are text by then
    (data.source.template)."""
    windows: Literal["own", "packed"] = "own"
    """Windows in which an external model read a document. own: its own, one document after another in none; packed: all
    documents in the order of the source, joined and cut into windows, so that the end of earlier ones precedes it."""
    split: HoldOutSpec = HoldOutSpec()
    """Only `group`: documents that share a coin. Its pattern is searched in the documents' texts, as in
    `^From: .*?([\\w.+-]+@[\\w.-]+)` for the mails of a sender; its path names documents by their numbers. Copies always share
    a coin."""
    model: AuditedLanguageSpec = LanguageSpec()  # type: ignore[assignment]
    """The target's architecture, a language model that is trained from scratch; or, with kind huggingface, the pretrained
    model that is fine-tuned, to which `ratio` compares the target; or, with kind served, the same behind a service, for a
    target behind a service: texts of data.unit character are sent, in pieces of data.window characters."""
    target: DocumentsTargetSpec = DocumentsTargetSpec()
    shadows: DocumentsShadowsSpec = DocumentsShadowsSpec()
    score: DocumentsConfig = DocumentsConfig()
    report: DocumentsReportSpec = DocumentsReportSpec()
    privacy: ClaimSpec | None = None
    """A claim of differential privacy that is tested; its example is a document. memlib's own private training protects
    windows: a document of k windows has k times its epsilon."""

    @model_validator(mode="before")
    @classmethod
    def _compares_tokens(cls, data: Any) -> Any:
        """With a pretrained model, all attacks that it allows are made by default."""
        score, model = (data.get(name, {}) for name in ("score", "model")) if isinstance(data, dict) else (None, None)
        kind = model.get("kind") if isinstance(model, Mapping) else getattr(model, "kind", None)
        target = data.get("target") if isinstance(data, dict) else None
        trained = target.get("trained") if isinstance(target, Mapping) else getattr(target, "trained", None)
        served = (trained.get("kind") if isinstance(trained, Mapping) else getattr(trained, "kind", None)) == "served"
        if not isinstance(score, dict) or "attacks" in score:
            return data
        compared = kind in ("huggingface", "served")
        if not compared and not served:
            return data
        attacks = [*(["ratio", *OF_TOKENS] if compared else []), *([] if served else ["min_k"]), "zlib", "loss"]
        headline = {} if compared or "headline" in score else {"headline": "loss"}
        return {**data, "score": {**score, "attacks": attacks, **headline}}

    def _problems(self) -> Iterator[str]:
        yield from self._model_problems()
        yield from self._score_problems()
        yield from self._column_problems()
        yield from self._window_problems()
        if self.data.paired:
            yield "membership is of documents, not of pairs; use a source of text"
        if self.split.model_copy(update={"group": None}) != HoldOutSpec():
            yield "split may only have the key group, as documents have no classes; remove its other keys"
        if self.split.group is not None and self.split.group.near is not None:
            yield "split.group.near compares images; use split.group.pattern or path for documents"
        if self.target.is_external and not self.score.blind:
            yield "score.blind is false, but texts of other years or sources differ even without the model; leave it out"
        if self.queries.count > 1:
            yield "queries are for images; leave them out"
        if self.privacy is not None and self.coins != 0.5:
            yield (
                f"privacy needs an independent fair coin for each document or person; the target's were {self._chosen}; "
                "remove privacy, or set shadows.share to 0.5"
            )

    def _model_problems(self) -> Iterator[str]:
        training, is_pretrained = self.training, isinstance(self.model, PretrainedSpec)
        if isinstance(self.model, ServedSpec) and not self.is_served:
            yield "model is behind a service, but target.trained is not: name the folder of the pretrained model"
        if self.sends_texts:
            if self.data.unit != "character" or self.shadows.count or training is not None:
                yield (
                    "texts are sent to the service, so nothing is trained: set data.unit to character and shadows.count to "
                    "0, and leave training out"
                )
            return
        if self.is_served and self.shadows.count:
            yield "shadow models of a model behind a service would be trained here; set shadows.count to 0"
        if (self.data.unit == "token") != is_pretrained:
            yield "data.unit token and model.kind huggingface go together: the model's tokenizer makes the tokens"
        if isinstance(self.model, LanguageSpec) and self.model.architecture == "encoder_decoder":
            yield "encoder_decoder is for pairs; use another model.architecture"
        if self.target.is_external and not is_pretrained:
            yield "target.trained needs the model from which it was fine-tuned; set model to {kind: huggingface, path: ...}"
        if training is None and self.trains:
            yield "the recipe lacks training; without it, give target.trained and set shadows.count to 0"
        if training is not None and training.objective.kind != "language":
            yield f"training.objective {training.objective.kind} does not train a language model; use language"
        if training is not None and training.augment is not None:
            yield "training.augment is for images; set it to null for text"
        if training is not None and training.patience is not None:
            yield "training.patience needs held-out text, but every document may be a member; leave it out and set epochs"

    def _window_problems(self) -> Iterator[str]:
        if self.scored is not None:
            try:
                re.compile(self.scored)
            except re.error as error:
                yield f"scored is no regular expression ({error})"
            if self.data.unit == "word":
                yield "scored needs tokens or characters (data.unit)"
        if (self.windows == "packed" or self.scored is not None) and self.trains:
            yield (
                "scored and windows: packed are for a model that was trained elsewhere (target.trained, shadows.count 0); "
                "memlib trains on whole documents, each in its own windows"
            )
        if self.windows == "packed" and self.data.unit != "token":
            yield "windows: packed needs data.unit token, so that documents are joined as in training"

    def _score_problems(self) -> Iterator[str]:
        attacks, count = self.score.attacks, self.shadows.count
        if self.score.headline not in attacks:
            yield f"score.headline {self.score.headline} is not in score.attacks ({', '.join(attacks)}); add it"
        if self.score.self_influence:
            yield "score.self_influence is only for classifiers; leave it out"
        if "min_k" in attacks and self.is_served:
            yield ("min_k needs probabilities of the whole vocabulary, which no service gives: leave it out of score.attacks")
        if "ratio" in attacks and not count and not self.is_compared:
            yield "the attack ratio needs a pretrained model or shadow models; raise shadows.count, or leave ratio out"
        compared = [name for name in attacks if name in OF_TOKENS]
        if compared and not self.is_compared:
            yield f"the attack {compared[0]} compares tokens with a pretrained model's; leave it out of score.attacks"
        fitted = [name for name in attacks if name in OF_SHADOWS]
        if fitted and not self.has_laws:
            yield (
                f"the attack {fitted[0]} needs {FEWEST_SHADOWS} shadow models or more, but shadows.count is {count}; raise "
                f"shadows.count, or leave {fitted[0]} out of score.attacks"
            )

    @property
    def possible(self) -> tuple[str, ...]:
        """The attacks that the model and the shadow models allow."""
        compared = self.shadows.count > 0 or self.is_compared
        left = {*(() if compared else ("ratio",)), *(("min_k",) if self.is_served else ())}
        plain = [name for name in ATTACKS if name not in left]
        return (*plain, *(OF_TOKENS if self.is_compared else ()), *(OF_SHADOWS if self.has_laws else ()))

    @property
    def is_compared(self) -> bool:
        """True if the target is compared with the model before its training, token by token."""
        return isinstance(self.model, PretrainedSpec | ServedSpec)

    @property
    def is_served(self) -> bool:
        """True if the target is behind a service."""
        return isinstance(self.target.trained, ServedSpec)

    @property
    def sends_texts(self) -> bool:
        """True if a service is sent texts; otherwise it is sent the tokens of the pretrained model."""
        return self.is_served and not isinstance(self.model, PretrainedSpec)

    @property
    def has_laws(self) -> bool:
        """True if shadow models suffice for attacks that fit a law to them."""
        return self.shadows.count >= FEWEST_SHADOWS

    @property
    def trains(self) -> bool:
        """True if memlib trains any model."""
        return not self.target.is_external or self.shadows.count > 0
