"""Spec of the place of a model's weights in a file."""

from typing import ClassVar

from memlib.specs.base import Spec


class InFile(Spec):
    """A model whose weights are in a file that may hold more."""

    added_later: ClassVar[frozenset[str]] = frozenset({"state", "prefix"})

    state: str | None = None
    """Place of the state dict in the file, dotted (state_dict, teacher); by default the only one that fits the model."""
    prefix: str | None = None
    """Text before the names of the weights in the file (module., encoder_q.); by default it is detected."""
