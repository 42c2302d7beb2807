"""Embedding and training by every objective: the same numbers as on the CPU in float32, and how much faster.

The CPU is timed over a single step of each objective, a GPU over an epoch in float32 and one in bfloat16.
"""

import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.device.checks import SAME_CHANGES, SAME_OUTPUTS, Check, Clock, Found, difference, seconds_of
from benchmarks.device.placement import weights_of
from memlib.models.encoder import Encoder
from memlib.objectives import build_objective
from memlib.observe.embeddings import embed
from memlib.specs import DenoisingSpec, GeneratorTrainingSpec, PairTrainingSpec, TrainingSpec
from memlib.training.fit import build_model
from memlib.training.loop import Training, TrainingSet, Worker

CLASSES, WORDS, LENGTH, CONDITION, SYMBOLS, WINDOW = 10, 100, 12, 64, 50, 64
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Size:
    """Amounts of data and work, and the backbone."""

    backbone: str
    images: int
    side: int
    batch: int
    product: int

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.images // self.batch


SIZES = {
    "cuda": Size(backbone="resnet18", images=2_048, side=64, batch=128, product=8_192),
    "cpu": Size(backbone="small_resnet", images=16, side=16, batch=8, product=256),
}


def fastest_product(size: Size, device: torch.device) -> float:
    """Return floating-point operations a second of a large matrix product in bfloat16."""
    a = torch.randn(size.product, size.product, device=device, dtype=torch.bfloat16)
    times = [seconds_of(lambda: a @ a, device) for _ in range(5)]
    return 2 * size.product**3 / min(times)


def embedding(size: Size, device: torch.device) -> Found:
    """Compare embeddings, and the time that they take."""
    images, rows = images_of(size), np.arange(size.images)
    layers, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number, where in enumerate((CPU, device, device)):  # the first one on a device warms it up
            network = _model(_encoder(size))
            assert isinstance(network, Encoder)
            place = Path(folder) / str(number)
            place.mkdir()
            work = functools.partial(
                embed, network, images, rows, input_size=size.side, folder=place, layers=["last"], device=where
            )
            seconds.append(seconds_of(work, device))
            layers.append(np.load(place / "last.npy"))
    apart, ratio = difference(layers[0], layers[2]), seconds[0] / seconds[2]
    text = f"differ by {apart:.1e} (at most {SAME_OUTPUTS:g}); {size.images / seconds[2]:,.0f} images/s, {ratio:.1f} times the CPU"
    return Found(apart <= SAME_OUTPUTS, text, {"outputs": apart, "ratio": ratio})


def images_of(size: Size) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size=(size.images, size.side, size.side, 3), dtype=np.uint8)


def _encoder(size: Size) -> dict[str, Any]:
    return {"kind": "encoder", "backbone": size.backbone, "projector": [256, 256], "input_size": size.side, "width": 8}


def _model(spec: Mapping[str, Any], **described: Any) -> nn.Module:
    return build_model({"model": dict(spec), "classifier": None, **described}, seed=0)


@dataclass(frozen=True)
class Case:
    """A model, its objective and its examples."""

    name: str
    objective: Mapping[str, Any]
    model: Mapping[str, Any]
    described: Mapping[str, Any]
    data: Callable[[Size], TrainingSet]
    spec: type[TrainingSpec] = TrainingSpec


def _labelled(size: Size) -> TrainingSet:
    return TrainingSet(images_of(size), np.arange(size.images), np.arange(size.images) % CLASSES)


def _conditioned(size: Size) -> TrainingSet:
    vectors = np.random.default_rng(0).standard_normal((size.images, CONDITION), dtype=np.float32)
    return TrainingSet(images_of(size), np.arange(size.images), vectors)


def _captioned(size: Size) -> TrainingSet:
    words = np.random.default_rng(0).integers(2, WORDS, size=(size.images, LENGTH))
    return TrainingSet(images_of(size), np.arange(size.images), words)


def _text(size: Size) -> TrainingSet:
    symbols = np.random.default_rng(0).integers(0, SYMBOLS, size=(size.images, WINDOW)).astype(np.uint8)
    return TrainingSet(symbols, np.arange(size.images), np.zeros(size.images, dtype=np.int64))


def cases(size: Size) -> Iterator[Case]:
    """Yield a model and examples for every objective."""
    side, encoder = size.side, _encoder(size)
    yield Case("supervised", {"kind": "supervised"}, {**encoder, "projector": []}, {"classifier": CLASSES}, _labelled)
    for kind in ("vicreg", "barlow_twins", "simclr", "byol", "dino"):
        yield Case(kind, {"kind": kind}, encoder, {}, _labelled)
    generator = {"condition": CONDITION, "diffusion_steps": DenoisingSpec().steps}
    for kind, network in (("denoising", "denoiser"), ("decoding", "decoder")):
        model = {"kind": network, "input_size": side}
        yield Case(kind, {"kind": kind}, model, generator, _conditioned, GeneratorTrainingSpec)
    pairs = {"kind": "image_text", "image": encoder, "text": {"width": 64}}
    yield Case(
        "contrastive", {"kind": "contrastive"}, pairs, {"words": WORDS, "length": LENGTH}, _captioned, PairTrainingSpec
    )
    language = {"classifier": SYMBOLS, "input_shape": [WINDOW]}
    for architecture in ("lstm", "transformer"):
        model = {"kind": "language", "architecture": architecture}
        yield Case(f"language, {architecture}", {"kind": "language"}, model, language, _text)


def training_of(case: Case, size: Size, device: torch.device, precision: str) -> Training:
    """Return a training by plain gradient descent, whose steps rounding changes least."""
    spec = case.spec.model_validate({
        "objective": case.objective, "epochs": 1000, "batch_size": size.batch, "precision": precision, "augment": None,
        "optimizer": {"name": "sgd", "learning_rate": 0.01, "momentum": 0, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"},
    })  # fmt: skip
    model = _model(case.model, **case.described)
    return Training(
        model, build_objective(spec.objective), case.data(size), spec, input_size=size.side, worker=Worker(device=device)
    )


def train(case: Case, size: Size, device: torch.device, fastest: float) -> Found:
    """Compare the changes of the weights by a step in float32, as rounding grows from step to step; then time epochs in float32 and in bfloat16."""
    changes, seconds = [], {}
    for where in (CPU, device):
        training = training_of(case, size, where, "float32")
        before = weights_of(training.model)
        training.run(stop_after=1)
        changes.append(weights_of(training.model) - before)
        seconds[where.type] = seconds_of(functools.partial(training.run, stop_after=2), device)
    apart = difference(*changes)
    if device.type == "cpu":
        text = f"a step differs by {apart:.1e}; {size.batch / seconds['cpu']:,.0f} examples/s in float32"
        return Found(apart == 0, text, {"weights": apart})
    step = seconds_of(lambda: training.run(stop_after=2 + size.steps), device) / size.steps
    ratio, half = seconds["cpu"] / step, training_of(case, size, device, "bfloat16")
    half.run(stop_after=1)
    with FlopCounterMode(display=False) as counter:
        half.run(stop_after=2)
    torch.cuda.reset_peak_memory_stats(device)
    taken = seconds_of(lambda: half.run(stop_after=2 + size.steps), device) / size.steps
    peak = torch.cuda.max_memory_allocated(device) / 2**30
    finite = bool(np.isfinite(weights_of(half.model)).all())
    part = counter.get_total_flops() / taken / fastest
    text = (
        f"a step differs by {apart:.1e} (at most {SAME_CHANGES:g}); {size.batch / step:,.0f} examples/s in float32, "
        f"{ratio:.0f} times the CPU, {size.batch / taken:,.0f} in bfloat16, {part:.1%} of the product, {peak:.2f} GiB"
    )
    numbers = {"weights": apart, "ratio": ratio, "bfloat16": step / taken, "of_product": part, "peak_gib": peak}
    return Found(apart <= SAME_CHANGES and finite, text, numbers)


def checks(device: torch.device, clock: Clock) -> Iterator[Check]:
    """Yield the checks of embedding and of each objective."""
    size, fastest = SIZES[device.type], 0.0

    def product() -> Found:
        nonlocal fastest
        fastest = fastest_product(size, device)
        return Found(None, f"{fastest / 1e12:.2f} Tflop/s in bfloat16", {"flops": fastest})

    yield Check(f"matrix product, {size.product}", product)
    yield Check(f"embed, {size.backbone}", lambda: embedding(size, device))
    for case in cases(size):
        yield Check(f"train, {case.name}", lambda case=case: train(case, size, device, fastest))
