"""Pairs shown on the page, with the objects that each model names and the public images that it retrieves."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.captions.recipe import Recipe
from memlib.audits.captions.retrieval import Retrievals
from memlib.audits.captions.scores import most_voted, votes_of
from memlib.data.images.caption_stages import CaptionSet
from memlib.data.splits import PUBLIC, REFERENCE, TARGET
from memlib.data.stages import Shard, members_of
from memlib.pipeline.stage import Artifact


@dataclass(frozen=True)
class Found:
    """Objects and images that one model retrieves for a caption."""

    trained_on: str  #: the set on which the model was trained, A or B.
    named: Sequence[str]  #: objects that it names beyond the caption, most votes first.
    images: Sequence[NDArray[np.uint8]]  #: public images, nearest first.


@dataclass(frozen=True)
class Shown:
    """A pair that is shown."""

    example_id: str  #: example_id, caption, image: the pair.
    caption: str
    image: NDArray[np.uint8]
    direction: str  #: its set, A or B.
    objects: Sequence[str]  #: all objects in the image.
    named: Sequence[str]  #: those that the caption names.
    found: Sequence[Found]  #: what each model retrieves.


def pairs_shown(
    recipe: Recipe,
    retrievals: Retrievals,
    captions: CaptionSet,
    shard: Artifact[Shard],
    splits: Artifact[pa.Table],
) -> list[Shown]:
    """Return the audited pairs that the page shows: the first ones by a hash of their ids, whatever was found."""
    members = members_of(splits, TARGET, REFERENCE)
    order = sorted(range(members.num_rows), key=lambda place: _hash(members["example_id"][place].as_py()))
    members = members.take(order[: recipe.report.gallery])
    public = members_of(splits, PUBLIC)
    asked, by_row = captions.chosen(members["example_id"]), public["row"].to_numpy()
    known, picture = captions.chosen(public["example_id"]), shard.content.pictures
    ids = retrievals.by_model[0].content.ids["example_id"].combine_chunks()
    places = pc.index_in(members["example_id"], value_set=ids).to_numpy()
    mask = captions.matrix(asked["named"]).toarray() > 0
    matrix, k = captions.matrix(known["objects"]), recipe.score.k[0]
    found: list[list[Found]] = [[] for _ in places]
    for direction, model in zip(recipe.directions, retrievals.by_model, strict=True):
        nearest = model.content.neighbors[places, :k]
        votes = votes_of(nearest, matrix).toarray()
        chosen = most_voted(votes, recipe.score.objects, without=mask)
        for n, row in enumerate(nearest):
            by_votes = np.argsort(-votes[n], kind="stable")
            named = [captions.object_names[place] for place in by_votes if chosen[n, place]]
            images = [picture(int(by_row[place])) for place in row[: recipe.report.neighbors]]
            found[n].append(Found(direction, named, images))
    return [
        Shown(
            row["example_id"], row["caption"], picture(row["row"]), "A" if role == TARGET else "B",
            row["objects"], row["named"], found[n],
        )
        for n, (row, role) in enumerate(zip(asked.to_pylist(), members["role"].to_pylist(), strict=True))
    ]  # fmt: skip


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
