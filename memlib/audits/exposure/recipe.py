"""The recipe of an exposure audit."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.data.text.formats import HOLE, Format
from memlib.specs import (
    AnyLanguageSpec,
    HuggingFaceSpec,
    LanguageSpec,
    PretrainedSpec,
    ProtocolSpec,
    SecretsSpec,
    ServedSpec,
    Spec,
    TextSpec,
    TrainingSpec,
    changed,
)
from memlib.specs.base import MOST_DRAWS, MOST_NUMBER, MOST_PIXELS, MOST_SEED, MOST_TRAINED
from memlib.specs.level import LevelSpec
from memlib.specs.question import PageSpec
from memlib.specs.subject import TrainIt

HEADLINE, DOCUMENTS, PRIVACY, CANARIES = "headline", "documents", "privacy", "canaries"  # families
VARIANTS, OVERTRAINING = "variants", "overtraining"
HEADLINES = (HEADLINE, DOCUMENTS, PRIVACY)
NOT_SHOWN = (
    "How exposed secrets of another format are, or the same secrets in another place or inserted more or less often.",
    "That a secret is safe because a search did not find it: another search, or a longer one, may find it.",
    "What people can learn from generated text alone: the audit uses the likelihoods of texts. Where a greedy search "
    "extracted a secret, generated text may reveal it, too.",
    "Other models: the verdict is about these trained models. Other canaries, another seed or another text give other "
    "results.",
)
UNSANITIZED, SANITIZED = "unsanitized", "sanitized"  # variants
Method = Literal["auto", "pruned", "enumerated", "sampled", "extrapolated"]


class Config(LevelSpec):
    """Scoring of candidates."""

    added_later: ClassVar[frozenset[str]] = frozenset({"looks", "cache_gb", "equal_loss"})

    method: Method = "auto"
    """pruned: exact rank, by visiting only prefixes that cost no more than the canary; enumerated: exact rank, by visiting
    all prefixes; sampled: from random references; extrapolated: from a skew-normal distribution fitted to the references.
    auto: enumerated in small spaces; sampled if enough references lie below the canary; else pruned if max_evaluations
    suffice; else extrapolated if the distribution fits the references; else sampled, which then gives a lower bound. No test
    rests on an extrapolation."""
    references: int = Field(default=10_000, ge=100, le=MOST_DRAWS)
    """Number of random candidates for sampling and extrapolation."""
    max_evaluations: int = Field(default=2_000_000, ge=1, le=MOST_DRAWS)
    """Largest number of prefixes that a pruned rank may evaluate."""
    enumerate_up_to: int = Field(default=1_000_000, ge=1, le=MOST_DRAWS)
    """auto: size of the largest space that is enumerated."""
    shards: int = Field(default=10, ge=1, le=MOST_TRAINED)
    """Smallest number of parts of an enumeration; each part is committed separately."""
    replicates: int = Field(default=100, ge=20, le=MOST_DRAWS)
    """Number of parametric-bootstrap replicates for the goodness of fit of the extrapolation."""
    precision: Literal["float64", "float32"] = "float64"
    """Precision in which the model is evaluated; float32 is faster but may reorder near ties."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Level of the headline families together (all canaries, documents, claims of privacy), and of each other family (Holm
    1979)."""
    bound: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Acceptable exposure in bits. If nothing is found, the verdict is "bounded" provided that the 95 % upper bound of every
    canary lies below this value; null: no such claim is made."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the references, the bootstrap and the permutations."""
    equal_loss: bool = False
    """Compare variants at equal utility as well: each training at its first checkpoint (training.checkpoint_epochs) whose
    validation loss is as low as the loss that all trainings reach (Carlini 2019, A.2)."""
    cache_gb: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Gigabytes of memory for cached states of prefixes; states that do not fit are recomputed. This does not affect
    results."""


class ExtractionSpec(Spec):
    """Search for inserted canaries."""

    added_later: ClassVar[frozenset[str]] = frozenset({"answers"})

    known: tuple[Annotated[int, Field(ge=0, le=MOST_PIXELS)], ...] = (0,)
    """Numbers of symbols, counted from the start of the secret, that are given to the search; one search per number."""
    top: int = Field(default=1, ge=1, le=MOST_DRAWS)
    """Number of candidates to find before the search ends; raised to the number of canaries that share the search."""
    beam: int | None = Field(default=10, ge=2, le=MOST_DRAWS)
    """Width of an additional beam search; a greedy search is run as well. null: neither."""
    batch: int = Field(default=256, ge=1, le=MOST_DRAWS)
    """Number of prefixes expanded per model call."""
    max_evaluations: int = Field(default=1_000_000, ge=1, le=MOST_DRAWS)
    """Number of evaluated prefixes after which a search is abandoned."""
    max_seconds: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Seconds after which a search is abandoned; its frontier is kept."""
    answers: int = Field(default=0, ge=0, le=MOST_DRAWS)
    """Of a model behind a service, which no search can follow: number of answers, at temperature 1, to the text before the
    secrets. A secret is extracted if one of them begins with it."""


class DiscoverableSpec(Spec):
    """Discoverable extraction (Hayes 2024): how many tries it takes to continue a document from its known beginning.

    Documents of the training text are compared with documents that were held out at random.
    """

    documents: int = Field(default=200, ge=2, le=MOST_DRAWS)
    """Number of documents per side (trained on, held out), drawn at random; fewer if not enough documents are long enough."""
    prefix: int = Field(default=16, ge=1, le=MOST_PIXELS)
    """Number of known tokens at the beginning of a document."""
    suffix: int = Field(default=16, ge=1, le=MOST_PIXELS)
    """Number of tokens after the prefix that are to be reproduced; prefix and suffix lie in one window."""
    temperature: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Sampling temperature, which divides the logits."""
    top_k: int | None = Field(default=40, ge=1, le=MOST_DRAWS)
    """Sample only from this number of likeliest tokens; null: from all."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample only from the likeliest tokens that together have this probability; null: from all."""
    tries: tuple[Annotated[int, Field(ge=1, le=MOST_DRAWS)], ...] = Field(default=(1, 100, 10_000), min_length=1)
    """n of (n, p)-discoverable: numbers of continuations that are sampled."""
    probability: float = Field(default=0.5, gt=0, lt=1)
    """p of (n, p)-discoverable: probability with which the suffix must be among the n continuations."""
    samples: int = Field(default=0, ge=0, le=MOST_DRAWS)
    """Number of continuations sampled per document, to count those that come near its suffix; 0: no sampling."""
    near: float = Field(default=0.1, ge=0, lt=1)
    """Largest number of tokens inserted, deleted or replaced in a near continuation, as a share of the suffix."""


class SanitizeSpec(Spec):
    """Removal of the windows about which two models, each trained on half of the text, disagree most (Carlini 2019, 9.2)."""

    share: float = Field(default=0.1, gt=0, lt=1)
    """Share of the training windows to remove: those whose losses under the two models differ most."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the division into halves."""


class ReportSpec(PageSpec):
    """Contents of the page."""

    histogram_bins: int = Field(default=60, ge=10, le=MOST_DRAWS)
    """Number of bars in the histogram of the references' log-perplexities."""


AuditedSequenceSpec = Annotated[HuggingFaceSpec | ProtocolSpec | ServedSpec, Field(discriminator="kind")]


class Recipe(Spec):
    """An exposure audit from text to report."""

    added_later: ClassVar[frozenset[str]] = frozenset({"discoverable", "sanitize"})

    audit: Literal["exposure"] = "exposure"
    title: str = "Exposure audit"
    """Heading of the report."""
    data: TextSpec
    canaries: SecretsSpec = SecretsSpec()
    model: AnyLanguageSpec = LanguageSpec()
    """A language model to train from scratch; or, with kind huggingface, a pretrained model from a folder to fine-tune."""
    training: TrainingSpec | None = None
    """Training of the model. checkpoint_epochs, checkpoint_steps: epochs and steps at which exposure is measured as well;
    patience: early stopping, with the weights of the lowest validation loss."""
    trained: AuditedSequenceSpec | None = None
    """An external model, instead of model and training, in a folder, in code of yours or behind a service; canaries.file
    lists the secrets that it saw. Its loss is measured on the text (data)."""
    quantize: bool = False
    """Quantize each tensor of trained weights to 256 values before the model is queried (Carlini 2019, 9.1)."""
    seeds: int = Field(default=1, ge=1, le=MOST_TRAINED)
    """Number of training runs of each model, each from a different seed."""
    variants: Mapping[str, dict[str, Any]] = Field(default_factory=dict)
    """Named changes to model, training, quantize, canaries.known_prefix and canaries.known_suffix, audited with the same
    corpus and canaries; keys may be dotted."""
    score: Config = Config()
    extraction: ExtractionSpec | None = ExtractionSpec()
    """Search for the canaries; null: no search."""
    discoverable: DiscoverableSpec | None = None
    """Extraction of documents from fine-tuned models; null: no extraction."""
    sanitize: SanitizeSpec | None = None
    """Also train on the text without the windows about which two models disagree most, and compare both trainings (instead of
    variants); null: no such comparison."""
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        match self.subject:
            case TrainIt() as subject:
                self._check_training(subject.training)
            case trained:
                self._check_trained(trained)
        if self.data.unit == "character":
            self._check_alphabets()
        self._check_words()
        return self

    def _check_alphabets(self) -> None:
        """Refuse symbols of several characters, which a text of single characters never contains."""
        for name, symbols in self.canaries.alphabets.items():
            long = [symbol for symbol in symbols if len(symbol) > 1]
            if long:
                raise ValueError(
                    f"canaries.alphabets.{name} contains {long[0]!r}, but data.unit is character: give single characters, or "
                    "set data.unit to word"
                )

    def _check_words(self) -> None:
        canaries = self.canaries
        if not Format(canaries.format, canaries.alphabets).has_words:
            if canaries.words is not None:
                raise ValueError(
                    f"canaries.words is the number of words drawn for {{w}}, but canaries.format is {canaries.format!r}, "
                    "without {w}; leave canaries.words out"
                )
        elif self.data.unit == "token" or self.data.paired or self.trained is not None or canaries.file is not None:
            raise ValueError(
                "memlib draws words for {w} in canaries.format only from a text of characters or words, for canaries that it "
                "inserts; otherwise list the words in canaries.alphabets.w"
            )

    @property
    def subject(self) -> TrainIt[LanguageSpec | PretrainedSpec] | AuditedSequenceSpec:
        """The subject of the audit: models that memlib trains, or one external model."""
        if self.training is not None and self.trained is None:
            return TrainIt(self.model, self.training)
        if self.trained is None or self.training is not None:
            raise ValueError(
                f"give one of training and trained (an external model), not {'both' if self.trained else 'neither'}"
            )
        return self.trained

    def _check_sanitize(self) -> None:
        if self.variants or self.data.unit == "token" or self.data.paired or self.canaries.file is not None:
            raise ValueError("sanitize needs a text of characters or words, inserted canaries, and no variants")
        if not self.canaries.together:
            raise ValueError("sanitize needs models that see all canaries: set canaries.together to true")

    def _check_pairs(self) -> None:
        if self.canaries.source is None or self.canaries.file is not None or self.trained is not None:
            raise ValueError(
                "data of pairs needs canaries that memlib inserts: give canaries.source, and no canaries.file or trained"
            )
        models = [cell.model for cell in self.cells.values()]
        if any(isinstance(model, PretrainedSpec) or model.architecture != "encoder_decoder" for model in models):
            raise ValueError("data of pairs needs model.architecture encoder_decoder")
        if HOLE.search(self.canaries.source) and (self.extraction is not None or self.score.method == "pruned"):
            raise ValueError(
                f"canaries.source {self.canaries.source!r} contains the secret, so there is nothing to search for: set "
                "extraction to null, and score.method to auto, enumerated, sampled or extrapolated"
            )

    def _check_documents(self, how: DiscoverableSpec) -> None:
        if self.data.unit != "token":
            raise ValueError(
                f"data.unit is {self.data.unit}, but discoverable needs documents that were held out at random; use token"
            )
        if how.prefix + how.suffix > self.data.window:
            raise ValueError(
                f"discoverable needs {how.prefix} + {how.suffix} tokens in one window, but data.window is "
                f"{self.data.window}; raise it, or lower discoverable.prefix or suffix"
            )

    def _check_trained(self, trained: AuditedSequenceSpec) -> None:
        if self.data.paired or self.canaries.source is not None:
            raise ValueError("pairs are for models that memlib trains: leave out canaries.source, and use plain text as data")
        if self.canaries.file is None:
            raise ValueError("an external model was trained on another text: list its secrets in canaries.file")
        if self.discoverable is not None:
            raise ValueError("discoverable is for models that memlib fine-tunes; leave it out")
        if self.variants or self.seeds > 1 or self.quantize:
            raise ValueError("variants, seeds and quantize are for models that memlib trains; leave them out")
        if self.sanitize is not None:
            raise ValueError(
                "sanitize trains models on a sanitized text, but an external model is already trained; leave it out"
            )
        if self.score.equal_loss:
            raise ValueError("score.equal_loss compares variants of a training; leave it out for an external model")
        if self.data.unit == "token":
            raise ValueError("data.unit token is for models that memlib fine-tunes (model.kind huggingface); use character")
        if trained.kind != "import" and self.data.unit != "character":
            raise ValueError(f"data.unit is {self.data.unit}, but a model with a tokenizer needs character")
        if isinstance(trained, ServedSpec):
            if self.score.method not in ("sampled", "extrapolated"):
                raise ValueError(f"score.method {self.score.method} needs a model at hand; of a service, say sampled")
            if self.extraction is not None and (not self.extraction.answers or self.extraction.known != (0,)):
                raise ValueError(
                    "a search needs probabilities of all next symbols, which no service gives: set extraction to null, or to "
                    "{answers: 100}, without known"
                )
            begins = HOLE.match(self.canaries.format) is not None  # with the secret itself
            if self.extraction is not None and (begins or not self.canaries.known_prefix):
                raise ValueError("extraction.answers needs text before the secret: give canaries.format and known_prefix")

    def _check_training(self, training: TrainingSpec) -> None:
        if training.objective.kind != "language":
            raise ValueError(f"training.objective {training.objective.kind} does not train a language model; use language")
        if training.augment is not None:
            raise ValueError("training.augment is for images; set it to null for text")
        if self.data.paired:
            self._check_pairs()
        elif self.canaries.source is not None or getattr(self.model, "architecture", "") == "encoder_decoder":
            raise ValueError("canaries.source and encoder_decoder need pairs: set data.source.kind to pairs or topic_pairs")
        if (self.data.unit == "token") != isinstance(self.model, PretrainedSpec):
            raise ValueError("data.unit token and model.kind huggingface go together: the model's tokenizer makes the tokens")
        if self.discoverable is not None:
            self._check_documents(self.discoverable)
        if self.data.unit == "token" and self.data.vocabulary is not None:
            raise ValueError("the tokenizer determines the tokens: leave out data.vocabulary")
        if self.score.equal_loss and not (self.variants and all(c.has_checkpoints for c in self.cells.values())):
            raise ValueError(
                "score.equal_loss compares variants at checkpoints: give variants and training.checkpoint_epochs"
            )
        if self.sanitize is not None:
            self._check_sanitize()
        for name in self.variants:
            recipe = self.cells[name]
            if any(getattr(recipe.model, key, None) != getattr(self.model, key, None) for key in ("path", "adapter")):
                raise ValueError(
                    f"variant {name!r} fine-tunes another model; all variants need the same model.path and model.adapter"
                )
            if recipe._shared != self._plain._shared:
                raise ValueError(
                    f"variant {name!r} changes other settings than model, training, quantize, canaries.known_prefix and "
                    "canaries.known_suffix; change those for all variants"
                )

    @property
    def has_checkpoints(self) -> bool:
        """True if exposure is measured before the end of training, too."""
        return self.training is not None and bool(self.training.checkpoint_epochs or self.training.checkpoint_steps)

    @property
    def selected(self) -> str | None:
        """The variant whose canaries are those that `sanitize` left, not a random draw; None without `sanitize`."""
        return None if self.sanitize is None else SANITIZED

    @property
    def _shared(self) -> dict[str, Any]:
        """The settings that all variants have in common."""
        known = {"known_prefix", "known_suffix"}
        return self.model_dump(
            exclude={"model": True, "training": True, "quantize": True, "variants": True, "canaries": known}
        )

    @property
    def _plain(self) -> "Recipe":
        """The recipe without variants, and without their comparison at equal loss."""
        return self.model_copy(update={"variants": {}, "score": self.score.model_copy(update={"equal_loss": False})})

    @property
    def cells(self) -> dict[str, "Recipe"]:
        """The recipe of each variant, by name; the whole recipe under an empty name if there are no variants.

        With `sanitize`, the variants are the text as it is and the sanitized text.
        """
        if self.sanitize is not None:
            return {UNSANITIZED: self.model_copy(update={"sanitize": None}), SANITIZED: self}
        return {name: changed(self._plain, change) for name, change in self.variants.items()} or {"": self}
