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
     ("vit_base", 32, 768), ("vit_large", 32, 1024), ("small_vit", 32, 128)],
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


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_encoder(ModelSpec(), num_classes=None, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = (build_encoder(ModelSpec(), num_classes=None, seed=seed) for seed in (3, 4))
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


@pytest.mark.parametrize(("width", "blocks", "patch"), [(4, 1, 8), (16, 2, 4), (25, 3, 16)])
def test_small_vit_has_the_depth_width_and_tokens_of_its_spec(width: int, blocks: int, patch: int) -> None:
    spec = ModelSpec(backbone="small_vit", width=width, blocks=blocks, patch_size=patch, projector=(8,))
    vit = build_encoder(spec, num_classes=None, seed=0).eval().backbone
    assert len(vit.encoder.layers) == 4 * blocks
    assert vit.encoder.pos_embedding.shape == (1, (32 // patch) ** 2 + 1, 4 * width)
    assert {layer.num_heads for layer in vit.encoder.layers} == {4}
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        features = vit(images)
        assert features.shape == (2, 4 * width)
        torch.testing.assert_close(vit(images.flip(0)), features.flip(0))


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_small_resnet_repeats_its_blocks_without_halving_again(blocks: int) -> None:
    backbone = build_encoder(ModelSpec(width=4, blocks=blocks, projector=(8,)), num_classes=None, seed=0).eval().backbone
    x, sides, channels = backbone.stem(torch.randn(1, 3, 32, 32)), [], []
    for block in backbone.blocks:
        x = block(x)
        sides.append(x.shape[2])
        channels.append(x.shape[1])
    assert sides == [side for side in (16, 8, 4, 2) for _ in range(blocks)]
    assert channels == [width for width in (4, 8, 16, 32) for _ in range(blocks)]


def test_the_default_depth_keeps_the_spec_and_the_names_of_weights() -> None:
    assert "blocks" not in ModelSpec().model_dump(mode="json")
    assert ModelSpec(blocks=2).model_dump(mode="json")["blocks"] == 2
    names = [name for name, _ in build_encoder(ModelSpec(), num_classes=None, seed=0).backbone.named_parameters()]
    assert names[3] == "blocks.0.branch.0.weight"
    assert {name.split(".")[1] for name in names if name.startswith("blocks.")} == set("0123")
    with pytest.raises(ValidationError, match="resnet18 has a fixed depth"):
        ModelSpec(backbone="resnet18", blocks=2)


def test_model_specs_with_inconsistent_sizes_are_refused() -> None:
    with pytest.raises(ValidationError, match="input_size 32 is not a multiple of patch_size 5"):
        ModelSpec(backbone="small_vit", patch_size=5)
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
