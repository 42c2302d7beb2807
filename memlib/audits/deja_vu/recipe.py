"""The recipe of a déjà vu audit."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

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
from memlib.specs.backgrounds import BackgroundSpec
from memlib.specs.encoders import EncoderPair
from memlib.specs.limits import MOST_DRAWS, MOST_EXAMPLES, MOST_MODELS, MOST_SEED, MOST_STEPS

Direction = Literal["A", "B"]
DIRECTIONS: tuple[Direction, ...] = ("A", "B")
LAST = "last"
LAYER = re.compile(r"[\w-][\w.-]*", re.ASCII)  # as a part of a file's name


class StabilitySpec(Spec):
    """How far augmented views of an image lie apart under both models: memory without labels or boxes (SSLMem, Wang 2024)."""

    views: int = Field(default=10, ge=2, le=1000)
    """Views of each image, every two of which are compared."""
    augment: AugmentSpec | None = None
    """How they are drawn; by default as in training."""
    disjoint: int = Field(default=1000, ge=0, le=MOST_EXAMPLES)
    """Public images, which neither model trained on, that are shown beside."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Of the views."""


class Config(Spec):
    """How the embeddings are decoded and scored."""

    added_later: ClassVar[frozenset[str]] = frozenset({"alpha", "bound", "embeddings", "precision", "stability"})

    layers: tuple[str, ...] = ("last",)
    """Embeddings to decode: last, backbone, projector_1, ..., classifier; the first is the headline. Teachers' layers
    (BYOL, DINO) are teacher_backbone, ...; encoders that were trained elsewhere have names of their own."""
    k: tuple[Annotated[int, Field(ge=1, le=MOST_EXAMPLES)], ...] = Field(default=(30,), min_length=1)
    """Public neighbours that vote; the first is the headline. Each must be at most the public set's size."""
    epochs: tuple[Annotated[int, Field(ge=0, le=MOST_STEPS)], ...] = ()
    """Checkpoints to decode besides the last one, which is the headline."""
    crops: tuple[CropMode, ...] = ()
    """Crop modes to decode; the first is the headline. By default the split's own."""
    p: float = Field(default=0.2, gt=0, le=1)
    """Share of most confident examples at which the déjà vu score is taken."""
    embeddings: Literal["float32", "float16"] = "float32"
    """How embeddings are stored; in float16 they take half the room, and near ties between neighbours may fall otherwise."""
    precision: Precision = "float32"
    """Of the models' forward pass when they embed (autocast); the search is exact whatever it is."""
    tie: Tie = "nearest"
    """Which of several classes with equally many votes wins."""
    stability: StabilitySpec | None = None
    """Measure SSLMem too; null: do not."""
    replicates: int = Field(default=2000, ge=100, le=MOST_DRAWS)
    """Bootstrap replicates."""
    permutations: int = Field(default=2000, ge=100, le=MOST_DRAWS)
    """Redraws of the sides for p-values that are not counted exactly."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Of the bootstrap and the redraws."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Level of the tests."""
    bound: float | None = Field(default=None, gt=0, le=1)
    """A share of images: where the 95 % upper bound on memory lies below it, the verdict is `bounded`. Fix it beforehand."""

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


class ReportSpec(Spec):
    """What the page shows."""

    gallery: int = Field(default=10, ge=0, le=MOST_DRAWS)
    """Examples in each gallery."""
    neighbors: int = Field(default=8, ge=1, le=MOST_DRAWS)
    """Public neighbours shown beside each."""


class Recipe(Spec):
    """A déjà vu audit from data to report."""

    added_later: ClassVar[frozenset[str]] = frozenset({"encoders", "reference"})

    audit: Literal["deja_vu"] = "deja_vu"
    title: str = "Déjà vu audit"
    """Heading of the report."""
    data: DataSpec
    split: SplitSpec
    model: ModelSpec = ModelSpec()
    training: StagedTrainingSpec | None = None
    """How the models are trained; or give `encoders`."""
    encoders: tuple[EncoderPair, ...] = ()
    """Pairs of encoders that were trained elsewhere on the sets of this split; see `memlib export`."""
    reference: BackgroundSpec | None = None
    """null: a second model, trained on B. Else there are models of A alone, and classifiers of background crops say what
    backgrounds give away by themselves; the images of B are held out."""
    pairs: int = Field(default=1, ge=1, le=MOST_MODELS)
    """Pairs of target and reference models that are trained, each from seeds of its own; or models, with `reference`."""
    decode: Config = Config()
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _has_models(self) -> "Recipe":
        if (self.training is None) != bool(self.encoders):
            raise ValueError("a recipe needs either training or encoders; leave the other one out, or set it to null")
        if self.encoders and (self.pairs > 1 or self.decode.epochs):
            raise ValueError(
                "pairs and decode.epochs are of models that are trained; encoders is a list of pairs as they are"
            )
        alone = [number for number, pair in enumerate(self.encoders) if pair.b is None]
        if alone and self.reference is None:
            raise ValueError(
                f"encoders[{alone[0]}] has no b, a second model; say what stands for it, as in reference: {{kind: network}}"
            )
        if self.reference is not None and len(alone) < len(self.encoders):
            raise ValueError("reference stands for the second models; leave b out of encoders, or set reference to null")
        if self.reference is not None and self.decode.stability is not None:
            raise ValueError("decode.stability compares two models; with reference there is one alone")
        given = [spec for pair in self.encoders for spec in (pair.a, pair.b) if spec and spec.kind == "embeddings"]
        if self.decode.stability is not None and given:
            raise ValueError("decode.stability shows an encoder views of its own; it cannot be had from given embeddings")
        odd = [layer for layer in self.decode.layers if not LAYER.fullmatch(layer)]
        if odd:
            raise ValueError(f"decode.layers names {odd[0]!r}; a layer's name has letters, digits, dots, _ and -")
        return self

    @model_validator(mode="after")
    def _decodes_what_there_is(self) -> "Recipe":
        if self.training is None:
            return self  # what layers there are is known when the encoders are
        if "own" not in self.training.on and not self.split.extra_per_class:
            raise ValueError("training.on names extra images alone, but split.extra_per_class is 0")
        if self.fine_tuned and self.decode.epochs and 0 not in self.decode.epochs:
            raise ValueError(
                "what fine-tuning changed is counted from epoch 0: add 0 to decode.epochs and to training.checkpoint_epochs"
            )
        names = self.model_layers
        unknown = [layer for layer in self.decode.layers if layer not in (*names, "last")]
        if unknown:
            raise ValueError(f"decode.layers names {unknown[0]!r}; this model has {', '.join(names)}")
        side = self.model.input_size
        for training in (self.training, self.training.start or self.training):
            objective = training.objective
            odd = isinstance(objective, DINOSpec) and objective.local_side_at(side) != side
            if odd and self.model.backbone.startswith("vit"):
                raise ValueError(
                    f"{self.model.backbone} takes views of one side; set objective.local_views to 0, or local_side to {side}"
                )
        unkept = [epoch for epoch in self.decode.epochs if epoch not in self.training.kept_epochs]
        if unkept:
            raise ValueError(f"decode.epochs names {unkept[0]}; training keeps {list(self.training.kept_epochs)}")
        return self

    @property
    def num_pairs(self) -> int:
        """How many pairs of models are audited, or models alone."""
        return len(self.encoders) or self.pairs

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The sets that have a model trained on them."""
        return DIRECTIONS if self.reference is None else DIRECTIONS[:1]

    @property
    def fine_tuned(self) -> bool:
        """Whether the models are fine-tuned ones."""
        return self.training is not None and self.training.start is not None

    @property
    def audited_model(self) -> ModelSpec:
        """The model whose layers are decoded: once it is fine-tuned it has no projector."""
        return self.model.model_copy(update={"projector": ()}) if self.fine_tuned else self.model

    @property
    def last_epoch(self) -> int:
        """The headline's checkpoint; 0 for encoders that were trained elsewhere, which have no other."""
        return 0 if self.training is None else self.training.epochs

    @property
    def model_layers(self) -> tuple[str, ...]:
        """Every layer of models that are trained, in order of depth, then their teachers'; of others the decoded ones."""
        if self.training is None:
            return tuple(dict.fromkeys(self.decode.layers))
        objective = self.training.objective
        return self.audited_model.layers(classifier=objective.has_classes, teacher=objective.has_teacher)

    @property
    def probed_layers(self) -> tuple[str, ...]:
        """The layers of which is asked what they know of whole images."""
        if self.training is None:
            return self.model_layers
        last = self.audited_model.layers(classifier=self.training.objective.has_classes)[-1]
        return tuple(dict.fromkeys(("backbone", last, self.layers[0])))

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers to decode, `last` replaced by its name, each once."""
        if self.training is None:
            return self.model_layers
        last = self.audited_model.layers(classifier=self.training.objective.has_classes)[-1]
        return tuple(dict.fromkeys(last if layer == LAST else layer for layer in self.decode.layers))

    @property
    def epochs(self) -> tuple[int, ...]:
        """The checkpoints to decode, the last one first."""
        return tuple(dict.fromkeys((self.last_epoch, *self.decode.epochs)))

    @property
    def crops(self) -> tuple[CropSpec, ...]:
        """The crops to decode, the headline's first."""
        modes = self.decode.crops or (self.split.crop.mode,)
        return tuple(self.split.crop.of_mode(mode) for mode in dict.fromkeys(modes))
