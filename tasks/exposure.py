"""Corpus, perplexities, ranks, extraction and scores of the exposure audit as stages."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from memlib.audits import exposure
from memlib.audits.exposure import Config, Recipe, Scored, choose_method
from memlib.data.formats import Format
from memlib.data.pairs import build_pairs, embedded_pairs
from memlib.data.secret import keyed_digest, read_secret
from memlib.data.shards import IMAGES
from memlib.data.text import build_corpus, read_secrets, read_text, text_digest
from memlib.errors import RunError
from memlib.specs import SecretsSpec, TextSpec
from memlib.specs.text import UNSEEN
from memlib.store import Attempt, Ref
from memlib.tables import CANARIES, CURVES, EXPOSURE_UNITS, EXTRACTION, SPLITS, SUMMARY, write_table
from memlib.training.fit import SPLITS_FILE
from tasks import declared
from tasks.data import described_data
from tasks.exposure_jobs import COSTS, COUNTS, FOUND, Perplexities, Ranks, Search
from tasks.exposure_models import CANARIES_FILE, VOCABULARY, AskedModel
from tasks.runtime import Context
from tasks.scoring import CURVES_FILE, SUMMARY_FILE, UNITS_FILE
from tasks.stage import run_jobs, run_stage, stage_task

EXTRACTIONS_FILE = "extractions.parquet"
SECRET = "secret/"  # stages whose artifacts hold canaries lie below a folder of their own


@stage_task("build corpus")
def make_corpus(
    context: Context, text: TextSpec, canaries: SecretsSpec, *, elsewhere: bool = False, level: float = 1.0
) -> Any:
    """Windows of text with canaries in them: windows, vocabulary, splits and the secret list of canaries.

    The key holds a digest under the secret, so that nobody without it can try candidates against the key.

    Args:
        context: the run.
        text, canaries: what the corpus is made of.
        elsewhere: whether the model saw another text, which held every secret of canaries.file at least once.
        level: of all given secrets together; where there are too few unseen ones to reach it, that is said.
    """
    content, secret = read_text(text.source), read_secret()
    if text.source.kind == "topic_pairs":
        content = embedded_pairs(content)

    form = Format(canaries.format, canaries.alphabets)
    known = read_secrets(canaries.file, form, text.unit) if canaries.file is not None else []
    unseen = read_secrets(canaries.unseen, form, text.unit) if canaries.unseen is not None else []
    _say_what_is_missing(context, len(known), len(unseen), level)
    if elsewhere:
        known = [replace(said, times=said.times or 1) for said in known]

    def compute(attempt: Attempt) -> None:
        if text.paired:
            corpus = build_pairs(content, text, canaries, secret=secret)
        else:
            corpus = build_corpus(
                content, text, canaries, secret=secret, known=known, unseen=unseen, count_here=not elsewhere
            )
        np.save(attempt.path(IMAGES), corpus.windows)
        attempt.path(VOCABULARY).write_text(json.dumps(corpus.vocabulary))
        write_table(corpus.splits, SPLITS, attempt.path(SPLITS_FILE))
        write_table(corpus.canaries, CANARIES, attempt.path(CANARIES_FILE))
        attempt.facts["num_windows"] = len(corpus.windows)

    inserted = canaries.model_dump(mode="json", exclude={"known_prefix", "known_suffix", "file", "unseen"})
    spec = {"text": described_data(text), "canaries": inserted}
    inputs = {"text": text_digest(content), "secret": keyed_digest(secret, "corpus")}
    if known:  # the text itself is secret
        listed: list[Any] = [[list(said.choices), said.times] for said in known]
        listed += [["unseen", list(said.choices)] for said in unseen]
        inputs = {"text": keyed_digest(secret, text_digest(content)), "secret": keyed_digest(secret, listed)}
    return run_stage(context, declared.CORPUS, spec=spec, inputs=inputs, compute=compute)


def _say_what_is_missing(context: Context, given: int, unseen: int, level: float) -> None:
    """Warns before anything is trained where no single secret can be called given away."""
    needed = math.ceil(given / level) - 1
    if given and not unseen:
        context.warn("canaries.file without canaries.unseen gives no test: name secrets of the same kind that are nowhere")
    elif unseen < needed:
        context.warn(f"with {unseen} unseen secrets no single one of {given} can be found; that takes {needed:,}")


@dataclass(frozen=True)
class Asked:
    """A model at a checkpoint, and the canaries it is asked for.

    Attributes:
        variant, seed: which training.
        at: the model.
        config: how it is scored.
        canaries, insertions: ids, and how often its training data hold each.
    """

    variant: str
    seed: int
    at: AskedModel
    config: Config
    canaries: tuple[int, ...]
    insertions: tuple[int, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of each canary."""
        return self.at.data.kinds(self.canaries)


@stage_task("perplexities")
def ask(context: Context, models: Sequence[Asked]) -> Any:
    """Costs of canaries and random references under every model, on Ray."""
    jobs = [Perplexities(m.at, m.canaries, m.config.references, m.config.seed) for m in models]
    return run_jobs(context, declared.PERPLEXITIES, jobs)


@stage_task("ranks")
def count(context: Context, models: Sequence[Asked], costs: Sequence[Ref]) -> Any:
    """Exact ranks where the method asks for them, on Ray, a shard of the space a part.

    Returns:
        a reference to each part, in the order of `rank_jobs`.
    """
    jobs = [job for _, _, job in rank_jobs(context, models, costs)]
    return run_jobs(context, declared.RANKS, jobs) if jobs else []


def rank_jobs(context: Context, models: Sequence[Asked], costs: Sequence[Ref]) -> list[tuple[int, tuple[int, ...], Ranks]]:
    """(position of the model, ids of the canaries, part) of every walk through the space."""
    found = []
    for number, (model, ref) in enumerate(zip(models, costs, strict=True)):
        config, space = model.config, model.at.data.space
        seen = _costs(context, ref)
        below = np.searchsorted(np.sort(seen["references"]), seen["canaries"], side="right")
        methods = [choose_method(config, at_or_below=int(b), size=space.size) for b in below]
        if not space.has_tree:
            methods = ["sampled" if method == "pruned" else method for method in methods]
        by_id = dict(zip(model.canaries, seen["canaries"].tolist(), strict=True))
        pruned = [
            canary
            for canary, kind, method in zip(model.canaries, model.kinds, methods, strict=True)
            if method == "pruned" and kind != UNSEEN  # whose costs are compared, not their ranks
        ]
        for canary in pruned:
            job = Ranks(model.at, (canary,), (by_id[canary],), 0, 1, True, config.max_evaluations)
            found.append((number, (canary,), job))
        whole = tuple(canary for canary, method in zip(model.canaries, methods, strict=True) if method == "enumerated")
        parts = range(len(list(space.shards(config.shards)))) if whole else ()
        for shard in parts:
            at = tuple(by_id[canary] for canary in whole)
            found.append((number, whole, Ranks(model.at, whole, at, shard, config.shards, False, None)))
    return found


def _costs(context: Context, ref: Ref) -> dict[str, Any]:
    with np.load(context.store.local_path(ref, COSTS), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


@stage_task("extract")
def extract(context: Context, jobs: Sequence[Search]) -> Any:
    """Searches for inserted canaries, on Ray; what they found is secret."""
    return run_jobs(context, declared.EXTRACT, jobs) if jobs else []


@stage_task("score")
def score_exposure(
    context: Context,
    recipe: Recipe,
    models: Sequence[Asked],
    costs: Sequence[Ref],
    counts: Sequence[Ref],
    searches: Sequence[Ref],
) -> Any:
    """Exposures by canary, model and checkpoint: units, extractions, curves and summary.

    Args:
        context: the run.
        recipe: variants, method, level.
        models: who was asked.
        costs: of `ask`, a model each.
        counts: of `count`.
        searches: of `extract`.
    """
    size = models[0].at.data.space.size

    def compute(attempt: Attempt) -> None:
        exact = _exact(context, models, costs, counts)
        scored = []
        for number, (model, ref) in enumerate(zip(models, costs, strict=True)):
            seen = _costs(context, ref)
            at = (model.variant, model.seed, model.at.epoch, model.canaries, model.kinds, model.insertions)
            loss = float(seen["validation_loss"])
            privacy = _privacy(context, model.at)
            scored.append(Scored(*at, seen["canaries"], seen["references"], loss, exact.get(number, {}), privacy))
        units = exposure.score(scored, size, recipe.score)
        found = [pq.read_table(context.store.local_path(ref, FOUND)) for ref in searches]
        extractions = pa.concat_tables(found) if found else exposure.empty_extractions()
        write_table(units, EXPOSURE_UNITS, attempt.path(UNITS_FILE))
        write_table(extractions, EXTRACTION, attempt.path(EXTRACTIONS_FILE))
        summary = exposure.summarize(scored, units, extractions, recipe, size=size)
        write_table(summary, SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(exposure.curves(scored, units, extractions, recipe), CURVES, attempt.path(CURVES_FILE))

    spec = {
        "config": recipe.score.model_dump(mode="json"),
        "report": recipe.report.model_dump(mode="json"),
        "together": recipe.canaries.together,
        "models": [[m.variant, m.seed, m.at.epoch, list(m.canaries), list(m.insertions)] for m in models],
    }
    inputs = {
        "costs": [ref.key for ref in costs],
        "counts": [ref.key for ref in counts],
        "searches": [ref.key for ref in searches],
    }
    return run_stage(context, declared.SCORE_EXPOSURE, spec=spec, inputs=inputs, compute=compute)


def _privacy(context: Context, at: AskedModel) -> dict[str, Any] | None:
    """What a private training had spent at a checkpoint."""
    spent = None if at.model is None else context.store.manifest(at.model)["facts"].get("privacy")
    if spent is None or at.epoch == 0:
        return None
    epsilon = spent["epsilons"][math.ceil(at.epoch) - 1]
    return {name: spent[name] for name in ("delta", "noise", "accountant")} | {"epsilon": epsilon}


def _exact(
    context: Context, models: Sequence[Asked], costs: Sequence[Ref], counts: Sequence[Ref]
) -> dict[int, dict[int, tuple[str, int, int]]]:
    """By model and canary: the method, rank and evaluations, where all parts of a walk ended."""
    found: dict[int, dict[int, tuple[str, int, int]]] = {}
    unfinished: set[tuple[int, int]] = set()
    for (number, canaries, job), ref in zip(rank_jobs(context, models, costs), counts, strict=True):
        facts = context.store.manifest(ref)["facts"]
        method, mine = "pruned" if job.pruned else "enumerated", found.setdefault(number, {})
        for canary, more in zip(canaries, np.load(context.store.local_path(ref, COUNTS)).tolist(), strict=True):
            if not facts["ended"]:
                unfinished.add((number, canary))
                continue
            _, rank, evaluations = mine.get(canary, (method, 0, 0))
            mine[canary] = (method, rank + more, evaluations + facts["evaluations"])
    for number, canary in unfinished:
        found[number].pop(canary, None)
    for number, mine in found.items():
        for canary, (method, rank, evaluations) in mine.items():
            if rank < 1 and models[number].at.precision == "float64":
                raise RunError(f"canary {canary} was not found among its own candidates by the {method} rank")
            mine[canary] = (method, max(1, rank), evaluations)
    return found
