"""Columns of a table that the scores name: values of the subgroup, and the coordinates of hidden columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from memlib.data.datasets import open_source
from memlib.data.stages import Shard
from memlib.data.tables.source import OneHot
from memlib.errors import UserError
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Stage
from memlib.specs import DataSpec
from memlib.store import Attempt
from memlib.tables import read_table

if TYPE_CHECKING:
    import torch

SUBGROUP_FILE, HIDDEN_FILE = "subgroup.parquet", "hidden.json"
MOST_VALUES = 50  # of a subgroup column


@dataclass(frozen=True)
class Columns:
    """Columns of a table."""

    subgroup: Mapping[str, str]  #: value of the subgroup column by example id; examples without a value are left out.
    hidden: Mapping[str, OneHot]  #: coordinates of each hidden column, by name.


@dataclass(frozen=True)
class ReadColumns(Stage[Columns]):
    """Read the columns of a table that the scores name: subgroup.parquet and hidden.json."""

    declared: ClassVar[Declared] = Declared("read_columns", 1)
    title: ClassVar[str] = "read columns"

    data: DataSpec  #: the table.
    shard: Artifact[Shard]  #: its decoded rows.
    subgroup: str | None  #: the subgroup column, if there is one.
    hidden: tuple[str, ...]  #: the hidden columns.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The names of the columns."""
        return {"subgroup": self.subgroup, "hidden": list(self.hidden)}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The decoded table, whose key contains the digest of the file."""
        return {"shard": self.shard.key}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write values by example id, and coordinates by column."""
        source: Any = open_source(self.data.source, self.data.intensities, self.data.labels)
        values = {} if self.subgroup is None else subgroup_values(source.attributes, self.subgroup)
        table = pa.table({"example_id": pa.array(values, pa.string()), "value": pa.array(values.values(), pa.string())})
        pq.write_table(table, attempt.path(SUBGROUP_FILE))
        hidden = {name: asdict(hideable(source.one_hot(name), name)) for name in self.hidden}
        attempt.path(HIDDEN_FILE).write_text(json.dumps(hidden), encoding="utf-8")

    @classmethod
    def open(cls, artifact: Artifact[Columns]) -> Columns:
        """Return the columns."""
        table = read_table(artifact.path(SUBGROUP_FILE))
        values = dict(zip(table["example_id"].to_pylist(), table["value"].to_pylist(), strict=True))
        described = json.loads(artifact.path(HIDDEN_FILE).read_text(encoding="utf-8"))
        hidden = {
            name: OneHot(each["start"], tuple(each["categories"]), each["has_missing"]) for name, each in described.items()
        }
        return Columns(values, hidden)

    @classmethod
    def described(cls, artifact: Artifact[Columns]) -> list[str]:
        """Describe the number of values of each column."""
        content = artifact.content
        lines = [f"subgroups: {len(set(content.subgroup.values()))} values"] if content.subgroup else []
        return lines + [f"hidden: {name}, {len(column.categories)} values" for name, column in content.hidden.items()]


def subgroup_values(stated: Mapping[str, Mapping[str, str]], name: str) -> Mapping[str, str]:
    """Return the values of the subgroup column by example id.

    Raises:
        UserError: for a column that the table lacks, or that has a single value or too many.
    """
    if name not in stated:
        raise UserError(
            f"score.subgroup names {name!r}, but the columns of the table are {', '.join(stated)}; name one of them"
        )
    values = stated[name]
    count = len(set(values.values()))
    if count < 2:
        raise UserError(f"score.subgroup: column {name} has only {count} value; name a column with at least two")
    if count > MOST_VALUES:
        raise UserError(
            f"score.subgroup: column {name} has {count:,} values; name one with at most {MOST_VALUES}, such as age by decades"
        )
    return values


def hideable(column: OneHot, name: str) -> OneHot:
    """Return the column if it has several values, so that they can be guessed.

    Raises:
        UserError: for a column with a single value.
    """
    if len(column.categories) < 2:
        raise UserError(
            f"score.hidden: column {name} has only {len(column.categories)} value, so nothing to guess; remove it"
        )
    return column
