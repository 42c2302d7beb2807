"""Specs of images and labels: where they come from, how they are cropped and split."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.specs.base import Source, Spec
from memlib.specs.limits import MOST_EXAMPLES, MOST_NUMBER, MOST_PIXELS, MOST_SEED


class ScenesSource(Source):
    """Embedded images: real handwritten digits on backgrounds that have nothing to do with the digit."""

    kind: Literal["scenes"] = "scenes"
    num_examples: int = Field(default=3000, ge=10, le=MOST_EXAMPLES)
    """How many scenes."""
    size: int = Field(default=32, ge=12, le=MOST_PIXELS)
    """Side of a scene in pixels."""
    digit_size: int = Field(default=16, ge=6, le=MOST_PIXELS)
    """Side of the digit's box in pixels."""
    copies: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """How often the digit stands in its scene, in boxes that do not overlap."""
    background: Literal["field", "grid", "mosaic", "palette"] = "field"
    """field: smooth colours; grid: grey cells, so that no part tells of another; mosaic: the same in colour;
    palette: cells of two colours that are the image's own, so that every part identifies the image."""
    cells: int = Field(default=4, ge=2, le=MOST_PIXELS)
    """How fine the background is: colour knots or cells along a side."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Draws digits, places and backgrounds."""

    @model_validator(mode="after")
    def _digit_fits(self) -> "ScenesSource":
        if self.copies * self.digit_size**2 > self.size**2 / 2:
            raise ValueError(f"{self.copies} digits of {self.digit_size} pixels leave no background in {self.size} pixels")
        return self


class TwoMoonsSource(Source):
    """Two interleaving half circles in x and y, and a z that tells nothing (Hartley 2023); centred on the mean."""

    kind: Literal["two_moons"]
    num_examples: int = Field(default=1000, ge=4, le=MOST_EXAMPLES)
    """Points, half of each class."""
    noise: float = Field(default=0.1, ge=0, le=MOST_NUMBER)
    """Standard deviation of the noise in x and y."""
    z_noise: float = Field(default=0.0, ge=0, le=MOST_NUMBER)
    """Standard deviation of z; at 0 any other z is a rare concept."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Draws the points."""


class NpzSource(Source):
    """Arrays in a NumPy .npz file, such as MedMNIST's."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"path"})

    kind: Literal["npz"]
    path: str
    """The file; nothing in it is unpickled."""
    images: str = "train_images"
    """The array of images: (count, height, width) or (count, height, width, 3), uint8."""
    labels: str = "train_labels"
    """The array of class indices: (count,) or (count, 1)."""
    class_names: tuple[str, ...] = ()
    """Names of the classes in order; by default their numbers."""


class CsvSource(Source):
    """A CSV file that names images and their labels, such as CheXpert's."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"path", "root"})

    kind: Literal["csv"]
    path: str
    """The file; local or s3://."""
    root: str
    """The folder that the image paths are relative to."""
    image_column: str = "Path"
    """The column with the images' paths."""
    label_column: str
    """The column with the label."""
    classes: dict[str, tuple[str, ...]]
    """Class names and the label values that mean them; rows with other values are not used. CheXpert:
    {negative: ["0.0", ""], positive: ["1.0"]}."""
    where: dict[str, str] = Field(default={})
    """Columns and the value that a row must have, as in {Frontal/Lateral: Frontal}."""


class ImageFolderSource(Source):
    """A folder (or s3:// prefix) with one sub-folder of images per class, boxes optional."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"annotations", "path"})

    kind: Literal["image_folder"]
    path: str
    """The folder that holds the class folders."""
    boxes: Literal["none", "tiny_imagenet", "voc"] = "none"
    """tiny_imagenet: <class>/<class>_boxes.txt; voc: Pascal VOC / ImageNet XML files."""
    annotations: str | None = None
    """Where the XML files are, when they are not beside the images."""
    num_classes: int | None = Field(default=None, ge=2, le=MOST_EXAMPLES)
    """Use only the first classes, in order of their names."""
    num_per_class: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    """Use only the first images of each class, in order of their paths."""


class TorchvisionSource(Source):
    """Any torchvision classification data set by class name."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"download", "root"})

    kind: Literal["torchvision"]
    name: str
    """The class in torchvision.datasets: CIFAR10, FashionMNIST, SVHN, ..."""
    root: str
    """Where its files are (or go, with download)."""
    split: str = "train"
    """train, test or what the data set calls its parts."""
    download: bool = False
    """Fetch the files when they are absent."""
    attribute: str | None = None
    """For data sets with a table of attributes (CelebA): the one that is the class, as in Attractive."""


class ParquetSource(Source):
    """Parquet files in the Hugging Face image convention: a struct of bytes and path, a label, boxes optional."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"path"})

    kind: Literal["parquet"]
    path: str
    """A file, a folder or a glob; local or s3://."""
    image_column: str = "image"
    """A struct of bytes and path, or plain bytes."""
    label_column: str = "label"
    """Class indices or strings."""
    id_column: str | None = None
    """A column of unique example ids; by default <file>:<row>."""
    boxes_column: str | None = None
    """A list of boxes, or a struct with a field `bbox`."""
    box_format: Literal["xyxy", "xywh"] = "xywh"
    """Corners, or corner and size as in COCO."""


class ImportSource(Source):
    """One's own source: a function that returns an object with __len__, __getitem__ and class_names (or classes). Its items
    are pairs of an image and a class index, as torchvision's data sets have them, or memlib's Examples, which also have ids
    and boxes."""

    kind: Literal["import"]
    function: str = Field(pattern=r"^\w+(\.\w+)*:\w+$")
    """package.module:function."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of the function (plain JSON)."""
    version: str | None = None
    """Part of the content key; by default the digest of the module's source. Raise it when data elsewhere change,
    or give the source a method `content_digest`."""


class DigitsSource(Source):
    """Embedded images: scikit-learn's 1,797 handwritten digits, 8 x 8 grey."""

    kind: Literal["digits"]


_Plain = (
    ScenesSource
    | DigitsSource
    | TwoMoonsSource
    | ImageFolderSource
    | TorchvisionSource
    | ParquetSource
    | NpzSource
    | CsvSource
    | ImportSource
)
PlainSource = Annotated[_Plain, Field(discriminator="kind")]


class ChangeSpec(Spec):
    """A fixed change of every image: another scanner, another camera. In this order, on grey values in [0, 1]."""

    invert: bool = False
    """Black to white."""
    gamma: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Exponent of the grey values; above 1 darkens."""
    contrast: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Factor around middle grey."""
    brightness: float = Field(default=0.0, ge=-1, le=1)
    """Added afterwards."""
    blur: float = Field(default=0.0, ge=0, le=MOST_NUMBER)
    """Sigma of a Gaussian blur in pixels of the source."""
    pixelate: int = Field(default=1, ge=1, le=MOST_PIXELS)
    """Average over squares of so many pixels."""


class PartSpec(Spec):
    """One of several sources."""

    source: PlainSource
    """Where its images come from."""
    change: ChangeSpec | None = None
    """What is done to each of them."""


class JoinedSource(Source):
    """Several sources of images as one: example ids are <part>/<id>. Classes are the same by number; the first part
    names them."""

    kind: Literal["joined"]
    parts: Mapping[Annotated[str, Field(pattern=r"^\w[\w-]*$")], PartSpec] = Field(min_length=1)
    """The parts by name, each with a `source` (of any other kind) and maybe a `change`: invert, gamma, contrast,
    brightness, blur, pixelate, the same for every image, as of another scanner."""


SourceSpec = Annotated[_Plain | JoinedSource, Field(discriminator="kind")]


class IntensitySpec(Spec):
    """What is black and what is white in images of more than 8 bits a channel."""

    low: float = Field(default=0.0, ge=-MOST_NUMBER, le=MOST_NUMBER)
    """The intensity that is black, and all below it."""
    high: float = Field(ge=-MOST_NUMBER, le=MOST_NUMBER)
    """The intensity that is white, and all above it."""

    @model_validator(mode="after")
    def _check_order(self) -> "IntensitySpec":
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is black and high {self.high:g} is white; low has to be the smaller one")
        return self


class DataSpec(Spec):
    """Which images, and the size at which they are decoded once for everything that follows. Points are kept as they are."""

    added_later: ClassVar[frozenset[str]] = frozenset({"intensities", "storage"})

    source: SourceSpec
    image_size: int = Field(default=32, ge=8, le=MOST_PIXELS)
    """Side of the stored square images in pixels."""
    channels: Literal[1, 3] = 3
    """3: colour; 1: grey (ITU-R 601 luma)."""
    resize: Literal["squash", "pad"] = "squash"
    """squash: to a square, whatever the shape; pad: keep the shape, fill with grey."""
    unreadable: Literal["error", "leave_out"] = "error"
    """What to do with images that cannot be decoded: stop and name them, or leave them out and list them."""
    storage: Literal["raw", "png", "jpeg"] = "raw"
    """raw: pixels, which need no work when they are read (150 kB an image of 224 x 224); png: the same pixels in half the
    room or less, decoded whenever they are read; jpeg (quality 95): a fifth of the room, other pixels. For points: raw."""
    intensities: IntensitySpec | None = None
    """For images of more than 8 bits a channel: by default they are scaled by the file's own window (DICOM), else integers by
    the smallest usual bit depth that holds the source's largest value, floats by [0, 1]."""


CropMode = Literal["maximal", "official", "corner"]
CORNER = 0.3  # side of a corner crop as a fraction of the image's, Meehan 2023, A.8


class CropSpec(Spec):
    """The background (periphery) crop that is shown to the models."""

    mode: CropMode = "maximal"
    """maximal: the largest rectangle that meets no box; official: the one with the largest shorter side between
    neighbouring edges of boxes, as in the authors' code; corner: the lower-left 0.3 x 0.3 (Meehan 2023, A.8)."""
    min_side: float = Field(default=0.25, gt=0, le=1)
    """Smallest acceptable shorter side, as a fraction of the image's shorter side; official wants more than that."""

    @model_validator(mode="after")
    def _corner_is_large_enough(self) -> "CropSpec":
        if self.mode == "corner" and self.min_side > CORNER:
            raise ValueError(f"a corner crop has {CORNER} of the image's side; min_side {self.min_side} leaves none")
        return self

    @property
    def rule(self) -> dict[str, int]:
        """What a key says besides: the modes that have cut otherwise than the authors say so."""
        return {} if self.mode == "maximal" else {"crop_rule": 2}

    def of_mode(self, mode: CropMode) -> "CropSpec":
        """The same with another mode; a corner asks for no more than it has."""
        side = min(self.min_side, CORNER) if mode == "corner" else self.min_side
        return CropSpec(mode=mode, min_side=side)


class GroupSpec(Spec):
    """Which examples belong together (a person's X-rays, copies of one picture): a random split never parts them.

    Examples that any of the given rules joins are one group. Without groups a test that redraws the split takes the images
    of one person for independent ones and rejects too often.
    """

    pattern: str | None = Field(default=None, min_length=1)
    """Regular expression on example ids; what its first parentheses (or else the whole) match names the group, as in
    `(patient\\d+)`."""
    path: str | None = None
    """A CSV or Parquet file with columns example_id and group; examples that it does not name stand alone."""
    near: float | None = Field(default=None, ge=0, le=MOST_NUMBER)
    """Images that lie at most so far apart (root mean square difference in grey levels of versions of 16 x 16) are one
    group; 0 joins equal ones."""

    @model_validator(mode="after")
    def _says_something(self) -> "GroupSpec":
        if self.pattern is None and self.path is None and self.near is None:
            raise ValueError("group needs pattern, path or near")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"group.pattern is no regular expression ({error})") from error
        return self


class SplitSpec(Spec):
    """Target set A, reference set B, shared set C and public set X (Meehan 2023, A.2.1)."""

    added_later: ClassVar[frozenset[str]] = frozenset(
        {"group", "small_classes", "extra_per_class", "sets", "drawn_at_random"}
    )

    train_per_class: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    """Images of each class that a model trains on: A (or B) topped up from C. Needed unless `sets` says who is where."""
    sets: str | None = None
    """For models that exist: a CSV or Parquet file with columns example_id and set, which is A (the model trained on it), B
    (held out, or what the second model trained on), C (both trained on it) or X (public: none did). As many images of each
    class are audited on either side: of the more, some are drawn, and the others are left out."""
    drawn_at_random: bool = False
    """With `sets`: whether chance alone decided which images of a class are in A and which in B, as in a random hold-out.
    Where it did not nothing is tested, as the sets may differ in more than who trained on them."""
    public_per_class: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    """Images of each class in X; by default all that are left."""
    extra_per_class: int = Field(default=0, ge=0, le=MOST_EXAMPLES)
    """Images of each class in E, which is in no other set: for training.on. With public_per_class given, more of them leave
    A, B, C and X as they are, and a smaller E lies in a larger one."""
    crop: CropSpec = CropSpec()
    """The background crop that an image needs to be audited."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Draws the roles."""
    drop_duplicates: bool = True
    """Leave out images whose pixels equal an earlier one's, so that no set holds a copy of another's image."""
    small_classes: Literal["error", "less", "leave_out"] = "error"
    """What becomes of classes with too few images: they are named, have fewer public images, or are left out whole."""
    group: GroupSpec | None = None
    """Examples that are always on one side; classes are then balanced as nearly as whole groups allow."""

    @model_validator(mode="after")
    def _says_who_is_where(self) -> "SplitSpec":
        if (self.train_per_class is None) == (self.sets is None):
            raise ValueError("a split needs either train_per_class, to draw sets, or sets, a file that names them")
        budgets = [name for name in ("public_per_class", "extra_per_class") if getattr(self, name)]
        if self.sets is not None and budgets:
            raise ValueError(f"sets says which images are in which set; leave {budgets[0]} out")
        if self.sets is None and self.drawn_at_random:
            raise ValueError("drawn_at_random is about given sets; those of train_per_class always are")
        return self

    @property
    def budget(self) -> int:
        """`train_per_class` of a split that is drawn."""
        assert self.train_per_class is not None
        return self.train_per_class

    @property
    def by_chance(self) -> bool:
        """Whether chance decided who is in A and who in B, which is what tests rest on."""
        return self.sets is None or self.drawn_at_random


class HoldOutSpec(Spec):
    """Which examples train, which stop the training, and which no model sees."""

    added_later: ClassVar[frozenset[str]] = frozenset({"group"})

    train_per_class: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    """Training examples of each class; by default all that the other two leave."""
    validation_per_class: int = Field(default=0, ge=0, le=MOST_EXAMPLES)
    """Examples of each class on which early stopping watches the loss."""
    held_out_per_class: int = Field(default=0, ge=0, le=MOST_EXAMPLES)
    """Examples of each class that no model sees."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Draws the roles."""
    group: GroupSpec | None = None
    """Examples that always have one role; budgets are then met as nearly as whole groups allow."""


QUERY, CALIBRATION, PROVIDER = "query", "calibration", "provider"
KNOWN, WITHHELD = "known", "withheld"
POOL = (QUERY, KNOWN, WITHHELD)
"""Sets that are drawn at random from one pool U of the provider's examples: D_Q, the positive control, and H."""


class SetSpec(Spec):
    """Which examples a named set of the forgetting audit gets; the sets are disjoint."""

    part: str | None = None
    """The part of a joined source that it is drawn from; by default of all there is."""
    per_class: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    """Examples of each class; by default all that are left, in the order of the sets."""
