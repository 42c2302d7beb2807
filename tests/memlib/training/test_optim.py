import math

import pytest
import torch

from memlib.specs import OptimizerSpec
from memlib.training.optim import build_optimizer, learning_rate


def test_lars_equals_its_formula() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2)
    spec = OptimizerSpec(name="lars", learning_rate=0.5, weight_decay=0.01, momentum=0.9)
    optimizer = build_optimizer(spec, [layer])
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    speed_w, speed_b = torch.zeros_like(weight), torch.zeros_like(bias)
    for step in range(3):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        layer(x).square().sum().backward()
        gradient = layer.weight.grad + 0.01 * weight
        speed_w = 0.9 * speed_w + gradient * 1e-3 * weight.norm() / gradient.norm()
        speed_b = 0.9 * speed_b + layer.bias.grad  # one dimension: neither decay nor adaptation
        optimizer.step()
        weight, bias = weight - 0.5 * speed_w, bias - 0.5 * speed_b
        assert torch.allclose(layer.weight, weight, atol=1e-6)
        assert torch.allclose(layer.bias, bias, atol=1e-6)


def test_lars_leaves_zero_weights_finite() -> None:
    layer = torch.nn.Linear(2, 2)
    torch.nn.init.zeros_(layer.weight)
    optimizer = build_optimizer(OptimizerSpec(name="lars"), [layer])
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert torch.isfinite(layer.weight).all()


def stepped(name: str, steps: int, **settings: float) -> tuple[list[float], float]:
    """Return the gradients of each step of one weight towards 3, and the weight at the end."""
    weight = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.ones_(weight.weight)
    optimizer = build_optimizer(OptimizerSpec(name=name, weight_decay=0, **settings), [weight])
    gradients = []
    for _ in range(steps):
        optimizer.zero_grad()
        (weight.weight - 3).square().sum().backward()
        gradients.append(float(weight.weight.grad))
        optimizer.step()
    return gradients, weight.weight.item()


def test_adagrad_divides_by_the_root_of_the_sum_of_squares() -> None:
    gradients, end = stepped("adagrad", 4, learning_rate=0.1)
    weight, total = 1.0, 0.0
    for gradient in gradients:
        total += gradient**2
        weight -= 0.1 * gradient / math.sqrt(total)
    assert end == pytest.approx(weight, abs=1e-8)


def test_adadelta_takes_steps_in_proportion_to_its_earlier_steps() -> None:
    gradients, end = stepped("adadelta", 4, learning_rate=2.0)
    weight, squares, steps = 1.0, 0.0, 0.0
    for gradient in gradients:
        squares = 0.9 * squares + 0.1 * gradient**2
        step = math.sqrt(steps + 1e-6) / math.sqrt(squares + 1e-6) * gradient
        steps = 0.9 * steps + 0.1 * step**2
        weight -= 2.0 * step
    assert end == pytest.approx(weight, abs=1e-8)


def test_momentum_adds_earlier_gradients_and_is_off_at_zero() -> None:
    gradients, end = stepped("sgd", 3, learning_rate=0.1, momentum=0.9)
    speeds = [gradients[0], gradients[1] + 0.9 * gradients[0], gradients[2] + 0.9 * gradients[1] + 0.81 * gradients[0]]
    assert end == pytest.approx(1 - 0.1 * sum(speeds))
    gradients, end = stepped("sgd", 3, learning_rate=0.1, momentum=0)
    assert end == pytest.approx(1 - 0.1 * sum(gradients))


def test_the_rate_warms_up_and_falls_to_its_end() -> None:
    spec = OptimizerSpec(learning_rate=1.0, warmup_epochs=2, final_fraction=0.1)
    rates = [learning_rate(spec, step=step, steps_per_epoch=5, num_steps=50) for step in range(51)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1.0
    assert rates[30] == pytest.approx(0.1 + 0.9 / 2)
    assert rates[50] == pytest.approx(0.1)
    assert all(a >= b for a, b in zip(rates[10:], rates[11:], strict=False))
    assert math.isfinite(learning_rate(spec, step=3, steps_per_epoch=5, num_steps=4))


def test_adamw_decays_no_vector() -> None:
    groups = build_optimizer(OptimizerSpec(weight_decay=0.3), [torch.nn.Linear(3, 2)]).param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.3), (1, 0.0)]
