from pathlib import Path

import pytest
import torch

from memlib.errors import UserError
from memlib.models.encoder import build_encoder
from memlib.specs import ModelSpec
from memlib.training.checkpoint import load_weights, save_weights

SMALL = ModelSpec(width=8, projector=(16, 16))


def test_weights_come_back_bit_for_bit(tmp_path: Path) -> None:
    first = build_encoder(SMALL, num_classes=None, seed=0).to(memory_format=torch.channels_last)
    save_weights(first, tmp_path / "w.safetensors")
    second = build_encoder(SMALL, num_classes=None, seed=1)
    load_weights(second, tmp_path / "w.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            ModelSpec(width=8, projector=(16, 24)),
            r"projector\.1\.0\.weight has shape \(16, 16\), but the model expects \(24, 16\)",
        ),
        (ModelSpec(width=8, projector=(16, 16, 16)), "is missing .and"),
    ],
)
def test_another_architecture_is_refused_by_name(tmp_path: Path, other: ModelSpec, message: str) -> None:
    save_weights(build_encoder(SMALL, num_classes=None, seed=0), tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="another architecture") as caught:
        load_weights(build_encoder(other, num_classes=None, seed=0), tmp_path / "w.safetensors")
    assert caught.match(message)


def test_an_unknown_tensor_is_refused_by_name(tmp_path: Path) -> None:
    save_weights(build_encoder(SMALL, num_classes=4, seed=0), tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=r"classifier\.\S+ is unknown \(and 6 more\)"):
        load_weights(build_encoder(SMALL, num_classes=None, seed=0), tmp_path / "w.safetensors")


def test_load_weights_refuses_unreadable_safetensors(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"hello")
    with pytest.raises(UserError, match="not a readable safetensors file"):
        load_weights(build_encoder(SMALL, num_classes=None, seed=0), tmp_path / "w.safetensors")
