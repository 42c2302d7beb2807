"""The audit of image-text models (Jayaraman 2024), from pairs of images and captions to report."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from memlib.audits.arrangement import check_flow
from memlib.audits.captions.recipe import Direction, Recipe
from memlib.audits.captions.retrieval import EmbedPublic, Model, Retrievals, Retrieve, TrainPairs, public_blocks
from memlib.audits.captions.stages import Report, Score
from memlib.audits.last_stages import run_id
from memlib.data.given_sets import CompareSets
from memlib.data.images.caption_stages import Captions, CaptionSet, SplitPairs
from memlib.data.splits import PUBLIC, REFERENCE, SHARED, TARGET
from memlib.data.stages import Decode, DecodeBlock, Shard, TrainingData, decode, members_of
from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.observe.encoders import encoders_by_side
from memlib.pipeline.stage import AnyStage, Artifact, Runner
from memlib.runs.records import RunRecord

STAGES = (DecodeBlock, Decode, Captions, SplitPairs, CompareSets, TrainPairs, EmbedPublic, Retrieve, Score, Report)
ROLE_OF: dict[Direction, str] = {"A": TARGET, "B": REFERENCE}
Models = Mapping[tuple[int, Direction], Model]


def absent(recipe: Recipe) -> list[type[AnyStage]]:
    """Return the stages that the recipe does not use."""
    return [] if recipe.split.drawn_at_random else [CompareSets]


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the audit from data to report; return the run's manifest, or None in a plan."""
    shard = decode(runner, recipe.data)
    captions = runner.run(Captions(recipe.data, recipe.captions.model_copy(update={"alike": None}), shard))
    splits = runner.run(SplitPairs(recipe.split, shard, captions, recipe.captions.alike))
    public = members_of(splits, PUBLIC).num_rows
    if max(recipe.score.k) > public:
        raise UserError(f"score.k is {max(recipe.score.k)}, but there are only {public} public pairs; lower score.k")

    sets = CompareSets(recipe.data.source, TrainingData(shard, splits), (TARGET, REFERENCE), recipe.score.seed, captions)
    checks = runner.run(sets) if recipe.split.drawn_at_random else None
    stages = _trainings(recipe, shard, splits, captions)
    trained = dict(zip(stages, runner.run_all(list(stages.values())), strict=True))
    models: Models = {**trained, **encoders_by_side(recipe.encoders)}
    retrievals = _retrievals(runner, recipe, models, shard, splits, captions)

    seed, config, by_chance = recipe.split.seed, recipe.score, recipe.split.by_chance
    score = Score(retrievals, captions, splits, recipe.dose, seed, config, by_chance=by_chance, checks=checks)
    scores = runner.run(score)
    report = runner.run(Report(recipe, run_id(recipe, scores), scores, retrievals, captions, shard, splits))
    named = {stage.name: trained[side] for side, stage in stages.items()}
    return runner.publish(recipe, scores, report, {"shard": shard, "splits": splits, "captions": captions, **named})


def _trainings(
    recipe: Recipe, shard: Artifact[Shard], splits: Artifact[pa.Table], captions: Artifact[CaptionSet]
) -> dict[tuple[int, Direction], TrainPairs]:
    """Return the stages that train the models, by pair and training set; each has its own seed."""
    training = recipe.training
    if training is None:
        return {}
    return {
        (pair, direction): TrainPairs(
            name=f"model {direction}{pair}",
            model=recipe.model,
            training=training.model_copy(update={"seed": derive_seed(training.seed, "pair", pair, direction)}),
            shard=shard,
            splits=splits,
            roles=(ROLE_OF[direction], SHARED),
            captions=captions,
            dose=recipe.dose,
            dose_seed=recipe.split.seed,
        )
        for pair in range(recipe.pairs)
        for direction in recipe.directions
    }


def _retrievals(
    runner: Runner,
    recipe: Recipe,
    models: Models,
    shard: Artifact[Shard],
    splits: Artifact[pa.Table],
    captions: Artifact[CaptionSet],
) -> list[Retrievals]:
    """Embed the public images with every checkpoint, and search them for each caption; the headline's setting comes first."""
    pairs = len(recipe.encoders) or recipe.pairs
    settings = [(pair, epoch) for epoch in recipe.epochs for pair in range(pairs)]
    wanted = [(pair, epoch, direction) for pair, epoch in settings for direction in recipe.directions]
    blocks = public_blocks(splits)
    embedded = runner.run_all(
        [
            EmbedPublic(models[pair, direction], epoch, shard, splits, rows)
            for pair, epoch, direction in wanted
            for rows in blocks
        ]
    )
    storage = "float16" if runner.resources.index_float16 else "float32"
    k = max(recipe.score.k)
    found = runner.run_all(
        [
            Retrieve(
                models[pair, direction],
                epoch,
                tuple(embedded[n * len(blocks) : (n + 1) * len(blocks)]),
                captions,
                splits,
                k,
                storage,
            )
            for n, (pair, epoch, direction) in enumerate(wanted)
        ]
    )
    runner.evict(embedded)
    by_side = dict(zip(wanted, found, strict=True))
    return [
        Retrievals(pair, epoch, tuple(by_side[pair, epoch, direction] for direction in recipe.directions))
        for pair, epoch in settings
    ]


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `captions` when it is asked for."""
    check_flow("captions", name)
    from flows.deployed import audit_flow

    return audit_flow("captions")
