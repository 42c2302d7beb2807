"""The membership audit, from data or documents to report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from memlib.audits.arrangement import check_flow
from memlib.audits.last_stages import run_id
from memlib.audits.membership.documents.asked import AskDocuments, JoinScores, ask_for_documents, say_what_is_sent
from memlib.audits.membership.documents.recipe import DocumentsRecipe
from memlib.audits.membership.documents.stages import (
    MakeDocuments,
    ObserveDocuments,
    ReadDocumentMembers,
    ReportDocuments,
    ScoreDocuments,
    StoredDocuments,
    TrainDocuments,
    training_data,
)
from memlib.audits.membership.recipe import Recipe
from memlib.audits.membership.shadows import (
    Answers,
    FitEstimators,
    Observe,
    TrainOwn,
    TrainSubset,
)
from memlib.audits.membership.stages import Report, Score
from memlib.audits.membership.supplied import ReadMembers, ReadOutputs
from memlib.audits.membership.target import Columns, Loaded, QueryTarget, ReadColumns, Refitted, TargetAnswers
from memlib.data.splits import TRAIN
from memlib.data.stages import Decode, DecodeBlock, HoldOut, Shard, TrainingData, decode
from memlib.data.subsets import TARGET, Subsets, name_of
from memlib.identity import derive_seed
from memlib.observe.models import Trained
from memlib.observe.served import CheckService
from memlib.observe.stages import CheckpointNorms
from memlib.pipeline.stage import Artifact, Runner
from memlib.runs.records import RunRecord
from memlib.specs import ClassifierSpec, InfluenceSpec, OwnSpec, PretrainedSpec, ServedSpec, SupervisedSpec
from memlib.training.pretrained import Pretrained, TakeOver
from memlib.training.small_nets import TrainSubsets

if TYPE_CHECKING:
    from memlib.observe.token_scores import TokenScores

OF_EXAMPLES = (
    DecodeBlock, Decode, HoldOut, ReadColumns, ReadMembers, ReadOutputs, TrainSubsets, TrainSubset, FitEstimators, TrainOwn,
    Observe, CheckpointNorms, QueryTarget, Score, Report,
)  # fmt: skip
OF_DOCUMENTS = (
    TakeOver, MakeDocuments, ReadDocumentMembers, TrainDocuments, ObserveDocuments, CheckService, AskDocuments, JoinScores,
    ScoreDocuments, ReportDocuments,
)  # fmt: skip
STAGES = (*OF_EXAMPLES, *OF_DOCUMENTS)


def absent(recipe: Recipe) -> set[type[Any]]:
    """Return the stages that a recipe leaves out."""
    if isinstance(recipe, DocumentsRecipe):
        return _absent_of_documents(recipe)
    is_net = isinstance(recipe.model, ClassifierSpec)
    is_small = is_net and recipe.model.stackable  # type: ignore[union-attr]
    used = {
        ReadColumns: bool(recipe.score.subgroup or recipe.score.hidden),
        QueryTarget: recipe.queries_target,
        ReadMembers: recipe.target.is_external,
        ReadOutputs: recipe.target.outputs is not None,
        TrainSubsets: is_small,
        TrainSubset: is_net and not is_small,
        FitEstimators: recipe.model is not None and not is_net and not isinstance(recipe.model, OwnSpec),
        TrainOwn: isinstance(recipe.model, OwnSpec),
        CheckpointNorms: recipe.score.self_influence,
        Observe: is_net or recipe.target.trained is not None,
    }
    return {*OF_DOCUMENTS, *(stage for stage, is_used in used.items() if not is_used)}


def _absent_of_documents(recipe: DocumentsRecipe) -> set[type[Any]]:
    used = {
        TakeOver: isinstance(recipe.model, PretrainedSpec),
        ReadDocumentMembers: recipe.target.is_external,
        TrainDocuments: recipe.trains,
        ObserveDocuments: not recipe.sends_texts,
        CheckService: recipe.is_served,
        AskDocuments: recipe.is_served,
        JoinScores: recipe.is_served,
    }
    return {*OF_EXAMPLES, *(stage for stage, is_used in used.items() if not is_used)}


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the audit from data to report; return the run's manifest, or None in a plan."""
    if isinstance(recipe, DocumentsRecipe):
        return _audit_documents(runner, recipe)
    shard = decode(runner, recipe.data)
    splits = runner.run(HoldOut(recipe.split, shard))
    data = TrainingData(shard, splits)
    columns = _columns(runner, recipe, shard)
    members, target = _external(runner, recipe, data)
    groups = _groups(recipe, trains_target=target is None)
    subsets = [Subsets(data, group, recipe.shadows.share, recipe.shadows.seed) for group in groups]
    models = _trained(runner, recipe, subsets)
    answers = _answers(runner, recipe, data, subsets, models)
    if target is None:
        target, *answers = answers
    shadows = [each for each in subsets if each.numbers != (TARGET,)]
    queried = _queried(runner, recipe, data, subsets, models, columns)
    norms = _norms(runner, recipe, data, models)
    scores = runner.run(Score(recipe, data, shadows, answers, target, members, columns=columns, queried=queried, norms=norms))
    report = runner.run(Report(recipe, run_id(recipe, scores), scores, data))
    return runner.publish(recipe, scores, report, {"shard": shard, "splits": splits, "target": target})


def _audit_documents(runner: Runner, recipe: DocumentsRecipe) -> RunRecord | None:
    """Run the audit of documents: read them, train models on documents drawn by coins, score all documents under each."""
    if recipe.is_served:
        say_what_is_sent(runner, recipe)
    base = runner.run(TakeOver(recipe.model)) if isinstance(recipe.model, PretrainedSpec) else None
    packed = recipe.windows == "packed"
    corpus = runner.run(MakeDocuments(recipe.data, recipe.shortest, recipe.split.group, base, recipe.scored, packed))
    data, external = training_data(corpus), recipe.target.trained
    numbers = [*([] if external is not None else [TARGET]), *range(recipe.shadows.count)]
    subsets = [Subsets(data, (number,), recipe.shadows.share, recipe.shadows.seed) for number in numbers]
    members = None if recipe.target.members is None else runner.run(ReadDocumentMembers(data, recipe.target.members, corpus))
    trained = runner.run_all([_language_model(recipe, each, corpus, base) for each in subsets])
    epoch, share = 0 if recipe.training is None else recipe.training.epochs, recipe.score.lowest
    of_base = None if base is None else runner.run(ObserveDocuments(corpus, base, 0, share, None))
    found: list[Artifact[TokenScores]] = []
    services: dict[str, Any] = {}
    if recipe.is_served:
        target, of_base, services = ask_for_documents(runner, recipe, corpus, base, of_base)
    else:
        assert not isinstance(external, ServedSpec)
        outside = [] if external is None else [ObserveDocuments(corpus, external, 0, share, of_base)]
        observed = [ObserveDocuments(corpus, model, epoch, share, of_base) for model in trained]
        target, *found = runner.run_all([*outside, *observed])
    shadows = [each for each in subsets if each.numbers != (TARGET,)]
    scores = runner.run(
        ScoreDocuments(recipe, data, shadows, found, target, members, corpus, of_base, **services)
    )  # fmt: skip
    report = runner.run(ReportDocuments(recipe, run_id(recipe, scores), scores, data, corpus, target))
    return runner.publish(recipe, scores, report, {"documents": corpus, "target": target})


def _language_model(
    recipe: DocumentsRecipe, subsets: Subsets, corpus: Artifact[StoredDocuments], base: Artifact[Pretrained] | None
) -> TrainDocuments:
    """Return the training of one language model, from scratch or from a pretrained one."""
    assert recipe.training is not None
    assert not isinstance(recipe.model, ServedSpec), "the recipe refuses to train a model behind a service"
    (number,), data = subsets.numbers, subsets.data
    (seed,) = _seeds(recipe.training.seed, subsets.numbers)
    training = recipe.training.model_copy(update={"seed": seed})
    return TrainDocuments(
        name_of(number), recipe.model, training, 0, data.shard, data.splits, (TRAIN,), base=base, subsets=subsets,
        corpus=corpus,
    )  # fmt: skip


def _external(runner: Runner, recipe: Recipe, data: TrainingData) -> tuple[Artifact[Any] | None, Artifact[Answers] | None]:
    """Return the members and the answers of an external target, before anything is trained; None if memlib trains it."""
    target = recipe.target
    if target.members is None:
        return None, None
    members = runner.run(ReadMembers(data, target.members))
    if target.outputs is not None:
        return members, runner.run(ReadOutputs(data, target.outputs, members))
    assert target.trained is not None
    return members, runner.run(Observe(data, target.trained, 0, recipe.queries))


def _groups(recipe: Recipe, *, trains_target: bool) -> list[tuple[int, ...]]:
    """Return the models that are trained together: the target by itself, shadow models in chunks, large ones singly."""
    is_large = recipe.are_nets and not getattr(recipe.model, "stackable", False)
    size, count = 1 if is_large else recipe.shadows.chunk, recipe.shadows.count
    shadows = [tuple(range(start, min(start + size, count))) for start in range(0, count, size)]
    return [(TARGET,), *shadows] if trains_target else shadows


def _columns(runner: Runner, recipe: Recipe, shard: Artifact[Shard]) -> Artifact[Columns] | None:
    """Read the columns of a table that the settings of the scores name; return None if they name none."""
    score = recipe.score
    if not score.subgroup and not score.hidden:
        return None
    return runner.run(ReadColumns(recipe.data, shard, score.subgroup, score.hidden))


def _trained(runner: Runner, recipe: Recipe, subsets: Sequence[Subsets]) -> Sequence[Trained]:
    """Train the networks of each group, each on its own subset of the pool; estimators are fitted where they are queried."""
    if not isinstance(recipe.model, ClassifierSpec):
        return ()
    training = recipe.training
    assert training is not None
    if not recipe.model.stackable:
        return runner.run_all([_large(recipe, each) for each in subsets])
    return runner.run_all(
        [TrainSubsets(each, recipe.model, training, _seeds(training.seed, each.numbers)) for each in subsets]
    )


def _answers(
    runner: Runner, recipe: Recipe, data: TrainingData, subsets: Sequence[Subsets], models: Sequence[Trained]
) -> list[Artifact[Answers]]:
    """Query the models of each group; estimators are fitted by the same stage."""
    if recipe.model is None:
        return []
    if isinstance(recipe.model, OwnSpec):
        given = recipe.model.given
        seed = recipe.shadows.seed if recipe.training is None else recipe.training.seed
        return runner.run_all(
            [TrainOwn(each, given, recipe.training, _seeds(seed, each.numbers), recipe.queries) for each in subsets]
        )
    if not isinstance(recipe.model, ClassifierSpec):
        kind, seed = recipe.model, recipe.shadows.seed
        return runner.run_all([FitEstimators(each, kind, _seeds(seed, each.numbers)) for each in subsets])
    training = recipe.training
    assert training is not None
    earlier = training.earlier_epochs if recipe.follows else ()
    return runner.run_all([Observe(data, each, training.epochs, recipe.queries, earlier) for each in models])


def _queried(
    runner: Runner, recipe: Recipe, data: TrainingData, subsets: Sequence[Subsets], models: Sequence[Trained],
    columns: Artifact[Columns] | None,
) -> Artifact[TargetAnswers] | None:  # fmt: skip
    """Query the target of a table for its outputs and for its hidden columns, if the scores need them."""
    if not recipe.queries_target:
        return None
    return runner.run(QueryTarget(data, _target(recipe, subsets, models), columns if recipe.score.hidden else None))


def _norms(
    runner: Runner, recipe: Recipe, data: TrainingData, models: Sequence[Trained]
) -> Sequence[Artifact[NDArray[np.float64]]]:
    """Compute gradient norms of the target after each kept epoch, if the recipe includes self-influence."""
    training = recipe.training
    if training is None or not recipe.score.self_influence:
        return ()
    assert isinstance(training.objective, SupervisedSpec)
    smoothing = training.objective.label_smoothing
    stages = [
        CheckpointNorms(data, models[0], epoch, None, InfluenceSpec(), None, smoothing) for epoch in training.kept_epochs
    ]
    return runner.run_all(stages)


def _target(recipe: Recipe, subsets: Sequence[Subsets], models: Sequence[Trained]) -> Refitted | Loaded:
    """Return the target: an external model, or the first of the models that memlib trains."""
    if recipe.target.trained is not None:
        return Loaded(recipe.target.trained, 0)
    assert recipe.model is not None
    assert not isinstance(recipe.model, OwnSpec), "the recipe refuses it without an external target"
    if not isinstance(recipe.model, ClassifierSpec):
        return Refitted(subsets[0], recipe.model, _seeds(recipe.shadows.seed, subsets[0].numbers)[0])
    assert recipe.training is not None
    return Loaded(models[0], recipe.training.epochs)


def _large(recipe: Recipe, subsets: Subsets) -> TrainSubset:
    """Return the training of one large network."""
    assert isinstance(recipe.model, ClassifierSpec)
    assert recipe.training is not None
    (number,), data = subsets.numbers, subsets.data
    (seed,) = _seeds(recipe.training.seed, subsets.numbers)
    return TrainSubset(
        name_of(number), recipe.model, recipe.training.model_copy(update={"seed": seed}), data.num_classes, data.shard,
        data.splits, (TRAIN,), subsets=subsets,
    )  # fmt: skip


def _seeds(seed: int, numbers: Sequence[int]) -> tuple[int, ...]:
    return tuple(derive_seed(seed, "model", number) for number in numbers)


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `membership` when it is asked for."""
    check_flow("membership", name)
    from flows.deployed import audit_flow

    return audit_flow("membership")
