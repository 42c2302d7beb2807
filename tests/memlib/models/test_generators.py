import math

import pytest
import torch
from pydantic import ValidationError

from memlib.models.generators import Denoiser, build_decoder, build_denoiser, time_features
from memlib.specs import DecoderSpec, DenoiserSpec
from memlib.training.fit import MODELS

SMALL = DenoiserSpec(channels=(8, 16), input_size=8, attention_side=4)


def awake(network: Denoiser) -> Denoiser:
    """Give the layers that start at zero some weights."""
    with torch.no_grad():
        for parameter in network.parameters():
            if not parameter.any():
                parameter.add_(torch.linspace(-0.1, 0.1, parameter.numel()).view_as(parameter))
    return network.eval()


@pytest.mark.parametrize(
    "spec",
    [
        SMALL,
        DenoiserSpec(),
        DenoiserSpec(channels=(8,), input_size=5),
        DenoiserSpec(channels=(8, 16, 16), blocks=2, input_size=16, attention_side=0),
    ],
)
def test_a_denoiser_returns_an_image_of_the_size_of_its_input(spec: DenoiserSpec) -> None:
    network, images = build_denoiser(spec, dim=3, steps=10, seed=0), torch.randn(2, 3, spec.input_size, spec.input_size)
    assert network(images).shape == images.shape
    assert not network(images, torch.tensor([0, 9]), torch.randn(2, 3)).any()  # the last layer starts at zero
    assert awake(network)(images, torch.tensor([0, 9]), torch.randn(2, 3)).any()


def test_a_denoisers_prediction_depends_on_the_time_and_on_a_condition_unless_it_is_dropped() -> None:
    network, image = awake(build_denoiser(SMALL, dim=3, steps=10, seed=0)), torch.randn(1, 3, 8, 8).expand(4, -1, -1, -1)
    conditions = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [1.0, 0, 0], [0, 1.0, 0]])
    dropped = torch.tensor([False, False, True, True])
    first, second, third, fourth = network(image, torch.zeros(4, dtype=torch.int64), conditions, dropped)
    assert not torch.allclose(first, second)
    assert torch.allclose(third, fourth, atol=1e-6)
    assert torch.allclose(third, network(image)[0], atol=1e-6)
    assert not torch.allclose(network(image, torch.tensor([0, 3, 6, 9]))[0], network(image, torch.tensor([9, 3, 6, 0]))[0])


def test_initial_weights_follow_from_the_seed_and_only_the_conditions_layer_from_their_length() -> None:
    torch.manual_seed(1)
    first = build_denoiser(SMALL, dim=3, steps=10, seed=5).state_dict()
    torch.manual_seed(2)  # whatever the process did before
    second, third = (build_denoiser(SMALL, dim=dim, steps=10, seed=5).state_dict() for dim in (3, 7))
    assert all(torch.equal(first[name], second[name]) for name in first)
    differing = [
        name for name in first if first[name].shape != third[name].shape or not torch.equal(first[name], third[name])
    ]
    assert differing == ["condition.linear.weight", "condition.linear.bias"]
    other = build_denoiser(SMALL, dim=3, steps=10, seed=6).state_dict()
    assert not torch.equal(first["stem.weight"], other["stem.weight"])


def test_time_features_are_cosines_and_sines() -> None:
    features = time_features(torch.tensor([0, 3]), 4)
    assert features[0].tolist() == [1, 1, 0, 0]
    assert features[1].tolist() == pytest.approx([math.cos(3), math.cos(0.03), math.sin(3), math.sin(0.03)], abs=1e-6)


def test_levels_up_to_the_attention_side_have_attention() -> None:
    assert [DenoiserSpec().attends(level) for level in range(3)] == [False, False, True]
    assert [DenoiserSpec(attention_side=16).attends(level) for level in range(3)] == [False, True, True]
    assert not any(DenoiserSpec(attention_side=0).attends(level) for level in range(3))


def test_outputs_of_a_decoder_depend_on_the_condition_alone() -> None:
    network = build_decoder(DecoderSpec(kind="decoder", hidden=(16,), input_size=8), dim=3, seed=0)
    conditions = torch.randn(2, 3)
    drawn = network(torch.randn(2, 3, 8, 8), None, conditions)
    assert drawn.shape == (2, 3, 8, 8)
    assert torch.equal(drawn, network(torch.zeros(2, 3, 8, 8), torch.tensor([1, 2]), conditions))
    assert torch.equal(network(torch.zeros(2, 3, 8, 8)), network(torch.zeros(2, 3, 8, 8), None, torch.zeros(2, 3)))


def test_a_teacher_is_a_copy_without_gradients() -> None:
    network = build_denoiser(SMALL, dim=3, steps=10, seed=0)
    names = set(network.state_dict())
    teacher = network.add_teacher()
    assert network.teacher is teacher
    assert set(network.state_dict()) == names | {f"teacher.{name}" for name in names}
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_size": 30}, "input_size 30 is not a multiple of 4, by which 3 levels divide it"),
        ({"channels": (12, 24)}, r"channels 12 is not a multiple of 8 \(norm_groups 8, and 4 heads\)"),
        ({"channels": (9, 18), "norm_groups": 3}, "channels 9 is not a multiple of 12"),
        ({"channels": ()}, "at least 1 item"),
    ],
)
def test_a_denoiser_whose_levels_do_not_fit_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DenoiserSpec.model_validate({"kind": "denoiser", **changes})


@pytest.mark.parametrize("spec", [DenoiserSpec(), DecoderSpec(kind="decoder")])
def test_generators_are_read_back_from_their_descriptions(spec: DenoiserSpec | DecoderSpec) -> None:
    assert MODELS.validate_python(spec.model_dump(mode="json")) == spec
