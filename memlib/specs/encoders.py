"""Specs of external image encoders, and of embeddings supplied by an encoder's owner."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from memlib.specs.base import MOST_PIXELS, Spec
from memlib.specs.external import InFile
from memlib.specs.observing import WEIGHTLESS

Name = Annotated[str, Field(pattern=r"^[\w./-]+$")]


class FactoryEncoder(InFile):
    """An encoder built by a user's function."""

    kind: Literal["import"]
    model: str = Field(pattern=r"^\w+(\.\w+)*:\w+$")
    """package.module:factory, a function that returns the torch module. The module takes images (batch, 3, side, side) and
    returns embeddings (batch, dim), or a dict of embeddings by layer, the deepest last."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of the factory (plain JSON)."""
    weights: str | None = None
    """File with the model's state dict: .safetensors, or a .pt file that contains only tensors. null if the factory loads the
    weights itself; `version` must then identify them."""
    version: str | None = None
    """Part of the content key; by default the digest of the factory's module and of what it imports from its folder."""
    inputs: Literal["unit", "imagenet", "raw"] = "unit"
    """Scale of the model's inputs: pixels in [0, 1], ImageNet-normalized pixels, or values from 0 to 255."""
    side: int = Field(default=224, ge=8, le=MOST_PIXELS)
    """Side of the model's input images in pixels."""

    @model_validator(mode="after")
    def _is_whole(self) -> "FactoryEncoder":
        if self.weights is None and self.version is None:
            raise ValueError(WEIGHTLESS.replace("trained.", ""))
        return self


class TorchvisionEncoder(InFile):
    """A torchvision model with ImageNet normalization; layers: backbone and, if the file contains one, classifier."""

    kind: Literal["torchvision"]
    architecture: Name
    """Name for torchvision.models.get_model: resnet50, vit_b_16, ..."""
    weights: str
    """File with the model's state dict: .safetensors, or a .pt file that contains only tensors."""
    side: int = Field(default=224, ge=8, le=MOST_PIXELS)
    """Side of the model's input images in pixels."""


class TimmEncoder(InFile):
    """A timm model with its own normalization and side; layers: backbone and, if the file contains one, classifier."""

    kind: Literal["timm"]
    architecture: Name
    """Name for timm.create_model: vit_small_patch16_224, ..."""
    weights: str
    """File with the model's state dict: .safetensors, or a .pt file that contains only tensors."""


class TransformersEncoder(Spec):
    """An image model of Hugging Face's transformers, loaded from a folder; code and pickles in the folder are not run.

    Normalization and side are read from the model's preprocessor_config.json, which must state them. Layers: cls (the first
    token), mean (of all tokens) and pooled, as far as the model has them.
    """

    kind: Literal["transformers"]
    path: str
    """The folder with config.json, preprocessor_config.json and *.safetensors."""


class OpenClipEncoder(Spec):
    """An image-text model of open_clip, loaded from a folder; pickles are not opened, and nothing is downloaded.

    Normalization, side, and the length and cleaning of captions are read from open_clip_config.json; captions go through
    open_clip's own tokenizer. A model whose text half or tokenizer comes from elsewhere is refused. Images have one layer,
    output.
    """

    kind: Literal["open_clip"]
    path: str
    """The folder with open_clip_config.json and *.safetensors, as open_clip's push_to_hf_hub.save_for_hf writes it."""


class SuppliedEmbeddings(Spec):
    """A Parquet file of embeddings that the encoder's owner computed for the images written by `memlib export`."""

    kind: Literal["embeddings"]
    path: str
    """The file: one row per image, one column of lists of numbers per layer."""
    id_column: str = "id"
    """Column with the ids of the images, as in images.csv. Every other column of lists is a layer of that name, the deepest
    last."""


EncoderSpec = Annotated[
    FactoryEncoder | TorchvisionEncoder | TimmEncoder | TransformersEncoder | OpenClipEncoder | SuppliedEmbeddings,
    Field(discriminator="kind"),
]


class EncoderPair(Spec):
    """Two encoders that were trained in the same way on different sets. Each is audited on its own set, with the other one as
    reference model. If the recipe's `reference` replaces the second encoder, only `a` is audited."""

    a: EncoderSpec
    """Trained on the sets A and C, and on no image of B or X."""
    b: EncoderSpec | None = None
    """Trained on the sets B and C, and on no image of A or X."""
