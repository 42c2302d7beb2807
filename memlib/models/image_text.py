"""Models of images and texts: two encoders with one space (Radford 2021, scaled down)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memlib.identity import derive_seed
from memlib.models.encoder import Encoder
from memlib.specs import ImageTextSpec, TextEncoderSpec
from memlib.specs.captions import PADDING

MOST_SCALE = math.log(100.0)  # of the logarithm of the inverse temperature (Radford 2021, 2.5)
HEADS = 4


class TextEncoder(nn.Module):
    """A text encoder, which maps numbers of words (batch, length) int64 to (batch, dim)."""

    def __init__(self, spec: TextEncoderSpec, *, num_words: int, length: int, dim: int) -> None:
        super().__init__()
        self.words = nn.Embedding(num_words, spec.width, padding_idx=PADDING)
        self.positions: nn.Parameter | None = None
        self.layers: nn.Module | None = None
        if spec.architecture == "transformer":
            self.positions = nn.Parameter(torch.randn(length, spec.width) * 0.01)
            layer = nn.TransformerEncoderLayer(
                spec.width, HEADS, 4 * spec.width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, spec.layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.Linear(spec.width, 4 * spec.width), nn.ReLU(), nn.Linear(4 * spec.width, dim))

    def forward(self, words: Tensor) -> Tensor:
        """Return the encoded texts (batch, dim); padding has no influence."""
        is_word = (words != PADDING)[..., None]
        vectors = self.words(words)
        if self.positions is not None and self.layers is not None:
            hidden = torch.zeros(is_word.shape[:2], device=words.device).masked_fill(~is_word[..., 0], -1e9)
            vectors = self.layers(vectors + self.positions[: words.shape[1]], src_key_padding_mask=hidden)
        mean: Tensor = (vectors * is_word).sum(dim=1) / is_word.sum(dim=1).clamp(min=1)
        encoded: Tensor = self.head(mean)
        return encoded


class ImageText(nn.Module):
    """An image encoder and a text encoder with one space, and the temperature of their training.

    Args:
        spec: the architecture.
        num_words: number of words that the model knows, including padding and the unknown word.
        length: words of a caption.
    """

    def __init__(self, spec: ImageTextSpec, *, num_words: int, length: int) -> None:
        super().__init__()
        self.image = Encoder(spec.image)
        self.text = TextEncoder(spec.text, num_words=num_words, length=length, dim=self.image.dim)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, images: Tensor, words: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return images, divided by the temperature, and texts, both (batch, dim) and of length 1 before the division.

        Args:
            images: (batch, 3, side, side) float32, normalized.
            words: (batch, length) int64; None for as many texts without words, by which the cost of a pass is measured.
        """
        if words is None:
            words = torch.zeros((len(images), 1), dtype=torch.int64, device=images.device)
        return self.encode_images(images) * self.log_scale.exp(), self.encode_texts(words)

    def encode_images(self, images: Tensor) -> Tensor:
        """Return the images in the common space, (batch, dim) of length 1."""
        return F.normalize(self.image(images), dim=1)

    def encode_texts(self, words: Tensor) -> Tensor:
        """Return the texts in the common space, (batch, dim) of length 1."""
        return F.normalize(self.text(words), dim=1)

    def set_temperature(self, temperature: float) -> None:
        """Set the temperature at the start of training."""
        with torch.no_grad():
            self.log_scale.fill_(-math.log(temperature))

    def limit_temperature(self) -> None:
        """Keep the temperature at .01 or above."""
        with torch.no_grad():
            self.log_scale.clamp_(max=MOST_SCALE)


def build_image_text(spec: ImageTextSpec, *, num_words: int, length: int, seed: int) -> ImageText:
    """Build a model initialized from `seed` alone; the caller's random state is not changed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initial weights"))
        return ImageText(spec, num_words=num_words, length=length)
