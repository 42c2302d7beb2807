"""Recipe of the toy audit."""

from typing import Literal

from memlib.specs import DataSpec, Spec


class Recipe(Spec):
    """Settings of an audit of a source's class sizes."""

    audit: Literal["class_sizes"] = "class_sizes"
    title: str = "Class sizes"
    """Heading of the report."""
    data: DataSpec
    smallest: int = 1
    """Classes with fewer examples are named."""
