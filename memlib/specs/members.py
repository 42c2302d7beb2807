"""Spec of the list of a model's training examples."""

from memlib.specs.base import Spec


class WithMembers(Spec):
    """A model whose training examples its owner lists."""

    members: str | None = None
    """For an external model: a CSV or Parquet file with columns example_id and member (yes or no), for every example that may
    be audited; examples that the file does not list are left out."""
