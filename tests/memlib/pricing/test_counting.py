"""Multiply-adds are counted as by hand."""

import pytest
import torch
from torch import nn

from memlib.models.encoder import build_encoder
from memlib.pricing.counting import counting, saved_bytes
from memlib.pricing.work import Work
from memlib.specs import ModelSpec

SIDE = 224


def resnet(blocks: tuple[int, ...], *, bottleneck: bool) -> float:
    """Count the multiply-adds of a ResNet (He 2016, Table 1) by hand: output positions times weights, for each convolution."""
    side = SIDE // 2
    total = side**2 * 7 * 7 * 3 * 64
    side, incoming = side // 2, 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        outgoing = 4 * width if bottleneck else width
        for block in range(count):
            before = side
            if stage and not block:
                side //= 2
            if bottleneck:
                total += before**2 * incoming * width + side**2 * (9 * width * width + width * outgoing)
            else:
                total += side**2 * (9 * incoming * width + 9 * width * width)
            if incoming != outgoing:
                total += side**2 * incoming * outgoing
            incoming = outgoing
    return float(total)


def vit(depth: int, width: int, patch: int) -> float:
    """Count the multiply-adds of a vision transformer (Dosovitskiy 2021): projections, attention, a hidden layer of four widths."""
    tokens = (SIDE // patch) ** 2 + 1
    embedded = (tokens - 1) * 3 * patch**2 * width
    return float(embedded + depth * (12 * tokens * width**2 + 2 * tokens**2 * width))


@pytest.mark.parametrize(
    ("backbone", "by_hand"),
    [
        ("resnet18", resnet((2, 2, 2, 2), bottleneck=False)),
        ("resnet101", resnet((3, 4, 23, 3), bottleneck=True)),
        ("vit_base", vit(12, 768, 16)),
    ],
)
def test_multiply_adds_are_those_counted_by_hand(backbone: str, by_hand: float) -> None:
    with torch.device("meta"):
        encoder = build_encoder(ModelSpec(backbone=backbone, projector=(8,), input_size=SIDE), num_classes=None, seed=0)
        images = torch.zeros(2, 3, SIDE, SIDE)
    with counting() as counted:
        encoder.backbone(images)
    with counting() as inferred, torch.inference_mode():
        encoder.backbone(images)
    found = (counted.work.products + counted.work.convolutions) / 2
    assert (inferred.work.products, inferred.work.convolutions) == (counted.work.products, counted.work.convolutions)
    assert found == pytest.approx(by_hand, rel=0.02)
    published = {"resnet18": 1.81e9, "resnet101": 7.80e9, "vit_base": 17.56e9}[backbone]  # torchvision's table of models
    assert by_hand == pytest.approx(published, rel=0.02)


def test_a_step_of_training_takes_three_times_the_forward_pass() -> None:
    net, inputs = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16)), torch.zeros(8, 64, requires_grad=True)
    with counting() as forward:
        out = net(inputs)
    with counting() as backward:
        out.sum().backward()
    assert forward.work.products == 8 * (64 * 32 + 32 * 16)
    assert backward.work.products == 2 * forward.work.products


def test_a_tensor_that_two_operations_keep_counts_once() -> None:
    weight = torch.zeros(1000, requires_grad=True)
    assert (
        saved_bytes(lambda: (weight.exp() + weight.sin() + weight.cos()).sum()) == 2 * 4000
    )  # the result of exp, and the weight


def test_work_adds_up_and_memory_does_not() -> None:
    one, other = Work(products=2, memory=5, written=1), Work(products=3, calls=1, memory=4, mapped=7, images=2, half=True)
    assert one + other == Work(products=5, calls=1, memory=5, mapped=7, images=2, written=1, half=True)
    assert one * 3 == Work(products=6, memory=5, written=3)
    assert one.as_json() == {"products": 2, "memory": 5, "written": 1}
