"""Specs of training: objective, optimizer, augmentation, privacy."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from memlib.specs.base import MOST_EXAMPLES, MOST_NUMBER, MOST_PIXELS, MOST_SEED, MOST_STEPS, MOST_WIDTH, Spec

Probability = Annotated[float, Field(ge=0, le=1)]
Area = Annotated[float, Field(gt=0, le=1)]
Precision = Literal["float32", "bfloat16", "float16"]
Temperature = Annotated[float, Field(gt=0, le=MOST_NUMBER)]
Ratio = Annotated[float, Field(gt=0, le=MOST_NUMBER)]


def in_order(value: tuple[float, float]) -> tuple[float, float]:
    """Check that a range is in order, and return it unchanged.

    Raises:
        ValueError: when the larger end comes first.
    """
    if value[0] > value[1]:
        raise ValueError(f"expected the smaller number first, not {list(value)}")
    return value


class Loss(Spec):
    """Base class of all objectives."""

    #: True if the loss needs scores of classes (or tokens), so that the model's last layer outputs such scores.
    has_classes: ClassVar[bool]
    #: True if the loss of a batch is the mean of losses per example, so that per-example gradients exist.
    per_example: ClassVar[bool]
    #: True if the model keeps a moving average of itself (the teacher), which is stored with it.
    has_teacher: ClassVar[bool] = False


class VICRegSpec(Loss):
    """Variance-invariance-covariance regularization (Bardes 2022)."""

    has_classes: ClassVar[bool] = False
    per_example: ClassVar[bool] = False

    kind: Literal["vicreg"]
    invariance: float = Field(default=25.0, ge=0, le=MOST_NUMBER)
    """Weight of the distance between the views."""
    variance: float = Field(default=25.0, ge=0, le=MOST_NUMBER)
    """Weight of the hinge loss on the standard deviation of each dimension."""
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
    """Contrastive loss between two views of an image and all other images of the batch (Chen 2020)."""

    has_classes: ClassVar[bool] = False
    per_example: ClassVar[bool] = False

    kind: Literal["simclr"]
    temperature: float = Field(default=0.15, gt=0, le=MOST_NUMBER)
    """Temperature (tau), by which cosine similarities are divided."""


class BYOLSpec(Loss):
    """Prediction of the embedding that a moving average of the model computes for the other view (Grill 2020)."""

    has_classes: ClassVar[bool] = False
    per_example: ClassVar[bool] = False
    has_teacher: ClassVar[bool] = True

    kind: Literal["byol"]
    predictor: int = Field(default=512, ge=1, le=MOST_WIDTH)
    """Hidden width of the predictor that follows the projector; the projector's output is audited, not the predictor's."""
    momentum: float = Field(default=0.99, ge=0, le=1)
    """Momentum of the moving average at the start of training; it rises to 1 along a cosine (.996 for ImageNet)."""


class DINOSpec(Loss):
    """Self-distillation with no labels (Caron 2021): the normalized output of the projector is compared with prototypes."""

    has_classes: ClassVar[bool] = False
    per_example: ClassVar[bool] = False
    has_teacher: ClassVar[bool] = True

    kind: Literal["dino"]
    prototypes: int = Field(default=512, ge=2, le=MOST_EXAMPLES)
    """Number of prototypes, the dimension of the compared distributions (65,536 for ImageNet)."""
    student_temperature: float = Field(default=0.1, gt=0, le=MOST_NUMBER)
    """Temperature by which the student's scores are divided."""
    teacher_temperature: tuple[Temperature, Temperature] = (0.04, 0.07)
    """Temperatures by which the teacher's scores are divided: at the start, and after the teacher's warm-up."""
    teacher_warmup_epochs: float = Field(default=30, ge=0, le=MOST_NUMBER)
    """Epochs in which the teacher's temperature changes from the first to the second; cut short if training ends earlier."""
    momentum: float = Field(default=0.99, ge=0, le=1)
    """Momentum of the teacher at the start of training; it rises to 1 along a cosine (.996 for ImageNet)."""
    centre_momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of the running mean of the teacher's scores, which is subtracted from them."""
    frozen_epochs: float = Field(default=1, ge=0, le=MOST_NUMBER)
    """Epochs at the start of training in which the prototypes are frozen."""
    local_views: int = Field(default=0, ge=0, le=16)
    """Smaller (local) views that only the student sees, besides the two global ones (multi-crop; 8 in the paper)."""
    local_scale: tuple[Area, Area] = (0.05, 0.4)
    """Range of a local view's area, as a fraction of the image; for global views see augment.crop_scale."""
    local_side: int | None = Field(default=None, ge=4, le=MOST_PIXELS)
    """Side of a local view in pixels; by default 3/7 of the model's input size (96 of 224)."""

    def local_side_at(self, side: int) -> int:
        """Return the side of a local view in pixels, given `side` of a global one; `side` if there are no local views."""
        return (self.local_side or round(side * 3 / 7)) if self.local_views else side

    @field_validator("local_scale")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        return in_order(value)


class SupervisedSpec(Loss):
    """Cross-entropy on augmented crops; the last layer gives the class scores (Meehan 2023, A.2.2)."""

    has_classes: ClassVar[bool] = True
    per_example: ClassVar[bool] = True

    kind: Literal["supervised"]
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target probability that is spread over all classes."""


class LanguageObjectiveSpec(Loss):
    """Cross-entropy of the next token, in nats per token."""

    has_classes: ClassVar[bool] = True
    per_example: ClassVar[bool] = True

    kind: Literal["language"]


ObjectiveSpec = Annotated[
    VICRegSpec | BarlowTwinsSpec | SimCLRSpec | BYOLSpec | DINOSpec | SupervisedSpec | LanguageObjectiveSpec,
    Field(discriminator="kind"),
]


class DenoisingSpec(Loss):
    """Mean squared error of the velocity v that a denoiser predicts for noised images (Ho 2020; Salimans 2022, D).

    The schedule is a cosine (Nichol 2021, Eq. 17). A moving average of the weights draws the samples.
    """

    has_classes: ClassVar[bool] = False
    per_example: ClassVar[bool] = False  # noise is drawn for whole batches
    has_teacher: ClassVar[bool] = True

    kind: Literal["denoising"] = "denoising"
    drop: float = Field(default=0.1, ge=0, le=1)
    """Probability that a condition is dropped, so that the denoiser also learns to draw without one, as guidance needs."""
    ema: float = Field(default=0.999, ge=0, lt=1)
    """Momentum of the moving average of the weights; after n steps the initial weights still weigh ema^n."""
    steps: int = Field(default=1000, ge=1, le=MOST_STEPS)
    """Steps of the diffusion, from the image to noise."""


class DecodingSpec(Loss):
    """Mean squared error of the image that a decoder draws, with pixels in [-1, 1]."""

    has_classes: ClassVar[bool] = False
    per_example: ClassVar[bool] = False

    kind: Literal["decoding"]


class ContrastiveSpec(Loss):
    """Each caption picks its image out of the batch's, and each image its caption (InfoNCE; Radford 2021)."""

    has_classes: ClassVar[bool] = False
    per_example: ClassVar[bool] = False

    kind: Literal["contrastive"] = "contrastive"
    temperature: float = Field(default=0.07, ge=0.01, le=MOST_NUMBER)
    """Temperature at the start, by which cosines are divided; it is learnt, and never falls below .01."""
    masked: float = Field(default=0.0, ge=0, lt=1)
    """Share of the words of a caption that are masked at random at each step (Jayaraman 2024, 6: a mitigation)."""


GeneratorObjectiveSpec = Annotated[DenoisingSpec | DecodingSpec, Field(discriminator="kind")]


class OptimizerSpec(Spec):
    """An optimizer with linear warm-up, followed by a cosine schedule or a constant rate. AdamW without decay is Adam."""

    name: Literal["lars", "adamw", "sgd", "rmsprop", "adagrad", "adadelta"] = "adamw"
    """The optimizer; sgd has the momentum below, which 0 switches off."""
    learning_rate: float = Field(default=2e-3, gt=0, le=MOST_NUMBER)
    """Peak learning rate; it is not scaled by the batch size."""
    weight_decay: float = Field(default=1e-4, ge=0, le=MOST_NUMBER)
    """Weight decay of matrices and kernels; biases and parameters of normalization layers have none."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """LARS and SGD only: momentum."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """AdamW only: decay rates of the running means of gradients and of their squares."""
    warmup_epochs: float = Field(default=10.0, ge=0, le=MOST_NUMBER)
    """Epochs of linear warm-up from zero."""
    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end, as a fraction of the peak."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Schedule of the learning rate after the warm-up."""


class AugmentSpec(Spec):
    """Random views of an image; probabilities that may differ between views are given as pairs."""

    crop_scale: tuple[Area, Area] = (0.08, 1.0)
    """Range of the random crop's area, as a fraction of the image."""
    crop_ratio: tuple[Ratio, Ratio] = (
        0.75,
        4 / 3,
    )
    """Range of the crop's aspect ratio (width / height)."""
    flip: float = Field(default=0.5, ge=0, le=1)
    """Probability of a horizontal flip."""
    jitter: float = Field(default=0.8, ge=0, le=1)
    """Probability of colour jitter; its four strengths follow."""
    brightness: float = Field(default=0.4, ge=0, lt=1)
    """Strength of brightness jitter: the factor lies within 1 +- this value."""
    contrast: float = Field(default=0.4, ge=0, lt=1)
    """Strength of contrast jitter: the factor lies within 1 +- this value."""
    saturation: float = Field(default=0.2, ge=0, lt=1)
    """Strength of saturation jitter: the factor lies within 1 +- this value."""
    hue: float = Field(default=0.1, ge=0, le=0.5)
    """Strength of hue jitter: the rotation lies within +- this value, where 1 is a full turn."""
    grey: float = Field(default=0.2, ge=0, le=1)
    """Probability of conversion to grey."""
    blur: tuple[Probability, Probability] = (1.0, 0.1)
    """Probability of a Gaussian blur (sigma 0.1 to 2 at 224 px, scaled to the input size) in the first and in other views."""
    solarize: tuple[Probability, Probability] = (0.0, 0.2)
    """Probability of solarization (inverting values above one half) in the first and in other views."""
    shift: int = Field(default=0, ge=0, le=MOST_PIXELS)
    """Number of rows and of columns that are cut off at random sides and replaced with black at the lower right; a random
    crop to 27 of 28 pixels corresponds to shift 1."""

    @field_validator("crop_scale", "crop_ratio")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        return in_order(value)


class PrivacySpec(Spec):
    """Differentially private training (DP-SGD, Abadi 2016): Poisson-sampled batches, clipped gradients, added noise.

    The unit of privacy is one example (a window of text): content that occurs in k examples has k times epsilon and a delta
    of k e^((k - 1) epsilon) delta, which is no guarantee once it reaches 1. Noise and batches are functions of the seed, so
    that training can be resumed and repeated; epsilon therefore holds only against parties that do not know the seed.
    """

    epsilon: float | None = Field(default=None, gt=0, le=MOST_NUMBER)
    """Privacy budget at the end of training, which determines the noise; alternatively give `noise`."""
    noise: float | None = Field(default=None, ge=1e-6, le=MOST_NUMBER)
    """Standard deviation of the noise in units of `clip`, which determines epsilon."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Probability with which the guarantee of epsilon may fail; must be below one over the number of examples."""
    clip: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Largest norm of an example's gradient; longer gradients are clipped to it."""
    accountant: Literal["rdp", "prv", "pld"] = "rdp"
    """rdp: Rényi differential privacy (Mironov 2017), which greatly overestimates epsilon at low noise; prv: tighter (Gopi
    2021), for epsilon up to 20; pld: privacy loss distributions (Koskela 2020; implemented by dp-accounting), equally
    tight, at any noise."""

    @model_validator(mode="after")
    def _one_is_given(self) -> "PrivacySpec":
        if (self.epsilon is None) == (self.noise is None):
            raise ValueError("privacy needs either epsilon or noise; set the other to null")
        if self.accountant == "prv" and ((self.epsilon or 0) > 20 or (self.noise or 1) < 0.5):
            raise ValueError("the accountant prv needs too much memory above epsilon 20 or below noise 0.5; use pld")
        return self


class TrainingSpec(Spec):
    """Training of a model. All settings enter the content key; machines and threads do not."""

    added_later: ClassVar[frozenset[str]] = frozenset({"accumulate"})

    objective: ObjectiveSpec
    epochs: int = Field(ge=0, le=MOST_STEPS)
    """Passes over the training set; 0 leaves the model at its initialization."""
    batch_size: int | None = Field(default=256, ge=2, le=MOST_EXAMPLES)
    """Examples per step over all workers; the last incomplete batch of an epoch is dropped. null: all examples in one
    batch."""
    accumulate: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """Number of parts in which each worker processes its share of a batch to save memory (gradient accumulation); language
    models only."""
    patience: int | None = Field(default=None, ge=1, le=MOST_STEPS)
    """Early stopping: stop once the validation loss has not fallen for this number of epochs, and keep the weights of the
    best epoch."""
    optimizer: OptimizerSpec = OptimizerSpec()
    privacy: PrivacySpec | None = None
    """Differentially private training, 10 to 100 times slower (needs pip install -e '.[privacy]' in memlib's folder); null:
    none."""
    augment: AugmentSpec | None = AugmentSpec()
    """Augmentation of images; null: none."""
    precision: Precision = "float32"
    """Precision of the forward pass (autocast); losses are always computed in float32."""
    shuffle: bool = True
    """Draw a new order of the examples in every epoch; false: always use the order of the data."""
    checkpoint_epochs: tuple[Annotated[int, Field(ge=0, le=MOST_STEPS)], ...] = ()
    """Epochs, besides the last one, whose weights are kept."""
    checkpoint_steps: tuple[Annotated[int, Field(ge=1, le=MOST_STEPS)], ...] = ()
    """Steps, also within an epoch, after which weights are kept (exposure audit)."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Base seed from which the seed of each model is derived."""

    @model_validator(mode="after")
    def _checkpoints_are_reached(self) -> "TrainingSpec":
        late = [epoch for epoch in self.checkpoint_epochs if not 0 <= epoch <= self.epochs]
        if late:
            raise ValueError(f"checkpoint_epochs {late} are outside the {self.epochs} epochs of training")
        if self.accumulate > 1 and (self.objective.kind != "language" or self.privacy is not None):
            raise ValueError("accumulate is only for language models that are trained without privacy; leave it out")
        if self.patience is not None and self.epochs == 0:
            raise ValueError("patience counts epochs, but training.epochs is 0; raise epochs, or set patience to null")
        if isinstance(self.objective, DINOSpec) and self.objective.local_views and self.augment is None:
            raise ValueError("objective.local_views are random crops, but augment is null; set local_views to 0")
        return self

    @model_validator(mode="after")
    def _private_steps_are_whole(self) -> "TrainingSpec":
        if self.privacy is None:
            return self
        if not self.objective.per_example:
            kind = self.objective.kind
            raise ValueError(f"privacy clips per-example gradients, but the loss of {kind} is defined on whole batches")
        if self.precision != "float32":
            raise ValueError(f"privacy needs precision float32 to clip gradients, not {self.precision}")
        if self.batch_size is None or self.batch_size < 16:
            raise ValueError("privacy samples batches at random; batch_size, their expected size, must be 16 or more")
        return self

    @property
    def kept_epochs(self) -> tuple[int, ...]:
        """All epochs whose weights are kept, in ascending order."""
        return tuple(sorted({*self.checkpoint_epochs, self.epochs}))

    @property
    def earlier_epochs(self) -> tuple[int, ...]:
        """The kept epochs before the last one."""
        return self.kept_epochs[:-1]

    @property
    def unstackable(self) -> str:
        """The reason why many small models cannot be trained as one program with these settings; empty if they can."""
        if self.optimizer.name != "adamw":
            return f"training.optimizer {self.optimizer.name} cannot train stacked nets; use adamw"
        if not self.shuffle or self.checkpoint_steps:
            return "stacked nets support neither training.shuffle false nor training.checkpoint_steps"
        if self.privacy is not None:
            return "training.privacy does not support stacked nets; set it to null"
        if self.precision != "float32":
            return f"stacked nets train in float32, not training.precision {self.precision}"
        return ""


class GeneratorTrainingSpec(TrainingSpec):
    """Training of a generator of images from representations."""

    objective: GeneratorObjectiveSpec = DenoisingSpec()  # type: ignore[assignment]
    batch_size: int | None = Field(default=64, ge=2, le=MOST_EXAMPLES)
    """Images per step over all workers; the last incomplete batch of an epoch is dropped. null: all images in one batch."""
    optimizer: OptimizerSpec = OptimizerSpec(learning_rate=1e-3, weight_decay=0.0, warmup_epochs=1.0, schedule="constant")
    augment: AugmentSpec | None = None
    """Augmentation of images; null: none. The conditions are those of the images without augmentation."""

    @model_validator(mode="after")
    def _has_no_held_out_images(self) -> "GeneratorTrainingSpec":
        if self.patience is not None:
            raise ValueError("patience needs validation images, which generators do not have; leave it out and set epochs")
        return self


class PairTrainingSpec(TrainingSpec):
    """Training of a model of images and texts on pairs."""

    objective: ContrastiveSpec = ContrastiveSpec()  # type: ignore[assignment]
    optimizer: OptimizerSpec = OptimizerSpec(learning_rate=1e-3, weight_decay=0.1, warmup_epochs=1.0)
    augment: AugmentSpec | None = None
    """Augmentation of images; null: none. Crops and flips may contradict what a caption says of places."""

    @model_validator(mode="after")
    def _has_no_validation_pairs(self) -> "PairTrainingSpec":
        if self.patience is not None:
            raise ValueError("patience needs validation pairs, which this audit does not have; leave it out and set epochs")
        return self


class StagedTrainingSpec(TrainingSpec):
    """Training of a model, optionally as fine-tuning after an earlier training run and optionally on additional images."""

    added_later: ClassVar[frozenset[str]] = TrainingSpec.added_later | {"start", "on", "head_alone"}

    start: TrainingSpec | None = None
    """Fine-tuning: an earlier training run on each model's own images, whose final weights initialize the backbone. The
    fine-tuned model has no projector but a new classification head; its epoch 0 is the backbone before fine-tuning."""
    on: tuple[Literal["own", "extra"], ...] = Field(default=("own",), min_length=1)
    """Training images: the model's own (A or B, and C), those of split.extra_per_class, or both."""
    head_alone: bool = False
    """Fine-tuning: freeze the backbone and train only the head."""

    @model_validator(mode="after")
    def _starts_from_something(self) -> Self:
        if self.start is None and self.head_alone:
            raise ValueError("head_alone freezes the backbone of an earlier training run; give training.start")
        if self.start is None and "own" not in self.on:
            raise ValueError(
                "training.on leaves out the audited images; this is allowed only in fine-tuning (training.start)"
            )
        if self.start is not None and not self.objective.has_classes:
            raise ValueError(f"training.start needs an objective with classes, such as supervised, not {self.objective.kind}")
        return self

    @property
    def own_part(self) -> TrainingSpec:
        """The settings of this training run alone, without `start`, `on` and `head_alone`."""
        content = {name: getattr(self, name) for name in TrainingSpec.model_fields}
        return TrainingSpec.model_construct(**content)
