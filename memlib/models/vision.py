"""Image backbones, which map images (batch, 3, side, side) to features (batch, dim)."""

import copy
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.specs import ModelSpec

MEAN = (0.485, 0.456, 0.406)  # of ImageNet's channels in [0, 1]
STD = (0.229, 0.224, 0.225)
VIT_SHAPES = {  # depth, heads, width (Dosovitskiy 2021, Touvron 2021)
    "vit_tiny": (12, 3, 192),
    "vit_small": (12, 6, 384),
    "vit_base": (12, 12, 768),
    "vit_large": (24, 16, 1024),
}


def build_backbone(spec: ModelSpec) -> tuple[nn.Module, int]:
    """Return the backbone that a spec names, randomly initialized, and the dimension of its features."""
    if spec.backbone == "small_resnet":
        return SmallResNet(spec.width, spec.blocks), 8 * spec.width
    import torchvision  # slow to load

    if spec.is_vit:
        depth, heads, width = VIT_SHAPES.get(spec.backbone, (4 * spec.blocks, 4, 4 * spec.width))
        vit = torchvision.models.VisionTransformer(
            image_size=spec.input_size,
            patch_size=spec.patch_size,
            num_layers=depth,
            num_heads=heads,
            hidden_dim=width,
            mlp_dim=4 * width,
        )
        vit.heads = nn.Identity()
        return vit, width
    build: Callable[..., Any] = getattr(torchvision.models, spec.backbone)
    resnet = build(weights=None)
    dim = int(resnet.fc.in_features)
    resnet.fc = nn.Identity()
    if spec.input_size <= 64:  # the ImageNet stem would leave 2 x 2 pixels of a small image
        resnet.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
        resnet.maxpool = nn.Identity()
    return resnet, dim


class SmallResNet(nn.Module):
    """A network of residual blocks of four widths for images of 32 to 64 pixels; each new width halves the side.

    A stride-2 stem is followed by `depth` blocks of each of the widths w, 2w, 4w and 8w and by global average pooling, which
    returns features (batch, 8 * width).
    """

    def __init__(self, width: int, depth: int = 1) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        widths = [multiple * width for multiple in (1, 2, 4, 8) for _ in range(depth)]
        steps = zip([width, *widths], widths, strict=False)
        blocks = [_Block(before, after, stride=1 if before == after else 2) for before, after in steps]
        self.blocks = nn.Sequential(*blocks)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, 3, side, side) to (batch, 8 * width)."""
        features: Tensor = self.blocks(self.stem(images))
        return features.mean(dim=(2, 3))


class _Block(nn.Module):
    def __init__(self, width_in: int, width_out: int, *, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width_in, width_out, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(width_out, width_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(width_out),
        )
        self._halves = stride == 2
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, width_out, 1, stride=stride, bias=False), nn.BatchNorm2d(width_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        if self._halves and x.shape[2] == 1 and x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            raise UserError(  # oneDNN reads uninitialized memory in the gradient of such a convolution
                "small_resnet's gradients are wrong for images of 8 pixels or fewer in bfloat16 on a CPU; "
                "use larger images or views, or training.precision float32"
            )
        return torch.relu(self.branch(x) + self.shortcut(x))


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
