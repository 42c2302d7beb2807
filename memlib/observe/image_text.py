"""Images and captions in the space of an image-text model."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memlib.errors import RunError
from memlib.models.image_text import ImageText
from memlib.observe.embeddings import cut
from memlib.training.augment import normalize

BATCH = 256  # images or captions per pass, on which rounding depends


class PairEncoder(Protocol):
    """An image-text model, in evaluation mode."""

    side: int  #: side of its input images in pixels.

    def images(self, pixels: Tensor) -> Tensor:
        """Return images (batch, 3, side, side) in [0, 1] in the common space, (batch, dim) of length 1."""
        ...

    def texts(self, captions: Sequence[str], words: Tensor) -> Tensor:
        """Return captions in the common space, (batch, dim) of length 1.

        Args:
            words: (batch, length) int64, their words by number, as models of memlib read them.
        """
        ...


class TrainedPairEncoder:
    """A model that memlib trained."""

    def __init__(self, model: ImageText, side: int, device: torch.device) -> None:
        self._model, self.side = model.to(device).eval(), side

    def images(self, pixels: Tensor) -> Tensor:
        """See `PairEncoder.images`."""
        return self._model.encode_images(normalize(pixels))

    def texts(self, captions: Sequence[str], words: Tensor) -> Tensor:
        """See `PairEncoder.texts`."""
        return self._model.encode_texts(words)


@torch.inference_mode()
def embed_images(
    encoder: PairEncoder,
    images: NDArray[np.uint8],
    rows: NDArray[np.int64],
    *,
    device: torch.device,
    progress: Callable[[int, int], None] | None = None,
) -> NDArray[np.float32]:
    """Return stored images in the common space, (num_rows, dim).

    Args:
        images: (num_stored, size, size, channels) uint8.
        device: the model's device.
        progress: called with (images done, total images).

    Raises:
        RunError: when an embedding is not finite.
    """
    found = []
    for start in range(0, len(rows), BATCH):
        part = images[rows[start : start + BATCH]]
        pixels = torch.from_numpy(np.ascontiguousarray(part)).to(device).permute(0, 3, 1, 2).float().div_(255)
        found.append(_finite(encoder.images(cut(pixels.expand(-1, 3, -1, -1), None, side=encoder.side))))
        if progress is not None:
            progress(min(start + BATCH, len(rows)), len(rows))
    return np.concatenate(found)


@torch.inference_mode()
def embed_texts(
    encoder: PairEncoder, captions: Sequence[str], words: NDArray[np.int32], *, device: torch.device
) -> NDArray[np.float32]:
    """Return captions in the common space, (num_captions, dim).

    Args:
        words: (num_captions, length), their words by number.
        device: the model's device.

    Raises:
        RunError: when an embedding is not finite.
    """
    found = []
    for start in range(0, len(captions), BATCH):
        part = slice(start, start + BATCH)
        numbers = torch.from_numpy(words[part].astype(np.int64)).to(device)
        found.append(_finite(encoder.texts(captions[part], numbers)))
    return np.concatenate(found)


def _finite(vectors: Tensor) -> NDArray[np.float32]:
    if not bool(torch.isfinite(vectors).all()):
        raise RunError("embeddings are not finite: the model's weights are unusable")
    values: NDArray[np.float32] = vectors.float().cpu().numpy()
    return values
