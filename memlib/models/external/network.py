"""External models as networks that prepare their own images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from memlib.errors import UserError

Layers = list[tuple[str, Tensor]]
SAME = 1e-3  # relative tolerance for embeddings of the same images


def normalization(
    mean: tuple[str, Any], std: tuple[str, Any], *, name: str, needs: str
) -> tuple[Sequence[float], Sequence[float]]:
    """Return the mean and the standard deviation of each channel, as a file states them.

    Args:
        mean, std: the key, and what the file states under it.
        name: the file's name in error messages.
        needs: what is needed instead, for these messages.

    Raises:
        UserError: when either is not three finite numbers, or a deviation is not above 0.
    """
    for key, values in (mean, std):
        if not (
            isinstance(values, list | tuple) and len(values) == 3
            and all(type(value) in (int, float) and math.isfinite(value) for value in values)
        ):  # fmt: skip
            raise UserError(f"{name} states {key} {str(values)[:100]}{needs}")
    if min(std[1]) <= 0:
        raise UserError(f"{name} states {std[0]} {list(std[1])}; the numbers must be above 0")
    return mean[1], std[1]


class ExternalNetwork(nn.Module):
    """An external encoder, which normalizes images itself.

    Args:
        model: the user's model.
        name: the model's name in error messages.
        side: side of its input images, in pixels.
        mean, std: mean of each channel, which is subtracted from pixels in [0, 1], and standard deviation, by which the
            difference is divided.
        read: function that converts the model's outputs to layers by name, the deepest last.
    """

    def __init__(
        self, model: nn.Module, *, name: str, side: int, mean: Sequence[float], std: Sequence[float],
        read: Callable[[Any], Mapping[str, Any]],
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.side, self._name, self._read = model, side, name, read
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def all_layers(self, pixels: Tensor) -> Layers:
        """Return all layers for images (batch, 3, side, side) in [0, 1], each (batch, dim).

        Raises:
            UserError: when the model cannot take the images, or its outputs are not embeddings.
        """
        mean, std = self.get_buffer("mean"), self.get_buffer("std")
        try:
            outputs = self.model((pixels - mean) / std)
        except (torch.OutOfMemoryError, UserError):
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            reason = (str(error).splitlines() or [""])[0][:300]
            raise UserError(
                f"{self._name} cannot take images of {self.side} x {self.side} pixels ({type(error).__name__}: {reason})"
            ) from error
        layers = list(self._read(outputs).items())
        for layer, values in layers:
            if not isinstance(values, Tensor) or values.dim() != 2 or len(values) != len(pixels):
                seen = f"a tensor of {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
                raise UserError(
                    f"{self._name} returns {seen} as {layer} for {len(pixels)} images; embeddings must be (batch, dim)"
                )
        if not layers:
            raise UserError(
                f"{self._name} returns no embeddings; it must return a tensor (batch, dim) or a dict of such tensors"
            )
        return layers

    def check_repeatable(self, pixels: Tensor) -> None:
        """Embed the same images twice.

        Raises:
            UserError: when the embeddings differ by more than rounding, as those of a model that draws random numbers do.
        """
        for (layer, first), (_, again) in zip(self.all_layers(pixels), self.all_layers(pixels), strict=True):
            if not torch.allclose(first, again, rtol=SAME, atol=SAME * float(first.abs().max()), equal_nan=True):
                training = [name for name, module in self.model.named_modules() if module.training and name]
                cause = (
                    f"module {training[0]} is in training mode" if training else "it draws random numbers in evaluation mode"
                )
                raise UserError(f"{self._name} embeds the same images differently each time (layer {layer}): {cause}")


class Method(nn.Module):
    """A method of a model, as a module: the image half of an image-text model."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, pixels: Tensor) -> Any:
        """Return what the method returns for images (batch, 3, side, side)."""
        return getattr(self.model, self.name)(pixels)


def by_layer(outputs: Any) -> Mapping[str, Any]:
    """Return outputs by layer; a single tensor is the layer `output`."""
    return outputs if isinstance(outputs, Mapping) else {"output": outputs}
