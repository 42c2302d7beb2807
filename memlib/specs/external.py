"""Specs of what the owner of an external model states beside it: its training examples, and the place of its weights."""

from typing import ClassVar

from memlib.specs.base import Spec


class WithMembers(Spec):
    """A model whose training examples its owner lists."""

    members: str | None = None
    """For an external model: a CSV or Parquet file with columns example_id and member (yes or no), for every example that may
    be audited; examples that the file does not list are left out. Or a .npy file, in the order of the source: a mask of all
    examples, or the numbers of the members, from 0. Or a part of the source with a slash, as in train/: all other examples
    are non-members."""


def is_part(members: str | None) -> bool:
    """Return whether `members` names a part of the source, such as train/, instead of a file."""
    return members is not None and members.endswith("/")


class InFile(Spec):
    """A model whose weights are in a file that may hold more."""

    added_later: ClassVar[frozenset[str]] = frozenset({"state", "prefix"})

    state: str | None = None
    """Place of the state dict in the file, dotted (state_dict, teacher); by default the only one that fits the model."""
    prefix: str | None = None
    """Text before the names of the weights in the file (module., encoder_q.); by default it is detected."""
