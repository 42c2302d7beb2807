"""External image-text models of Hugging Face's transformers; nothing is unpickled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.models.external.encoders import ExternalNetwork, load_folder
from memlib.models.hugging import ENCODER, loading, transformers_for
from memlib.specs.encoders import TransformersEncoder

IMAGES, TEXTS = "get_image_features", "get_text_features"  # methods of CLIP and of models like it


class _Images(nn.Module):
    """The image half of an image-text model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return _features(getattr(self.model, IMAGES)(pixel_values=pixels))


def _features(outputs: Any) -> Tensor:
    """Return the features, which newer versions of transformers wrap in outputs."""
    found: Tensor = outputs if isinstance(outputs, Tensor) else outputs.pooler_output
    return found


class ExternalPairEncoder:
    """An image-text model from a folder with config.json, preprocessor_config.json, a tokenizer and *.safetensors.

    Args:
        spec: the folder.
        device: device to compute on.

    Raises:
        UserError: when the folder holds no whole image-text model, or no tokenizer.
    """

    def __init__(self, spec: TransformersEncoder, device: torch.device) -> None:
        found = load_folder(spec)
        if lacking := [name for name in (IMAGES, TEXTS) if not hasattr(found.model, name)]:
            kind = type(found.model).__name__
            raise UserError(f"{spec.path} holds a {kind}, which is no image-text model: it has no {lacking[0]}")
        with loading(spec.path, ENCODER):
            tokenizers = transformers_for(spec.path, ENCODER).AutoTokenizer
            self._tokenizer = tokenizers.from_pretrained(Path(spec.path), local_files_only=True, trust_remote_code=False)
        self._model, self._device, self._name = found.model.to(device).eval(), device, spec.path
        self._longest = int(found.model.config.text_config.max_position_embeddings)
        self._images = ExternalNetwork(
            _Images(self._model), name=spec.path, side=found.side, mean=found.mean, std=found.std,
            read=lambda features: {"image": features},
        ).to(device)  # fmt: skip
        self.side = found.side

    def images(self, pixels: Tensor) -> Tensor:
        """See `observe.image_text.PairEncoder.images`."""
        return F.normalize(self._images.all_layers(pixels)[-1][1].float(), dim=1)

    def texts(self, captions: Sequence[str], words: Tensor) -> Tensor:
        """See `observe.image_text.PairEncoder.texts`; the model's own tokenizer reads the captions."""
        with loading(self._name, ENCODER):
            tokens = self._tokenizer(
                list(captions), padding=True, truncation=True, max_length=self._longest, return_tensors="pt"
            ).to(self._device)
            features = _features(
                getattr(self._model, TEXTS)(**{name: tokens[name] for name in ("input_ids", "attention_mask")})
            )
        return F.normalize(features.float(), dim=1)
