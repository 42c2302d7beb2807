"""Specs of unique features and of the training examples that carry them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.specs.base import MOST_EXAMPLES, MOST_NUMBER, MOST_PIXELS, MOST_SEED, Spec


class GlyphFeature(Spec):
    """A text written into the image; the whole rectangle around the text is overwritten."""

    added_later: ClassVar[frozenset[str]] = frozenset({"nulls"})

    kind: Literal["glyph"]
    text: str = Field(default="A", min_length=1)
    """Letters and digits; letters of the built-in typeface are 5 x 5 pixels (Hartley 2022), one pixel apart."""
    top: int = Field(default=2, ge=0, le=MOST_PIXELS)
    """Pixels between the image's upper edge and the text: 2 in Hartley 2023, 1 in Hartley 2022."""
    left: int = Field(default=2, ge=0, le=MOST_PIXELS)
    """Pixels between the image's left edge and the text."""
    scale: int = Field(default=1, ge=1, le=MOST_PIXELS)
    """Side of one dot of the typeface in pixels."""
    font: str | None = None
    """A TrueType or OpenType file to use instead of the built-in typeface; its size in pixels is then 8 times `scale`."""
    ink: int = Field(default=255, ge=0, le=255)
    """Grey value of the letters."""
    paper: int = Field(default=0, ge=0, le=255)
    """Grey value of the background."""
    cover: bool = False
    """Cover the same place in all other images with a rectangle of the background's grey value."""
    nulls: str | None = None
    """For external models: texts of the same kind, from which the null distribution is computed: `names` (of other people),
    `letters` (random letters and digits, for codes), or a file with one text per line. The default is `names` for words, and
    `letters` for a single letter or a text with digits."""


class ScalarFeature(Spec):
    """One coordinate of a point set to a value (two moons: z = 1)."""

    kind: Literal["scalar"]
    index: int = Field(default=2, ge=0, le=MOST_PIXELS)
    """Index of the coordinate, counted from 0."""
    value: float = Field(default=1.0, ge=-MOST_NUMBER, le=MOST_NUMBER)
    """Value of the coordinate in examples with the feature."""


class PictureFeature(Spec):
    """A picture supplied by the user; where it is transparent, the image below remains visible."""

    kind: Literal["picture"]
    path: str
    """A PNG with or without alpha channel; each of its pixels becomes one pixel of the stored image."""
    mask: str | None = None
    """A second picture of the same size; the feature consists of the pixels where it is brighter than middle grey."""
    top: int = Field(default=0, ge=0, le=MOST_PIXELS)
    """Pixels between the image's upper edge and the picture."""
    left: int = Field(default=0, ge=0, le=MOST_PIXELS)
    """Pixels between the image's left edge and the picture."""
    cover: bool = False
    """Black out the same pixels in all other images."""
    nulls: str | None = None
    """For external models: a folder of pictures of the same kind and size that the model cannot know, from which the null
    distribution is computed."""


FeatureSpec = Annotated[GlyphFeature | ScalarFeature | PictureFeature, Field(discriminator="kind")]


class CanarySpec(Spec):
    """Training examples (canaries) that carry the unique feature; separate models are trained for each canary."""

    feature: FeatureSpec
    choice: Literal["random", "by_id", "top_self_influence", "bottom_self_influence", "extreme_self_influence"] = "random"
    """Rule by which the examples are chosen; extreme_self_influence takes half of them from the top and half from the bottom
    (Hartley 2022)."""
    count: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """Number of canaries."""
    label: int | None = Field(default=None, ge=0, le=MOST_EXAMPLES)
    """Choose only examples of this class; by default of all classes."""
    example_ids: tuple[str, ...] = ()
    """For by_id: ids of the examples."""
    mode: Literal["replace", "append"] = "replace"
    """replace: put the feature into the example itself; append: put it into a copy and keep the original as well (two moons
    in Hartley 2023)."""
    repeats: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """Number of times that the training set contains the example with the feature."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the choice of examples."""

    @model_validator(mode="after")
    def _ids_match_the_choice(self) -> "CanarySpec":
        if (self.choice == "by_id") != bool(self.example_ids):
            raise ValueError("example_ids and choice: by_id must be used together")
        if self.choice == "by_id" and self.label is not None:
            raise ValueError("canary.label does not apply to choice: by_id")
        if self.choice == "by_id" and self.count not in (1, len(self.example_ids)):
            raise ValueError(f"count is {self.count}, but {len(self.example_ids)} example_ids are given")
        return self
