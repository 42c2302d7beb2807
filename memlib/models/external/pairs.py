"""External image-text models of Hugging Face's transformers and of open_clip; nothing is unpickled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from memlib.errors import UserError
from memlib.models.external.encoders import load_folder
from memlib.models.external.factory import reads_padding
from memlib.models.external.network import ExternalNetwork, Method
from memlib.models.external.open_clip import load_open_clip
from memlib.models.hugging import ENCODER, OPEN_CLIP, loading, transformers_for
from memlib.specs.encoders import OpenClipEncoder, TransformersEncoder

IMAGES, TEXTS = "get_image_features", "get_text_features"  # methods of CLIP and of models like it
SAME = 0.05  # most distance of two vectors of length 1 that differ by rounding
Texts = Callable[[list[str]], Tensor]


class ExternalPairEncoder:
    """An image-text model from a folder, of transformers or open_clip, with its own preparation of images and captions.

    Args:
        spec: the folder.
        device: device to compute on.

    Raises:
        UserError: when the folder holds no whole image-text model, or no tokenizer.
    """

    def __init__(self, spec: TransformersEncoder | OpenClipEncoder, device: torch.device) -> None:
        if isinstance(spec, OpenClipEncoder):
            self._what, (images, self._texts) = OPEN_CLIP, _open_clip(spec, device)
        else:
            self._what, (images, self._texts) = ENCODER, _transformers(spec, device)
        self._images, self._name = images.to(device).eval(), spec.path
        self.side = images.side

    def images(self, pixels: Tensor) -> Tensor:
        """See `observe.image_text.PairEncoder.images`."""
        return F.normalize(self._images.all_layers(pixels)[-1][1].float(), dim=1)

    def texts(self, captions: Sequence[str], words: Tensor) -> Tensor:
        """See `observe.image_text.PairEncoder.texts`; the model's own tokenizer reads the captions.

        Raises:
            UserError: when a caption has another vector alone than beside longer ones, whose padding the model then reads.
        """
        with loading(self._name, self._what):
            found = F.normalize(self._texts(list(captions)).float(), dim=1)
            shortest = min(range(len(captions)), key=lambda place: len(captions[place]))
            alone = F.normalize(self._texts([captions[shortest]]).float(), dim=1)[0]
        if float((alone - found[shortest]).norm()) > SAME:
            raise UserError(
                f"the model in {self._name} embeds a caption differently beside longer ones: it reads the padding between "
                "them; save its tokenizer with the padding that it was trained with"
            )
        return found


def _transformers(spec: TransformersEncoder, device: torch.device) -> tuple[ExternalNetwork, Texts]:
    found = load_folder(spec)
    if lacking := [name for name in (IMAGES, TEXTS) if not hasattr(found.model, name)]:
        kind = type(found.model).__name__
        raise UserError(f"{spec.path} holds a {kind}, which is no image-text model: it has no {lacking[0]}")
    with loading(spec.path, ENCODER):
        tokenizers = transformers_for(spec.path, ENCODER).AutoTokenizer
        tokenizer = tokenizers.from_pretrained(Path(spec.path), local_files_only=True, trust_remote_code=False)
    longest = int(found.model.config.text_config.max_position_embeddings)
    features = getattr(found.model, TEXTS)
    padding = "max_length" if reads_padding(found.model.config.model_type) else True

    def texts(captions: list[str]) -> Tensor:
        tokens = tokenizer(captions, padding=padding, truncation=True, max_length=longest, return_tensors="pt").to(device)
        return _features(features(**{name: tokens[name] for name in ("input_ids", "attention_mask") if name in tokens}))

    images = ExternalNetwork(
        Method(found.model, IMAGES), name=spec.path, side=found.side, mean=found.mean, std=found.std,
        read=lambda outputs: {"image": _features(outputs)},
    )  # fmt: skip
    return images, texts


def _features(outputs: Any) -> Tensor:
    """Return the features, which newer versions of transformers wrap in outputs."""
    found: Tensor = outputs if isinstance(outputs, Tensor) else outputs.pooler_output
    return found


def _open_clip(spec: OpenClipEncoder, device: torch.device) -> tuple[ExternalNetwork, Texts]:
    found = load_open_clip(spec)
    return found.images, lambda captions: found.model.encode_text(found.tokenizer(captions).to(device))
