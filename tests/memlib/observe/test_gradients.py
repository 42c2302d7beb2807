"""Squared gradient norms equal those of a loop over examples, and captum's."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import weight_norm as legacy_weight_norm
from torch.nn.utils.parametrizations import weight_norm

from memlib.errors import UserError
from memlib.models.classifiers import build_classifier
from memlib.observe.gradients import GradientNorms, cross_entropy
from memlib.specs import ClassifierSpec


def by_loop(model: nn.Module, inputs: Tensor, targets: Tensor, loss: Any = cross_entropy) -> Tensor:
    parameters = [p for p in model.parameters() if p.requires_grad]
    norms = []
    for i in range(len(inputs)):
        value = loss(model(inputs[i : i + 1]), targets[i : i + 1]).sum()
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        norms.append(sum(g.square().sum() for g in gradients if g is not None))
    return torch.stack(norms)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ({"architecture": "mlp", "batch_norm": True}, (1, 28, 28)),
        ({"architecture": "mlp", "widths": (8,)}, (3,)),
        ({"architecture": "cnn_1"}, (1, 12, 12)),
        ({"architecture": "cnn_2", "batch_norm": True, "dropout": 0.5}, (3, 16, 16)),
        ({"architecture": "resnet18"}, (3, 16, 16)),
        ({"architecture": "densenet_bc_100_12"}, (3, 16, 16)),
        ({"architecture": "densenet121"}, (3, 32, 32)),
    ],
    ids=lambda value: value["architecture"] if isinstance(value, dict) else "",
)
def test_gradient_norms_of_every_registered_model_equal_a_loop(spec: dict[str, Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = build_classifier(ClassifierSpec(**spec), shape, 10, seed=0).double()
    norms = GradientNorms(model)
    for part in (4, 3):  # a smaller last batch
        inputs, targets = torch.randn(part, *shape, dtype=torch.float64), torch.randint(0, 10, (part,))
        torch.testing.assert_close(norms(inputs, targets).double(), by_loop(model, inputs, targets), rtol=1e-6, atol=1e-12)
    assert all(p.requires_grad for p in model.parameters())  # the model is as it was


class Tokens(nn.Module):
    """Embedding, LSTM, shared norm, grouped and strided convolution, sequence of linear maps."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.norm = nn.LayerNorm(12)
        self.conv = nn.Conv1d(12, 12, 3, stride=2, groups=3, padding=1)
        self.out = nn.Linear(12, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.lstm(self.embed(tokens))[0])
        hidden = self.norm(self.conv(hidden.transpose(1, 2)).transpose(1, 2))  # the same norm twice
        return self.out(F.relu(self.out.weight.sum() * 0 + hidden))


def sequence_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs.transpose(1, 2), targets, reduction="none").sum(dim=1)


def test_gradient_norms_of_sequence_models_equal_a_loop() -> None:
    torch.manual_seed(0)
    model = Tokens().eval()
    tokens, targets = torch.randint(0, 11, (4, 9)), torch.randint(0, 11, (4, 5))
    found = GradientNorms(model, loss=sequence_loss)(tokens, targets)
    torch.testing.assert_close(found, by_loop(model, tokens, targets, sequence_loss), rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Conv2d(4, 6, (1, 3), dilation=2, bias=False), nn.Conv2d(4, 8, 3, groups=4),
        nn.Conv2d(4, 6, 3, padding=2),
    ],
)  # fmt: skip
def test_gradient_norms_of_strided_dilated_and_grouped_convolutions_equal_a_loop(layer: nn.Conv2d) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(layer, nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(3))
    inputs, targets = torch.randn(3, 4, 9, 8), torch.randint(0, 3, (3,))
    model(inputs)
    torch.testing.assert_close(GradientNorms(model)(inputs, targets), by_loop(model, inputs, targets), rtol=1e-4, atol=1e-8)


def test_gradient_norms_leave_out_frozen_parameters() -> None:
    model = build_classifier(ClassifierSpec(architecture="mlp", widths=(8,)), (4,), 3, seed=0)
    for parameter in model[1].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    inputs, targets = torch.randn(5, 4), torch.randint(0, 3, (5,))
    torch.testing.assert_close(GradientNorms(model)(inputs, targets), by_loop(model, inputs, targets), rtol=1e-4, atol=1e-8)


class Standardised(nn.Conv2d):
    """A convolution of another weight than its parameter."""

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True), self.bias)


def half_frozen() -> nn.Module:
    layer = nn.Conv2d(2, 3, 3)
    layer.weight.requires_grad_(False)
    return layer


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize(
    "make",
    [
        lambda: Standardised(2, 3, 3),
        half_frozen,
        lambda: weight_norm(nn.Conv2d(2, 3, 3)),
        lambda: legacy_weight_norm(nn.Conv2d(2, 3, 3)),
    ],
    ids=["subclass", "half frozen", "parametrized", "legacy weight norm"],
)
def test_modified_torch_layers_have_no_fast_rule(make: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(make(), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 3))
    inputs, targets = torch.randn(4, 2, 6, 6), torch.randint(0, 3, (4,))
    with pytest.raises(UserError, match="no fast rule"):
        GradientNorms(model)
    found = GradientNorms(model, slow_modules=True)(inputs, targets)
    torch.testing.assert_close(found, by_loop(model, inputs, targets), rtol=1e-4, atol=1e-8)


def test_gradient_norms_with_label_smoothing_equal_a_loop() -> None:
    model = build_classifier(ClassifierSpec(architecture="mlp", widths=(8,)), (4,), 3, seed=0)
    loss = functools.partial(cross_entropy, label_smoothing=0.2)
    inputs, targets = torch.randn(5, 4), torch.randint(0, 3, (5,))
    found = GradientNorms(model, loss=loss)(inputs, targets)
    torch.testing.assert_close(found, by_loop(model, inputs, targets, loss), rtol=1e-4, atol=1e-8)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.act = nn.PReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x)))


def test_modules_without_a_fast_rule_are_named_in_one_error_or_computed_slowly() -> None:
    model, inputs, targets = Tied(), torch.randn(4, 4), torch.randint(0, 4, (4,))
    with pytest.raises(UserError, match=r"a \(Linear, parameters shared.*b \(Linear.*act \(PReLU\).*slow_modules"):
        GradientNorms(model)
    found = GradientNorms(model, slow_modules=True)(inputs, targets)
    torch.testing.assert_close(found, by_loop(model, inputs, targets), rtol=1e-4, atol=1e-8)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attention(x, x, x)[0].mean(dim=1))


def test_gradient_norms_of_a_layer_used_without_a_call_equal_a_loop() -> None:
    model, inputs, targets = Attention().eval(), torch.randn(3, 5, 8), torch.randint(0, 3, (3,))
    found = GradientNorms(model, slow_modules=True)(inputs, targets)
    torch.testing.assert_close(found, by_loop(model, inputs, targets), rtol=1e-4, atol=1e-8)


def test_self_influence_from_gradient_norms_equals_tracin_of_captum(tmp_path: Any) -> None:
    from captum.influence import TracInCP

    torch.manual_seed(0)
    model = build_classifier(ClassifierSpec(architecture="mlp", widths=(16, 8)), (6,), 3, seed=0)
    inputs, targets = torch.randn(12, 6), torch.randint(0, 3, (12,))
    torch.save(model.state_dict(), tmp_path / "c.pt")

    def load(net: nn.Module, path: str) -> float:
        net.load_state_dict(torch.load(path, weights_only=True))
        return 0.01

    data = torch.utils.data.TensorDataset(inputs, targets)
    tracin = TracInCP(
        model, data, [str(tmp_path / "c.pt")], checkpoints_load_func=load,
        loss_fn=nn.CrossEntropyLoss(reduction="none"), sample_wise_grads_per_batch=False, batch_size=4,
    )  # fmt: skip
    expected = tracin.self_influence()
    torch.testing.assert_close(0.01 * GradientNorms(model)(inputs, targets), expected, rtol=1e-4, atol=1e-8)
