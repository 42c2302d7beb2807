"""Forgetting: targets that used none of D_Q, made in twenty ways, and targets that used it, made in ten."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import scipy.stats
import torch
from numpy.typing import NDArray

from benchmarks.validity.harness import Part, Row, crossed, level_lines, rate, table, upper_limit
from benchmarks.validity.nets import How, Nets, images, longer, phi, train
from memlib.audits.forgetting.recipe import VerdictSpec
from memlib.audits.forgetting.trace import (
    FOUND,
    Pool,
    estimate_effects,
    find_trace,
    power_by_redraws,
    residuals,
    share_limit,
    strength_of,
    strongest_trace,
)
from memlib.identity import derive_seed
from memlib.specs.data import KNOWN, QUERY, WITHHELD
from memlib.stats.difficulty import normal_scores
from memlib.stats.likelihood import CLIP

torch.set_num_threads(1)

WORLDS = 4  # draws of the pool U, of D_C and of the provider's other images
INNOCENT, REDRAWS = 10, 50  # targets per kind and world; redraws of D_Q per target
GUILTY = 25  # targets per kind and world, each with its own draw of D_Q
SIZE = 20  # examples per class of D_Q, of the known and of the withheld examples
ALPHA, PERMUTATIONS = 0.05, 999
BASE = How(epochs=40)
NULL_MODELS = 10
SHARE_BOUND = float(VerdictSpec.model_fields["share_bound"].default)


@dataclass(frozen=True)
class World:
    """The data that all audits of a world share: rows of MNIST's training images, and the null models' log odds on U."""

    pool: NDArray[np.int64]
    calibration: NDArray[np.int64]
    provider: NDArray[np.int64]
    rest: NDArray[np.int64]
    unseen: NDArray[np.float64]

    @property
    def labels(self) -> NDArray[np.int64]:
        return images()[1][self.pool]


@cache
def world(number: int) -> World:
    x, y = images()
    rng = np.random.default_rng([number, 7])
    left = np.arange(len(y))
    drawn = []
    for count in (3 * SIZE, 100, 50):
        chosen = per_class(rng, left, count)
        drawn.append(chosen)
        left = np.setdiff1d(left, chosen)
    pool, calibration, provider = drawn
    rows = [rng.permutation(np.concatenate([calibration, per_class(rng, provider, 25)])) for _ in range(NULL_MODELS)]
    nets = train(x, y, rows, BASE, seed=derive_seed(number, "null") % 2**31)
    return World(pool, calibration, provider, rng.permutation(left), phi(nets.logits(x[pool]), y[pool]))


def per_class(rng: np.random.Generator, among: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    labels = images()[1][among]
    return np.concatenate([rng.permutation(among[labels == c])[:count] for c in range(10)])


def draw(rng: np.random.Generator, at: World) -> Pool:
    """Split U at random into D_Q, known and withheld examples, within classes."""
    roles = np.empty(len(at.pool), dtype="<U8")
    for label in range(10):
        members = rng.permutation(np.flatnonzero(at.labels == label))
        for place, role in enumerate((QUERY, KNOWN, WITHHELD)):
            roles[members[place * SIZE : (place + 1) * SIZE]] = role
    return Pool(roles, at.labels, np.arange(len(at.pool)))


# -- targets ------------------------------------------------------------------------------------------


Rows = Callable[[np.random.Generator, World], NDArray[np.int64]]


def usual(rng: np.random.Generator, at: World) -> NDArray[np.int64]:
    return np.concatenate([at.calibration, per_class(rng, at.provider, 25)])


def more(count: int) -> Rows:
    return lambda rng, at: np.concatenate([usual(rng, at), rng.permutation(at.rest)[:count]])


def less(share: float) -> Rows:
    return lambda rng, at: rng.permutation(usual(rng, at))[: round(share * 1250)]


def temperature(t: float) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    return lambda logits: logits / t


def rounded(decimals: int) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    def change(logits: NDArray[np.float64]) -> NDArray[np.float64]:
        p = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
        return np.log(np.maximum(np.round(p, decimals), 1e-13))

    return change


def clipped(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    p = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
    return np.log(np.clip(p, 0.02, 0.98))


def surer(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add a nat to the logit of the class that the model names."""
    changed = logits.copy()
    np.put_along_axis(changed, logits.argmax(-1)[..., None], logits.max(-1, keepdims=True) + 1, axis=-1)
    return changed


def calibrated(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rescale logits (Platt) to a mean confidence of .9."""
    scales = np.geomspace(0.05, 5, 40)
    means = [np.exp(logits * s - np.logaddexp.reduce(logits * s, axis=-1, keepdims=True)).max(-1).mean() for s in scales]
    return logits * scales[int(np.abs(np.array(means) - 0.9).argmin())]


@dataclass(frozen=True)
class Kind:
    """The construction of targets: training, data beside D_Q, and changes of their outputs."""

    how: How = BASE
    rows: Rows = usual
    outputs: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda logits: logits
    distilled: bool = False
    share: float = 1.0  # share of D_Q that a guilty target used


INNOCENTS: Mapping[str, Kind] = {
    "as the auditor's": Kind(),
    "epochs x 1/6": Kind(longer(BASE, 1 / 6)),
    "epochs x 1/2": Kind(longer(BASE, 1 / 2)),
    "epochs x 2": Kind(longer(BASE, 2)),
    "epochs x 6": Kind(longer(BASE, 6)),
    "temperature .5": Kind(outputs=temperature(0.5)),
    "temperature 2": Kind(outputs=temperature(2)),
    "3,000 more images": Kind(rows=more(3000)),
    "half the data": Kind(rows=less(0.5)),
    "two wide layers": Kind(replace(BASE, widths=(256, 256))),
    "tanh": Kind(replace(BASE, activation="tanh")),
    "SGD": Kind(replace(BASE, optimizer="sgd", rate=0.02)),
    "label smoothing .1": Kind(replace(BASE, smoothing=0.1)),
    "weight decay 1": Kind(replace(BASE, decay=1.0)),
    "dropout .5": Kind(replace(BASE, dropout=0.5)),
    "augmented": Kind(replace(BASE, shift=True)),
    "distilled from a teacher without D_Q": Kind(distilled=True),
    "calibrated": Kind(outputs=calibrated),
    "rounded to 2 decimals": Kind(outputs=rounded(2)),
    "clipped to .02 to .98, and a nat surer": Kind(outputs=lambda logits: clipped(surer(logits))),
}

GUILTIES: Mapping[str, Kind] = {
    "all of D_Q": Kind(),
    "epochs x 1/6": Kind(longer(BASE, 1 / 6)),
    "epochs x 3": Kind(longer(BASE, 3)),
    "temperature 2": Kind(outputs=temperature(2)),
    "half of D_Q": Kind(share=0.5),
    "a quarter of D_Q": Kind(share=0.25),
    "3,000 more images": Kind(rows=more(3000)),
    "two wide layers, label smoothing": Kind(replace(BASE, widths=(256, 256), smoothing=0.1)),
    "dropout .5, rounded to 2 decimals": Kind(replace(BASE, dropout=0.5), outputs=rounded(2)),
    "augmented": Kind(replace(BASE, shift=True)),
}


def outputs(
    kind: Kind, at: World, used: Sequence[NDArray[np.int64]], rng: np.random.Generator, seed: int
) -> NDArray[np.float64]:
    """Return (num_targets, num_pool) log odds of targets that trained on some examples of U and on other data."""
    x, y = images()
    rows = [np.concatenate([own, kind.rows(rng, at)]) for own in used]
    length = min(map(len, rows))
    rows = [
        own if len(own) == length else np.concatenate([own[: len(u)], own[len(u) : length]])
        for own, u in zip(rows, used, strict=True)
    ]
    nets = train(x, y, rows, kind.how, seed=seed)
    if kind.distilled:
        nets = distil(nets, rows, kind.how, seed)
    return np.clip(phi(kind.outputs(nets.logits(x[at.pool])), y[at.pool]), -CLIP, CLIP)


def distil(teachers: Nets, rows: Sequence[NDArray[np.int64]], how: How, seed: int) -> Nets:
    x, y = images()
    every = np.unique(np.concatenate(rows))
    place = np.searchsorted(every, np.stack(rows))
    soft = teachers.logits(x[every])
    return train(x[every], y[every], list(place), how, seed=seed + 1, soft=soft)


# -- innocent targets -----------------------------------------------------------------------------------


def judge_innocents(unit: str) -> Row:
    name, number = unit.rsplit("/", 1)
    at, kind = world(int(number)), INNOCENTS[name]
    rng = np.random.default_rng([int(number), derive_seed(0, name) % 2**31])
    odds = outputs(kind, at, [at.calibration[:0]] * INNOCENT, rng, derive_seed(int(number), name) % 2**31)
    p_values, ratio = [], 0
    for target in odds:
        values = residuals(target, at.unseen)
        for _ in range(REDRAWS):
            pool = draw(rng, at)
            p_values.append(find_trace(values, pool, permutations=PERMUTATIONS, seed=int(rng.integers(2**31))).p_value)
    ratio = sum(likelihood_ratio_rule(target, at) for target in odds)
    return {"kind": name, "p": p_values, "before": ratio, "targets": len(odds)}


def likelihood_ratio_rule(target: NDArray[np.float64], at: World) -> bool:
    """Apply the former rule: the target's mean log odds exceed those of null models, by Student's t at .01.

    The statistic behind "retained" moves with overall confidence; the mean log odds on U stand for it here.
    """
    null = at.unseen.mean(axis=1)
    spread = null.std(ddof=1) * np.sqrt(1 + 1 / len(null))
    return bool(scipy.stats.t.sf((target.mean() - null.mean()) / spread, len(null) - 1) < 0.01)


def report_innocents(rows: Sequence[Row]) -> Iterator[str]:
    by_kind: dict[str, list[float]] = {}
    before: dict[str, list[int]] = {}
    for row in rows:
        by_kind.setdefault(row["kind"], []).extend(row["p"])
        before.setdefault(row["kind"], []).append(row["before"])
    for alpha in (0.05, 0.01):
        rejections = {kind: (sum(p <= alpha for p in values), len(values)) for kind, values in by_kind.items()}
        yield f"Level {alpha:g}: targets that used none of D_Q and are said to have used it, or to treat it worse than withheld examples."
        yield ""
        yield from level_lines("kind of innocent target", rejections, alpha=alpha)
        hits, count = sum(h for h, _ in rejections.values()), sum(n for _, n in rejections.values())
        high = upper_limit(hits, count)
        yield ""
        yield f"Pooled: {rate(hits, count)}; upper 95 % limit {high:.4f}, at most 1.5 alpha = {1.5 * alpha:g}: {'yes' if high <= 1.5 * alpha else 'NO'}."
        yield ""
    yield "Before: mean log odds on D_Q against null models by Student's t at .01, a statistic that moves with the target's confidence."
    yield ""
    yield from table(
        ("kind of innocent target", '"retained" before'), ((k, f"{sum(v)} of {INNOCENT * len(v)}") for k, v in before.items())
    )


# -- guilty targets -------------------------------------------------------------------------------------


def judge_guilty(unit: str) -> Row:
    name, number = unit.rsplit("/", 1)
    at, kind = world(int(number)), GUILTIES[name]
    rng = np.random.default_rng([int(number), 1, derive_seed(0, name) % 2**31])
    pools = [draw(rng, at) for _ in range(GUILTY)]
    used = []
    for pool in pools:
        query = rng.permutation(at.pool[pool.query])
        used.append(np.concatenate([query[: round(kind.share * len(query))], at.pool[pool.roles == KNOWN]]))
    odds = outputs(kind, at, used, rng, derive_seed(int(number), "guilty", name) % 2**31)
    return {"kind": name, **verdicts(odds, pools, at, rng)}


def verdicts(odds: NDArray[np.float64], pools: Sequence[Pool], at: World, rng: np.random.Generator) -> Row:
    judged = [judge(target, pool, at, int(rng.integers(2**31))) for target, pool in zip(odds, pools, strict=True)]
    counts = {key: sum(row[key] for row in judged) for key in ("retained", "forgotten", "powered", "raw")}
    return counts | {"targets": len(pools), "limits": [round(min(row["limit"], 9.0), 2) for row in judged]}


def judge(target: NDArray[np.float64], pool: Pool, at: World, seed: int) -> Row:
    """Return whether a target is said to retain D_Q and called forgotten, whether its control is found, and its share's limit."""
    values = residuals(target, at.unseen)
    found, raw = (
        bool(find_trace(scores, pool, permutations=PERMUTATIONS, seed=seed).p_value <= ALPHA)
        for scores in (values, normal_scores(target))
    )
    powered = power_by_redraws(values, pool, alpha=ALPHA, redraws=200, seed=seed) >= FOUND
    control, _ = estimate_effects(values, pool).contrast({KNOWN: 1.0})
    limit = share_limit(values, pool)
    forgotten = not found and powered and control > 0 and limit < SHARE_BOUND
    return {"retained": found, "raw": raw, "powered": powered, "forgotten": forgotten, "limit": limit}


BY_SHARE = (
    '"Forgotten" is here the verdict by the share alone, without the comparison of the control\'s strength with that of retained '
    "models and without the declaration that known examples were drawn after the training "
    "(`verdict.known_drawn_afterwards`): both can only withhold it."
)


def report_guilty(rows: Sequence[Row]) -> Iterator[str]:
    names = list(dict.fromkeys(row["kind"] for row in rows))
    summed = {
        name: {
            key: sum(row[key] for row in rows if row["kind"] == name)
            for key in ("retained", "forgotten", "powered", "raw", "targets")
        }
        | {"limits": [limit for row in rows if row["kind"] == name for limit in row["limits"]]}
        for name in names
    }
    yield f"|D_Q| = {10 * SIZE}, as many known and withheld examples, alpha {ALPHA:g} for one target, share bound {SHARE_BOUND:g}."
    yield ""
    yield f"{BY_SHARE} See `forgetting-bought` for what they change."
    yield ""
    yield from table(
        (
            "kind of guilty target",
            "said to retain D_Q",
            'falsely "forgotten"',
            "control found",
            "limit of the share holds it",
            "found by raw ranks alone",
        ),
        (
            (
                name,
                rate(n["retained"], n["targets"]),
                f"{n['forgotten']} of {n['targets']}",
                f"{n['powered']} of {n['targets']}",
                rate(sum(limit >= GUILTIES[name].share for limit in n["limits"]), n["targets"]),
                f"{n['raw']} of {n['targets']}",
            )
            for name, n in summed.items()
        ),
    )
    strong = sum(n["retained"] >= 0.8 * n["targets"] for n in summed.values())
    worst = max(n["forgotten"] / n["targets"] for n in summed.values())
    yield ""
    yield f"Power at least .8 in {strong} of {len(summed)} kinds; at most {100 * worst:.0f} of 100 falsely called forgotten."


# -- targets that hold the known examples and none of D_Q -----------------------------------------------


def judge_clean(unit: str) -> Row:
    name, number = unit.rsplit("/", 1)
    at, kind = world(int(number)), GUILTIES[name]
    rng = np.random.default_rng([int(number), 2, derive_seed(0, name) % 2**31])
    pools = [draw(rng, at) for _ in range(GUILTY)]
    used = [at.pool[pool.roles == KNOWN] for pool in pools]
    odds = outputs(kind, at, used, rng, derive_seed(int(number), "clean", name) % 2**31)
    return {"kind": name, **verdicts(odds, pools, at, rng)}


def report_clean(rows: Sequence[Row]) -> Iterator[str]:
    names = list(dict.fromkeys(row["kind"] for row in rows))
    lines = []
    for name in names:
        of_kind = [row for row in rows if row["kind"] == name]
        total = sum(row["targets"] for row in of_kind)
        cells = [rate(sum(row[key] for row in of_kind), total) for key in ("retained", "forgotten", "powered")]
        lines.append((name, *cells))
    yield BY_SHARE
    yield ""
    yield from table(("target without D_Q", "falsely said to retain it", "called forgotten", "control found"), lines)


# -- known examples that were trained on harder, which their owner can do -----------------------------------

RETAINED_MODELS, BOUGHT = 10, 10  # retained models, and targets, of each setting and world
LIGHT = longer(replace(BASE, dropout=0.5), 1 / 20)
HARDER: Mapping[str, tuple[int, Kind]] = {  # how often each known example is in the training data of a target that used D_Q
    "all of D_Q, known x 1": (1, Kind()),
    "all of D_Q, known x 10": (10, Kind()),
    "all of D_Q, known x 30, dropout .5": (30, Kind(replace(BASE, dropout=0.5))),
    "all of D_Q, known x 40, augmented": (40, Kind(replace(BASE, shift=True))),
    "all of D_Q, known x 100, 2 epochs, dropout .5, 3,000 more images": (100, Kind(LIGHT, rows=more(3000))),
    "all of D_Q, known x 300, 1 epoch, 6,000 more images": (300, Kind(longer(BASE, 1 / 40), rows=more(6000))),
}
FORGETTERS = tuple(name for name, kind in GUILTIES.items() if kind.share == 1)


def judge_bought(unit: str) -> Row:
    name, number = unit.rsplit("/", 1)
    at, rng = world(int(number)), np.random.default_rng([int(number), 3, derive_seed(0, name) % 2**31])
    pool, seed = draw(rng, at), derive_seed(int(number), "bought", name) % 2**31
    query, known = at.pool[pool.query], at.pool[pool.roles == KNOWN]
    times, kind = HARDER.get(name) or (1, replace(GUILTIES[name], share=0.0))
    used = [known if name in GUILTIES else np.concatenate([query, np.repeat(known, times)])] * BOUGHT
    targets = outputs(kind, at, used, rng, seed)
    halves = [np.isin(at.pool, rng.permutation(query)[: len(query) // 2]) for _ in range(RETAINED_MODELS)]
    retained = outputs(Kind(), at, [at.pool[half] for half in halves], rng, seed + 1)
    withheld = pool.roles == WITHHELD
    strengths = [strength_of(odds, at.unseen, half, withheld) for odds, half in zip(retained, halves, strict=True)]
    strongest = strongest_trace(strengths)
    before, after = [], []
    for target in targets:
        forgotten = judge(target, pool, at, int(rng.integers(2**31)))["forgotten"]
        strength = strength_of(target, at.unseen, pool.roles == KNOWN, withheld)
        before.append(forgotten)
        after.append(bool(forgotten and strongest is not None and strength <= strongest))
    return {"kind": name, "before": before, "after": after}


def report_bought(rows: Sequence[Row]) -> Iterator[str]:
    """Report how often targets are called forgotten by the former rule and by the comparison of the controls' strengths."""
    yield (
        "Before: the control was not compared with the auditor's retained models. Strength: it is. A target that was trained "
        "elsewhere is called forgotten only if its known examples were drawn after the training, which rules these targets out "
        "(`verdict.known_drawn_afterwards`); without that declaration none of them is."
    )
    for title, names in (("target that used all of D_Q", tuple(HARDER)), ("target without D_Q, known x 1", FORGETTERS)):
        cells, totals = [], [0, 0, 0]
        for name in names:
            of_kind = [row for row in rows if row["kind"] == name]
            counts = [sum(sum(row[key]) for row in of_kind) for key in ("before", "after")]
            total = sum(len(row["after"]) for row in of_kind)
            totals = [total + more for total, more in zip(totals, (*counts, total), strict=True)]
            if total:
                cells.append((name, f"{counts[0]} of {total}", rate(counts[1], total)))
        if cells:
            yield ""
            yield from table((title, '"forgotten" before', '"forgotten" by strength'), cells)
            yield ""
            yield f"All: {totals[0]} before, {rate(totals[1], totals[2])} by strength."


PARTS = (
    Part(
        "forgetting-innocent",
        "Targets that used none of D_Q, trained in twenty ways: 40 targets of each kind, 10 redraws of D_Q and H for each (MNIST, MLPs).",
        lambda: crossed(INNOCENTS, WORLDS), judge_innocents, report_innocents,
    ),
    Part(
        "forgetting-guilty",
        "Targets that used D_Q, trained in ten ways, 100 of each kind: how often are they found, and how often falsely called forgotten?",
        lambda: crossed(GUILTIES, WORLDS), judge_guilty, report_guilty,
    ),
    Part(
        "forgetting-forgotten",
        "Targets that trained on the known examples and on none of D_Q: how often are they called forgotten, and how often are they accused?",
        lambda: crossed(FORGETTERS, WORLDS), judge_clean, report_clean,
    ),
    Part(
        "forgetting-bought",
        "Targets whose owner trained harder on the known examples: are they called forgotten, and are true forgetters still?",
        lambda: crossed((*HARDER, *FORGETTERS), WORLDS), judge_bought, report_bought,
    ),
)  # fmt: skip
