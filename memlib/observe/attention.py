"""Heat maps of the parts of an image on which a convolutional model's class score depends (GradCAM, Selvaraju 2017)."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from memlib.errors import UserError


def gradcam(model: nn.Module, images: Tensor, label: int) -> NDArray[np.float32]:
    """Return heat maps of the last convolution: (batch, height, width) float32 in [0, 1].

    Args:
        model: a classifier with convolutions, on the CPU.
        images: (batch, channels, height, width), prepared.
        label: the class whose score is explained.

    Raises:
        UserError: for a model without convolutions.
    """
    from pytorch_grad_cam import GradCAM  # slow to load
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    if not layers:
        raise UserError("GradCAM needs convolutions, and this model has none; set report.gradcam to false")
    with torch.enable_grad(), GradCAM(model=model.eval(), target_layers=layers[-1:]) as explain:
        maps: NDArray[np.float32] = explain(input_tensor=images, targets=[ClassifierOutputTarget(label)] * len(images))
    return maps


def overlaid(image: NDArray[np.uint8], heat: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Overlay an image (height, width, channels) with a heat map, warm where the heat is high: (height, width, 3) uint8."""
    from matplotlib import colormaps

    colour = colormaps["jet"](heat)[..., :3]
    grey = np.repeat(image, 3 // image.shape[2], axis=2) / 255
    return ((0.5 * grey + 0.5 * colour) * 255).round().astype(np.uint8)
