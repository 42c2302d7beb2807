"""Specs of models."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from memlib.specs.base import Spec
from memlib.specs.limits import MOST_NUMBER, MOST_PIXELS, MOST_WIDTH

TEACHER = "teacher_"  # before the names of layers
Backbone = Literal[
    "small_resnet", "resnet18", "resnet34", "resnet50", "resnet101", "vit_tiny", "vit_small", "vit_base", "vit_large"
]


class ModelSpec(Spec):
    """A backbone with a projector of fully connected layers behind it."""

    kind: Literal["encoder"] = "encoder"
    backbone: Backbone = "small_resnet"
    """small_resnet: four blocks for 32 to 64 px; ResNets get a small stem up to 64 px; ViTs as in DeiT."""
    projector: tuple[Annotated[int, Field(ge=1, le=MOST_WIDTH)], ...] = (256, 256, 256)
    """Widths of the projector's layers; the paper uses 8192-8192-8192."""
    input_size: int = Field(default=32, ge=8, le=MOST_PIXELS)
    """Side of the images the model sees, in pixels."""
    width: int = Field(default=32, ge=4, le=MOST_WIDTH)
    """small_resnet only: channels of the first of its four blocks."""
    patch_size: int = Field(default=16, ge=2, le=MOST_PIXELS)
    """ViT only: side of a patch in pixels."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> "ModelSpec":
        if self.backbone.startswith("vit") and self.input_size % self.patch_size:
            raise ValueError(f"input_size {self.input_size} is not a multiple of patch_size {self.patch_size}")
        return self

    def layers(self, *, classifier: bool, teacher: bool = False) -> tuple[str, ...]:
        """Return the names of its layers in order of depth, then its teacher's, as `Encoder.all_layers` gives them."""
        projector = (f"projector_{number}" for number in range(1, len(self.projector) + 1))
        names = ("backbone", *projector, *(("classifier",) if classifier else ()))
        return (*names, *(f"{TEACHER}{name}" for name in names)) if teacher else names


Architecture = Literal["mlp", "cnn_1", "cnn_2", "three_block", "four_block", "resnet18", "densenet121", "densenet_bc_100_12"]
STACKABLE: tuple[Architecture, ...] = ("mlp", "cnn_1", "cnn_2")  # small enough to train many as one program


class ClassifierSpec(Spec):
    """A plain classifier (Hartley 2023, Table 1; 2022, A.3; Liu 2020, section 4)."""

    kind: Literal["classifier"] = "classifier"
    architecture: Architecture
    """mlp; cnn_1: two convolutions; cnn_2: small VGG; three_block and four_block: Liu 2020's for 28 and 128 px;
    resnet18, densenet: with a small stem up to 64 px."""
    widths: tuple[Annotated[int, Field(ge=1, le=MOST_WIDTH)], ...] = (512, 256, 128)
    """mlp only: hidden widths; 512-256-128 is MLP-1, 32-128-128 is MLP-2."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """After each hidden dense layer (mlp, cnn_1, cnn_2)."""
    dropout_conv: float = Field(default=0.0, ge=0, lt=1)
    """After each convolution (cnn_1, cnn_2)."""
    batch_norm: bool = False
    """Before each activation (mlp, cnn_1, cnn_2); epsilon .001, a running mean over 100 batches as in Keras."""

    @property
    def stackable(self) -> bool:
        """Whether many of them train as one program."""
        return self.architecture in STACKABLE

    @model_validator(mode="after")
    def _regularisers_have_a_place(self) -> "ClassifierSpec":
        if not self.stackable and (self.dropout or self.dropout_conv or self.batch_norm):
            raise ValueError(f"{self.architecture} is used as published: dropout and batch_norm are of mlp, cnn_1 and cnn_2")
        if self.architecture == "mlp" and self.dropout_conv:
            raise ValueError("an mlp has no convolutions; use dropout instead of dropout_conv")
        return self


class LanguageSpec(Spec):
    """A model of the next character or word (Carlini 2019, sections 3 and 6)."""

    kind: Literal["language"] = "language"
    architecture: Literal["lstm", "gru", "cnn", "wavenet", "transformer", "encoder_decoder"] = "lstm"
    """lstm, gru; cnn: dilated causal convolutions; wavenet: gated ones with skip connections; transformer: decoder only;
    encoder_decoder: for pairs, an LSTM reads the source and hands its state to one that writes the target."""
    width: int = Field(default=200, ge=1, le=MOST_WIDTH)
    """Units of a layer, or channels."""
    layers: int = Field(default=2, ge=1, le=MOST_WIDTH)
    """How many; convolutions are dilated by 1, 2, 4, ..."""
    embedding: int = Field(default=128, ge=1, le=MOST_WIDTH)
    """lstm, gru and encoder_decoder: length of a symbol's vector; the others use `width`."""
    kernel: int = Field(default=3, ge=2, le=MOST_WIDTH)
    """cnn and wavenet: symbols that a convolution sees."""
    heads: int = Field(default=4, ge=1, le=MOST_WIDTH)
    """transformer: attention heads."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """After each layer."""

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> "LanguageSpec":
        if self.architecture == "transformer" and self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be shared by {self.heads} heads")
        return self


class HuggingFaceSpec(Spec):
    """A causal language model of Hugging Face's transformers, from a folder; its code and pickles are not run."""

    kind: Literal["huggingface"]
    path: str
    """The folder with config.json, *.safetensors and the tokenizer."""


class LoraSpec(Spec):
    """Low-rank adapters (Hu 2021): beside some layers' weights a product of two small matrices learns, all else stays."""

    rank: int = Field(default=8, ge=1, le=MOST_WIDTH)
    """Of the product."""
    alpha: float = Field(default=16, gt=0, le=MOST_NUMBER)
    """The product is multiplied by alpha / rank."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Before the product."""
    targets: tuple[str, ...] | None = None
    """Names of layers, such as [q_proj, v_proj]; by default those that peft knows for the architecture."""


class PretrainedSpec(HuggingFaceSpec):
    """A causal language model of Hugging Face's transformers, from a folder, whose training goes on here (fine-tuning).

    Its folder is taken into the store once, and tokens are its tokenizer's (data.unit token).
    """

    lora: LoraSpec | None = None
    """null: all weights learn."""


class ProtocolSpec(Spec):
    """A sequence model that answers `next_log_probs`; see README."""

    kind: Literal["import"]
    model: str = Field(pattern=r"^\w+(\.\w+)*:\w+$")
    """package.module:factory, a function that returns the model."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of the factory (plain JSON)."""
    files: tuple[str, ...] = ()
    """Files the model is made from, which enter the content key."""
    version: str | None = None
    """Part of the content key; by default the digest of the factory's module."""


SequenceModelSpec = Annotated[HuggingFaceSpec | ProtocolSpec, Field(discriminator="kind")]


AnyModelSpec = Annotated[ModelSpec | ClassifierSpec | LanguageSpec | PretrainedSpec, Field(discriminator="kind")]
AnyLanguageSpec = Annotated[
    Annotated[LanguageSpec, Tag("language")] | Annotated[PretrainedSpec, Tag("huggingface")],
    Discriminator(lambda given: given.get("kind", "language") if isinstance(given, Mapping) else given.kind),
]
"""Of models that are trained here; a recipe that names no kind means one of the project's own."""
