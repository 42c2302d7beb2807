"""Specs of models."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from memlib.specs.base import MOST_EXAMPLES, MOST_MODELS, MOST_NUMBER, MOST_PIXELS, MOST_STEPS, MOST_WIDTH, Spec

TEACHER = "teacher_"  # prefix of the names of the teacher's layers
Backbone = Literal[
    "small_resnet",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "small_vit",
    "vit_tiny",
    "vit_small",
    "vit_base",
    "vit_large",
]


class ModelSpec(Spec):
    """A backbone followed by a projector of fully connected layers."""

    added_later: ClassVar[frozenset[str]] = frozenset({"blocks"})

    kind: Literal["encoder"] = "encoder"
    backbone: Backbone = "small_resnet"
    """small_resnet and small_vit: four blocks, for 32 to 64 px; ResNets: with a small stem up to 64 px; ViTs: as in DeiT."""
    projector: tuple[Annotated[int, Field(ge=1, le=MOST_WIDTH)], ...] = (256, 256, 256)
    """Widths of the projector's layers; the paper uses 8192-8192-8192."""
    input_size: int = Field(default=32, ge=8, le=MOST_PIXELS)
    """Side of the model's input images in pixels."""
    width: int = Field(default=32, ge=4, le=MOST_WIDTH)
    """small_resnet: channels of the first of its four blocks; small_vit: a quarter of the length of its tokens, that is, the
    length of each of its four heads."""
    blocks: int = Field(default=1, ge=1, le=MOST_WIDTH)
    """small_resnet: residual blocks of each of its four widths; small_vit: a quarter of its number of blocks."""
    patch_size: int = Field(default=16, ge=2, le=MOST_PIXELS)
    """ViT only: side of a patch in pixels."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> "ModelSpec":
        if self.is_vit and self.input_size % self.patch_size:
            raise ValueError(f"input_size {self.input_size} is not a multiple of patch_size {self.patch_size}")
        if self.blocks > 1 and not self.backbone.startswith("small"):
            raise ValueError(f"{self.backbone} has a fixed depth; blocks is for small_resnet and small_vit")
        return self

    @property
    def is_vit(self) -> bool:
        """True if the backbone is a vision transformer, which takes images of one size."""
        return "vit" in self.backbone

    def layers(self, *, classifier: bool, teacher: bool = False) -> tuple[str, ...]:
        """Return the names of the model's layers in order of depth, then its teacher's, as in `Encoder.all_layers`."""
        projector = (f"projector_{number}" for number in range(1, len(self.projector) + 1))
        names = ("backbone", *projector, *(("classifier",) if classifier else ()))
        return (*names, *(f"{TEACHER}{name}" for name in names)) if teacher else names


Architecture = Literal["mlp", "cnn_1", "cnn_2", "three_block", "four_block", "resnet18", "densenet121", "densenet_bc_100_12"]
STACKABLE: tuple[Architecture, ...] = ("mlp", "cnn_1", "cnn_2")  # small enough to train many models as one program


class ClassifierSpec(Spec):
    """A plain classifier (Hartley 2023, Table 1; 2022, A.3; Liu 2020, section 4)."""

    kind: Literal["classifier"] = "classifier"
    architecture: Architecture
    """mlp; cnn_1: two convolutions; cnn_2: a small VGG; three_block and four_block: networks of Liu 2020 for 28 and 128 px;
    resnet18 and DenseNets: with a small stem up to 64 px."""
    widths: tuple[Annotated[int, Field(ge=1, le=MOST_WIDTH)], ...] = (512, 256, 128)
    """mlp only: widths of the hidden layers; 512-256-128 is MLP-1, 32-128-128 is MLP-2."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout rate after each hidden dense layer (mlp, cnn_1, cnn_2)."""
    dropout_conv: float = Field(default=0.0, ge=0, lt=1)
    """Dropout rate after each convolution (cnn_1, cnn_2)."""
    batch_norm: bool = False
    """Batch normalization before each activation (mlp, cnn_1, cnn_2); epsilon .001, running mean over 100 batches as in
    Keras."""

    @property
    def stackable(self) -> bool:
        """True if many such models can be trained as one program."""
        return self.architecture in STACKABLE

    @model_validator(mode="after")
    def _regularisers_have_a_place(self) -> "ClassifierSpec":
        if not self.stackable and (self.dropout or self.dropout_conv or self.batch_norm):
            raise ValueError(
                f"{self.architecture} is used as published; dropout and batch_norm are options of mlp, cnn_1 and cnn_2 only"
            )
        if self.architecture == "mlp" and self.dropout_conv:
            raise ValueError("an mlp has no convolutions; use dropout instead of dropout_conv")
        return self


class LanguageSpec(Spec):
    """A language model that predicts the next character or word (Carlini 2019, sections 3 and 6)."""

    kind: Literal["language"] = "language"
    architecture: Literal["lstm", "gru", "cnn", "wavenet", "transformer", "encoder_decoder"] = "lstm"
    """lstm and gru: recurrent networks; cnn: dilated causal convolutions; wavenet: gated dilated convolutions with skip
    connections; transformer: decoder only; encoder_decoder: for pairs, an LSTM encodes the source and passes its state to a
    second LSTM, which decodes the target."""
    width: int = Field(default=200, ge=1, le=MOST_WIDTH)
    """Units or channels per layer."""
    layers: int = Field(default=2, ge=1, le=MOST_WIDTH)
    """Number of layers; convolutions have dilations 1, 2, 4, ..."""
    embedding: int = Field(default=128, ge=1, le=MOST_WIDTH)
    """lstm, gru and encoder_decoder only: length of a token's embedding; the others use `width`."""
    kernel: int = Field(default=3, ge=2, le=MOST_WIDTH)
    """cnn and wavenet only: tokens per convolution."""
    heads: int = Field(default=4, ge=1, le=MOST_WIDTH)
    """transformer only: number of attention heads."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout rate after each layer."""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> "LanguageSpec":
        if self.architecture == "transformer" and self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be divided among {self.heads} heads")
        return self


class HuggingFaceSpec(Spec):
    """A causal language model of Hugging Face's transformers, loaded from a folder; code and pickles in it are not run."""

    added_later: ClassVar[frozenset[str]] = frozenset({"adapter"})

    kind: Literal["huggingface"]
    path: str
    """The folder with config.json, *.safetensors and the tokenizer."""
    adapter: str | None = None
    """A folder with a LoRA adapter that peft saved for this model (adapter_config.json, adapter_model.safetensors); it is
    merged with the weights. null: none."""


class LoraSpec(Spec):
    """Low-rank adapters (Hu 2021): products of two small matrices are added to the weights of some layers and trained; all
    other weights are frozen."""

    rank: int = Field(default=8, ge=1, le=MOST_WIDTH)
    """Rank of the product."""
    alpha: float = Field(default=16, gt=0, le=MOST_NUMBER)
    """Scale: the product is multiplied by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout rate before the product."""
    targets: tuple[str, ...] | None = None
    """Names of the adapted layers, such as [q_proj, v_proj]; by default peft's choice for the architecture."""


class PretrainedSpec(HuggingFaceSpec):
    """A causal language model of Hugging Face's transformers, loaded from a folder and fine-tuned by memlib.

    The folder is copied into the store once. The text is tokenized by the model's tokenizer (data.unit token).
    """

    lora: LoraSpec | None = None
    """Low-rank adapters; null: all weights are trained."""


class ProtocolSpec(Spec):
    """A sequence model with a method `next_log_probs`; see docs/how-to/own-model.md."""

    kind: Literal["import"]
    model: str = Field(pattern=r"^\w+(\.\w+)*:\w+$")
    """package.module:factory, a function that returns the model."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of the factory (plain JSON)."""
    files: tuple[str, ...] = ()
    """Files from which the model is built; their content enters the content key."""
    version: str | None = None
    """Part of the content key; by default the digest of the factory's module and of what it imports from its folder."""


class DenoiserSpec(Spec):
    """A U-Net that draws images by diffusion, conditioned on a representation (RCDM, Bordes 2022; scaled down)."""

    kind: Literal["denoiser"] = "denoiser"
    channels: tuple[Annotated[int, Field(ge=8, le=MOST_WIDTH)], ...] = Field(default=(32, 64, 96), min_length=1, max_length=8)
    """Channels of each level; each further level halves the side."""
    blocks: int = Field(default=1, ge=1, le=MOST_WIDTH)
    """Residual blocks of each level, on the way down and on the way up."""
    attention_side: int = Field(default=8, ge=0, le=MOST_PIXELS)
    """Levels whose feature maps have at most this side, in pixels, have attention; 0: no level."""
    norm_groups: int = Field(default=8, ge=1, le=MOST_WIDTH)
    """Groups of channels that are normalized together."""
    input_size: int = Field(default=32, ge=4, le=MOST_PIXELS)
    """Side of the images in pixels; stored images are resized to it."""

    @model_validator(mode="after")
    def _levels_fit(self) -> "DenoiserSpec":
        smallest = 2 ** (len(self.channels) - 1)
        if self.input_size % smallest:
            raise ValueError(
                f"input_size {self.input_size} is not a multiple of {smallest}, by which {len(self.channels)} levels divide "
                "it; change input_size or leave out channels"
            )
        unit = math.lcm(self.norm_groups, 4)  # heads of attention
        if odd := [width for width in self.channels if width % unit]:
            raise ValueError(f"channels {odd[0]} is not a multiple of {unit} (norm_groups {self.norm_groups}, and 4 heads)")
        return self

    def attends(self, level: int) -> bool:
        """Return whether a level, counted from the outermost, has attention."""
        return self.input_size >> level <= self.attention_side


class DecoderSpec(Spec):
    """An MLP that decodes a representation to the mean image: the cheap baseline of a denoiser."""

    kind: Literal["decoder"]
    hidden: tuple[Annotated[int, Field(ge=1, le=MOST_WIDTH)], ...] = (512, 512)
    """Widths of the hidden layers."""
    input_size: int = Field(default=32, ge=4, le=MOST_PIXELS)
    """Side of the images in pixels; stored images are resized to it."""


class TextEncoderSpec(Spec):
    """A text encoder: words, then a bag or a transformer, then a projection."""

    architecture: Literal["bag", "transformer"] = "bag"
    """bag: the mean of the words, then an MLP; transformer: with learnt positions, then the mean of its outputs."""
    width: int = Field(default=64, ge=4, le=MOST_WIDTH, multiple_of=4)
    """Length of a word's vector; a transformer has four heads."""
    layers: int = Field(default=2, ge=1, le=48)
    """transformer: its layers."""


class ImageTextSpec(Spec):
    """An image encoder and a text encoder that map to one space, as in CLIP (Radford 2021)."""

    kind: Literal["image_text"] = "image_text"
    image: ModelSpec = ModelSpec(projector=(64,))
    """The image encoder; the width of its projector's last layer is the dimension of the common space."""
    text: TextEncoderSpec = TextEncoderSpec()
    """The text encoder."""

    @field_validator("image")
    @classmethod
    def _has_projector(cls, value: ModelSpec) -> ModelSpec:
        if not value.projector:
            raise ValueError("image.projector needs at least one layer, whose width is the dimension of the common space")
        return value

    @property
    def input_size(self) -> int:
        """Side of the image encoder's input in pixels."""
        return self.image.input_size


SequenceModelSpec = Annotated[HuggingFaceSpec | ProtocolSpec, Field(discriminator="kind")]


AnyModelSpec = Annotated[
    ModelSpec | ClassifierSpec | LanguageSpec | PretrainedSpec | DenoiserSpec | DecoderSpec | ImageTextSpec,
    Field(discriminator="kind"),
]
AnyLanguageSpec = Annotated[
    Annotated[LanguageSpec, Tag("language")] | Annotated[PretrainedSpec, Tag("huggingface")],
    Discriminator(
        lambda given: given.get("kind", "language") if isinstance(given, Mapping) else getattr(given, "kind", None),
        custom_error_type="model",
        custom_error_message="a model is a mapping, such as {architecture: gru}, or {kind: huggingface, path: ...}",
    ),
]
"""Language models that memlib trains; a recipe without a kind specifies a LanguageSpec."""


class NetsSpec(Spec):
    """Numbers of models that are trained with the feature and without it."""

    seeds: int = Field(default=10, ge=1, le=MOST_MODELS)
    """Models per canary, each from a different seed."""
    controls: int | None = Field(default=None, ge=1, le=MOST_MODELS)
    """Number of models without the feature (controls); by default as many as with the feature. They use the same seeds as the
    models with the feature, then further seeds. A calibrated p-value for a single model needs at least 20 controls; 100 are
    better."""
    chunk: int = Field(default=50, ge=1, le=MOST_MODELS)
    """Number of small models that are trained and stored as one artifact; an interrupted run loses at most one such chunk."""
    same_seed: bool = False
    """Use the same seed for the models of all canaries, so that their units can be compared (Hartley 2022, A.6)."""

    @model_validator(mode="after")
    def _same_seed_is_one(self) -> "NetsSpec":
        if self.same_seed and self.seeds > 1:
            raise ValueError("nets.same_seed uses one seed for the nets of all canaries; set nets.seeds to 1")
        return self


class _Estimator(Spec):
    """Base class of the specs of estimators."""

    stores_examples: ClassVar[bool] = False

    @property
    def is_instance_based(self) -> bool:
        """True if a fitted estimator contains training examples as they are, so that its release publishes them."""
        return self.stores_examples


class ForestSpec(_Estimator):
    """A random forest (Breiman 2001): decision trees on resampled rows, whose class shares are averaged."""

    kind: Literal["forest"]
    trees: int = Field(default=100, ge=1, le=MOST_WIDTH)
    """Number of trees."""
    max_depth: int | None = Field(default=None, ge=1, le=MOST_WIDTH)
    """Largest depth of a tree; null: trees grow until their leaves are pure or cannot be split."""
    min_samples_leaf: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """Smallest number of rows of a leaf."""
    max_features: Literal["sqrt", "log2", "all"] = "sqrt"
    """Number of coordinates among which each split is chosen: the root or the binary logarithm of their number, or all."""
    bootstrap: bool = True
    """Draw the rows of each tree with replacement; false: each tree sees all rows."""


class LogisticSpec(_Estimator):
    """Multinomial logistic regression with an L2 penalty, by L-BFGS."""

    kind: Literal["logistic"]
    c: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Inverse strength of the penalty: weight of the summed losses against half the squared norm of the weights."""
    iterations: int = Field(default=1000, ge=1, le=MOST_STEPS)
    """Largest number of iterations."""


class BoostingSpec(_Estimator):
    """Gradient-boosted trees on histograms (scikit-learn's HistGradientBoostingClassifier), without early stopping, which
    would hold out rows of its own choice."""

    kind: Literal["boosting"]
    iterations: int = Field(default=100, ge=1, le=MOST_STEPS)
    """Number of trees, of each class if there are more than two."""
    learning_rate: float = Field(default=0.1, gt=0, le=MOST_NUMBER)
    """Factor of each tree's contribution."""
    max_leaf_nodes: int = Field(default=31, ge=2, le=MOST_WIDTH)
    """Largest number of leaves of a tree."""
    min_samples_leaf: int = Field(default=20, ge=1, le=MOST_EXAMPLES)
    """Smallest number of rows of a leaf."""
    l2: float = Field(default=0.0, ge=0, le=MOST_NUMBER)
    """Strength of the L2 penalty on the values of leaves."""


class NearestSpec(_Estimator):
    """A vote of the nearest training points, which the estimator stores (instance-based)."""

    stores_examples: ClassVar[bool] = True

    kind: Literal["nearest"]
    k: int = Field(default=5, ge=1, le=MOST_EXAMPLES)
    """Number of neighbours."""
    weights: Literal["uniform", "distance"] = "uniform"
    """uniform: one vote each; distance: votes weigh by inverse distance, so that a training point decides its own class."""


class SvmSpec(_Estimator):
    """A support vector machine with a Gaussian kernel, for at most 20,000 rows. It stores its support vectors, which are
    training points (instance-based)."""

    stores_examples: ClassVar[bool] = True

    kind: Literal["svm"]
    c: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Inverse strength of the penalty."""
    gamma: Annotated[float, Field(gt=0, le=MOST_NUMBER)] | Literal["scale"] = "scale"
    """Coefficient of the kernel exp(-gamma d^2), d: the distance of two points; scale: the inverse of the number of
    coordinates times their variance over the training set."""


class XGBoostSpec(_Estimator):
    """Gradient-boosted trees of the library XGBoost (pip install -e '.[xgboost]' in memlib's folder)."""

    kind: Literal["xgboost"]
    iterations: int = Field(default=100, ge=1, le=MOST_STEPS)
    """Number of trees, of each class if there are more than two."""
    learning_rate: float = Field(default=0.3, gt=0, le=MOST_NUMBER)
    """Factor of each tree's contribution."""
    max_depth: int = Field(default=6, ge=1, le=MOST_WIDTH)
    """Largest depth of a tree."""
    l2: float = Field(default=1.0, ge=0, le=MOST_NUMBER)
    """Strength of the L2 penalty on the values of leaves."""


EstimatorSpec = Annotated[
    ForestSpec | LogisticSpec | BoostingSpec | NearestSpec | SvmSpec | XGBoostSpec, Field(discriminator="kind")
]
"""Classifiers of points that are fitted by scikit-learn, or by XGBoost through the same interface."""
