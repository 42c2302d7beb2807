"""Attributes of examples beyond their class: values that neither the class nor the label files state."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.data.examples import Source
from memlib.data.id_files import named_digest, said_of_examples
from memlib.data.tables.columns import hint_at_ids
from memlib.errors import UserError
from memlib.specs.attributes import AttributeFile, AttributeOrigin

MOST_VALUES = 100  # values of an attribute
ATTRIBUTES = pa.schema([(name, pa.string()) for name in ("example_id", "attribute", "value")])


def attribute_digests(origins: Mapping[str, AttributeOrigin]) -> dict[str, str]:
    """Return the digest of each attribute's table as stage inputs, by attribute; omit attributes that the source states.

    Raises:
        DataError: when a table cannot be read.
    """
    files = {name: origin for name, origin in origins.items() if isinstance(origin, AttributeFile)}
    return {name: named_digest(file.path, setting=_setting(name)) for name, file in files.items()}


def read_attributes(source: Source, index: pa.Table, origins: Mapping[str, AttributeOrigin]) -> pa.Table:
    """Return the values of attributes, one row per example and attribute, with the schema ATTRIBUTES.

    Examples without a value have no row.

    Args:
        source: the source of the examples, which may state attributes.
        index: tables.INDEX of the examples.
        origins: where each attribute comes from, by name.

    Raises:
        DataError: when a table cannot be read, or lacks a column.
        UserError: for an attribute that the source does not state, that no example has, that has one value or too many, or
            that the class determines.
    """
    ids = index["example_id"].combine_chunks()
    parts = []
    for name, origin in origins.items():
        known = _stated(source, name) if origin == "source" else _listed(name, origin, ids.to_pylist())
        values = pa.array([known.get(example) for example in ids.to_pylist()], pa.string())
        part = pa.table({"example_id": ids, "attribute": pa.array([name] * len(ids)), "value": values})
        has_value = pc.is_valid(values)
        _check_values(name, part.append_column("label", index["label"]).filter(has_value))
        parts.append(part.filter(has_value))
    return pa.concat_tables(parts).cast(ATTRIBUTES) if parts else ATTRIBUTES.empty_table()


def _setting(name: str) -> str:
    return f"beyond.attributes.{name}"


def _stated(source: Source, name: str) -> Mapping[str, str]:
    """Return the values of an attribute that the source states, by example id."""
    stated: Mapping[str, Mapping[str, str]] = getattr(source, "attributes", {})
    if name not in stated:
        seen = f"states {', '.join(sorted(stated))}" if stated else "states no attributes"
        raise UserError(f"{_setting(name)}: the source of the images {seen}; name a table: {{path: ..., value_column: ...}}")
    return stated[name]


def _listed(name: str, file: AttributeFile, ids: list[str]) -> dict[str, str]:
    """Return the values of an attribute in a table, by example id; some of the ids must be those of examples."""
    values = said_of_examples(file.path, file.value_column, setting=_setting(name), id_column=file.id_column)
    if not values.keys() & set(ids):
        hint = hint_at_ids(list(values), ids)
        raise UserError(f"{file.path} has no value for any of the {len(ids)} examples; ids look like {ids[0]!r}{hint}")
    return values


def _check_values(name: str, rows: pa.Table) -> None:
    """Refuse an attribute with one value or too many, or that the class determines; rows have columns value and label."""
    values, count = pc.unique(rows["value"]), rows.num_rows
    if len(values) < 2:
        raise UserError(
            f"{_setting(name)} has the same value for all {count:,} examples, so it cannot be inferred; remove it"
        )
    if len(values) > MOST_VALUES:
        raise UserError(f"{_setting(name)} has {len(values):,} values, more than {MOST_VALUES}; combine rare ones")
    in_class = rows.group_by("label").aggregate([("value", "count_distinct")])["value_count_distinct"]
    if pc.max(in_class).as_py() == 1:
        raise UserError(
            f"{_setting(name)} is determined by the class (all examples of a class share one value), so it reveals "
            "nothing beyond the class; remove it"
        )


def attribute_codes(attributes: pa.Table, name: str, ids: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the number of each example's value in alphabetical order, from 0; -1 without a value: (num_ids,).

    Args:
        attributes: table with the schema ATTRIBUTES.
    """
    rows = attributes.filter(pc.field("attribute") == name)
    codes = pc.index_in(rows["value"], value_set=pa.array(values_of(attributes, name), pa.string())).combine_chunks()
    places = pc.index_in(ids, value_set=rows["example_id"].combine_chunks())
    found: NDArray[np.int64] = pc.fill_null(codes.take(places), -1).to_numpy().astype(np.int64)
    return found


def values_of(attributes: pa.Table, name: str) -> list[str]:
    """Return the values of an attribute in alphabetical order, from a table with the schema ATTRIBUTES."""
    return sorted(pc.unique(attributes.filter(pc.field("attribute") == name)["value"]).to_pylist())
