"""Where examples come from: one indexable interface, whatever the source.

Example ids are stable: the path or row within the source, the same on every machine. A source says by its
`content_digest` what it holds, so that stages computed from it are found again exactly when nothing changed.
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

from memlib.code import load
from memlib.data.arrays import NpzImages
from memlib.data.csv_images import CsvImages
from memlib.data.examples import NO_BOXES, Example, Source, decode_example, list_files, listing_digest, numbered_classes
from memlib.data.image_folder import ImageFolder
from memlib.data.intensities import Scaled
from memlib.data.joined import Joined
from memlib.data.parquet import ParquetImages
from memlib.data.scenes import Digits, Scenes
from memlib.data.two_moons import TwoMoons
from memlib.errors import UserError
from memlib.identity import file_digest
from memlib.specs import ImportSource, IntensitySpec, PlainSource, SourceSpec, TorchvisionSource
from memlib.specs.data import (
    CsvSource,
    DigitsSource,
    ImageFolderSource,
    JoinedSource,
    NpzSource,
    ParquetSource,
    ScenesSource,
    TwoMoonsSource,
)


def open_source(spec: SourceSpec, intensities: IntensitySpec | None = None) -> Source:
    """Opens the source a spec describes; its examples are 8 bits a channel, or points.

    Args:
        spec: which.
        intensities: what is black and white where more bits are stored.

    Raises:
        UserError: when there is nothing there, or it is not laid out as the spec says.
    """
    if isinstance(spec, JoinedSource):
        return Joined({name: open_source(part.source, intensities) for name, part in spec.parts.items()}, spec)
    return Scaled(_open(spec), intensities)


def _open(spec: PlainSource) -> Source:
    match spec:
        case ScenesSource():
            return Scenes(spec)
        case DigitsSource():
            return Digits(spec)
        case TwoMoonsSource():
            return TwoMoons(spec)
        case ImageFolderSource():
            return ImageFolder(spec)
        case TorchvisionSource():
            return Torchvision(spec)
        case ParquetSource():
            return ParquetImages(spec)
        case NpzSource():
            return NpzImages(spec)
        case CsvSource():
            return CsvImages(spec)
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
            raise UserError(f"torchvision has no data set {spec.name!r}; it has {', '.join(names)}")
        accepted = inspect.signature(kind.__init__).parameters
        options: dict[str, Any] = {"root": spec.root}
        if "train" in accepted:
            if spec.split not in ("train", "test"):
                raise UserError(f"torchvision.datasets.{spec.name} has the splits train and test, not {spec.split!r}")
            options["train"] = spec.split == "train"
        elif "split" in accepted:
            options["split"] = spec.split
        if "download" in accepted:
            options["download"] = spec.download
        try:
            self._data: Any = kind(**options)
        except (RuntimeError, ValueError, TypeError, OSError) as error:
            raise UserError(f"torchvision.datasets.{spec.name} at {spec.root}: {error}") from error
        self._attribute = None if spec.attribute is None else self._find_attribute(spec.attribute)
        if self._attribute is not None:
            self.class_names = [f"not {spec.attribute}", str(spec.attribute)]
            return
        stated: Any = getattr(self._data, "classes", None)
        labels: Any = getattr(self._data, "targets", getattr(self._data, "labels", None))
        if stated is None and labels is None:
            raise UserError(f"torchvision.datasets.{spec.name} tells neither its classes nor its labels")
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
            raise UserError(f"torchvision.datasets.{self._spec.name} has no attribute {name!r}{seen}")
        return names.index(name)

    def content_digest(self) -> str:
        """Of the data set's own files below the root."""
        folder = getattr(self._data, "raw_folder", None)
        base = getattr(self._data, "base_folder", None)
        if folder is None:
            folder = os.path.join(self._spec.root, base) if isinstance(base, str) else self._spec.root
        fs = LocalFileSystem()
        return listing_digest(fs, str(folder), list_files(fs, str(folder)))


class _Imported:
    """A user's source, with a content digest of its own or that of the module it comes from.

    Its items are examples, mappings with the fields of one, or, as torchvision's, pairs of an image and a label.
    """

    def __init__(self, inner: Any, digest: str) -> None:
        self._inner, self._digest = inner, digest
        self.class_names: list[str] = [str(name) for name in getattr(inner, "class_names", getattr(inner, "classes", ()))]

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
            raise UserError(f"{seen}, not an Example or a pair of an image and a class index ({error})") from error
        name = f"{index:07d}"
        if isinstance(image, Image.Image):
            return decode_example(image, name, number)
        return Example(name, _as_pixels(image, index), number, NO_BOXES)

    def content_digest(self) -> str:
        own = getattr(self._inner, "content_digest", None)
        return f"{self._digest}:{own()}" if callable(own) else self._digest


def _as_pixels(image: Any, index: int) -> NDArray[Any]:
    """Return an array, or a tensor as torchvision's ToTensor makes them, as (height, width, 3) or intensities."""
    found = np.asarray(image)
    if found.ndim == 3 and found.shape[0] in (1, 3) and found.shape[2] not in (1, 3):
        found = np.moveaxis(found, 0, 2)
    if found.ndim == 3 and found.shape[2] == 1:
        found = found[..., 0]
    if found.ndim not in (2, 3) or (found.ndim == 3 and found.shape[2] != 3) or found.dtype.kind not in "uif":
        raise UserError(f"item {index} of the imported source holds {found.dtype} {found.shape}, which is no image")
    if found.dtype == np.uint8 and found.ndim == 2:
        found = np.repeat(found[..., None], 3, axis=2)
    return found.astype(np.float32) if found.dtype.kind == "f" else found


def import_source(spec: ImportSource) -> Source:
    """Calls the user's `package.module:function` and checks what comes back."""
    function, module_name = load(spec.function), spec.function.split(":")[0]
    try:
        source = function(**spec.options)
    except (Exception, SystemExit) as error:
        raise UserError(f"{spec.function} failed with {spec.options}: {type(error).__name__}: {error}") from error
    missing = [part for part in ("__len__", "__getitem__") if not hasattr(source, part)]
    missing += [] if hasattr(source, "class_names") or hasattr(source, "classes") else ["class_names (or classes)"]
    if missing:
        raise UserError(f"{spec.function} returned a {type(source).__name__} without {', '.join(missing)}")
    file = inspect.getsourcefile(sys.modules[module_name])
    if spec.version is None and file is None:
        raise UserError(f"the source of {module_name} cannot be read; declare a version")
    return _Imported(source, spec.version or file_digest(Path(str(file))))
