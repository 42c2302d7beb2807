"""Frozen, validated descriptions of data, models and training: everything a content key may depend on.

How many machines, GPUs or threads carry the work out is `Resources`, a type of its own that no key contains.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Spec(BaseModel):
    """Base of all specs: immutable, no unknown fields, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


Changed = TypeVar("Changed", bound=Spec)


def changed(spec: Changed, changes: Mapping[str, Any]) -> Changed:
    """A copy of a spec with some keys changed, validated; keys may be dotted (training.patience)."""
    return type(spec).model_validate(changed_content(spec.model_dump(mode="json"), changes))


def changed_content(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a spec with some keys changed, not validated; keys may be dotted."""
    found = dict(content)
    for key, value in changes.items():
        for name in reversed(key.split(".")):
            value = {name: value}
        found = merged(found, value)
    return found


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`change` over `base`; mappings merge key by key unless they name another `kind`."""
    result = dict(base)
    for name, value in change.items():
        old = result.get(name)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) == old.get("kind"):
            value = merged(old, value)
        result[name] = value
    return result


# -- data ---------------------------------------------------------------------------------------------


class ScenesSource(Spec):
    """Embedded images: real handwritten digits on backgrounds that have nothing to do with the digit."""

    kind: Literal["scenes"] = "scenes"
    num_examples: int = Field(default=3000, ge=10)
    """How many scenes."""
    size: int = Field(default=32, ge=12)
    """Side of a scene in pixels."""
    digit_size: int = Field(default=16, ge=6)
    """Side of the digit's box in pixels."""
    copies: int = Field(default=1, ge=1)
    """How often the digit stands in its scene, in boxes that do not overlap."""
    background: Literal["field", "grid", "mosaic", "palette"] = "field"
    """field: smooth colours; grid: grey cells, so that no part tells of another; mosaic: the same in colour;
    palette: cells of two colours that are the image's own, so that every part identifies the image."""
    cells: int = Field(default=4, ge=2)
    """How fine the background is: colour knots or cells along a side."""
    seed: int = Field(default=0, ge=0)
    """Draws digits, places and backgrounds."""

    @model_validator(mode="after")
    def _digit_fits(self) -> "ScenesSource":
        if self.copies * self.digit_size**2 > self.size**2 / 2:
            raise ValueError(f"{self.copies} digits of {self.digit_size} pixels leave no background in {self.size} pixels")
        return self


class TwoMoonsSource(Spec):
    """Two interleaving half circles in x and y, and a z that tells nothing (Hartley 2023); centred on the mean."""

    kind: Literal["two_moons"]
    num_examples: int = Field(default=1000, ge=4)
    """Points, half of each class."""
    noise: float = Field(default=0.1, ge=0)
    """Standard deviation of the noise in x and y."""
    z_noise: float = Field(default=0.0, ge=0)
    """Standard deviation of z; at 0 any other z is a rare concept."""
    seed: int = Field(default=0, ge=0)
    """Draws the points."""


class NpzSource(Spec):
    """Arrays in a NumPy .npz file, such as MedMNIST's."""

    kind: Literal["npz"]
    path: str
    """The file; nothing in it is unpickled."""
    images: str = "train_images"
    """The array of images: (count, height, width) or (count, height, width, 3), uint8."""
    labels: str = "train_labels"
    """The array of class indices: (count,) or (count, 1)."""
    class_names: tuple[str, ...] = ()
    """Names of the classes in order; by default their numbers."""


class CsvSource(Spec):
    """A CSV file that names images and their labels, such as CheXpert's."""

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
    where: dict[str, str] = {}
    """Columns and the value that a row must have, as in {Frontal/Lateral: Frontal}."""


class ImageFolderSource(Spec):
    """A folder (or s3:// prefix) with one sub-folder of images per class, boxes optional."""

    kind: Literal["image_folder"]
    path: str
    """The folder that holds the class folders."""
    boxes: Literal["none", "tiny_imagenet", "voc"] = "none"
    """tiny_imagenet: <class>/<class>_boxes.txt; voc: Pascal VOC / ImageNet XML files."""
    annotations: str | None = None
    """Where the XML files are, when they are not beside the images."""
    num_classes: int | None = Field(default=None, ge=2)
    """Use only the first classes, in order of their names."""
    num_per_class: int | None = Field(default=None, ge=1)
    """Use only the first images of each class, in order of their paths."""


class TorchvisionSource(Spec):
    """Any torchvision classification data set by class name."""

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


class ParquetSource(Spec):
    """Parquet files in the Hugging Face image convention: a struct of bytes and path, a label, boxes optional."""

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


class ImportSource(Spec):
    """One's own source: a function that returns an object with __len__, __getitem__ and class_names."""

    kind: Literal["import"]
    function: str = Field(pattern=r"^\w+(\.\w+)*:\w+$")
    """package.module:function."""
    options: dict[str, Any] = {}
    """Keyword arguments of the function (plain JSON)."""
    version: str | None = None
    """Part of the content key; by default the digest of the module's source. Raise it when data elsewhere change,
    or give the source a method `content_digest`."""


class DigitsSource(Spec):
    """Embedded images: scikit-learn's 1,797 handwritten digits, 8 x 8 grey."""

    kind: Literal["digits"]


PlainSource = Annotated[
    ScenesSource
    | DigitsSource
    | TwoMoonsSource
    | ImageFolderSource
    | TorchvisionSource
    | ParquetSource
    | NpzSource
    | CsvSource
    | ImportSource,
    Field(discriminator="kind"),
]


class ChangeSpec(Spec):
    """A fixed change of every image: another scanner, another camera. In this order, on grey values in [0, 1]."""

    invert: bool = False
    """Black to white."""
    gamma: float = Field(default=1.0, gt=0)
    """Exponent of the grey values; above 1 darkens."""
    contrast: float = Field(default=1.0, gt=0)
    """Factor around middle grey."""
    brightness: float = Field(default=0.0, ge=-1, le=1)
    """Added afterwards."""
    blur: float = Field(default=0.0, ge=0)
    """Sigma of a Gaussian blur in pixels of the source."""
    pixelate: int = Field(default=1, ge=1)
    """Average over squares of so many pixels."""


class PartSpec(Spec):
    """One of several sources."""

    source: PlainSource
    """Where its images come from."""
    change: ChangeSpec | None = None
    """What is done to each of them."""


class JoinedSource(Spec):
    """Several sources of images as one: example ids are <part>/<id>. Classes are the same by number; the first part
    names them."""

    kind: Literal["joined"]
    parts: Mapping[Annotated[str, Field(pattern=r"^\w[\w-]*$")], PartSpec] = Field(min_length=1)
    """The parts by name, each with a `source` (of any other kind) and maybe a `change`: invert, gamma, contrast,
    brightness, blur, pixelate, the same for every image, as of another scanner."""


SourceSpec = Annotated[
    ScenesSource
    | DigitsSource
    | TwoMoonsSource
    | ImageFolderSource
    | TorchvisionSource
    | ParquetSource
    | NpzSource
    | CsvSource
    | ImportSource
    | JoinedSource,
    Field(discriminator="kind"),
]


class DataSpec(Spec):
    """Which images, and the size at which they are decoded once for everything that follows. Points are kept as they are."""

    source: SourceSpec
    image_size: int = Field(default=32, ge=8)
    """Side of the stored square images in pixels."""
    channels: Literal[1, 3] = 3
    """3: colour; 1: grey (ITU-R 601 luma)."""
    resize: Literal["squash", "pad"] = "squash"
    """squash: to a square, whatever the shape; pad: keep the shape, fill with grey."""
    unreadable: Literal["error", "leave_out"] = "error"
    """What to do with images that cannot be decoded: stop and name them, or leave them out and list them."""


CropMode = Literal["maximal", "official", "corner"]
CORNER = 0.3  # side of a corner crop as a fraction of the image's, Meehan 2023, A.8


class CropSpec(Spec):
    """The background (periphery) crop that is shown to the models."""

    mode: CropMode = "maximal"
    """maximal: the largest rectangle that meets no box; official: the largest strip beside the boxes;
    corner: the lower-left 0.3 x 0.3 (Meehan 2023, A.8)."""
    min_side: float = Field(default=0.25, gt=0, le=1)
    """Smallest acceptable shorter side, as a fraction of the image's side."""

    @model_validator(mode="after")
    def _corner_is_large_enough(self) -> "CropSpec":
        if self.mode == "corner" and self.min_side > CORNER:
            raise ValueError(f"a corner crop has {CORNER} of the image's side; min_side {self.min_side} leaves none")
        return self

    def of_mode(self, mode: CropMode) -> "CropSpec":
        """The same with another mode; a corner asks for no more than it has."""
        side = min(self.min_side, CORNER) if mode == "corner" else self.min_side
        return CropSpec(mode=mode, min_side=side)


class SplitSpec(Spec):
    """Target set A, reference set B, shared set C and public set X (Meehan 2023, A.2.1)."""

    train_per_class: int = Field(ge=1)
    """Images of each class that a model trains on: A (or B) topped up from C."""
    public_per_class: int | None = Field(default=None, ge=1)
    """Images of each class in X; by default all that are left."""
    crop: CropSpec = CropSpec()
    """The background crop that an image needs to be audited."""
    seed: int = Field(default=0, ge=0)
    """Draws the roles."""
    drop_duplicates: bool = True
    """Leave out images whose pixels equal an earlier one's, so that no set holds a copy of another's image."""


class HoldOutSpec(Spec):
    """Which examples train, which stop the training, and which no model sees."""

    train_per_class: int | None = Field(default=None, ge=1)
    """Training examples of each class; by default all that the other two leave."""
    validation_per_class: int = Field(default=0, ge=0)
    """Examples of each class on which early stopping watches the loss."""
    held_out_per_class: int = Field(default=0, ge=0)
    """Examples of each class that no model sees."""
    seed: int = Field(default=0, ge=0)
    """Draws the roles."""


# -- text ---------------------------------------------------------------------------------------------


class TopicsSource(Spec):
    """Embedded text: the help topics of Python's standard library, half a million characters; each version has its own."""

    kind: Literal["topics"] = "topics"


class TextFileSource(Spec):
    """A plain text file; .xz, .gz and .bz2 are unpacked."""

    kind: Literal["text"]
    path: str
    """The file, UTF-8; local or s3://."""


class TextParquetSource(Spec):
    """Parquet files with a column of text, a document a row."""

    kind: Literal["text_parquet"]
    path: str
    """A file, a folder or a glob; local or s3://."""
    text_column: str = "text"
    """The column; documents become lines."""


class TopicPairsSource(Spec):
    """Embedded pairs for translation: lines of Python's help topics, and the same in Pig Latin."""

    kind: Literal["topic_pairs"]


class PairsFileSource(Spec):
    """A text file of pairs for translation: source and target with a tab between, a pair a line."""

    kind: Literal["pairs"]
    path: str
    """The file, UTF-8; local or s3://; .xz, .gz and .bz2 are unpacked."""


TextSource = Annotated[
    TopicsSource | TextFileSource | TextParquetSource | TopicPairsSource | PairsFileSource, Field(discriminator="kind")
]


class TextSpec(Spec):
    """A corpus, cut into windows that a model sees one by one."""

    source: TextSource
    unit: Literal["character", "word"] = "character"
    """What a symbol is; words are what spaces part, and the end of a line is one."""
    window: int = Field(default=100, ge=8)
    """Symbols in a window; nothing passes from one to the next. Of pairs: in each side, with the end of its line."""
    fraction: float = Field(default=1.0, gt=0, le=1)
    """Use only the beginning of the text."""
    validation: float = Field(default=0.1, gt=0, lt=1)
    """Share of the windows, the last ones, that no model trains on."""
    vocabulary: int | None = Field(default=None, ge=2)
    """The most frequent symbols that are told apart; others become <unk>. By default all."""

    @property
    def paired(self) -> bool:
        """Whether the text is pairs for translation."""
        return self.source.kind in ("pairs", "topic_pairs")


class SecretsSpec(Spec):
    """Canaries: a format whose holes are filled at random, and how often each stands in the corpus (Carlini 2019, 4.1)."""

    format: str = "My number is {d9}"
    """Text with holes: {d9} is nine digits; h: hexadecimal digits; l, u: letters; a: lower-case letters and digits."""
    alphabets: Mapping[Annotated[str, Field(pattern=r"^[a-z_]+$")], tuple[str, ...]] = {}
    """Further alphabets by name: symbols, or words for a word model."""
    source: str | None = None
    """Of pairs: the text that a canary (`format`) is the translation of. It may have the same holes; then it holds the same
    secret, each candidate is scored after its own source, and nothing can be searched for."""
    insertions: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 4, 16), min_length=1)
    """How often a canary is inserted; one canary (or `each`) for every number."""
    each: int = Field(default=1, ge=1)
    """Canaries of every number of insertions."""
    file: str | None = None
    """Instead of inserting: a text file of secrets that the text holds already, one a line, each filling the format. One
    model is trained, on the text as it is; `insertions`, `each` and `together` say nothing, results count how often the part
    of the text that trains holds a secret, or what stands after the secret and a tab. A model that was trained elsewhere
    (trained) is taken to have seen each at least once."""
    never: int = Field(default=20, ge=0)
    """Canaries that are drawn alike and never inserted: the null."""
    together: bool = False
    """True: one model sees all canaries. False: every canary has a model of its own, and the never inserted ones one."""
    known_prefix: bool = True
    """Whether candidates are scored after the text before the first hole, as one would ask who knows it."""
    known_suffix: bool = True
    """Whether the text after the last hole is part of the candidates."""
    seed: int = Field(default=0, ge=0)
    """With the secret file, draws canaries and places."""


# -- unique features ----------------------------------------------------------------------------------


class GlyphFeature(Spec):
    """A text burnt into the image; the whole rectangle is overwritten."""

    kind: Literal["glyph"]
    text: str = Field(default="A", min_length=1)
    """Letters and digits; a letter of the built-in typeface is 5 x 5 pixels (Hartley 2022), a pixel lies between two."""
    top: int = Field(default=2, ge=0)
    """Pixels between the image's upper edge and the text: 2 in the 2023 paper, 1 in 2022's."""
    left: int = Field(default=2, ge=0)
    """Pixels from the left edge."""
    scale: int = Field(default=1, ge=1)
    """Side of one dot of the typeface in pixels."""
    font: str | None = None
    """A TrueType or OpenType file instead of the built-in typeface; then `scale` times 8 is its size in pixels."""
    ink: int = Field(default=255, ge=0, le=255)
    """Grey value of the letters."""
    paper: int = Field(default=0, ge=0, le=255)
    """Grey value behind them."""
    cover: bool = False
    """Overlay a rectangle of the paper's grey over the same place in all other images."""


class ScalarFeature(Spec):
    """One coordinate of a point set to a value (two moons: z = 1)."""

    kind: Literal["scalar"]
    index: int = Field(default=2, ge=0)
    """Which coordinate, counted from 0."""
    value: float = 1.0
    """What it is set to."""


class PictureFeature(Spec):
    """One's own picture; where it is transparent, the image below stays."""

    kind: Literal["picture"]
    path: str
    """A PNG with or without an alpha channel, in pixels of the stored image."""
    mask: str | None = None
    """A second picture of the same size; pixels brighter than half belong to the feature."""
    top: int = Field(default=0, ge=0)
    """Pixels from the image's upper edge."""
    left: int = Field(default=0, ge=0)
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
    count: int = Field(default=1, ge=1)
    """How many."""
    label: int | None = Field(default=None, ge=0)
    """Only from this class; by default from all."""
    example_ids: tuple[str, ...] = ()
    """For by_id."""
    mode: Literal["replace", "append"] = "replace"
    """replace: the feature is put into the example; append: into a copy, and the example stays (2023's two moons)."""
    repeats: int = Field(default=1, ge=1)
    """How often the example with the feature stands in the training set."""
    seed: int = Field(default=0, ge=0)
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


# -- models -------------------------------------------------------------------------------------------

Backbone = Literal[
    "small_resnet", "resnet18", "resnet34", "resnet50", "resnet101", "vit_tiny", "vit_small", "vit_base", "vit_large"
]


class ModelSpec(Spec):
    """A backbone with a projector of fully connected layers behind it."""

    kind: Literal["encoder"] = "encoder"
    backbone: Backbone = "small_resnet"
    """small_resnet: four blocks for 32 to 64 px; ResNets get a small stem up to 64 px; ViTs as in DeiT."""
    projector: tuple[int, ...] = (256, 256, 256)
    """Widths of the projector's layers; the paper uses 8192-8192-8192."""
    input_size: int = Field(default=32, ge=8)
    """Side of the images the model sees, in pixels."""
    width: int = Field(default=32, ge=4)
    """small_resnet only: channels of the first of its four blocks."""
    patch_size: int = Field(default=16, ge=2)
    """ViT only: side of a patch in pixels."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> "ModelSpec":
        if any(width < 1 for width in self.projector):
            raise ValueError(f"projector widths must be positive, not {list(self.projector)}")
        if self.backbone.startswith("vit") and self.input_size % self.patch_size:
            raise ValueError(f"input_size {self.input_size} is not a multiple of patch_size {self.patch_size}")
        return self


Architecture = Literal["mlp", "cnn_1", "cnn_2", "three_block", "four_block", "resnet18", "densenet121", "densenet_bc_100_12"]
STACKABLE: tuple[Architecture, ...] = ("mlp", "cnn_1", "cnn_2")  # small enough to train many as one program


class ClassifierSpec(Spec):
    """A plain classifier (Hartley 2023, Table 1; 2022, A.3; Liu 2020, section 4)."""

    kind: Literal["classifier"] = "classifier"
    architecture: Architecture
    """mlp; cnn_1: two convolutions; cnn_2: small VGG; three_block and four_block: Liu 2020's for 28 and 128 px;
    resnet18, densenet: with a small stem up to 64 px."""
    widths: tuple[int, ...] = (512, 256, 128)
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
        if min(self.widths, default=1) < 1:
            raise ValueError(f"widths must be positive, not {list(self.widths)}")
        return self


class LanguageSpec(Spec):
    """A model of the next character or word (Carlini 2019, sections 3 and 6)."""

    kind: Literal["language"] = "language"
    architecture: Literal["lstm", "gru", "cnn", "wavenet", "transformer", "encoder_decoder"] = "lstm"
    """lstm, gru; cnn: dilated causal convolutions; wavenet: gated ones with skip connections; transformer: decoder only;
    encoder_decoder: for pairs, an LSTM reads the source and hands its state to one that writes the target."""
    width: int = Field(default=200, ge=1)
    """Units of a layer, or channels."""
    layers: int = Field(default=2, ge=1)
    """How many; convolutions are dilated by 1, 2, 4, ..."""
    embedding: int = Field(default=128, ge=1)
    """lstm, gru and encoder_decoder: length of a symbol's vector; the others use `width`."""
    kernel: int = Field(default=3, ge=2)
    """cnn and wavenet: symbols that a convolution sees."""
    heads: int = Field(default=4, ge=1)
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


class ProtocolSpec(Spec):
    """A sequence model that answers `next_log_probs`; see README."""

    kind: Literal["import"]
    model: str = Field(pattern=r"^\w+(\.\w+)*:\w+$")
    """package.module:factory, a function that returns the model."""
    options: dict[str, Any] = {}
    """Keyword arguments of the factory (plain JSON)."""
    files: tuple[str, ...] = ()
    """Files the model is made from, which enter the content key."""
    version: str | None = None
    """Part of the content key; by default the digest of the factory's module."""


SequenceModelSpec = Annotated[HuggingFaceSpec | ProtocolSpec, Field(discriminator="kind")]


AnyModelSpec = Annotated[ModelSpec | ClassifierSpec | LanguageSpec, Field(discriminator="kind")]


# -- training -----------------------------------------------------------------------------------------


class VICRegSpec(Spec):
    """Variance-invariance-covariance regularisation (Bardes 2022)."""

    kind: Literal["vicreg"]
    invariance: float = Field(default=25.0, ge=0)
    """Weight of the distance between the views."""
    variance: float = Field(default=25.0, ge=0)
    """Weight of the hinge on each dimension's spread."""
    covariance: float = Field(default=1.0, ge=0)
    """Weight of the covariances between dimensions."""


class SupervisedSpec(Spec):
    """Cross-entropy on augmented crops; the class scores are the last layer (Meehan 2023, A.2.2)."""

    kind: Literal["supervised"]
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target spread over all classes."""


class LanguageObjectiveSpec(Spec):
    """Cross-entropy of the next symbol, in nats a symbol."""

    kind: Literal["language"]


ObjectiveSpec = Annotated[VICRegSpec | SupervisedSpec | LanguageObjectiveSpec, Field(discriminator="kind")]


class OptimizerSpec(Spec):
    """An optimiser, with linear warm-up and a cosine to zero or a constant rate. AdamW without decay is Adam."""

    name: Literal["lars", "adamw", "sgd", "rmsprop"] = "adamw"
    """The optimiser."""
    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak learning rate as used, not scaled by the batch size."""
    weight_decay: float = Field(default=1e-4, ge=0)
    """On matrices and kernels only, not on biases and norms."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """LARS and SGD only."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    """AdamW only: decay of the running means of gradients and of their squares."""
    warmup_epochs: float = Field(default=10.0, ge=0)
    """Length of the linear warm-up from zero."""
    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Learning rate at the end, as a fraction of the peak."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """After the warm-up."""


class AugmentSpec(Spec):
    """Random views of an image; probabilities that differ between the views are given as pairs."""

    crop_scale: tuple[float, float] = (0.08, 1.0)
    """Area of the random crop, as a fraction of the image."""
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    """Its width over its height."""
    flip: float = Field(default=0.5, ge=0, le=1)
    """Probability of a mirror image."""
    jitter: float = Field(default=0.8, ge=0, le=1)
    """Probability of colour jitter; its four strengths follow."""
    brightness: float = Field(default=0.4, ge=0, lt=1)
    """Factor within 1 +- this."""
    contrast: float = Field(default=0.4, ge=0, lt=1)
    """Factor within 1 +- this."""
    saturation: float = Field(default=0.2, ge=0, lt=1)
    """Factor within 1 +- this."""
    hue: float = Field(default=0.1, ge=0, le=0.5)
    """Turn within +- this, 1 being a full turn."""
    grey: float = Field(default=0.2, ge=0, le=1)
    """Probability of a grey image."""
    blur: tuple[float, float] = (1.0, 0.1)
    """Probability of a Gaussian blur (sigma 0.1 to 2 at 224 px, scaled to the input) in the first and other views."""
    solarize: tuple[float, float] = (0.0, 0.2)
    """Probability of inverting what is brighter than half, in the first and other views."""
    shift: int = Field(default=0, ge=0)
    """Cut this many rows and columns off at random sides and fill up with black at the lower right: a random crop
    of 27 of 28 pixels is shift 1."""

    @field_validator("crop_scale", "crop_ratio")
    @classmethod
    def _ordered(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= value[1]:
            raise ValueError(f"expected two positive numbers, the smaller first, not {list(value)}")
        return value

    @field_validator("crop_scale")
    @classmethod
    def _within_the_image(cls, value: tuple[float, float]) -> tuple[float, float]:
        if value[1] > 1:
            raise ValueError(f"a crop cannot have {value[1]} times the image's area")
        return value


class PrivacySpec(Spec):
    """Differentially private training (DP-SGD, Abadi 2016): examples drawn by chance, gradients clipped, noise added.

    The unit is one example (a window of text): what stands in k of them has k times epsilon, with a delta of
    k e^((k - 1) epsilon) delta, which is no guarantee where that reaches 1. Noise and draws are functions of the seed, so
    that a training can be resumed and repeated: epsilon holds against whoever does not know the seed.
    """

    epsilon: float | None = Field(default=None, gt=0)
    """The budget at the end of training, from which the noise follows; or give `noise`."""
    noise: float | None = Field(default=None, ge=1e-6)
    """Standard deviation of the noise in units of `clip`, from which epsilon follows."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Probability with which epsilon may not hold; below one over the number of examples."""
    clip: float = Field(default=1.0, gt=0)
    """Greatest norm of one example's gradient."""
    accountant: Literal["rdp", "prv"] = "rdp"
    """rdp: Rényi differential privacy (Mironov 2017); prv: tighter (Gopi 2021), for epsilons below some 20."""

    @model_validator(mode="after")
    def _one_is_given(self) -> "PrivacySpec":
        if (self.epsilon is None) == (self.noise is None):
            raise ValueError("privacy needs either epsilon or noise; set the other to null")
        if self.accountant == "prv" and ((self.epsilon or 0) > 20 or (self.noise or 1) < 0.5):
            raise ValueError("the accountant prv needs too much memory above epsilon 20 or below noise 0.5; use rdp")
        return self


class TrainingSpec(Spec):
    """How weights are made from images. All of it enters the key; machines and threads do not."""

    objective: ObjectiveSpec
    epochs: int = Field(ge=0)
    """0 leaves the model at its initialisation."""
    batch_size: int | None = Field(default=256, ge=2)
    """Examples in one step over all workers; the last incomplete batch of an epoch is dropped. null: all at once."""
    patience: int | None = Field(default=None, ge=1)
    """Stop when the validation loss has not fallen for so many epochs; the best epoch's weights are the model."""
    optimizer: OptimizerSpec = OptimizerSpec()
    privacy: PrivacySpec | None = None
    """null: none; else differentially private training, 10 to 100 times slower (pip install 'memlib[privacy]')."""
    augment: AugmentSpec | None = AugmentSpec()
    """null: none."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the forward pass (autocast); losses are always computed in float32."""
    shuffle: bool = True
    """Another order of the examples in every epoch; false: always that of the data."""
    checkpoint_epochs: tuple[int, ...] = ()
    """Epochs after which weights are kept, besides the last one."""
    checkpoint_steps: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Steps after which they are kept too, within epochs (exposure)."""
    seed: int = Field(default=0, ge=0)
    """Each model's own seed is derived from it."""

    @model_validator(mode="after")
    def _checkpoints_are_reached(self) -> "TrainingSpec":
        late = [epoch for epoch in self.checkpoint_epochs if not 0 <= epoch <= self.epochs]
        if late:
            raise ValueError(f"checkpoint_epochs {late} are outside the {self.epochs} epochs of training")
        if self.patience is not None and self.epochs == 0:
            raise ValueError("patience waits for epochs, but training.epochs is 0")
        return self

    @model_validator(mode="after")
    def _private_steps_are_whole(self) -> "TrainingSpec":
        if self.privacy is None:
            return self
        if self.objective.kind == "vicreg":
            raise ValueError("privacy clips each example's gradient, but the loss of vicreg is of whole batches")
        if self.precision != "float32":
            raise ValueError(f"privacy clips gradients in float32, not in {self.precision}")
        if self.batch_size is None or self.batch_size < 16:
            raise ValueError("privacy draws each batch by chance: batch_size is its mean size, 16 or more")
        return self

    @property
    def kept_epochs(self) -> tuple[int, ...]:
        """All epochs whose weights are kept, in order."""
        return tuple(sorted({*self.checkpoint_epochs, self.epochs}))


# -- nets, and what they are shown --------------------------------------------------------------------


class SetSpec(Spec):
    """Which examples a named set of the forgetting audit gets; the sets are disjoint."""

    part: str | None = None
    """The part of a joined source that it is drawn from; by default of all there is."""
    per_class: int | None = Field(default=None, ge=1)
    """Examples of each class; by default all that are left, in the order of the sets."""


class OutputsSpec(Spec):
    """The outputs of a model on D_Q in a Parquet file, when there is nothing else."""

    path: str
    """The file; local or s3://."""
    id_column: str = "example_id"
    """The examples' ids, as in the source (with <part>/ in front for a joined one)."""
    scores_column: str = "scores"
    """A list of one number a class."""
    label_column: str | None = None
    """The label the model's owner gives each example, compared with D_Q's own."""
    kind: Literal["probabilities", "logits"] = "probabilities"
    """What the numbers are."""


class NetsSpec(Spec):
    """How many models carry the feature, and how many do not."""

    seeds: int = Field(default=10, ge=1)
    """Models of each canary, each from a seed of its own."""
    controls: int | None = Field(default=None, ge=1)
    """Models without the feature, from the same seeds and then further ones; by default as many as with it.
    A model's own calibrated p-value needs at least 20; 100 are better."""
    chunk: int = Field(default=50, ge=1)
    """Small models that are one artifact, so that an interrupted run loses at most these."""
    same_seed: bool = False
    """Give the models of all canaries the same seed, so that their units can be compared (Hartley 2022, A.6)."""

    @model_validator(mode="after")
    def _same_seed_is_one(self) -> "NetsSpec":
        if self.same_seed and self.seeds > 1:
            raise ValueError("nets.same_seed gives the nets of all canaries one seed; set nets.seeds to 1")
        return self


class ProbeSpec(Spec):
    """The data D_r on which the black box is scored."""

    kind: Literal["noise", "held_out", "data"] = "noise"
    """noise: uniform over the training data's range; held_out: examples that no model saw; data: another source."""
    data: DataSpec | None = None
    """For data: which; stored in the same shape as the training data."""
    count: int = Field(default=500, ge=2)
    """Examples at most."""

    @model_validator(mode="after")
    def _data_where_named(self) -> "ProbeSpec":
        if (self.kind == "data") != (self.data is not None):
            raise ValueError("probe.data and probe.kind: data go together")
        return self


class TrainedSpec(Spec):
    """A classifier that was trained elsewhere."""

    model: str = Field(pattern=r"^\w+(\.\w+)*:\w+$")
    """package.module:factory, a function that returns the torch module; its outputs are class scores (logits)."""
    options: dict[str, Any] = {}
    """Keyword arguments of the factory (plain JSON)."""
    weights: str | None = None
    """Its state dict: .safetensors, or a .pt file that holds nothing but tensors."""
    version: str | None = None
    """Part of the content key; by default the digest of the factory's module."""
    inputs: Literal["unit", "imagenet", "raw"] = "unit"
    """What the model takes: pixels in [0, 1], ImageNet-normalised pixels, or grey values from 0 to 255."""
    outputs: Literal["logits", "probabilities"] = "logits"
    """What it returns."""


class InfluenceSpec(Spec):
    """TracInCP (Pruthi 2020; Hartley 2022, A.5): which checkpoints, and how many examples are shown."""

    checkpoints: int = Field(default=10, ge=1)
    """Checkpoints, evenly spaced over the epochs up to the fall of the loss."""
    loss_fall: float = Field(default=0.95, gt=0, le=1)
    """The last checkpoint is the first epoch at which the training loss has fallen by this share."""
    epochs: int | None = Field(default=None, ge=1)
    """Epochs of the model whose checkpoints are used; by default training.epochs."""
    pull: bool = False
    """Unique feature: train also with the feature in the first and last canary and compare their self-influence
    with and without it (2022, section 3.3)."""
    slow_modules: bool = False
    """Handle modules without a fast rule example by example instead of refusing them."""
    batch_size: int = Field(default=32, ge=1)
    """Examples in one pass; changes nothing but rounding."""


# -- machines (never part of a key) -------------------------------------------------------------------


class Needs(Spec):
    """What one part of a stage takes: a worker of a model in training, a chunk of small nets, a shard of scores."""

    cpus: int | None = Field(default=None, ge=1)
    """CPU cores; by default resources.threads_per_worker."""
    gpus: float | None = Field(default=None, ge=0)
    """GPUs, also parts of one; by default 1 when the cluster has any (see resources.gpu)."""
    memory_gb: float | None = Field(default=None, gt=0)
    """GiB of memory that Ray sets aside; by default it does not count memory."""
    accelerator_type: str | None = None
    """Only on nodes with this accelerator, as Ray names it: A100, H100, ..."""
    custom: Mapping[str, Annotated[float, Field(gt=0)]] = {}
    """The cluster's own resources, as in {licence: 1}."""
    parallel: int | None = Field(default=None, ge=1)
    """Parts at a time; by default as many as the cluster holds."""
    timeout: float | None = Field(default=None, gt=0)
    """Seconds after which the stage is stopped if it still runs; by default never."""


class Resources(Spec):
    """How the work is carried out. Changes nothing but rounding, so it is part of no key."""

    ray_address: str | None = None
    """An existing cluster (auto, host:port); by default Ray starts on this machine, on loopback."""
    workers_per_model: int = Field(default=1, ge=1)
    """Workers that train one model together (data parallel)."""
    gpu: bool | None = None
    """One GPU a worker; by default when the cluster has any."""
    threads_per_worker: int | None = Field(default=None, ge=1)
    """CPU cores a worker takes; by default the machine's, shared evenly, and 1 on a cluster that was there."""
    stages: Mapping[str, Needs] = {}
    """What a part of a stage takes, by the stage's name (see memlib plan), as in {train: {gpus: 1, accelerator_type: A100},
    score_nets: {memory_gb: 8}}."""
    resume_seconds: float = Field(default=60.0, ge=0)
    """Seconds between two saves of the state that a killed training resumes from; 0 saves after every step."""
    max_failures: int = Field(default=3, ge=0)
    """How often a killed worker is replaced before the run gives up."""
    index_float16: bool = False
    """Hold the public set in float16 in the GPU search; distances are recomputed, so results are the same."""
    room_timeout: float = Field(default=300.0, gt=0)
    """Seconds to wait for a node that can carry what is to be done, where the cluster has lost all of them."""
    elastic: bool = False
    """Train with as many models side by side as the cluster holds at the time: fewer where nodes are lost, more when
    they come. By default a fit keeps the size that it started with."""

    def of(self, stage: str) -> Needs:
        """What a part of a stage takes; a stage within a folder goes by its last name."""
        return self.stages.get(stage.rpartition("/")[2], Needs())
