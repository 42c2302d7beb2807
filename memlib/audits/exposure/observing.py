"""Stages that query a model: perplexities, ranks by shard of the space, search for canaries, continuation of documents."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.exposure.models import SubjectModel
from memlib.audits.exposure.recipe import DiscoverableSpec, ExtractionSpec
from memlib.audits.exposure.tables import DOCUMENTS, EXTRACTION
from memlib.data.splits import VALIDATION, column
from memlib.data.text.formats import LONGEST_ALPHABET, Candidates
from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import UNKEYED, Artifact, Out, Place, Stage
from memlib.store import Attempt, Ref
from memlib.store.permissions import scratch
from memlib.tables import read_table, write_table

if TYPE_CHECKING:
    import torch

    from memlib.observe.likelihoods import Predictor

COSTS, COUNTS, FOUND, FRONTIER = "costs.npz", "counts.npy", "found.parquet", "frontier.npz"
DISCOVERED = "discovered.parquet"
SAVED_SECONDS = 60.0  # seconds between two saves of a search's frontier


@dataclass(frozen=True)
class Costs:
    """Costs (log-perplexities) of candidates under a model, in units of 2^-16 bit."""

    canaries: NDArray[np.int64]  #: (num_canaries,) int64.
    references: NDArray[np.int64]  #: (num_references,) int64.
    validation_loss: float  #: nats per symbol.


@dataclass(frozen=True)
class OfModel(Stage[Out]):
    """A stage that observes one language model."""

    place: ClassVar[Place] = "anywhere"

    at: SubjectModel  #: the model.

    @property
    def near(self) -> Ref | None:
        """The model's artifact; None for an external model."""
        return None if self.at.model is None else self.at.model.ref


@dataclass(frozen=True)
class Perplexities(OfModel[Costs]):
    """Compute the costs of canaries and of random references, and the validation loss: costs.npz."""

    declared: ClassVar[Declared] = Declared("perplexities", 1)
    title: ClassVar[str] = "perplexities"

    canaries: tuple[int, ...]  #: ids of the canaries.
    references: int  #: number of random candidates.
    seed: int  #: seed of the random candidates, which are the same for all models.

    @property
    def units(self) -> float:
        """Number of candidates."""
        return float(len(self.canaries) + self.references)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the costs."""
        from memlib.observe.likelihoods import candidate_costs

        data, model = self.at.data, self.at.load(device)
        space, corpus = data.space, data.corpus.content
        windows = np.array(corpus.windows[column(corpus.members(VALIDATION), "row")])
        rng = reference_rng(self.seed)
        loss = self.at.loss(model, windows, device)  # first, because it fails early if the text does not fit the model
        ask = functools.partial(candidate_costs, model, space, context=data.context)
        np.savez(
            attempt.path(COSTS),
            canaries=ask(data.choices(self.canaries)),
            references=ask(space.sample(self.references, rng)),
            validation_loss=np.array(loss),
        )

    @classmethod
    def open(cls, artifact: Artifact[Costs]) -> Costs:
        """Return the costs."""
        with np.load(artifact.path(COSTS), allow_pickle=False) as arrays:
            return Costs(arrays["canaries"], arrays["references"], float(arrays["validation_loss"]))


@dataclass(frozen=True)
class Ranks(OfModel[NDArray[np.int64]]):
    """Count the candidates in one part of the space that cost no more than each canary: counts.npy."""

    declared: ClassVar[Declared] = Declared("ranks", 1)
    title: ClassVar[str] = "ranks"

    canaries: tuple[int, ...]  #: ids of the canaries.
    #: costs of the canaries, in units of 2^-16 bit.
    costs: tuple[int, ...] = field(metadata=UNKEYED)  # they follow from the model and the canaries
    shard: int  #: shard, shards: index of the part, and the smallest number of parts that the space is divided into.
    shards: int
    pruned: bool  #: whether prefixes that cost more than every canary are skipped.
    max_evaluations: int | None  #: number of evaluations after which the walk is abandoned; the artifact's facts record this.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The fields, with a mark if the parts are blocks of a long alphabet: in earlier versions they never were."""
        in_blocks = not self.pruned and any(len(slot) > LONGEST_ALPHABET for slot in self.at.data.space.slots)
        return {**super().spec, **({"blocks": True} if in_blocks else {})}

    @property
    def units(self) -> float:
        """One part of the space."""
        return float(1)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the counts."""
        from memlib.observe.likelihoods import OutOfWork, Work, leaf_costs, ranks

        data, model = self.at.data, self.at.load(device)
        part = list(data.space.shards(self.shards))[self.shard]
        work = Work(self.max_evaluations)
        limit = max(self.costs) if self.pruned else None
        counts = np.zeros(len(self.costs), dtype=np.int64)
        try:
            blocks = leaf_costs(model, part, context=data.context, limit=limit, work=work)
            counts = ranks(blocks, np.array(self.costs, dtype=np.int64))
            attempt.facts["ended"] = True
        except OutOfWork:
            attempt.facts["ended"] = False
        attempt.facts["evaluations"] = work.evaluations
        np.save(attempt.path(COUNTS), counts)

    @classmethod
    def open(cls, artifact: Artifact[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return the counts (num_canaries,); 0 if the walk was abandoned, as the facts record."""
        counts: NDArray[np.int64] = np.load(artifact.path(COUNTS))
        return counts


@dataclass(frozen=True)
class Search(OfModel[pa.Table]):
    """Search for canaries of one model: found.parquet (tables.EXTRACTION), and the candidates found in frontier.npz."""

    declared: ClassVar[Declared] = Declared("secret/extract", 2)
    title: ClassVar[str] = "extract canaries"

    variant: str  #: variant, seed: the model's name in results.
    seed: int
    #: canaries, insertions: ids, and occurrences in the model's training data; a search without known symbols may be shared
    #: by several canaries.
    canaries: tuple[int, ...]
    insertions: tuple[int, ...]
    known: int  #: number of hole symbols that are given to the search.
    how: ExtractionSpec  #: limits, beam width, number of candidates to find.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The fields, without the list of numbers of known symbols (one search has a single `known`)."""
        return {**super().spec, "how": self.how.model_dump(mode="json", exclude={"known"})}

    @property
    def units(self) -> float:
        """Number of canaries."""
        return float(len(self.canaries))

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the results; an interrupted search resumes from its last saved frontier."""
        from memlib.observe.extraction import beam_search
        from memlib.observe.likelihoods import Work

        data, model = self.at.data, self.at.load(device)
        space = told(data.space, data.choices(self.canaries[:1])[0], self.known)
        rows = self._shortest_path(model, space, attempt)
        for name, width in (("greedy", 1), ("beam", self.how.beam or 0)):
            if self.how.beam is None:
                continue
            work = Work()
            leaves = [path for _, path in beam_search(model, space, width=width, context=data.context, work=work)]
            found_at = [work.evaluations] * len(leaves)
            rows += self._rows(name, leaves, found_at, work.evaluations, "found", exact=False)
        write_table(pa.Table.from_pylist(rows, schema=EXTRACTION.arrow), EXTRACTION, attempt.path(FOUND))

    def _shortest_path(self, model: Predictor, space: Candidates, attempt: Attempt) -> list[dict[str, Any]]:
        from memlib.observe.extraction import Frontier, ShortestPath

        attempt.resumes = True
        store, key, top = self.at.data.corpus.store, attempt.ref.key, max(self.how.top, len(self.canaries))
        with scratch("search") as folder:
            frontier = Frontier.load(folder / FRONTIER) if store.resume.load(key, folder) else None
            search = ShortestPath(model, space, context=self.at.data.context, frontier=frontier, batch=self.how.batch)
            left = self.how.max_seconds
            while True:
                seconds = SAVED_SECONDS if left is None else min(left, SAVED_SECONDS)
                result = search.run(top=top, max_evaluations=self.how.max_evaluations, max_seconds=seconds)
                left = None if left is None else left - seconds
                if result.ended != "seconds" or (left is not None and left <= 0):
                    break
                search.frontier.save(folder / FRONTIER)
                store.resume.save(key, search.frontier.evaluations, folder)
            search.frontier.save(attempt.path(FRONTIER))
        leaves = [path for _, path in result.leaves]
        return self._rows("shortest_path", leaves, result.found_at, result.evaluations, result.ended, exact=result.exact)

    def _rows(
        self, search: str, leaves: list[tuple[int, ...]], found_at: list[int], queries: int, ended: str, *, exact: bool
    ) -> list[dict[str, Any]]:
        space, rows = self.at.data.space, []
        left = told(space, self.at.data.choices(self.canaries[:1])[0], self.known).size
        spelt = space.tokens(self.at.data.choices(self.canaries)).tolist()
        for canary, insertions, tokens in zip(self.canaries, self.insertions, spelt, strict=True):
            path = tuple(token for token in tokens if token >= 0)
            place = leaves.index(path) if path in leaves else None
            rows.append(
                {
                    "variant": self.variant, "seed": self.seed, "canary": canary, "insertions": insertions,
                    "known": self.known, "search": search, "extracted": place is not None and place < len(self.canaries),
                    "by_chance": min(1.0, len(self.canaries) / left),
                    "position": None if place is None else place + 1,
                    "queries": queries if place is None else found_at[place], "ended": ended, "exact": exact,
                }
            )  # fmt: skip
        return rows

    @classmethod
    def open(cls, artifact: Artifact[pa.Table]) -> pa.Table:
        """Return the results as tables.EXTRACTION."""
        return read_table(artifact.path(FOUND))


@dataclass(frozen=True)
class Discover(OfModel[pa.Table]):
    """Query a model for the continuation of trained and held-out documents: discovered.parquet (tables.DOCUMENTS)."""

    declared: ClassVar[Declared] = Declared("discover", 2)
    title: ClassVar[str] = "ask for documents"

    variant: str  #: variant, seed: the model's name in results.
    seed: int
    how: DiscoverableSpec  #: numbers of documents and tokens, sampling scheme.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The fields, without the settings that affect only the shares computed from the results."""
        return {**super().spec, "how": self.how.model_dump(mode="json", exclude={"tries", "probability"})}

    @property
    def units(self) -> float:
        """Largest number of documents, over both sides."""
        return float(2 * self.how.documents)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the table."""
        from memlib.models.causal import Causal
        from memlib.observe.discovery import near_hits, suffixes

        data, how, model = self.at.data, self.how, self.at.load(device)
        assert isinstance(model, Causal)
        windows, known = data.corpus.content.windows, data.corpus.content.heads
        shared = shared_beginnings(known, windows, how.prefix + how.suffix)
        attempt.facts["shared_beginnings"] = int(shared.sum())
        heads = chosen_documents(known, how, seed=data.canaries.seed, shared=shared)
        tokens = beginnings(heads, windows, how.prefix + how.suffix).astype(np.int64)
        scores = suffixes(model, tokens, prefix=how.prefix, scheme=how)
        near: list[int | None] = [None] * len(heads)
        if how.samples:
            seed = derive_seed(data.canaries.seed, "samples")
            hits = near_hits(
                model, tokens, prefix=how.prefix, scheme=how, samples=how.samples, near=how.near, seed=seed
            )  # fmt: skip
            near = hits.tolist()
        rows = [
            {
                "variant": self.variant, "seed": self.seed, "document": int(number), "held_out": bool(side),
                "copies": int(copies), "bits": float(bits), "scheme_bits": None if np.isinf(scheme) else float(scheme),
                "greedy": bool(greedy), "near": close,
            }
            for (number, side, copies, *_), bits, scheme, greedy, close in zip(
                heads.tolist(), scores.bits, scores.scheme_bits, scores.greedy, near, strict=True
            )
        ]  # fmt: skip
        write_table(pa.Table.from_pylist(rows, schema=DOCUMENTS.arrow), DOCUMENTS, attempt.path(DISCOVERED))

    @classmethod
    def open(cls, artifact: Artifact[pa.Table]) -> pa.Table:
        """Return the results as tables.DOCUMENTS."""
        return read_table(artifact.path(DISCOVERED))


def beginnings(heads: NDArray[np.int64], windows: NDArray[Any], length: int) -> NDArray[Any]:
    """Return the first tokens of documents: (num_documents, length).

    Args:
        heads: rows of `Corpus.heads`, of documents with at least `length` tokens.
    """
    places = heads[:, 4, None] + np.arange(length)
    tokens: NDArray[Any] = windows[heads[:, 3, None] + places // windows.shape[1], places % windows.shape[1]]
    return tokens


def shared_beginnings(heads: NDArray[np.int64], windows: NDArray[Any], length: int) -> NDArray[np.bool_]:
    """Return a mask (num_documents,) of documents whose first `length` tokens also begin another document, on either side.

    Such documents reveal nothing, as a held-out beginning may also be the beginning of a trained document. They are left out
    of both sides. The choice depends on the text alone, not on which documents were held out, so the others remain
    exchangeable.
    """
    from memlib.data.text.documents import token_digest

    shared, long = np.zeros(len(heads), dtype=bool), np.flatnonzero(heads[:, 6] >= length)
    digests = np.zeros(len(long), dtype=np.uint64)
    for number, head in enumerate(long):
        digests[number] = token_digest(beginnings(heads[head : head + 1], windows, length))
    _, which, counts = np.unique(digests, return_inverse=True, return_counts=True)
    shared[long] = counts[which] > 1
    return shared


def chosen_documents(
    heads: NDArray[np.int64], how: DiscoverableSpec, *, seed: int, shared: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Draw random rows of `Corpus.heads` whose documents are long enough, equally many from each side, sorted by document.

    Args:
        heads: `Corpus.heads`.
        how: numbers of documents and tokens.
        shared: result of `shared_beginnings`; these documents are left out.

    Raises:
        UserError: if either side has fewer than two such documents.
    """
    long = heads[(heads[:, 5] >= how.prefix + how.suffix) & ~shared]
    sides = [long[long[:, 1] == side] for side in (0, 1)]
    count = min(how.documents, *map(len, sides))
    if count < 2:
        others = f" ({shared.sum()} that begin like another document were left out)" if shared.any() else ""
        raise UserError(
            f"only {len(sides[0])} trained-on and {len(sides[1])} held-out documents have "
            f"{how.prefix + how.suffix} tokens in one window{others}, but each side needs two; "
            f"{'raise' if others else 'lower'} discoverable.prefix or suffix, or raise data.window or data.validation"
        )
    rng = np.random.default_rng(derive_seed(seed, "documents"))
    chosen = np.concatenate([side[rng.permutation(len(side))[:count]] for side in sides])
    in_order: NDArray[np.int64] = chosen[np.argsort(chosen[:, 0], kind="stable")]
    return in_order


def reference_rng(seed: int) -> np.random.Generator:
    """Return the random generator of the references for a recipe's seed, the same for all its models."""
    return np.random.default_rng(derive_seed(seed, "references"))


def told(space: Candidates, truth: NDArray[np.int32], known: int) -> Candidates:
    """Fix the first `known` hole symbols of the space to those of the true secret.

    Args:
        truth: (num_places,) choices of the true secret.
        known: number of hole symbols to fix.

    Raises:
        UserError: if no hole is left.
    """
    holes = [place for place, slot in enumerate(space.slots) if len(slot) > 1]
    if known >= len(holes):
        raise UserError(
            f"extraction.known {known} leaves nothing to find, as the secret has {len(holes)} symbols; lower extraction.known"
        )
    for place in holes[:known]:
        space = space.fixed(place, int(truth[place]))
    return space
