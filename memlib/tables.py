"""The Arrow schemas of everything that is published, with the unit and meaning of each column.

Every file carries its table's name and version in the Parquet metadata, and the meaning of each column in that
column's own. A change that readers would notice raises the version.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP = 131_072


@dataclass(frozen=True)
class Column:
    """One column: its type, unit ("" for names and categories) and meaning."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """A named, versioned list of columns; `keys` are the columns that identify a row."""

    name: str
    version: int
    meaning: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema, with unit and meaning as field metadata."""
        fields = [pa.field(c.name, c.type, metadata={"unit": c.unit, "meaning": c.meaning}) for c in self.columns]
        metadata = {
            "memlib.table": self.name,
            "memlib.version": str(self.version),
            "memlib.keys": json.dumps(self.keys),
        }
        return pa.schema(fields, metadata=metadata)


def write_table(table: pa.Table, schema: Table, path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a table as Parquet: zstd, row groups of 131,072, schema version and extra metadata in the file."""
    pq.write_table(table.cast(_described(schema, metadata)), path, compression="zstd", row_group_size=ROW_GROUP)


def copy_table(source: Path, schema: Table, path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a table that is in a file as `write_table` does, a row group after the other, however large it is."""
    write_tables(read_groups(source, schema.arrow.names), schema, path, metadata=metadata)


def write_tables(parts: Iterable[pa.Table], schema: Table, path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Write a table that comes in parts as `write_table` does, one after the other."""
    arrow = _described(schema, metadata)
    with pq.ParquetWriter(path, arrow, compression="zstd") as writer:
        for part in parts:
            writer.write_table(part.cast(arrow), row_group_size=ROW_GROUP)


def _described(schema: Table, metadata: Mapping[str, str] | None) -> pa.Schema:
    arrow = schema.arrow
    return arrow.with_metadata({**arrow.metadata, **{k.encode(): v.encode() for k, v in (metadata or {}).items()}})


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Reads one of our tables, as a single file: pyarrow's data sets load pandas, and read partitions into the path."""
    return pq.ParquetFile(path).read(columns=columns)


def read_groups(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield some columns of one of our tables, a row group after the other, however large it is."""
    file = pq.ParquetFile(path)
    for number in range(file.num_row_groups):
        yield file.read_row_group(number, columns=list(columns))


TEXT, INT, FLOAT, FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
RECTANGLE = pa.list_(pa.int32())

INDEX = Table(
    name="index",
    version=1,
    meaning="The images of a source as they were decoded, a row each, sorted by example id.",
    columns=(
        Column("example_id", TEXT, "", "path or row within the source"),
        Column("row", INT, "row", "position among the stored images"),
        Column("label", INT, "class index", "the object's class"),
        Column("class_name", TEXT, "", "its name"),
        Column("boxes", RECTANGLE, "pixel", "x0, y0, x1, y1 of each object, half open, in the stored image"),
        Column("content", RECTANGLE, "pixel", "x0, y0, x1, y1 of the picture in the stored (maybe padded) image"),
        Column("original_width", INT, "pixel", "before resizing"),
        Column("original_height", INT, "pixel", "before resizing"),
        Column(
            "digest",
            TEXT,
            "sha256",
            "of the stored pixels, before they became JPEG: equal for duplicates",
        ),
        Column("unreadable", TEXT, "", "why the image could not be decoded; null when it was"),
    ),
    keys=("example_id",),
)

SPLITS = Table(
    name="splits",
    version=2,
    meaning="Which role each example plays in the audit.",
    columns=(
        Column("example_id", TEXT, "", "path or row within the source"),
        Column("row", INT, "row", "position in the shard's images.npy"),
        Column(
            "role",
            TEXT,
            "",
            "target (A), reference (B), shared (C), public (X), extra (E), train, validation, held_out, left_out, or set",
        ),
        Column("label", INT, "class index", "the object's class"),
        Column("class_name", TEXT, "", "its name"),
        Column("crop_x0", pa.int32(), "pixel", "left edge of the background crop in the stored image; null without one"),
        Column("crop_y0", pa.int32(), "pixel", "its top edge"),
        Column("crop_x1", pa.int32(), "pixel", "its right edge, exclusive"),
        Column("crop_y1", pa.int32(), "pixel", "its bottom edge, exclusive"),
        Column("reason", TEXT, "", "why the example was left out; null when it was not"),
        Column("group", TEXT, "", "examples of one group have one role; null for an example by itself"),
    ),
    keys=("example_id",),
)

TRAINING = Table(
    name="training",
    version=1,
    meaning="What a training reported, a row an epoch.",
    columns=(
        Column("epoch", INT, "epoch", "epochs finished"),
        Column("step", INT, "step", "optimiser steps taken"),
        Column("learning_rate", FLOAT, "", "in the last step of the epoch"),
        Column("term", TEXT, "", "loss, or one of its terms"),
        Column("value", FLOAT, "", "its mean over the epoch"),
    ),
    keys=("epoch", "term"),
)


SUMMARY = Table(
    name="summary",
    version=2,
    meaning="The findings, one per metric and setting. The first row is the headline and carries the verdict of the run.",
    columns=(
        Column("metric", TEXT, "", "the metric's name"),
        Column("params", TEXT, "JSON", "what the metric was computed at (layer, k, p, direction, ...)"),
        Column("role", TEXT, "", "test (has a null and a verdict), estimate, or diagnostic"),
        Column("value", FLOAT, "metric's", "the estimate: a fraction, a probability, or as params say"),
        Column("ci_low", FLOAT, "metric's", "lower end of the 95 % interval; null when there is none"),
        Column("ci_high", FLOAT, "metric's", "its upper end; null where only a lower bound is known"),
        Column("interval", TEXT, "", "what the interval is over: examples, trainings, nets, canaries, references, data"),
        Column("null_value", FLOAT, "metric's", "the value under the null of the test; null when not tested"),
        Column("p_value", FLOAT, "probability", "of a value at least as extreme under the null; null when not tested"),
        Column("family", TEXT, "", "the tests that the p-value is adjusted with"),
        Column("p_adjusted", FLOAT, "probability", "adjusted within the family (Holm, max-T or Benjamini-Hochberg)"),
        Column("alpha", FLOAT, "probability", "level of the test"),
        Column("verdict", TEXT, "", "of a test: shown, bounded or inconclusive; null otherwise"),
        Column("upper_bound", FLOAT, "metric's", "one-sided 95 % upper bound of the value; null when unknown"),
        Column("bound", FLOAT, "metric's", "fixed by the recipe: an upper bound below it reads bounded"),
        Column("detectable", FLOAT, "metric's", "what the test finds with 80 % power at this size; null: nothing"),
        Column("smallest_p", FLOAT, "probability", "no data of this size give a smaller p-value"),
        Column("n", INT, "", "units the estimate rests on"),
        Column("conclusion", TEXT, "", "first row only: the verdict of the run; descriptive when it tests nothing"),
        Column("sentence", TEXT, "", "first row only: the verdict of the run in a plain sentence"),
        Column("explanation", TEXT, "", "first row only: the numbers behind it, and what could have been missed"),
    ),
    keys=("metric", "params"),
)

CURVES = Table(
    name="curves",
    version=1,
    meaning="The points of every curve in the report.",
    columns=(
        Column("curve", TEXT, "", "the curve's name"),
        Column("series", TEXT, "", "which line of the curve"),
        Column("params", TEXT, "JSON", "what the curve was computed at"),
        Column("x", FLOAT, "curve's", "share of the most confident examples, epoch, pixels removed, ... as the curve says"),
        Column("y", FLOAT, "curve's", "label inference accuracy among them, proportion, M, loss, ..."),
    ),
    keys=("curve", "series", "params", "x"),
)


CANARIES = Table(
    name="canaries",
    version=2,
    meaning="Canaries, a row each. Secret: it is published nowhere.",
    columns=(
        Column("canary", INT, "", "its id, which is all that results say of it"),
        Column(
            "kind", TEXT, "", "drawn and inserted, drawn and never inserted (never), given by a file, or unseen of a file"
        ),
        Column("insertions", INT, "count", "how often it stands in the corpus; 0: never"),
        Column("choices", pa.list_(pa.int32()), "", "for each place of the sequence which of its symbols"),
        Column("text", TEXT, "", "the canary itself"),
    ),
    keys=("canary",),
)


RUNS = Table(
    name="runs",
    version=1,
    meaning="A row a run, written last: tables of runs without one are of runs that were killed, or of a memlib before 0.2.",
    columns=(
        Column("finished", pa.timestamp("us", tz="UTC"), "", "when it was last published"),
        Column("title", TEXT, "", "of its report"),
        Column("data", TEXT, "sha256", "digest of its data; empty for a sweep"),
        Column("asks", TEXT, "sha256", "digest of its recipe without titles, galleries and where the data lie"),
        Column("scores", TEXT, "", "the artifact that its numbers are of; null for a sweep"),
        Column("current", FLAG, "", "whether no newer run asks the same of the same data, as after an update of memlib"),
        Column("verdict", TEXT, "", "in a word"),
        Column("sentence", TEXT, "", "the verdict in a sentence"),
        Column("memlib", TEXT, "", "the version that published it"),
    ),
    keys=("asks", "data", "scores"),
)
