"""Déjà vu where persons have unequally many images, and where others drew the sets: levels, intervals, power, checks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from benchmarks.validity.deja_vu import BASE, CONFIG, NOISE, crops, labels_of, neighbours
from benchmarks.validity.deja_vu_alone import NETWORK, backgrounds, units_alone
from benchmarks.validity.harness import Part, Row, by_rule, crossed, level_lines, rate, table
from benchmarks.validity.nets import How, images, train
from memlib.audits.deja_vu.findings import LEVEL
from memlib.audits.deja_vu.scores import ease
from memlib.audits.deja_vu.units import Analysis
from memlib.data.blind_features import pixel_features
from memlib.data.given_sets import tested_draw
from memlib.identity import derive_seed
from memlib.stats.difficulty import difference_p
from memlib.stats.inference import percentile_interval, permutation_p
from memlib.stats.randomization import Design, detectable, detectable_answers
from memlib.stats.totals import grouped_interval, resampled_differences

PERSONS, WORLDS, REDRAWS, CLASSES = 60, 6, 400, 3
UNEQUAL_DRAWS, VIEW_DRAWS = 200, 2_000
LAWS = {
    "3 images each": lambda rng, count: np.full(count, 3),
    "1 to 60 images": lambda rng, count: rng.integers(1, 61, count),
    "geometric, up to 60": lambda rng, count: np.minimum(60, rng.geometric(0.15, count)),
    "heavy-tailed, up to 60": lambda rng, count: np.minimum(60, np.ceil(rng.pareto(1.0, count)).astype(np.int64)),
}


def design_of(rng: np.random.Generator, labels: NDArray[np.int64], persons: NDArray[np.int64], share: float) -> Design:
    """Draw a share of the persons of each class, by the class of most of their images, for side A."""
    sides = np.zeros(int(persons.max()) + 1, dtype=bool)
    homes = Design.of(np.zeros(len(labels), dtype=bool), labels, persons).stratum[np.unique(persons, return_index=True)[1]]
    for label in np.unique(homes):
        members = rng.permutation(np.flatnonzero(homes == label))
        sides[members[: max(1, round(share * len(members)))]] = True
    return Design.of(sides[persons], labels, persons)


# -- one model alone that saw none of the images ---------------------------------------------------------


def judge_alone(unit: str) -> Row:
    name, number = unit.rsplit("/", 1)
    rng = np.random.default_rng([int(number), derive_seed(2, name) % 2**31])
    shuffled = rng.permutation(60_000)
    persons = np.repeat(np.arange(PERSONS), LAWS[name](rng, PERSONS))
    rows, public, rest = shuffled[:PERSONS][persons], shuffled[PERSONS : PERSONS + 2000], shuffled[PERSONS + 2000 :]
    (x, y), queries = images("FashionMNIST"), crops(rows, rng)
    known = backgrounds(NETWORK, queries, labels_of(rows), persons)
    model = train(x, y, [rest[:400]], replace(BASE, epochs=60), seed=derive_seed(int(number), name) % 2**31)
    votes = neighbours(model, queries, public)[0]
    first = persons == 0  # gains of one model do not depend on the sides, by which they are sorted
    units = units_alone([votes], known, first, rows, persons)
    order = np.argsort(np.concatenate([np.flatnonzero(first), np.flatnonzero(~first)]))
    gains = Analysis(units, CONFIG, alone=True).gains[order]
    found: Row = {"kind": name, "count": REDRAWS}
    for share in (0.5, 0.8):
        now = before = upside_down = 0
        for redraw in range(REDRAWS):
            design = design_of(rng, labels_of(rows), persons, share)
            p = design.tail_p(gains, permutations=199, seed=redraw)
            now += p <= 0.05
            upside_down += p <= 0.05 and design.difference(gains) <= 0
            before += balanced_p(design, gains, rng) <= 0.05
        found[f"{share:.0%} in A"] = [int(now), int(before), int(upside_down)]
    return found


def balanced_p(design: Design, gains: NDArray[np.int64], rng: np.random.Generator) -> float:
    """Test as before: drop persons until each class has as many images in A as in B, then redraw the sum of gains on A."""
    kept = np.zeros(len(gains), dtype=bool)
    for stratum in np.unique(design.stratum):
        inside = design.stratum == stratum
        room = min(int((inside & design.first).sum()), int((inside & ~design.first).sum()))
        for side in (design.first, ~design.first):
            left = room
            for person in rng.permutation(np.unique(design.group[inside & side])):
                members = inside & (design.group == person)
                if members.sum() <= left:
                    left -= int(members.sum())
                    kept |= members
    part = Design(design.first[kept], design.stratum[kept], design.group[kept])
    values = gains[kept].astype(np.float64)
    null = part.redrawn_sums(values, 199, seed=0)
    return float((1 + (null >= values[part.first].sum() - 1e-9).sum()) / 200)


def report_alone(rows: Sequence[Row]) -> Iterator[str]:
    yield f"{WORLDS} nets for each law, {REDRAWS} redraws of the held-out persons each; {PERSONS} persons. Before: persons dropped until A and B"
    yield "are equally large, and the sum of gains on A redrawn."
    yield ""
    for place, heading in ((0, "today"), (1, "before")):
        counts: dict[str, tuple[int, int]] = {}
        for row in rows:
            for share in ("50% in A", "80% in A"):
                hits, count = counts.get(f"{row['kind']}, {share}: {heading}", (0, 0))
                counts[f"{row['kind']}, {share}: {heading}"] = (hits + row[share][place], count + row["count"])
        yield from level_lines("innocent model", counts, alpha=0.05)
        yield ""
    upside_down = sum(row[share][2] for row in rows for share in ("50% in A", "80% in A"))
    yield f"Rejections with a difference of 0 or less: {upside_down}."


# -- intervals ------------------------------------------------------------------------------------------


def judge_intervals(unit: str) -> Row:
    """Cover the mean of persons' gains, which differ among persons and, for a part, among their images."""
    name, count = unit.rsplit("/", 1)
    rng = np.random.default_rng(derive_seed(3, unit) % 2**31)
    now = before = 0
    for draw in range(400):
        persons = np.repeat(np.arange(int(count)), LAWS[name](rng, int(count)))
        labels = (np.arange(int(count)) % CLASSES)[persons]
        design = design_of(rng, labels, persons, 0.5)
        of_person, of_image = (rng.choice([-1.0, 0.0, 1.0], size, p=[0.2, 0.5, 0.3]) for size in (int(count), len(persons)))
        values = np.where(rng.random(len(persons)) < 0.7, of_person[persons], of_image)[:, None]
        low, high = grouped_interval(resampled_differences(values, design, 400, seed=draw)[:, 0], design)
        now += low <= 0 <= high
        alone = Design.of(design.first, labels)
        low, high = percentile_interval(resampled_differences(values, alone, 400, seed=draw)[:, 0])
        before += low <= 0 <= high
    return {"kind": name, "persons": int(count), "now": int(now), "before": int(before), "count": 400}


def report_intervals(rows: Sequence[Row]) -> Iterator[str]:
    yield "95 % intervals of the difference between the sides, by persons and, before, by images; three classes."
    yield ""
    yield from table(
        ("images of a person", "persons", "covered", "covered before"),
        ((r["kind"], r["persons"], rate(r["now"], r["count"]), rate(r["before"], r["count"])) for r in rows),
    )


# -- distances between views -----------------------------------------------------------------------------


def judge_views(unit: str) -> Row:
    """Measure persons' distances between views under two models, of which the one with more images is tighter throughout."""
    name, number = unit.rsplit("/", 1)
    rng = np.random.default_rng([int(number), derive_seed(6, name) % 2**31])
    now = before = 0
    for draw in range(VIEW_DRAWS):
        persons = np.repeat(np.arange(PERSONS), LAWS[name](rng, PERSONS))
        design = design_of(rng, (np.arange(PERSONS) % CLASSES)[persons], persons, 0.5)
        share = float(design.first.mean())
        own = rng.gamma(8.0, 1 / 8, PERSONS)[persons] * rng.gamma(20.0, 1 / 20, len(persons))  # how an image's views differ
        gains = own * (share - (1 - share)) + 0.1 * rng.normal(size=len(persons))  # the model of B minus that of A
        null = design.redrawn_differences(gains, 199, seed=draw)
        now += permutation_p(design.difference(gains), null) <= 0.05
        sizes = design.first.sum(), (~design.first).sum()
        sums = np.append(design.redrawn_sums(gains, 199, seed=draw), gains[design.first].sum())
        means = sums / sizes[0] - (gains.sum() - sums) / sizes[1]
        before += permutation_p(float(means[-1]), means[:-1]) <= 0.05
    return {"kind": name, "now": int(now), "before": int(before), "count": VIEW_DRAWS}


def report_views(rows: Sequence[Row]) -> Iterator[str]:
    yield "Simulated: the model that saw more images places all views closer together. Before: redraws kept the numbers of images as observed."
    yield ""
    for field, heading in (("now", "today"), ("before", "before")):
        yield from level_lines(f"persons: {heading}", {r["kind"]: (r[field], r["count"]) for r in rows}, alpha=0.05)
        yield ""


VIEWS, SPREAD = 8, 0.3  # views of an image, and the noise of a view
TRAINED_WORLDS = 10


def judge_trained_views(unit: str) -> Row:
    """Train pairs of nets on other images, one far better than the other, and pairs that each trained on their own side."""
    name, number = unit.rsplit("/", 1)
    rng, seed = np.random.default_rng([int(number), derive_seed(7, name) % 2**31]), derive_seed(int(number), name) % 2**31
    (x, y), shuffled = images("FashionMNIST"), rng.permutation(60_000)
    persons = np.repeat(np.arange(PERSONS), LAWS[name](rng, PERSONS))
    base, rest = shuffled[:PERSONS][persons], shuffled[PERSONS:]
    shown = (x[base] + NOISE * rng.normal(size=x[base].shape)).astype(np.float32)  # a person's images differ by noise
    everything, labels = np.concatenate([x, shown]), np.concatenate([y, labels_of(base)])
    own = 60_000 + np.arange(len(persons))

    def gains_of(first: NDArray[np.int64], second: NDArray[np.int64], how: How) -> NDArray[np.float64]:
        nets = [train(everything, labels, [rows], how, seed=seed + place) for place, rows in enumerate((first, second))]
        views = shown[None] + SPREAD * np.random.default_rng(seed).normal(size=(VIEWS, *shown.shape)).astype(np.float32)
        under_a, under_b = (
            np.stack([softmax(net.logits(view)[0], axis=-1) for view in views]).std(axis=0).mean(axis=1) for net in nets
        )  # fmt: skip
        gains: NDArray[np.float64] = (under_b - under_a) / np.mean([under_a, under_b])
        return gains

    innocent, hits = gains_of(rest[:2400], rest[:400], replace(BASE, epochs=60)), 0
    for redraw in range(REDRAWS):
        design = design_of(rng, labels_of(base), persons, 0.5)
        null = design.redrawn_differences(innocent, 199, seed=redraw)
        hits += permutation_p(design.difference(innocent), null) <= 0.05
    design = design_of(rng, labels_of(base), persons, 0.5)
    guilty = gains_of(
        *(np.concatenate([own[side], rest[:400]]) for side in (design.first, ~design.first)), replace(BASE, epochs=60)
    )
    found = permutation_p(design.difference(guilty), design.redrawn_differences(guilty, 999, seed=0)) <= 0.05
    return {"kind": name, "hits": int(hits), "count": REDRAWS, "found": int(found)}


def report_trained_views(rows: Sequence[Row]) -> Iterator[str]:
    yield f"{TRAINED_WORLDS} pairs of nets for each law (Fashion-MNIST, MLPs; {PERSONS} persons, {VIEWS} views with noise; embeddings: the nets' outputs). Innocent: neither net saw"
    yield f"a person; one trained on six times as many images as the other; {REDRAWS} redraws of the sides each. Planted: each net trained on its own side."
    yield ""
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in dict.fromkeys(row["kind"] for row in rows)}
    levels = {kind: (sum(r["hits"] for r in mine), sum(r["count"] for r in mine)) for kind, mine in kinds.items()}
    yield from level_lines("innocent nets", levels, alpha=0.05)
    yield ""
    yield from table(
        ("nets that trained on their side", "shown"),
        ((k, rate(sum(r["found"] for r in mine), len(mine))) for k, mine in kinds.items()),
    )


# -- power ----------------------------------------------------------------------------------------------

POWER_DRAWS = 200  # audits of one kind
POWERS = {
    f"{count} images, {classes} classes, {rate_:.0%} right without memory, {'two models' if pair else 'one alone'}": (count, classes, rate_, pair)
    for count, classes in ((60, 5), (400, 10))
    for rate_ in (0.05, 0.5)
    for pair in (True, False)
}  # fmt: skip


def judge_power(unit: str) -> Row:
    """Plant as many answers as are said to be detected four times out of five, and test."""
    count, classes, easy, pair = POWERS[unit]
    rng, labels = np.random.default_rng(derive_seed(4, unit) % 2**31), np.arange(count) % classes
    now = before = 0
    said: list[float] = []
    for draw in range(POWER_DRAWS):
        right = rng.random((2, count)) < easy * 2 * rng.random(count)
        gains = right[0].astype(np.int64) - right[1]
        wrong = (~right[0]).astype(np.int64), (~right[1] & pair).astype(np.int64)
        design = design_of(rng, labels, np.arange(count), 0.5)
        due = detectable_answers(design, gains, wrong, alpha=0.05, seed=draw)
        answers = count if pair else int(design.first.sum())
        formerly = (detectable(design.null_deviation(gains), 0.05) or 0.0) * (0.5 if pair else 1.0) / design.balance * answers
        said.append(np.nan if due is None else due / answers)
        for planted in (due, round(formerly)):
            again = design_of(rng, labels, np.arange(count), 0.5)
            own = np.where(again.first, wrong[0], wrong[1])
            chosen = rng.permutation(np.flatnonzero(own))[: planted or 0]
            memory = gains.copy()
            memory[chosen] += np.where(again.first[chosen], 1, -1)
            shown = again.tail_p(memory, permutations=199, seed=draw) <= 0.05
            now, before = (now + shown, before) if planted is due else (now, before + shown)
    return {"kind": unit, "now": int(now), "before": int(before), "said": float(np.nanmedian(said)), "count": POWER_DRAWS}


def report_power(rows: Sequence[Row]) -> Iterator[str]:
    yield "Shown, of audits in which exactly as many answers are due to memory as are said to be found four times out of five."
    yield ""
    yield from table(
        ("audit", "share said (median)", "shown", "shown at what was said before"),
        ((r["kind"], f"{r['said']:.3f}", rate(r["now"], r["count"]), rate(r["before"], r["count"])) for r in rows),
    )


# -- power where persons are unequal ----------------------------------------------------------------------

STATISTICS = ("share_excess", "SSLMem, models of one scale", "SSLMem, one model tighter throughout")
PLANTED = {"share_excess": 0.1, STATISTICS[1]: 0.05, STATISTICS[2]: 0.05}  # share of answers, or of distances, due to memory


def judge_unequal(unit: str) -> Row:
    """Plant memory in the images of unequal persons, and test the sum of the gains and today's difference of means."""
    name = unit.rsplit("/", 1)[0]
    rng = np.random.default_rng(derive_seed(8, unit) % 2**31)
    now = before = null_now = null_before = 0
    for draw in range(UNEQUAL_DRAWS):
        persons = np.repeat(np.arange(PERSONS), LAWS["1 to 60 images"](rng, PERSONS))
        design = design_of(rng, (np.arange(PERSONS) % CLASSES)[persons], persons, 0.5)
        memory = PLANTED[name]
        for planted in (0.0, memory):
            gains = (answers if name == STATISTICS[0] else distances)(rng, design, planted, tighter=name == STATISTICS[2])
            shown = permutation_p(design.difference(gains), design.redrawn_differences(gains, 199, seed=draw)) <= 0.05
            sums = design.redrawn_sums(gains, 199, seed=draw)
            formerly = permutation_p(float(gains[design.first].sum()), sums) <= 0.05
            if planted:
                now, before = now + shown, before + formerly
            else:
                null_now, null_before = null_now + shown, null_before + formerly
    found = {"now": now, "before": before, "null_now": null_now, "null_before": null_before}
    return {"kind": name, **{key: int(value) for key, value in found.items()}, "count": UNEQUAL_DRAWS}


def answers(rng: np.random.Generator, design: Design, planted: float, *, tighter: bool) -> NDArray[np.float64]:
    """Return right answers of A's model minus those of B's, of which A's is better at all images."""
    count = len(design.first)
    ease = rng.random(design.num_groups)[design.number]
    right_a, right_b = rng.random(count) < 0.2 + 0.6 * ease, rng.random(count) < 0.6 * ease
    learnt = rng.random(count) < planted
    right_a, right_b = right_a | (learnt & design.first), right_b | (learnt & ~design.first)
    gains: NDArray[np.float64] = right_a.astype(np.float64) - right_b
    return gains


def distances(rng: np.random.Generator, design: Design, planted: float, *, tighter: bool) -> NDArray[np.float64]:
    """Return distances between views under B's model minus those under A's; an image's own model places them closer."""
    count = len(design.first)
    own = rng.gamma(20.0, 1 / 20, design.num_groups)[design.number] * rng.gamma(20.0, 1 / 20, count)
    scale_a = 0.7 if tighter else 1.0
    noise = 0.1 * rng.normal(size=(2, count))
    under_a = scale_a * own * (1 - planted * design.first) + noise[0]
    under_b = own * (1 - planted * ~design.first) + noise[1]
    gains: NDArray[np.float64] = under_b - under_a
    return gains


def report_unequal(rows: Sequence[Row]) -> Iterator[str]:
    yield f"Simulated: {PERSONS} persons of 1 to 60 images, {CLASSES} classes; before: the sum of the gains on side A, redrawn with the persons. Memory: an"
    yield "image's own model answers one in ten rightly from memory, or places views a twentieth closer together. One model is better than the other"
    yield "(.2 of answers), or tighter (.7 of distances)."
    yield ""
    yield from table(
        ("statistic", "shown", "shown before", "shown without memory", "before, without memory"),
        ((r["kind"], *(rate(r[key], r["count"]) for key in ("now", "before", "null_now", "null_before"))) for r in rows),
    )


# -- looking again ---------------------------------------------------------------------------------------

LOOKS = ("one pair of models, then three", "five seeds of the split")
LOOK_DRAWS = 1000


def judge_looks(unit: str) -> Row:
    """Audit innocent models, and look again where nothing is shown; answers depend on the image and the training alone."""
    rng, labels = np.random.default_rng(derive_seed(7, unit) % 2**31), np.arange(200) % 10
    planned = 2 if unit == LOOKS[0] else 5
    unpaid = paid = 0
    for draw in range(LOOK_DRAWS):
        ease = rng.random(200)
        p_values = []
        pairs = (rng.random((3, 2, 200)) < ease).astype(np.int64)
        design = design_of(rng, labels, np.arange(200), 0.5)
        for look in range(planned):
            if unit == LOOKS[1]:
                pairs = (rng.random((1, 2, 200)) < ease).astype(np.int64)
                design = design_of(rng, labels, np.arange(200), 0.5)
            used = pairs[: 1 if look == 0 else 3]
            p_values.append(design.tail_p((used[:, 0] - used[:, 1]).sum(axis=0), permutations=199, seed=draw))
        unpaid += min(p_values) <= 0.05
        paid += min(p_values) <= 0.05 / planned
    return {"kind": unit, "unpaid": int(unpaid), "paid": int(paid), "count": LOOK_DRAWS}


def report_looks(rows: Sequence[Row]) -> Iterator[str]:
    yield "Shown in any of the looks. With `looks` in the recipe, each look spends alpha / looks."
    yield ""
    for field, heading in (("paid", "looks planned"), ("unpaid", "unadjusted, as the page then says")):
        yield from level_lines(heading, {r["kind"]: (r[field], r["count"]) for r in rows}, alpha=0.05, hit="shown")
        yield ""


# -- sets that others drew ------------------------------------------------------------------------------


SETS = {  # how much harder and darker the held-out images are, and how much sharper the model is than its reference
    "drawn at random": (0.0, 1.0, 1.0), "darker": (0.0, 0.9, 1.0), "harder by .1": (0.1, 1.0, 1.0), "harder by .2": (0.2, 1.0, 1.0),
    "harder by .1, a sharper model": (0.1, 1.0, 1.5), "harder by .2, a sharper model": (0.2, 1.0, 1.5),
    "harder by .4, a sharper model": (0.4, 1.0, 1.5),
}  # fmt: skip
SET_DRAWS = 400


def judge_declared(unit: str) -> Row:
    """Give sets as drawn at random: they were, or the held-out images are darker or harder."""
    kind, size = unit.rsplit("/", 1)
    count, (harder, darker, sharper) = int(size), SETS[kind]
    rng, (x, _) = np.random.default_rng(derive_seed(5, unit) % 2**31), images("FashionMNIST")
    low, high = float(x.min()), float(x.max())
    descriptive = accused = shown = 0
    for draw in range(SET_DRAWS):
        rows = rng.choice(60_000, count, replace=False)
        labels = labels_of(rows)
        design = design_of(rng, labels, np.arange(count), 0.5)
        grey = np.clip((x[rows] - low) / (high - low) * 255, 0, 255) * np.where(design.first, 1.0, darker)[:, None]
        easiness = rng.random(count) - harder * ~design.first
        chance = 1 / (1 + np.exp(3 * (0.7 - easiness) - rng.normal(size=count)))  # that the background gives the object away
        known, model = rng.random(count) < chance, rng.random(count) < 0.3 + 0.6 * sharper * (easiness - 0.5) + 0.3
        gains = model.astype(np.int64) - known
        sure = np.where(known, chance, 1 - chance).clip(0.3)  # of wrong answers, of which there are several
        first = difference_p(np.where(known, sure, -sure), design.first, labels, redraws=199, seed=draw)
        pixels = pixel_features(grey.astype(np.uint8).reshape(count, 14, 14, 1), np.arange(count))
        second = tested_draw(pixels, design.first, labels, seed=draw).p_value
        differs = min(first, second or 1.0) <= LEVEL
        shown_here = design.tail_p(gains, permutations=199, seed=draw) <= 0.05
        descriptive, accused, shown = descriptive + differs, accused + (shown_here and not differs), shown + shown_here
    return {
        "kind": f"{kind}, {size} images", "descriptive": int(descriptive), "accused": int(accused), "shown": int(shown),
        "count": SET_DRAWS,
    }  # fmt: skip


PAIRS = {  # how much easier images of A are, how much sharper their model is, and memory of both models in log odds
    "two models, drawn at random": (0.0, 1.0, 0.0), "two models, A easier by .2 sd, a sharper first model": (0.2, 1.5, 0.0),
    "two models, A easier by .4 sd, a sharper first model": (0.4, 1.5, 0.0),
    "two models, A easier by .8 sd, a sharper first model": (0.8, 1.5, 0.0), "two models that remember": (0.0, 1.0, 0.5),
}  # fmt: skip


def judge_pairs(unit: str) -> Row:
    """Give two models sets as drawn at random: they were, or A is easier. Their votes of 20 neighbours are drawn."""
    kind, size = unit.rsplit("/", 1)
    count, (easier, sharper, memory) = int(size), PAIRS[kind]
    rng, found = np.random.default_rng(derive_seed(5, unit) % 2**31), np.zeros(3, dtype=np.int64)
    for draw in range(SET_DRAWS):
        labels = rng.integers(0, 10, count)
        design = design_of(rng, labels, np.arange(count), 0.5)
        of_a = design.first
        easiness = rng.normal(size=count) + easier * of_a - 1
        odds = sharper * easiness + memory * of_a, easiness + memory * ~of_a
        votes = [rng.binomial(20, 1 / (1 + np.exp(-each))) / 20 for each in odds]
        right = [share > 0.5 for share in votes]
        easy = [ease(own, np.where(own, share, 0.6 - 0.6 * share)) for own, share in zip(right, votes, strict=True)]
        differs = max(
            difference_p(values, of_a, labels, redraws=199, seed=draw) for values in (easy[0] + easy[1], easy[1])
        ) <= LEVEL  # fmt: skip
        shown = design.tail_p(right[0].astype(np.int64) - right[1], permutations=199, seed=draw) <= 0.05
        found += differs, shown and not differs, shown
    descriptive, accused, before = found.tolist()
    return {
        "kind": f"{kind}, {size} images",
        "descriptive": descriptive,
        "accused": accused,
        "shown": before,
        "count": SET_DRAWS,
    }


def judge_given(unit: str) -> Row:
    """Give one or two models sets as drawn at random."""
    return judge_pairs(unit) if unit.startswith("two models") else judge_declared(unit)


def report_declared(rows: Sequence[Row]) -> Iterator[str]:
    yield "Innocent models (simulated answers; with one model alone, real images for what is known without a model, pixels). Before: every declaration was"
    yield "believed. Accused may be .05 of cases without a difference, and .1 with one."
    yield ""
    headings = ("held-out images", "descriptive: the sets differ", "accused before", "accused", "by the rule")
    cells = []
    for r in rows:
        nominal = 0.05 if "drawn at random" in r["kind"] else 0.1
        rates = [rate(r[name], r["count"]) for name in ("descriptive", "shown", "accused")]
        cells.append((r["kind"], *rates, "" if "remember" in r["kind"] else by_rule(r["accused"], r["count"], nominal)))
    yield from table(headings, cells)


PARTS = (
    Part(
        "persons-alone",
        "A single net that saw none of the audited images, of persons with unequally many: is it accused? (Fashion-MNIST, MLPs)",
        lambda: crossed(LAWS, WORLDS), judge_alone, report_alone,
    ),
    Part(
        "persons-intervals",
        "Do intervals cover where persons have several images each?",
        lambda: (f"{name}/{count}" for name in LAWS for count in (12, 24, 60)), judge_intervals, report_intervals,
    ),
    Part(
        "persons-views",
        "Is SSLMem shown where no image is remembered, but one model is tighter than the other?",
        lambda: (f"{name}/0" for name in LAWS), judge_views, report_views,
    ),
    Part(
        "persons-trained-views",
        "SSLMem with trained nets and unequal persons: is it shown where no net saw them, and found where each saw its own?",
        lambda: crossed(LAWS, TRAINED_WORLDS), judge_trained_views, report_trained_views,
    ),
    Part(
        "deja-vu-power",
        "Is what a run says that it would have found, found four times out of five?",
        lambda: iter(POWERS), judge_power, report_power,
    ),
    Part(
        "persons-power",
        "Is memory found where persons have unequally many images and one model differs from the other throughout?",
        lambda: (f"{name}/0" for name in STATISTICS), judge_unequal, report_unequal,
    ),
    Part(
        "deja-vu-looks",
        "What if an auditor looks again until something is shown?",
        lambda: iter(LOOKS), judge_looks, report_looks,
    ),
    Part(
        "declared-sets",
        "Sets that are declared to be drawn at random, with one model alone or two: what if they were not?",
        lambda: (f"{kind}/{size}" for kind in (*SETS, *PAIRS) for size in (400, 2000)), judge_given, report_declared,
    ),
)  # fmt: skip
