"""If a run found nothing: is the effect that it states with a power of 80 % found so often?

Each unit draws audits without memory, reads the effect that they state, plants it in the same audit, drawn again, and tests.
Effects are alike in all examples, as the pages say; those that differ between examples are found less often.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

from benchmarks.validity.documents import HOW, units_of
from benchmarks.validity.harness import Part, Row, clopper_pearson, crossed, rate, table
from benchmarks.validity.membership import answers_of_odds, audited, mixture, recipe
from benchmarks.validity.persons import CLASSES, LAWS, PERSONS, design_of
from memlib.audits.exposure.documents import document_rows
from memlib.audits.forgetting.trace import Pool, find_trace
from memlib.audits.membership.findings import summarize
from memlib.data.subsets import TARGET, toss
from memlib.findings import SHOWN, Findings
from memlib.identity import derive_seed
from memlib.specs.data import QUERY, WITHHELD
from memlib.stats.inference import exchanges, permutation_p
from memlib.stats.power import detectable_shift
from memlib.stats.randomization import detectable

ALPHA, WORLDS, UNITS, NEAR = 0.05, 40, 10, 0.05
Floats = NDArray[np.float64]
Found = tuple[float | None, bool]  # the effect that is stated, and whether it is found where it is planted


def sides(rng: np.random.Generator, seed: int, *, persons: str = "") -> Found:
    """Two sides: captions, reconstructions, views; gains of two models, of images or of persons with several images."""
    number = np.arange(200) if not persons else np.repeat(np.arange(PERSONS), LAWS[persons](rng, PERSONS))
    labels = (np.arange(number.max() + 1) % CLASSES)[number]
    own = rng.choice([-1.0, 0.0, 1.0], number.max() + 1, p=[0.2, 0.6, 0.2])[number] + rng.normal(size=len(number))
    enough = detectable_shift(design_of(rng, labels, number, 0.5), own, alpha=ALPHA, seed=seed)
    again = design_of(rng, labels, number, 0.5)
    if enough is None:
        return None, False
    planted = own + enough * (again.first - 0.5)
    return enough, permutation_p(again.difference(planted), again.redrawn_differences(planted, 499, seed=seed)) <= ALPHA


def documents(rng: np.random.Generator, seed: int) -> Found:
    """Continuations of documents, of which half were held out; bits are skewed."""
    bits = rng.gamma(3.0, 8.0, 100)

    def row(values: Floats, held_out: NDArray[np.bool_]) -> tuple[float | None, float]:
        head = next(iter(document_rows(units_of(values, held_out), HOW, alpha=ALPHA)))
        assert head.p_value is not None
        return head.detectable, head.p_value

    enough, held_out = row(bits, rng.permutation(100) < 50)[0], rng.permutation(100) < 50
    return enough, enough is not None and row(bits + enough * held_out, held_out)[1] <= ALPHA


def feature(rng: np.random.Generator, seed: int, *, pairs: int, skewed: bool) -> Found:
    """Pairs of models with and without a feature, which are exchanged; gains are normal, or skewed as differences are."""
    draw: Callable[[int], Floats] = (
        (lambda n: rng.gamma(0.5, 1.0, n) - rng.gamma(0.5, 1.0, n)) if skewed else rng.standard_normal
    )
    gains = draw(pairs)
    signs, spread = exchanges(pairs, 999, seed=seed), float(gains.std(ddof=1) / np.sqrt(pairs))
    enough = detectable(spread, ALPHA, freedom=pairs - 1, smallest_p=1 / (1 + len(signs)))
    planted = draw(pairs) + (enough or 0.0)
    return enough, permutation_p(float(planted.mean()), signs @ planted / pairs) <= ALPHA


def trace(rng: np.random.Generator, seed: int) -> Found:
    """A data set that was drawn from a pool of four classes, and its trace in residuals."""
    labels, values = np.arange(240) % 4, rng.standard_t(5, 240)

    def drawn() -> Pool:
        query = rng.permutation(240) < 120
        return Pool(np.where(query, QUERY, WITHHELD), labels, np.arange(240))

    enough, pool = find_trace(values, drawn(), permutations=499, seed=seed).detectable(ALPHA), drawn()
    planted = values + (enough or 0.0) * pool.query
    return enough, find_trace(planted, pool, permutations=499, seed=seed).p_value <= ALPHA


def members(rng: np.random.Generator, seed: int, *, classes: int, count: int) -> Found:
    """Members by coins, and shadow models; log odds are normal around each example's ease."""
    pool, shadows = mixture(rng, count, apart=1.5), 16
    pool = type(pool)(pool.points, rng.integers(0, classes, count), pool.persons)
    inside = toss(pool.persons, [TARGET, *range(shadows)], share=0.5, seed=seed)
    ease, noise = rng.normal(size=count), rng.normal(size=(2, 1 + shadows, count))
    said = recipe(score={"redraws": 999})

    def run(odds: Floats) -> Findings:
        pair = answers_of_odds(odds[:1]), answers_of_odds(odds[1:])
        return Findings.read(summarize(audited(said, pool, inside[0], *pair, inside[1:]), []))

    enough = run(ease + noise[0]).head.detectable
    if enough is None or enough >= 1:
        return None, False
    # an attack that knows ease and noise has this AUC
    shift = np.sqrt(2 * (1 + 1 / shadows)) * scipy.stats.norm.ppf(enough)
    return enough - 0.5, run(ease + noise[1] + shift * inside).verdict.word == SHOWN


KINDS: dict[str, Callable[[np.random.Generator, int], Found]] = {
    "captions, reconstructions, views: 200 images": sides,
    "captions, reconstructions, views: 60 persons of 3 images": lambda rng, seed: sides(rng, seed, persons="3 images each"),
    "captions, reconstructions, views: 60 persons of 1 to 60": lambda rng, seed: sides(rng, seed, persons="1 to 60 images"),
    "documents: 100, half held out": documents,
    "unique feature: 10 pairs": lambda rng, seed: feature(rng, seed, pairs=10, skewed=False),
    "unique feature: 20 pairs, heavy tails": lambda rng, seed: feature(rng, seed, pairs=20, skewed=True),
    "unique feature: 100 pairs, heavy tails": lambda rng, seed: feature(rng, seed, pairs=100, skewed=True),
    "forgetting: 120 of 240": trace,
    "membership: 200 examples of one class": lambda rng, seed: members(rng, seed, classes=1, count=200),
    "membership: 200 examples, 20 classes": lambda rng, seed: members(rng, seed, classes=20, count=200),
    "membership: 1,000 examples, 10 classes": lambda rng, seed: members(rng, seed, classes=10, count=1000),
}


def judge(unit: str) -> Row:
    """Draw audits of one kind, and plant in each what it says that it would find."""
    kind = unit.rsplit("/", 1)[0]
    said, found = [], 0
    for world in range(WORLDS):
        seed = derive_seed(world, "power", unit) % 2**31
        enough, is_shown = KINDS[kind](np.random.default_rng(seed), seed)
        if enough is not None:
            said.append(enough)
            found += is_shown
    return {"kind": kind, "said": said, "found": found}


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Report how often the stated effect is found, beside what is stated: four times out of five."""
    yield f"{WORLDS * UNITS} audits of each kind, drawn without memory; the effect that they state is planted in the same audit, drawn again, alike in all examples. A power is as"
    yield f"stated if its exact interval meets {0.8 - NEAR:g} to {0.8 + NEAR:g}; more than stated errs on the side of caution."
    yield ""
    cells = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        said, found = [one for row in mine for one in row["said"]], sum(row["found"] for row in mine)
        low, high = clopper_pearson(found, len(said)) if said else (0.0, 1.0)
        word = "less" if high < 0.8 - NEAR else "more" if low > 0.8 + NEAR else "as stated"
        cells.append((kind, f"{np.median(said):.3f}" if said else "", rate(found, len(said)) if said else "", word))
    yield from table(("audit", "effect that is stated (median)", "found", "power"), cells)


PARTS = (
    Part(
        "stated-power", "Of an effect that a run says it would have found four times out of five: how often is it found?",
        lambda: crossed(KINDS, UNITS), judge, report,
    ),
)  # fmt: skip
