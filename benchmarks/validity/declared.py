"""Random draws that are only declared: how often is an innocent model accused where the sides differ, and what does it cost?

Membership: forests that saw other points of the members' law, and pools whose non-members have noisier labels, are wider or lie
nearer to the other classes; coins that depend on class or difficulty, and a claim of privacy. Data sets: the same of D_Q and
withheld points. Documents: small GPT-2 that were fine-tuned on other documents of the members' law, and non-members of which a
part follows another law. Captions: pairs of which one side has easier captions, and a first model that is sharper than the
second; recall of each pair is binomial.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from benchmarks.validity.documents import HOW, SYMBOLS, small_gpt, texts, train
from benchmarks.validity.harness import Part, Row, by_rule, crossed, rate, table
from benchmarks.validity.membership import CLASSES, SHADOWS, Sample, answers, audited, recipe, scores, seeds, total
from memlib.audits.captions.findings import summarize
from memlib.audits.captions.recipe import Config
from memlib.audits.captions.tables import UNITS
from memlib.audits.captions.verdict import verdict
from memlib.audits.forgetting.trace import Pool as Sides
from memlib.audits.forgetting.trace import find_trace, residuals
from memlib.audits.membership.audited import Audited
from memlib.audits.membership.controls import Checks, blind_baseline, difficulty_p
from memlib.audits.membership.documents.audited import DocumentsAudited
from memlib.audits.membership.documents.recipe import ATTACKS, OF_SHADOWS, OF_TOKENS, DocumentsRecipe
from memlib.audits.membership.findings import summarize as summarize_members
from memlib.audits.membership.privacy import guesses_of
from memlib.audits.membership.units import Pool
from memlib.data.blind_features import BlindFeatures, text_features
from memlib.data.given_sets import Difference, p_of_draw
from memlib.data.stages import TrainingData
from memlib.data.subsets import toss
from memlib.findings import SHOWN, Findings
from memlib.identity import derive_seed
from memlib.observe.token_scores import TokenScores, token_scores
from memlib.specs import EstimatorSpec, ForestSpec, LogisticSpec
from memlib.specs.data import QUERY, WITHHELD
from memlib.stats.difficulty import CONTRADICTED, difference_p
from memlib.stats.epsilon import audit_one_run, exceeds
from memlib.stats.likelihood import log_odds
from memlib.tables import SPLITS

POINTS, DIM = 400, 8
ALPHA, WORST = 0.05, 0.10  # level of the tests, and the rate that no cell of a grid may exceed
FOREST = ForestSpec(kind="forest", trees=20)
SHARP = ForestSpec(kind="forest", trees=20, min_samples_leaf=1, max_features="all")
WORLDS, UNITS_OF_CELL = 10, 20


@dataclass(frozen=True)
class Cell:
    """A difference between the sides, and the target.

    Attributes:
        noise: share of the non-members' labels that are drawn anew.
        wider: by how much the spread of the non-members' points is larger than the members'.
        nearer: how much nearer to the other classes non-members lie, in standard deviations.
        target: its estimator; the shadow models are forests.
        remembers: whether the target was trained on its members.
    """

    noise: float = 0.0
    wider: float = 0.0
    nearer: float = 0.0
    target: EstimatorSpec = FOREST
    remembers: bool = False


CELLS = {
    "innocent, no difference": Cell(),
    "innocent, labels of non-members 10 % noisier": Cell(noise=0.1),
    "innocent, labels of non-members 20 % noisier": Cell(noise=0.2),
    "innocent, labels of non-members 40 % noisier": Cell(noise=0.4),
    "innocent, non-members 30 % wider": Cell(wider=0.3),
    "innocent, non-members 60 % wider": Cell(wider=0.6),
    "innocent, members 60 % wider": Cell(wider=-0.375),
    "innocent, non-members .1 sd nearer": Cell(nearer=0.1),
    "innocent, non-members .2 sd nearer": Cell(nearer=0.2),
    "innocent, non-members .4 sd nearer": Cell(nearer=0.4),
    "innocent, non-members .8 sd nearer": Cell(nearer=0.8),
    "innocent sharper forest, .2 sd nearer": Cell(nearer=0.2, target=SHARP),
    "innocent sharper forest, .4 sd nearer": Cell(nearer=0.4, target=SHARP),
    "innocent sharper forest, 10 % noisier": Cell(noise=0.1, target=SHARP),
    "innocent logistic regression, .4 sd nearer": Cell(nearer=0.4, target=LogisticSpec(kind="logistic")),
    "guilty forest, no difference": Cell(remembers=True, target=ForestSpec(kind="forest", trees=20, min_samples_leaf=20)),
    "guilty logistic regression, no difference": Cell(remembers=True, target=LogisticSpec(kind="logistic", c=100.0)),
}


def points(rng: np.random.Generator, count: int, *, noise: float, wider: float, nearer: float) -> Sample:
    """Draw points of three Gaussian classes whose labels, spread and distance differ."""
    labels = rng.integers(0, CLASSES, count)
    values = (1 + wider) * rng.normal(size=(count, DIM))
    values[np.arange(count), labels] += 1.5 - nearer
    drawn = np.where(rng.random(count) < noise, rng.integers(0, CLASSES, count), labels)
    return Sample(values, drawn, np.arange(count))


def drawn(cell: Cell, rng: np.random.Generator) -> tuple[Sample, Sample]:
    """Draw members, and the pool of members and non-members of a cell."""
    members = points(rng, POINTS // 2, noise=0.0, wider=0.0, nearer=0.0)
    others = points(rng, POINTS // 2, noise=cell.noise, wider=cell.wider, nearer=cell.nearer)
    both = members.points, others.points
    return members, Sample(np.concatenate(both), np.concatenate([members.labels, others.labels]), np.arange(POINTS))


def world(cell: Cell, rng: np.random.Generator, seed: int) -> tuple[bool, bool, bool]:
    """Audit one target: would its raw scores accuse it, is the declaration contradicted, and is it accused?"""
    members, pool = drawn(cell, rng)
    member, inside = np.arange(POINTS) < POINTS // 2, toss(pool.persons, range(SHADOWS), share=0.5, seed=seed)
    training = members if cell.remembers else points(rng, POINTS // 2, noise=0.0, wider=0.0, nearer=0.0)
    models = [scores(cell.target, training, pool, derive_seed(seed, "target"))]
    models += [scores(FOREST, pool.of(own), pool, derive_seed(seed, place)) for place, own in enumerate(inside)]
    one_class = replace(pool, labels=np.zeros(POINTS, dtype=np.int64))  # labels are noisy, so nothing is drawn within them
    said = recipe(target={"outputs": {"path": "outputs.csv"}, "members": "members.csv", "drawn": "fixed"})
    return judge(audited(said, one_class, member, answers(models[:1], pool.labels), answers(models[1:], pool.labels), inside))


def judge(found: Audited) -> tuple[bool, bool, bool]:
    """Return whether raw scores would accuse a target, whether the declaration is contradicted, and whether it is accused."""
    p_values = [
        min(one.test.adjusted_p for one in rankings.all if one.test is not None)
        for rankings in (replace(found.rankings, difficulty=None), found.rankings)
    ]
    blind = None if found.features is None else blind_baseline(found, cast("TrainingData", None))
    fallen = Checks(blind, None, difficulty_p(found)).contradicts
    return p_values[0] <= ALPHA, fallen, p_values[1] <= ALPHA and not fallen


def judge_membership(unit: str) -> Row:
    """Audit targets of one cell."""
    kind = unit.rsplit("/", 1)[0]
    return tally(kind, np.array([world(CELLS[kind], rng, seed) for rng, seed in seeds(unit, WORLDS)]).sum(axis=0), WORLDS)


def tally(kind: str, counts: NDArray[np.int64], count: int) -> Row:
    """Return the row of a cell: how many raw scores accuse, how many declarations fall, and how many targets are accused."""
    raw, withdrawn, shown = counts.tolist()
    return {"kind": kind, "count": count, "raw": raw, "withdrawn": withdrawn, "shown": shown}


def report(rows: Sequence[Row], nominal: dict[str, float | None]) -> Iterator[str]:
    """Yield the rates of each cell before and after, judged by one rule.

    Args:
        nominal: the rate that innocents may not exceed; None for guilty targets.
    """
    cells = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        count, (raw, withdrawn, shown) = total(mine, "count"), (total(mine, name) for name in ("raw", "withdrawn", "shown"))
        word = "" if nominal[kind] is None else by_rule(shown, count, nominal[kind] or 0.0)
        cells.append((kind, rate(raw, count), rate(withdrawn, count), rate(shown, count), word))
    headings = ("sides and model", "shown if the declaration were believed", "declaration withdrawn", "shown", "by the rule")
    yield from table(headings, cells)


def _nominal(kind: str) -> float | None:
    return None if kind.startswith("guilty") else ALPHA if kind.endswith("no difference") else WORST


def report_membership(rows: Sequence[Row]) -> Iterator[str]:
    """Report a grid of differences between the sides."""
    yield f"Pools of {POINTS} points of three Gaussian classes, half of them members, as declared (fixed); {SHADOWS} shadow models (forests of {FOREST.trees} trees). Innocent"
    yield "targets saw other points of the members' law; all seven attacks. Withdrawn: by the shadow models' answers alone (the comparison without the"
    yield f"model, which sees points and not labels, is left out). Innocents may be shown in {ALPHA:g} of cases without a difference, and in {WORST:g} with one."
    yield ""
    yield from report(rows, {kind: _nominal(kind) for kind in CELLS})


# -- coins and epsilon ----------------------------------------------------------------------------------

APART = (2.2, 1.5, 0.8)  # how far the classes lie from the origin, the easiest first
CLAIM = 0.1  # epsilon
COIN_CELLS: dict[str, tuple[tuple[float, ...], float, EstimatorSpec]] = {
    "innocent, no difference": ((0.5, 0.5, 0.5), 0.0, FOREST),
    "innocent, coins of .6, .5, .4 by class": ((0.6, 0.5, 0.4), 0.0, FOREST),
    "innocent, coins of .7, .5, .3 by class": ((0.7, 0.5, 0.3), 0.0, FOREST),
    "innocent, coins of .9, .5, .1 by class": ((0.9, 0.5, 0.1), 0.0, FOREST),
    "innocent, coins of .55 or .45 by difficulty": ((0.5, 0.5, 0.5), 0.05, FOREST),
    "innocent, coins of .6 or .4 by difficulty": ((0.5, 0.5, 0.5), 0.1, FOREST),
    "innocent, coins of .75 or .25 by difficulty": ((0.5, 0.5, 0.5), 0.25, FOREST),
    "innocent sharper forest, coins of .6 or .4 by difficulty": ((0.5, 0.5, 0.5), 0.1, SHARP),
    "innocent sharper forest, coins of .7, .5, .3 by class": ((0.7, 0.5, 0.3), 0.0, SHARP),
    "innocent, half of every class": ((), 0.0, FOREST),
    "guilty, no difference": ((0.5, 0.5, 0.5), 0.0, FOREST),
}
"""Probability of members by class (none: exactly half), how much higher it is for the easier half of a class, and the target."""


def coined(rng: np.random.Generator, of_class: Sequence[float], by_difficulty: float) -> tuple[Sample, NDArray[np.bool_]]:
    """Draw points of three classes of unequal difficulty, and coins that depend on what a model finds easy."""
    labels = rng.integers(0, CLASSES, POINTS)
    values = rng.normal(size=(POINTS, DIM))
    values[np.arange(POINTS), labels] += np.array(APART)[labels]
    own = values[np.arange(POINTS), labels] - np.delete(values, range(CLASSES), axis=1).mean(axis=1)
    if not of_class:
        order = np.argsort(labels + rng.random(POINTS), kind="stable")
        member = np.zeros(POINTS, dtype=bool)
        member[order[::2]] = True
    else:
        is_easy = own > np.array([np.median(own[labels == label]) for label in range(CLASSES)])[labels]
        chances = np.array(of_class)[labels] + np.where(is_easy, by_difficulty, -by_difficulty)
        member = rng.random(POINTS) < chances
    return Sample(values, labels, np.arange(POINTS)), member


def judge_coins(unit: str) -> Row:
    """Audit the claim of targets of one cell whose members are declared to be drawn by fair coins."""
    kind = unit.rsplit("/", 1)[0]
    of_class, by_difficulty, spec = COIN_CELLS[kind]
    said = recipe(privacy={"epsilon": CLAIM})
    counts = np.zeros(3, dtype=np.int64)
    for rng, seed in seeds(f"coins/{unit}", WORLDS):
        (pool, member), (other, theirs) = (coined(rng, of_class, by_difficulty) for _ in range(2))
        inside = toss(pool.persons, range(SHADOWS), share=0.5, seed=seed)
        training = pool.of(member) if kind.startswith("guilty") else other.of(theirs)
        models = [scores(spec, training, pool, derive_seed(seed, "target"))]
        models += [scores(FOREST, pool.of(own), pool, derive_seed(seed, place)) for place, own in enumerate(inside)]
        found = audited(said, pool, member, answers(models[:1], pool.labels), answers(models[1:], pool.labels), inside)
        claim = Findings.read(summarize_members(found, [])).get("privacy_claim")
        fallen = Checks(None, found.counts_p, difficulty_p(found)).contradicts
        refuted = claim is not None and (claim.p_adjusted or 1.0) <= ALPHA
        counts += without_classes(found), fallen, refuted and not fallen
    return tally(kind, counts, WORLDS)


def without_classes(found: Audited) -> bool:
    """Return whether guesses about the highest and the lowest scores refute the claim, as they did before."""
    values = replace(found.rankings, difficulty=None).head.scores
    bound = audit_one_run(values, found.units.member, guesses=guesses_of(POINTS), delta=0.0, level=ALPHA, seed=0)
    return exceeds(bound, CLAIM).p_value <= ALPHA


def report_coins(rows: Sequence[Row]) -> Iterator[str]:
    """Report how often a claim is refuted by coins that were not fair."""
    yield f"{POINTS} points of three classes of unequal difficulty, members as declared by fair coins; {SHADOWS} shadow models (forests). The claim is epsilon {CLAIM:g}, and innocent"
    yield "targets saw none of the points, but others of the members' law. The second column is the rule before: guesses about the highest and the lowest"
    yield "scores of all classes together, every declaration believed. Shown: the claim is refuted, and the declaration not withdrawn by counts or difficulty."
    yield ""
    yield from report(rows, {kind: _nominal(kind) for kind in COIN_CELLS})


# -- data sets ------------------------------------------------------------------------------------------

NULL_MODELS = 10
SET_CELLS = {name.replace("non-members", "the withheld").replace("members", "D_Q"): cell for name, cell in CELLS.items()}
"""Differences between D_Q, which is easier, and the withheld examples; guilty targets were trained on D_Q."""


def judge_sets(unit: str) -> Row:
    """Look for a trace of D_Q in targets of one cell, where its draw among the withheld examples is declared."""
    kind = unit.rsplit("/", 1)[0]
    cell, counts = SET_CELLS[kind], np.zeros(3, dtype=np.int64)
    for rng, seed in seeds(f"sets/{unit}", WORLDS):
        query, pool = drawn(cell, rng)
        training = query if cell.remembers else points(rng, POINTS // 2, noise=0.0, wider=0.0, nearer=0.0)
        others = [points(rng, POINTS // 2, noise=0.0, wider=0.0, nearer=0.0) for _ in range(NULL_MODELS)]
        target = log_odds(scores(cell.target, training, pool, derive_seed(seed, "target")), pool.labels)
        unseen = np.stack([
            log_odds(scores(FOREST, one, pool, derive_seed(seed, place)), pool.labels) for place, one in enumerate(others)
        ])  # fmt: skip
        roles = np.where(np.arange(POINTS) < POINTS // 2, QUERY, WITHHELD)
        sides = Sides(roles, np.zeros(POINTS, dtype=np.int64), np.arange(POINTS))
        raw, found = (
            find_trace(values, sides, permutations=499, seed=seed).p_value <= ALPHA
            for values in (target, residuals(target, unseen))
        )
        models = difference_p(unseen.mean(axis=0), sides.query, sides.labels, redraws=499, seed=seed)
        fallen = p_of_draw(1.0, [models]) <= CONTRADICTED
        counts += raw, fallen, found and not fallen
    return tally(kind, counts, WORLDS)


def report_sets(rows: Sequence[Row]) -> Iterator[str]:
    """Report a grid of differences between D_Q and withheld examples."""
    yield f"{POINTS} points of three Gaussian classes, half of them D_Q, which an owner declares to have drawn (verdict.drawn_elsewhere). {NULL_MODELS} null models (forests) and"
    yield "innocent targets saw other points of the law of D_Q. The second column is the target's log odds alone. Withdrawn: by the null models' answers alone."
    yield ""
    yield from report(rows, {kind: _nominal(kind) for kind in SET_CELLS})


# -- documents ------------------------------------------------------------------------------------------

OF_EACH, ON_A_SIDE, DOCUMENT_SHADOWS = 160, 100, 8  # documents of a law, and of them those on a side of one audit
DOCUMENT_WORLDS, DRAWS = 20, 10
FIRST, PRETRAINED, TUNED, LONG = 2_000, 20, 6, 12  # documents and epochs of the first model, epochs of its fine-tuning
OTHER = {"no difference": 0.0} | {
    f"{share:.0%} of non-members' words of another source": share for share in (0.02, 0.05, 0.1, 0.2)
}
DOCUMENT_CELLS = {
    **{f"innocent, {name}": ("innocent", place) for place, name in enumerate(OTHER)},
    **{f"innocent, trained twice as long, {name}": ("longer", place) for place, name in enumerate(OTHER)},
    "guilty, no difference": ("guilty", 0), "guilty, trained twice as long, no difference": ("guilty, longer", 0),
}  # fmt: skip
"""The target, and the place of the non-members' law among all others."""


def judge_documents(unit: str) -> Row:
    """Fine-tune the models of a world, and audit draws of its documents in every cell."""
    ((rng, seed),) = seeds(f"documents/{unit}", 1)
    own, foreign = (rng.dirichlet(np.full(SYMBOLS, 0.2), size=SYMBOLS) for _ in range(2))
    first = np.concatenate([texts(FIRST // 2, law, rng) for law in (own, foreign)])
    members, elsewhere = texts(OF_EACH, own, rng), texts(OF_EACH, own, rng)
    model = small_gpt(seed)
    train(model, first, PRETRAINED, seed)
    start = {name: weights.clone() for name, weights in model.state_dict().items()}

    def observed(
        rows: NDArray[np.int64], epochs: int, pool: NDArray[np.int64], reference: TokenScores | None = None
    ) -> TokenScores:
        """Return the scores of a pool of documents under the first model, fine-tuned on some."""
        model.load_state_dict(start)
        if epochs:
            train(model, rows, epochs, int(rng.integers(2**31)))
        return token_scores(
            model.eval(), pool, np.ones(len(pool), np.int64), share=0.2, device=torch.device("cpu"),
            reference=None if reference is None else reference.own, is_reference=reference is None,
        )  # fmt: skip

    counts = {kind: np.zeros(3, dtype=np.int64) for kind in DOCUMENT_CELLS}
    for place, share in enumerate(OTHER.values()):
        pool = np.concatenate([members, texts(OF_EACH, (1 - share) * own + share * foreign, rng)])
        inside = toss(np.arange(len(pool)), range(DOCUMENT_SHADOWS), share=0.5, seed=derive_seed(seed, place) % 2**31)
        base = observed(first, 0, pool)
        shadows = [observed(pool[coins], TUNED, pool, base) for coins in inside]
        known = text_features(" ".join(f"w{symbol}" for symbol in row) for row in pool.tolist())
        for kind, (target, at) in DOCUMENT_CELLS.items():
            if at != place:
                continue
            seen = members if target.startswith("guilty") else elsewhere
            scored = observed(seen, LONG if target.endswith("longer") else TUNED, pool, base)
            for _ in range(DRAWS):
                rows = sides(rng, is_true=kind.startswith("innocent") and not share)
                counts[kind] += judge(of_documents(rows, inside, scored, shadows, base, known))
    return {"cells": {kind: found.tolist() for kind, found in counts.items()}, "count": DRAWS}


def sides(rng: np.random.Generator, *, is_true: bool) -> NDArray[np.int64]:
    """Draw the rows of members, which come first, and of as many non-members: at random, or from either half of the pool."""
    if is_true:
        return rng.permutation(2 * OF_EACH)[: 2 * ON_A_SIDE]
    members, others = (rng.permutation(OF_EACH)[:ON_A_SIDE] for _ in range(2))
    return np.concatenate([members, OF_EACH + others])


def of_documents(
    rows: NDArray[np.int64],
    inside: NDArray[np.bool_],
    target: TokenScores,
    shadows: Sequence[TokenScores],
    base: TokenScores,
    known: BlindFeatures,
) -> DocumentsAudited:
    """Return the audit of documents of one window each, of which the first half are members."""
    said = DocumentsRecipe.model_validate(
        {
            "data": {"source": {"kind": "text", "path": "mail.txt"}, "unit": "token"},
            "model": {"kind": "huggingface", "path": "base"}, "shadows": {"count": DOCUMENT_SHADOWS},
            "training": {"objective": {"kind": "language"}, "epochs": TUNED, "augment": None},
            "target": {"trained": {"kind": "huggingface", "path": "tuned"}, "members": "members.csv", "drawn": "fixed"},
            "score": {"redraws": 999, "attacks": [*ATTACKS, *OF_TOKENS, *OF_SHADOWS]},
        }
    )  # fmt: skip
    count, everything = len(rows), inside.shape[1]
    member, listed = (np.isin(np.arange(everything), part) for part in (rows[: count // 2], rows))
    ids, zeros = [f"document {row:08d}" for row in np.sort(rows)], np.zeros(count, dtype=np.int64)
    described = pa.Table.from_pylist(
        [{"example_id": one, "row": row, "role": "train", "label": 0, "class_name": "", "group": one} for row, one in enumerate(ids)],
        schema=SPLITS.arrow,
    )  # fmt: skip
    return DocumentsAudited.of(
        recipe=said, pool=Pool(ids, [""] * count, zeros, np.arange(count)), rows=described, member=member, listed=listed,
        inside=inside, target=target, shadows=shadows, base=base, compressed=np.full(everything, HOW.prefix + HOW.suffix),
        known=known, nobody=SPLITS.arrow.empty_table(),
    )  # fmt: skip


def report_documents(rows: Sequence[Row]) -> Iterator[str]:
    """Report a grid of differences between the sides of documents."""
    yield f"{len(rows)} worlds of small GPT-2, pretrained on both sources and fine-tuned for {TUNED} epochs ({LONG} where trained twice as long) on {OF_EACH} documents; {DOCUMENT_SHADOWS} shadow models on"
    yield f"halves of the pool; {DRAWS} draws each of {ON_A_SIDE} members and {ON_A_SIDE} non-members, as declared (fixed); all ten attacks. Innocent targets saw other documents of the"
    yield "members' law. Withdrawn: by the scores of models that did not see them, or by their words."
    yield ""
    flat = [
        {"kind": kind, "count": row["count"], "raw": raw, "withdrawn": withdrawn, "shown": shown}
        for row in rows
        for kind, (raw, withdrawn, shown) in row["cells"].items()
    ]
    yield from report(flat, {kind: _nominal(kind) for kind in DOCUMENT_CELLS})


# -- captions -------------------------------------------------------------------------------------------

PAIRS, OBJECTS = 400, 3
PAIR_WORLDS, PAIR_UNITS = 20, 20
ALIKE = Difference(0.5, 1.0, "pixels", PAIRS)  # what is known without a model tells nothing
QUICK = Config(replicates=100, permutations=399)
PAIR_CELLS = {
    "innocent, no difference": (0.0, 1.0, 0.0, 0.0),
    "innocent, A easier by .2 sd": (0.2, 1.0, 0.0, 0.0),
    "innocent, .2 sd, first model sharper by half": (0.2, 1.5, 0.0, 0.0),
    "innocent, .4 sd, first model sharper by half": (0.4, 1.5, 0.0, 0.0),
    "innocent, .6 sd, first model sharper by half": (0.6, 1.5, 0.0, 0.0),
    "innocent, .8 sd, first model sharper by half": (0.8, 1.5, 0.0, 0.0),
    "guilty, both models, no difference": (0.0, 1.0, 0.3, 0.3),
    "guilty, the first beside a public one, no difference": (0.0, 1.0, 0.6, 0.0),
}
"""How much easier pairs of A are, how much more the first model's recall depends on it, and memory of both in log odds."""


def pairs(rng: np.random.Generator, easier: float, sharper: float, first: float, second: float) -> pa.Table:
    """Draw units of pairs that differ in how easy they are, which the words tell poorly."""
    of_a = np.arange(PAIRS) < PAIRS // 2
    ease = rng.normal(size=PAIRS) + easier * of_a
    logits = sharper * ease + first * of_a, ease + second * ~of_a, ease / 2 - 1
    a, b, words = (rng.binomial(OBJECTS, 1 / (1 + np.exp(-each))) for each in logits)
    columns = {name: np.zeros(PAIRS, dtype=np.int64) for name in UNITS.arrow.names} | {
        "example_id": np.array([f"{place:05d}" for place in range(PAIRS)]), "direction": np.where(of_a, "A", "B"),
        "group": np.array([None] * PAIRS), "num_unnamed": np.full(PAIRS, OBJECTS), "prior_recovered": words,
        "a_recovered": a, "b_recovered": b, "k": np.full(PAIRS, 10), "copies": np.ones(PAIRS, dtype=np.int64),
    }  # fmt: skip
    return pa.table(columns).cast(UNITS.arrow)


def judge_captions(unit: str) -> Row:
    """Audit pairs of models of one cell, with and without belief in the declared draw."""
    kind = unit.rsplit("/", 1)[0]
    counts = np.zeros(3, dtype=np.int64)
    for rng, _ in seeds(unit, PAIR_WORLDS):
        table_ = pairs(rng, *PAIR_CELLS[kind])
        raw, found = (Findings(summarize(table_, QUICK, epochs=(0,), chance=0.3, checks=each)) for each in (None, ALIKE))
        fallen = found.first("declared_draw").params["contradicted"]
        counts += raw.head.verdict == SHOWN, fallen, verdict(found).word == SHOWN
    return tally(kind, counts, PAIR_WORLDS)


def report_captions(rows: Sequence[Row]) -> Iterator[str]:
    """Report a grid of differences between the sides."""
    yield f"Simulated: {PAIRS} pairs of two external models, {OBJECTS} unnamed objects each, of which a model recalls a binomial number; the log odds of recall are the"
    yield "pair's ease times the model's sharpness, and the words recall a weak function of the ease."
    yield ""
    yield from report(rows, {kind: _nominal(kind) for kind in PAIR_CELLS})


PARTS = (
    Part(
        "declared-members",
        "Members that are declared to be drawn at random, but are easier than non-members: is an innocent model accused?",
        lambda: crossed(CELLS, UNITS_OF_CELL), judge_membership, report_membership,
    ),
    Part(
        "declared-coins",
        "Members that are declared to be drawn by fair coins, but were not: is a true claim of privacy refuted?",
        lambda: crossed(COIN_CELLS, UNITS_OF_CELL), judge_coins, report_coins,
    ),
    Part(
        "declared-data-sets",
        "A data set that an owner declares to have drawn at random, but that is easier: is it said to have been used?",
        lambda: crossed(SET_CELLS, UNITS_OF_CELL), judge_sets, report_sets,
    ),
    Part(
        "declared-documents",
        "Documents that are declared to be drawn at random, but come from several sources: is an innocent model accused?",
        lambda: map(str, range(DOCUMENT_WORLDS)), judge_documents, report_documents,
    ),
    Part(
        "declared-captions",
        "Pairs that are declared to be drawn at random, but have easier captions on one side: is an innocent model accused?",
        lambda: crossed(PAIR_CELLS, PAIR_UNITS), judge_captions, report_captions,
    ),
)  # fmt: skip
