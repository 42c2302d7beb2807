"""Membership audits of trained models for which the truth is known: level, power, bounds of epsilon, leaks, and "bounded".

Every world has fresh data, coins and models; all results are those of the audit's own functions. Models are small: estimators
of scikit-learn, and logistic regressions that are trained here with differential privacy.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from benchmarks.validity.harness import Part, Row, crossed, level_lines, rate, table
from memlib.audits.membership.audited import Audited
from memlib.audits.membership.controls import check_draw
from memlib.audits.membership.findings import summarize
from memlib.audits.membership.recipe import Recipe
from memlib.audits.membership.shadows import Answers
from memlib.audits.membership.units import Pool
from memlib.data.stages import TrainingData
from memlib.data.subsets import TARGET, toss
from memlib.findings import DESCRIPTIVE, SHOWN, Findings
from memlib.identity import derive_seed
from memlib.models.estimators import fit_estimator
from memlib.specs import EstimatorSpec, ForestSpec, LogisticSpec, NearestSpec
from memlib.stats.difficulty import CONTRADICTED
from memlib.stats.likelihood import CLIP, log_odds
from memlib.tables import INDEX, SPLITS

SHADOWS, CLASSES = 16, 3
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


# -- worlds ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """Labelled points of persons.

    Attributes:
        points: (num_points, dim).
        labels, persons: (num_points,).
    """

    points: Floats
    labels: Integers
    persons: Integers

    def __len__(self) -> int:
        return len(self.labels)

    def of(self, rows: NDArray[Any]) -> "Sample":
        """Return some of the points."""
        return Sample(self.points[rows], self.labels[rows], self.persons[rows])


def mixture(rng: np.random.Generator, count: int, *, apart: float, dim: int = 8) -> Sample:
    """Draw points of three Gaussian classes, `apart` standard deviations from the origin."""
    labels = rng.integers(0, CLASSES, count)
    points = rng.normal(size=(count, dim))
    points[np.arange(count), labels] += apart
    return Sample(points, labels, np.arange(count))


def crowd(rng: np.random.Generator, count: int, *, apart: float) -> Sample:
    """Draw persons with 1 to 60 points each, which lie around a point of the person's own, four of five in one class."""
    persons = np.repeat(np.arange(count), rng.integers(1, 61, count))
    homes = mixture(rng, count, apart=apart)
    others = rng.random(len(persons)) < 0.2
    labels = np.where(others, rng.integers(0, CLASSES, len(persons)), homes.labels[persons])
    return Sample(homes.points[persons] + 0.5 * rng.normal(size=(len(persons), homes.points.shape[1])), labels, persons)


def recipe(**changes: Any) -> Recipe:
    """Return the recipe of an external target with declared fair coins; `changes` replace its sections."""
    said: dict[str, Any] = {
        "data": {"source": {"kind": "digits"}}, "model": {"kind": "forest"}, "shadows": {"count": SHADOWS},
        "target": {"outputs": {"path": "outputs.csv"}, "members": "members.csv", "drawn": "coins"},
        "score": {"redraws": 999},
    }  # fmt: skip
    return Recipe.model_validate(said | changes)


def scores(spec: EstimatorSpec, training: Sample, queried: Sample, seed: int) -> Floats:
    """Return the log-probabilities (num_points, num_classes) of an estimator."""
    fitted = fit_estimator(spec, training.points, training.labels, num_classes=CLASSES, seed=seed)
    return fitted.class_scores(queried.points)


def answers(class_scores: Sequence[Floats], labels: Integers) -> Answers:
    """Return the answers of models from their class scores, (num_points, num_classes) each."""
    correct = np.stack([each.argmax(axis=1) == labels for each in class_scores])
    return answers_of_odds(np.stack([log_odds(each, labels) for each in class_scores]), correct)


def answers_of_odds(odds: Floats, correct: Bools | None = None) -> Answers:
    """Return the answers of models from log odds (num_models, num_points) of the true class."""
    right = odds > 0 if correct is None else correct
    return Answers(odds[:, None].astype(np.float32), right, np.zeros((len(odds), 0), dtype=bool))


def audited(said: Recipe, sample: Sample, member: Bools, target: Answers, shadows: Answers, inside: Bools) -> Audited:
    """Return what the audit computes of a pool with the answers of a target and of its shadows."""
    ids, names = [f"{place:06d}" for place in range(len(sample))], [str(label) for label in sample.labels.tolist()]
    persons = np.unique(sample.persons, return_inverse=True)[1].astype(np.int64)
    rows = [
        {"example_id": one, "row": row, "role": "train", "label": label, "class_name": str(label), "group": str(person)}
        for row, (one, label, person) in enumerate(zip(ids, sample.labels.tolist(), persons.tolist(), strict=True))
    ]
    return Audited(
        recipe=said,
        pool=Pool(ids, names, sample.labels, persons),
        rows=pa.Table.from_pylist(rows, schema=SPLITS.arrow),
        member=member,
        target=target,
        shadows=shadows,
        inside=inside,
        held_out=SPLITS.arrow.empty_table(),
        is_drawn=said.is_drawn,
    )


def judged(found: Audited) -> Row:
    """Return what an audit says of one target, as whole numbers and a few floats."""
    read = Findings.read(summarize(found, []))
    tests = {ranking.attack: ranking.test for ranking in found.rankings.all}
    bound, claim = read.get("epsilon_lower_bound"), read.get("privacy_claim")
    models, gaussian = read.first("auc_of_models"), read.get("epsilon_if_gaussian")
    head = tests[found.recipe.score.headline]
    return {
        "word": read.verdict.word,
        "members": min((test.adjusted_p for test in tests.values() if test is not None), default=1.0),
        "attacks": {name: 1.0 if test is None else test.p_value for name, test in tests.items()},
        "auc_alone": 1.0 if head is None else head.auc_p, "tail_alone": 1.0 if head is None else head.tail_p,
        "models": models.p_value, "auc": read.head.value,
        "epsilon": 0.0 if bound is None else bound.value,
        "ceiling": 0.0 if bound is None else bound.params["ceiling"],
        "gaussian": 0.0 if gaussian is None else gaussian.value,
        "claim": 1.0 if claim is None else claim.p_adjusted,
    }  # fmt: skip


def seeds(unit: str, worlds: int) -> Iterator[tuple[np.random.Generator, int]]:
    """Yield a generator and a seed for each world of a unit."""
    for world in range(worlds):
        seed = derive_seed(world, "membership", unit) % 2**31
        yield np.random.default_rng(seed), seed


def of_kind(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows by kind."""
    return {kind: [row for row in rows if row["kind"] == kind] for kind in dict.fromkeys(row["kind"] for row in rows)}


def total(rows: Sequence[Row], field: str) -> int:
    """Return the sum of a field."""
    return sum(row[field] for row in rows)


# -- innocent targets -----------------------------------------------------------------------------------

LEVEL, LEVEL_WORLDS, LEVEL_UNITS = 0.05, 20, 20
POINTS, PERSONS, CLAIMED = 120, 30, 0.1
FOREST = ForestSpec(kind="forest", trees=6)


@dataclass(frozen=True)
class Innocent:
    """An innocent target.

    Attributes:
        target: its estimator; the shadows are forests.
        persons: True if membership was drawn by person.
        all_innocent: True if no shadow saw the pool either, so that the test over all models has a null, too.
        shadows: the shadows' estimator.
    """

    target: EstimatorSpec = FOREST
    persons: bool = False
    all_innocent: bool = False
    shadows: EstimatorSpec = FOREST


NEAREST = NearestSpec(kind="nearest", k=1)
INNOCENTS = {
    "like its shadows": Innocent(),
    "logistic regression": Innocent(LogisticSpec(kind="logistic")),
    "overfitted: nearest neighbour": Innocent(NEAREST),
    "underfitted: nearly constant": Innocent(LogisticSpec(kind="logistic", c=1e-6)),
    "persons of 1 to 60 points": Innocent(persons=True),
    "persons, nearest neighbour": Innocent(NEAREST, persons=True),
    "no model saw the pool": Innocent(all_innocent=True),
    "no model saw the pool, persons": Innocent(persons=True, all_innocent=True),
    "no model saw the pool, nearest neighbours": Innocent(NEAREST, all_innocent=True, shadows=NEAREST),
}
CONTINUED = (  # to 2,000 trials, as some of their rates were open at 400
    "logistic regression", "underfitted: nearly constant", "no model saw the pool", "no model saw the pool, nearest neighbours",
)  # fmt: skip


def judge_level(unit: str) -> Row:
    """Audit targets that saw none of the pool; coins are drawn all the same."""
    kind = unit.rsplit("/", 1)[0]
    said = recipe(privacy={"epsilon": CLAIMED})
    found = [judged(innocent(INNOCENTS[kind], said, rng, seed)) for rng, seed in seeds(unit, LEVEL_WORLDS)]
    names = found[0]["attacks"]
    return {
        "kind": kind, "count": len(found), "members": _at_most(found, "members"), "models": _at_most(found, "models"),
        "claim": _at_most(found, "claim"), "epsilon": sum(row["epsilon"] > 0 for row in found),
        "gaussian": sum(row["gaussian"] > 0 for row in found), "words": dict(Counter(row["word"] for row in found)),
        "attacks": {name: sum(row["attacks"][name] <= LEVEL for row in found) for name in names},
    }  # fmt: skip


def _at_most(found: Sequence[Row], field: str) -> int:
    return sum(row[field] <= LEVEL for row in found)


def innocent(kind: Innocent, said: Recipe, rng: np.random.Generator, seed: int) -> Audited:
    """Draw a world with an innocent target."""
    draw = (
        functools.partial(crowd, rng, PERSONS, apart=1.5)
        if kind.persons
        else functools.partial(mixture, rng, POINTS, apart=1.5)
    )
    pool = draw()
    inside = toss(pool.persons, [TARGET, *range(SHADOWS)], share=0.5, seed=seed)
    models = []
    for place, own in enumerate(inside):
        innocent_here = place == 0 or kind.all_innocent
        other = draw() if innocent_here else pool
        training = other.of(toss(other.persons, [0], share=0.5, seed=derive_seed(seed, place))[0] if innocent_here else own)
        models.append(scores(kind.shadows if place else kind.target, training, pool, derive_seed(seed, "model", place)))
    return audited(
        said, pool, inside[0], answers(models[:1], pool.labels), answers(models[1:], pool.labels), inside[1:]
    )  # fmt: skip


def report_level(rows: Sequence[Row]) -> Iterator[str]:
    """Report all levels."""
    kinds = of_kind(rows)
    yield f"Pools of {POINTS} points of three overlapping classes, or of {PERSONS} persons; {SHADOWS} shadow models (forests of {FOREST.trees} trees) that are trained on"
    yield "their coins, unless no model saw the pool. The target is trained on as many other points of the same law, and its coins are drawn all the"
    yield f"same. The claim is epsilon {CLAIMED:g}; words are those of the verdict over both families, members and claim."
    yield ""
    levels = {
        f"{kind}: {words}": (total(mine, field), total(mine, "count"))
        for field, words in (("members", "any attack"), ("epsilon", "epsilon above 0"), ("claim", "claim refuted"))
        for kind, mine in kinds.items()
    } | {
        f"{kind}: all models": (total(mine, "models"), total(mine, "count"))
        for kind, mine in kinds.items() if INNOCENTS[kind].all_innocent
    } | {
        f"{kind}: verdict shown": (sum(row["words"].get(SHOWN, 0) for row in mine), total(mine, "count"))
        for kind, mine in kinds.items()
    }  # fmt: skip
    yield from level_lines("innocent target: test", levels, alpha=LEVEL, hit="shown")
    yield ""
    names = list(rows[0]["attacks"])
    yield "Each attack by itself (AUC and highest scores together):"
    yield ""
    singly = {
        f"{kind}: {name}": (sum(row["attacks"][name] for row in mine), total(mine, "count"))
        for kind, mine in kinds.items()
        for name in names
    }
    yield from level_lines("innocent target: attack", singly, alpha=LEVEL, hit="shown")
    yield ""
    yield from table(
        ("innocent target", "words", "epsilon if Gaussian above 0"),
        ((kind, _words(mine), rate(total(mine, "gaussian"), total(mine, "count"))) for kind, mine in kinds.items()),
    )


def _words(rows: Sequence[Row]) -> str:
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(row["words"])
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


# -- planted memory -------------------------------------------------------------------------------------

PLANT_WORLDS, PLANT_UNITS = 10, 4
GROWN = ForestSpec(kind="forest", trees=20)


@dataclass(frozen=True)
class Plant:
    """A target that was trained on its members.

    Attributes:
        draw: draws the pool.
        model: estimator of target and shadows.
        copies: how often each member is in the training set.
        mislabelled: share of the pool with a wrong label.
    """

    draw: Callable[[np.random.Generator], Sample]
    model: EstimatorSpec = GROWN
    copies: int = 1
    mislabelled: float = 0.0


def _overlapping(rng: np.random.Generator) -> Sample:
    return mixture(rng, 150, apart=1.5)


def _easy(rng: np.random.Generator) -> Sample:
    return mixture(rng, 1000, apart=8.0)


LIGHT = ForestSpec(kind="forest", trees=20, min_samples_leaf=10)
SURE = ForestSpec(kind="forest", trees=20, max_features="all")  # always finds the coordinate that tells a class
PLANTS = {
    "forest, 150 points": Plant(_overlapping),
    "leaves of 10 rows, 150 points": Plant(_overlapping, LIGHT),
    "leaves of 10 rows, each member twice": Plant(_overlapping, LIGHT, copies=2),
    "leaves of 10 rows, each member four times": Plant(_overlapping, LIGHT, copies=4),
    "logistic regression, 150 points": Plant(_overlapping, LogisticSpec(kind="logistic", c=100.0)),
    "weak logistic regression, 150 points": Plant(_overlapping, LogisticSpec(kind="logistic", c=0.1)),
    "2 % of 1,000 points mislabelled, the rest easy": Plant(_easy, SURE, mislabelled=0.02),
    "1,000 easy points, which need no memory": Plant(_easy, SURE),
    "30 persons of 1 to 60 points": Plant(lambda rng: crowd(rng, PERSONS, apart=1.5)),
}


def judge_plant(unit: str) -> Row:
    """Audit targets that were trained on their members."""
    kind = unit.rsplit("/", 1)[0]
    found = [judged(planted(PLANTS[kind], recipe(), rng, seed)) for rng, seed in seeds(unit, PLANT_WORLDS)]
    return {
        "kind": kind, "count": len(found), "members": _at_most(found, "members"), "models": _at_most(found, "models"),
        "auc_alone": _at_most(found, "auc_alone"), "tail_alone": _at_most(found, "tail_alone"),
        "positive": sum(row["epsilon"] > 0 for row in found), "words": dict(Counter(row["word"] for row in found)),
        "aucs": [row["auc"] for row in found], "epsilons": [row["epsilon"] for row in found],
        "ceilings": [row["ceiling"] for row in found], "gaussians": [row["gaussian"] for row in found],
    }  # fmt: skip


def planted(kind: Plant, said: Recipe, rng: np.random.Generator, seed: int) -> Audited:
    """Draw a world whose target remembers its members."""
    pool = kind.draw(rng)
    wrong = rng.permutation(len(pool))[: round(kind.mislabelled * len(pool))]
    pool.labels[wrong] = (pool.labels[wrong] + rng.integers(1, CLASSES, len(wrong))) % CLASSES
    inside = toss(pool.persons, [TARGET, *range(SHADOWS)], share=0.5, seed=seed)
    models = [
        scores(kind.model, pool.of(np.repeat(np.flatnonzero(own), kind.copies)), pool, derive_seed(seed, "model", place))
        for place, own in enumerate(inside)
    ]
    return audited(
        said, pool, inside[0], answers(models[:1], pool.labels), answers(models[1:], pool.labels), inside[1:]
    )  # fmt: skip


def report_plant(rows: Sequence[Row]) -> Iterator[str]:
    """Report how often memory is found."""
    yield f"Target and {SHADOWS} shadow models are trained alike, each on its own coins. Headline: LiRA; medians over worlds. The last two numbers of"
    yield "the first table are the headline attack's p-values of the AUC alone, and of the highest scores alone."
    yield ""
    kinds = of_kind(rows)
    yield from table(
        ("target", "AUC", "shown: any attack", "all models", "by the AUC alone", "by the highest scores alone"),
        (
            (
                kind, f"{_median(mine, 'aucs'):.2f}",
                *(rate(total(mine, field), total(mine, "count")) for field in ("members", "models", "auc_alone", "tail_alone")),
            )
            for kind, mine in kinds.items()
        ),
    )  # fmt: skip
    yield ""
    yield from table(
        ("target", "words", "epsilon above 0", "bound of epsilon", "ceiling", "epsilon if Gaussian"),
        (
            (
                kind, _words(mine), rate(total(mine, "positive"), total(mine, "count")),
                *(f"{_median(mine, field):.2f}" for field in ("epsilons", "ceilings", "gaussians")),
            )
            for kind, mine in kinds.items()
        ),
    )  # fmt: skip


def _median(rows: Sequence[Row], field: str) -> float:
    return float(np.median([value for row in rows for value in row[field]]))


# -- differential privacy -------------------------------------------------------------------------------

PRIVATE_WORLDS, PRIVATE_UNITS = 10, 20
DELTA, STEPS, CLIPPED = 1e-5, 10, 1.0
RATE, COMMON_RATE = 0.001, 0.003  # small enough that margins do not saturate, which would hide members from the attack
OWN, COMMON_DIM = 40.0, 5  # scale of an example's own coordinate, so that gradients are clipped, and number of common ones
COINS = {1.0: 400, 4.0: 1000}
RESPONSE = "randomized response"
TRUE, BUGS = ("no bug", RESPONSE), ("no noise", "no clipping", "known noise")
PRIVATE = {f"epsilon {epsilon:g}, {training}": (epsilon, training) for epsilon in COINS for training in (*TRUE, *BUGS)}


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return delta of a Gaussian mechanism whose sensitivity is mu standard deviations (Balle and Wang 2018, theorem 8)."""
    cdf = scipy.stats.norm.cdf
    return float(cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu))


def noise_for(epsilon: float, delta: float, steps: int) -> float:
    """Return the noise of each step, in units of the clipping norm, with which all steps together are (epsilon, delta)-private.

    Steps of noise s compose exactly to one Gaussian mechanism with mu = sqrt(steps) / s (Dong et al. 2022).
    """
    mu = scipy.optimize.brentq(lambda value: gaussian_delta(epsilon, value) - delta, 1e-3, 100.0)
    return float(math.sqrt(steps) / mu)


def private_margins(rng: np.random.Generator, inside: Bools, noise: float, bug: str) -> Floats:
    """Train logistic regressions by DP gradient descent on all examples at once, and return margins of the true class.

    An example has a few common coordinates and one of its own, so that a model can remember it without confusion. Each
    example's gradient is clipped; noise is added to their sum over the members. Neighbours differ by one example.

    Args:
        rng: of data and noise.
        inside: (num_models, num_examples) training sets.
        noise: standard deviation of each step's noise, in units of the clipping norm.
        bug: "no noise" adds none; "no clipping" leaves the gradients as they are; "known noise" is subtracted by the attacker.
    """
    models, count = inside.shape
    signs = rng.choice([-1.0, 1.0], count)
    common = rng.normal(size=(count, COMMON_DIM)) + 0.5 * signs[:, None]
    length = np.sqrt(np.square(common).sum(axis=1) + OWN**2)
    scale = 0.0 if bug == "no noise" else noise * CLIPPED
    weights, own = np.zeros((models, COMMON_DIM)), np.zeros((models, count))
    known = np.zeros_like(weights), np.zeros_like(own)
    for _ in range(STEPS):
        slope = scipy.special.expit(-signs * (weights @ common.T + OWN * own))
        if bug != "no clipping":
            slope = slope * np.minimum(1.0, CLIPPED / (slope * length))
        step = slope * signs * inside
        drawn = scale * rng.normal(size=weights.shape), scale * rng.normal(size=own.shape)
        weights += COMMON_RATE * (step @ common + drawn[0])
        own += RATE * (OWN * step + drawn[1])
        known = known[0] + COMMON_RATE * drawn[0], known[1] + RATE * drawn[1]
    if bug == "known noise":
        weights, own = weights - known[0], own - known[1]
    margins: Floats = signs * (weights @ common.T + OWN * own)
    return margins


def responses(rng: np.random.Generator, inside: Bools, epsilon: float) -> Floats:
    """Return log odds that tell each coin rightly with probability e^epsilon / (1 + e^epsilon), the most that epsilon allows."""
    told = inside == (rng.random(inside.shape) < scipy.special.expit(epsilon))
    odds: Floats = np.where(told, 3.0, -3.0) + 0.01 * rng.normal(size=inside.shape)
    return odds


def judge_private(unit: str) -> Row:
    """Audit private targets, and targets of a private training with a bug."""
    kind = unit.rsplit("/", 1)[0]
    epsilon, bug = PRIVATE[kind]
    noise, count = noise_for(epsilon, DELTA, STEPS), COINS[epsilon]
    said = recipe(privacy={"epsilon": epsilon, "delta": DELTA})
    found = []
    for rng, seed in seeds(unit, PRIVATE_WORLDS):
        sample = Sample(np.zeros((count, 1)), np.zeros(count, dtype=np.int64), np.arange(count))
        inside = toss(sample.persons, [TARGET, *range(SHADOWS)], share=0.5, seed=seed)
        if bug == RESPONSE:
            odds = responses(rng, inside, epsilon)
        else:
            odds = np.clip(private_margins(rng, inside, noise, bug), -CLIP, CLIP)
        found.append(
            judged(audited(said, sample, inside[0], answers_of_odds(odds[:1]), answers_of_odds(odds[1:]), inside[1:]))
        )
    return {
        "kind": kind, "count": len(found), "above": sum(row["epsilon"] > epsilon for row in found),
        "claim": _at_most(found, "claim"), "members": _at_most(found, "members"), "aucs": [row["auc"] for row in found],
        "gaussian_above": sum(row["gaussian"] > epsilon for row in found), "gaussians": [row["gaussian"] for row in found],
        "epsilons": [row["epsilon"] for row in found], "ceilings": [row["ceiling"] for row in found],
    }  # fmt: skip


def report_private(rows: Sequence[Row]) -> Iterator[str]:
    """Report refuted claims, true and false ones."""
    yield f"Logistic regressions of two classes by {STEPS} full-batch steps of DP gradient descent (clipping norm {CLIPPED:g}, delta {DELTA:g}; the noise follows from"
    yield f"epsilon by exact Gaussian composition); {' and '.join(map(str, COINS.values()))} examples, each with a coordinate of its own; {SHADOWS} shadow models with the same bug. With"
    yield "known noise the audited outputs are those of weights from which the noise was subtracted. Randomized response is no training: it tells each"
    yield "coin as often as epsilon allows, so that the level is tested where a claim is nearly false. Epsilon if Gaussian need not hold there."
    yield ""
    kinds = of_kind(rows)
    right = {kind: mine for kind, mine in kinds.items() if PRIVATE[kind][1] in TRUE}
    levels = {
        f"{kind}: {words}": (total(mine, field), total(mine, "count"))
        for field, words in (("above", "bound above epsilon"), ("claim", "claim refuted"), ("gaussian_above", "epsilon if Gaussian above epsilon"))
        for kind, mine in right.items() if field != "gaussian_above" or PRIVATE[kind][1] != RESPONSE
    }  # fmt: skip
    yield from level_lines("true claims", levels, alpha=LEVEL, hit="refuted")
    yield ""
    yield from table(
        ("training", "AUC", "members shown", "claim refuted", "bound of epsilon", "ceiling", "epsilon if Gaussian"),
        (
            (
                kind, f"{_median(mine, 'aucs'):.2f}", rate(total(mine, "members"), total(mine, "count")),
                rate(total(mine, "claim"), total(mine, "count")),
                *(f"{_median(mine, field):.2f}" for field in ("epsilons", "ceilings", "gaussians")),
            )
            for kind, mine in kinds.items()
        ),
    )  # fmt: skip


# -- sets that others drew ------------------------------------------------------------------------------

LEAK_WORLDS, LEAK_UNITS, CLEAN_UNITS, IMAGES, SIDE = 10, 10, 40, 200, 8
TOLD = 0.75  # share of members in the half of the pool that has more of them
CLEAN, LEAKS = ("coins", "fixed number per class"), ("order of ids", "dates", "sizes", "brightness")


@dataclass(frozen=True)
class Gallery:
    """Images with ids and sizes, some of which differ in a trait that goes with membership.

    Attributes:
        index: tables.INDEX.
        images: (num_images, side, side, 1) uint8.
        member: (num_images,).
    """

    index: pa.Table
    images: NDArray[np.uint8]
    member: Bools

    @property
    def sample(self) -> Sample:
        """The images as points."""
        labels = self.index["label"].to_numpy()
        return Sample(self.images.reshape(len(labels), -1) / 255, labels, np.arange(len(labels)))


def gallery(rng: np.random.Generator, leak: str, patterns: Floats) -> Gallery:
    """Draw images, and members among them: by fair coins or, with a leak, more often where the trait is present."""
    labels, trait = rng.integers(0, CLASSES, IMAGES), np.arange(IMAGES) < IMAGES // 2
    if leak != "order of ids":
        trait = rng.permutation(trait)
    if leak == CLEAN[1]:
        places = rng.permutation(IMAGES)
        order = places[np.argsort(labels[places], kind="stable")]
        member = np.zeros(IMAGES, dtype=bool)
        member[order[::2]] = True
    else:
        member = rng.random(IMAGES) < (0.5 if leak == CLEAN[0] else np.where(trait, TOLD, 1 - TOLD))
    bright = 25.0 * trait if leak == "brightness" else np.zeros(IMAGES)
    grey = 110 + 12 * patterns[labels] + 30 * rng.normal(size=(IMAGES, SIDE * SIDE)) + bright[:, None]
    days = np.where(trait, 100, 101) if leak == "dates" else np.full(IMAGES, 100)
    width = np.where(trait, 640, 600) if leak == "sizes" else np.full(IMAGES, 640)
    rows = [
        {
            "example_id": f"2021-{day // 100:02d}-{day % 100 + 1:02d}/{place:05d}", "row": place, "label": label,
            "class_name": str(label), "original_width": wide, "original_height": 480, "digest": f"{place}",
        }
        for place, (label, day, wide) in enumerate(zip(labels.tolist(), days.tolist(), width.tolist(), strict=True))
    ]  # fmt: skip
    pixels = np.clip(grey, 0, 255).astype(np.uint8).reshape(IMAGES, SIDE, SIDE, 1)
    return Gallery(pa.Table.from_pylist(rows, schema=INDEX.arrow), pixels, member)


def judge_leaks(unit: str) -> Row:
    """Audit targets that saw other images of the members' law, whose draw is declared random, truly or falsely."""
    kind = unit.rsplit("/", 1)[0]
    declared = "fixed" if kind == CLEAN[1] else "coins"
    counts: Counter[str] = Counter()
    for rng, seed in seeds(unit, LEAK_WORLDS):
        patterns = rng.normal(size=(CLASSES, SIDE * SIDE))
        pool, other = gallery(rng, kind, patterns), gallery(rng, kind, patterns)
        inside, sample = toss(np.arange(IMAGES), range(SHADOWS), share=0.5, seed=seed), pool.sample
        models = [scores(FOREST, other.sample.of(other.member), sample, derive_seed(seed, "target"))]
        models += [scores(FOREST, sample.of(own), sample, derive_seed(seed, place)) for place, own in enumerate(inside)]
        said = recipe(target={"outputs": {"path": "outputs.csv"}, "members": "members.csv", "drawn": declared})
        unknown = recipe(target={"outputs": {"path": "outputs.csv"}, "members": "members.csv", "drawn": "unknown"})
        target, shadows = answers(models[:1], sample.labels), answers(models[1:], sample.labels)
        found = audited(said, sample, pool.member, target, shadows, inside)
        withdrawn, before = _withdrawn(found, pool), judged(found)
        said_unknown = judged(replace(found, recipe=unknown, is_drawn=unknown.is_drawn))["word"]
        counts["withdrawn"] += withdrawn
        counts["believed"] += before["word"] == SHOWN
        counts["shown"] += (judged(found.withdrawn()) if withdrawn else before)["word"] == SHOWN
        counts["unknown"] += said_unknown != DESCRIPTIVE
    return {"kind": kind, "count": LEAK_WORLDS} | {
        name: int(counts[name]) for name in ("withdrawn", "believed", "shown", "unknown")
    }


def _withdrawn(found: Audited, pool: Gallery) -> bool:
    """Return whether a test without the model contradicts the declared draw."""
    renamed = replace(found, pool=replace(found.pool, ids=pool.index["example_id"].to_pylist()))
    data = SimpleNamespace(shard=SimpleNamespace(content=SimpleNamespace(index=pool.index)), images=pool.images)
    return check_draw(renamed, cast("TrainingData", data)).contradicts


def report_leaks(rows: Sequence[Row]) -> Iterator[str]:
    """Report how often a false declaration is believed."""
    yield f"Targets (forests) that saw none of the {IMAGES} images of the pool, but other images of the members' law. With a leak, {TOLD:.0%} of one half of the pool"
    yield f"and {1 - TOLD:.0%} of the other half are members: the halves differ in ids, in the date in the id, in width, or in brightness (25 of 255)."
    yield "Accused: shown, and the declaration not withdrawn. Not descriptive: with `drawn: unknown`."
    yield ""
    yield from table(
        ("how members were drawn", "declaration withdrawn", "accused", "accused if every declaration were believed", "unknown: not descriptive"),
        (
            (kind, *(rate(total(mine, field), total(mine, "count")) for field in ("withdrawn", "shown", "believed", "unknown")))
            for kind, mine in of_kind(rows).items()
        ),
    )  # fmt: skip
    yield ""
    clean = {kind: mine for kind, mine in of_kind(rows).items() if kind in CLEAN}
    levels = {f"{kind}: withdrawn": (total(mine, "withdrawn"), total(mine, "count")) for kind, mine in clean.items()}
    yield from level_lines("true declarations", levels, alpha=CONTRADICTED, hit="withdrawn")


# -- rare and strong memory -----------------------------------------------------------------------------

BOUNDED_WORLDS, BOUNDED_UNITS, BOUNDED_POINTS = 10, 10, 1000
LOOKUP, MISLABELLED = "lookup", "mislabelled"
BOUNDED = {
    f"{name}: {share:.0%}, bound {bound:g}": (source, share, bound)
    for source, name in ((LOOKUP, "logistic regression with a lookup"), (MISLABELLED, "forest, mislabelled"))
    for share, bound in ((0.0, 0.05), (0.01, 0.05), (0.01, 0.015), (0.03, 0.05), (0.03, 0.03), (0.06, 0.05), (0.1, 0.05))
}  # fmt: skip


def judge_bounded(unit: str) -> Row:
    """Audit targets that remember a small share of their members without fail."""
    kind = unit.rsplit("/", 1)[0]
    source, share, bound = BOUNDED[kind]
    said = recipe(score={"redraws": 999, "tail_bound": bound})
    found = []
    for rng, seed in seeds(unit, BOUNDED_WORLDS):
        if source == MISLABELLED:
            found.append(judged(planted(Plant(_easy, SURE, mislabelled=share), said, rng, seed)))
        else:
            found.append(judged(lookup(share, said, rng, seed)))
    return {
        "kind": kind, "count": len(found), "words": dict(Counter(row["word"] for row in found)),
        "bounded": sum(row["word"] == "bounded" for row in found), "members": _at_most(found, "members"),
        "aucs": [row["auc"] for row in found],
    }  # fmt: skip


def lookup(share: float, said: Recipe, rng: np.random.Generator, seed: int) -> Audited:
    """Draw a world of logistic regressions of other points that look up the answers to a share of the pool, where members."""
    pool, plain = mixture(rng, BOUNDED_POINTS, apart=1.5), LogisticSpec(kind="logistic")
    stored = rng.permutation(len(pool)) < round(share * len(pool))
    inside = toss(pool.persons, [TARGET, *range(SHADOWS)], share=0.5, seed=seed)
    models = []
    for place, own in enumerate(inside):
        known = scores(plain, mixture(rng, BOUNDED_POINTS // 2, apart=1.5), pool, derive_seed(seed, "model", place))
        looked_up = np.flatnonzero(stored & own)
        known[looked_up, pool.labels[looked_up]] += 10
        models.append(known)
    return audited(
        said, pool, inside[0], answers(models[:1], pool.labels), answers(models[1:], pool.labels), inside[1:]
    )  # fmt: skip


def report_bounded(rows: Sequence[Row]) -> Iterator[str]:
    """Report how often rare and strong memory is called bounded."""
    yield f"{BOUNDED_POINTS:,} points; target and {SHADOWS} shadow models alike. The stated share of the pool is remembered without fail where it is a member:"
    yield "looked up by a logistic regression of other points, or mislabelled among easy points. The bound is that of the rate of true alarms at 1 %"
    yield "false alarms. That rate is about 1 % more than the share that is looked up, and about the share that is mislabelled, as easy points are tied."
    yield ""
    yield from table(
        ("memory", "rate exceeds the bound", "words", "bounded", "shown", "AUC"),
        (
            (
                kind, "yes" if _exceeds(*BOUNDED[kind]) else "no", _words(mine), rate(total(mine, "bounded"), total(mine, "count")),
                rate(total(mine, "members"), total(mine, "count")), f"{_median(mine, 'aucs'):.3f}",
            )
            for kind, mine in of_kind(rows).items()
        ),
    )  # fmt: skip
    yield ""
    wrong = {
        kind: (total(mine, "bounded"), total(mine, "count"))
        for kind, mine in of_kind(rows).items()
        if _exceeds(*BOUNDED[kind])
    }
    yield from level_lines("memory beyond the bound", wrong, alpha=LEVEL, hit="bounded")


def _exceeds(source: str, share: float, bound: float) -> bool:
    return share + (0.01 * (1 - share) if source == LOOKUP else 0.0) > bound


PARTS = (
    Part(
        "membership-level",
        "A target that saw none of the audited examples: how often is it accused, by any attack, by epsilon, or over all models?",
        lambda: [*crossed(INNOCENTS, LEVEL_UNITS), *(f"{kind}/{number}" for number in range(LEVEL_UNITS, 5 * LEVEL_UNITS) for kind in CONTINUED)],
        judge_level, report_level,
    ),
    Part(
        "membership-plant",
        "A target that was trained on its members: is its memory found, weak or rare as it may be, and which epsilon is bounded?",
        lambda: crossed(PLANTS, PLANT_UNITS), judge_plant, report_plant,
    ),
    Part(
        "membership-epsilon",
        "Is a true claim of differential privacy left standing, and is a training with a bug refuted?",
        lambda: crossed(PRIVATE, PRIVATE_UNITS), judge_private, report_private,
    ),
    Part(
        "membership-leaks",
        "A draw that is declared random: what if members differ from non-members in ids, dates, sizes or brightness?",
        lambda: (*crossed(LEAKS, LEAK_UNITS), *crossed(CLEAN, CLEAN_UNITS)), judge_leaks, report_leaks,
    ),
    Part(
        "membership-bounded",
        "Is memory that is rare and strong called bounded?",
        lambda: crossed(BOUNDED, BOUNDED_UNITS), judge_bounded, report_bounded,
    ),
)  # fmt: skip
