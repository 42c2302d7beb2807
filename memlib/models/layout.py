"""Memory layout of images and convolutions: channels last, which is faster, except for very narrow networks."""

import torch
from torch import nn

NARROW = 8
"""Channels below which PyTorch's (2.14) convolutions of channels-last tensors write outside of their memory on processors
with AVX2 and without AVX-512: the heap is corrupted and the process aborts."""


def layout_of(model: nn.Module) -> torch.memory_format:
    """Return the layout for a model's convolutions: channels last, unless any has fewer than 8 output channels.

    Example:
        >>> from torch import nn
        >>> layout_of(nn.Conv2d(3, 32, 3)), layout_of(nn.Conv2d(3, 4, 3))
        (torch.channels_last, torch.contiguous_format)
    """
    widths = [layer.out_channels for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    return torch.contiguous_format if any(width < NARROW for width in widths) else torch.channels_last
