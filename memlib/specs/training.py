"""Specs of training: objective, optimizer, augmentation, privacy."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from memlib.specs.base import Spec
from memlib.specs.limits import MOST_EXAMPLES, MOST_NUMBER, MOST_PIXELS, MOST_SEED, MOST_STEPS, MOST_WIDTH

Probability = Annotated[float, Field(ge=0, le=1)]
Area = Annotated[float, Field(gt=0, le=1)]
Precision = Literal["float32", "bfloat16", "float16"]
Temperature = Annotated[float, Field(gt=0, le=MOST_NUMBER)]
Ratio = Annotated[float, Field(gt=0, le=MOST_NUMBER)]


def in_order(value: tuple[float, float]) -> tuple[float, float]:
    """Return a range as it is.

    Raises:
        ValueError: when its larger end comes first.
    """
    if value[0] > value[1]:
        raise ValueError(f"expected the smaller number first, not {list(value)}")
    return value


class Loss(Spec):
    """What all objectives say of themselves.

    Attributes:
        has_classes: whether it is about scores of classes (or symbols), which the model then ends in.
        per_example: whether a batch's loss is the mean of its examples' own, so that each has a gradient by itself.
        has_teacher: whether the model learns from a moving average of itself, which is kept beside it.
    """

    has_classes: ClassVar[bool]
    per_example: ClassVar[bool]
    has_teacher: ClassVar[bool] = False


class VICRegSpec(Loss):
    """Variance-invariance-covariance regularisation (Bardes 2022)."""

    has_classes: ClassVar[bool] = False
    per_example: ClassVar[bool] = False

    kind: Literal["vicreg"]
    invariance: float = Field(default=25.0, ge=0, le=MOST_NUMBER)
    """Weight of the distance between the views."""
    variance: float = Field(default=25.0, ge=0, le=MOST_NUMBER)
    """Weight of the hinge on each dimension's spread."""
    covariance: float = Field(default=1.0, ge=0, le=MOST_NUMBER)
    """Weight of the covariances between dimensions."""


class BarlowTwinsSpec(Loss):
    """Redundancy reduction between two views (Zbontar 2021)."""

    has_classes: ClassVar[bool] = False
    per_example: ClassVar[bool] = False

    kind: Literal["barlow_twins"]
    redundancy: float = Field(default=0.0051, ge=0, le=MOST_NUMBER)
    """Weight of the correlations between different dimensions (lambda)."""


class SimCLRSpec(Loss):
    """Contrast of two views with all other images of the batch (Chen 2020)."""

    has_classes: ClassVar[bool] = False
    per_example: ClassVar[bool] = False

    kind: Literal["simclr"]
    temperature: float = Field(default=0.15, gt=0, le=MOST_NUMBER)
    """Divides the cosines (tau)."""


class BYOLSpec(Loss):
    """Prediction of a moving average's embedding of the other view (Grill 2020)."""

    has_classes: ClassVar[bool] = False
    per_example: ClassVar[bool] = False
    has_teacher: ClassVar[bool] = True

    kind: Literal["byol"]
    predictor: int = Field(default=512, ge=1, le=MOST_WIDTH)
    """Hidden width of the predictor behind the projector; the projector is what is audited."""
    momentum: float = Field(default=0.99, ge=0, le=1)
    """Of the moving average at the start of training; rises to 1 along a cosine (.996 at ImageNet's size)."""


class DINOSpec(Loss):
    """Self-distillation with no labels (Caron 2021): the projector's output, normalised, is compared with prototypes."""

    has_classes: ClassVar[bool] = False
    per_example: ClassVar[bool] = False
    has_teacher: ClassVar[bool] = True

    kind: Literal["dino"]
    prototypes: int = Field(default=512, ge=2, le=MOST_EXAMPLES)
    """Dimensions of the compared distributions (65,536 at ImageNet's size)."""
    student_temperature: float = Field(default=0.1, gt=0, le=MOST_NUMBER)
    """Divides the student's scores."""
    teacher_temperature: tuple[Temperature, Temperature] = (0.04, 0.07)
    """Divides the teacher's scores: at the start, and from the end of its warm-up on."""
    teacher_warmup_epochs: float = Field(default=30, ge=0, le=MOST_NUMBER)
    """Epochs in which the teacher's temperature moves from the first to the second; cut short where training ends before."""
    momentum: float = Field(default=0.99, ge=0, le=1)
    """Of the teacher at the start of training; rises to 1 along a cosine (.996 at ImageNet's size)."""
    centre_momentum: float = Field(default=0.9, ge=0, lt=1)
    """Of the running mean of the teacher's scores, which is taken off them."""
    frozen_epochs: float = Field(default=1, ge=0, le=MOST_NUMBER)
    """Epochs at the start in which the prototypes do not learn."""
    local_views: int = Field(default=0, ge=0, le=16)
    """Smaller views, beside the two global ones, that the student alone sees (multi-crop; 8 in the paper)."""
    local_scale: tuple[Area, Area] = (0.05, 0.4)
    """Area of a local view, as a fraction of the image; that of the global ones is augment.crop_scale."""
    local_side: int | None = Field(default=None, ge=4, le=MOST_PIXELS)
    """Side of a local view in pixels; by default 3/7 of the model's input (96 of 224)."""

    def local_side_at(self, side: int) -> int:
        """Return the side of a local view in pixels where global ones have `side`; that, where there are no local views."""
        return (self.local_side or round(side * 3 / 7)) if self.local_views else side

    @field_validator("local_scale")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        return in_order(value)


class SupervisedSpec(Loss):
    """Cross-entropy on augmented crops; the class scores are the last layer (Meehan 2023, A.2.2)."""

    has_classes: ClassVar[bool] = True
    per_example: ClassVar[bool] = True

    kind: Literal["supervised"]
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target spread over all classes."""


class LanguageObjectiveSpec(Loss):
    """Cross-entropy of the next symbol, in nats a symbol."""

    has_classes: ClassVar[bool] = True
    per_example: ClassVar[bool] = True

    kind: Literal["language"]


ObjectiveSpec = Annotated[
    VICRegSpec | BarlowTwinsSpec | SimCLRSpec | BYOLSpec | DINOSpec | SupervisedSpec | LanguageObjectiveSpec,
    Field(discriminator="kind"),
]


class OptimizerSpec(Spec):
    """An optimiser, with linear warm-up and a cosine to zero or a constant rate. AdamW without decay is Adam."""

    name: Literal["lars", "adamw", "sgd", "rmsprop"] = "adamw"
    """The optimiser."""
    learning_rate: float = Field(default=2e-3, gt=0, le=MOST_NUMBER)
    """Peak learning rate as used, not scaled by the batch size."""
    weight_decay: float = Field(default=1e-4, ge=0, le=MOST_NUMBER)
    """On matrices and kernels only, not on biases and norms."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """LARS and SGD only."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """AdamW only: decay of the running means of gradients and of their squares."""
    warmup_epochs: float = Field(default=10.0, ge=0, le=MOST_NUMBER)
    """Length of the linear warm-up from zero."""
    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end, as a fraction of the peak."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """After the warm-up."""


class AugmentSpec(Spec):
    """Random views of an image; probabilities that differ between the views are given as pairs."""

    crop_scale: tuple[Area, Area] = (0.08, 1.0)
    """Area of the random crop, as a fraction of the image."""
    crop_ratio: tuple[Ratio, Ratio] = (
        0.75,
        4 / 3,
    )
    """Its width over its height."""
    flip: float = Field(default=0.5, ge=0, le=1)
    """Probability of a mirror image."""
    jitter: float = Field(default=0.8, ge=0, le=1)
    """Probability of colour jitter; its four strengths follow."""
    brightness: float = Field(default=0.4, ge=0, lt=1)
    """Factor within 1 +- this."""
    contrast: float = Field(default=0.4, ge=0, lt=1)
    """Factor within 1 +- this."""
    saturation: float = Field(default=0.2, ge=0, lt=1)
    """Factor within 1 +- this."""
    hue: float = Field(default=0.1, ge=0, le=0.5)
    """Turn within +- this, 1 being a full turn."""
    grey: float = Field(default=0.2, ge=0, le=1)
    """Probability of a grey image."""
    blur: tuple[Probability, Probability] = (1.0, 0.1)
    """Probability of a Gaussian blur (sigma 0.1 to 2 at 224 px, scaled to the input) in the first and other views."""
    solarize: tuple[Probability, Probability] = (0.0, 0.2)
    """Probability of inverting what is brighter than half, in the first and other views."""
    shift: int = Field(default=0, ge=0, le=MOST_PIXELS)
    """Cut this many rows and columns off at random sides and fill up with black at the lower right: a random crop
    of 27 of 28 pixels is shift 1."""

    @field_validator("crop_scale", "crop_ratio")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        return in_order(value)


class PrivacySpec(Spec):
    """Differentially private training (DP-SGD, Abadi 2016): examples drawn by chance, gradients clipped, noise added.

    The unit is one example (a window of text): what stands in k of them has k times epsilon, with a delta of
    k e^((k - 1) epsilon) delta, which is no guarantee where that reaches 1. Noise and draws are functions of the seed, so
    that a training can be resumed and repeated: epsilon holds against whoever does not know the seed.
    """

    epsilon: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """The budget at the end of training, from which the noise follows; or give `noise`."""
    noise: float | None = Field(default=None, ge=1e-6, le=MOST_NUMBER)
    """Standard deviation of the noise in units of `clip`, from which epsilon follows."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Probability with which epsilon may not hold; below one over the number of examples."""
    clip: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Greatest norm of one example's gradient."""
    accountant: Literal["rdp", "prv", "pld"] = "rdp"
    """rdp: Rényi differential privacy (Mironov 2017), far too much at small noise; prv: tighter (Gopi 2021), for epsilons
    below some 20; pld: privacy loss distributions (Koskela 2020; dp-accounting's), as tight, at any noise."""

    @model_validator(mode="after")
    def _one_is_given(self) -> "PrivacySpec":
        if (self.epsilon is None) == (self.noise is None):
            raise ValueError("privacy needs either epsilon or noise; set the other to null")
        if self.accountant == "prv" and ((self.epsilon or 0) > 20 or (self.noise or 1) < 0.5):
            raise ValueError("the accountant prv needs too much memory above epsilon 20 or below noise 0.5; use pld")
        return self


class TrainingSpec(Spec):
    """How weights are made from images. All of it enters the key; machines and threads do not."""

    added_later: ClassVar[frozenset[str]] = frozenset({"accumulate"})

    objective: ObjectiveSpec
    epochs: int = Field(ge=0, le=MOST_STEPS)
    """0 leaves the model at its initialisation."""
    batch_size: int | None = Field(default=256, ge=2, le=MOST_EXAMPLES)
    """Examples in one step over all workers; the last incomplete batch of an epoch is dropped. null: all at once."""
    accumulate: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """Parts in which each worker computes its share of a batch, one after another, to save memory; language models alone."""
    patience: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    """Stop when the validation loss has not fallen for so many epochs; the best epoch's weights are the model."""
    optimizer: OptimizerSpec = OptimizerSpec()
    privacy: PrivacySpec | None = None
    """null: none; else differentially private training, 10 to 100 times slower (pip install 'memlib[privacy]')."""
    augment: AugmentSpec | None = AugmentSpec()
    """null: none."""
    precision: Precision = "float32"
    """Of the forward pass (autocast); losses are always computed in float32."""
    shuffle: bool = True
    """Another order of the examples in every epoch; false: always that of the data."""
    checkpoint_epochs: tuple[Annotated[int, Field(ge=0, le=MOST_STEPS)], ...] = ()
    """Epochs after which weights are kept, besides the last one."""
    checkpoint_steps: tuple[Annotated[int, Field(ge=1, le=MOST_STEPS)], ...] = ()
    """Steps after which they are kept too, within epochs (exposure)."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Each model's own seed is derived from it."""

    @model_validator(mode="after")
    def _checkpoints_are_reached(self) -> "TrainingSpec":
        late = [epoch for epoch in self.checkpoint_epochs if not 0 <= epoch <= self.epochs]
        if late:
            raise ValueError(f"checkpoint_epochs {late} are outside the {self.epochs} epochs of training")
        if self.accumulate > 1 and (self.objective.kind != "language" or self.privacy is not None):
            raise ValueError("accumulate is for language models that are trained without privacy; leave it out")
        if self.patience is not None and self.epochs == 0:
            raise ValueError("patience waits for epochs, but training.epochs is 0")
        if isinstance(self.objective, DINOSpec) and self.objective.local_views and self.augment is None:
            raise ValueError("objective.local_views are random crops, but augment is null; set local_views to 0")
        return self

    @model_validator(mode="after")
    def _private_steps_are_whole(self) -> "TrainingSpec":
        if self.privacy is None:
            return self
        if not self.objective.per_example:
            kind = self.objective.kind
            raise ValueError(f"privacy clips each example's gradient, but the loss of {kind} is of whole batches")
        if self.precision != "float32":
            raise ValueError(f"privacy clips gradients in float32, not in {self.precision}")
        if self.batch_size is None or self.batch_size < 16:
            raise ValueError("privacy draws each batch by chance: batch_size is its mean size, 16 or more")
        return self

    @property
    def kept_epochs(self) -> tuple[int, ...]:
        """All epochs whose weights are kept, in order."""
        return tuple(sorted({*self.checkpoint_epochs, self.epochs}))


class StagedTrainingSpec(TrainingSpec):
    """A training that may go on from an earlier one, and of more images than those that are audited."""

    added_later: ClassVar[frozenset[str]] = TrainingSpec.added_later | {"start", "on", "head_alone"}

    start: TrainingSpec | None = None
    """Fine-tuning: an earlier training, on each model's own images, from whose last weights the backbone is taken. What
    follows gets no projector but a new head for the classes; its epoch 0 is the backbone as it was taken over."""
    on: tuple[Literal["own", "extra"], ...] = Field(default=("own",), min_length=1)
    """What it trains on: the model's own images (A or B, and C), those of split.extra_per_class, or both."""
    head_alone: bool = False
    """Fine-tuning: the backbone stays as it was taken over."""

    @model_validator(mode="after")
    def _starts_from_something(self) -> Self:
        if self.start is None and self.head_alone:
            raise ValueError("head_alone leaves a backbone as it was taken over; give training.start, where it comes from")
        if self.start is None and "own" not in self.on:
            raise ValueError("training.on leaves out the images that are audited; that is for fine-tuning, which has a start")
        if self.start is not None and not self.objective.has_classes:
            raise ValueError(f"training.start is for fine-tuning to classes, not for {self.objective.kind}")
        return self

    @property
    def own_part(self) -> TrainingSpec:
        """This training without what came before it, and whatever it is of."""
        content = {name: getattr(self, name) for name in TrainingSpec.model_fields}
        return TrainingSpec.model_construct(**content)
