"""Many images in a file: Parquet or Arrow of the Hugging Face convention (a struct of bytes and path), or arrays (npz)."""

import bisect
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.data.bounds import MOST_PIXELS, UNREADABLE_ZIP, check_arrays, check_links
from memlib.data.examples import (
    NO_BOXES,
    Example,
    UnreadableImage,
    check_no_archives,
    check_no_fractions,
    decode_example,
    find_files,
    is_hidden,
    listing_digest,
    numbered_classes,
)
from memlib.data.images.annotations import ROTATED_UNKNOWN
from memlib.data.images.pictures import ROTATED, ROTATED_BOXES, Picture, Undecodable, oddities_of
from memlib.data.opening import ArrowContent, ParquetContent, check_regular, located, reason, saved_files
from memlib.data.tables.columns import check_ids, check_once, ids_of
from memlib.errors import DataError, UserError
from memlib.identity import file_digest
from memlib.specs import NpzSource, ParquetSource


@dataclass(frozen=True)
class _RowGroup:
    file: str
    index: int
    first: int  # first row of the group, counted within the source


class ParquetImages:
    """Images of Parquet files or Arrow streams, read one row group at a time; labels are class indices or strings."""

    def __init__(self, spec: ParquetSource) -> None:
        self._spec = spec
        self._fs, root = located(spec.path)
        files = self._fs.glob(root, detail=True) if "*" in root else find_files(self._fs, root)
        files = {name: files[name] for name in sorted(files) if not is_hidden(os.path.basename(name))}
        self._files = {name: info for name, info in files.items() if name.endswith(".parquet")}
        if not self._files and "*" not in root and (saved := saved_files(spec.path)):  # beside which may be caches
            self._files = {name: files[name] for name in (f"{root.rstrip('/')}/{file}" for file in saved) if name in files}
        elif not self._files and ("*" in root or root.endswith(".arrow")):
            self._files = {name: info for name, info in files.items() if name.endswith(".arrow")}
        if not self._files:
            check_no_archives([root, *files], spec.path)
            raise DataError(
                f"no .parquet file at {spec.path}; set data.source.path to a .parquet or .arrow file, a folder of .parquet "
                "files or of save_to_disk, or a glob"
            )
        names = list(self._files)
        check_links(self._fs, root if "*" not in root else os.path.dirname(root.partition("*")[0]), self._files)
        self._folder = os.path.dirname(names[0]) if len(names) == 1 else os.path.commonpath(names)
        self._groups: list[_RowGroup] = []
        self._ids: list[str] = []
        labels: list[Any] = []
        stated: dict[str, list[str] | None] = {}
        for file in names:
            try:
                stated[file] = self._scan(file, labels)
            except (UnicodeDecodeError, pa.ArrowException) as error:
                raise _unreadable(file, error) from error
        if None in labels:
            raise DataError(f"{spec.path}: example {self._ids[labels.index(None)]} has no {spec.label_column}")
        self.class_names, self.labels = _classes(labels, _one_list(stated), spec.path)
        self._starts = [group.first for group in self._groups]
        self._loaded: tuple[int, pa.Table] | None = None

    def _scan(self, file: str, labels: list[Any]) -> list[str] | None:
        """Read a file's ids, append its labels to `labels`, and return the class names that its metadata state, if any."""
        spec = self._spec
        wanted = [c for c in (spec.image_column, spec.label_column, spec.id_column, spec.boxes_column) if c]
        check_regular(self._fs, file)
        with self._fs.open(file) as handle:
            parquet = _content(handle, file)
            names = parquet.schema.names
            check_once(names, wanted, file)
            short = os.path.relpath(file, self._folder)
            row = 0
            for index in range(parquet.num_row_groups):
                self._groups.append(_RowGroup(file, index, len(self._ids)))
                columns = [column for column in (spec.label_column, spec.id_column) if column]
                table = parquet.read_row_group(index, columns)
                table.validate(full=True)
                labels += table[spec.label_column].to_pylist()
                if spec.id_column:
                    where = f"{file}: {spec.id_column}"
                    self._ids += check_ids(ids_of(table[spec.id_column], where), where)
                else:
                    self._ids += [f"{short}:{row + i:07d}" for i in range(table.num_rows)]
                row += table.num_rows
            return _stated_classes(parquet.schema.metadata, spec.label_column)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Example:
        name, label = self._ids[index], self.labels[index]
        row = self._row(index)
        image = row[self._spec.image_column]
        data = image.get("bytes") if isinstance(image, dict) else image
        if data is None:
            raise UnreadableImage(name, label, "has no image bytes")
        try:
            boxes = self._boxes(row)
        except UserError:
            raise
        except (ValueError, TypeError, OverflowError) as error:
            problem = f"example {name} of {self._spec.path}: each box in {self._spec.boxes_column} needs four numbers"
            raise DataError(f"{problem} ({error})") from error

        def found(picture: Picture) -> NDArray[np.int64]:
            if len(boxes) and picture.orientation != 1:
                raise Undecodable(ROTATED_UNKNOWN)
            return boxes

        return decode_example(data, name, label, found)

    def content_digest(self) -> str:
        """Return a digest of the listing of the files."""
        listing = {os.path.relpath(file, self._folder): info for file, info in self._files.items()}
        looks_for = " ".join(filter(None, (self._spec.image_column, self._spec.boxes_column)))
        return listing_digest(self._fs, self._folder, listing, look=self._look, looks_for=looks_for)

    def _look(self, path: str) -> Collection[str]:
        """Return the oddities of the images in a file."""
        oddities: set[str] = set()
        try:
            for image in _content(path, path).values(self._spec.image_column):
                data = image.get("bytes") if isinstance(image, dict) else image
                oddities |= set(oddities_of(data)) if data is not None else set()
            if self._spec.boxes_column and ROTATED in oddities:
                oddities.add(ROTATED_BOXES)
        except (UnicodeDecodeError, pa.ArrowException) as error:
            raise _unreadable(path, error) from error
        return oddities

    def _row(self, index: int) -> dict[str, Any]:
        number = bisect.bisect_right(self._starts, index) - 1
        group = self._groups[number]
        loaded = self._loaded  # read it once: another thread may replace it by another row group
        if loaded is None or loaded[0] != number:
            columns = [c for c in (self._spec.image_column, self._spec.boxes_column) if c]
            try:
                with self._fs.open(group.file) as handle:
                    loaded = (number, _content(handle, group.file).read_row_group(group.index, columns))
                loaded[1].validate(full=True)
            except (UnicodeDecodeError, pa.ArrowException) as error:
                raise _unreadable(group.file, error) from error
            self._loaded = loaded
        row: dict[str, Any] = loaded[1].slice(index - group.first, 1).to_pylist()[0]
        return row

    def _boxes(self, row: Mapping[str, Any]) -> NDArray[np.int64]:
        if not self._spec.boxes_column:
            return NO_BOXES
        value = row[self._spec.boxes_column]
        value = value.get("bbox") if isinstance(value, dict) else value
        boxes = np.array(value or NO_BOXES, dtype=np.float64).reshape(-1, 4)
        check_no_fractions(boxes.tolist(), f"{self._spec.path}, column {self._spec.boxes_column}")
        if not (np.abs(boxes) < MOST_PIXELS).all():  # NaN is refused too
            raise ValueError("coordinates too large for an image")
        if self._spec.box_format == "xywh":
            boxes[:, 2:] += boxes[:, :2]
        return np.concatenate([np.floor(boxes[:, :2]), np.ceil(boxes[:, 2:])], axis=1).astype(np.int64)


def _content(source: str | IO[bytes], path: str) -> ParquetContent | ArrowContent:
    return ArrowContent(source, path) if path.endswith(".arrow") else ParquetContent(source, path)


def _unreadable(file: str, error: Exception) -> DataError:
    kind = "Arrow stream" if file.endswith(".arrow") else "Parquet file"
    return DataError(f"{file} is not a readable {kind} ({reason(error)})")


def _one_list(stated: Mapping[str, list[str] | None]) -> list[str] | None:
    """Return the class names that all files state, None if none states any.

    Raises:
        DataError: when two files differ, so that a number means two classes.
    """
    (first, names), *others = stated.items()
    for file, its in others:
        if its != names:
            raise DataError(
                f"{file} names other classes than {first} ({_short(its)}; {_short(names)}), so that their numbers differ in "
                "meaning; read one at a time, or write both with the same names"
            )
    return names


def _short(names: list[str] | None) -> str:
    return "none" if names is None else f"{len(names)}: {', '.join(names)[:80]}"


def _classes(labels: list[Any], stated: list[str] | None, where: str) -> tuple[list[str], list[int]]:
    odd = next((label for label in labels if not isinstance(label, int | str) or isinstance(label, bool)), None)
    if odd is not None:
        raise DataError(f"{where} has the label {str(odd)[:60]} ({type(odd).__name__}); labels are class indices or names")
    if all(isinstance(label, int) for label in labels):
        largest = max(labels, default=-1)
        names = stated or numbered_classes(largest, where)
        if largest >= len(names):
            raise DataError(f"{where} has the label {largest}, but its metadata name {len(names)} classes")
        return names, [int(label) for label in labels]
    names = sorted({str(label) for label in labels})
    index = {name: number for number, name in enumerate(names)}
    return names, [index[str(label)] for label in labels]


def _stated_classes(metadata: Mapping[bytes, bytes] | None, column: str) -> list[str] | None:
    """Return the class names in the metadata written by the `datasets` library."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        names = features[column]["names"]
    except (KeyError, TypeError, ValueError):
        return None
    return [str(name) for name in names]


class NpzImages:
    """Images in the rows of an array; example ids are <array>-<row>."""

    def __init__(self, spec: NpzSource) -> None:
        self._spec = spec
        path = Path(spec.path)
        try:
            check_regular(*located(spec.path))
            check_arrays(path)
            with np.load(path, allow_pickle=False) as file:
                missing = [name for name in (spec.images, spec.labels) if name not in file]
                if missing:
                    raise DataError(f"{path} has no array {missing[0]!r}; it has {', '.join(file.files)}")
                self._images: NDArray[np.uint8] = file[spec.images]
                labels = file[spec.labels]
        except UserError:
            raise
        except UNREADABLE_ZIP as error:
            raise DataError(f"cannot read arrays from {path} ({error})") from error
        if self._images.dtype != np.uint8 or self._images.ndim not in (3, 4):
            seen = f"{self._images.dtype} {self._images.shape}"
            raise DataError(f"{path}: {spec.images} should be (count, height, width[, 3]) uint8, not {seen}")
        if labels.size != len(self._images) or not np.issubdtype(labels.dtype, np.integer):
            raise DataError(
                f"{path}: {spec.labels} should hold {len(self._images)} class indices, but has shape {labels.shape}"
            )
        self.labels: list[int] = labels.reshape(-1).astype(np.int64).tolist()
        largest = max(self.labels, default=-1)
        if spec.class_names and len(spec.class_names) <= largest:
            raise DataError(f"{path} has {largest + 1} classes, but class_names lists {len(spec.class_names)}")
        self.class_names = list(spec.class_names) or numbered_classes(largest, str(path))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        image = self._images[index]
        if image.ndim == 2:
            image = np.repeat(image[..., None], 3, axis=2)
        return Example(f"{self._spec.images}-{index:07d}", image, self.labels[index], NO_BOXES)

    def content_digest(self) -> str:
        """Return the digest of the file."""
        return file_digest(Path(self._spec.path))
