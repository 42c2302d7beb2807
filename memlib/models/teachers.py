"""Models that can carry a teacher, a moving average of themselves."""

import copy
from typing import Self

from torch import nn


class Taught(nn.Module):
    """A model with room for a teacher, which an objective adds and moves, and which is stored with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher: Self | None = None

    def add_teacher(self) -> Self:
        """Add a copy of the model without gradients as its sub-module `teacher`, and return the copy."""
        teacher = copy.deepcopy(self).requires_grad_(False)
        self.teacher = teacher
        return teacher
