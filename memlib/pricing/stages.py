"""The work of each kind of stage, from its settings and the sizes of what it reads; see docs/scale.md for the arithmetic."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import nn

from memlib.audits.captions.retrieval import EmbedPublic, Retrieve
from memlib.audits.deja_vu.backgrounds import Background
from memlib.audits.deja_vu.embedding import Embed
from memlib.audits.deja_vu.generating import GenerateTrain
from memlib.audits.deja_vu.reconstruction.judging import Judge
from memlib.audits.deja_vu.reconstruction.sampling import Reconstruct
from memlib.audits.deja_vu.searching import MOST_RECOGNISED, Probe, Search
from memlib.audits.deja_vu.stability import Stability
from memlib.audits.deja_vu.stages import Score as ScoreDejaVu
from memlib.audits.deja_vu.stages import ScoreSetting
from memlib.audits.exposure.observing import Discover, Perplexities, Ranks
from memlib.audits.exposure.observing import Search as ExtractSecrets
from memlib.audits.exposure.sanitizing import Sanitize
from memlib.audits.last_stages import PageStage, ScoresStage
from memlib.audits.membership.documents.stages import ObserveDocuments
from memlib.audits.membership.shadows import FitEstimators, Observe, TrainOwn
from memlib.audits.membership.target import QueryTarget
from memlib.audits.unique_feature.score_nets import ScoreNets
from memlib.audits.unique_feature.train_nets import TrainNets
from memlib.data.canaries.features import TrainingRows
from memlib.data.examples import UnreadableImage
from memlib.data.splits import HELD_OUT, REFERENCE, TARGET, TRAIN, VALIDATION
from memlib.data.stages import BLOCK_BYTES, LOOKED_BLOCKS, Decode, DecodeBlock, Shard, SplitsStage, members_of
from memlib.models.encoder import Encoder
from memlib.models.image_text import ImageText
from memlib.observe.stages import CheckpointNorms, ModelOutputs
from memlib.pipeline.stage import AnyStage, Artifact
from memlib.pricing.counting import bytes_of, counting, saved_bytes
from memlib.pricing.work import Work
from memlib.specs import ClassifierSpec, DataSpec, TrainingSpec
from memlib.specs.backgrounds import CropNetwork
from memlib.stats.probe import BLOCK_ROWS, EPOCHS, ITERATIONS, WHOLE, step_cost
from memlib.training.fit import MODEL_FILE, MODELS, Train, build_model
from memlib.training.loop import Training, TrainingSet, Worker
from memlib.training.small_nets import TrainSubsets
from memlib.training.stacked import Examples, NetJob, _Stack, choose_stack_size

META = torch.device("meta")
PARAMETER_COPIES = 4  # weight, gradient and two moments of the optimizer
STEP = 1.5e-3  # plain work of a step of the training loop: order, seeds, draws, a batch from the reading thread
FUSED = 0.15  # of the operations that a recurrent layer is traced as, the share that its single operation costs
INFERRED = 0.7  # of the bytes that a forward pass alone moves: it keeps nothing
CACHED = 0.7  # of the bytes that a stack of small nets moves: its arrays fit into a CPU's caches
PRIVATE = 3.0  # times as many bytes and calls where gradients are computed by example
SAVED = 0.01  # plain work of writing a checkpoint
STORED = {"raw": 1.0, "png": 0.55, "jpeg": 0.2}  # bytes of a stored image for each byte of its pixels
INDEXED = 80  # bytes of an example in an index
CUT = 3e-5  # plain work of reading and resizing a stored image
READ, FILE, DRAWN = 1e-4, 4e-4, 8e-4  # plain work of an embedded image, of an image file, of drawing an embedded scene
AT_ONCE = 64  # pictures that a generator draws in one pass
JUDGED = 3e-3  # plain work of a picture that is judged
ROW, SCORED = 3e3, 1e4  # bytes of memory for a row of an index while roles are drawn, and of a scored unit


@singledispatch
def work_of(stage: AnyStage, artifact: Artifact[Any]) -> Work | None:
    """Return the work of one part of a step; None if it is not known what the stage does, so that only runs like it can say.

    Args:
        artifact: the part's artifact, or its stand-in.
    """
    return Work(plain=0.1, written=1e4)


@work_of.register(Discover)
@work_of.register(FitEstimators)
@work_of.register(QueryTarget)
@work_of.register(Sanitize)
@work_of.register(TrainOwn)
def _unknown(stage: AnyStage, artifact: Artifact[Any]) -> None:
    return None


# -- training -----------------------------------------------------------------------------------------


@work_of.register
def _train(stage: Train, artifact: Artifact[Any]) -> Work:
    spec, (described, count) = stage.training, of_training(stage)
    step, weights = _step_of(stage, described, count)
    steps = spec.epochs * (count // (spec.batch_size or count))
    kept = len(spec.kept_epochs) + len(spec.checkpoint_steps)
    return step * steps + Work(written=weights * kept, plain=0.1 + SAVED * kept, images=_bytes(stage.shard, count))


def of_training(stage: Train) -> tuple[dict[str, Any], int]:
    """Return the description of the model that a stage trains, and the number of its examples."""
    images = stage.shard.content.images
    if not isinstance(stage, GenerateTrain):
        return stage.describe(images), len(stage.training_set())
    dim = sum(_width(stage.conditions[0].parts[0], layer) for layer in stage.layers)
    return stage.described_for(images, dim), int(sum(_rows(part) for view in stage.conditions for part in view.parts))


def _step_of(stage: Train, described: Mapping[str, Any], count: int) -> tuple[Work, int]:
    """Return the work of a step of a training, and the bytes of the weights."""
    spec, images = stage.training, stage.shard.content.images
    if isinstance(stage, GenerateTrain):
        label: tuple[tuple[int, ...], str] = ((int(described["condition"]),), "float32")
    else:
        labels = np.asarray(stage.training_set().labels[np.zeros(1, dtype=np.int64)])
        label = labels.shape[1:], str(labels.dtype)
    shape, dtype = images.shape[1:], str(images.dtype)
    return _traced({**described, "head_alone": stage.head_alone}, spec, count, shape, dtype, *label, stage.base)


def _traced(
    described: Mapping[str, Any], spec: TrainingSpec, count: int, shape: tuple[int, ...], dtype: str, label: tuple[int, ...],
    labels: str, base: Any = None,
) -> tuple[Work, int]:  # fmt: skip
    """Return the work of a step of training a described model with `count` examples, and the bytes of the weights."""
    same = spec.model_copy(update={"seed": 0, "epochs": 1, "checkpoint_epochs": (), "checkpoint_steps": ()})
    return _step(json.dumps(described), same, spec.batch_size or count, shape, dtype, label, labels, base)


def _bytes(shard: Artifact[Shard], count: float) -> float:
    """Return the stored bytes of some images of a shard, or of points or windows of text."""
    images, storage = shard.content.images, shard.store.artifacts.manifest(shard.ref).spec.get("storage", "raw")
    each = math.prod(images.shape[1:]) * np.dtype(images.dtype).itemsize
    return float(count * each * STORED[storage])


@functools.lru_cache(maxsize=64)
def _step(
    described: str, spec: TrainingSpec, batch: int, shape: tuple[int, ...], dtype: str, label: tuple[int, ...], labels: str,
    base: Any,
) -> tuple[Work, int]:  # fmt: skip
    """Return the work of one step of the training loop, traced on the meta device, and the bytes of the weights."""
    from memlib.objectives import build_objective

    content = json.loads(described)
    half, private = spec.precision != "float32", PRIVATE if spec.privacy is not None else 1.0
    spec = spec.model_copy(update={"privacy": None})
    with META:
        model = build_model(content, seed=0, base=base)
    if content["head_alone"]:
        model.freeze_backbone()  # type: ignore[operator]
    images = np.zeros((1, *shape), dtype=dtype)
    data = TrainingSet(images, np.zeros(batch, dtype=np.int64), np.zeros((batch, *label), dtype=labels))
    side = _side(content, shape[0])
    training = Training(
        model, build_objective(spec.objective), data, spec.model_copy(update={"precision": "float32", "patience": None}),
        input_size=side, worker=Worker(device=META),
    )  # fmt: skip
    shown = torch.from_numpy(images).expand(batch, *shape)
    given = torch.from_numpy(np.zeros((batch, *label), dtype=labels)).to(META)
    training.optimizer.step = lambda *_: None  # type: ignore[method-assign, assignment]  # fused steps need a device
    with counting() as counted:
        kept = saved_bytes(lambda: training.take_step(shown, given))
    weights = bytes_of(training.model.state_dict().values())
    trained = bytes_of(training.model.parameters())
    memory = kept / spec.accumulate / (2 if half else 1) + PARAMETER_COPIES * trained + 3 * batch * math.prod(shape) * 4
    work, tensors = counted.work, sum(1 for _ in training.model.parameters())
    calls, passes = (2, 7) if spec.optimizer.name == "adamw" else (12 * tensors, 12)  # of the optimizer's step
    fused = _fused(model)
    moved = fused * work.moved * (0.6 if half else 1.0) + passes * trained
    changed = {
        "moved": private * moved,
        "calls": private * fused * work.calls + calls,
        "plain": STEP,
        "memory": memory,
        "half": half,
    }
    return Work(**work.as_json() | changed), weights


@work_of.register
def _small(stage: TrainSubsets, artifact: Artifact[Any]) -> Work:
    data = stage.subsets.data
    return _stacked(
        stage.model,
        stage.training,
        data.images,
        len(stage.seeds),
        stage.subsets.num_classes,
        stage.subsets.epoch_size or len(stage.subsets.seen_by(0).rows),
    )


@work_of.register
def _nets(stage: TrainNets, artifact: Artifact[Any]) -> Work:
    count = stage.data.members(TRAIN).num_rows
    work = _stacked(stage.model, stage.training, stage.data.images, len(stage.seeds), stage.data.num_classes, count)
    return work


def _stacked(spec: ClassifierSpec, training: TrainingSpec, images: Any, nets: int, classes: int, size: int) -> Work:
    """Return the work of training small nets together: the steps of their stacks, counted in one step on the CPU."""
    step, stack, weights = _stacked_step(
        spec,
        training.model_copy(update={"seed": 0, "epochs": 1, "patience": None, "checkpoint_epochs": ()}),
        tuple(images.shape[1:]),
        str(images.dtype),
        nets,
        classes,
        size,
    )
    steps = training.epochs * (size // (training.batch_size or size))
    return step * (steps * math.ceil(nets / stack)) + Work(written=weights * nets * len(training.kept_epochs), plain=0.1)


@functools.lru_cache(maxsize=64)
def _stacked_step(
    spec: ClassifierSpec, training: TrainingSpec, shape: tuple[int, ...], dtype: str, nets: int, classes: int, size: int
) -> tuple[Work, int, int]:
    images = np.zeros((1, *shape), dtype=dtype)
    examples = Examples(images, np.zeros(1, dtype=np.int64))
    rows = TrainingRows(np.zeros(size, dtype=np.int64), np.zeros(size, dtype=bool))
    jobs = [NetJob(seed, rows) for seed in range(nets)]
    cpu = torch.device("cpu")
    stack = choose_stack_size(spec, training, examples, jobs, classes, cpu, epoch_size=size)
    trained = _Stack(spec, training, examples, jobs[:stack], classes, cpu, epoch_size=size)
    places = next(iter(trained._batches(0)))
    with counting() as counted:
        losses, _ = trained._losses(places, 0)
        trained._step(losses.sum(), 0)
    weights = bytes_of(trained.net.state.values())
    memory = weights * PARAMETER_COPIES + places.numel() * math.prod(shape) * 8
    return (
        Work(
            **{**counted.work.as_json(), "moved": CACHED * counted.work.moved, "plain": 5e-4 + 2e-5 * stack, "memory": memory}
        ),
        stack,
        weights // stack,
    )


# -- observation --------------------------------------------------------------------------------------


def _described(model: Artifact[Any]) -> dict[str, Any]:
    """Return the description of a trained model, or of a chunk of nets."""
    facts = model.facts
    if "described" in facts:
        return dict(facts["described"])
    return dict(json.loads(model.path(MODEL_FILE).read_text(encoding="utf-8")))


@functools.lru_cache(maxsize=64)
def _forward(
    described: str, batch: int, shape: tuple[int, ...], is_symbols: bool, base: Any
) -> tuple[Work, tuple[tuple[str, int], ...]]:
    """Return the work of a forward pass through a model, traced on the meta device, and its outputs with their sizes."""
    with META:
        model = build_model(json.loads(described), seed=0, base=base).eval()
        inputs = torch.zeros(batch, *shape, dtype=torch.int64 if is_symbols else torch.float32)
    with torch.inference_mode(), counting() as counted:
        if isinstance(model, Encoder):
            outputs = model.all_layers(inputs)
        else:
            outputs = [("scores", model.encode_images(inputs) if isinstance(model, ImageText) else model(inputs))]
    weights = bytes_of(model.state_dict().values())
    largest = counted.work.moved / max(counted.work.calls, 1) * 4
    sizes = tuple((name, int(values[0].numel())) for name, values in outputs)
    moved, calls = (_fused(model) * value for value in (INFERRED * counted.work.moved, counted.work.calls))
    return Work(**{**counted.work.as_json(), "moved": moved, "calls": calls, "memory": weights + largest}), sizes


def _fused(model: nn.Module) -> float:
    """Return the share of the traced bytes and calls that a model costs: a recurrent layer is one operation."""
    return FUSED if any(isinstance(module, nn.RNNBase) for module in model.modules()) else 1.0


def _passes(
    model: Artifact[Any], count: float, shape: tuple[int, ...], *, batch: int = 256, is_symbols: bool = False
) -> tuple[Work, dict[str, int]]:
    """Return the work of passing `count` examples through a model, or through each of a chunk of nets, and its outputs."""
    described = _described(model)
    nets = model.facts.get("nets") or 1
    work, sizes = _forward(json.dumps(described), batch, shape, is_symbols, None)
    return work * (count * nets / batch), dict(sizes)


def _input_shape(described: Mapping[str, Any], stored: tuple[int, ...]) -> tuple[int, ...]:
    if len(stored) != 3:
        return stored
    side = _side(described, stored[0])
    return (stored[2], side, side)


def _side(described: Mapping[str, Any], stored: int) -> int:
    """Return the side of a model's input images, in pixels; that of the stored ones for models of any size."""
    return int(getattr(MODELS.validate_python(described["model"]), "input_size", stored))


@work_of.register
def _embed(stage: Embed, artifact: Artifact[Any]) -> Work | None:
    if not isinstance(stage.model, Artifact):
        return None
    described, stored = _described(stage.model), stage.shard.content.images.shape[1:]
    work, _ = _passes(stage.model, stage.units, _input_shape(described, stored))
    width = sum(widths_of(stage).values())
    cut = Work(plain=(1.0 if stage.view.crop is None else 2.0) * CUT * stage.units)
    half = stage.precision != "float32"
    rows = stage.units * width * (2 if stage.dtype == "float16" else 4) + 40 * stage.units
    shown = _bytes(stage.shard, stage.units)
    return Work(**{**(work + cut).as_json(), "half": half}) + Work(written=rows, plain=0.05, mapped=rows, images=shown)


def widths_of(stage: Embed) -> dict[str, int]:
    """Return the dimensions of the layers that a stage embeds; empty for an external encoder, where they are not known."""
    if not isinstance(stage.model, Artifact):
        return {}
    shape = _input_shape(_described(stage.model), stage.shard.content.images.shape[1:])
    _, sizes = _passes(stage.model, 1, shape)
    deepest = list(sizes)[-1]
    return {layer: sizes.get(layer, sizes[deepest]) for layer in stage.layers}


@work_of.register
def _stability(stage: Stability, artifact: Artifact[Any]) -> Work | None:
    if not isinstance(stage.model, Artifact):
        return None
    work, _ = _passes(stage.model, stage.units, _input_shape(_described(stage.model), stage.shard.content.images.shape[1:]))
    return work + Work(plain=0.05 + 3 * CUT * stage.units, images=_bytes(stage.shard, stage.units / stage.views.views))


@work_of.register
def _background(stage: Background, artifact: Artifact[Any]) -> Work | None:
    network = stage.classifier
    if not isinstance(network, CropNetwork):
        return None
    shape = (3, network.model.input_size, network.model.input_size)
    described = {
        "model": network.model.model_dump(mode="json"), "classifier": stage.spec["classes"], "input_shape": list(shape)
    }  # fmt: skip
    step, _ = _forward(json.dumps(described), network.batch_size, shape, False, None)
    fitted = 3 * network.epochs * stage.units * (1 - 1 / network.folds)
    return step * ((fitted + stage.units / network.folds) / network.batch_size) + Work(
        plain=0.2 + (STEP * fitted / 3) / network.batch_size + CUT * stage.units, written=40 * stage.units / network.folds
    )


@work_of.register
def _reconstruct(stage: Reconstruct, artifact: Artifact[Any]) -> Work:
    settings = stage.settings
    training, described, pixels = settings.generator.training, _described(stage.generator), (settings.side, settings.side, 3)
    batch, condition = training.batch_size or 1, (int(described["condition"]),)
    step, weights = _traced({**described, "head_alone": False}, training, batch, pixels, "uint8", condition, "float32")
    pictures = stage.units + settings.samples  # those without a condition are drawn once
    passes = settings.steps * (1 if settings.guidance == 1 else 2)
    largest = 4 * step.moved / step.calls * AT_ONCE / batch
    drawn = step * (pictures * passes / batch / 3) + Work(written=pictures * math.prod(pixels), plain=0.05)
    return replace(drawn, memory=weights + largest + pictures * math.prod(pixels))


@work_of.register
def _judge(stage: Judge, artifact: Artifact[Any]) -> Work:
    images = sum(_rows(part) for parts in stage.drawn for part in parts)
    return Work(plain=0.5 + JUDGED * images, written=1e2 * images)


@work_of.register
def _search(stage: Search, artifact: Artifact[Any]) -> Work:
    queries, dim = _rows(stage.queries), _width(stage.queries, stage.layer)
    public = sum(_rows(part) for part in stage.public.parts)
    written = queries * (stage.k * 12 + 40)
    return Work(
        searched=queries * public * dim, written=written, plain=0.02, mapped=(queries + public) * dim * 4,
        memory=min(public, 2**29 / 4 / dim) * dim * 4 * 2,
    )  # fmt: skip


def _rows(part: Artifact[Any]) -> float:
    return part.store.artifacts.manifest(part.ref).metrics.units


def _width(part: Artifact[Any], layer: str) -> int:
    """Return the dimension of a layer's embeddings: of a stand-in as it is expected, else by the size of its file."""
    if "widths" in part.store.artifacts.manifest(part.ref).facts:
        return int(part.facts["widths"][layer])
    dtype = part.store.artifacts.manifest(part.ref).spec.get("dtype", "float32")
    return int(part.files[f"{layer}.npy"].size / np.dtype(dtype).itemsize / max(_rows(part), 1.0))  # but for its header


@work_of.register
def _probe(stage: Probe, artifact: Artifact[Any]) -> Work:
    rows, public = (sum(_rows(part) for part in view.parts) for view in (stage.images, stage.public))
    classes = len(stage.splits.content["label"].unique())
    work = Work(plain=0.02)
    for layer in stage.layers:
        dim = _width(stage.images.parts[0], layer)
        is_whole = step_cost(int(rows / 2), dim, classes) <= WHOLE
        passes = 1.25 * ITERATIONS if is_whole else EPOCHS
        work += Work(
            products=3 * passes * rows / 2 * dim * classes,
            searched=min(rows, MOST_RECOGNISED) * public * dim if layer in stage.searched else 0.0,
            memory=(rows if is_whole else 2 * BLOCK_ROWS) * dim * 4,
            mapped=(rows + public) * dim * 4,
        )
    return work


@work_of.register
def _outputs(stage: ModelOutputs, artifact: Artifact[Any]) -> Work | None:
    if not isinstance(stage.model, Artifact):
        return None
    nets = stage.model.facts.get("nets") or 1
    work, _ = _passes(stage.model, stage.units, _input_shape(_described(stage.model), stage.data.images.shape[1:]))
    return work + Work(plain=0.02, written=4 * stage.units * stage.num_classes * nets)


@work_of.register
def _norms(stage: CheckpointNorms, artifact: Artifact[Any]) -> Work | None:
    if not isinstance(stage.model, Artifact):
        return None
    work, _ = _passes(stage.model, stage.units, _input_shape(_described(stage.model), stage.data.images.shape[1:]))
    return work * 3 + Work(plain=0.02, written=8 * stage.units)


@work_of.register
def _observe(stage: Observe, artifact: Artifact[Any]) -> Work | None:
    if not isinstance(stage.models, Artifact):
        return None
    pool, held_out = (stage.data.members(role).num_rows for role in (TRAIN, HELD_OUT))
    queries = (5 if stage.queries.shift else 1) * (2 if getattr(stage.queries, "flip", False) else 1)
    nets = stage.models.facts.get("nets") or 1
    count = pool * (queries + len(stage.earlier)) + held_out
    work, _ = _passes(stage.models, count, _input_shape(_described(stage.models), stage.data.images.shape[1:]))
    return work + Work(
        plain=0.02 + 2e-8 * count * nets, written=nets * (4 * pool * (queries + len(stage.earlier)) + pool + held_out)
    )


@work_of.register
def _score_nets(stage: ScoreNets, artifact: Artifact[Any]) -> Work | None:
    if not isinstance(stage.models, Artifact):
        return None
    features = 1 + len(stage.nulls) + len(stage.config.removed_pixels)
    shown = len(stage.labels) * (stage.config.max_examples or 1000) + (stage.probe.count or 1000)
    count = shown * (1 + features + stage.config.random_draws)
    work, _ = _passes(stage.models, count, _input_shape(_described(stage.models), stage.data.images.shape[1:]))
    return work + Work(plain=0.1 + 0.02 * len(stage.nets), written=2000 * len(stage.nets))


@work_of.register
def _embed_public(stage: EmbedPublic, artifact: Artifact[Any]) -> Work | None:
    if not isinstance(stage.model, Artifact):
        return None
    shape = _input_shape(_described(stage.model), stage.shard.content.images.shape[1:])
    work, sizes = _passes(stage.model, stage.units, shape)
    return work + Work(plain=0.05 + CUT * stage.units, written=4 * stage.units * sizes["scores"])


@work_of.register
def _retrieve(stage: Retrieve, artifact: Artifact[Any]) -> Work | None:
    if not isinstance(stage.model, Artifact):
        return None
    shape = tuple(_described(stage.model)["input_shape"])
    _, sizes = _passes(stage.model, 1, _input_shape(_described(stage.model), (*shape[1:], shape[0])))
    width, public = sizes["scores"], sum(_rows(part) for part in stage.public)
    queries = stage.splits.content.num_rows / 4
    return Work(searched=queries * public * width, written=queries * stage.k * 12, plain=0.05)


@work_of.register
def _perplexities(stage: Perplexities, artifact: Artifact[Any]) -> Work | None:
    if not isinstance(stage.at.model, Artifact):
        return None
    corpus = stage.at.data.corpus.content
    told = corpus.members(VALIDATION).num_rows * corpus.windows.shape[1]
    return _evaluations(stage, stage.units * len(stage.at.data.space.slots) + told / 4) + Work(
        plain=0.05, written=8 * stage.units
    )


@work_of.register
def _ranks(stage: Ranks, artifact: Artifact[Any]) -> Work | None:
    if stage.pruned or not isinstance(stage.at.model, Artifact):  # how much is pruned depends on the model
        return None
    space = stage.at.data.space
    symbols = len(space.slots[-1])
    leaves = space.size / max(1, len(list(space.shards(stage.shards))))
    return _evaluations(stage, 1.1 * leaves / symbols) + Work(plain=0.02 + 8e-7 * leaves)


@work_of.register
def _extract(stage: ExtractSecrets, artifact: Artifact[Any]) -> Work | None:
    if not isinstance(stage.at.model, Artifact):
        return None
    return _evaluations(stage, 1000) + Work(plain=0.05, written=1.4e5)


def _evaluations(stage: Any, count: float) -> Work:
    """Return the work of evaluating a language model on `count` prefixes, one symbol further each, in float64."""
    described = _described(stage.at.model)
    window = int(described["input_shape"][0])
    work, _ = _forward(json.dumps(described), 64, (window,), True, None)
    wide = 2.0 if stage.at.precision == "float64" else 1.0
    return Work(products=work.products * count / 64 / window * wide, moved=work.moved * count / 64 / window * wide)


# -- data, scores, pages ------------------------------------------------------------------------------


@work_of.register(Decode)
@work_of.register(DecodeBlock)
def _decode(stage: Decode | DecodeBlock, artifact: Artifact[Any]) -> Work:
    if isinstance(stage, Decode) and stage.blocks:
        count = sum(_rows(block) for block in stage.blocks)
        return Work(plain=2e-6 * count, written=INDEXED * count)
    data = stage.data
    pixels, dim, whole = _file(data.model_dump_json())
    count = stage.last - stage.first if isinstance(stage, DecodeBlock) else whole
    if dim is not None:
        return Work(plain=2e-5 * count, written=count * (4 * dim + INDEXED))
    stored = data.image_size**2 * data.channels
    encoded = 0.0 if data.storage == "raw" else 2.0 * data.image_size**2
    drawn = DRAWN if "scenes" in data.source.kind else 0.0
    return Work(
        plain=(READ + drawn if data.source.is_embedded else FILE) * count, pixels=(pixels + encoded) * count,
        written=count * (stored * STORED[data.storage] + INDEXED), memory=8e6 + stored * 64,
    )  # fmt: skip


@functools.lru_cache(maxsize=8)
def _file(data: str) -> tuple[float, int | None, int]:
    """Return the mean number of pixels of an image file of a source, the dimension of points, and the number of examples."""
    spec = DataSpec.model_validate_json(data)
    source = Decode(spec)._source
    dim, count = getattr(source, "point_dim", None), len(source)
    if dim is not None or spec.source.is_embedded:
        return 0.0, dim, count
    seen: list[float] = []
    for place in np.linspace(0, count - 1, 10).astype(int).tolist():
        with contextlib.suppress(UnreadableImage):
            seen.append(float(math.prod(source[place].image.shape[:2])))
    return float(np.mean(seen or [0.0])), None, count


@work_of.register
def _documents(stage: ObserveDocuments, artifact: Artifact[Any]) -> Work | None:
    work: Work
    if not isinstance(stage.model, Artifact) or MODEL_FILE not in stage.model.files:
        return None
    windows: tuple[int, int] = stage.corpus.content.windows.shape
    work, _ = _forward(json.dumps(_described(stage.model)), 64, (windows[1],), True, None)
    return work * (windows[0] / 64) + Work(plain=0.05 + 1e-6 * windows[0] * windows[1], written=5.0 * windows[0] * windows[1])


@work_of.register
def _splits(stage: SplitsStage, artifact: Artifact[Any]) -> Work:
    if not hasattr(stage, "shard"):
        return Work(plain=0.2, written=2e4)
    index = stage.shard.content.index.num_rows
    seen = min(_bytes(stage.shard, index), LOOKED_BLOCKS * BLOCK_BYTES)  # for near copies
    return Work(plain=0.2 + 2e-5 * index, written=2e4 + 6 * index, memory=ROW * index, images=seen)


@work_of.register
def _scores(stage: ScoresStage, artifact: Artifact[Any]) -> Work:
    return Work(plain=SCORES.get(stage.declared.name, 1.0), written=1e5)


SCORES = {
    "score_captions": 2.6,
    "score_exposure": 2.6,
    "score_forgetting": 4.3,
    "score_membership": 2.4,
    "score": 1.0,
    "self_influence": 0.15,
}


@work_of.register(ScoreDejaVu)
@work_of.register(ScoreSetting)
def _score_deja_vu(stage: ScoreDejaVu | ScoreSetting, artifact: Artifact[Any]) -> Work:
    if isinstance(stage, ScoreDejaVu) and stage.parts:
        return Work(plain=0.5 + 0.05 * len(stage.parts), written=5e4)
    rows = members_of(stage.splits, TARGET, REFERENCE).num_rows * len(stage.searches)
    return Work(plain=0.5 + 3e-4 * rows * len(stage.config.k), written=5e4 + 40 * rows, memory=SCORED * rows)


@work_of.register
def _page(stage: PageStage, artifact: Artifact[Any]) -> Work:
    return Work(plain=0.9, written=3e5)
