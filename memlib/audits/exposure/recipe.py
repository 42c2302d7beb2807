"""The recipe of an exposure audit."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.data.formats import HOLE
from memlib.specs import (
    AnyLanguageSpec,
    LanguageSpec,
    PretrainedSpec,
    SecretsSpec,
    SequenceModelSpec,
    Spec,
    TextSpec,
    TrainingSpec,
    changed,
)
from memlib.specs.limits import MOST_DRAWS, MOST_MODELS, MOST_NUMBER, MOST_PIXELS, MOST_SEED
from memlib.specs.subject import TrainIt

Method = Literal["auto", "pruned", "enumerated", "sampled", "extrapolated"]


class Config(Spec):
    """How candidates are scored."""

    added_later: ClassVar[frozenset[str]] = frozenset({"cache_gb"})

    method: Method = "auto"
    """pruned: the exact rank by walking only prefixes that cost no more than the canary; enumerated: by walking all;
    sampled: from random references; extrapolated: from their skew-normal law. auto: enumerated in small spaces,
    sampled where enough references lie below, else pruned as far as the work allows, else extrapolated where the law fits
    the references, else sampled, whose lower bound then says how much at least. No test rests on an extrapolation."""
    references: int = Field(default=10_000, ge=100, le=MOST_DRAWS)
    """Random candidates for sampling and extrapolation."""
    max_evaluations: int = Field(default=2_000_000, ge=1, le=MOST_DRAWS)
    """Prefixes that a pruned rank may evaluate."""
    enumerate_up_to: int = Field(default=1_000_000, ge=1, le=MOST_DRAWS)
    """auto: the largest space that is enumerated."""
    shards: int = Field(default=10, ge=1, le=MOST_MODELS)
    """Parts of an enumeration, each committed by itself."""
    replicates: int = Field(default=100, ge=20, le=MOST_DRAWS)
    """Parametric-bootstrap replicates of the extrapolation."""
    precision: Literal["float64", "float32"] = "float64"
    """Of the model's evaluation; float32 is faster, and may move near ties."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Level of every family of tests of the run (Holm 1979)."""
    bound: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Bits of exposure that would be acceptable. Where nothing is found, the verdict is "bounded" if the 95 % upper bound of
    every canary lies below it; null: no such claim is made."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Of references and bootstrap."""
    cache_gb: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Gigabytes of memory that an asked model may keep of prefixes; what does not fit is made again. Changes no result."""


class ExtractionSpec(Spec):
    """The search for inserted canaries."""

    known: tuple[Annotated[int, Field(ge=0, le=MOST_PIXELS)], ...] = (0,)
    """How many symbols of the holes the search is told, from the first."""
    top: int = Field(default=1, ge=1, le=MOST_DRAWS)
    """Candidates to find before the search ends; at least as many as the model saw canaries."""
    beam: int | None = Field(default=10, ge=2, le=MOST_DRAWS)
    """Width of the beam search beside it, with greedy search; null: neither."""
    batch: int = Field(default=256, ge=1, le=MOST_DRAWS)
    """Prefixes expanded in one model call."""
    max_evaluations: int = Field(default=1_000_000, ge=1, le=MOST_DRAWS)
    """Prefixes after which a search is given up."""
    max_seconds: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Seconds after which a search is given up; its frontier is kept."""


class DiscoverableSpec(Spec):
    """Documents of the text itself, of which a beginning is known (Hayes 2024): how many tries bring out how they go on.

    Documents that were trained on are compared with others that were held out at random.
    """

    documents: int = Field(default=200, ge=2, le=MOST_DRAWS)
    """Documents of either side, drawn at random; fewer where fewer are long enough."""
    prefix: int = Field(default=16, ge=1, le=MOST_PIXELS)
    """Tokens from the beginning of a document that are known."""
    suffix: int = Field(default=16, ge=1, le=MOST_PIXELS)
    """Tokens after them that are to come out; both together stand in one window."""
    temperature: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Of sampling: divides the scores."""
    top_k: int | None = Field(default=40, ge=1, le=MOST_DRAWS)
    """Only so many likeliest tokens are drawn; null: all."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Only the likeliest tokens are drawn that have this share of the probability together; null: all."""
    tries: tuple[Annotated[int, Field(ge=1, le=MOST_DRAWS)], ...] = Field(default=(1, 100, 10_000), min_length=1)
    """n of (n, p): continuations that one draws."""
    probability: float = Field(default=0.5, gt=0, lt=1)
    """p of (n, p): the probability that the suffix is among them."""
    samples: int = Field(default=0, ge=0, le=MOST_DRAWS)
    """Continuations that are drawn of each document, to count those that come near its suffix; 0: none."""
    near: float = Field(default=0.1, ge=0, lt=1)
    """Tokens that may be put in, taken out or replaced in such a one, as a share of the suffix."""


class ReportSpec(Spec):
    """What the page shows."""

    histogram_bins: int = Field(default=60, ge=10, le=MOST_DRAWS)
    """Bars of the histogram of the references' log-perplexities."""


class Recipe(Spec):
    """An exposure audit from text to report."""

    added_later: ClassVar[frozenset[str]] = frozenset({"discoverable"})

    audit: Literal["exposure"] = "exposure"
    title: str = "Exposure audit"
    """Heading of the report."""
    data: TextSpec
    canaries: SecretsSpec = SecretsSpec()
    model: AnyLanguageSpec = LanguageSpec()
    """A model of the project's own; or kind huggingface, a model from a folder that is fine-tuned."""
    training: TrainingSpec | None = None
    """checkpoint_epochs, checkpoint_steps: exposure is also measured there; patience: stop at the lowest validation loss."""
    trained: SequenceModelSpec | None = None
    """Instead of model and training: a model that was trained elsewhere; canaries.file names the secrets that it saw. The
    text (data) is what its loss is shown for."""
    quantize: bool = False
    """Force each tensor of trained weights to 256 values before anything is asked (Carlini 2019, 9.1)."""
    seeds: int = Field(default=1, ge=1, le=MOST_MODELS)
    """Trainings of every model, each from a seed of its own."""
    variants: Mapping[str, dict[str, Any]] = Field(default_factory=dict)
    """Named changes of model, training, quantize, canaries.known_prefix and canaries.known_suffix, audited with the same
    corpus and canaries; keys may be dotted."""
    score: Config = Config()
    extraction: ExtractionSpec | None = ExtractionSpec()
    """null: no search."""
    discoverable: DiscoverableSpec | None = None
    """null: no documents of the text are asked for; of models that are fine-tuned."""
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        match self.subject:
            case TrainIt() as subject:
                self._check_training(subject.training)
            case trained:
                self._check_trained(trained)
        return self

    @property
    def subject(self) -> TrainIt[LanguageSpec | PretrainedSpec] | SequenceModelSpec:
        """Who is audited: models that are trained here, or one that was trained elsewhere."""
        if self.training is not None and self.trained is None:
            return TrainIt(self.model, self.training)
        if self.trained is None or self.training is not None:
            raise ValueError("an exposure audit needs either training or trained, a model that was trained elsewhere")
        return self.trained

    def _check_pairs(self) -> None:
        if self.canaries.source is None or self.canaries.file is not None or self.trained is not None:
            raise ValueError("pairs are for canaries that are inserted here: give canaries.source, and no file or trained")
        models = [cell.model for cell in self.cells.values()]
        if any(isinstance(model, PretrainedSpec) or model.architecture != "encoder_decoder" for model in models):
            raise ValueError("pairs need model.architecture encoder_decoder")
        if HOLE.search(self.canaries.source) and (self.extraction is not None or self.score.method == "pruned"):
            raise ValueError(
                "a source that holds the secret (holes in canaries.source) leaves nothing to search: set extraction to null, "
                "and score.method to auto, enumerated, sampled or extrapolated"
            )

    def _check_documents(self, how: DiscoverableSpec) -> None:
        if self.data.unit != "token":
            raise ValueError("discoverable asks for documents, which are held out at random with data.unit token alone")
        if how.prefix + how.suffix > self.data.window:
            raise ValueError(
                f"discoverable asks for {how.prefix} + {how.suffix} tokens of a document; data.window is {self.data.window}"
            )

    def _check_trained(self, trained: SequenceModelSpec) -> None:
        if self.data.paired or self.canaries.source is not None:
            raise ValueError(
                "pairs are for models that are trained here: leave out canaries.source, and give data plain text"
            )
        if self.canaries.file is None:
            raise ValueError("a model that was trained elsewhere saw its own text: name its secrets by canaries.file")
        if self.discoverable is not None:
            raise ValueError("discoverable is for models that are fine-tuned here; leave it out")
        if self.variants or self.seeds > 1 or self.quantize:
            raise ValueError("variants, seeds and quantize are for models that are trained here; leave them out")
        if self.data.unit == "token":
            raise ValueError("data.unit token is for a model that is fine-tuned (model.kind huggingface); use character")
        if trained.kind == "huggingface" and self.data.unit != "character":
            raise ValueError("a tokenizer spells characters; set data.unit to character")

    def _check_training(self, training: TrainingSpec) -> None:
        if training.objective.kind != "language":
            raise ValueError(f"training.objective {training.objective.kind} makes no language model; use language")
        if training.augment is not None:
            raise ValueError("training.augment is for images; set it to null for text")
        if self.data.paired:
            self._check_pairs()
        elif self.canaries.source is not None or getattr(self.model, "architecture", "") == "encoder_decoder":
            raise ValueError("canaries.source and encoder_decoder are for pairs: data.source of kind pairs or topic_pairs")
        if (self.data.unit == "token") != isinstance(self.model, PretrainedSpec):
            raise ValueError("data.unit token and model.kind huggingface go together: its tokenizer makes the tokens")
        if self.discoverable is not None:
            self._check_documents(self.discoverable)
        if self.data.unit == "token" and self.data.vocabulary is not None:
            raise ValueError("the tokens are the tokenizer's: leave out data.vocabulary")
        for name, recipe in self.cells.items():
            if getattr(recipe.model, "path", None) != getattr(self.model, "path", None):
                raise ValueError(f"variant {name!r} fine-tunes another model; variants share model.path")
            if name and recipe._shared != self._shared:
                raise ValueError(f"variant {name!r} may change model, training, quantize and what is known, nothing else")

    @property
    def _shared(self) -> dict[str, Any]:
        """What all variants have in common."""
        known = {"known_prefix", "known_suffix"}
        return self.model_dump(
            exclude={"model": True, "training": True, "quantize": True, "variants": True, "canaries": known}
        )

    @property
    def cells(self) -> dict[str, "Recipe"]:
        """Every variant as a recipe of its own."""
        plain = self.model_copy(update={"variants": {}})
        return {name: changed(plain, change) for name, change in self.variants.items()} or {"": self}
