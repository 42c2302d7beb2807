"""Membership audit: who was in the training set?

Shadow models are trained like the target, each on examples (with groups: persons) that were drawn by independent coins. An
attack compares the target's answer to an example with those of models that were and were not trained on it: LiRA (Carlini
2022), RMIA (Zarifzadeh 2024). The target's own coins are the random draw on which the test rests: if its answers do not
depend on them, every other draw was as likely.

    shown         members rank above non-members by more than redraws of the coins explain, or a claimed epsilon is refuted
    bounded       neither, and the upper limits of AUC and true alarms lie below the recipe's bounds
    inconclusive  neither
    descriptive   members were not drawn at random

Documents of a language model are audited alike, by scores of their own tokens (`documents`).

The same models give counterfactual memorization and influence (Feldman and Zhang 2020), and lower bounds of epsilon (Steinke
2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memlib.audits.attacks import IDS, LABELLED, PROBABILITIES, TABLES, TEXTS, Attack, DataFacts, metric_begins
from memlib.audits.base import Audit, Judgement, Leak, Metric
from memlib.audits.cells import CellSpec
from memlib.audits.membership.answers import rankings
from memlib.audits.membership.documents.recipe import DocumentsRecipe
from memlib.audits.membership.recipe import HEADLINES, MEMBERS, NOT_SHOWN, PRIVACY, Recipe, is_of_texts
from memlib.audits.membership.tables import EXAMPLES, INFLUENCE, MODELS, UNITS
from memlib.findings import Finding, Findings
from memlib.specs.text import PairsFileSource, TopicPairsSource
from memlib.tables import COMMON

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memlib.pipeline.stage import Runner
    from memlib.runs.run import Run


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Return whether a finding with these params is part of the brief listing.

    Findings on other attacks than the headline's are left out, as are details (likeness, slices, structure).
    """
    is_detail = bool(params.keys() & {"word", "slice", "structure"})
    return params.get("attack", headline.get("attack")) == headline.get("attack") and not is_detail


def _limits(recipe: Recipe) -> Iterable[str]:
    from memlib.audits.membership.verdict import limits  # loads scipy

    return limits(recipe)


def _utility(findings: Findings) -> Finding | None:
    """Return the target's share of right answers to non-members."""
    return findings.get("utility")


def _opened(recipe: Recipe, found: Mapping[type[Any], Any]) -> Iterable[str]:
    """Yield what is known of a declared draw before anything is trained."""
    from memlib.audits.membership.controls import said_of_draw
    from memlib.audits.membership.documents.stages import MakeDocuments, ReadDocumentMembers
    from memlib.audits.membership.supplied import UNLISTED, ReadMembers
    from memlib.audits.membership.units import Pool
    from memlib.data.given_sets import features_of
    from memlib.data.splits import TRAIN
    from memlib.data.stages import Decode, HoldOut, TrainingData

    members = found.get(ReadDocumentMembers if recipe.reads_texts else ReadMembers)
    if members is None or not recipe.score.blind:
        return
    listed = members.content != UNLISTED
    if recipe.reads_texts:
        documents = found[MakeDocuments].content
        known = replace(documents.features, values=documents.features.values[listed])
        yield from said_of_draw(recipe, documents.table, members.content, known)
        return
    data = TrainingData(found[Decode], found[HoldOut])
    rows = data.members(TRAIN)
    features = features_of(Pool.of(rows, listed).ids, data, recipe.data.source)
    yield from said_of_draw(recipe, rows, members.content, features)


def _queried(runner: Runner, recipe: Recipe) -> tuple[NDArray[Any], dict[str, int]]:
    """Return the stored examples, and the rows of the examples of the pool by id."""
    from memlib.data.splits import TRAIN, select
    from memlib.data.stages import HoldOut, decode
    from memlib.errors import UserError

    if recipe.reads_texts:
        raise UserError("documents are scored by models, not by supplied outputs; give target.trained")
    shard = decode(runner, recipe.data)
    members = select(runner.run(HoldOut(recipe.split, shard)).content, TRAIN)
    return shard.content.images, dict(zip(members["example_id"].to_pylist(), members["row"].to_pylist(), strict=True))


STRUCTURE = {
    "small_cell_rows": "training rows in small cells of equal output and label",
    "pure_rows": "training rows whose class their output gives away (class disclosure)",
    "residual_freedom": "training rows less fitted parameters (residual freedom)",
    "instance_based": "training rows that the model contains as they are (instance-based models)",
}
"""Numbers of `memlib.stats.structure` that a statistical office asks for, in words."""


def _counts(number: str) -> Callable[[Finding], bool]:
    """Return a condition: a finding is a number of the structure of the model's outputs."""
    return lambda finding: finding.metric == "structure" and finding.params["structure"] == number


def _gate(run: Run, row: Finding, limit: float) -> Judgement | None:
    """Compare numbers of the structure with a limit: they are counts over all training rows, with nothing to test."""
    if row.metric != "structure":
        return None
    if row.value > limit:
        return Judgement("failed", f"it is counted over all {row.n:,} training rows, and lies above the limit")
    return Judgement("passed", f"it is counted over all {row.n:,} training rows")


ATTACKS = (
    Attack(
        "membership of single records or persons", LABELLED | IDS, "(i) membership inference",
        "outputs on chosen records, and the means to train models like the target", PROBABILITIES,
    ),
    Attack(
        "membership of documents", TEXTS, "(i) membership inference", "likelihoods of chosen documents", PROBABILITIES,
    ),
    Attack(
        "attribute inference from a table", TABLES, "(i) attribute inference",
        "outputs on records whose hidden column is set to each value", PROBABILITIES, metric_begins("guessed_column"),
        "its recipe did not ask for it (score.hidden)",
    ),
    *(
        Attack(
            f"structure: {name}", TABLES, "", "outputs on the training rows, without an attack", PROBABILITIES,
            _counts(number), is_attack=False,
        )
        for number, name in STRUCTURE.items()
    ),
)  # fmt: skip


def _cell(facts: DataFacts) -> CellSpec | str:
    """Return a membership audit of all data; its target is the given model, if its training examples are listed."""
    if facts.kind == "texts":
        if facts.model is not None:
            return "for a given model it needs the model that was fine-tuned, too; see the recipe membership_documents"
        if isinstance(facts.source, PairsFileSource | TopicPairsSource):
            return "it is about documents; the data are pairs"
        return CellSpec(name="membership", recipe="membership_documents", set={"title": "Membership", "split": facts.split})
    change: dict[str, Any] = {"title": "Membership", "split": facts.split}
    if facts.kind == "ids":
        return "of examples without content it needs scores; memlib look writes its recipe"
    if facts.model is not None and not facts.members:
        return "for a given model it needs the list of the training examples; give --members FILE"
    if facts.model is not None:
        change["target"] = {"trained": facts.model, "members": facts.members}
    if facts.kind != "images":
        return CellSpec(name="membership", recipe="membership_breast_cancer", set={**change, "shadows.share": 0.5})
    change["split"] = {**facts.split, "train_per_class": None, "held_out_per_class": 0}
    return CellSpec(name="membership", recipe="membership_smoke", set=change)


LEAKS = {
    MEMBERS: Leak(
        "as a group, members of the training set can be told from non-members",
        "Train again so that less is memorized (deduplicated data, a simpler model, fewer epochs where there are any, "
        "differential privacy), and audit again; or give out less exact answers, if the page of the audit does not show "
        "attacks on labels alone.",
    ),
    PRIVACY: Leak(
        "the claim of epsilon {epsilon:g} is refuted",
        "Withdraw the claim of differential privacy, and look for the error in the accountant or in the training.",
    ),
}

AUDIT = Audit(
    name="membership",
    question="Who was in the training set of a model?",
    recipe=Recipe,
    tables=COMMON | {"units": UNITS, "examples": EXAMPLES, "models": MODELS, "influence": INFLUENCE},
    in_brief=_in_brief,
    headlines=HEADLINES,
    leaks=LEAKS,
    limits=_limits,
    opened=_opened,
    queried=_queried,
    utility=_utility,
    columns=("auc", "true_alarms", "auc_of_models"),
    variants={"documents": DocumentsRecipe},
    variant_of=lambda content: "documents" if is_of_texts(content) else "",
    rankings=rankings,
    gate=_gate,
    metrics={
        "auc": Metric("AUC: how often a member ranks above a non-member (0.5 by guessing)"),
        "privacy_claim": Metric("lower bound of epsilon"),
        "guessed_column": Metric("values of a hidden column that are guessed only with memory", is_share=True),
    },
    attacks=ATTACKS,
    cell=_cell,
    not_shown=NOT_SHOWN,
)
