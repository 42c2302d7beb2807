"""The recipe of the toy."""

from typing import Literal

from memlib.specs import DataSpec, Spec


class Recipe(Spec):
    """Sizes of the classes of a source."""

    audit: Literal["class_sizes"] = "class_sizes"
    title: str = "Class sizes"
    """Heading of the report."""
    data: DataSpec
    smallest: int = 1
    """Classes with fewer examples are named."""
