"""Specs of images and labels: their sources, crops and splits."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from memlib.specs.base import MOST_EXAMPLES, MOST_NUMBER, MOST_PIXELS, MOST_SEED, Kind, Source, Spec

TINTS = {
    "white": (1.0, 1.0, 1.0), "red": (1.0, 0.2, 0.2), "green": (0.2, 1.0, 0.2), "blue": (0.2, 0.2, 1.0),
    "yellow": (1.0, 1.0, 0.2), "magenta": (1.0, 0.2, 1.0), "cyan": (0.2, 1.0, 1.0), "black": (0.0, 0.0, 0.0),
}  # fmt: skip
"""Colours of ink of scenes, red, green and blue in [0, 1], in the order in which `tints` uses them."""


class ScenesSource(Source):
    """Embedded images: real handwritten digits on random backgrounds that are independent of the digit."""

    is_embedded: ClassVar[bool] = True
    added_later: ClassVar[frozenset[str]] = frozenset({"tints"})

    kind: Literal["scenes"] = "scenes"
    num_examples: int = Field(default=3000, ge=10, le=MOST_EXAMPLES)
    """Number of scenes."""
    size: int = Field(default=32, ge=12, le=MOST_PIXELS)
    """Side of a scene in pixels."""
    digit_size: int = Field(default=16, ge=6, le=MOST_PIXELS)
    """Side of the digit's box in pixels."""
    copies: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """Number of times that the digit appears in its scene, in boxes that do not overlap."""
    background: Literal["field", "grid", "mosaic", "palette"] = "field"
    """field: smooth colours; grid: independent grey cells, so that no part reveals another; mosaic: the same in colour;
    palette: cells of two colours drawn per image, so that every part identifies the image."""
    cells: int = Field(default=4, ge=2, le=MOST_PIXELS)
    """Resolution of the background: colour knots or cells along a side."""
    tints: int = Field(default=1, ge=1, le=len(TINTS))
    """Number of colours of ink, one drawn per scene independently of everything else: the attribute `colour`, which neither
    class nor background reveals. 1: all digits are white."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of digits, positions and backgrounds."""

    @model_validator(mode="after")
    def _digit_fits(self) -> "ScenesSource":
        if self.copies * self.digit_size**2 > self.size**2 / 2:
            raise ValueError(
                f"{self.copies} digits of {self.digit_size} x {self.digit_size} pixels cover more than half of a "
                f"{self.size} x {self.size} image; raise size, or lower copies or digit_size"
            )
        if self.cells > self.size:
            raise ValueError(f"cells is {self.cells}, more than the {self.size} pixels along a side; lower cells")
        return self

    @property
    def has_boxes(self) -> bool:
        """True: each digit has its box."""
        return True


class CaptionedScenesSource(Source):
    """Embedded image-text pairs: four different handwritten digits in a square, and a caption that names one of them and its
    place. The other three are drawn independently of the caption, so that no model can know them without having seen the
    pair."""

    is_embedded: ClassVar[bool] = True
    holds: ClassVar[Kind] = "pairs"

    kind: Literal["captioned_scenes"]
    num_examples: int = Field(default=3000, ge=10, le=MOST_EXAMPLES)
    """Number of pairs."""
    size: int = Field(default=32, ge=16, le=MOST_PIXELS, multiple_of=2)
    """Side of a scene in pixels; a digit takes a quarter of it."""
    words: int = Field(default=300, ge=2, le=1000)
    """Number of made-up words, of which each caption has two, so that captions differ."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of digits, places and words."""


class TwoMoonsSource(Source):
    """Two interleaving half circles in x and y, and an uninformative z (Hartley 2023); centred on the mean."""

    is_embedded: ClassVar[bool] = True
    holds: ClassVar[Kind] = "points"

    kind: Literal["two_moons"]
    num_examples: int = Field(default=1000, ge=4, le=MOST_EXAMPLES)
    """Number of points, half of them in each class."""
    noise: float = Field(default=0.1, ge=0, le=MOST_NUMBER)
    """Standard deviation of the noise in x and y."""
    z_noise: float = Field(default=0.0, ge=0, le=MOST_NUMBER)
    """Standard deviation of z; at 0 any other value of z is a rare concept."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the points."""


class NpzSource(Source):
    """Arrays in a NumPy .npz file, such as MedMNIST's."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"path"})

    kind: Literal["npz"]
    path: str
    """The file; it is read without unpickling."""
    images: str = "train_images"
    """Name of the array of images: (count, height, width) or (count, height, width, 3), uint8."""
    labels: str = "train_labels"
    """Name of the array of class indices: (count,) or (count, 1)."""
    class_names: tuple[str, ...] = ()
    """Names of the classes in order; by default their indices."""

    @property
    def states_ids(self) -> bool:
        """False: the rows of an array have no ids."""
        return False


class CsvSource(Source):
    """A CSV file that lists images and their labels, such as CheXpert's."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"path", "root"})

    kind: Literal["csv"]
    path: str
    """The file; local or s3://."""
    root: str
    """The folder that the image paths are relative to."""
    image_column: str = "Path"
    """Column with the paths of the images."""
    label_column: str
    """Column with the label."""
    classes: dict[str, tuple[str, ...]]
    """Class names, each with the label values that stand for it; rows with other values are not used. CheXpert:
    {negative: ["0.0", ""], positive: ["1.0"]}."""
    where: dict[str, str] = Field(default={})
    """Use only rows with these values in the named columns, as in {Frontal/Lateral: Frontal}."""


class ImageFolderSource(Source):
    """A folder (or s3:// prefix) with one sub-folder of images per class; boxes are optional."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"annotations", "path"})

    kind: Literal["image_folder"]
    path: str
    """The folder that contains the class folders."""
    boxes: Literal["none", "tiny_imagenet", "voc", "coco", "yolo", "labelme"] = "none"
    """Format of the boxes. tiny_imagenet: <class>/<class>_boxes.txt; voc: Pascal VOC / ImageNet XML files; coco: a JSON file
    of instances (COCO's or Label Studio's); yolo: a text file per image, in fractions of the picture; labelme: a JSON file
    per image."""
    annotations: str | None = None
    """Folder of the annotations, or the JSON file of coco; by default they are in the images' folder."""
    num_classes: int | None = Field(default=None, ge=2, le=MOST_EXAMPLES)
    """Use only the first classes, in order of their names."""
    num_per_class: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    """Use only the first images of each class, in order of their paths."""

    @property
    def has_boxes(self) -> bool:
        """True if the recipe names a format of boxes."""
        return self.boxes != "none"


class AnnotatedFolderSource(Source):
    """A folder (or s3:// prefix) of images whose classes are those of annotated objects (COCO, YOLO, LabelMe, Pascal VOC): an
    image belongs to the class of the object with its largest box. Images without objects are left out."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"annotations", "path"})

    kind: Literal["annotated_folder"]
    path: str
    """The folder below which the images are."""
    boxes: Literal["voc", "coco", "yolo", "labelme"]
    """Format of the annotations. voc: Pascal VOC / ImageNet XML files; coco: a JSON file of instances (COCO's or
    Label Studio's); yolo: a text file per image, in fractions of the picture; labelme: a JSON file per image."""
    annotations: str | None = None
    """Folder of the annotations, or the JSON file of coco; by default they are in the images' folder."""
    classes: tuple[str, ...] = ()
    """Use only images of these classes; by default of all."""
    num_per_class: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    """Use only the first images of each class, in order of their paths."""

    @property
    def has_boxes(self) -> bool:
        """True: the classes are those of the boxes."""
        return True


class TorchvisionSource(Source):
    """A torchvision classification data set."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"download", "root"})

    kind: Literal["torchvision"]
    name: str
    """Name of the class in torchvision.datasets: CIFAR10, FashionMNIST, SVHN, ..."""
    root: str
    """Folder of the data set's files, and the target of a download."""
    split: str = "train"
    """train, test or another split of the data set."""
    download: bool = False
    """Download the files if they are missing."""
    attribute: str | None = None
    """For data sets with a table of attributes (CelebA): the attribute to use as the class, such as Attractive."""


class ParquetSource(Source):
    """Parquet files in Hugging Face's image format, or a folder that its save_to_disk wrote (.arrow): a struct of bytes and
    path, a label, and optional boxes."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"path"})

    kind: Literal["parquet"]
    path: str
    """A file (.parquet or .arrow), a folder or a glob; local or s3://."""
    image_column: str = "image"
    """Column of images: a struct of bytes and path, or plain bytes."""
    label_column: str = "label"
    """Column of class indices or strings."""
    id_column: str | None = None
    """Column of unique example ids; by default the ids are <file>:<row>."""
    boxes_column: str | None = None
    """Column of boxes: a list of boxes, or a struct with a field `bbox`."""
    box_format: Literal["xyxy", "xywh"] = "xywh"
    """xyxy: two corners; xywh: one corner and the size, as in COCO."""

    @property
    def states_ids(self) -> bool:
        """True if the recipe names a column of ids."""
        return self.id_column is not None

    @property
    def has_boxes(self) -> bool:
        """True if the recipe names a column of boxes."""
        return self.boxes_column is not None


class TableSource(Source):
    """A table (CSV, JSON, Parquet or Arrow) with one example per row: columns become coordinates of a point. Numbers are
    standardized (`standardize`); each category gets a coordinate, and so do the missing values of a column. `memlib plan`
    shows the inferred types."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"path", "files"})
    added_later: ClassVar[frozenset[str]] = frozenset({"standardize", "decimal", "types", "files"})
    holds: ClassVar[Kind] = "tables"

    kind: Literal["table"]
    path: str = ""
    """The file, or a folder that Hugging Face's save_to_disk wrote; local or s3://; files ending in .xz, .gz and .bz2 are
    decompressed."""
    files: Mapping[Annotated[str, Field(pattern=r"^\w[\w-]*$")], str] = {}
    """Instead of a path: several files with the same columns, by name, as in {members: a.csv, nonmembers: b.csv}. They are
    one table, and example ids are <name>/<id>; target.members of a membership audit can name a file: members/."""
    label_column: str
    """Column of the class: names or whole numbers. Rows without a class are left out."""
    id_column: str | None = None
    """Column of unique example ids; by default the ids are row numbers."""
    person_column: str | None = None
    """Column of the person to whom a row belongs. Example ids are then <person>/<id>; keep a person's rows together with
    group: {pattern: '^(.+)/'} in the split."""
    columns: tuple[str, ...] = ()
    """Columns to use; by default all others, but for those that number the rows. Leave out ids and weights that nearly
    identify a row."""
    categorical: tuple[str, ...] = ()
    """Columns of numbers that stand for categories."""
    types: Mapping[str, Literal["number", "category"]] = {}
    """Types of columns that would be taken for another, as in {code: category, age: number}."""
    decimal: Literal[".", ","] = "."
    """For a CSV file: the character before the decimals of a number."""
    names: tuple[str, ...] = ()
    """For a CSV file without a header: the names of its columns."""
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """For a CSV file: the character between values."""
    skip_rows: int = Field(default=0, ge=0, le=MOST_EXAMPLES)
    """For a CSV file: number of lines before the header, or before the first row."""
    standardize: bool | None = None
    """Whether numbers are standardized over the table (null: they are). A model that you supply must be given what it was
    fitted on, so say it there: false for the numbers of the file as they are."""

    @property
    def states_ids(self) -> bool:
        """True if the recipe names a column of ids."""
        return self.id_column is not None

    @property
    def where(self) -> str:
        """The file, or the files, for messages."""
        return self.path or " and ".join(self.files.values())

    @model_validator(mode="after")
    def _names_its_files(self) -> "TableSource":
        if bool(self.path) == bool(self.files):
            raise ValueError("a table needs either a path, or files, as in {members: a.csv, nonmembers: b.csv}")
        if self.files and self.person_column is not None:
            raise ValueError(
                "person_column needs one file, as a person may have rows in several; write them into one, and list the "
                "members in a file of their own (target.members)"
            )
        return self

    def uses(self, column: str) -> bool:
        """Return whether a column of the file is one that models see."""
        named = (self.label_column, self.id_column, self.person_column)
        return column in self.columns if self.columns else column not in named

    @property
    def persons(self) -> str:
        """The part of an example's id before its last slash, if the recipe names a column of persons."""
        return "" if self.person_column is None else "^(.+)/"


class IdsSource(Source):
    """Examples of which only ids, classes and persons are read, one per row of a table (CSV, JSON Lines or Parquet): for
    membership audits of scores that were computed elsewhere."""

    whereabouts: ClassVar[frozenset[str]] = frozenset({"path"})
    holds: ClassVar[Kind] = "ids"

    kind: Literal["ids"]
    path: str
    """The file; local or s3://; CSV files ending in .xz, .gz and .bz2 are decompressed."""
    id_column: str | None = None
    """Column of unique example ids; by default the ids are row numbers."""
    label_column: str | None = None
    """Column of the class, within which members are compared with non-members; by default all are of one class."""
    person_column: str | None = None
    """Column of the person to whom a row belongs. Example ids are then <person>/<id>; keep a person's rows together with
    group: {pattern: '^(.+)/'} in the split."""

    @property
    def states_ids(self) -> bool:
        """True if the recipe names a column of ids."""
        return self.id_column is not None

    @property
    def persons(self) -> str:
        """The part of an example's id before its last slash, if the recipe names a column of persons."""
        return "" if self.person_column is None else "^(.+)/"


class ImportSource(Source):
    """A custom source: a function that returns an object with __len__, __getitem__ and class_names (or classes). Its items
    are pairs of an image and a class index, as in torchvision's data sets, or memlib's Examples, which also have ids and
    boxes."""

    kind: Literal["import"]
    function: str = Field(pattern=r"^\w+(\.\w+)*:\w+$")
    """package.module:function."""
    options: dict[str, Any] = Field(default={})
    """Keyword arguments of the function (plain JSON)."""
    version: str | None = None
    """Part of the content key; by default the digest of the module's source and of the files of its folder that it imports.
    Change it whenever the data that the function reads change, or give the source a method `content_digest`."""


class DigitsSource(Source):
    """Embedded images: scikit-learn's 1,797 handwritten digits, 8 x 8 grey."""

    is_embedded: ClassVar[bool] = True
    kind: Literal["digits"]


class BreastCancerSource(Source):
    """Embedded points: scikit-learn's 569 tumors in 30 measurements (Wisconsin diagnostic breast cancer), standardized over
    the table; the classes are malignant and benign."""

    is_embedded: ClassVar[bool] = True
    holds: ClassVar[Kind] = "tables"

    kind: Literal["breast_cancer"]


_Plain = (
    ScenesSource
    | CaptionedScenesSource
    | DigitsSource
    | BreastCancerSource
    | TwoMoonsSource
    | ImageFolderSource
    | AnnotatedFolderSource
    | TorchvisionSource
    | ParquetSource
    | NpzSource
    | CsvSource
    | TableSource
    | IdsSource
    | ImportSource
)
PlainSource = Annotated[_Plain, Field(discriminator="kind")]


class ChangeSpec(Spec):
    """A fixed transformation of every image, such as another scanner's: steps in this order, on grey values in [0, 1]."""

    invert: bool = False
    """Swap black and white."""
    gamma: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Exponent of the grey values; values above 1 darken."""
    contrast: float = Field(default=1.0, gt=0, le=MOST_NUMBER)
    """Factor of the difference from middle grey."""
    brightness: float = Field(default=0.0, ge=-1, le=1)
    """Amount that is added to the grey values."""
    blur: float = Field(default=0.0, ge=0, le=MOST_NUMBER)
    """Sigma of a Gaussian blur, in pixels of the source image."""
    pixelate: int = Field(default=1, ge=1, le=MOST_PIXELS)
    """Side in pixels of the squares over which grey values are averaged."""


class PartSpec(Spec):
    """One part of a joined source."""

    source: PlainSource
    """Source of the part's images."""
    change: ChangeSpec | None = None
    """Change that is applied to each image of the part."""


class JoinedSource(Source):
    """Several sources of images combined into one: example ids are <part>/<id>. Classes are matched by index and named by the
    first part. Tables that are joined are read as one, as by `files`."""

    kind: Literal["joined"]
    parts: Mapping[Annotated[str, Field(pattern=r"^\w[\w-]*$")], PartSpec] = Field(min_length=1)
    """The parts by name, each with a `source` (of any other kind) and optionally a `change` of all its images, such as that
    of another scanner: invert, gamma, contrast, brightness, blur, pixelate."""

    @property
    def has_boxes(self) -> bool:
        """True if the images of all parts have boxes."""
        return all(part.source.has_boxes for part in self.parts.values())


SourceSpec = Annotated[_Plain | JoinedSource, Field(discriminator="kind")]


class IntensitySpec(Spec):
    """Intensities of black and white in images of more than 8 bits per channel."""

    low: float = Field(default=0.0, ge=-MOST_NUMBER, le=MOST_NUMBER)
    """Intensity at or below which a pixel is black."""
    high: float = Field(ge=-MOST_NUMBER, le=MOST_NUMBER)
    """Intensity at or above which a pixel is white."""

    @model_validator(mode="after")
    def _check_order(self) -> "IntensitySpec":
        if self.low >= self.high:
            raise ValueError(f"low {self.low:g} is black and high {self.high:g} is white; low must be smaller than high")
        return self


class LabelsSpec(Spec):
    """Labels whose examples are left out."""

    drop: tuple[Annotated[int, Field(ge=-MOST_EXAMPLES, le=MOST_EXAMPLES)] | str, ...] = Field(min_length=1)
    """Labels by number, as in [-1] for examples without a class, or by the name of their class. The remaining classes are
    renumbered without gaps."""


def _are_mappings(parts: Mapping[str, Any]) -> bool:
    return all(isinstance(part, Mapping) for part in parts.values())


class ExpectedSpec(Spec):
    """The size of a source that is not at hand where a run is planned: its price is estimated from these numbers alone."""

    images: int = Field(ge=1, le=MOST_EXAMPLES)
    """Number of images."""
    classes: int = Field(default=1, ge=1, le=MOST_EXAMPLES)
    """Number of classes, which are taken to be of equal size."""
    width: int = Field(default=400, ge=1, le=MOST_PIXELS)
    """Mean width of an image file in pixels."""
    height: int = Field(default=400, ge=1, le=MOST_PIXELS)
    """Mean height of an image file in pixels."""
    boxed: float = Field(default=1.0, ge=0, le=1)
    """Share of the images with boxes that leave room for a background crop."""


class DataSpec(Spec):
    """The images, and the size at which they are decoded once for all later stages. Points are stored unchanged."""

    added_later: ClassVar[frozenset[str]] = frozenset({"intensities", "labels", "storage", "expected"})

    source: SourceSpec
    image_size: int = Field(default=32, ge=8, le=MOST_PIXELS)
    """Side of the stored square images in pixels."""
    channels: Literal[1, 3] = 3
    """3: colour; 1: grey (ITU-R 601 luma)."""
    resize: Literal["squash", "pad"] = "squash"
    """squash: resize to a square regardless of the aspect ratio; pad: keep the aspect ratio and fill with grey."""
    unreadable: Literal["error", "leave_out"] = "error"
    """Treatment of images that cannot be decoded. error: stop and name them; leave_out: omit and list them."""
    storage: Literal["raw", "png", "jpeg"] = "raw"
    """raw: uncompressed pixels, fastest to read (150 kB per image of 224 x 224); png: the same pixels in half the space or
    less, decoded at every read; jpeg (quality 95): a fifth of the space, but slightly different pixels. Points need raw."""
    intensities: IntensitySpec | None = None
    """For images of more than 8 bits per channel: intensities of black and white. By default the window in the file (DICOM);
    without one, integers are scaled by the smallest common bit depth that holds the source's largest value, and floats
    are taken to lie in [0, 1]."""
    labels: LabelsSpec | None = None
    """Labels whose examples are left out, such as those without a class."""
    expected: ExpectedSpec | None = None
    """Size of the source for memlib plan where its files are not at hand; part of no key."""

    @model_validator(mode="before")
    @classmethod
    def _read_joined_tables(cls, content: Any) -> Any:
        """Read tables that are joined as the files of one table."""
        source = content.get("source") if isinstance(content, Mapping) else None
        parts = source.get("parts") if isinstance(source, Mapping) and source.get("kind") == "joined" else None
        if not isinstance(parts, Mapping) or not _are_mappings(parts):
            return content
        inner = [part.get("source") for part in parts.values()]
        if not inner or not all(isinstance(one, Mapping) and one.get("kind") == "table" for one in inner):
            return content
        (first, *others) = ({name: value for name, value in one.items() if name != "path"} for one in inner)
        if any(other != first for other in others) or any(part.keys() != {"source"} for part in parts.values()):
            raise ValueError("tables that are joined have the same settings but for path, and no change")
        files = {name: one.get("path", "") for name, one in zip(parts, inner, strict=True)}
        return {**content, "source": {**first, "files": files}}


CropMode = Literal["maximal", "official", "corner"]
CORNER = 0.3  # side of a corner crop as a fraction of the image's side (Meehan 2023, A.8)


class CropSpec(Spec):
    """The background (periphery) crop that is shown to the models."""

    mode: CropMode = "maximal"
    """maximal: the largest rectangle that overlaps no box; official: the rectangle between neighbouring edges of boxes with
    the largest shorter side, as in the authors' code; corner: the lower-left 0.3 x 0.3 (Meehan 2023, A.8)."""
    min_side: float = Field(default=0.25, gt=0, le=1)
    """Smallest acceptable shorter side of a crop, as a fraction of the image's shorter side; crops of mode official must be
    larger."""

    @model_validator(mode="after")
    def _corner_is_large_enough(self) -> "CropSpec":
        if self.mode == "corner" and self.min_side > CORNER:
            raise ValueError(
                f"min_side {self.min_side} excludes all corner crops, whose side is {CORNER} of the image's; lower min_side"
            )
        return self

    @property
    def rule(self) -> dict[str, int]:
        """Addition to content keys: a version for the modes whose crops once differed from the authors'."""
        return {} if self.mode == "maximal" else {"crop_rule": 2}

    def of_mode(self, mode: CropMode) -> "CropSpec":
        """Return the spec with another mode; for corner, min_side is lowered to the side of a corner crop."""
        side = min(self.min_side, CORNER) if mode == "corner" else self.min_side
        return CropSpec(mode=mode, min_side=side)


class GroupSpec(Spec):
    """Groups of examples that belong together (a person's X-rays, copies of one picture); random splits never separate them.

    Examples that are joined by any of the given rules form one group. Without groups, a test that redraws the split treats
    the images of one person as independent and rejects too often.
    """

    added_later: ClassVar[frozenset[str]] = frozenset({"identical"})

    pattern: str | None = Field(default=None, min_length=1)
    """Regular expression for example ids; the match of its first parentheses (or else its whole match) names the group, as
    in `(patient\\d+)`."""
    path: str | None = None
    """A CSV or Parquet file with columns example_id and group; an example that is not listed forms a separate group."""
    near: float | None = Field(default=None, ge=0, le=MOST_NUMBER)
    """Largest distance between two images that are joined into one group: the root mean square difference in grey levels of
    their 16 x 16 versions; 0 joins only images whose 16 x 16 versions are equal."""
    identical: bool = False
    """Join examples whose stored pixels, or coordinates, are equal, whatever their labels: copies of one record."""

    @property
    def joins_copies_alone(self) -> bool:
        """True if only copies are joined, so that a group is one record rather than a person."""
        return self.pattern is None and self.path is None

    @model_validator(mode="after")
    def _says_something(self) -> "GroupSpec":
        if self.pattern is None and self.path is None and self.near is None and not self.identical:
            raise ValueError("group needs at least one of pattern, path, near and identical")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise ValueError(f"group.pattern is not a valid regular expression ({error})") from error
        return self


class SplitSpec(Spec):
    """Target set A, reference set B, shared set C and public set X (Meehan 2023, A.2.1)."""

    added_later: ClassVar[frozenset[str]] = frozenset(
        {"group", "small_classes", "extra_per_class", "sets", "drawn_at_random"}
    )

    train_per_class: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    """Images per class that a model trains on: those in A (or B), topped up from C. Required unless `sets` is given."""
    sets: str | None = None
    """For existing models: a CSV or Parquet file with columns example_id and set. The set is A (the model trained on it), B
    (held out, or the second model trained on it), C (both trained on it) or X (public: neither did). A and B are compared
    within classes, and may differ in size."""
    drawn_at_random: bool = False
    """With `sets`: true if the images of each class were assigned to A and B purely at random, as in a random hold-out.
    Otherwise nothing is tested, because the sets may differ in more than in which model trained on them."""
    public_per_class: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    """Images per class in X; by default all remaining ones."""
    extra_per_class: int = Field(default=0, ge=0, le=MOST_EXAMPLES)
    """Images per class in an extra set E, disjoint from all others, for training.on. If public_per_class is given, a larger E
    contains every smaller one and leaves A, B, C and X unchanged."""
    crop: CropSpec = CropSpec()
    """The background crop that an image needs to be audited."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the assignment to sets."""
    drop_duplicates: bool = True
    """Leave out images whose pixels equal those of an earlier image, so that no set contains a copy of another set's image.
    With `sets`, all copies of an image that is in several sets are left out."""
    small_classes: Literal["error", "less", "leave_out"] = "error"
    """Treatment of classes with too few images. error: stop and name them; less: give them fewer public images; leave_out:
    omit them entirely."""
    group: GroupSpec | None = None
    """Groups of examples that are never separated; classes are then balanced as nearly as whole groups allow."""

    @model_validator(mode="after")
    def _says_who_is_where(self) -> "SplitSpec":
        if (self.train_per_class is None) == (self.sets is None):
            raise ValueError("a split needs either train_per_class (to draw the sets) or sets (a file that lists them)")
        budgets = [name for name in ("public_per_class", "extra_per_class") if getattr(self, name)]
        if self.sets is not None and budgets:
            raise ValueError(f"sets assigns every image to a set; leave out {budgets[0]}")
        if self.sets is None and self.drawn_at_random:
            raise ValueError("drawn_at_random applies only to given sets; sets drawn with train_per_class are always random")
        return self

    @property
    def budget(self) -> int:
        """The value of `train_per_class`, which is required for splits that memlib draws."""
        assert self.train_per_class is not None
        return self.train_per_class

    @property
    def by_chance(self) -> bool:
        """True if images were assigned to A and B at random, as all tests require."""
        return self.sets is None or self.drawn_at_random


class HoldOutSpec(Spec):
    """Numbers of examples for training and for early stopping, and of held-out examples, which no model sees."""

    added_later: ClassVar[frozenset[str]] = frozenset({"group"})

    train_per_class: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    """Training examples per class; by default all that the validation and held-out sets leave."""
    validation_per_class: int = Field(default=0, ge=0, le=MOST_EXAMPLES)
    """Examples per class on which early stopping measures the loss."""
    held_out_per_class: int = Field(default=0, ge=0, le=MOST_EXAMPLES)
    """Held-out examples per class, which no model sees."""
    seed: int = Field(default=0, ge=0, le=MOST_SEED)
    """Seed of the assignment."""
    group: GroupSpec | None = None
    """Groups of examples that are never separated; the numbers per class are then met as nearly as whole groups allow."""


QUERY, CALIBRATION, PROVIDER = "query", "calibration", "provider"
KNOWN, WITHHELD = "known", "withheld"
POOL = (QUERY, KNOWN, WITHHELD)
"""Sets that are drawn at random from one pool U of the provider's examples: the query data set D_Q, the positive control, and
the withheld examples H."""


class SetSpec(Spec):
    """The examples of a named set of the forgetting audit; the sets are disjoint."""

    part: str | None = None
    """Part of a joined source from which the set is drawn; by default all parts."""
    per_class: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    """Examples per class; by default all that the preceding sets leave."""
