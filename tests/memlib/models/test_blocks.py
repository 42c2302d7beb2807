"""Liu 2020's classifiers have the layers and sizes that the paper gives."""

import pytest
import torch
from torch import nn

from memlib.models.classifiers import build_classifier
from memlib.specs import ClassifierSpec


def test_three_block_classifier_has_the_expected_layers_and_parameters() -> None:
    net = build_classifier(ClassifierSpec(architecture="three_block"), (1, 28, 28), 10, seed=0)
    assert [type(layer) for layer in net.children()] == [
        nn.Conv2d, nn.ReLU, nn.BatchNorm2d, nn.MaxPool2d, nn.Flatten, nn.Linear, nn.ReLU, nn.Linear,
    ]  # fmt: skip
    assert sum(p.numel() for p in net.parameters()) == (49 * 32 + 32) + 64 + (32 * 14 * 14 * 1024 + 1024) + (10240 + 10)
    assert net(torch.rand(2, 1, 28, 28)).shape == (2, 10)


def test_four_block_classifier_has_the_expected_layers_and_smallest_input() -> None:
    net = build_classifier(ClassifierSpec(architecture="four_block"), (1, 128, 128), 5, seed=0)
    kernels = [(c.out_channels, c.kernel_size[0], c.stride[0], c.padding[0]) for c in net if isinstance(c, nn.Conv2d)]  # type: ignore[union-attr]
    assert kernels == [(32, 7, 1, 3), (64, 4, 2, 1), (128, 4, 2, 1), (128, 4, 2, 1)]
    assert net(torch.rand(2, 1, 128, 128)).shape == (2, 5)
    with pytest.raises(ValueError, match="at least 8 px"):
        build_classifier(ClassifierSpec(architecture="four_block"), (1, 4, 4), 5, seed=0)
