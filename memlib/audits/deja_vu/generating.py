"""The stage that trains generators of images from an encoder's representations, and the drawing of samples (Bordes 2022).

A generator sees public images alone, so that whatever it draws of an audited image reached it through the representation.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from memlib.audits.deja_vu.embedding import CROP, EmbeddedView, taken
from memlib.data.splits import PUBLIC
from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact
from memlib.specs import DenoisingSpec, GeneratorObjectiveSpec, ObjectiveSpec
from memlib.training.fit import Train, TrainedModel

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from memlib.training.loop import TrainingSet

ROWS_AT_ONCE = 2**12
CONSTANT = 1e-6  # dimensions with a smaller spread, in units of their mean, are rounding
CLIPPED_TO = 127.5  # maps [-1, 1] to [0, 255]
TRAINED_BY = (("denoiser", "denoising"), ("decoder", "decoding"))
AnyObjective = ObjectiveSpec | GeneratorObjectiveSpec


@dataclass(frozen=True)
class Scale:
    """Mean and spread of each dimension of the representations, by which conditions are normalized."""

    mean: NDArray[np.float32]  #: (dim,) float32.
    spread: NDArray[np.float32]  #: standard deviation, (dim,) float32; 0 for constant dimensions.

    @staticmethod
    def of(view: EmbeddedView, layers: Sequence[str]) -> Scale:
        """Return the scale of a view's representations, the layers in the order given; reads block by block."""
        count = sum(len(block) for block in _blocks(view, layers))
        mean = np.sum([block.sum(axis=0, dtype=np.float64) for block in _blocks(view, layers)], axis=0) / count
        variance = np.sum([np.square(block - mean).sum(axis=0) for block in _blocks(view, layers)], axis=0) / count
        spread = np.sqrt(variance) * (np.sqrt(variance) > CONSTANT * np.abs(mean))
        return Scale(mean.astype(np.float32), spread.astype(np.float32))

    def apply(self, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return representations scaled to mean 0 and spread 1: (num, dim) -> (num, dim); constant dimensions become 0."""
        divisor = np.where(self.spread > 0, self.spread, np.float32(np.inf))
        scaled: NDArray[np.floating] = (np.asarray(vectors, dtype=np.float32) - self.mean) / divisor
        return scaled.astype(np.float32, copy=False)


def _blocks(view: EmbeddedView, layers: Sequence[str]) -> Iterator[NDArray[np.floating]]:
    """Yield a view's representations block by block, the layers side by side: (rows, dim)."""
    for arrays in zip(*(view.layer(layer) for layer in layers), strict=True):
        for start in range(0, len(arrays[0]), ROWS_AT_ONCE):
            yield np.concatenate([array[start : start + ROWS_AT_ONCE] for array in arrays], axis=1)


class Conditions:
    """The normalized representations of the rows of some views, read from the embeddings batch by batch.

    Args:
        views: the views, whose rows follow one another.
        layers: the layers, side by side.
    """

    def __init__(self, views: Sequence[EmbeddedView], layers: Sequence[str]) -> None:
        self._views, self._layers = views, layers
        self._parts = [[part for view in views for part in view.layer(layer)] for layer in layers]

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts[0])

    @property
    def dim(self) -> int:
        """Length of a condition."""
        return sum(parts[0].shape[1] for parts in self._parts)

    @functools.cached_property
    def scale(self) -> Scale:
        """The scale of the representations of whole public images."""
        return Scale.of(_whole(self._views), self._layers)

    def __getitem__(self, chosen: NDArray[np.int64], /) -> NDArray[np.float32]:
        """Return the conditions of the chosen rows: (num,) -> (num, dim)."""
        return self.scale.apply(np.concatenate([taken(parts, chosen) for parts in self._parts], axis=1))


def _whole(views: Sequence[EmbeddedView]) -> EmbeddedView:
    """Return the view of whole images."""
    return next(view for view in views if CROP[0] not in view.ids.column_names)


@dataclass(frozen=True)
class GenerateTrain(Train):
    """Train a generator that draws public images from their representations under one encoder."""

    declared: ClassVar[Declared] = Declared("generate_train", 1)
    title: ClassVar[str] = "train generators"

    num_classes: int = field(default=0, kw_only=True)  # generators know no classes
    roles: tuple[str, ...] = (PUBLIC,)
    #: representations of the public images, of which one view is of whole images; others may be of their crops. Each row of a
    #: view is an example: the whole image, and the representation from which it is drawn.
    conditions: tuple[EmbeddedView, ...] = ()
    layers: tuple[str, ...] = ("backbone",)  #: layers of the encoder whose outputs, side by side, are the representation.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The architecture, the training settings and the layers."""
        return {
            "model": self.model.model_dump(mode="json"),
            "training": self.training.model_dump(mode="json"),
            "layers": list(self.layers),
        }

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Keys and digests of the public images and of their representations."""
        return {**super().inputs, "conditions": [view.key for view in self.conditions]}

    @property
    def reads_transient(self) -> Sequence[AnyArtifact]:
        """The representations."""
        return [part for view in self.conditions for part in view.parts]

    @property
    def units(self) -> float:
        """The number of images times the number of views and of epochs."""
        return super().units * len(self.conditions)

    def training_set(self) -> TrainingSet:
        """Return the public images, once per view, with their conditions."""
        from memlib.training.loop import TrainingSet

        rows = np.concatenate([view.ids["row"].to_numpy() for view in self.conditions])
        return TrainingSet(self.shard.content.images, rows, Conditions(self.conditions, self.layers))

    def validation_set(self) -> None:
        """Return None: generators are trained for a fixed number of epochs."""

    def describe(self, images: NDArray[Any]) -> dict[str, Any]:
        """Return the description that `build_model` takes, for the stage's own conditions; see `described_for`."""
        return self.described_for(images, Conditions(self.conditions, self.layers).dim)

    def described_for(self, images: NDArray[Any], dim: int) -> dict[str, Any]:
        """Return the description that `build_model` takes: architecture, length of a condition, steps of the diffusion.

        Raises:
            UserError: when the objective does not fit the architecture.
        """
        objective: AnyObjective = self.training.objective
        if (self.model.kind, objective.kind) not in TRAINED_BY:
            wanted = " or ".join(f"{model} by {loss}" for model, loss in TRAINED_BY)
            raise UserError(f"training.objective {objective.kind} does not train a {self.model.kind}; train a {wanted}")
        described = {
            "model": self.model.model_dump(mode="json"),
            "condition": dim,
            "input_shape": [images.shape[3], *images.shape[1:3]],
        }
        if isinstance(objective, DenoisingSpec):
            described |= {"diffusion_steps": objective.steps, "teacher": True}
        return described


class Sampler(Protocol):
    """A function that draws images from conditions."""

    def __call__(
        self,
        conditions: NDArray[np.float32] | None,
        noise: NDArray[np.float32],
        *,
        steps: int,
        guidance: float = 1.0,
        batch_size: int = 64,
        device: torch.device | None = None,
    ) -> NDArray[np.uint8]:
        """Return one image for each row of the noise.

        Args:
            conditions: (num, dim), normalized by `Scale`; None: draw without a condition.
            noise: (num, 3, side, side), see `noise_bank`; a decoder only counts its rows.
            steps: steps of the sampler.
            guidance: weight of the condition; 1 takes it as it is, 0 ignores it. A decoder has none.
            batch_size: images that are drawn at once.
            device: device to compute on; the CPU by default.

        Returns:
            (num, side, side, 3) uint8.
        """
        ...


def noise_bank(count: int, side: int, *, seed: int) -> NDArray[np.float32]:
    """Return standard normal noise (count, 3, side, side), the same for all generators; a larger bank begins with it."""
    rng = np.random.default_rng(derive_seed(seed, "noise bank", side))
    return rng.standard_normal((count, 3, side, side), dtype=np.float32)


def generator_of(model: Artifact[TrainedModel], epoch: int) -> Sampler:
    """Return a function that draws images with a generator's weights at an epoch; for a denoiser, their moving average."""
    from memlib.models.generators import Denoiser

    network, _ = model.content.load(epoch=epoch)
    if isinstance(network, Denoiser):
        assert network.teacher is not None
        network = network.teacher
    return functools.partial(_sample, network.eval())


def _sample(
    network: nn.Module,
    conditions: NDArray[np.float32] | None,
    noise: NDArray[np.float32],
    *,
    steps: int,
    guidance: float = 1.0,
    batch_size: int = 64,
    device: torch.device | None = None,
) -> NDArray[np.uint8]:
    import torch

    assert conditions is None or len(conditions) == len(noise), f"{len(conditions)} conditions, {len(noise)} rows of noise"
    device = device or torch.device("cpu")
    network = network.to(device).to(memory_format=torch.channels_last)
    drawn = []
    with torch.inference_mode():
        for rows in itertools.starmap(slice, itertools.pairwise([*range(0, len(noise), batch_size), len(noise)])):
            given = None if conditions is None else torch.from_numpy(np.ascontiguousarray(conditions[rows])).to(device)
            images = _draw(network, given, torch.from_numpy(np.ascontiguousarray(noise[rows])).to(device), steps, guidance)
            drawn.append(images.add(1).mul(CLIPPED_TO).round().clamp(0, 255).byte().permute(0, 2, 3, 1).cpu().numpy())
    return np.concatenate(drawn)


def _draw(network: nn.Module, conditions: Tensor | None, noise: Tensor, steps: int, guidance: float) -> Tensor:
    """Return images (batch, 3, side, side) in about [-1, 1]."""
    import torch

    from memlib.models.denoising import ddim
    from memlib.models.generators import Denoiser

    if isinstance(network, Denoiser):
        noise = noise.contiguous(memory_format=torch.channels_last)
        return ddim(network, conditions, noise, steps=steps, guidance=guidance)
    images: Tensor = network(noise, None, conditions)
    return images
