"""Specs of image-text pairs: where captions and objects come from, and pairs that are trained on several times."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from memlib.specs.base import MOST_EXAMPLES, Spec
from memlib.specs.encoders import OpenClipEncoder, SuppliedEmbeddings, TransformersEncoder

MOST_WORDS = 512  # words of a caption
PADDING, UNKNOWN = 0, 1  # numbers of what follows a caption, and of words that are unknown or masked


class CaptionTable(Spec):
    """A CSV file (.tsv: with tabs) or Parquet file with the caption and the objects of each image."""

    path: str
    """The file; local or s3://."""
    id_column: str = "example_id"
    """Column of the images' ids, as `memlib ids` prints them."""
    caption_column: str = "caption"
    """Column of captions."""
    objects_column: str = "objects"
    """Column of the names of all objects in an image, named by the caption or not."""
    separator: str = Field(default=";", min_length=1, max_length=1)
    """Character between the names of objects."""


class CocoCaptions(Spec):
    """Captions and instances in COCO's format; of several captions of an image, the first one counts."""

    captions: str
    """JSON file of captions (captions_*.json), or Karpathy's list of COCO's images (dataset_coco.json)."""
    instances: str
    """JSON file of objects (instances_*.json)."""


CaptionOrigin = Literal["source"] | CaptionTable | CocoCaptions


class CaptionSpec(Spec):
    """Captions, the objects in the images, and which objects a caption names."""

    added_later: ClassVar[frozenset[str]] = frozenset({"alike"})

    origin: CaptionOrigin = "source"
    """source: the source of the images states them (embedded scenes); else a table, or COCO's files."""
    synonyms: Mapping[str, tuple[str, ...]] = Field(default={})
    """Further words for an object, such as person: [man, woman, child]; a caption with one of them names the object."""
    length: int = Field(default=16, ge=1, le=MOST_WORDS)
    """Words of a caption that a model reads."""
    vocabulary: int = Field(default=20_000, ge=1, le=MOST_EXAMPLES)
    """Number of words that models know, the most frequent ones of all captions; others are one unknown word."""
    alike: float | None = Field(default=None, gt=0, le=1)
    """Captions that have at least this part of their runs of four words in common (Jaccard index) are drawn together; equal
    captions always are."""


PairModelSpec = Annotated[TransformersEncoder | OpenClipEncoder | SuppliedEmbeddings, Field(discriminator="kind")]


class PairModels(Spec):
    """Two external image-text models, or one alone."""

    a: PairModelSpec
    """The model trained on A and C: a folder of transformers ({kind: transformers, path: ...}: CLIP and models like it) or of
    open_clip ({kind: open_clip, path: ...}), or a file of embeddings that its owner computed for what `memlib export` wrote
    ({kind: embeddings, path: ...})."""
    b: PairModelSpec | None = None
    """The model trained on B and C; null: a is compared on its own pairs and on those of B, which it has not seen."""


Copies = Annotated[int, Field(ge=2, le=1000)]


class DoseSpec(Spec):
    """Pairs that are trained on several times, drawn before the sides are: does memory grow with the dose?"""

    copies: tuple[Copies, ...] = ()
    """Numbers of copies, such as [4, 16]."""
    pairs: int = Field(default=100, ge=1, le=MOST_EXAMPLES)
    """Audited pairs, of both sides together, for each number of copies."""
