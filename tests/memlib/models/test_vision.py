"""Very narrow convolutional networks are computed in the plain layout, all others with channels last."""

import pytest
import torch

from memlib.models.encoder import build_encoder
from memlib.models.vision import layout_of
from memlib.specs import ModelSpec


@pytest.mark.parametrize(
    ("width", "layout"), [(4, torch.contiguous_format), (8, torch.channels_last), (32, torch.channels_last)]
)
def test_memory_layout_depends_on_the_narrowest_convolution(width: int, layout: torch.memory_format) -> None:
    assert layout_of(build_encoder(ModelSpec(width=width), num_classes=None, seed=0)) == layout
