"""Objects annotated in images: Pascal VOC and ImageNet XML, COCO, Label Studio and LabelMe JSON, YOLO text files."""

import math
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote

import numpy as np
import yaml
from numpy.typing import NDArray

from memlib.data.bounds import MOST_PIXELS
from memlib.data.examples import check_no_fractions, is_hidden, list_files, numbered_classes
from memlib.data.images.pictures import Picture, Undecodable, turned_boxes
from memlib.data.opening import located
from memlib.errors import DataError, UserError
from memlib.sanitize import is_text
from memlib.store.records import json_once

AnnotationFormat = Literal["voc", "coco", "yolo", "labelme"]
SUFFIXES = {"voc": ".xml", "coco": ".json", "yolo": ".txt", "labelme": ".json"}
ELEMENTS = re.compile(rb"<(?i:(object|bndbox|polygon|pt|xmin|ymin|xmax|ymax|name|size|width|height))[\s>]")
"""Names of the elements of Pascal VOC annotations that are read."""
CLASS_FILES = ("data.yaml", "data.yml", "dataset.yaml", "classes.txt", "obj.names")  # that name YOLO's classes
MOST_CLASS_BYTES = 2**22
ROTATED_UNKNOWN = "is rotated by EXIF, and it is unknown whether its boxes were drawn before or after the rotation"


@dataclass(frozen=True)
class Objects:
    """Objects annotated in one image."""

    names: tuple[str, ...]  #: name of each object's class; "" where the annotation states none.
    #: (num_objects, 4) float64, half-open rectangles x0, y0, x1, y1, in pixels or as fractions of the picture.
    boxes: NDArray[np.float64]
    size: tuple[int, int] | None  #: width and height of the picture on which the boxes were drawn, if stated.
    file: str  #: name of the annotation file.
    fractions: bool = False  #: True if the boxes are fractions of the picture.
    polygons: int = 0  #: number of boxes that enclose a polygon.

    @property
    def largest(self) -> str | None:
        """The class of the object with the largest box, the first in case of a tie; None if there is no object."""
        if not self.names:
            return None
        areas = (self.boxes[:, 2:] - self.boxes[:, :2]).prod(axis=1)
        return self.names[int(areas.argmax())]

    def within(self, picture: Picture) -> NDArray[np.int64]:
        """Return the boxes in pixels of a decoded picture, rounded outwards: (num_objects, 4).

        Raises:
            Undecodable: when the annotation is for a picture of another size, or it is unknown whether the boxes were drawn
                before or after the picture was rotated.
        """
        width, height = shown = picture.pixels.shape[1::-1]
        if self.size is not None and self.size not in (shown, picture.stored_size):
            raise Undecodable(
                f"is {width} x {height}, but its annotation {self.file} is for a picture of {self.size[0]} x {self.size[1]}"
            )
        boxes = self.boxes * np.array([width, height] * 2) if self.fractions else self.boxes
        if self.fractions:
            boxes = boxes.round(3)  # a corner at .5 of 16 pixels is the pixel's edge, whatever the digits given
        rounded = np.concatenate([np.floor(boxes[:, :2]), np.ceil(boxes[:, 2:])], axis=1).astype(np.int64)
        if picture.orientation == 1 or not len(rounded) or (self.size == shown and shown != picture.stored_size):
            return rounded
        if self.size != picture.stored_size or shown == picture.stored_size:
            raise Undecodable(ROTATED_UNKNOWN)
        return turned_boxes(rounded, picture.stored_size, picture.orientation)


class Annotations:
    """The annotations of a folder of images.

    Args:
        form: format of the annotations.
        images: names of the images, relative to their folder.
        path: the images' folder; local or s3://.
        listing: the files in that folder, with the file system's details of each.
        annotations: folder of the annotations, or for COCO their file; None if they are in the images' folder.

    Attributes:
        files: the files that are used, by "annotations:<name>", with the file system's details of each.
        classes: names of the classes in the order of their numbers; empty if the format does not number them.
        remarks: lines on annotations that belong to no image, and on boxes that are left out.
        marks: ways in which earlier versions read the annotations otherwise; they enter keys.

    Raises:
        DataError: when there are no annotations, or it is ambiguous to which image one belongs.
    """

    def __init__(
        self,
        form: AnnotationFormat,
        images: Sequence[str],
        path: str,
        listing: Mapping[str, Mapping[str, Any]],
        annotations: str | None,
    ) -> None:
        self._fs, self._root = located(annotations or path)
        if annotations is None:
            names = listing
        elif annotations.lower().endswith(".json"):
            name = self._root.rpartition("/")[2]
            names, self._root = {name: self._stat(annotations)}, self._root.rpartition("/")[0]
        else:
            names = list_files(self._fs, self._root)
        found = [name for name in names if name.lower().endswith(SUFFIXES[form]) and not is_hidden(name)]
        if form == "yolo":
            found = [name for name in found if PurePosixPath(name).name not in CLASS_FILES]
        if not found:
            where = annotations or path
            raise DataError(
                f"no {_kind(form)} files below {where}; set annotations to {'the file' if form == 'coco' else 'their folder'}"
            )
        self.files: dict[str, Mapping[str, Any]] = {}
        self.classes: list[str] = []
        self.remarks: list[str] = []
        self.marks: list[str] = []
        if form == "coco":
            self._found = self._coco(found, images, names)
            return
        if form == "yolo":
            self._name_classes(self._fs, self._root, names)
            if not self.classes and annotations is not None:
                self._name_classes(*located(path), listing)
            if not self.classes:
                self.remarks.append(f"the classes have only numbers, as there is no {CLASS_FILES[0]} or classes.txt")
        match = match_files(images, found)
        self.files |= {f"annotations:{name}": names[name] for name in match.values()}
        if others := sorted(set(found) - set(match.values())):
            self.remarks.append(
                f"{len(others)} of {len(found)} {_kind(form)} files belong to no image that is read, such as {others[0]}"
            )
        parsers: dict[str, Callable[[bytes, str], Objects]] = {
            "voc": parse_voc,
            "labelme": parse_labelme,
            "yolo": lambda data, name: parse_yolo(data, name, self.classes),
        }
        self._found = lambda name: parsers[form](self._read(match[name]), match[name]) if name in match else None

    def of(self, name: str) -> Objects | None:
        """Return the objects of an image; None if it has no annotation."""
        return self._found(name)

    def _stat(self, path: str) -> Mapping[str, Any]:
        try:
            info: Mapping[str, Any] = self._fs.info(self._root)
        except OSError as error:
            raise DataError(
                f"cannot read the annotations {path} ({type(error).__name__}); check data.source.annotations"
            ) from error
        return info

    def _read(self, name: str) -> bytes:
        return bytes(self._fs.cat_file(f"{self._root}/{name}"))

    def _name_classes(self, fs: Any, root: str, listing: Mapping[str, Mapping[str, Any]]) -> None:
        """Find the file that names YOLO's classes, of which the label files state only the numbers."""
        named = [name for name in listing if PurePosixPath(name).name in CLASS_FILES and not is_hidden(name)]
        for name in sorted(named, key=lambda name: (name.count("/"), name)):
            if listing[name]["size"] <= MOST_CLASS_BYTES:
                self.classes = _class_names(bytes(fs.cat_file(f"{root}/{name}")), name)
                self.files[f"annotations:{name}"] = listing[name]
                return

    def _coco(
        self, found: Sequence[str], images: Sequence[str], names: Mapping[str, Mapping[str, Any]]
    ) -> Callable[[str], Objects | None]:
        if len(found) > 1:
            raise DataError(
                f"{len(found)} JSON files may hold the boxes ({', '.join(found[:3])}, ...); set annotations to one"
            )
        (file,) = found
        self.files[f"annotations:{file}"] = names[file]
        self.classes, by_file, crowds = parse_coco(self._read(file), file)
        if crowds:
            self.marks.append("crowds")
            self.remarks.append(f"boxes of crowds (iscrowd), which are of no single object and are left out: {crowds:,}")
        paths = {listed: _path_of(listed) for listed in by_file}
        if changed := [listed for listed, path in paths.items() if path != listed and listed not in images]:
            self.marks.append("paths")
            by_file = {paths[listed] if listed in changed else listed: objects for listed, objects in by_file.items()}
            if len(by_file) < len(paths):
                raise DataError(f"{file} lists an image twice, such as {changed[0]}; keep one")
        match = {image: listed for listed, image in match_files(list(by_file), images).items()}
        present = set(match.values())
        if missing := [listed for listed in by_file if listed not in present]:
            self.remarks.append(
                f"{len(missing)} of {len(by_file)} images that {file} lists are not in the folder, such as {missing[0]}"
            )
        return lambda name: by_file[match[name]] if name in match else None


def _kind(form: str) -> str:
    return {"voc": "XML", "yolo": "YOLO (.txt)"}.get(form, "JSON")


def _path_of(listed: str) -> str:
    """Return the path of an image that a file lists: with slashes, and the local part of Label Studio's addresses.

    Example:
        >>> _path_of(r"images\\1.png"), _path_of("/data/local-files/?d=photos%5Ca%20b.png"), _path_of("images/1.png")
        ('images/1.png', 'photos/a b.png', 'images/1.png')
    """
    _, found, local = listed.partition("?d=")
    return (unquote(local.partition("&")[0]) if found else listed).replace("\\", "/")


def match_files(images: Sequence[str], files: Sequence[str]) -> dict[str, str]:
    """Return the file of each image, by image: of the files of its name, the one that shares the most parent folders with it.

    Images without a file of their name are left out. Shared folders are counted from the name upwards.

    The name may have the image's suffix or not; accents may be composed or not.

    Raises:
        DataError: when several files, or several images, match equally well.
    """
    by_name: dict[str, list[str]] = {}
    for file in files:
        by_name.setdefault(PurePosixPath(_key(file)).stem, []).append(file)
    match: dict[str, str] = {}
    claims: dict[str, list[tuple[tuple[int, bool], str]]] = {}
    for image in images:
        name = PurePosixPath(_key(image))
        candidates = {*by_name.get(name.stem, ()), *by_name.get(name.name, ())}
        if not candidates:
            continue
        ranked = sorted(((_nearness(image, file), file) for file in candidates), reverse=True)
        if len(ranked) > 1 and ranked[0][0] == ranked[1][0]:
            raise _ambiguous(image, ranked[0][1])
        near, file = ranked[0]
        match[image] = file
        claims.setdefault(file, []).append((near, image))
    for file, claimed in claims.items():
        claimed.sort(reverse=True)
        if len(claimed) > 1 and claimed[0][0] == claimed[1][0]:
            raise _ambiguous(claimed[0][1], file)
        for _, image in claimed[1:]:  # it shares fewer folders with the file than another image
            del match[image]
    return match


def _nearness(image: str, file: str) -> tuple[int, bool]:
    """Return the number of folders that two names share, counted from the name up, and whether they share all of them."""
    one, other = (PurePosixPath(_key(name)).parent.parts for name in (image, file))
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(one), reversed(other), strict=False))
    return len(list(shared)), one == other


def _ambiguous(image: str, file: str) -> DataError:
    return DataError(
        f"{image} may belong to {file}, but several files have that name; give the annotations the same relative paths as "
        "the images"
    )


def _key(name: str) -> str:
    """Normalize a name for comparison: file systems and archivers compose accents differently."""
    return unicodedata.normalize("NFC", name)


def parse_voc(data: bytes, name: str) -> Objects:
    """Read a Pascal VOC or ImageNet annotation; pixels of boxes are counted from 1.

    A polygon without a box beside it (LabelMe's XML) is replaced by the smallest box around its points, counted from 0.

    Raises:
        DataError: when the data are not such an annotation, or boxes are given in fractions instead of pixels.
    """
    try:
        root = _parsed(data)
        size = tuple(pixel(float(root.findtext(f"size/{tag}") or 0)) for tag in ("width", "height"))
        if not all(size):  # LabelMe's XML
            size = tuple(pixel(float(root.findtext(f"imagesize/{tag}") or 0)) for tag in ("ncols", "nrows"))
        names, boxes, corners, polygons = [], [], [], 0
        for item in root.iterfind("object"):
            if (box := item.find("bndbox")) is not None:
                corners.append([float(box.findtext(tag) or "") for tag in ("xmin", "ymin", "xmax", "ymax")])
                boxes.append([corners[-1][0] - 1, corners[-1][1] - 1, *corners[-1][2:]])
            elif points := [[float(at.findtext(axis) or "") for axis in "xy"] for at in item.iterfind("polygon/pt")]:
                boxes.append(_enclose(points))
                polygons += 1
            elif item.find("polygon") is not None:
                raise ValueError("a polygon has neither points (pt with x and y) nor a bndbox beside it; write a bndbox")
            else:
                continue
            names.append((item.findtext("name") or "").strip())
        check_no_fractions(corners, name)
        return Objects(tuple(names), _boxes(boxes), (size[0], size[1]) if all(size) else None, name, polygons=polygons)
    except (ElementTree.ParseError, ValueError, LookupError, RecursionError) as error:  # also of unknown encodings
        raise _not_an_annotation(name, "a Pascal VOC annotation", error) from error


def states_fractions(data: bytes, name: str) -> bool:
    """Return True if a Pascal VOC annotation has a box with an edge within a pixel; earlier versions truncated such edges."""
    try:
        boxes = parse_voc(data, name).boxes
    except UserError:
        return False
    return bool((boxes != boxes.round()).any())


def has_capitals(data: bytes) -> bool:
    """Return True if elements of a Pascal VOC annotation have capitals, as Bndbox; earlier versions ignored them."""
    return any(name != name.lower() for name in ELEMENTS.findall(data))


def _parsed(data: bytes) -> ElementTree.Element:
    """Return the root of an XML document, without namespaces; decode multi-byte encodings that Python's parser lacks."""
    declared = re.match(rb"""<\?xml[^>]*encoding=["']([\w.-]+)["'][^>]*\?>""", data)
    try:
        root = ElementTree.fromstring(data)
    except ValueError:
        if declared is None:
            raise
        root = ElementTree.fromstring(data[declared.end() :].decode(declared[1].decode()))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2].lower() if isinstance(element.tag, str) else element.tag
    return root


def parse_labelme(data: bytes, name: str) -> Objects:
    """Read a LabelMe annotation (JSON): rectangles and polygons by their corners, circles by centre and a point on them.

    Raises:
        DataError: when the data are not such an annotation.
    """
    try:
        content = _json(data)
        names, boxes = [], []
        for shape in content["shapes"]:
            points = [[float(x), float(y)] for x, y in shape["points"]]
            if shape.get("shape_type") == "circle":
                (x, y), edge = points
                radius = math.dist((x, y), edge)
                points = [[x - radius, y - radius], [x + radius, y + radius]]
            boxes.append(_enclose(points))
            names.append(_name(shape.get("label", "")))
        check_no_fractions(boxes, name)
        size = (content.get("imageWidth"), content.get("imageHeight"))
        stated = (pixel(size[0]), pixel(size[1])) if size[0] and size[1] else None
        polygons = sum(shape.get("shape_type") == "polygon" for shape in content["shapes"])
        return Objects(tuple(names), _boxes(boxes), stated, name, polygons=polygons)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _not_an_annotation(name, "a LabelMe annotation", error) from error


def parse_yolo(data: bytes, name: str, classes: Sequence[str] = ()) -> Objects:
    """Read a YOLO label file: per line a class number and either centre and size, or a polygon, in fractions of the picture.

    Args:
        classes: names of the classes; by default, their numbers.

    Raises:
        DataError: when the data are not such a file, or numbers are not fractions.
    """
    names, boxes, polygons = [], [], 0
    try:
        for line in data.decode().splitlines():
            if not (words := line.split()):
                continue
            number, values = int(words[0]), [float(word) for word in words[1:]]
            if number < 0 or (classes and number >= len(classes)):
                raise ValueError(f"class {number} is out of range; classes are numbered from 0, and {len(classes)} are named")
            if len(values) in (4, 5):  # five: with a detector's confidence
                x, y, width, height = values[:4]
                points = [[x - width / 2, y - height / 2], [x + width / 2, y + height / 2]]
            elif len(values) >= 6 and len(values) % 2 == 0:
                points = [values[place : place + 2] for place in range(0, len(values), 2)]
                polygons += 1
            else:
                raise ValueError(
                    f"a class is followed by {len(values)} numbers; a box has 4, a polygon an even number from 6"
                )
            if beyond := [value for point in points for value in point if not -0.01 <= value <= 1.01]:  # NaN is refused too
                raise ValueError(
                    f"coordinates {', '.join(f'{value:g}' for value in beyond[:4])} reach beyond the image; give fractions "
                    "of its width and height, from 0 to 1"
                )
            boxes.append(_enclose(points))
            names.append(classes[number] if classes else str(number))
    except ValueError as error:
        raise _not_an_annotation(name, "a YOLO label file", error) from error
    return Objects(tuple(names), _boxes(boxes).clip(0, 1), None, name, fractions=True, polygons=polygons)


def _class_names(data: bytes, name: str) -> list[str]:
    """Return the class names of a YOLO data set: a `names` list or mapping in YAML, or one name per line."""
    try:
        if not name.endswith((".yaml", ".yml")):
            return [line.strip() for line in data.decode().splitlines() if line.strip()]
        content = yaml.safe_load(data)
        if "kpt_shape" in content:
            raise DataError(
                f"{name} describes key points (kpt_shape), which would be read as corners of polygons; give label files with "
                "four numbers after each class, and a file without kpt_shape"
            )
        found = content["names"]
        if isinstance(found, dict):
            found = [found.get(int(number), number) for number in numbered_classes(max(map(int, found)), name)]
        return [str(each) for each in found]
    except UserError:
        raise
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = str(error).splitlines()[0]
        raise DataError(
            f"{name} names no classes ({why}); it needs a list or mapping `names` in YAML, or one name per line"
        ) from error


def parse_coco(data: bytes, name: str) -> tuple[list[str], dict[str, Objects], int]:
    """Read a COCO file of instances, without the boxes of crowds, or Label Studio's JSON.

    Returns:
        the names of the categories in order of their ids, the objects of each image by its file name, and the number of
        crowds.

    Raises:
        DataError: when the data are not such a file.
    """
    try:
        content = json_once(data)
        if isinstance(content, list) and content and isinstance(content[0], dict) and "data" in content[0]:
            return [], _from_label_studio(content, name), 0
        if "annotations" not in _object(content) or "categories" not in content:
            raise ValueError("it lacks annotations or categories; COCO's files of instances have both")
        categories = {item["id"]: _name(item["name"]) for item in sorted(content["categories"], key=lambda item: item["id"])}
        by_image: dict[Any, list[Any]] = {}
        crowds = 0
        for item in content["annotations"]:
            found_here = by_image.setdefault(item["image_id"], [])
            if item.get("iscrowd"):
                crowds += 1
            else:
                found_here.append(item)
        found: dict[str, Objects] = {}
        for image in content["images"]:
            items = by_image.pop(image["id"], [])
            rows = [[float(value) for value in item["bbox"]] for item in items]
            boxes = _boxes([[x, y, x + width, y + height] for x, y, width, height in rows])
            stated = (pixel(image["width"]), pixel(image["height"])) if image.get("width") and image.get("height") else None
            listed = _name(image["file_name"])
            if listed in found:
                raise ValueError(f"{listed} is listed twice")
            found[listed] = Objects(tuple(categories[item["category_id"]] for item in items), boxes, stated, name)
        if by_image:
            raise ValueError(f"it annotates image {next(iter(by_image))!s:.40}, which is not in its list of images")
        check_no_fractions([row for each in found.values() for row in each.boxes.tolist()], name)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _not_an_annotation(name, "a COCO file of instances", error) from error
    return list(categories.values()), found, crowds


def _from_label_studio(tasks: Sequence[Any], name: str) -> dict[str, Objects]:
    """Return the objects of each image of Label Studio's tasks; coordinates are percentages of the picture."""
    found: dict[str, Objects] = {}
    for task in tasks:
        listed = _name(task["data"]["image"])
        done = [one["result"] for one in task["annotations"] if not one.get("was_cancelled")]
        if len(done) > 1 or listed in found:
            raise ValueError(f"{listed} is annotated {'several times' if len(done) > 1 else 'by several tasks'}; keep one")
        shapes = [shape for result in done for shape in result if shape["type"].endswith("labels")]
        sizes = {(pixel(shape["original_width"]), pixel(shape["original_height"])) for shape in shapes}
        if len(sizes) > 1 or any(side < 1 for size in sizes for side in size):
            raise ValueError(f"{listed} has {len(sizes)} sizes, such as {next(iter(sizes))}")
        boxes = [_enclose(_corners(shape)) for shape in shapes]
        labels = [_name((shape["value"][shape["type"]] or [""])[0]) for shape in shapes]
        polygons = sum(shape["type"] == "polygonlabels" for shape in shapes)
        fractions = (_boxes(boxes) / 100).clip(0, 1)
        found[listed] = Objects(tuple(labels), fractions, next(iter(sizes), None), name, fractions=True, polygons=polygons)
    return found


def _corners(shape: Mapping[str, Any]) -> list[list[float]]:
    """Return points around a shape of Label Studio, in percentages; a rectangle turns about its first corner."""
    value = shape["value"]
    match shape["type"]:
        case "polygonlabels":
            return [[float(x), float(y)] for x, y in value["points"]]
        case "ellipselabels" if not value.get("rotation"):
            x, y, across, down = (float(value[key]) for key in ("x", "y", "radiusX", "radiusY"))
            return [[x - across, y - down], [x + across, y + down]]
        case "rectanglelabels":
            x, y, width, height = (float(value[key]) for key in ("x", "y", "width", "height"))
            aspect, angle = shape["original_width"] / shape["original_height"], math.radians(value.get("rotation") or 0)
            sides = [(0.0, 0.0), (width, 0.0), (0.0, height), (width, height)]
            cos, sin = math.cos(angle), math.sin(angle)
            return [
                [x + across * cos - down * sin / aspect, y + across * sin * aspect + down * cos] for across, down in sides
            ]
        case kind:
            raise ValueError(f"it has {kind!s:.40}, of which no box follows; draw rectangles, polygons or upright ellipses")


def _json(data: bytes) -> Any:
    return _object(json_once(data))


def _object(content: Any) -> Any:
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__} instead of an object")
    return content


def _name(value: Any) -> str:
    """Return a name in JSON as text; refuse escapes of lone surrogates, which UTF-8 cannot encode."""
    if not is_text(text := str(value)):
        raise ValueError(f"the name {text[:40]!a} is not UTF-8")
    return text


def _enclose(points: Sequence[Sequence[float]]) -> list[float]:
    """Return the smallest box that encloses points: x0, y0, x1, y1."""
    xs, ys = zip(*points, strict=True)
    return [min(xs), min(ys), max(xs), max(ys)]


def _boxes(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    for row in rows:
        for value in row:
            pixel(value)
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def pixel(value: float) -> int:
    """Convert a coordinate of a box to an integer.

    Raises:
        ValueError: for a coordinate that is too large for an image, or NaN.
    """
    if not abs(value) < MOST_PIXELS:  # NaN is refused too
        shown = f"{value:g}" if isinstance(value, float) else str(value)[:20]  # a large integer is no float
        raise ValueError(f"{shown} is not a pixel coordinate")
    return int(value)


def _not_an_annotation(name: str, kind: str, error: Exception) -> UserError:
    if isinstance(error, UserError):
        return error
    reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
    return DataError(f"{name} is not {kind} ({reason.splitlines()[0] if reason else type(error).__name__})")
