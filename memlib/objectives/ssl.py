"""Self-supervised objectives, and the contrastive ones of which SimCLR and pairs of images and texts are made."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memlib.identity import derive_seed
from memlib.objectives.base import BatchPart, Objective, Terms
from memlib.specs import BarlowTwinsSpec, ContrastiveSpec, SimCLRSpec, VICRegSpec
from memlib.specs.captions import PADDING, UNKNOWN

EPSILON = 1e-4


def invariance_loss(a: Tensor, b: Tensor) -> Tensor:
    """Return the mean squared difference of the two views' embeddings, each (batch, dim) (Bardes 2022, Eq. 5)."""
    return F.mse_loss(a, b)


def variance_loss(embeddings: Tensor) -> Tensor:
    """Return the mean of max(0, 1 - standard deviation) over dimensions: (batch, dim) -> scalar (Eq. 1 and 2)."""
    return F.relu(1 - torch.sqrt(embeddings.var(dim=0) + EPSILON)).mean()


def covariance_loss(embeddings: Tensor) -> Tensor:
    """Return the sum of squared off-diagonal covariances, divided by dim: (batch, dim) -> scalar (Eq. 3 and 4)."""
    batch, dim = embeddings.shape
    centred = embeddings - embeddings.mean(dim=0)
    covariance = centred.T @ centred / (batch - 1)
    return (covariance.square().sum() - covariance.diagonal().square().sum()) / dim


class VICReg(Objective):
    """Variance-invariance-covariance regularization of two views (Bardes 2022, Eq. 6).

    As in the authors' code, the variance terms are averaged and the covariance terms summed over the views. The
    statistics are those of the global batch, in float32 regardless of the precision of the forward pass.
    """

    num_views = 2

    def __init__(self, spec: VICRegSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`."""
        first, second = (model(view) for view in views)
        with torch.autocast(first.device.type, enabled=False):
            a, b = self.gather(first.float()), self.gather(second.float())
            invariance = invariance_loss(a, b)
            variance = (variance_loss(a) + variance_loss(b)) / 2
            covariance = covariance_loss(a) + covariance_loss(b)
        spec = self.spec
        loss = spec.invariance * invariance + spec.variance * variance + spec.covariance * covariance
        return {"loss": loss, "invariance": invariance, "variance": variance, "covariance": covariance}


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return the correlations between dimensions of two views' embeddings over the batch: two (batch, dim) -> (dim, dim)."""
    a, b = (F.batch_norm(view, None, None, training=True) for view in (a, b))
    return a.T @ b / len(a)


class BarlowTwins(Objective):
    """Decorrelation of two views: correlation 1 of each dimension with itself, 0 with others (Zbontar 2021, Eq. 1).

    The statistics are those of the global batch, in float32 regardless of the precision of the forward pass.
    """

    num_views = 2

    def __init__(self, spec: BarlowTwinsSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`."""
        first, second = (model(view) for view in views)
        with torch.autocast(first.device.type, enabled=False):
            correlations = correlation(self.gather(first.float()), self.gather(second.float()))
            invariance = (1 - correlations.diagonal()).square().sum()
            redundancy = correlations.square().sum() - correlations.diagonal().square().sum()
        return {"loss": invariance + self.spec.redundancy * redundancy, "invariance": invariance, "redundancy": redundancy}


def contrastive_loss(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """Return the cross-entropy of identifying each view's partner among all other views, by cosine (Chen 2020, Eq. 1).

    Args:
        a, b: the two views' embeddings, each (batch, dim).
        temperature: divides the cosines.
    """
    views = F.normalize(torch.cat([a, b]), dim=1)
    scores = (views @ views.T / temperature).fill_diagonal_(-torch.inf)
    partners = torch.arange(len(views), device=views.device).roll(len(a))
    return F.cross_entropy(scores, partners)


class SimCLR(Objective):
    """Contrastive learning of two views against the other images of the global batch (Chen 2020), in float32."""

    num_views = 2

    def __init__(self, spec: SimCLRSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`."""
        first, second = (model(view) for view in views)
        with torch.autocast(first.device.type, enabled=False):
            loss = contrastive_loss(self.gather(first.float()), self.gather(second.float()), self.spec.temperature)
        return {"loss": loss}


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
