"""Images in folders: classes by folder, by annotated object, with boxes, or by a CSV file such as CheXpert's train.csv."""

import contextlib
import csv
import io
import itertools
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.data.bounds import check_inside
from memlib.data.examples import (
    NO_BOXES,
    Example,
    check_no_archives,
    decode_example,
    is_hidden,
    list_files,
    listing_digest,
    look_at_image,
)
from memlib.data.images.annotations import (
    Annotations,
    Objects,
    has_capitals,
    match_files,
    parse_yolo,
    pixel,
    states_fractions,
)
from memlib.data.images.pictures import CAPITALS, FRACTIONS, Picture
from memlib.data.opening import content_of, located
from memlib.data.tables.columns import check_once, read_csv
from memlib.errors import DataError, UserError
from memlib.identity import canonical_json
from memlib.sanitize import count_of
from memlib.specs import AnnotatedFolderSource, CsvSource, ImageFolderSource
from memlib.store.records import json_once

IMAGE_SUFFIXES = {
    ".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".png", ".bmp", ".webp", ".avif", ".tif", ".tiff", ".gif", ".ppm", ".pgm",
    ".dcm",
}  # fmt: skip
BESIDE = {".xml", ".txt", ".json", ".csv", ".tsv", ".md", ".yaml", ".yml", ".html", ".ini", ".db"}  # that describe images
PARTS = {
    "train", "training", "val", "valid", "validation", "test", "testing", "members", "nonmembers", "non_members", "seen",
    "unseen", "holdout", "held_out",
}  # fmt: skip
MASKS = {"masks", "segmentationclass", "segmentationobject"}
LAYOUTS = {"images", "jpegimages", "labels", *MASKS}
"""Names of folders, in lower case, that belong to the layout of an annotated data set and are no classes."""
METADATA = ("metadata.csv", "metadata.jsonl")
"""Files that describe images in Hugging Face's image folders: columns file_name and, if they state classes, label."""
MOST_NAMED = 5  # folders named in a remark
LOOKED_AT = 20  # annotations in which boxes, or polygons, are looked for


class _Folder:
    """Images in a folder, with labels and boxes that a subclass finds; example ids are paths relative to the folder."""

    class_names: list[str]

    def __init__(self, path: str, expected: str) -> None:
        self._path = path
        self._fs, self._root = located(path)
        self._all = list_files(self._fs, self._root)
        files = [name for name in self._all if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES]
        self._images = [name for name in files if not is_hidden(name)]
        if not self._images:
            check_no_archives([self._root, *self._all], path)
            raise DataError(f"no images below {path}: expected {path}/{expected}")
        self._others = [name for name in self._all.keys() - set(files) if not is_hidden(name)]
        self._items: list[tuple[str, int]] = []
        self._listing: dict[str, Any] = {}
        self._annotations: Annotations | None = None
        hidden = len(files) - len(self._images)
        self.remarks = (
            [f"left out, as they are in hidden folders (.ipynb_checkpoints, __MACOSX, ...): {count_of(hidden, 'image')}"]
            if hidden
            else []
        )

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Example:
        name, label = self._items[index]
        return decode_example(self._read(name), name, label, lambda picture: self._boxes(name, picture))

    def content_digest(self) -> str:
        """Return a digest of the images and boxes that are used."""
        looks_for = "boxes" if self._annotations else ""
        digest = listing_digest(self._fs, self._root, self._listing, look=_look, looks_for=looks_for)
        return ":".join([digest, *(self._annotations.marks if self._annotations else ())])

    @property
    def labels(self) -> list[int]:
        """The label of each image."""
        return [label for _, label in self._items]

    def _read(self, name: str) -> bytes:
        return bytes(self._fs.cat_file(f"{self._root}/{name}"))

    def _boxes(self, name: str, picture: Picture) -> NDArray[np.int64]:
        objects = None if self._annotations is None else self._annotations.of(name)
        return NO_BOXES if objects is None else objects.within(picture)


class ImageFolder(_Folder):
    """Images in one folder per class: `<path>/<class>/**/<image>`."""

    def __init__(self, spec: ImageFolderSource) -> None:
        super().__init__(spec.path, "<class>/<image>.jpg (or .png, ...)")
        self._spec = spec
        images = [name for name in self._images if "/" in name]
        if not images:
            raise DataError(
                f"no images below {spec.path}/<class>, but {len(self._images):,} beside the class folders; "
                "kind: annotated_folder takes classes from annotations (COCO, YOLO, ...), kind: csv from a table"
            )
        if outside := len(self._images) - len(images):
            self.remarks.append(f"left out, as they are in no class folder: {count_of(outside, 'image')}")
        self._parts = () if spec.boxes == "tiny_imagenet" else parts_of(images)
        if self._parts:
            images = sorted((name for name in images if name.count("/") > 1), key=lambda name: (self._class_of(name), name))
            named = " and ".join(self._parts)
            self.remarks.append(
                f"{named} are taken for parts of one data set, as they have the same class folders; ids begin with the part"
            )
        self.class_names = sorted({self._class_of(name) for name in images})[: spec.num_classes]
        if spec.num_classes and len(self.class_names) < spec.num_classes:
            raise DataError(f"{spec.path} has {len(self.class_names)} classes, fewer than num_classes {spec.num_classes}")
        self.remarks += [] if self._parts else self._look_at_layout(images)
        self.remarks += self._look_at_metadata(images)
        self.remarks += _left_out([name for name in self._others if "/" in name])
        label_of = {name: label for label, name in enumerate(self.class_names)}
        for class_name, members in itertools.groupby(images, key=self._class_of):
            if class_name in label_of:
                self._items += [(name, label_of[class_name]) for name in list(members)[: spec.num_per_class]]
        self._listing = {name: self._all[name] for name, _ in self._items}
        names = [name for name, _ in self._items]
        if spec.boxes == "tiny_imagenet":
            self._tiny = self._tiny_imagenet_boxes()
        elif spec.boxes != "none":
            self._annotations = Annotations(spec.boxes, names, spec.path, self._all, spec.annotations)
            self._listing |= self._annotations.files
            with contextlib.suppress(UserError):  # raised where the image is read
                self.remarks += _on_polygons(filter(None, map(self._annotations.of, names[:LOOKED_AT])))
            self.remarks += self._annotations.remarks
        elif beside := _found_beside(self._others, names, self._read):
            self.remarks.append(f"boxes: none, although there are {beside}")

    def _class_of(self, name: str) -> str:
        return _composed(name.split("/")[1]) if self._parts else name.split("/")[0]

    def content_digest(self) -> str:
        """Return a digest of the images and boxes that are used, and of the layout if earlier versions read it otherwise."""
        return super().content_digest() + (":parts" if self._parts else "")

    def _look_at_layout(self, images: Sequence[str]) -> list[str]:
        """Return remarks on a layout that looks unintended."""
        remarks = []
        folders = {
            str(info["name"]).rstrip("/").rpartition("/")[2]
            for info in self._fs.ls(self._root, detail=True)
            if info["type"] == "directory"
        }
        if empty := sorted(name for name in folders - {name.split("/", 1)[0] for name in images} if not is_hidden(name)):
            remarks.append(f"folders without images are ignored: {', '.join(empty[:MOST_NAMED])}")
        parts = [name for name in self.class_names if name.lower().rstrip("0123456789_-") in PARTS]  # train2017, too
        layout = [name for name in self.class_names if name.lower() in LAYOUTS]
        if len(self.class_names) == 1:
            remarks.append(f"{self.class_names[0]} is taken for the only class, as it is the only folder with images")
        if len(parts) > 1:
            remarks.append(
                f"{' and '.join(parts)} are taken for classes; if they are parts of a data set, set path to one of them"
            )
        if layout:
            remarks.append(
                f"{' and '.join(layout)} {'are' if len(layout) > 1 else 'is'} taken for a class; if the annotations name the "
                "classes, use kind: annotated_folder"
            )
        return remarks

    def _look_at_metadata(self, images: Sequence[str]) -> list[str]:
        """Return remarks on files of metadata that state other labels than the classes.

        Raises:
            DataError: when one states the classes, and another one for an image than that of its folder.
        """
        remarks, names = [], {_folded(self._class_of(name)) for name in images}
        for file in sorted(name for name in self._others if PurePosixPath(name).name in METADATA):
            stated = _stated_labels(self._read(file), file)
            labels = {name: stated[_composed(name)] for name in images if _composed(name) in stated}
            others = [name for name, label in labels.items() if _folded(label) != _folded(self._class_of(name))]
            if not others:
                continue
            table = f"{self._path}/{file}"
            if not names & set(map(_folded, labels.values())):
                remarks.append(f"{table} has labels other than the class folders, which are not used; kind: csv reads them")
                continue
            raise DataError(
                f"{table} gives {others[0]} the label {labels[others[0]]!r}, but it is in the folder of the class "
                f"{self._class_of(others[0])!r} ({count_of(len(others), 'image')} in all); correct the file, move the "
                "images, or take the classes from the file with kind: csv"
            )
        return remarks

    def _boxes(self, name: str, picture: Picture) -> NDArray[np.int64]:
        if self._spec.boxes != "tiny_imagenet":
            return super()._boxes(name, picture)
        parts = name.split("/")
        objects = self._tiny.get(f"{parts[0]}/{parts[-1]}")
        return NO_BOXES if objects is None else objects.within(picture)

    def _table(self, name: str) -> list[list[str]]:
        try:
            return list(csv.reader(io.StringIO(self._read(name).decode()), delimiter="\t"))
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{self._path}/{name} is not a table of boxes ({error})") from error

    def _tiny_imagenet_boxes(self) -> dict[str, Objects]:
        boxes: dict[str, list[list[float]]] = {}
        for class_name in self.class_names:
            table = f"{class_name}/{class_name}_boxes.txt"
            if table not in self._all:
                raise DataError(f"{self._path}/{table} is missing; boxes: tiny_imagenet needs one file per class")
            self._listing[table] = self._all[table]
            for row in self._table(table):
                if len(row) < 5:
                    raise DataError(f"{self._path}/{table}: expected name, x0, y0, x1, y1, not {row}")
                try:
                    x0, y0, x1, y1 = (pixel(int(value)) for value in row[1:5])
                except ValueError as error:
                    raise DataError(f"{self._path}/{table}: {row} is not a box ({error})") from error
                boxes.setdefault(f"{class_name}/{row[0]}", []).append([x0, y0, x1 + 1, y1 + 1])
        return {
            name: Objects(("",) * len(rows), np.array(rows, dtype=np.float64), None, name) for name, rows in boxes.items()
        }


class AnnotatedFolder(_Folder):
    """Images anywhere below a folder; the class of an image is that of the object with the largest box."""

    def __init__(self, spec: AnnotatedFolderSource) -> None:
        super().__init__(spec.path, "**/<image>.jpg (or .png, ...)")
        masks = [name for name in self._images if MASKS & {part.lower() for part in name.split("/")[:-1]}]
        if masks:
            self.remarks.append(
                f"left out, as they are in folders of masks: {count_of(len(masks), 'image')}, such as {masks[0]}"
            )
            self._images = sorted(set(self._images) - set(masks))
        found = Annotations(spec.boxes, self._images, spec.path, self._all, spec.annotations)
        objects = {name: one for name in self._images if (one := found.of(name)) is not None}
        largest = {name: one.largest for name, one in objects.items()}
        class_of = {name: class_name for name, class_name in largest.items() if class_name is not None}
        used = set(class_of.values())
        self.class_names = list(spec.classes) or [name for name in found.classes if name in used] or sorted(used)
        if missing := [name for name in self.class_names if name not in used]:
            raise DataError(f"no image of {spec.path} has {missing[0]!r} as its largest object; found: {_some(sorted(used))}")
        if not used:
            raise DataError(f"no image below {spec.path} has an annotated object; is boxes: {spec.boxes} right?")
        label_of = {name: label for label, name in enumerate(self.class_names)}
        counts: Counter[str] = Counter()
        for name, class_name in class_of.items():
            if class_name in label_of and (spec.num_per_class is None or counts[class_name] < spec.num_per_class):
                self._items.append((name, label_of[class_name]))
                counts[class_name] += 1
        self._annotations = found
        self._listing = {name: self._all[name] for name, _ in self._items} | found.files
        if bare := len(self._images) - len(class_of):
            self.remarks.append(f"{bare} of {len(self._images)} images have no annotated object and are left out")
        if several := sum(len(set(one.names)) > 1 for one in objects.values()):
            self.remarks.append(
                f"{several} of {len(self._images)} images have objects of several classes; each belongs to the class of its "
                "largest box (of equal ones the first; crowds do not count)"
            )
        self.remarks += _on_polygons(objects.values()) + found.remarks + _left_out(self._others)


def _on_polygons(annotated: Iterable[Objects]) -> list[str]:
    """Return a remark on polygons, if there are any."""
    if not any(objects.polygons for objects in annotated):
        return []
    return ["objects drawn as polygons count by the smallest box around them, and by their own box if they have one"]


def parts_of(images: Sequence[str]) -> tuple[str, ...]:
    """Return the folders that are parts of one data set, such as train and val; () if the folders are classes.

    They are parts if all have such names, and the classes of each are among those of the one with most classes.

    Args:
        images: paths relative to the source.

    Example:
        >>> parts_of(["train/cat/1.png", "train/dog/2.png", "val/cat/3.png", "val/dog/4.png"])
        ('train', 'val')
        >>> parts_of(["train/cat/1.png", "train/dog/2.png", "val/hen/3.png"]), parts_of(["cat/1.png", "dog/2.png"])
        ((), ())
    """
    classes: dict[str, set[str]] = {}
    for name in images:
        part, *rest = name.split("/")
        classes.setdefault(part, set()).update(map(_composed, rest[:1]) if len(rest) > 1 else ())
    if len(classes) < 2 or not all(part.lower().rstrip("0123456789_-") in PARTS for part in classes):
        return ()
    most = max(classes.values(), key=len)
    agree = len(most) > 1 and all(found and found <= most for found in classes.values())
    return tuple(sorted(classes)) if agree else ()


def _stated_labels(data: bytes, file: str) -> dict[str, str]:
    """Return the labels that a file of metadata states, by path of the image; {} if it is another kind of file.

    Args:
        file: path relative to the source; images are named relative to its folder.
    """
    folder = PurePosixPath(file).parent
    try:
        if file.endswith(".csv"):
            rows: Sequence[Any] = read_csv(data, file)[1]
        else:
            rows = [json_once(line) for line in data.decode("utf-8-sig").splitlines() if line.strip()]
        stated = {_composed(normpath(folder / str(row["file_name"]))): row["label"] for row in rows}
    except (UserError, ValueError, KeyError, TypeError, RecursionError, csv.Error):
        return {}
    return {name: str(label) for name, label in stated.items() if label not in (None, "")}


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _folded(label: str) -> str:
    return _composed(label).casefold()


def _look(path: str) -> Collection[str]:
    """Return the oddities of an image file, or of an annotation."""
    if path.lower().endswith(".xml"):
        data = Path(path).read_bytes()
        odd = {FRACTIONS: states_fractions(data, path), CAPITALS: has_capitals(data)}
        return [name for name, holds in odd.items() if holds]
    return look_at_image(path)


def _found_beside(others: Sequence[str], images: Sequence[str], read: Callable[[str], bytes]) -> str:
    """Describe the annotations that lie beside images, by matching names; "" if there are none."""
    for form, suffix, kind in (("voc", ".xml", "XML"), ("labelme", ".json", "JSON"), ("yolo", ".txt", "text")):
        files = [name for name in others if name.lower().endswith(suffix)]
        try:
            match = match_files(images, files) if files else {}
            if form == "yolo":
                for name in list(match.values())[:LOOKED_AT]:
                    parse_yolo(read(name), name)
        except UserError:
            continue
        if match:
            return f"{kind} files of {len(match):,} of {len(images):,} images; for their boxes, set boxes: {form}"
    return ""


def _left_out(names: Sequence[str]) -> list[str]:
    """Return a remark on files that are neither images nor descriptions of images, by suffix."""
    suffixes = Counter(PurePosixPath(name).suffix.lower() or "without suffix" for name in names)
    left = {suffix: count for suffix, count in suffixes.most_common() if suffix not in BESIDE}
    if not left:
        return []
    named = ", ".join(f"{count} {suffix}" for suffix, count in list(left.items())[:MOST_NAMED])
    return [f"left out, as they are of other kinds: {count_of(sum(left.values()), 'file')} ({named})"]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")


class CsvImages:
    """Images that a CSV file lists with the label of a class; example ids are the image paths."""

    def __init__(self, spec: CsvSource) -> None:
        self._spec = spec
        try:
            names, rows = read_csv(content_of(spec.path), spec.path)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"cannot read {spec.path} ({error})") from error
        check_once(names, list(dict.fromkeys((spec.image_column, spec.label_column, *spec.where))), spec.path)
        self.class_names = list(spec.classes)
        given = Counter(value for values in spec.classes.values() for value in set(values))
        if twice := next((value for value, count in given.items() if count > 1), None):
            raise DataError(f"data.source.classes gives the value {twice!r} to several classes; give it to one")
        label_of = {value: label for label, name in enumerate(spec.classes) for value in spec.classes[name]}
        wanted = (row for row in rows if all(row[name] == value for name, value in spec.where.items()))
        self._rows = [
            (row[spec.image_column] or "", label_of[row[spec.label_column]])
            for row in wanted
            if row[spec.label_column] in label_of
        ]
        if not self._rows:
            raise DataError(
                f"no row of {spec.path} matches `where` and has one of {sorted(label_of)} in column {spec.label_column!r}"
            )
        self._fs, self._root = located(spec.root)
        for name, _ in self._rows:
            check_inside(self._fs, self._root, name, f"a row of {spec.path}")

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def labels(self) -> list[int]:
        """The label of each image."""
        return [label for _, label in self._rows]

    def __getitem__(self, index: int) -> Example:
        name, label = self._rows[index]
        try:
            data = self._fs.cat_file(f"{self._root.rstrip('/')}/{name}")
        except (FileNotFoundError, IsADirectoryError) as error:
            raise DataError(f"{self._spec.path} names {name}, which is not below {self._spec.root}") from error
        return decode_example(data, name, label)

    def content_digest(self) -> str:
        """Return a digest of the image files used, followed by the rows."""
        listing: dict[str, Any] = list_files(self._fs, self._root)
        used = {name: listing[name] for name, _ in self._rows if name in listing}
        return listing_digest(self._fs, self._root, used, look=look_at_image) + canonical_json(self._rows)
