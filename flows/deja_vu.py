"""The déjà vu audit (Meehan 2023) from images to a page."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from prefect import flow

from flows.running import carry_out
from memlib.audits.deja_vu import DIRECTIONS, Recipe
from memlib.data.shards import INDEX_FILE, read_index
from memlib.data.splits import PUBLIC, REFERENCE, SHARED, TARGET, crop_rectangles, select
from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.specs import CropSpec, Resources
from memlib.store import Ref
from memlib.training.fit import TrainingJob
from tasks.data import decode_images, read_splits, split_roles
from tasks.deja_vu_report import write_report
from tasks.observing import View, embed_view, search_neighbors
from tasks.reporting import publish, run_id
from tasks.runtime import Context
from tasks.scoring import ROLE_OF, Searches, probe_model, score_deja_vu
from tasks.training import train_models

STAGES = ("decode", "split", "train", "embed", "search", "probe", "score", "report")


@flow(name="deja-vu", validate_parameters=True)
def deja_vu(
    recipe: Recipe,
    store: str,
    resources: Resources = Resources(),
    quiet: bool = False,
    force: tuple[str, ...] = (),
    cascade: bool = False,
) -> dict[str, Any]:
    """Audits whether a model names the objects of its training images from their background alone.

    Args:
        recipe: data, split, models, decoding and report.
        store: folder or s3:// prefix for artifacts, results and reports.
        resources: machines; changes no result.
        quiet: no progress.
        force: stages that are computed again, though they are there.
        cascade: train models again whose inputs were made again and came out otherwise.

    Returns:
        the run's manifest.
    """
    return carry_out("deja-vu", audit, recipe, store, resources, quiet=quiet, force=force, cascade=cascade)


def audit(context: Context, recipe: Recipe) -> dict[str, Any]:
    """The audit from data to a page; returns the run's manifest."""
    shard: Ref = decode_images(context, recipe.data)
    splits: Ref = split_roles(context, recipe.split, shard)
    table = read_splits(context, splits)
    _refuse_the_impossible(context, recipe, table, shard)

    jobs = _jobs(recipe, shard, splits, table)
    models = dict(zip(jobs, train_models(context, list(jobs.values())), strict=True))

    audit = _Observations(context, recipe, shard, splits, models)
    searches = audit.searches()
    probes = audit.probes()
    scores: Ref = score_deja_vu(context, searches, probes, splits, _class_names(table), recipe.decode)

    run = run_id(recipe, scores)
    named = {job.name: models[side] for side, job in jobs.items()}
    report: Ref = write_report(context, recipe, run, scores, searches, shard, splits, named)
    artifacts = {"shard": str(shard), "splits": str(splits), "scores": str(scores), "report": str(report)}
    artifacts |= {name: str(ref) for name, ref in named.items()}
    found: dict[str, Any] = publish(context, recipe, run, scores, report, artifacts)
    return found


def _refuse_the_impossible(context: Context, recipe: Recipe, splits: pa.Table, shard: Ref) -> None:
    """Before hours are spent on training: more neighbours than images, crop modes that no image has."""
    index = read_index(context.store.local_path(shard, INDEX_FILE))
    for crop in recipe.crops:
        for direction in DIRECTIONS:
            members = select(splits, ROLE_OF[direction])["example_id"].to_pylist()
            if not crop_rectangles(index, members, crop):
                raise UserError(f"no audited image has a {crop.mode} crop; take it out of decode.crops")
    public = select(splits, PUBLIC).num_rows
    if max(recipe.decode.k) > public:
        raise UserError(f"decode.k is {max(recipe.decode.k)}, but the public set has only {public} images; lower decode.k")


def _class_names(splits: pa.Table) -> list[str]:
    names = dict(zip(splits["label"].to_pylist(), splits["class_name"].to_pylist(), strict=True))
    return [names[label] for label in sorted(names)]


def _jobs(recipe: Recipe, shard: Ref, splits: Ref, table: pa.Table) -> dict[tuple[int, str], TrainingJob]:
    """The models, by pair and the set they train on; each from a seed of its own."""
    jobs = {}
    for pair in range(recipe.pairs):
        for direction in DIRECTIONS:
            seed = derive_seed(recipe.training.seed, "pair", pair, direction)
            jobs[pair, direction] = TrainingJob(
                name=f"model {direction}{pair}",
                model=recipe.model,
                training=recipe.training.model_copy(update={"seed": seed}),
                num_classes=len(_class_names(table)),
                shard=shard,
                splits=splits,
                roles=(ROLE_OF[direction], SHARED),
            )
    return jobs


class _Observations:
    """Embeddings, searches and probes of all models."""

    def __init__(
        self, context: Context, recipe: Recipe, shard: Ref, splits: Ref, models: Mapping[tuple[int, str], Ref]
    ) -> None:
        self.context, self.recipe, self.shard, self.splits, self.models = context, recipe, shard, splits, models
        self._embedded: dict[tuple[Ref, int, View], Ref] = {}
        self.layers = recipe.model_layers

    def embed(self, model: Ref, epoch: int, *roles: str, crop: CropSpec | None = None) -> Ref:
        key = (model, epoch, View(roles, crop))
        if key not in self._embedded:  # once a run, however many layers and searches read it
            self._embedded[key] = embed_view(self.context, model, epoch, key[2], self.shard, self.splits, self.layers)
        return self._embedded[key]

    def searches(self) -> list[Searches]:
        """Every layer, epoch, crop and pair; the headline's setting first."""
        recipe, k = self.recipe, max(self.recipe.decode.k)
        found = []
        for epoch in recipe.epochs:
            for crop in recipe.crops:
                for layer in recipe.layers:
                    for pair in range(recipe.pairs):
                        refs, public = [], []
                        for direction in DIRECTIONS:
                            model = self.models[pair, direction]
                            queries = self.embed(model, epoch, TARGET, REFERENCE, crop=crop)
                            public.append(self.embed(model, epoch, PUBLIC))
                            refs.append(search_neighbors(self.context, queries, public[-1], layer, k))
                        found.append(Searches(pair, layer, epoch, crop.mode, (refs[0], refs[1]), public[0]))
        return found

    def probes(self) -> list[Ref]:
        """A linear probe on the backbone and the last layer of each model."""
        layers = tuple(dict.fromkeys(("backbone", self.layers[-1])))
        refs = []
        for (pair, direction), model in self.models.items():
            images = self.embed(model, self.recipe.training.epochs, TARGET, REFERENCE, SHARED)
            refs.append(probe_model(self.context, images, self.splits, direction, pair, layers))
        return refs
