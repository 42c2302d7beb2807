"""Images in class folders, with boxes in the formats of Tiny ImageNet or Pascal VOC."""

import csv
import io
import itertools
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.data.bounds import MOST_PIXELS
from memlib.data.examples import (
    NO_BOXES,
    Example,
    check_no_fractions,
    decode_example,
    list_files,
    listing_digest,
    look_at_image,
    open_location,
)
from memlib.data.pictures import Picture, Undecodable, turned_boxes
from memlib.errors import UserError
from memlib.specs import ImageFolderSource

IMAGE_SUFFIXES = {
    ".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".png", ".bmp", ".webp", ".avif", ".tif", ".tiff", ".gif", ".ppm", ".pgm",
    ".dcm",
}  # fmt: skip
BESIDE = {".xml", ".txt", ".json", ".csv", ".tsv", ".md", ".yaml", ".yml", ".html", ".ini", ".db"}  # that describe images


PARTS = {"train", "training", "val", "valid", "validation", "test", "testing"}
MOST_NAMED = 5  # folders named in a remark


def _is_hidden(name: str) -> bool:
    """Return True if a path has a hidden part; notebooks and archivers leave copies of images in hidden folders."""
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


class ImageFolder:
    """`<path>/<class>/**/<image>`; example ids are paths relative to the folder."""

    def __init__(self, spec: ImageFolderSource) -> None:
        self._spec = spec
        self._fs, self._root = open_location(spec.path)
        listing = list_files(self._fs, self._root)
        files = [name for name in listing if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES and "/" in name]
        images = [name for name in files if not _is_hidden(name)]
        if not images:
            raise UserError(f"no images below {spec.path}: expected {spec.path}/<class>/<image>.jpg (or .png, ...)")
        self.class_names = sorted({name.split("/", 1)[0] for name in images})[: spec.num_classes]
        if spec.num_classes and len(self.class_names) < spec.num_classes:
            raise UserError(f"{spec.path} has {len(self.class_names)} classes, fewer than num_classes {spec.num_classes}")
        self.remarks = self._remarks(images, len(files) - len(images))
        others = listing.keys() - set(files)
        self.remarks += _left_out([name for name in others if "/" in name and not _is_hidden(name)])
        label_of = {name: label for label, name in enumerate(self.class_names)}
        self._items: list[tuple[str, int]] = []
        for class_name, members in itertools.groupby(images, key=lambda name: name.split("/", 1)[0]):
            if class_name in label_of:
                chosen = list(members)[: spec.num_per_class]
                self._items += [(name, label_of[class_name]) for name in chosen]
        self._listing = {name: listing[name] for name, _ in self._items}
        self._boxes: Callable[[str, Picture], NDArray[np.int64]] = lambda name, picture: NO_BOXES
        if spec.boxes == "tiny_imagenet":
            self._boxes = self._tiny_imagenet_boxes(listing)
        elif spec.boxes == "voc":
            self._boxes = self._voc_boxes(listing)

    def _remarks(self, images: Sequence[str], hidden: int) -> list[str]:
        """Return remarks on a layout that looks unintended."""
        remarks = []
        if hidden:
            remarks.append(f"{hidden} images in hidden folders (.ipynb_checkpoints, __MACOSX, ...) are left out")
        folders = {
            str(info["name"]).rstrip("/").rpartition("/")[2]
            for info in self._fs.ls(self._root, detail=True)
            if info["type"] == "directory"
        }
        if empty := sorted(name for name in folders - {name.split("/", 1)[0] for name in images} if not _is_hidden(name)):
            remarks.append(f"folders without images are ignored: {', '.join(empty[:MOST_NAMED])}")
        parts = [name for name in self.class_names if name.lower().rstrip("0123456789_-") in PARTS]  # train2017, too
        if len(self.class_names) == 1:
            remarks.append(f"{self.class_names[0]} is taken for the only class, as it is the only folder with images")
        if len(parts) > 1:
            remarks.append(
                f"{' and '.join(parts)} are taken for classes; if they are parts of a data set, set path to one of them"
            )
        return remarks

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Example:
        name, label = self._items[index]
        return decode_example(self._read(name), name, label, lambda picture: self._boxes(name, picture))

    def content_digest(self) -> str:
        """Return a digest of the images and boxes that are used."""
        return listing_digest(self._fs, self._root, self._listing, look=look_at_image)

    def _read(self, name: str) -> bytes:
        return bytes(self._fs.cat_file(f"{self._root}/{name}"))

    def _table(self, name: str) -> list[list[str]]:
        try:
            return list(csv.reader(io.StringIO(self._read(name).decode()), delimiter="\t"))
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{self._spec.path}/{name} is not a table of boxes ({error})") from error

    def _tiny_imagenet_boxes(self, listing: Mapping[str, Any]) -> Callable[[str, Picture], NDArray[np.int64]]:
        boxes: dict[str, list[list[int]]] = {}
        for class_name in self.class_names:
            table = f"{class_name}/{class_name}_boxes.txt"
            if table not in listing:
                raise UserError(f"{self._spec.path}/{table} is missing; boxes: tiny_imagenet needs one file per class")
            self._listing[table] = listing[table]
            for row in self._table(table):
                if len(row) < 5:
                    raise UserError(f"{self._spec.path}/{table}: expected name, x0, y0, x1, y1, not {row}")
                try:
                    x0, y0, x1, y1 = (_pixel(int(value)) for value in row[1:5])
                except ValueError as error:
                    raise UserError(f"{self._spec.path}/{table}: {row} is not a box ({error})") from error
                boxes.setdefault(f"{class_name}/{row[0]}", []).append([x0, y0, x1 + 1, y1 + 1])

        def find(name: str, picture: Picture) -> NDArray[np.int64]:
            parts = name.split("/")
            stored = np.array(boxes.get(f"{parts[0]}/{parts[-1]}", NO_BOXES), dtype=np.int64).reshape(-1, 4)
            return _as_shown(stored, picture, None) if len(stored) else stored

        return find

    def _voc_boxes(self, listing: Mapping[str, Any]) -> Callable[[str, Picture], NDArray[np.int64]]:
        fs, root, names = self._fs, self._root, listing
        if self._spec.annotations is not None:
            fs, root = open_location(self._spec.annotations)
            names = list_files(fs, root)
        annotations = [name for name in names if name.lower().endswith(".xml") and not _is_hidden(name)]
        if not annotations:
            where = self._spec.annotations or self._spec.path
            raise UserError(f"no XML files below {where}; set annotations to their folder")
        match = _match_annotations([name for name, _ in self._items], annotations)
        self._listing |= {f"annotations:{name}": names[name] for name in match.values()}
        if others := sorted(set(annotations) - set(match.values())):
            self.remarks.append(
                f"{len(others)} of {len(annotations)} XML files belong to no image that is read, such as {others[0]}"
            )

        def find(name: str, picture: Picture) -> NDArray[np.int64]:
            file = match.get(name)
            if file is None:
                return NO_BOXES
            boxes, size = parse_voc(bytes(fs.cat_file(f"{root}/{file}")), file)
            shown = picture.pixels.shape[1::-1]
            if size is not None and size not in (shown, picture.stored_size):
                seen = f"{shown[0]} x {shown[1]}"
                raise Undecodable(f"is {seen}, but its annotation {file} is for a picture of {size[0]} x {size[1]}")
            return _as_shown(boxes, picture, size)

        return find


def _as_shown(boxes: NDArray[np.int64], picture: Picture, size: tuple[int, int] | None) -> NDArray[np.int64]:
    """Transform boxes to the picture after EXIF rotation, given the size of the picture on which they were drawn.

    Raises:
        Undecodable: when the size does not tell whether the boxes were drawn before or after the rotation.
    """
    shown, stored = picture.pixels.shape[1::-1], picture.stored_size
    if picture.orientation == 1 or (size == shown and shown != stored):
        return boxes
    if size != stored or shown == stored:
        raise Undecodable("is rotated by EXIF, and it is unknown whether its boxes were drawn before or after the rotation")
    return turned_boxes(boxes, stored, picture.orientation)


def _match_annotations(images: Sequence[str], annotations: Sequence[str]) -> dict[str, str]:
    """Return the XML file of each image that has one: by path without suffix, else by unique file name.

    Raises:
        UserError: when a file name is ambiguous.
    """
    by_path = {_key(name)[: -len(".xml")]: name for name in annotations}  # of x.jpg: x.xml, or x.jpg.xml
    by_stem: dict[str, list[str]] = {}
    for key, name in by_path.items():
        by_stem.setdefault(PurePosixPath(key).name, []).append(name)
    stems = Counter(PurePosixPath(_key(name)).stem for name in images)
    match = {}
    for name in images:
        path = PurePosixPath(_key(name))
        exact = by_path.get(str(path.with_suffix(""))) or by_path.get(str(path))
        matches = [exact] if exact else by_stem.get(path.stem) or by_stem.get(path.name, [])
        if not exact and matches and (len(matches) > 1 or stems[path.stem] > 1):
            raise UserError(
                f"{name} may belong to {matches[0]}, but several files have that name; give the XML files the "
                "same relative paths as the images"
            )
        if matches:
            match[name] = matches[0]
    return match


def _key(name: str) -> str:
    """Return a name as it is compared: file systems and archivers compose accents differently."""
    return unicodedata.normalize("NFC", name)


def _left_out(names: Sequence[str]) -> list[str]:
    """Return a remark on files that are neither images nor descriptions of images, by suffix."""
    suffixes = Counter(PurePosixPath(name).suffix.lower() or "without suffix" for name in names)
    left = {suffix: count for suffix, count in suffixes.most_common() if suffix not in BESIDE}
    if not left:
        return []
    named = ", ".join(f"{count} {suffix}" for suffix, count in list(left.items())[:MOST_NAMED])
    return [f"{sum(left.values())} files of other kinds are left out: {named}"]


def _pixel(value: float) -> int:
    """Convert a coordinate to an integer.

    Raises:
        ValueError: for a coordinate that is too large for an image, or NaN.
    """
    if not abs(value) < MOST_PIXELS:  # NaN is refused too
        raise ValueError(f"{value:g} is not a pixel coordinate")
    return int(value)


def _parsed(data: bytes) -> ElementTree.Element:
    """Return an XML document without namespaces; also in encodings of several bytes, which Python's parser does not know."""
    declared = re.match(rb"""<\?xml[^>]*encoding=["']([\w.-]+)["'][^>]*\?>""", data)
    try:
        root = ElementTree.fromstring(data)
    except ValueError:
        if declared is None:
            raise
        root = ElementTree.fromstring(data[declared.end() :].decode(declared[1].decode()))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2] if isinstance(element.tag, str) else element.tag
    return root


def parse_voc(data: bytes, name: str) -> tuple[NDArray[np.int64], tuple[int, int] | None]:
    """Read a Pascal VOC / ImageNet annotation.

    Returns:
        boxes (num_boxes, 4) half open (VOC counts from 1, inclusive), and the picture's width and height if stated.

    Raises:
        UserError: when the data are not such an annotation, or boxes are given in fractions instead of pixels.
    """
    try:
        root = _parsed(data)
        numbers = [
            [float(box.findtext(tag) or "") for tag in ("xmin", "ymin", "xmax", "ymax")]
            for box in root.iterfind("object/bndbox")
        ]
        check_no_fractions(numbers, name)
        rows = [[_pixel(value) for value in box] for box in numbers]
        size = tuple(_pixel(float(root.findtext(f"size/{tag}") or 0)) for tag in ("width", "height"))
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:  # also of unknown encodings
        if isinstance(error, UserError):
            raise
        raise UserError(f"{name} is not a Pascal VOC annotation ({error})") from error
    boxes = np.array([[r[0] - 1, r[1] - 1, r[2], r[3]] for r in rows], dtype=np.int64).reshape(-1, 4)
    return boxes, (size[0], size[1]) if all(size) else None
