"""Sources of examples behind one indexable interface.

Example ids are stable: they are paths or rows within the source and the same on every machine. A source's `content_digest`
identifies its content, so that results are reused if and only if the content is unchanged.
"""

import inspect
import operator
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

import numpy as np
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray
from PIL import Image

from memlib.data.builtin import BreastCancer, CaptionedScenes, Digits, Scenes, TwoMoons
from memlib.data.examples import (
    NO_BOXES,
    Example,
    Source,
    decode_example,
    list_files,
    listing_digest,
    numbered_classes,
)
from memlib.data.images.folder import AnnotatedFolder, CsvImages, ImageFolder
from memlib.data.images.intensities import Scaled
from memlib.data.images.packed import NpzImages, ParquetImages
from memlib.data.joined import Joined
from memlib.data.labels import Labelled
from memlib.data.tables.source import Ids, Table
from memlib.errors import DataError
from memlib.pipeline.user_code import load, version_of
from memlib.specs import ImportSource, IntensitySpec, LabelsSpec, PlainSource, SourceSpec, TorchvisionSource
from memlib.specs.data import (
    AnnotatedFolderSource,
    BreastCancerSource,
    CaptionedScenesSource,
    CsvSource,
    DigitsSource,
    IdsSource,
    ImageFolderSource,
    JoinedSource,
    NpzSource,
    ParquetSource,
    ScenesSource,
    TableSource,
    TwoMoonsSource,
)


def open_source(spec: SourceSpec, intensities: IntensitySpec | None = None, labels: LabelsSpec | None = None) -> Source:
    """Open the source that a spec describes; its examples are images with 8 bits per channel, or points.

    Args:
        intensities: intensities of black and white, for images with more than 8 bits per channel.
        labels: labels whose examples are left out.

    Raises:
        DataError: when the source is missing, or its layout differs from the spec.
    """
    if isinstance(spec, JoinedSource):
        parts = {name: Scaled(_open(part.source), intensities) for name, part in spec.parts.items()}
        return Labelled(Joined(parts, spec), labels)
    return Labelled(Scaled(_open(spec), intensities), labels)


def _open(spec: PlainSource) -> Source:
    match spec:
        case ScenesSource():
            return Scenes(spec)
        case CaptionedScenesSource():
            return CaptionedScenes(spec)
        case DigitsSource():
            return Digits(spec)
        case BreastCancerSource():
            return BreastCancer(spec)
        case TwoMoonsSource():
            return TwoMoons(spec)
        case ImageFolderSource():
            return ImageFolder(spec)
        case AnnotatedFolderSource():
            return AnnotatedFolder(spec)
        case TorchvisionSource():
            return Torchvision(spec)
        case ParquetSource():
            return ParquetImages(spec)
        case NpzSource():
            return NpzImages(spec)
        case CsvSource():
            return CsvImages(spec)
        case TableSource():
            return Table(spec)
        case IdsSource():
            return Ids(spec)
        case ImportSource():
            return import_source(spec)
    assert_never(spec)


class Torchvision:
    """A torchvision classification data set; example ids are <split>-<row>."""

    def __init__(self, spec: TorchvisionSource) -> None:
        import torchvision

        self._spec = spec
        kind: Any = getattr(torchvision.datasets, spec.name, None)
        if not inspect.isclass(kind):
            names = [n for n in dir(torchvision.datasets) if inspect.isclass(getattr(torchvision.datasets, n))]
            raise DataError(f"torchvision has no data set {spec.name!r}; it has {', '.join(names)}")
        accepted = inspect.signature(kind.__init__).parameters
        options: dict[str, Any] = {"root": spec.root}
        if "train" in accepted:
            if spec.split not in ("train", "test"):
                raise DataError(f"torchvision.datasets.{spec.name} has the splits train and test, not {spec.split!r}")
            options["train"] = spec.split == "train"
        elif "split" in accepted:
            options["split"] = spec.split
        if "download" in accepted:
            options["download"] = spec.download
        try:
            self._data: Any = kind(**options)
        except (RuntimeError, ValueError, TypeError, OSError) as error:
            raise DataError(f"torchvision.datasets.{spec.name} at {spec.root}: {error}") from error
        self._attribute = None if spec.attribute is None else self._find_attribute(spec.attribute)
        if self._attribute is not None:
            self.class_names = [f"not {spec.attribute}", str(spec.attribute)]
            return
        stated: Any = getattr(self._data, "classes", None)
        labels: Any = getattr(self._data, "targets", getattr(self._data, "labels", None))
        if stated is None and labels is None:
            raise DataError(f"torchvision.datasets.{spec.name} has neither class names nor labels; use kind: import")
        if labels is not None and np.asarray(labels).ndim == 1 and np.asarray(labels).dtype.kind in "iu" and len(labels):
            self.labels = np.asarray(labels).tolist()
        if stated is not None:
            self.class_names = [str(name) for name in stated]
        else:
            self.class_names = numbered_classes(int(np.asarray(labels).max()), f"torchvision.datasets.{spec.name}")

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Example:
        image, label = self._data[index]
        if self._attribute is not None:
            label = label[self._attribute]
        name = f"{self._spec.split}-{index:07d}"
        return decode_example(image, name, int(label))

    def _find_attribute(self, name: str) -> int:
        names = list(getattr(self._data, "attr_names", []))
        if name not in names:
            seen = f"; it has {', '.join(n for n in names if n)}" if names else ""
            raise DataError(f"torchvision.datasets.{self._spec.name} has no attribute {name!r}{seen}")
        return names.index(name)

    def content_digest(self) -> str:
        """Return a digest of the data set's own files below the root."""
        folder = getattr(self._data, "raw_folder", None)
        base = getattr(self._data, "base_folder", None)
        if folder is None:
            folder = os.path.join(self._spec.root, base) if isinstance(base, str) else self._spec.root
        fs = LocalFileSystem()
        return listing_digest(fs, str(folder), list_files(fs, str(folder)))


class _Imported:
    """A user's source; its digest combines the version, or the module's digest, with the source's own digest, if any.

    Its items are examples, mappings with the fields of an example, or pairs of an image and a label as in torchvision.
    """

    def __init__(self, inner: Any, digest: str) -> None:
        self._inner, self._digest = inner, digest
        self.class_names: list[str] = [str(name) for name in getattr(inner, "class_names", getattr(inner, "classes", ()))]
        self.attributes: Mapping[str, Mapping[str, str]] = getattr(inner, "attributes", {})

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Example:
        item = self._inner[index]
        if isinstance(item, Example):
            return item
        try:
            if isinstance(item, Mapping):
                return Example(**item)
            image, label = item
            number = operator.index(label)
        except (TypeError, ValueError) as error:
            seen = f"item {index} of the imported source is a {type(item).__name__}"
            raise DataError(f"{seen}, not an Example or a pair of an image and a class index ({error})") from error
        name = f"{index:07d}"
        if isinstance(image, Image.Image):
            return decode_example(image, name, number)
        return Example(name, _as_pixels(image, index), number, NO_BOXES)

    def content_digest(self) -> str:
        own = getattr(self._inner, "content_digest", None)
        return f"{self._digest}:{own()}" if callable(own) else self._digest


def _as_pixels(image: Any, index: int) -> NDArray[Any]:
    """Convert an array, or a tensor from torchvision's ToTensor, to pixels (height, width, 3) or to intensities."""
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3):
        pixels = np.moveaxis(pixels, 0, 2)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3) or pixels.dtype.kind not in "uif":
        raise DataError(f"item {index} of the imported source holds {pixels.dtype} {pixels.shape}, which is not an image")
    if pixels.dtype == np.uint8 and pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=2)
    return pixels.astype(np.float32) if pixels.dtype.kind == "f" else pixels


def import_source(spec: ImportSource) -> Source:
    """Call the user's `package.module:function` and check the source that it returns."""
    function, module_name = load(spec.function), spec.function.split(":")[0]
    try:
        source = function(**spec.options)
    except (Exception, SystemExit) as error:
        raise DataError(f"{spec.function} failed with {spec.options}: {type(error).__name__}: {error}") from error
    missing = [part for part in ("__len__", "__getitem__") if not hasattr(source, part)]
    missing += [] if hasattr(source, "class_names") or hasattr(source, "classes") else ["class_names (or classes)"]
    if missing:
        raise DataError(f"{spec.function} returned a {type(source).__name__} without {', '.join(missing)}")
    file = inspect.getsourcefile(sys.modules[module_name])
    if spec.version is None and file is None:
        raise DataError(f"the source code of {module_name} cannot be read; declare a version")
    return _Imported(source, spec.version or version_of(module_name, Path(str(file))))
