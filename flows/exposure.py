"""The exposure audit (Carlini 2019) from text to a page."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from prefect import flow

from flows.running import carry_out
from memlib.audits.exposure import Recipe
from memlib.data.splits import TRAIN
from memlib.data.text import role_of
from memlib.identity import derive_seed
from memlib.models.outside import outside_digest
from memlib.specs import Resources
from memlib.store import Ref
from memlib.training.checkpoint import step_file, weights_file
from memlib.training.fit import TrainingJob
from tasks.exposure import Asked, ask, count, extract, make_corpus, score_exposure
from tasks.exposure_jobs import Search, told
from tasks.exposure_models import CorpusData, ModelAt, OutsideModel
from tasks.exposure_report import write_report
from tasks.reporting import publish, run_id
from tasks.runtime import Context
from tasks.training import train_models

NONE, ALL = "no canary", "all canaries"


STAGES = ("secret/corpus", "train", "perplexities", "ranks", "secret/extract", "score_exposure", "report")


@flow(name="exposure", validate_parameters=True)
def exposure(
    recipe: Recipe,
    store: str,
    resources: Resources = Resources(),
    quiet: bool = False,
    force: tuple[str, ...] = (),
    cascade: bool = False,
) -> dict[str, Any]:
    """Audits how much of inserted secrets language models give away, in bits, and extracts them.

    Args:
        recipe: text, canaries, model, training, scores, search and report.
        store: folder or s3:// prefix for artifacts, results and reports.
        resources: machines; changes no result.
        quiet: no progress.
        force: stages that are computed again, though they are there.
        cascade: train models again whose inputs were made again and came out otherwise.

    Returns:
        the run's manifest.
    """
    return carry_out("exposure", audit, recipe, store, resources, quiet=quiet, force=force, cascade=cascade)


def audit(context: Context, recipe: Recipe) -> dict[str, Any]:
    """The audit from data to a page; returns the run's manifest."""
    level = recipe.score.alpha / (2 * len(recipe.cells))
    corpus: Ref = make_corpus(context, recipe.data, recipe.canaries, elsewhere=recipe.trained is not None, level=level)
    data = CorpusData(context.store, corpus, recipe.data, recipe.canaries, recipe.trained)
    for cell in recipe.cells.values():
        _check_known(cell, replace(data, canaries=cell.canaries))
    jobs = _jobs(recipe, data)
    trained: list[Ref] = train_models(context, [job for _, _, _, job in jobs]) if jobs else []
    asked = (
        [_outside(recipe, data)]
        if recipe.trained is not None
        else [
            model
            for (variant, seed, seen, _), ref in zip(jobs, trained, strict=True)
            for model in _checkpoints(context, recipe, data, variant, seed, seen, ref)
        ]
    )
    costs: list[Ref] = ask(context, asked)
    counts: list[Ref] = count(context, asked, costs)
    searches: list[Ref] = extract(context, _searches(recipe, asked))
    scores: Ref = score_exposure(context, recipe, asked, costs, counts, searches)
    run = run_id(recipe, scores)
    report: Ref = write_report(context, recipe, run, scores, data)
    artifacts = {"corpus": str(corpus), "scores": str(scores), "report": str(report)}
    artifacts |= {job.name: str(ref) for (_, _, _, job), ref in zip(jobs, trained, strict=True)}
    artifacts |= {f"search {number}": str(ref) for number, ref in enumerate(searches)}
    found: dict[str, Any] = publish(context, recipe, run, scores, report, artifacts)
    return found


def _check_known(recipe: Recipe, data: CorpusData) -> None:
    """Finds a search that has nothing to search for before anything is trained."""
    for known in recipe.extraction.known if recipe.extraction is not None else ():
        told(data.space, data.choices((0,))[0], known)


def _jobs(recipe: Recipe, data: CorpusData) -> list[tuple[str, int, dict[int, int], TrainingJob]]:
    """(variant, seed, insertions of the canaries it sees by id, job) of every model that is trained."""
    if recipe.trained is not None:
        return []
    insertions = dict(zip(data.table["canary"].to_pylist(), data.table["insertions"].to_pylist(), strict=True))
    inserted = {canary: times for canary, times in insertions.items() if times}
    groups: dict[str, dict[int, int]] = {role_of(canary): {canary: times} for canary, times in inserted.items()}
    if recipe.canaries.together or recipe.canaries.file is not None:
        groups = {ALL: inserted}
    elif recipe.canaries.never:
        groups[NONE] = {}
    jobs = []
    for variant, cell in recipe.cells.items():
        assert cell.training is not None
        for group, seen in groups.items():
            for seed in range(recipe.seeds):
                training = cell.training.model_copy(update={"seed": derive_seed(cell.training.seed, "model", seed)})
                job = TrainingJob(
                    name=" ".join(filter(None, [variant, group, str(seed)])),
                    model=cell.model,
                    training=training,
                    num_classes=len(data.vocabulary),
                    shard=data.corpus,
                    splits=data.corpus,
                    roles=(TRAIN, *(role_of(canary) for canary in seen)),
                )
                jobs.append((variant, seed, seen, job))
    return jobs


def _checkpoints(
    context: Context, recipe: Recipe, data: CorpusData, variant: str, seed: int, seen: dict[int, int], model: Ref
) -> list[Asked]:
    """A model at each of its checkpoints, asked for the canaries it saw; one that saw all or none also for the others."""
    cell = recipe.cells[variant]
    assert cell.training is not None
    whole = recipe.canaries.together or recipe.canaries.file is not None or not seen
    asked = data.table["canary"].to_pylist() if whole else list(seen)
    insertions = tuple(seen.get(canary, 0) for canary in asked)
    manifest = context.store.manifest(model)
    files, length = manifest["files"], manifest["facts"]["steps_per_epoch"]  # stopped early, later ones were not reached
    kept: list[tuple[float, int | None]] = [
        (float(epoch), None) for epoch in cell.training.kept_epochs if weights_file(epoch) in files
    ]
    whole_epochs = {epoch for epoch, _ in kept}
    within = {step: step / length for step in cell.training.checkpoint_steps if step_file(step) in files}
    kept += [(epoch, step) for step, epoch in within.items() if epoch not in whole_epochs]
    mine = replace(data, canaries=cell.canaries)
    return [
        Asked(
            variant,
            seed,
            ModelAt(mine, model, epoch, cell.quantize, cell.score.precision, step),
            cell.score,
            tuple(asked),
            insertions,
        )
        for epoch, step in sorted(kept, key=lambda at: at[0])
    ]


def _outside(recipe: Recipe, data: CorpusData) -> Asked:
    """The model that was trained elsewhere, asked for all canaries."""
    assert recipe.trained is not None
    model = OutsideModel(data, outside_digest(recipe.trained), recipe.score.precision)
    ids, insertions = data.table["canary"].to_pylist(), data.table["insertions"].to_pylist()
    return Asked("", 0, model, recipe.score, tuple(ids), tuple(insertions))


def _searches(recipe: Recipe, asked: Sequence[Asked]) -> list[Search]:
    """Searches in each model's last checkpoint: one for all canaries it saw, and where symbols are told one for each."""
    how = recipe.extraction
    if how is None:
        return []
    last = {(m.variant, m.seed, m.at.model): m for m in asked}  # in order of epochs
    found = []
    for model in last.values():
        seen = {c: times for c, times in zip(model.canaries, model.insertions, strict=True) if times}
        for known in how.known if seen else ():
            groups = [tuple(seen)] if known == 0 else [(canary,) for canary in seen]
            found += [
                Search(model.at, model.variant, model.seed, group, tuple(seen[c] for c in group), known, how)
                for group in groups
            ]
    return found
