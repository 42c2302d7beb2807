"""Findings on memory beyond the class: attributes, and the rank of the true image within its class and set.

The test holds the models fixed, and with them, for every image and either model, the neighbours of its crop and the set of
candidates that lie nearer than the image itself. Candidates are drawn from A and B together by a hash of their ids, so they
are fixed, too. The test redraws which images of each class belong to A. Under the null hypothesis, the side of an image
changes no output of a model; every draw is then as likely as the actual one, so the test is exact for any statistic that is
computed from the redrawn sides in the same way as from the actual ones.

An attribute's statistic is the difference between sides of a gain that does not depend on the draw. A rank depends on it, as
only candidates of the image's own side count. Otherwise the whole images that a model trained on, which it may place apart
from others of the class, would be compared with images that it did not train on, and a model that has overfitted its images,
but recalls nothing of them from a crop, would seem to remember or to avoid them. Under both models, the images compared are
thus either all trained on or none; which candidates count changes with the sides when these are redrawn. For the same reason
distances are relative to those of other crops (see `Within`): on redrawn sides, which mix images that were trained on with
others, differences between whole images would otherwise settle ranks, and the null would be too narrow for such a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy
from numpy.typing import NDArray

from memlib.audits.deja_vu.embedding import EmbeddedView
from memlib.audits.deja_vu.recipe import BEYOND, Config
from memlib.audits.sides import Audited
from memlib.data.attributes import attribute_codes, values_of
from memlib.findings import Finding, tested
from memlib.identity import derive_seed
from memlib.pipeline.stage import Artifact
from memlib.specs import Tie
from memlib.stats.randomization import Design, detectable_answers
from memlib.stats.ranks import Ranks

EXCESS, RANK_GAIN, ACCURACY, RANK = "attribute_excess", "neighbor_rank_gain", "attribute_accuracy", "neighbor_rank"
NOTHING = -1  # code of a vote without voters, and of a missing value


@dataclass(frozen=True)
class Beyond:
    """Attributes, and neighbours and comparisons within the class, at the headline's setting."""

    setting: Mapping[str, Any]  #: layer, epoch, crop and k.
    attributes: Artifact[pa.Table]  #: values of the attributes (data.attributes.ATTRIBUTES).
    names: tuple[str, ...]  #: names of the attributes, in the recipe's order.
    #: for each pair, the artifacts of `Within` for the model trained on A and for that trained on B, in row order.
    within: Sequence[tuple[Sequence[Artifact[pa.Table]], Sequence[Artifact[pa.Table]]]]
    public: EmbeddedView  #: embeddings of the public images, for their ids.

    @property
    def key(self) -> Any:
        """Keys by which downstream stages refer to the attributes and neighbours, and the names' order."""
        within = [[[part.key for part in parts] for parts in pair] for pair in self.within]
        return {"attributes": self.attributes.key, "names": list(self.names), "within": within}


def beyond_rows(beyond: Beyond, splits: pa.Table, config: Config) -> Iterator[Finding]:
    """Yield `attribute_excess` of each attribute and `neighbor_rank_gain`, tested as one family, with their diagnostics.

    Args:
        beyond: the values, neighbours and ranks.
        splits: tables.SPLITS, with the side of each image.
        config: tie, level, permutations, replicates, seed.
    """
    pairs = [[pa.concat_tables([part.content for part in parts]) for parts in pair] for pair in beyond.within]
    ids = pairs[0][0]["example_id"]
    assert all(table["example_id"].equals(ids) for pair in pairs for table in pair), "models were shown different crops"
    members = splits.take(pc.index_in(ids, value_set=splits["example_id"].combine_chunks()))
    public = beyond.public.ids.select(["example_id", "label"])
    level = config.headline_level(beyond=True) / (len(beyond.names) + 1)
    for name in beyond.names:
        values = Values.of(beyond.attributes.content, name, members, public)
        votes = [[_named(table["nearest"], values.public, config.tie) for table in pair] for pair in pairs]
        known = np.flatnonzero(values.audited != NOTHING)
        right = np.array([[(vote == values.audited)[known] for vote in pair] for pair in votes])
        guessed = (values.guess == values.audited)[known]
        params = {**beyond.setting, "attribute": name, "without_value": len(ids) - len(known)}
        yield from _attribute_rows(params, Audited(members.take(known), config), right, guessed, level)
    lists = pairs[0][0]["candidates"].to_pylist()
    counts = np.array([len(places) for places in lists])
    ranked = np.flatnonzero(counts)
    if len(ranked):
        place = np.cumsum(counts > 0) - 1  # an image without candidates is a candidate of none
        candidates = [place[lists[image]] for image in ranked]
        halves = [[table["nearer"].take(ranked).to_pylist() for table in pair] for pair in pairs]
        ranks = [[Ranks.of(candidates, [np.array(one) for one in of_model]) for of_model in pair] for pair in halves]
        params = {**beyond.setting, "candidates": int(counts.max()), "without_candidates": len(ids) - len(ranked)}
        yield from _rank_rows(params, Audited(members.take(ranked), config), ranks, level)


@dataclass(frozen=True)
class Values:
    """Codes of the values of an attribute, from 0 in alphabetical order; -1 without a value."""

    audited: NDArray[np.int64]  #: (num_audited,) of the audited images.
    public: NDArray[np.int64]  #: (num_public,) of the public images.
    guess: NDArray[np.int64]  #: (num_audited,) the most frequent value among the public images of each audited image's class.

    @classmethod
    def of(cls, attributes: pa.Table, name: str, members: pa.Table, public: pa.Table) -> Values:
        """Return the codes of an attribute.

        Args:
            attributes: table with the schema ATTRIBUTES.
            members: example_id and label of the audited images.
            public: the same of the public images.
        """
        audited, others = (attribute_codes(attributes, name, table["example_id"]) for table in (members, public))
        labels, mine = public["label"].to_numpy(), members["label"].to_numpy()
        counts = np.zeros(
            (1 + int(max(labels.max(initial=0), mine.max(initial=0))), len(values_of(attributes, name))), dtype=np.int64
        )
        np.add.at(counts, (labels[others != NOTHING], others[others != NOTHING]), 1)
        return cls(audited, others, counts.argmax(axis=1)[mine])


def _named(neighbors: pa.ChunkedArray, values: NDArray[np.int64], tie: Tie) -> NDArray[np.int64]:
    """Return the majority of the neighbours' values, (num_queries,); neighbours without a value do not vote.

    Args:
        neighbors: lists of rows of the public ids, nearest first.
        values: (num_public,) codes of the values.
        tie: rule among values with equally many votes.
    """
    from memlib.stats.neighbors import vote  # loads torch

    lists = neighbors.combine_chunks()
    rows, of_query = lists.flatten().to_numpy(), pc.list_parent_indices(lists).to_numpy()
    votes = values[rows]
    of_query, votes = of_query[votes != NOTHING], votes[votes != NOTHING]
    counts = np.bincount(of_query, minlength=len(lists))
    named = np.full(len(lists), NOTHING)
    for count in np.unique(counts[counts > 0]):  # queries with equally many voters vote together
        chosen = counts == count
        named[chosen], _ = vote(votes[chosen[of_query]].reshape(-1, count), tie=tie)
    return named


def _attribute_rows(
    params: Mapping[str, Any], shown: Audited, right: NDArray[np.bool_], guessed: NDArray[np.bool_], level: float
) -> Iterator[Finding]:
    """Yield the findings of one attribute.

    Args:
        shown: the images that have a value.
        right: (num_pairs, 2, num_images), whether the neighbours under the models trained on A and on B name the value.
        guessed: (num_images,) whether the most frequent value of the class is the image's.
        level: level at which power is stated.
    """
    design, config, pairs = shown.design, shown.config, len(right)
    params = {**params, "direction": "both", "pairs": pairs, **shown.params}
    seed = derive_seed(config.seed, "beyond", "sides")
    own_gains = right[:, 0].astype(np.int64) - right[:, 1]
    gains = own_gains.sum(axis=0)
    wrong = tuple(np.asarray((~right[:, side]).sum(axis=0), dtype=np.int64) for side in (0, 1))
    enough, answers = detectable_answers(design, gains, (wrong[0], wrong[1]), alpha=level, seed=seed), shown.count * pairs
    yield tested(
        EXCESS, params, design.difference(gains) / 2 / pairs, n=shown.count,
        interval=shown.of_difference(own_gains.astype(np.float64)), family=BEYOND,
        p_value=design.tail_p(gains, permutations=config.permutations, seed=seed),
        detectable=None if enough is None or enough > answers else enough / answers,
        smallest_p=max(design.smallest_p(gains), 0.0 if design.is_even else 1 / (1 + config.permutations)),
    )  # fmt: skip
    target, reference = shown.own(right)
    yield from shown.diagnostics(ACCURACY, params, {"target": target, "reference": reference, "guessing": guessed[None]})


def _rank_rows(
    params: Mapping[str, Any], shown: Audited, ranks: Sequence[Sequence[Ranks]], level: float
) -> Iterator[Finding]:
    """Yield the findings on the ranks of the true images.

    The power is that for gains which do not depend on the draw, a close approximation.

    Args:
        shown: the images that have candidates.
        ranks: for each pair, the comparisons under the models trained on A and on B.
        level: level at which power is stated.
    """
    design, config, pairs = shown.design, shown.config, len(ranks)
    params = {**params, "direction": "both", "pairs": pairs, **shown.params}
    seed = derive_seed(config.seed, "beyond", "rank")
    by_model = np.array([[one.on_own_side(shown.of_a[None])[0] for one in pair] for pair in ranks])
    gains = by_model[:, 1] - by_model[:, 0]
    draws = design.redraws(config.permutations, seed=seed)
    null = np.concatenate([_differences(design, sides, ranks) for sides in draws]) / 2
    yield shown.tested(RANK_GAIN, params, gains, null, family=BEYOND, level=level, seed=derive_seed(seed, "power"))
    target, reference = shown.own(by_model)
    yield from shown.diagnostics(RANK, params, {"target": target, "reference": reference})


def _differences(design: Design, sides: NDArray[np.bool_], ranks: Sequence[Sequence[Ranks]]) -> NDArray[np.float64]:
    """Return the difference between redrawn sides of the gains in rank, within strata like `Design.difference`: (num_draws,).

    Args:
        sides: (num_draws, num_images), the first side in each draw.
        ranks: for each pair, the comparisons under the models trained on A and on B.
    """
    gains: NDArray[np.float64] = np.mean([b.on_own_side(sides) - a.on_own_side(sides) for a, b in ranks], axis=0)
    strata = np.unique(design.stratum, return_inverse=True)[1]
    entries = (np.ones(len(strata)), (np.arange(len(strata)), strata))
    within, first = scipy.sparse.csr_array(entries), sides.astype(np.float64)
    count, on_first, total = (one @ within for one in (first, first * gains, gains))
    size = np.bincount(strata).astype(np.float64)
    weight = (count * (size - count) / size).sum(axis=1)
    apart = ((on_first * size - total * count) / size).sum(axis=1)  # on_first (size - count) - (total - on_first) count
    differences: NDArray[np.float64] = np.divide(apart, weight, out=np.zeros(len(sides)), where=weight > 0)
    return differences
