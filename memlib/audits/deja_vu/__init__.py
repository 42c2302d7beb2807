"""Déjà vu audit: does a model name the object of a training image from its background alone? (Meehan 2023)

A background crop of a training image is embedded, and its k nearest public images vote on the object's class. The
target model was trained on the image and the reference model was not, so whatever the target knows beyond the
reference is memory rather than correlation (sections 3.1 and 4):

    score(p) = accuracy of the target on its p % most confident crops - accuracy of the reference on its own p %

Each example falls into one of four categories (section 4.2): memorized (only the target is right),
misrepresented (only the reference), correlated (both), unassociated (neither). Chance produces memorized and
misrepresented examples equally often, so the share excess, memorized - misrepresented, measures memory beyond
chance. The sets A and B are exchangeable, so with two models every number averages both directions: the models on
their own sets, (A on A + B on B) / 2, against the models on each other's sets, (B on A + A on B) / 2. With `reference`,
the target is the only model, and a classifier of background crops takes the second model's place; a number is then the
value on the training images A minus the value on the held-out images B.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memlib.audits.attacks import IMAGES, WEIGHTS, Attack, DataFacts, in_family, metric_begins
from memlib.audits.base import Audit, Cell, Exported, Judgement, Leak, Metric
from memlib.audits.cells import CellSpec
from memlib.audits.deja_vu.answers import rankings, trainings
from memlib.audits.deja_vu.recipe import BEYOND, HEADLINE, HEADLINES, NOT_SHOWN, STABILITY, Recipe
from memlib.audits.deja_vu.tables import NEIGHBORS, RECONSTRUCTIONS, UNITS
from memlib.pipeline.stage import Runner
from memlib.tables import COMMON

if TYPE_CHECKING:
    from memlib.findings import Finding, Findings
    from memlib.runs.run import Run


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Return whether a finding with these params appears in short listings.

    Listed are findings at the headline's setting, probes of earlier checkpoints at the headline's layer, and gains of
    reconstructions that were drawn from neighbours.
    """
    if "measure" in params:  # of a reconstruction
        return params["source"] == NEIGHBORS and "by" not in params
    if "probe_layer" in params and "epoch" in params:
        return bool(params["probe_layer"] == headline.get("layer"))
    setting = ("layer", "epoch", "crop", "k", "direction")
    return all(name not in params or params[name] == headline.get(name) for name in setting)


def _limits(recipe: Recipe) -> Iterable[str]:
    from memlib.audits.deja_vu.verdict import limits  # loads scipy

    return limits(recipe)


def _compare(cells: Sequence[Cell]) -> Findings:
    from memlib.audits.deja_vu.comparison import compare  # loads scipy

    return compare(cells)


def _utility(findings: Findings) -> Finding | None:
    from memlib.audits.deja_vu.comparison import utility  # loads scipy

    return utility(findings)


def _exported(runner: Runner, recipe: Recipe) -> Exported:
    """Return all background crops and whole images that the audit shows to encoders, with the set of each example."""
    from memlib.audits.deja_vu.embedding import SET_OF, pictures_of, shown_rows, views_of
    from memlib.data.stages import Split, decode

    shard = decode(runner, recipe.data)
    splits = runner.run(Split(recipe.split, shard))
    views, table = views_of(recipe), splits.content
    roles = zip(table["example_id"].to_pylist(), table["role"].to_pylist(), strict=True)
    sets = {example: SET_OF[role] for example, role in roles if role in SET_OF}
    count = sum(shown_rows(splits, shard, view).members.num_rows for view in views)
    pictures = (picture for view in views for picture in pictures_of(splits, shard, view))
    return Exported(pictures, count, sets, {side.lower(): f"{side} and C" for side in recipe.directions})


def _gate(run: Run, row: Finding, limit: float) -> Judgement | None:
    from memlib.audits.deja_vu.answers import judge  # loads scipy

    return judge(run, row, limit)


ATTACKS = (
    Attack(
        "object of a training image from its background (déjà vu)", IMAGES, "(i) attribute inference",
        "embeddings of image crops, and public images", WEIGHTS,
    ),
    Attack(
        "attributes of a training image beyond its class", IMAGES, "(i) attribute inference",
        "embeddings of image crops, and public images", WEIGHTS, in_family("beyond the class"),
        "its recipe did not ask for it (beyond)",
    ),
    Attack(
        "pictures of the hidden part of training images (RCDM)", IMAGES, "(v) reconstruction",
        "embeddings of image crops, and a generator trained on public images", WEIGHTS, metric_begins("reconstruction_"),
        "its recipe did not ask for it (reconstruct)",
    ),
)  # fmt: skip


def _cell(facts: DataFacts) -> CellSpec | str:
    """Return a déjà vu audit: with boxes on backgrounds, without them on corners of the images."""
    if facts.model is not None:
        return "for a given model it needs the sets of its training (split.sets); see memlib init --for image-model"
    crop = {"mode": "maximal" if facts.source.has_boxes else "corner"}
    split = {**facts.split, "train_per_class": 40, "public_per_class": 40, "crop": crop}
    return CellSpec(name="deja-vu", recipe="smoke", set={"title": "Déjà vu", "split": split, "decode.k": [10]})


_ADVICE = (
    "Treat the model as confidentially as its training images; train again with fewer epochs or more images, and audit again."
)
LEAKS = {
    HEADLINE: Leak(
        "the object in a training image can be named from its background",
        _ADVICE,
    ),
    STABILITY: Leak(
        "training images can be told from others by how little their embeddings move",
        _ADVICE,
    ),
    BEYOND: Leak(
        "attributes of training images that their class does not tell can be named from their backgrounds",
        _ADVICE,
    ),
}

AUDIT = Audit(
    name="deja-vu",
    question="Does an image model name the object of a training image from its background alone?",
    recipe=Recipe,
    tables=COMMON | {"units": UNITS, RECONSTRUCTIONS.name: RECONSTRUCTIONS},
    in_brief=_in_brief,
    headlines=HEADLINES,
    leaks=LEAKS,
    limits=_limits,
    columns=("share_excess", "deja_vu_score", "knn_accuracy", "sslmem"),
    compare=_compare,
    utility=_utility,
    exported=_exported,
    gate=_gate,
    rankings=rankings,
    metrics={
        "share_excess": Metric("training images whose object is named only with memory", is_share=True),
        "sslmem": Metric("difference in how much embeddings of training and other images move"),
    },
    attacks=ATTACKS,
    cell=_cell,
    trainings=trainings,
    planned_trainings=lambda recipe: 0 if recipe.encoders else recipe.num_pairs,
    not_shown=NOT_SHOWN,
)
