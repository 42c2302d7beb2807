"""Stages that judge reconstructions: classifiers trained on public images, and the measures of every picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.deja_vu.embedding import CROP, View, joint_key, shown_rows
from memlib.audits.deja_vu.recipe import DIRECTIONS
from memlib.audits.deja_vu.reconstruction.measures import (
    Pictures,
    hidden_part,
    mid_rank,
    painted,
    pixel_distances,
    resized,
    scaled_squares,
    spread,
)
from memlib.audits.deja_vu.reconstruction.sampling import IS_SHUFFLED, SAMPLED, SHUFFLED, UNCONDITIONED, Reconstructions
from memlib.audits.deja_vu.reconstruction.spec import ReconstructSpec
from memlib.audits.deja_vu.searching import Found
from memlib.audits.deja_vu.tables import NEIGHBORS, RECONSTRUCTIONS
from memlib.data.attributes import attribute_codes, values_of
from memlib.data.candidates import class_candidates
from memlib.data.groups import groups_in
from memlib.data.splits import PUBLIC, REFERENCE, TARGET
from memlib.data.stages import Shard, members_of
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs import CropSpec
from memlib.store import Attempt
from memlib.tables import read_table, write_table
from memlib.training.fit import Train, TrainedModel

if TYPE_CHECKING:
    import torch

    from memlib.models.encoder import Encoder
    from memlib.training.loop import TrainingSet

NEAREST, AVERAGED = "nearest public image", "mean of neighbours"  # what needs no generator
RANK, RANK_PIXELS, COPIES = "rank", "rank by pixels", "copies of public images"
CLASS, NAMED, FIRST = "class", " named", " by the first picture"  # "class named", "<attribute> named", and so on
COMPARED = (NEIGHBORS, SHUFFLED, NEAREST, AVERAGED)  # by one picture each
SPREAD_HIDDEN, SPREAD_SHOWN = "spread of the hidden part", "spread of the shown part"
JUDGED_FILE = "reconstructions.parquet"
FEATURES = "backbone"


@dataclass(frozen=True)
class TrainJudge(Train):
    """Train a classifier on public images, once whole and once with the part that a crop shows painted over."""

    declared: ClassVar[Declared] = Declared("train_judge", 1)
    title: ClassVar[str] = "train judges"

    crop: CropSpec = field(kw_only=True)  #: the crop whose part of the image is painted over.
    #: the attribute that the classifier names, with num_classes 0, as its values are counted only when they are read; None
    #: for the class.
    attribute: str | None = None
    attributes: Artifact[pa.Table] | None = None  #: the values of all attributes.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The classifier and its training, the crop, and the attribute."""
        return {**super().spec, "crop": self.crop.model_dump(mode="json") | self.crop.rule, "attribute": self.attribute}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The public images, and the values of the attribute."""
        values = {} if self.attributes is None else {"attributes": self.attributes.key}
        return {**super().inputs, **values}

    def describe(self, images: NDArray[Any]) -> dict[str, Any]:
        """Return the description that `build_model` takes; an attribute's values are counted in its table."""
        described = super().describe(images)
        if self.attribute is None or self.attributes is None:
            return described
        return described | {"classifier": len(values_of(self.attributes.content, self.attribute))}

    def training_set(self) -> TrainingSet:
        """Return the public images, whole, then painted where they have a crop; without images that lack the attribute."""
        from memlib.training.loop import TrainingSet

        whole = members_of(self.splits, PUBLIC)
        shown, images = shown_rows(self.splits, self.shard, View((PUBLIC,), self.crop)), self.shard.content.images
        assert shown.crops is not None
        both = pa.concat_tables([table.select(["example_id", "row", "label"]) for table in (whole, shown.members)])
        boxes = np.concatenate([np.zeros((whole.num_rows, 4), dtype=np.int64), shown.crops])
        pictures, answers = Painted(images, both["row"].to_numpy(), boxes), self._answers(both)
        known = np.flatnonzero(answers >= 0)
        return TrainingSet(cast(Any, pictures), known, answers[known])

    def _answers(self, rows: pa.Table) -> NDArray[np.int64]:
        if self.attribute is None:
            labels: NDArray[np.int64] = rows["label"].to_numpy()
            return labels
        assert self.attributes is not None
        return attribute_codes(self.attributes.content, self.attribute, rows["example_id"])


class Painted:
    """Stored images of which some are painted over where a crop shows them; an array-like, read row by row.

    Args:
        images: (num_stored, size, size, channels) uint8.
        rows: (num_pictures,) stored rows.
        boxes: (num_pictures, 4) x0, y0, x1, y1 to paint over; an empty box leaves an image whole.
    """

    ndim, dtype = 4, np.dtype(np.uint8)

    def __init__(self, images: NDArray[np.uint8], rows: NDArray[np.int64], boxes: NDArray[np.int64]) -> None:
        self.images, self.rows, self.boxes = images, rows, boxes
        self.shape = (len(rows), *images.shape[1:3], 3)

    def __getitem__(self, chosen: NDArray[np.int64]) -> NDArray[np.uint8]:
        found = np.broadcast_to(self.images[self.rows[chosen]], (len(chosen), *self.shape[1:]))
        boxes, places = self.boxes[chosen], np.arange(self.shape[1])
        across = (places >= boxes[:, :1]) & (places < boxes[:, 2:3])
        down = (places >= boxes[:, 1:2]) & (places < boxes[:, 3:])
        return painted(found, ~(down[:, :, None] & across[:, None, :]))


@dataclass(frozen=True)
class Judge(Stage[pa.Table]):
    """Judge what both models of a pair draw of the same images: reconstructions.parquet."""

    declared: ClassVar[Declared] = Declared("judge", 1)
    title: ClassVar[str] = "judge reconstructions"
    place: ClassVar[Place] = "anywhere"

    pair: int  #: number of the pair.
    #: the pictures of the model trained on A and of the model trained on B, in blocks.
    drawn: tuple[Sequence[Artifact[Reconstructions]], Sequence[Artifact[Reconstructions]]]
    found: Sequence[Found]  #: the public neighbours under both models, for pictures that need no generator.
    judges: Mapping[str, Artifact[TrainedModel]]  #: classifiers by what they name: "class", and attributes.
    shard: Artifact[Shard]
    splits: Artifact[pa.Table]
    settings: ReconstructSpec
    attributes: Artifact[pa.Table] | None = None  #: the values of the attributes.

    @property
    def spec(self) -> Mapping[str, Any]:
        """Pair, judges, number of neighbours, and number and order of the candidates."""
        names = ("neighbors", "candidates", "seed")
        return {"pair": self.pair, "judges": list(self.judges), **{name: getattr(self.settings, name) for name in names}}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The pictures, the neighbours, the judges, and the images."""
        values = {} if self.attributes is None else {"attributes": self.attributes.key}
        return {
            "drawn": [joint_key(parts) for parts in self.drawn],
            "found": [found.key for found in self.found],
            "judges": [judge.key for judge in self.judges.values()],
            "shard": self.shard.key,
            "splits": self.splits.key,
            **values,
        }

    @property
    def label(self) -> str:
        """The pair."""
        return f"pair {self.pair}"

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write one row per image, model, source and measure."""
        rows = list(_Bench(self, device).rows(attempt))
        write_table(pa.Table.from_pylist(rows, schema=RECONSTRUCTIONS.arrow), RECONSTRUCTIONS, attempt.path(JUDGED_FILE))

    @classmethod
    def open(cls, artifact: Artifact[pa.Table]) -> pa.Table:
        """Return tables.RECONSTRUCTIONS."""
        return read_table(artifact.path(JUDGED_FILE))


class _Bench:
    """The images, candidates and judges of a pair of models, from which the measures of every picture are computed."""

    def __init__(self, stage: Judge, device: torch.device) -> None:
        self.stage, self.side, self.device = stage, stage.settings.side, device
        self.ids = pa.concat_tables([part.content.ids for part in stage.drawn[0]])
        for parts in stage.drawn[1:]:
            assert self.ids.equals(pa.concat_tables([part.content.ids for part in parts])), "the models drew different images"
        self.images, self.size = stage.shard.content.images, stage.shard.content.images.shape[1]
        self.boxes = np.stack([self.ids[name].to_numpy() for name in CROP], axis=1).astype(np.int64)
        members = members_of(stage.splits, TARGET, REFERENCE)
        self.stored, self.of_a = members["row"].to_numpy(), pc.equal(members["role"], TARGET).to_numpy()
        self.places = pc.index_in(self.ids["example_id"], value_set=members["example_id"].combine_chunks()).to_numpy()
        self.candidates: dict[int, NDArray[np.int64]] = {}
        ids, labels, settings = members["example_id"].to_pylist(), members["label"].to_numpy(), stage.settings
        for of_class, chosen in class_candidates(
            ids, labels, groups_in(members), most=settings.candidates, seed=settings.seed
        ):
            self.candidates |= {int(of_class[own]): of_class[others] for own, others in enumerate(chosen)}
        self.answers = {CLASS: labels} | {
            name: attribute_codes(stage.attributes.content, name, members["example_id"])
            for name in stage.judges
            if name != CLASS and stage.attributes is not None
        }
        self.public = Pictures(resized(self.images, members_of(stage.splits, PUBLIC)["row"].to_numpy(), self.side))
        self.copy = self.public.copy_distance()

    def rows(self, attempt: Attempt) -> Iterator[dict[str, Any]]:
        """Yield rows of tables.RECONSTRUCTIONS."""
        neighbors = [self._neighbors(found) for found in self.stage.found]
        blocks = [self._pictures(parts) for parts in self.stage.drawn]
        for number, place in enumerate(self.places.tolist()):
            of_image, name = _OfImage(self, number, place), self.ids["example_id"][number].as_py()
            for model, drawn, near in zip(DIRECTIONS, blocks, neighbors, strict=True):
                sources = {source: pictures[number] for source, pictures in drawn.items() if pictures.shape[1]}
                if not self.ids[IS_SHUFFLED][number].as_py():
                    del sources[SHUFFLED]
                nearest = self.public.pictures[near[number]]
                sources[NEAREST] = nearest[:1]
                sources[AVERAGED] = nearest.mean(axis=0, keepdims=True).round().astype(np.uint8)
                for source, pictures in sources.items():
                    for measure, value in of_image.measures(pictures, source):
                        yield {
                            "example_id": name,
                            "direction": of_image.direction,
                            "pair": self.stage.pair,
                            "model": model,
                            "source": source,
                            "measure": measure,
                            "value": value,
                            "candidates": len(self.candidates[place]),
                        }
            attempt.progress(number + 1, len(self.places))

    def _pictures(self, parts: Sequence[Artifact[Reconstructions]]) -> dict[str, NDArray[np.uint8]]:
        return {source: np.concatenate([part.content.drawn(source) for part in parts]) for source in SAMPLED}

    def _neighbors(self, found: Found) -> NDArray[np.int64]:
        """Return the public neighbours of each image's crop as rows of the public ids, (num_images, k)."""
        asked = pc.index_in(self.ids["example_id"], value_set=found.ids["example_id"].combine_chunks()).to_numpy()
        return found.rows[asked, : self.stage.settings.neighbors]

    @cached_property
    def judges(self) -> dict[str, Encoder]:
        """Each judge's network in evaluation mode."""
        from memlib.models.encoder import Encoder

        settings, loaded = self.stage.settings, {}
        for name, judge in self.stage.judges.items():
            network, _ = judge.content.load(epoch=settings.judge.training.epochs)
            assert isinstance(network, Encoder)
            loaded[name] = network.to(self.device).eval()
        return loaded

    def looked_at(self, judge: str, pictures: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Return the features (num_pictures, dim) and the named classes (num_pictures,) of pictures under a judge."""
        import torch

        from memlib.observe.embeddings import outputs_of

        with torch.inference_mode():
            views = torch.from_numpy(pictures).to(self.device).permute(0, 3, 1, 2).float().div_(255)
            (_, features), (_, scores) = outputs_of(self.judges[judge], views, (FEATURES, "classifier"))
        return features.float().cpu().numpy(), scores.argmax(dim=1).cpu().numpy()


class _OfImage:
    """One audited image: its hidden part, its candidates as the judge sees them, and the measures of pictures of it."""

    def __init__(self, bench: _Bench, number: int, place: int) -> None:
        self.bench = bench
        self.hidden = hidden_part(bench.boxes[number], size=bench.size, side=bench.side)
        self.direction = "A" if bench.of_a[place] else "B"
        rows = bench.stored[[place, *bench.candidates[place]]]
        self.options = resized(bench.images, rows, bench.side)  # the true image first
        self.features = {name: bench.looked_at(name, painted(self.options, self.hidden))[0] for name in bench.answers}
        self.answers = {name: int(values[place]) for name, values in bench.answers.items()}

    def measures(self, pictures: NDArray[np.uint8], source: str) -> Iterator[tuple[str, float]]:
        """Yield measures of the pictures (num_samples, side, side, 3) from a source, by name."""
        bench, masked = self.bench, painted(pictures, self.hidden)
        looks = {name: bench.looked_at(name, masked) for name in self.answers}
        for name, apart in (
            (RANK, np.sum([scaled_squares(looks[judge][0], own) for judge, own in self.features.items()], axis=0)),
            (RANK_PIXELS, pixel_distances(pictures, self.options, self.hidden)),
        ):
            yield name, mid_rank(apart[0], apart[1:])
        for name, answer in self.answers.items():
            named = looks[name][1] == answer
            yield f"{name}{NAMED}", float(named.mean()) if answer >= 0 else float("nan")
            if source in COMPARED:
                yield f"{name}{NAMED}{FIRST}", float(named[0]) if answer >= 0 else float("nan")
        if source in SAMPLED and source != UNCONDITIONED:  # those from nothing are the same for all images
            yield COPIES, float((bench.public.nearest(pictures) < bench.copy).mean())
        if source in SAMPLED:
            yield SPREAD_HIDDEN, spread(pictures, self.hidden)
            yield SPREAD_SHOWN, spread(pictures, ~self.hidden)
