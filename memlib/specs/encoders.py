"""Specs of image encoders that were trained elsewhere, and of embeddings that their owner made."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from memlib.specs.base import Spec
from memlib.specs.limits import MOST_PIXELS
from memlib.specs.observing import WEIGHTLESS

Name = Annotated[str, Field(pattern=r"^[\w./-]+$")]


class FactoryEncoder(Spec):
    """An encoder that a function of yours makes."""

    kind: Literal["import"]
    model: str = Field(pattern=r"^\w+(\.\w+)*:\w+$")
    """package.module:factory, a function that returns the torch module. It takes (batch, 3, side, side) and returns
    embeddings (batch, dim), or a dict of them by layer, the deepest last."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of the factory (plain JSON)."""
    weights: str | None = None
    """Its state dict: .safetensors, or a .pt file that holds nothing but tensors. null where the factory loads them itself;
    `version` then says which they are."""
    version: str | None = None
    """Part of the content key; by default the digest of the factory's module."""
    inputs: Literal["unit", "imagenet", "raw"] = "unit"
    """What the model takes: pixels in [0, 1], ImageNet-normalised pixels, or values from 0 to 255."""
    side: int = Field(default=224, ge=8, le=MOST_PIXELS)
    """Side of the images it takes, in pixels."""

    @model_validator(mode="after")
    def _is_whole(self) -> "FactoryEncoder":
        if self.weights is None and self.version is None:
            raise ValueError(WEIGHTLESS.replace("trained.", ""))
        return self


class TorchvisionEncoder(Spec):
    """A model of torchvision with ImageNet's normalisation; layers: backbone and, where the file has one, classifier."""

    kind: Literal["torchvision"]
    architecture: Name
    """As torchvision.models.get_model knows it: resnet50, vit_b_16, ..."""
    weights: str
    """Its state dict: .safetensors, or a .pt file that holds nothing but tensors."""
    side: int = Field(default=224, ge=8, le=MOST_PIXELS)
    """Side of the images it takes, in pixels."""


class TimmEncoder(Spec):
    """A model of timm with its own normalisation and side; layers: backbone and, where the file has one, classifier."""

    kind: Literal["timm"]
    architecture: Name
    """As timm.create_model knows it: vit_small_patch16_224, ..."""
    weights: str
    """Its state dict: .safetensors, or a .pt file that holds nothing but tensors."""


class TransformersEncoder(Spec):
    """An image model of Hugging Face's transformers, from a folder; its code and pickles are not run.

    Normalisation and side are those of its preprocessor_config.json. Layers: cls (the first token), mean (of all tokens)
    and pooled, as far as the model has them.
    """

    kind: Literal["transformers"]
    path: str
    """The folder with config.json, preprocessor_config.json and *.safetensors."""


class GivenEmbeddings(Spec):
    """Embeddings that the encoder's owner made of the images that `memlib export` wrote, in a Parquet file."""

    kind: Literal["embeddings"]
    path: str
    """The file: a row an image, a list of numbers a layer."""
    id_column: str = "id"
    """The images' ids, as in images.csv. All other columns of lists are layers, named as they are, the deepest last."""


EncoderSpec = Annotated[
    FactoryEncoder | TorchvisionEncoder | TimmEncoder | TransformersEncoder | GivenEmbeddings, Field(discriminator="kind")
]


class EncoderPair(Spec):
    """Two encoders that were trained alike, each on its own set: that is the target's, the other one is its reference.

    Or one alone, a, where the recipe's `reference` stands for the other.
    """

    a: EncoderSpec
    """Trained on the sets A and C, and on no image of B or X."""
    b: EncoderSpec | None = None
    """Trained on the sets B and C, and on no image of A or X."""
