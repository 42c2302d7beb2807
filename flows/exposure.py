"""The exposure audit (Carlini 2019), from text to report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memlib.audits.arrangement import check_flow
from memlib.audits.exposure.asked import (
    AskAnswers,
    AskCandidates,
    JoinCosts,
    JoinExtraction,
    ServedModel,
    ask_for_costs,
    say_what_is_sent,
)
from memlib.audits.exposure.models import CorpusData, ExternalModel, ModelAt
from memlib.audits.exposure.observing import Costs, Discover, Perplexities, Ranks, Search, reference_rng, told
from memlib.audits.exposure.ranks import FitLaw, ScoredModel, law_stages, rank_stages
from memlib.audits.exposure.recipe import Recipe, SanitizeSpec
from memlib.audits.exposure.sanitizing import HALVES, Halve, Sanitize, left
from memlib.audits.exposure.stages import MakeCorpus, Report, Score
from memlib.audits.last_stages import run_id
from memlib.data.splits import TRAIN
from memlib.data.stages import Decode, Split
from memlib.data.text.corpus import role_of
from memlib.data.text.formats import Worded
from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.models.external.factory import external_language_digest
from memlib.observe.served import CheckService
from memlib.pipeline.stage import AnyArtifact, Artifact, Runner
from memlib.runs.records import RunRecord
from memlib.specs import HuggingFaceSpec, PretrainedSpec, ProtocolSpec, ServedSpec
from memlib.specs.subject import TrainIt
from memlib.training.files import step_file, weights_file
from memlib.training.fit import Train, TrainedModel
from memlib.training.pretrained import TakeOver

OF_SERVICE = (CheckService, AskCandidates, JoinCosts, AskAnswers, JoinExtraction)
STAGES = (
    TakeOver, MakeCorpus, Halve, Train, Sanitize, Perplexities, *OF_SERVICE, Ranks, FitLaw, Search, Discover, Score, Report,
)  # fmt: skip
NONE, ALL = "no canary", "all canaries"


def absent(recipe: Recipe) -> set[type[Any]]:
    """Return the stages that a recipe leaves out."""
    return {Perplexities} if isinstance(recipe.trained, ServedSpec) else set(OF_SERVICE)


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the audit from text to report; return the run's manifest, or None in a plan."""
    data = _data(runner, recipe)
    models = _models(recipe, data)
    if recipe.sanitize is not None:
        models = _sanitized(runner, recipe, recipe.sanitize, data, models)
    trained = runner.run_all([model.stage for model in models])
    scored = [] if isinstance(recipe.subject, TrainIt) else [_external(recipe, recipe.subject, data)]
    services: dict[str, Any] = {}
    for model, artifact in zip(models, trained, strict=True):
        scored += _checkpoints(recipe, data, model, artifact)
    costs: list[Artifact[Costs]]
    if isinstance(recipe.trained, ServedSpec):
        of_service, searches, services = ask_for_costs(runner, recipe, scored[0])
        costs = [of_service]
    else:
        searches = []
        costs = runner.run_all([Perplexities(m.at, m.canaries, m.config.references, m.config.seed) for m in scored])
    counts = runner.run_all([stage for _, _, stage in rank_stages(scored, costs)])
    tests = law_stages(scored, costs, counts)
    laws = dict(zip(tests, runner.run_all(list(tests.values())), strict=True))
    searches = searches or runner.run_all(_searches(recipe, scored))
    documents = runner.run_all(_discoveries(recipe, scored))
    scores = runner.run(Score(recipe, scored, costs, counts, laws, searches, documents, **services))
    report = runner.run(Report(recipe, run_id(recipe, scores), scores, data))
    named: dict[str, AnyArtifact] = {"corpus": data.corpus}
    named |= {} if data.base is None else {"base": data.base}
    named |= {model.stage.name: artifact for model, artifact in zip(models, trained, strict=True)}
    named |= {f"search {number}": search for number, search in enumerate(searches)}
    return runner.publish(recipe, scores, report, named)


def _data(runner: Runner, recipe: Recipe) -> CorpusData:
    """Make the corpus. Before any training, refuse impossible settings and warn if no given secret could be detected."""
    base = None
    if isinstance(recipe.subject, TrainIt) and isinstance(recipe.subject.model, PretrainedSpec):
        base = runner.run(TakeOver(recipe.subject.model))
    stage = MakeCorpus(recipe.data, recipe.canaries, elsewhere=recipe.trained is not None, base=base)
    if isinstance(recipe.trained, ServedSpec):
        say_what_is_sent(runner, recipe, recipe.trained, len(stage.given.known) + len(stage.given.unseen))
    if problem := stage.missing(level=recipe.score.level / (2 * len(recipe.cells))):
        runner.warn(problem)
    data = CorpusData(runner.run(stage), recipe.data, recipe.canaries, recipe.trained, base)
    for cell in recipe.cells.values():
        _check_known(cell, replace(data, canaries=cell.canaries))
    return data


def _check_known(recipe: Recipe, data: CorpusData) -> None:
    """Before any training, refuse searches with nothing left to find and candidates that the model cannot read."""
    if isinstance(data.space, Worded) and getattr(recipe.model, "architecture", "") == "transformer":
        _check_longest(data.space, len(data.context), recipe.data.window)
    if data.base is not None:
        data.base.content.check_precision(recipe.score.precision)
        references = data.space.sample(recipe.score.references, reference_rng(recipe.score.seed))
        for candidates in (references, data.choices(tuple(data.table["canary"].to_pylist()))):
            data.space.tokens(candidates)
    for known in recipe.extraction.known if recipe.extraction is not None else ():
        told(data.space, data.choices((0,))[0], known)


def _check_longest(space: Worded, known: int, window: int) -> None:
    """Refuse words that, spelled after the start symbol and the known prefix, may be longer than a transformer's window."""
    if 1 + known + space.longest > window:
        raise UserError(
            f"the longest candidate has {space.longest} symbols and follows {1 + known} others, but the transformer reads "
            f"{window}; raise data.window or lower canaries.words"
        )


@dataclass(frozen=True)
class _Model:
    """A model to be trained: its variant, its seed, the number of insertions of each canary, and the stage."""

    variant: str
    seed: int
    seen: Mapping[int, int]
    stage: Train


def _models(recipe: Recipe, data: CorpusData) -> list[_Model]:
    """Return every model to be trained: one per variant, group of canaries and seed."""
    shard, splits = data.corpus.seen_as(Decode), data.corpus.seen_as(Split)
    insertions = dict(zip(data.table["canary"].to_pylist(), data.table["insertions"].to_pylist(), strict=True))
    inserted = {canary: times for canary, times in insertions.items() if times}
    groups: dict[str, dict[int, int]] = {role_of(canary): {canary: times} for canary, times in inserted.items()}
    if recipe.canaries.together or recipe.canaries.file is not None:
        groups = {ALL: inserted}
    elif recipe.canaries.never:
        groups[NONE] = {}
    models = []
    for variant, cell in recipe.cells.items():
        subject = cell.subject
        if not isinstance(subject, TrainIt):
            continue
        for group, seen in groups.items():
            for seed in range(recipe.seeds):
                training = subject.training.model_copy(update={"seed": derive_seed(subject.training.seed, "model", seed)})
                stage = Train(
                    name=" ".join(filter(None, [variant, group, str(seed)])),
                    model=subject.model,
                    training=training,
                    num_classes=len(data.corpus.content.symbols),
                    shard=shard,
                    splits=splits,
                    roles=(TRAIN, *(role_of(canary) for canary in seen)),
                    base=data.base,
                )
                models.append(_Model(variant, seed, seen, stage))
    return models


def _sanitized(runner: Runner, recipe: Recipe, how: SanitizeSpec, data: CorpusData, models: Sequence[_Model]) -> list[_Model]:
    """Train on halves of the text and remove what the two models disagree about; the sanitized variant trains on the rest.

    The halves are trained once, like the first model; all seeds of the sanitized variant share the sanitized text.
    """
    first, training = models[0].stage, recipe.training
    assert training is not None
    halves = runner.run(Halve(data.corpus, first.roles, how.seed))
    stages = [
        replace(
            first, name=half, splits=halves, roles=(half,),
            training=first.training.model_copy(update={"checkpoint_epochs": (), "checkpoint_steps": ()}),
        )
        for half in HALVES
    ]  # fmt: skip
    epoch, precision = float(training.epochs), recipe.score.precision
    one, other = (ModelAt(data, model, epoch, recipe.quantize, precision) for model in runner.run_all(stages))
    splits = runner.run(Sanitize(data.corpus, first.roles, (one, other), how.share))
    seen = left(splits, {canary: role_of(canary) for canary in models[0].seen})
    return [
        model
        if recipe.cells[model.variant].sanitize is None
        else replace(model, seen=seen, stage=replace(model.stage, splits=splits))
        for model in models
    ]


def _checkpoints(recipe: Recipe, data: CorpusData, model: _Model, trained: Artifact[TrainedModel]) -> list[ScoredModel]:
    """Return a model at each of its checkpoints, with the canaries to score: those that it saw, or all if it saw none."""
    cell, seen, training = recipe.cells[model.variant], model.seen, model.stage.training
    whole = recipe.canaries.together or recipe.canaries.file is not None or not seen
    scored = data.table["canary"].to_pylist() if whole else list(seen)
    insertions = tuple(seen.get(canary, 0) for canary in scored)
    files, length = trained.files, trained.facts["steps_per_epoch"]  # training may have stopped before later checkpoints
    kept: list[tuple[float, int | None]] = [
        (float(epoch), None) for epoch in training.kept_epochs if weights_file(epoch) in files
    ]
    whole_epochs = {epoch for epoch, _ in kept}
    within = {step: step / length for step in training.checkpoint_steps if step_file(step) in files}
    kept += [(epoch, step) for step, epoch in within.items() if epoch not in whole_epochs]
    variant_data = replace(data, canaries=cell.canaries)
    return [
        ScoredModel(
            model.variant,
            model.seed,
            ModelAt(variant_data, trained, epoch, cell.quantize, cell.score.precision, step, cell.score.cache_gb),
            cell.score,
            tuple(scored),
            insertions,
        )
        for epoch, step in sorted(kept, key=lambda at: at[0])
    ]


def _external(recipe: Recipe, trained: HuggingFaceSpec | ProtocolSpec | ServedSpec, data: CorpusData) -> ScoredModel:
    """Return the external model, with all canaries to score."""
    model: ExternalModel | ServedModel
    if isinstance(trained, ServedSpec):
        model = ServedModel(data, trained)
    else:
        digest = external_language_digest(trained)
        model = ExternalModel(data, digest, recipe.score.precision, cache_gb=recipe.score.cache_gb)
    ids, insertions = data.table["canary"].to_pylist(), data.table["insertions"].to_pylist()
    return ScoredModel("", 0, model, recipe.score, tuple(ids), tuple(insertions))


def _last(scored: Sequence[ScoredModel]) -> list[ScoredModel]:
    """Return each model at its last checkpoint."""
    return list({(m.variant, m.seed, m.at.model): m for m in scored}.values())  # in order of epochs


def _discoveries(recipe: Recipe, scored: Sequence[ScoredModel]) -> list[Discover]:
    """Return one search for training documents per variant and seed: models that differ only in canaries share the text."""
    how = recipe.discoverable
    if how is None:
        return []
    first: dict[tuple[str, int], ScoredModel] = {}
    for model in _last(scored):
        first.setdefault((model.variant, model.seed), model)
    return [Discover(model.at, model.variant, model.seed, how) for model in first.values()]


def _searches(recipe: Recipe, scored: Sequence[ScoredModel]) -> list[Search]:
    """Return searches in each model's last checkpoint: one for the canaries it saw, or one for each if symbols are given."""
    how = recipe.extraction
    if how is None or isinstance(recipe.trained, ServedSpec):
        return []
    searches = []
    for model in _last(scored):
        seen = {c: times for c, times in zip(model.canaries, model.insertions, strict=True) if times}
        for known in how.known if seen else ():
            groups = [tuple(seen)] if known == 0 else [(canary,) for canary in seen]
            searches += [
                Search(model.at, model.variant, model.seed, group, tuple(seen[c] for c in group), known, how)
                for group in groups
            ]
    return searches


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `exposure` when it is asked for."""
    check_flow("exposure", name)
    from flows.deployed import audit_flow

    return audit_flow("exposure")
