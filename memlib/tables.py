"""Arrow schemas of the tables that audits have in common, with the unit and meaning of each column.

The others are in `tables.py` of each audit.

Every file carries its table's name and version in the Parquet metadata, and the unit and meaning of each column in the
column's metadata. A change that readers would notice raises the version.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsFloat

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP = 131_072


@dataclass(frozen=True)
class Column:
    """One column with its type, unit ("" for names and categories) and meaning."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """A named, versioned list of columns; `keys` are the columns that identify a row.

    An optional table belongs only to runs whose scores contain it.
    """

    name: str
    version: int
    meaning: str
    columns: tuple[Column, ...]
    keys: tuple[str, ...]
    optional: bool = False

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


def write_table(
    table: pa.Table, schema: Table, path: Path | pa.BufferOutputStream, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a table as Parquet with zstd compression, row groups of 131,072 rows, the schema version and extra metadata."""
    pq.write_table(table.cast(_described(schema, metadata)), path, compression="zstd", row_group_size=ROW_GROUP)


def copy_table(source: Path, schema: Table, path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Copy a table from a file as `write_table` would write it, one row group at a time to save memory."""
    write_tables(read_groups(source, schema.arrow.names), schema, path, metadata=metadata)


def write_tables(parts: Iterable[pa.Table], schema: Table, path: Path, *, metadata: Mapping[str, str] | None = None) -> None:
    """Write the parts of a table to one file as `write_table` would, one part at a time."""
    arrow = _described(schema, metadata)
    with pq.ParquetWriter(path, arrow, compression="zstd") as writer:
        for part in parts:
            writer.write_table(part.cast(arrow), row_group_size=ROW_GROUP)


def _described(schema: Table, metadata: Mapping[str, str] | None) -> pa.Schema:
    arrow = schema.arrow
    return arrow.with_metadata({**arrow.metadata, **{k.encode(): v.encode() for k, v in (metadata or {}).items()}})


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table from a single file; pyarrow's datasets would load pandas and add columns for partitions in the path."""
    return pq.ParquetFile(path).read(columns=columns)


def read_bytes(content: bytes) -> pa.Table:
    """Read a table from the bytes of a file, in this thread: one of pyarrow that frees them while Python exits aborts."""
    return pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)


def read_groups(path: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the given columns of a table one row group at a time, so that it need not fit in memory."""
    file = pq.ParquetFile(path)
    for number in range(file.num_row_groups):
        yield file.read_row_group(number, columns=list(columns))


TEXT, INT, FLOAT, FLAG = pa.string(), pa.int64(), pa.float64(), pa.bool_()
RECTANGLE = pa.list_(pa.int32())

INDEX = Table(
    name="index",
    version=1,
    meaning="The images of a source as they were decoded, one row per image, sorted by example id.",
    columns=(
        Column("example_id", TEXT, "", "path or row within the source"),
        Column("row", INT, "row", "position among the stored images"),
        Column("label", INT, "class index", "the object's class"),
        Column("class_name", TEXT, "", "name of the class"),
        Column("boxes", RECTANGLE, "pixel", "x0, y0, x1, y1 of each object, half open, in the stored image"),
        Column("content", RECTANGLE, "pixel", "x0, y0, x1, y1 of the picture in the stored, possibly padded image"),
        Column("original_width", INT, "pixel", "width before resizing"),
        Column("original_height", INT, "pixel", "height before resizing"),
        Column(
            "digest",
            TEXT,
            "sha256",
            "digest of the stored pixels before JPEG compression: equal for duplicates",
        ),
        Column("unreadable", TEXT, "", "reason why the image could not be decoded; null if it was decoded"),
    ),
    keys=("example_id",),
)

AS_READ_ROWS = Table(
    name="as_read",
    version=1,
    meaning="The rows of a decoded table, by which it is recognized in another file.",
    columns=(
        Column("example_id", TEXT, "", "row within the source"),
        Column("digest", TEXT, "sha256", "digest of its values as they are in the source, numbers to six digits"),
    ),
    keys=("example_id",),
)

SPLITS = Table(
    name="splits",
    version=2,
    meaning="The role of each example in the audit.",
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
        Column("class_name", TEXT, "", "name of the class"),
        Column("crop_x0", pa.int32(), "pixel", "left edge of the background crop in the stored image; null if none"),
        Column("crop_y0", pa.int32(), "pixel", "top edge of the background crop"),
        Column("crop_x1", pa.int32(), "pixel", "right edge of the background crop, exclusive"),
        Column("crop_y1", pa.int32(), "pixel", "bottom edge of the background crop, exclusive"),
        Column("reason", TEXT, "", "reason why the example was left out; null if it was not"),
        Column("group", TEXT, "", "group of examples that share one role; null for an example without a group"),
    ),
    keys=("example_id",),
)

TRAINING = Table(
    name="training",
    version=1,
    meaning="Metrics of one training run, one row per epoch and term.",
    columns=(
        Column("epoch", INT, "epoch", "epochs finished"),
        Column("step", INT, "step", "optimizer steps taken"),
        Column("learning_rate", FLOAT, "", "learning rate in the last step of the epoch"),
        Column("term", TEXT, "", "the loss, or one of its terms"),
        Column("value", FLOAT, "", "mean of the term over the epoch"),
    ),
    keys=("epoch", "term"),
)


SUMMARY = Table(
    name="summary",
    version=2,
    meaning="The findings, one per metric and setting. The first row is the headline and carries the verdict of the run.",
    columns=(
        Column("metric", TEXT, "", "the metric's name"),
        Column("params", TEXT, "JSON", "settings at which the metric was computed (layer, k, p, direction, ...)"),
        Column("role", TEXT, "", "test (has a null and a verdict), estimate, or diagnostic"),
        Column(
            "value",
            FLOAT,
            "metric's",
            "the estimate: a fraction, a probability, or as specified by params; NaN, which SQL sorts "
            "above all numbers, if it could not be computed",
        ),
        Column("ci_low", FLOAT, "metric's", "lower end of the 95 % interval; null if there is none"),
        Column("ci_high", FLOAT, "metric's", "upper end of the 95 % interval; null where only a lower bound is known"),
        Column(
            "interval",
            TEXT,
            "",
            "sampled units that the interval accounts for: examples, groups (persons), trainings, nets, canaries, "
            "references, data",
        ),
        Column("null_value", FLOAT, "metric's", "the value under the null hypothesis; null for rows without a test"),
        Column(
            "p_value",
            FLOAT,
            "probability",
            "probability of a value at least as extreme under the null; null for rows without a test",
        ),
        Column("family", TEXT, "", "name of the family of tests within which the p-value is adjusted"),
        Column("p_adjusted", FLOAT, "probability", "p-value adjusted within the family (Holm, max-T or Benjamini-Hochberg)"),
        Column("alpha", FLOAT, "probability", "significance level of the test"),
        Column(
            "verdict",
            TEXT,
            "",
            "verdict of a test: shown, bounded or inconclusive; null otherwise, and outside the headline families of a run "
            "that shows no memory",
        ),
        Column("upper_bound", FLOAT, "metric's", "one-sided 95 % upper bound of the value; null when unknown"),
        Column(
            "bound", FLOAT, "metric's", "bound fixed by the recipe: the verdict is bounded when upper_bound lies below it"
        ),
        Column(
            "detectable", FLOAT, "metric's", "effect that the test detects with 80 % power at this sample size; null if none"
        ),
        Column("smallest_p", FLOAT, "probability", "smallest p-value that data of this size can give"),
        Column("n", INT, "", "number of units on which the value is based"),
        Column("conclusion", TEXT, "", "first row only: the verdict of the run; descriptive if it tests nothing"),
        Column("sentence", TEXT, "", "first row only: the verdict of the run in a plain sentence"),
        Column(
            "explanation",
            TEXT,
            "",
            "first row only: the numbers behind the verdict, and the effects that could have been missed",
        ),
    ),
    keys=("metric", "params"),
)

CURVES = Table(
    name="curves",
    version=1,
    meaning="The points of every curve in the report.",
    columns=(
        Column("curve", TEXT, "", "the curve's name"),
        Column("series", TEXT, "", "name of one line of the curve"),
        Column("params", TEXT, "JSON", "settings at which the curve was computed"),
        Column(
            "x", FLOAT, "curve's", "share of the most confident examples, epoch, pixels removed, ..., depending on the curve"
        ),
        Column(
            "y", FLOAT, "curve's", "label inference accuracy in that share, proportion, M, loss, ..., depending on the curve"
        ),
    ),
    keys=("curve", "series", "params", "x"),
)


def point(curve: str, series: str, params: Mapping[str, Any], x: SupportsFloat, y: SupportsFloat) -> dict[str, Any]:
    """Return a row of CURVES."""
    return {
        "curve": curve, "series": series, "params": json.dumps(dict(params), sort_keys=True), "x": float(x), "y": float(y)
    }  # fmt: skip


CANARIES = Table(
    name="canaries",
    version=2,
    meaning="The canaries, one row each. Secret: this table is never published.",
    columns=(
        Column("canary", INT, "", "id of the canary; published results contain nothing else about it"),
        Column(
            "kind",
            TEXT,
            "",
            "inserted, never (drawn, not inserted), given (from a file), unseen (from a file, trained on by no model), or "
            "recurring (given, but not comparable with unseen ones)",
        ),
        Column("insertions", INT, "count", "number of times that the canary occurs in the corpus; 0: never"),
        Column("choices", pa.list_(pa.int32()), "", "index of the chosen symbol at each position of the sequence"),
        Column("text", TEXT, "", "the canary itself"),
    ),
    keys=("canary",),
)


RUNS = Table(
    name="runs",
    version=1,
    meaning="One row per run, written last: runs with other tables but no row here were killed, or predate this table.",
    columns=(
        Column("finished", pa.timestamp("us", tz="UTC"), "", "time of the run's last publication"),
        Column("title", TEXT, "", "title of the run's report"),
        Column("data", TEXT, "sha256", "digest of the audited data; empty for a sweep"),
        Column("asks", TEXT, "sha256", "digest of the recipe without titles, galleries and data locations"),
        Column("scores", TEXT, "", "address of the artifact that holds the run's numbers; null for earlier sweeps"),
        Column("current", FLAG, "", "whether no newer run has the same recipe and data, as after an update of memlib"),
        Column("verdict", TEXT, "", "the verdict in a word"),
        Column("sentence", TEXT, "", "the verdict in a sentence"),
        Column("memlib", TEXT, "", "version of memlib that published the run"),
    ),
    keys=("asks", "data", "scores"),
)

COMMON = {"summary": SUMMARY, "curves": CURVES}  # of all audits with stages
