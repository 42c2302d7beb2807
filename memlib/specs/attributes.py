"""Specs of attributes of examples beyond their class, such as the colour of an object."""

from typing import Literal

from pydantic import Field

from memlib.specs.base import Spec


class AttributeFile(Spec):
    """A table (CSV or Parquet) that states an attribute of examples, one example per row."""

    path: str
    """The file; local or s3://."""
    id_column: str = Field(default="example_id", min_length=1)
    """Column of the example ids."""
    value_column: str = Field(min_length=1)
    """Column of the attribute's value: text or whole numbers. Examples without a value are left out of this attribute."""


AttributeOrigin = Literal["source"] | AttributeFile
"""Where an attribute comes from: the source of the images, if it states attributes, or a table."""
