"""The classifiers of Hartley 2022 (A.3) and 2023 (Table 1) and Liu 2020, which map inputs to class scores (logits)."""

from collections.abc import Sequence

import torch
from torch import nn

from memlib.identity import derive_seed
from memlib.specs import ClassifierSpec

BN_EPSILON, BN_MOMENTUM = 1e-3, 0.01  # Keras's .001 and .99 in torch's convention
SMALL = 64  # images up to this side get a stem without stride


def build_classifier(spec: ClassifierSpec, input_shape: Sequence[int], num_classes: int, *, seed: int) -> nn.Module:
    """Build a classifier initialized from `seed` alone; the caller's random state is not changed.

    Args:
        input_shape: (channels, height, width) or (dim,).
        seed: seed of the initial weights.

    Raises:
        ValueError: when the input is too small, or not an image where the architecture needs one.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initial weights"))
        if spec.architecture == "mlp":
            return _mlp(spec, input_shape, num_classes)
        if len(input_shape) != 3:
            raise ValueError(f"{spec.architecture} needs images, not points of {input_shape[0]} coordinates; use mlp")
        if spec.architecture in ("cnn_1", "cnn_2"):
            return _cnn(spec, input_shape, num_classes)
        if spec.architecture in ("three_block", "four_block"):
            return _blocks(spec, input_shape, num_classes)
        if input_shape[0] != 3:
            raise ValueError(f"{spec.architecture} takes colour images; set data.channels to 3")
        return (
            _resnet18(input_shape, num_classes)
            if spec.architecture == "resnet18"
            else _densenet(spec, input_shape, num_classes)
        )


# Layers before batch norm have no bias: it would change nothing, and its gradient is rounding error that Adam would amplify.


def _activation(spec: ClassifierSpec, norm: nn.Module, dropout: nn.Module | None) -> list[nn.Module]:
    return [*([norm] if spec.batch_norm else []), nn.ReLU(), *([dropout] if dropout else [])]


def _dense(spec: ClassifierSpec, widths: Sequence[int], dim: int, num_classes: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for width in widths:
        norm = nn.BatchNorm1d(width, eps=BN_EPSILON, momentum=BN_MOMENTUM)
        dropout = nn.Dropout(spec.dropout) if spec.dropout else None
        layers += [nn.Linear(dim, width, bias=not spec.batch_norm), *_activation(spec, norm, dropout)]
        dim = width
    return [*layers, nn.Linear(dim, num_classes)]


def _mlp(spec: ClassifierSpec, input_shape: Sequence[int], num_classes: int) -> nn.Sequential:
    dim = int(torch.Size(input_shape).numel())
    return nn.Sequential(nn.Flatten(), *_dense(spec, spec.widths, dim, num_classes))


def _cnn(spec: ClassifierSpec, input_shape: Sequence[int], num_classes: int) -> nn.Sequential:
    """Build CNN-1 (conv 32, conv 64, max pool, dense 128, 128) or CNN-2 (VGG blocks of 32 and 64, dense 1024), with ReLU."""
    first = spec.architecture == "cnn_1"
    plan = [32, 64, "pool"] if first else [32, 32, "pool", 64, 64, "pool"]
    channels, height, width = input_shape
    layers: list[nn.Module] = []
    for part in plan:
        if part == "pool":
            height, width = height // 2, width // 2
            layers.append(nn.MaxPool2d(2))
            continue
        assert isinstance(part, int)
        norm = nn.BatchNorm2d(part, eps=BN_EPSILON, momentum=BN_MOMENTUM)
        dropout = nn.Dropout(spec.dropout_conv) if spec.dropout_conv else None
        layers += [nn.Conv2d(channels, part, 3, bias=not spec.batch_norm), *_activation(spec, norm, dropout)]
        channels, height, width = part, height - 2, width - 2
    if height < 1 or width < 1:
        raise ValueError(f"{spec.architecture} needs larger images than {input_shape[2]} x {input_shape[1]}")
    dim = channels * height * width
    return nn.Sequential(*layers, nn.Flatten(), *_dense(spec, [128, 128] if first else [1024], dim, num_classes))


def _blocks(spec: ClassifierSpec, input_shape: Sequence[int], num_classes: int) -> nn.Sequential:
    """Build a convolution and a linear block for 28 px, or four convolution blocks for 128 px (Liu 2020, section 4)."""
    channels, height, width = input_shape

    def block(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding)
        return [convolution, nn.ReLU(), nn.BatchNorm2d(outputs)]

    layers = block(channels, 32, 7, 1, 3)
    if spec.architecture == "three_block":
        dim = 32 * (height // 2) * (width // 2)
        return nn.Sequential(
            *layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(dim, 1024), nn.ReLU(), nn.Linear(1024, num_classes)
        )
    for inputs, outputs in ((32, 64), (64, 128), (128, 128)):
        layers += block(inputs, outputs, 4, 2, 1)
    if min(height, width) < 8:
        raise ValueError(f"four_block halves the image three times and needs at least 8 px, not {width} x {height}")
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * (height // 8) * (width // 8), num_classes))


def _resnet18(input_shape: Sequence[int], num_classes: int) -> nn.Module:
    import torchvision  # slow to load

    resnet: nn.Module = torchvision.models.resnet18(weights=None, num_classes=num_classes)
    if input_shape[1] <= SMALL:
        resnet.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        resnet.maxpool = nn.Identity()
    return resnet


def _densenet(spec: ClassifierSpec, input_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Build DenseNet-121, or DenseNet-BC with 100 layers and growth 12: three blocks of 16 (Huang 2017)."""
    import torchvision

    if spec.architecture == "densenet121":
        net = torchvision.models.densenet121(weights=None, num_classes=num_classes)
    else:
        net = torchvision.models.DenseNet(12, (16, 16, 16), num_init_features=24, num_classes=num_classes)
    if input_shape[1] <= SMALL:
        stem = net.features.conv0
        net.features.conv0 = nn.Conv2d(3, stem.out_channels, 3, padding=1, bias=False)
        net.features.pool0 = nn.Identity()
    built: nn.Module = net
    return built
