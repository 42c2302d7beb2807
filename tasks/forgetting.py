"""Sets, mixes, outputs and scores of the forgetting audit as stages."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from memlib.audits import forgetting
from memlib.audits.forgetting import Distances, Observed, Recipe
from memlib.data.groups import groups_digest, groups_in
from memlib.data.sets import POOL, draw_sets, mix_members
from memlib.data.shards import IMAGES, INDEX_FILE, read_images, read_index
from memlib.errors import UserError
from memlib.identity import canonical_json
from memlib.observe.given import GivenOutputs
from memlib.stats.likelihood import decimals_of, log_odds, odds_of
from memlib.store import Attempt, Ref
from memlib.tables import CURVES, FORGETTING_EXAMPLES, FORGETTING_UNITS, SPLITS, SUMMARY, write_table
from memlib.training.fit import SPLITS_FILE
from tasks import declared
from tasks.jobs import OUTPUTS, ModelOutputs, TrainingData
from tasks.runtime import Context
from tasks.scoring import CURVES_FILE, SUMMARY_FILE, UNITS_FILE
from tasks.stage import run_jobs, run_stage, stage_task

EXAMPLES_FILE = "examples.parquet"
STRANGERS = 0.01  # outputs that follow the examples no better than this share of shuffled ones are refused


@stage_task("draw sets")
def draw(context: Context, shard: Ref, recipe: Recipe) -> Any:
    """Gives every example its set and takes copies of D_Q's pool out of the others."""
    sets, seed, near, group = recipe.sets, recipe.split_seed, recipe.near_duplicates, recipe.group

    def compute(attempt: Attempt) -> None:
        index = read_index(context.store.local_path(shard, INDEX_FILE))
        images = read_images(context.store.local_path(shard, IMAGES))
        write_table(draw_sets(index, images, sets, seed=seed, near=near, group=group), SPLITS, attempt.path(SPLITS_FILE))

    described = [[name, spec.model_dump(mode="json")] for name, spec in sets.items()]  # in their order
    spec = {"sets": described, "seed": seed, "near": near} | ({} if group is None else {"group": group})
    inputs = {"shard": shard.key} | groups_digest(group)
    return run_stage(context, declared.SETS, spec=spec, inputs=inputs, compute=compute)


@stage_task("draw mixes")
def draw_mixes(context: Context, data: TrainingData, wanted: Mapping[str, tuple[Mapping[str, float], int]]) -> Any:
    """Every model's training set in one table of splits, whose roles are the models' names.

    Args:
        context: the run.
        data: the sets.
        wanted: by model name the share of each set and the seed of the draw.
    """

    def compute(attempt: Attempt) -> None:
        parts = []
        for name, (shares, seed) in wanted.items():
            members = mix_members(data.table, shares, seed=seed)
            roles = pa.array([name] * members.num_rows, type=pa.string())
            parts.append(members.set_column(members.schema.get_field_index("role"), "role", roles))
        write_table(pa.concat_tables(parts), SPLITS, attempt.path(SPLITS_FILE))

    spec = {"wanted": {name: [dict(shares), seed] for name, (shares, seed) in wanted.items()}}
    return run_stage(context, declared.MIXES, spec=spec, inputs={"splits": data.splits.key}, compute=compute)


@stage_task("outputs")
def observe(context: Context, jobs: Sequence[ModelOutputs]) -> Any:
    """Class scores of every model on D_Q and the rest of its pool, on Ray."""
    return run_jobs(context, declared.OUTPUTS, jobs)


@dataclass(frozen=True)
class Shown:
    """A model that was shown the pool.

    Attributes:
        group, target, number: who it is.
        name: its role in the mixes, where it was trained here.
        outputs: an artifact, or what its owner gave.
    """

    group: str
    target: str
    number: int
    name: str | None
    outputs: Ref | GivenOutputs


@stage_task("score")
def score_forgetting(
    context: Context,
    recipe: Recipe,
    data: TrainingData,
    mixes: Ref,
    models: Sequence[Shown],
) -> Any:
    """Distances, likelihood ratios, traces and the verdict: units, examples, curves and summary.

    Args:
        context: the run.
        recipe: targets, verdict, config.
        data: the sets.
        mixes: the training sets of models that were trained here.
        models: all of them.
    """
    members = data.members(*POOL)
    labels = members["label"].to_numpy()

    def compute(attempt: Attempt) -> None:
        trained = pq.read_table(context.store.local_path(mixes, SPLITS_FILE), columns=["role", "example_id"])
        observed = [_observed(context, members, trained, model) for model in models]
        pool = forgetting.Pool(np.array(members["role"].to_pylist()), labels, groups_in(members))
        _refuse_strangers(observed, pool, models, recipe)
        distances = Distances(observed, pool, recipe.score)
        names = members["example_id"].to_pylist()
        examples = forgetting.score_examples(observed, pool, names, members["class_name"].to_pylist())
        write_table(forgetting.score(distances), FORGETTING_UNITS, attempt.path(UNITS_FILE))
        write_table(examples, FORGETTING_EXAMPLES, attempt.path(EXAMPLES_FILE))
        write_table(forgetting.summarize(distances, examples, recipe), SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(forgetting.curves(distances, recipe), CURVES, attempt.path(CURVES_FILE))

    spec = {
        "config": recipe.score.model_dump(mode="json"),
        "verdict": recipe.verdict.model_dump(mode="json"),
        "targets": {name: dict(target.mix) if target.mix is not None else None for name, target in recipe.targets.items()},
        "supplied": sorted(name for name, target in recipe.targets.items() if target.outputs is not None),
        "compare": recipe.compare,
        "models": [[model.group, model.target, model.number, model.name] for model in models],
    }
    inputs = {
        "outputs": [m.outputs.key if isinstance(m.outputs, Ref) else m.outputs.digest for m in models],
        "mixes": mixes.key,
        "query": pool_digest(members),
    }
    return run_stage(context, declared.SCORE_FORGETTING, spec=spec, inputs=inputs, compute=compute)


def pool_digest(members: pa.Table) -> str:
    """What a key says of the pool: which examples, with which labels and groups, in which of its sets."""
    rows = [members[name].to_pylist() for name in ("example_id", "label", "role", "group")]
    return hashlib.sha256(canonical_json(rows).encode()).hexdigest()


def _refuse_strangers(observed: Sequence[Observed], pool: forgetting.Pool, models: Sequence[Shown], recipe: Recipe) -> None:
    """Refuses supplied outputs that have nothing to do with the examples: shuffled, or of another file."""
    unseen = np.stack([model.log_odds for model in observed if model.group == forgetting.NULL])
    for model, shown in zip(observed, models, strict=True):
        if isinstance(shown.outputs, GivenOutputs):
            p = forgetting.follows(model.log_odds, unseen, pool.labels, seed=recipe.score.seed)
            if p > STRANGERS:
                raise UserError(
                    f"the outputs of {model.target} bear no relation to the examples, not even to which of them models of "
                    f"these classes find easy or hard (p = {p:.2g}); do the scores belong to these example ids?"
                )


def _observed(context: Context, members: pa.Table, trained: pa.Table, model: Shown) -> Observed:
    labels = members["label"].to_numpy()
    decimals, known = None, None
    if isinstance(model.outputs, GivenOutputs):
        given = model.outputs.probabilities
        decimals = None if given is None else decimals_of(given)
        odds = log_odds(model.outputs.scores, labels)
        if given is not None and decimals is not None:  # rounded rows do not sum to 1
            odds = odds_of(given[np.arange(len(labels)), labels])
    else:
        odds = log_odds(np.load(context.store.local_path(model.outputs, OUTPUTS)), labels)
    if model.name is not None:
        seen = set(trained.filter(pc.equal(trained["role"], model.name))["example_id"].to_pylist())
        known = np.array([name in seen for name in members["example_id"].to_pylist()])
    return Observed(model.group, model.target, model.number, odds, decimals, known)
