"""Stand-ins for artifacts that are not computed yet: what later steps of a flow read of them, in the expected sizes.

A stand-in lies in a scratch store and is used for prices alone. Examples of a large source are copies of a few of them, so
that counts, shapes and the shares of images with a crop are about right, and ids are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import singledispatch
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from memlib.audits.captions.retrieval import VECTORS, EmbedPublic
from memlib.audits.deja_vu.beyond.stages import Attributes
from memlib.audits.deja_vu.embedding import IDS, Embed
from memlib.audits.deja_vu.reconstruction.sampling import Reconstruct
from memlib.audits.exposure.observing import COSTS, COUNTS, Perplexities, Ranks
from memlib.audits.exposure.sanitizing import Halve
from memlib.audits.exposure.stages import MakeCorpus
from memlib.audits.forgetting.stages import DrawMixes, DrawSets
from memlib.audits.membership.documents.stages import MakeDocuments, ReadDocumentMembers
from memlib.audits.membership.supplied import ReadMembers
from memlib.audits.membership.target import ReadColumns
from memlib.audits.unique_feature.stages import ChooseCanaries
from memlib.audits.unique_feature.train_nets import TrainNets
from memlib.data import stages
from memlib.data.examples import Example, Source
from memlib.data.images.caption_stages import Captions
from memlib.data.images.shards import INDEX_FILE, write_shard
from memlib.data.splits import SPLITS_FILE
from memlib.data.stages import Decode, DecodeBlock, HoldOut, Split
from memlib.errors import MissingArtifact, UserError
from memlib.pipeline.stage import AnyStage
from memlib.pricing.stages import of_training, widths_of
from memlib.specs import ExpectedSpec, Spec
from memlib.store import Attempt
from memlib.tables import INDEX, SPLITS, TRAINING, read_table, write_table
from memlib.training.files import step_file, weights_file
from memlib.training.fit import HISTORY, MODEL_FILE, Train
from memlib.training.pretrained import TakeOver
from memlib.training.small_nets import WEIGHTS, TrainSubsets

GOLDEN = 0.6180339887  # multiples of it, modulo 1, are evenly spread
WHOLE, SAMPLE = 4000, 50  # examples up to which a source of images is read as it is, and else
CPU = torch.device("cpu")


@singledispatch
def expect(stage: AnyStage, attempt: Attempt) -> None:
    """Write what later steps of a flow read of a stage's artifact, as it is expected to be.

    Raises:
        MissingArtifact: when that is not known before the stage has run.
    """
    raise MissingArtifact(stage.identity.ref)


@expect.register(Split)
@expect.register(HoldOut)
def _split(stage: Split | HoldOut, attempt: Attempt) -> None:
    """Draw the roles; no near copies are looked for, as a stand-in has few images."""
    write_table(stage.table(), SPLITS, attempt.path(SPLITS_FILE))


@expect.register(DrawSets)
@expect.register(DrawMixes)
@expect.register(Captions)
@expect.register(ChooseCanaries)
@expect.register(ReadColumns)
@expect.register(ReadMembers)
@expect.register(ReadDocumentMembers)
@expect.register(MakeCorpus)
@expect.register(MakeDocuments)
@expect.register(Halve)
@expect.register(TakeOver)
@expect.register(Attributes)
def _as_it_is(stage: AnyStage, attempt: Attempt) -> None:
    """Compute a stage that only draws or reads, from what it is expected to read."""
    stage.write(attempt, CPU)


@expect.register
def _blocks(stage: DecodeBlock, attempt: Attempt) -> None:
    """Write nothing that is read: `Decode` stands for the images of all blocks."""
    attempt.path(INDEX_FILE).write_bytes(b"")


@expect.register
def _decoded(stage: Decode, attempt: Attempt) -> None:
    """Write the index of a source, and one image for its shape; of points and of a few images, all of them."""
    source, data = stage._source, stage.data
    count, is_points = len(source), getattr(source, "point_dim", None) is not None
    if is_points or count <= WHOLE:
        write_shard(source, data, attempt.folder)
        return
    some = _Sample(source)
    write_shard(some, data.model_copy(update={"unreadable": "leave_out"}), attempt.folder, rows=range(len(some)))
    index = read_table(attempt.path(INDEX_FILE))
    write_table(
        _repeated(index, count, source.class_names, list(getattr(source, "captions", ()))), INDEX, attempt.path(INDEX_FILE)
    )


class _Declared:
    """A source of the size that a recipe expects; its images are grey, and their boxes cover the left half."""

    def __init__(self, expected: ExpectedSpec) -> None:
        self._expected, self.class_names = expected, [f"class {number}" for number in range(expected.classes)]

    def __len__(self) -> int:
        return self._expected.images

    def __getitem__(self, index: int) -> Example:
        wide, high = self._expected.width, self._expected.height
        boxed = (index * GOLDEN) % 1 < self._expected.boxed  # evenly spread
        boxes = np.array([[0, 0, wide // 2, high]] if boxed else np.zeros((0, 4)), dtype=np.int64)
        image = np.full((high, wide, 3), 128, dtype=np.uint8)
        return Example(f"{index:09d}", image, index % self._expected.classes, boxes)

    def content_digest(self) -> str:
        return "expected"


@contextmanager
def declared(recipe: Spec) -> Iterator[bool]:
    """Let a source that cannot be opened have the size that the recipe expects; yield whether it has.

    Args:
        recipe: a recipe; without `data.expected` nothing changes.
    """
    data = getattr(recipe, "data", None)
    expected = getattr(data, "expected", None)
    opening = vars(stages)
    original = opening["open_source"]
    if data is None or expected is None:
        yield False
        return
    try:
        original(data.source, data.intensities, data.labels).content_digest()
    except (UserError, OSError):
        opening["open_source"] = lambda *_, **__: _Declared(expected)
        try:
            yield True
        finally:
            opening["open_source"] = original
        return
    yield False


class _Sample:
    """Evenly spaced examples of a source."""

    def __init__(self, source: Source) -> None:
        self._source, self.class_names = source, source.class_names
        self._places = np.linspace(0, len(source) - 1, min(SAMPLE, len(source))).astype(int).tolist()
        if (captions := getattr(source, "captions", None)) is not None:
            self.captions = captions

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Any:
        return self._source[self._places[index]]

    def content_digest(self) -> str:
        return self._source.content_digest()


def _repeated(index: pa.Table, count: int, class_names: list[str], ids: list[str]) -> pa.Table:
    """Return the index of a source of `count` examples like those of a sample, evenly spread over the classes.

    Args:
        ids: example ids, if the source names captions by them; else any others.
    """
    rows = np.arange(count)
    labels = rows % len(class_names)
    table = index.take(pa.array((rows + rows // len(class_names)) % index.num_rows))  # all of the sample within each class
    columns = {
        "example_id": pa.array(ids if len(ids) == count else [f"{row:09d}" for row in rows.tolist()]),
        "row": pa.array(rows),
        "label": pa.array(labels),
        "class_name": pa.array(class_names).take(pa.array(labels)),
        "digest": pa.array([str(row) for row in rows.tolist()]),
    }
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), values.cast(table.schema.field(name).type))
    return table


@expect.register
def _trained(stage: Train, attempt: Attempt) -> None:
    """Write the model's description, and name its checkpoints."""
    training, (described, examples) = stage.training, of_training(stage)
    attempt.path(MODEL_FILE).write_text(json.dumps(described))
    for name in (*map(weights_file, training.kept_epochs), *map(step_file, training.checkpoint_steps)):
        attempt.path(name).write_bytes(b"expected")
    rows = [
        {"epoch": epoch, "step": epoch, "learning_rate": training.optimizer.learning_rate, "term": "loss", "value": 1 / epoch}
        for epoch in range(1, training.epochs + 1)
    ]
    write_table(pa.Table.from_pylist(rows, schema=TRAINING.arrow), TRAINING, attempt.path(HISTORY))
    attempt.facts |= {"steps_per_epoch": max(1, examples // (training.batch_size or examples)), "best_epoch": training.epochs}


@expect.register
def _small(stage: TrainSubsets, attempt: Attempt) -> None:
    """Describe the nets."""
    images = stage.subsets.data.images
    _describe_nets(
        attempt,
        stage.model.model_dump(mode="json"),
        stage.subsets.num_classes,
        images.shape,
        stage.seeds,
        stage.training.epochs,
    )


@expect.register
def _nets(stage: TrainNets, attempt: Attempt) -> None:
    """Describe the nets."""
    _describe_nets(
        attempt,
        stage.model.model_dump(mode="json"),
        stage.data.num_classes,
        stage.data.images.shape,
        stage.seeds,
        stage.training.epochs,
    )


def _describe_nets(attempt: Attempt, model: Any, classes: int, stored: Any, seeds: Any, epochs: int) -> None:
    shape = [stored[3], *stored[1:3]] if len(stored) == 4 else list(stored[1:])
    attempt.path(WEIGHTS).write_bytes(b"expected")
    attempt.facts |= {
        "nets": len(seeds),
        "described": {"model": model, "classifier": classes, "input_shape": shape},
        "epochs": epochs,
        "best_epochs": [epochs] * len(seeds),
    }


@expect.register
def _embedded(stage: Embed, attempt: Attempt) -> None:
    """Write the ids, and the width of each layer."""
    pq.write_table(stage.ids, attempt.path(IDS))
    attempt.facts |= {"widths": widths_of(stage)}


@expect.register
def _vectors(stage: EmbedPublic, attempt: Attempt) -> None:
    """Write nothing that is read: the number of images counts alone."""
    attempt.path(VECTORS).write_bytes(b"expected")


@expect.register
def _drawn(stage: Reconstruct, attempt: Attempt) -> None:
    """Write nothing that is read: the number of pictures counts alone."""
    attempt.path(IDS).write_bytes(b"expected")


@expect.register
def _perplexities(stage: Perplexities, attempt: Attempt) -> None:
    """Write costs as of a model that remembers nothing."""
    rng = np.random.default_rng(0)
    costs = [rng.normal(20, 3, count).clip(1) * 2**16 for count in (len(stage.canaries), stage.references)]
    canaries, references = (values.astype(np.int64) for values in costs)
    np.savez(attempt.path(COSTS), canaries=canaries, references=references, validation_loss=np.array(2.0))


@expect.register
def _ranks(stage: Ranks, attempt: Attempt) -> None:
    """Write that the walk has ended."""
    np.save(attempt.path(COUNTS), np.ones(len(stage.costs), dtype=np.int64))
    attempt.facts |= {"ended": True, "evaluations": 0}
