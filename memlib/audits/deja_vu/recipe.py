"""The recipe of a déjà vu audit."""

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from memlib.audits.deja_vu.reconstruction.spec import ReconstructSpec
from memlib.specs import (
    AugmentSpec,
    CropMode,
    CropSpec,
    DataSpec,
    DINOSpec,
    ModelSpec,
    Precision,
    Spec,
    SplitSpec,
    StagedTrainingSpec,
    Tie,
)
from memlib.specs.attributes import AttributeOrigin
from memlib.specs.backgrounds import BackgroundSpec
from memlib.specs.base import MOST_DRAWS, MOST_EXAMPLES, MOST_SEED, MOST_STEPS, MOST_TRAINED
from memlib.specs.encoders import EncoderPair
from memlib.specs.level import LevelSpec
from memlib.specs.question import PageSpec

Direction = Literal["A", "B"]
DIRECTIONS: tuple[Direction, ...] = ("A", "B")
HEADLINE, STABILITY = "headline", "stability"  # families of tests: naming objects; SSLMem
BEYOND = "beyond the class"  # attributes and rank within the class
HEADLINES = (HEADLINE, STABILITY, BEYOND)
NOT_SHOWN = (
    "What a stronger attacker would find: this attack uses only the nearest public images.",
    "What anyone could guess: an object that its background gives away (a boat on water) is not counted as memory.",
    "Memory of images outside the audit, or memory that only parts of an image other than the crop would bring out.",
    "Anything about other models: the verdict applies to these trained models or, with several pairs of models, to models "
    "trained in the same way.",
)
SETS = "sets_compared"  # metric of checks of given sets
LAST = "last"
MOST_ATTRIBUTES = 20
LAYER = re.compile(r"[\w-][\w.-]*", re.ASCII)  # layer names become parts of file names


class StabilitySpec(Spec):
    """SSLMem (Wang 2024): memory without labels or boxes, from the distances between augmented views under both models."""

    views: int = Field(default=10, ge=2, le=1000)
    """Views per image; all pairs of them are compared."""
    augment: AugmentSpec | None = None
    """Augmentations that produce the views; by default those used in training."""
    disjoint: int = Field(default=1000, ge=0, le=MOST_EXAMPLES)
    """Number of public images, which neither model trained on, measured for comparison."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the views."""


class Config(LevelSpec):
    """Decoding and scoring of the embeddings."""

    added_later: ClassVar[frozenset[str]] = frozenset(
        {"looks", "alpha", "bound", "embeddings", "precision", "stability", "probe_epochs"}
    )

    layers: tuple[str, ...] = ("last",)
    """Layers whose embeddings are decoded: last, backbone, projector_1, ..., classifier; the first is the headline. The
    teachers' layers (BYOL, DINO) are called teacher_backbone, ...; external encoders have their own layer names."""
    k: tuple[Annotated[int, Field(ge=1, le=MOST_EXAMPLES)], ...] = Field(default=(30,), min_length=1)
    """Numbers of public neighbours that vote; the first is the headline. None may exceed the size of the public set."""
    epochs: tuple[Annotated[int, Field(ge=0, le=MOST_STEPS)], ...] = ()
    """Checkpoints to decode in addition to the last one, which is the headline."""
    probe_epochs: Literal["last", "all"] = "last"
    """Checkpoints that are probed on whole images: the last one, or all decoded ones, which shows whether the gap of a linear
    probe between training and other images follows memory through training (Meehan 2023, Fig. 4a)."""
    crops: tuple[CropMode, ...] = ()
    """Crop modes to decode; the first is the headline. By default the split's crop mode."""
    p: float = Field(default=0.2, gt=0, le=1)
    """Share of most confident examples at which the déjà vu score is computed."""
    embeddings: Literal["float32", "float16"] = "float32"
    """Storage type of embeddings; float16 takes half the space, but may reorder neighbours at almost equal distances."""
    precision: Precision = "float32"
    """Precision of the models' forward pass when embedding (autocast); the search is exact in any case."""
    tie: Tie = "nearest"
    """Rule for choosing among classes with equally many votes."""
    stability: StabilitySpec | None = None
    """Settings of SSLMem; null: SSLMem is not measured."""
    replicates: int = Field(default=2000, ge=100, le=MOST_DRAWS)
    """Bootstrap replicates."""
    permutations: int = Field(default=2000, ge=100, le=MOST_DRAWS)
    """Number of random redraws of the sets A and B, for p-values that are not computed exactly."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the bootstrap and the redraws."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Significance level of the headline families together (naming objects; with `stability`, SSLMem; with `beyond`, memory
    beyond the class), and of each other family."""
    bound: float | None = Field(default=None, gt=0, le=1)
    """Share of images: if the 95 % upper bound on memory lies below it, the verdict is `bounded`. Fix it in advance."""

    def headline_level(self, *, beyond: bool) -> float:
        """Return the level at which a headline family is tested whatever the others show: an equal share of the level.

        Args:
            beyond: whether memory beyond the class is tested.
        """
        return self.level / (1 + (self.stability is not None) + beyond)

    @field_validator("k")
    @classmethod
    def _once(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(value))

    @field_validator("layers")
    @classmethod
    def _some(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("layers must name at least one layer")
        return value


class BeyondSpec(Spec):
    """Memory beyond the class: attributes that the class does not say, named by the nearest public images of the image's own
    class, and the rank of the true image among others of its class and set (Meehan 2023, Figs. 7 and 12)."""

    attributes: Mapping[Annotated[str, Field(pattern=r"^\w[\w -]{0,63}$")], AttributeOrigin] = Field(
        default={}, max_length=MOST_ATTRIBUTES
    )
    """The attributes by name, each `source` (embedded scenes state colour and place) or a table: {path: species.csv,
    value_column: species}, optionally with an id_column."""
    candidates: int = Field(default=99, ge=1, le=10_000)
    """Largest number of other images of the class, of A and of B, with which the true image is compared; those of its own set
    count in its rank."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the choice of candidates."""

    @field_validator("attributes")
    @classmethod
    def _is_beyond(cls, value: Mapping[str, AttributeOrigin]) -> Mapping[str, AttributeOrigin]:
        if "class" in value:
            raise ValueError(
                "beyond.attributes measures attributes other than the class, so none may be named class; rename it"
            )
        return value


class ReportSpec(PageSpec):
    """Contents of the report page."""

    gallery: int = Field(default=10, ge=0, le=MOST_DRAWS)
    """Number of examples in each gallery."""
    neighbors: int = Field(default=8, ge=1, le=MOST_DRAWS)
    """Number of public neighbours shown with each example."""


class Recipe(Spec):
    """A déjà vu audit from data to report."""

    added_later: ClassVar[frozenset[str]] = frozenset({"encoders", "reference", "beyond", "reconstruct"})

    audit: Literal["deja_vu"] = "deja_vu"
    title: str = "Déjà vu audit"
    """Heading of the report."""
    data: DataSpec
    split: SplitSpec
    model: ModelSpec = ModelSpec()
    training: StagedTrainingSpec | None = None
    """Training of the models; or give `encoders` instead."""
    encoders: tuple[EncoderPair, ...] = ()
    """Pairs of external encoders, trained on the sets of this split; see `memlib export`."""
    reference: BackgroundSpec | None = None
    """null: the reference is a second model, trained on B. Otherwise models are trained on A only and the images of B are
    held out; the reference is a classifier of background crops, which shows what backgrounds reveal by themselves."""
    pairs: int = Field(default=1, ge=1, le=MOST_TRAINED)
    """Pairs of target and reference models to train, each from its own seeds; with `reference`, single models to train."""
    decode: Config = Config()
    beyond: BeyondSpec | None = None
    """Memory beyond the class, a further headline: it can show memory by itself, and shares the level; null: not measured."""
    reconstruct: ReconstructSpec | None = None
    """Reconstructions of audited images from their crops (RCDM; the figures of Meehan 2023), judged on the part that the crop
    does not show; null: none."""
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _has_models(self) -> "Recipe":
        if (self.training is None) != bool(self.encoders):
            raise ValueError("give either training or encoders; leave the other one out, or set it to null")
        if self.encoders and (self.pairs > 1 or self.decode.epochs):
            raise ValueError("pairs and decode.epochs apply to models that memlib trains; leave them out with encoders")
        alone = [number for number, pair in enumerate(self.encoders) if pair.b is None]
        if alone and self.reference is None:
            raise ValueError(
                f"encoders[{alone[0]}] has no second model b; add it, or choose a substitute: reference: {{kind: network}}"
            )
        if self.reference is not None and len(alone) < len(self.encoders):
            raise ValueError("reference replaces the second models; leave b out of encoders, or set reference to null")
        if self.reference is not None and self.decode.stability is not None:
            raise ValueError(
                "decode.stability compares two models, but with reference there is only one; set one of these to null"
            )
        if self.reference is not None and self.beyond is not None:
            raise ValueError("beyond compares two models, but with reference there is only one; set one of these to null")
        given = [spec for pair in self.encoders for spec in (pair.a, pair.b) if spec and spec.kind == "embeddings"]
        if self.decode.stability is not None and given:
            raise ValueError(
                "decode.stability runs the encoders on new views, which supplied embeddings do not allow; set it to null"
            )
        odd = [layer for layer in self.decode.layers if not LAYER.fullmatch(layer)]
        if odd:
            raise ValueError(f"decode.layers names {odd[0]!r}; layer names consist of letters, digits, dots, _ and -")
        return self

    @model_validator(mode="after")
    def _reconstructs_what_there_is(self) -> "Recipe":
        spec = self.reconstruct
        if spec is None:
            return self
        if self.reference is not None:
            raise ValueError("reconstruct compares two models, but with reference there is only one; set one to null")
        if self.data.channels != 3:
            raise ValueError(
                "reconstruct draws colour pictures; set data.channels to 3 (grey images are stored as colour ones)"
            )
        if spec.neighbors > max(self.decode.k):
            raise ValueError(
                f"reconstruct.neighbors is {spec.neighbors}, but decode.k searches only {max(self.decode.k)} neighbours; "
                "raise decode.k, or lower reconstruct.neighbors"
            )
        if spec.side > self.data.image_size:
            raise ValueError(
                f"reconstruct draws pictures of {spec.side} pixels, but images are stored with {self.data.image_size}; raise "
                "data.image_size, or lower generator.model.input_size"
            )
        if spec.pairs > self.num_pairs:
            raise ValueError(f"reconstruct.pairs is {spec.pairs}, but the recipe has only {self.num_pairs}; lower it")
        unknown = [layer for layer in spec.layers if self.training is not None and layer not in (*self.model_layers, LAST)]
        if unknown:
            raise ValueError(f"reconstruct.layers names {unknown[0]!r}; choose from {', '.join(self.model_layers)}")
        return self

    @model_validator(mode="after")
    def _decodes_what_there_is(self) -> "Recipe":
        if self.decode.probe_epochs == "all" and len(self.epochs) < 2:
            raise ValueError(
                "decode.probe_epochs is all, but only the last checkpoint is decoded: name earlier ones in decode.epochs and "
                "training.checkpoint_epochs, or set decode.probe_epochs to last"
            )
        if self.training is None:
            return self  # the layers are known only once the encoders are loaded
        if "own" not in self.training.on and not self.split.extra_per_class:
            raise ValueError("training.on names only extra images, but split.extra_per_class is 0; raise it")
        if self.fine_tuned and self.decode.epochs and 0 not in self.decode.epochs:
            raise ValueError(
                "changes by fine-tuning are measured from epoch 0: add 0 to decode.epochs and to training.checkpoint_epochs"
            )
        names = self.model_layers
        unknown = [layer for layer in self.decode.layers if layer not in (*names, "last")]
        if unknown:
            raise ValueError(f"decode.layers names {unknown[0]!r}; choose from {', '.join(names)}")
        side = self.model.input_size
        for training in (self.training, self.training.start or self.training):
            objective = training.objective
            odd = isinstance(objective, DINOSpec) and objective.local_side_at(side) != side
            if odd and self.model.is_vit:
                raise ValueError(
                    f"{self.model.backbone} takes images of one size; set objective.local_views to 0, or local_side to {side}"
                )
        unkept = [epoch for epoch in self.decode.epochs if epoch not in self.training.kept_epochs]
        if unkept:
            raise ValueError(
                f"decode.epochs names epoch {unkept[0]}, but training keeps only {list(self.training.kept_epochs)}; add it "
                "to training.checkpoint_epochs"
            )
        return self

    @property
    def num_pairs(self) -> int:
        """Number of pairs of models under audit; with `reference`, of single models."""
        return len(self.encoders) or self.pairs

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The sets on which a model is trained."""
        return DIRECTIONS if self.reference is None else DIRECTIONS[:1]

    @property
    def fine_tuned(self) -> bool:
        """True if the models are fine-tuned."""
        return self.training is not None and self.training.start is not None

    @property
    def audited_model(self) -> ModelSpec:
        """The model whose layers are decoded; a fine-tuned model has no projector."""
        return self.model.model_copy(update={"projector": ()}) if self.fine_tuned else self.model

    @property
    def last_epoch(self) -> int:
        """Epoch of the headline's checkpoint; 0 for external encoders, which have only one."""
        return 0 if self.training is None else self.training.epochs

    @property
    def model_layers(self) -> tuple[str, ...]:
        """All layers of the trained models by depth, then their teachers'; for external encoders, the decoded layers."""
        if self.training is None:
            return tuple(dict.fromkeys((*self.decode.layers, *self.represented_layers)))
        objective = self.training.objective
        return self.audited_model.layers(classifier=objective.has_classes, teacher=objective.has_teacher)

    @property
    def probed_layers(self) -> tuple[str, ...]:
        """The layers that are probed on whole images."""
        if self.training is None:
            return self.layers
        last = self.audited_model.layers(classifier=self.training.objective.has_classes)[-1]
        return tuple(dict.fromkeys(("backbone", last, self.layers[0])))

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers to decode, without duplicates; `last` is replaced by the layer's name."""
        return self._named(self.decode.layers)

    @property
    def represented_layers(self) -> tuple[str, ...]:
        """The layers that a generator of reconstructions sees; empty without reconstructions."""
        if self.reconstruct is None:
            return ()
        return self._named(self.reconstruct.layers or (("backbone",) if self.training else self.decode.layers))

    def _named(self, layers: tuple[str, ...]) -> tuple[str, ...]:
        if self.training is None:
            return tuple(dict.fromkeys(layers))
        last = self.audited_model.layers(classifier=self.training.objective.has_classes)[-1]
        return tuple(dict.fromkeys(last if layer == LAST else layer for layer in layers))

    @property
    def epochs(self) -> tuple[int, ...]:
        """The checkpoints to decode, the last one first."""
        return tuple(dict.fromkeys((self.last_epoch, *self.decode.epochs)))

    @property
    def probed_epochs(self) -> tuple[int, ...]:
        """The checkpoints to probe on whole images, the last one first."""
        return self.epochs if self.decode.probe_epochs == "all" else (self.last_epoch,)

    @property
    def crops(self) -> tuple[CropSpec, ...]:
        """The crops to decode, the headline's first."""
        modes = self.decode.crops or (self.split.crop.mode,)
        return tuple(self.split.crop.of_mode(mode) for mode in dict.fromkeys(modes))
