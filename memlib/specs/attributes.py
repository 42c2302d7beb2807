"""Specs of attributes of examples beyond their class, such as the colour of an object."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from memlib.specs.base import Spec


class AttributeFile(Spec):
    """A table (CSV or Parquet) that states an attribute of examples, one example per row."""

    path: str
    """The file; local or s3://."""
    id_column: str = Field(default="example_id", min_length=1)
    """Column of the example ids."""
    value_column: str = Field(min_length=1)
    """Column of the attribute's value: text or whole numbers. Examples without a value are left out of this attribute."""


def _kind(value: Any) -> str | None:
    """Return the kind of origin, source or table, that a recipe's value stands for; None for anything else."""
    if value == "source":
        return "source"
    return "table" if isinstance(value, Mapping | AttributeFile) else None


AttributeOrigin = Annotated[
    Annotated[Literal["source"], Tag("source")] | Annotated[AttributeFile, Tag("table")],
    Discriminator(
        _kind,
        custom_error_type="attribute_origin",
        custom_error_message="write source, or name a table: {path: ..., value_column: ...}",
    ),
]
"""Where an attribute comes from: the source of the images, if it states attributes, or a table."""
