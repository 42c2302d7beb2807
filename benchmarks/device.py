"""Check a machine's accelerator against its CPU, once: search, embedding, and a few training steps of every objective.

    make gpu-check (python benchmarks/device.py)

Prints a table: whether the device finds the CPU's neighbours, embeds and trains as the CPU does in float32, and how fast and
in how much memory it does so in bfloat16, as a part of the fastest matrix product. With --device cpu the CPU is compared with
itself, so that the same code is tested without an accelerator. Exits with 1 if a row differs.
"""

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import memlib
from memlib.models.encoder import Encoder
from memlib.objectives import build_objective
from memlib.observe.embeddings import embed
from memlib.running.precision import be_exact
from memlib.specs import DenoisingSpec, GeneratorTrainingSpec, PairTrainingSpec, TrainingSpec
from memlib.stats.neighbors import nearest_neighbors
from memlib.training.fit import build_model
from memlib.training.loop import Training, TrainingSet, Worker

CLASSES, WORDS, LENGTH, CONDITION, SYMBOLS, WINDOW = 10, 100, 12, 64, 50, 64
SAME_EMBEDDINGS, SAME_CHANGES = 1e-3, 2e-2  # relative to the largest number: rounding, and rounding through two steps


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    part: str
    same: bool | None
    difference: str
    speed: str = ""
    memory: str = ""
    of_peak: str = ""


@dataclass(frozen=True)
class Size:
    """Amounts of data and work, and the backbone."""

    backbone: str
    vectors: int
    queries: int
    dim: int
    images: int
    side: int
    batch: int
    steps: int
    product: int


FULL = Size(
    backbone="resnet18", vectors=200_000, queries=2_000, dim=512, images=4_096, side=64, batch=256, steps=20, product=8_192
)
SMALL = Size(backbone="small_resnet", vectors=2_000, queries=50, dim=16, images=32, side=16, batch=8, steps=1, product=128)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, with all that it put on the device."""
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fastest_product(size: Size, device: torch.device) -> float:
    """Return floating-point operations a second of a large matrix product in bfloat16."""
    a = torch.randn(size.product, size.product, device=device, dtype=torch.bfloat16)
    times = [seconds_of(lambda: a @ a, device) for _ in range(5)]
    return 2 * size.product**3 / min(times)


def search(size: Size, device: torch.device) -> Row:
    """Compare neighbours, which must be equal, as the distances of all candidates are recomputed in one way."""
    rng = np.random.default_rng(0)
    public, queries = (rng.standard_normal((count, size.dim), dtype=np.float32) for count in (size.vectors, size.queries))
    shard = [(np.arange(size.vectors), public)]
    found = {}
    times = {}
    for name, where in (("cpu", torch.device("cpu")), ("device", device)):

        def work(name: str = name, where: torch.device = where) -> None:
            found[name] = nearest_neighbors(queries, shard, 20, device=where)[0]

        work() if name == "device" else None  # warm-up
        times[name] = seconds_of(work, device)
    share = float((found["cpu"] == found["device"]).mean())
    speed = f"{size.queries / times['device']:,.0f} queries/s, {times['cpu'] / times['device']:.1f} times the CPU's"
    return Row(f"search, {size.vectors:,} x {size.dim}", share == 1.0, f"{1 - share:.2%} of neighbours differ", speed)


def images_of(size: Size) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size=(size.images, size.side, size.side, 3), dtype=np.uint8)


def embedding(size: Size, device: torch.device) -> Row:
    images, rows = images_of(size), np.arange(size.images)
    layers: list[np.ndarray] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, where in enumerate((torch.device("cpu"), device, device)):
            network = _model(_encoder(size))
            assert isinstance(network, Encoder)
            place = Path(folder) / str(number)
            place.mkdir()
            taken = seconds_of(
                lambda n=network, p=place, w=where: embed(
                    n, images, rows, input_size=size.side, folder=p, layers=["last"], device=w
                ),
                device,
            )
            layers.append(np.load(place / "last.npy"))
    return Row(
        f"embed, {size.backbone}", *_compared(layers[0], layers[1], SAME_EMBEDDINGS), f"{size.images / taken:,.0f} images/s"
    )


def _compared(first: np.ndarray, second: np.ndarray, most: float) -> tuple[bool, str]:
    difference = float(np.abs(first - second).max() / np.abs(first).max())
    return difference <= most, f"{difference:.1e}"


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


def _weights(model: nn.Module) -> np.ndarray:
    return torch.cat([weight.detach().cpu().reshape(-1) for weight in model.parameters()]).numpy()


def train(case: Case, size: Size, device: torch.device, fastest: float) -> Row:
    """Compare what two steps in float32 change in the weights; then time steps in bfloat16."""
    changes = []
    for where in (torch.device("cpu"), device):
        training = training_of(case, size, where, "float32")
        before = _weights(training.model)
        training.run(stop_after=2)
        changes.append(_weights(training.model) - before)
    same, difference = _compared(changes[0], changes[1], SAME_CHANGES)
    training = training_of(case, size, device, "bfloat16" if device.type == "cuda" else "float32")
    training.run(stop_after=1)
    with FlopCounterMode(display=False) as counter:
        training.run(stop_after=2)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    taken = seconds_of(lambda: training.run(stop_after=2 + size.steps), device) / size.steps
    peak = f"{torch.cuda.max_memory_allocated(device) / 2**30:.2f} GiB" if device.type == "cuda" else ""
    same = same and bool(np.isfinite(_weights(training.model)).all())  # in bfloat16, too
    part = counter.get_total_flops() / taken / fastest
    return Row(f"train, {case.name}", same, difference, f"{size.batch / taken:,.0f} examples/s", peak, f"{part:.1%}")


def rows_of(size: Size, device: torch.device) -> Iterator[Row]:
    """Yield the rows of the table, one check after the other."""
    fastest = fastest_product(size, device)
    yield Row(f"matrix product, {size.product}", None, "", f"{fastest / 1e12:.1f} Tflop/s in bfloat16", "", "100.0%")
    yield search(size, device)
    yield embedding(size, device)
    for case in cases(size):
        yield train(case, size, device, fastest)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="sizes for a test of the check itself")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no GPU is visible to PyTorch; --device cpu runs the same checks on this machine's processor", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    gpus = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0
    print(f"memlib {memlib.__version__}, PyTorch {torch.__version__}, FAISS {faiss.__version__} ({gpus} GPUs), {name}\n")
    print("| part | as on the CPU | largest difference | speed | peak memory | part of the fastest product |")
    print("|---|---|---|---|---|---|")
    be_exact()  # as in memlib's workers: no TF32
    passed = True
    for row in rows_of(SMALL if options.small else FULL, device):
        word = "" if row.same is None else "yes" if row.same else "NO"
        print(f"| {row.part} | {word} | {row.difference} | {row.speed} | {row.memory} | {row.of_peak} |", flush=True)
        passed &= row.same is not False
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
