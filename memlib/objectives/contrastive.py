"""The objective of image-text models: each caption picks out its image, and each image its caption."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memlib.identity import derive_seed
from memlib.objectives.base import BatchPart, Objective, Terms
from memlib.specs import ContrastiveSpec
from memlib.specs.captions import PADDING, UNKNOWN


def pair_loss(images: Tensor, texts: Tensor, same: Tensor) -> Tensor:
    """Return the mean of the two cross-entropies of picking a partner (Radford 2021, Fig. 3).

    A pair that occurs several times in the batch has several partners, which share the target's probability: without this,
    the model would be trained to tell a pair from its own copies.

    Args:
        images: (batch, dim) of length 1, divided by the temperature.
        texts: (batch, dim) of length 1.
        same: (batch, batch) bool, True where two captions are equal.
    """
    scores = images @ texts.T
    target = same / same.sum(dim=1, keepdim=True)
    return (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2


class Contrastive(Objective):
    """Contrastive learning of pairs against the other pairs of the global batch, in float32; words may be masked.

    Masks are drawn for the global batch, so that they depend neither on the number of workers nor on earlier steps.
    """

    def __init__(self, spec: ContrastiveSpec) -> None:
        super().__init__()
        self.spec = spec

    def prepare(self, model: nn.Module) -> None:
        """See `Objective.prepare`."""
        model.set_temperature(self.spec.temperature)  # type: ignore[operator]

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`; labels are the words of the captions (batch, length)."""
        images, texts = model(views[0], self._masked(labels))
        with torch.autocast(images.device.type, enabled=False):
            words = self.gather(labels.double()).long() if self.group is not None else labels
            same = (words[:, None] == words[None]).all(dim=2)
            loss = pair_loss(self.gather(images.float()), self.gather(texts.float()), same)
        return {"loss": loss}

    def after_step(self, model: nn.Module) -> None:
        """See `Objective.after_step`."""
        model.limit_temperature()  # type: ignore[operator]

    def _masked(self, words: Tensor) -> Tensor:
        if not self.spec.masked or not self.training:
            return words
        part = self.part or BatchPart(0, 0, len(words), slice(None))
        rng = torch.Generator().manual_seed(derive_seed(part.seed, "masked words", part.step))
        drawn = torch.rand((part.size, words.shape[1]), generator=rng)[part.rows].to(words.device) < self.spec.masked
        return words.masked_fill(drawn & (words != PADDING), UNKNOWN)
