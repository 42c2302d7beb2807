"""Examples in the rows of a table: numeric and categorical columns become the coordinates of a point."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.data.examples import NO_BOXES, Example, listing_digest
from memlib.data.opening import located, saved_files
from memlib.data.tables.columns import check_ids, check_once, ids_of
from memlib.data.tables.reading import TableFile, names_of_index, read_table_file
from memlib.errors import DataError, UserError
from memlib.identity import canonical_json
from memlib.specs import IdsSource, TableSource

MOST_CATEGORIES, MOST_CLASSES = 200, 1000
MOST_NAMED = 20  # columns named in a remark


@dataclass(frozen=True)
class Column:
    """A column of a table and its coordinates."""

    name: str  #: name of the column.
    categories: tuple[str, ...] | None  #: the values of a categorical column, sorted; None for a numeric column.
    missing: int  #: number of rows without a value.
    #: (num_rows, num_coordinates) float32. Numeric column: the standardized value, 0 if it is missing; then, if the column
    #: lacks any value, an indicator of missing values. Categorical column: an indicator of each category, then of missing
    #: values, if there are any.
    coordinates: NDArray[np.float32]

    def __str__(self) -> str:
        count = "" if self.categories is None else f" ({len(self.categories)})"
        return f"{self.name}{count}" + (f", {self.missing:,} missing" if self.missing else "")


@dataclass(frozen=True)
class OneHot:
    """The coordinates of a categorical column in a point."""

    start: int  #: place of the first category's coordinate.
    categories: tuple[str, ...]  #: values of the column, one coordinate each.
    has_missing: bool  #: True if one more coordinate is 1 where the value is missing.

    @property
    def places(self) -> slice:
        """The column's coordinates."""
        return slice(self.start, self.start + len(self.categories) + self.has_missing)

    def codes(self, points: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the position of each point's value in `categories`, -1 if it is missing: (num_points,)."""
        codes: NDArray[np.int64] = points[:, self.places].argmax(axis=1)
        return np.where(codes < len(self.categories), codes, -1)

    def replaced(self, points: NDArray[np.float32], code: int) -> NDArray[np.float32]:
        """Return a copy of the points (num_points, dim) with the column set to the category at position `code`."""
        changed = points.copy()
        changed[:, self.places] = 0
        changed[:, self.start + code] = 1
        return changed


class Table:
    """Rows of a CSV or Parquet file; rows without a label are left out.

    Example ids are the numbers of the file's rows, from 0, or those of the id column; with a person column, they are
    <person>/<id>.
    """

    def __init__(self, spec: TableSource) -> None:
        self._spec = spec
        self._file = read_table_file(spec)
        table, self._texts = self._file.table, self._file.texts
        named = [name for name in (spec.label_column, spec.id_column, spec.person_column) if name is not None]
        check_once(table.column_names, list(dict.fromkeys((*named, *spec.columns, *spec.categorical))), spec.where)
        unlabelled = table[spec.label_column].null_count
        labelled = pc.is_valid(table[spec.label_column])
        self._numbers = np.flatnonzero(labelled.to_numpy(zero_copy_only=False)).tolist()
        table, self._texts = table.filter(labelled), self._texts.filter(labelled)
        if not table.num_rows:
            raise DataError(f"{spec.where} has no row with a value in {spec.label_column}")
        self._table = table
        self.class_names, self.labels = self._label()
        left_out = {*named, *self._file.index}
        wanted = spec.columns or [name for name in table.column_names if name not in left_out]
        if not wanted:
            raise DataError(f"{spec.where} has no column besides {', '.join(left_out)}")
        self._columns = [_encode(table[name], name, spec) for name in wanted]
        self.point_dim = sum(column.coordinates.shape[1] for column in self._columns)
        self.schema = list(self._describe())
        self.remarks = [f"rows without a label are left out: {unlabelled:,}"] if unlabelled else []
        self.remarks += [names_of_index(self._file.index)] if self._file.index else []
        if spec.person_column is not None:
            persons = len(pc.unique(table[spec.person_column]))
            self.remarks.append(
                f"{persons:,} persons; set group: {{pattern: '^(.+)/'}} in the split so that no split parts a person's rows"
            )

    def _label(self) -> tuple[list[str], list[int]]:
        """Return the names of the classes, sorted, and the class of each row; whole numbers are sorted as numbers."""
        column = self._table[self._spec.label_column]
        if pa.types.is_floating(column.type) and pc.all(pc.equal(pc.floor(column), column)).as_py():
            column = column.cast(pa.int64())
        if pa.types.is_floating(column.type) or pa.types.is_nested(column.type):
            raise DataError(
                f"{self._spec.where}: {self._spec.label_column} holds {column.type}; labels are names or whole numbers"
            )
        values = sorted(pc.unique(column).to_pylist())
        if len(values) > MOST_CLASSES:
            raise DataError(
                f"{self._spec.where}: {self._spec.label_column} has {len(values):,} different values, more than "
                f"{MOST_CLASSES:,}; set data.source.label_column to the column of the class"
            )
        place = {value: number for number, value in enumerate(values)}
        return [str(value) for value in values], [place[value] for value in column.to_pylist()]

    @cached_property
    def _ids(self) -> list[str]:
        spec = self._spec
        if spec.id_column is None:
            ids = [self._file.rows[row] for row in self._numbers]
        else:
            where = f"{spec.where}: {spec.id_column}"
            ids = check_ids(ids_of(self._table[spec.id_column], where), where)
        if spec.files and spec.id_column is not None:
            folders = (self._file.rows[row].rpartition("/")[0] for row in self._numbers)
            ids = [f"{part}/{name}" for part, name in zip(folders, ids, strict=True)]
        if spec.person_column is None:
            return ids
        where = f"{spec.where}: {spec.person_column}"
        persons = check_ids(ids_of(self._table[spec.person_column], where), where)
        return [f"{person}/{name}" for person, name in zip(persons, ids, strict=True)]

    def _describe(self) -> Iterator[str]:
        """Yield lines on the schema that was inferred."""
        for kind in ("numeric", "categorical"):
            names = [str(column) for column in self._columns if (column.categories is None) == (kind == "numeric")]
            if names:
                yield f"{kind} columns: {'; '.join(names[:MOST_NAMED])}" + (", ..." if len(names) > MOST_NAMED else "")
        used = {*(column.name for column in self._columns), *self._file.index}
        named = (self._spec.label_column, self._spec.id_column, self._spec.person_column)
        if unused := [name for name in self._table.column_names if name not in used and name not in named]:
            yield f"columns that are not used: {', '.join(name or '(without a name)' for name in unused[:MOST_NAMED])}"

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Example:
        point = np.concatenate([column.coordinates[index] for column in self._columns])
        return Example(self._ids[index], point, self.labels[index], NO_BOXES)

    @property
    def attributes(self) -> Mapping[str, Mapping[str, str]]:
        """The values of every column of the file as text, by column and example id; missing values are left out."""
        return _ColumnTexts(self._table, self._ids)

    @property
    def features(self) -> Mapping[str, Mapping[str, str]]:
        """The values of the columns that models see, as they are in the file, by column and example id.

        Numbers of Parquet files are in the shortest decimal form, and their missing values are left out.
        """
        texts = _ColumnTexts(self._texts, self._ids)
        return {column.name: texts[column.name] for column in self._columns}

    @property
    def row_digests(self) -> Mapping[str, str]:
        """The digest of each row by example id, over its values in the columns that models see.

        Numbers count to six digits, and values in any order, so that a copy with other columns first, or in single precision,
        has the same digests.
        """
        columns = [list(map(_rounded, self._table[column.name].to_pylist())) for column in self._columns]
        rows = zip(self._ids, *columns, strict=True)
        return {name: hashlib.sha256("\x1f".join(sorted(row)).encode()).hexdigest() for name, *row in rows}

    def one_hot(self, name: str) -> OneHot:
        """Return the coordinates of a categorical column.

        Raises:
            UserError: for a column of numbers, or one that is not among the columns that are used.
        """
        widths = [column.coordinates.shape[1] for column in self._columns]
        for column, start in zip(self._columns, np.cumsum([0, *widths]).tolist(), strict=False):
            if column.name == name and column.categories is None:
                raise UserError(
                    f"{self._spec.where}: column {name} holds numbers; if they stand for categories, list it in "
                    "data.source.categorical"
                )
            if column.name == name and column.categories is not None:
                return OneHot(start, column.categories, bool(column.missing))
        raise UserError(
            f"{self._spec.where} has no column {name!r} among those that are used: "
            f"{', '.join(column.name for column in self._columns[:MOST_NAMED])}"
        )

    def content_digest(self) -> str:
        """Return a digest of the file."""
        parts = {name: _file_digest(path) for name, path in self._spec.files.items()}
        digest = canonical_json(parts) if parts else _file_digest(self._spec.path)
        numbered = self._spec.id_column is None and self._numbers[-1] >= len(self)
        marks = [*(["rows"] if numbered else []), *self._file.marks]  # before, rows without a label were not counted
        return ":".join([digest, *marks])


class Ids:
    """Rows of which only ids, classes and persons are read; the point of each is its number, and says nothing."""

    point_dim = 1
    schema = ("ids, classes and persons alone",)

    def __init__(self, spec: IdsSource) -> None:
        named = {name: column for name, column in _roles(spec).items() if column is not None}
        read = tuple(dict.fromkeys(named.values()))
        as_table = TableSource(
            kind="table", path=spec.path, label_column=spec.label_column or "", columns=read or ("(none)",),
            types=dict.fromkeys(read, "category"),
        )  # fmt: skip
        file = read_table_file(as_table)
        check_once(file.table.column_names, list(dict.fromkeys(named.values())), spec.path)
        if not file.table.num_rows:
            raise DataError(f"{spec.path} has no rows")
        texts = {
            role: check_ids(ids_of(_plain(file, column), f"{spec.path}: {column}"), f"{spec.path}: {column}")
            for role, column in named.items()
        }
        ids = texts.get("id", list(file.rows))
        self._ids = (
            [f"{person}/{name}" for person, name in zip(texts["person"], ids, strict=True)] if "person" in texts else ids
        )
        labels = texts.get("label", ["all"] * len(ids))
        self.class_names = sorted(set(labels))
        if len(self.class_names) > MOST_CLASSES:
            raise DataError(
                f"{spec.path}: {spec.label_column} has {len(self.class_names):,} different values; name the class"
            )
        place = {name: number for number, name in enumerate(self.class_names)}
        self.labels = [place[label] for label in labels]
        self._digest = hashlib.sha256(canonical_json([self._ids, labels]).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Example:
        return Example(self._ids[index], np.array([index], dtype=np.float32), self.labels[index], NO_BOXES)

    def content_digest(self) -> str:
        """Return a digest of ids and classes."""
        return self._digest


def _roles(spec: IdsSource) -> dict[str, str | None]:
    return {"id": spec.id_column, "label": spec.label_column, "person": spec.person_column}


def _plain(file: TableFile, column: str) -> pa.ChunkedArray:
    """Return a column as it is in the file, whole numbers as text; a missing value stays one."""
    found = file.texts[column]
    return pc.if_else(pc.equal(found, ""), None, found) if pa.types.is_string(found.type) else found


def _rounded(value: object) -> str:
    """Return a value as text, a number with six digits; "" if it is missing."""
    if value is None or value != value:
        return ""
    return f"{float(value):.6g}" if isinstance(value, float | int | Decimal) else str(value)


def _file_digest(uri: str) -> str:
    fs, path = located(uri)
    names = saved_files(uri)
    folder, _, name = (path.rstrip("/"), "", "") if names else path.rpartition("/")
    return listing_digest(fs, folder, {name: fs.info(f"{folder}/{name}") for name in names or [name]})


class _ColumnTexts(Mapping[str, Mapping[str, str]]):
    """The values of a table's columns as text, by column and example id; each column is converted on access."""

    def __init__(self, table: pa.Table, ids: list[str]) -> None:
        self._table, self._ids = table, ids

    def __getitem__(self, name: str) -> Mapping[str, str]:
        if name not in self._table.column_names:
            raise KeyError(name)
        values = zip(self._ids, self._table[name].to_pylist(), strict=True)
        return {example: str(value) for example, value in values if value is not None and value == value}

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.column_names)

    def __len__(self) -> int:
        return len(self._table.column_names)


def _encode(column: pa.ChunkedArray, name: str, spec: TableSource) -> Column:
    """Encode a column as coordinates.

    Raises:
        DataError: for a type that is neither numbers nor categories, values that are not finite, and too many categories.
    """
    kind, missing, path = column.type, column.null_count, spec.where
    absent = column.is_null().to_numpy()
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if numeric and name not in spec.categorical and spec.types.get(name) != "category":
        try:
            values = column.cast(pa.float64()).to_numpy().copy()
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{path}: column {name} holds whole numbers beyond 2**53, as ids are; leave it out with data.source.columns, "
                "or write it as text"
            ) from error
        absent |= np.isnan(values)
        if np.isinf(values).any():
            raise DataError(
                f"{path}: column {name} holds a value that is not finite; leave the column out, or the value empty"
            )
        if spec.standardize is False:
            if absent.any():
                raise DataError(
                    f"{path}: column {name} lacks {int(absent.sum()):,} values, and standardize: false passes the "
                    "numbers of the file; fill them in as your model expects them, or supply its outputs"
                )
            return Column(name, None, 0, values[:, None].astype(np.float32))
        known = values[~absent]
        spread = float(known.std()) if len(known) else 0.0
        standard = np.where(absent, 0.0, (values - (known.mean() if len(known) else 0.0)) / (spread or 1.0))
        parts = [standard, absent] if absent.any() else [standard]
        return Column(name, None, int(absent.sum()), np.stack(parts, axis=1).astype(np.float32))
    text = (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_dictionary(kind)
        or pa.types.is_boolean(kind)
        or (pa.types.is_temporal(kind) and spec.types.get(name) == "category")
    )
    if not (text or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise DataError(f"{path}: column {name} holds {kind}; use numbers or text, or leave it out with data.source.columns")
    values = np.array(["" if value is None else str(value) for value in column.to_pylist()], dtype=object)
    categories = tuple(sorted(set(values[~absent])))
    if len(categories) > MOST_CATEGORIES:
        raise DataError(
            f"{path}: column {name} has {len(categories):,} different texts, as ids or free text do; leave it out with "
            "data.source.columns"
        )
    place = {category: number for number, category in enumerate(categories)}
    coordinates = np.zeros((len(values), len(categories) + bool(missing)), dtype=np.float32)
    coordinates[
        np.arange(len(values)), [len(categories) if gone else place[v] for v, gone in zip(values, absent, strict=True)]
    ] = 1
    return Column(name, categories, missing, coordinates)
