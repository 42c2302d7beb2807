"""Specs of unique features and of the examples that carry them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.specs.base import Spec
from memlib.specs.limits import MOST_EXAMPLES, MOST_NUMBER, MOST_PIXELS, MOST_SEED


class GlyphFeature(Spec):
    """A text burnt into the image; the whole rectangle is overwritten."""

    added_later: ClassVar[frozenset[str]] = frozenset({"nulls"})

    kind: Literal["glyph"]
    text: str = Field(default="A", min_length=1)
    """Letters and digits; a letter of the built-in typeface is 5 x 5 pixels (Hartley 2022), a pixel lies between two."""
    top: int = Field(default=2, ge=0, le=MOST_PIXELS)
    """Pixels between the image's upper edge and the text: 2 in the 2023 paper, 1 in 2022's."""
    left: int = Field(default=2, ge=0, le=MOST_PIXELS)
    """Pixels from the left edge."""
    scale: int = Field(default=1, ge=1, le=MOST_PIXELS)
    """Side of one dot of the typeface in pixels."""
    font: str | None = None
    """A TrueType or OpenType file instead of the built-in typeface; then `scale` times 8 is its size in pixels."""
    ink: int = Field(default=255, ge=0, le=255)
    """Grey value of the letters."""
    paper: int = Field(default=0, ge=0, le=255)
    """Grey value behind them."""
    cover: bool = False
    """Overlay a rectangle of the paper's grey over the same place in all other images."""
    nulls: str | None = None
    """Texts of the same kind, the null of a model trained elsewhere: names (other people's), letters (random ones, for
    codes), or a file with a text a line. By default names for words of letters, letters for a single letter or a text with
    digits."""


class ScalarFeature(Spec):
    """One coordinate of a point set to a value (two moons: z = 1)."""

    kind: Literal["scalar"]
    index: int = Field(default=2, ge=0, le=MOST_PIXELS)
    """Which coordinate, counted from 0."""
    value: float = Field(default=1.0, ge=-MOST_NUMBER, le=MOST_NUMBER)
    """What it is set to."""


class PictureFeature(Spec):
    """One's own picture; where it is transparent, the image below stays."""

    kind: Literal["picture"]
    path: str
    """A PNG with or without an alpha channel, in pixels of the stored image."""
    mask: str | None = None
    """A second picture of the same size; pixels brighter than half belong to the feature."""
    top: int = Field(default=0, ge=0, le=MOST_PIXELS)
    """Pixels from the image's upper edge."""
    left: int = Field(default=0, ge=0, le=MOST_PIXELS)
    """Pixels from the left edge."""
    cover: bool = False
    """Black out the same pixels in all other images."""
    nulls: str | None = None
    """A folder of pictures of the same kind and size that no model can know: the null of a model trained elsewhere."""


FeatureSpec = Annotated[GlyphFeature | ScalarFeature | PictureFeature, Field(discriminator="kind")]


class CanarySpec(Spec):
    """Which training examples get the unique feature; each canary is a model of its own."""

    feature: FeatureSpec
    choice: Literal["random", "by_id", "top_self_influence", "bottom_self_influence", "extreme_self_influence"] = "random"
    """How the examples are chosen; extreme takes half from the top and half from the bottom (Hartley 2022)."""
    count: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """How many."""
    label: int | None = Field(default=None, ge=0, le=MOST_EXAMPLES)
    """Only from this class; by default from all."""
    example_ids: tuple[str, ...] = ()
    """For by_id."""
    mode: Literal["replace", "append"] = "replace"
    """replace: the feature is put into the example; append: into a copy, and the example stays (2023's two moons)."""
    repeats: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """How often the example with the feature stands in the training set."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Draws the examples."""

    @model_validator(mode="after")
    def _ids_match_the_choice(self) -> "CanarySpec":
        if (self.choice == "by_id") != bool(self.example_ids):
            raise ValueError("example_ids and choice: by_id go together")
        if self.choice == "by_id" and self.label is not None:
            raise ValueError("canary.label is for choices other than by_id")
        if self.choice == "by_id" and self.count not in (1, len(self.example_ids)):
            raise ValueError(f"count is {self.count}, but {len(self.example_ids)} example_ids are given")
        return self
