import pytest
import torch
from pydantic import ValidationError

from memlib.errors import UserError
from memlib.models.encoder import build_encoder
from memlib.specs import ModelSpec


@pytest.mark.parametrize(
    ("backbone", "side", "dim"),
    [("small_resnet", 32, 256), ("small_resnet", 64, 256), ("resnet18", 32, 512), ("resnet50", 96, 2048),
     ("resnet34", 64, 512), ("resnet101", 64, 2048), ("vit_tiny", 32, 192), ("vit_small", 32, 384),
     ("vit_base", 32, 768), ("vit_large", 32, 1024)],
)  # fmt: skip
@pytest.mark.long
def test_every_backbone_gives_every_layer(backbone: str, side: int, dim: int) -> None:
    spec = ModelSpec(backbone=backbone, input_size=side, projector=(48, 24, 12))
    encoder = build_encoder(spec, num_classes=7, seed=0).eval()
    with torch.inference_mode():
        layers = encoder.layers(torch.randn(2, 3, side, side))
    assert [name for name, _ in layers] == list(spec.layers(classifier=True))
    assert [tuple(values.shape) for _, values in layers] == [(2, dim), (2, 48), (2, 24), (2, 12), (2, 7)]


def test_the_projector_follows_the_paper() -> None:
    encoder = build_encoder(ModelSpec(projector=(8, 8, 8)), num_classes=4, seed=0)
    kinds = [[type(part).__name__ for part in layer] for layer in encoder.projector]
    assert kinds == [["Linear", "BatchNorm1d", "ReLU"], ["Linear", "BatchNorm1d", "ReLU"], ["Linear"]]
    assert [type(part).__name__ for part in encoder.classifier] == ["BatchNorm1d", "ReLU", "Linear"]
    assert ModelSpec(projector=(8,)).layers(classifier=False) == ("backbone", "projector_1")


def test_weights_come_from_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_encoder(ModelSpec(), num_classes=None, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = (build_encoder(ModelSpec(), num_classes=None, seed=seed) for seed in (3, 4))
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValidationError, match="not a multiple of patch_size"):
        ModelSpec(backbone="vit_tiny", input_size=33)
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        ModelSpec(projector=(8, 0))


def test_images_too_small_for_bfloat16_on_a_cpu_are_refused() -> None:
    encoder = build_encoder(ModelSpec(width=4, projector=(8,)), num_classes=None, seed=0)
    assert encoder(torch.randn(2, 3, 8, 8)).isfinite().all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert encoder(torch.randn(2, 3, 10, 10)).isfinite().all()
        with pytest.raises(UserError, match="8 pixels or fewer in bfloat16"):
            encoder(torch.randn(2, 3, 8, 8))
