"""Exposure: secrets of a kind that the model knows, variants and nets that saw none, intervals, claims of privacy."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import scipy.stats
import torch
from numpy.typing import NDArray

from benchmarks.validity.harness import Part, Row, level_lines, rate, table
from memlib.audits.exposure import scores
from memlib.audits.exposure.evidence import evidence_of_given, held
from memlib.audits.exposure.findings import summarize
from memlib.audits.exposure.recipe import Config, Recipe
from memlib.audits.exposure.scores import Scored, exposure_by_sampling, score
from memlib.audits.exposure.tables import EXTRACTION
from memlib.data.splits import TRAIN, column, select
from memlib.data.text.corpus import Corpus, build_corpus, role_of, text_candidates
from memlib.data.text.formats import Format, Space
from memlib.data.text.scan import single_secrets
from memlib.data.text.sources import open_text
from memlib.data.text.streams import Text
from memlib.findings import SHOWN, Findings
from memlib.models.sequence import LanguageModel, build_language_model
from memlib.objectives import build_objective
from memlib.observe.likelihoods import UNITS_PER_BIT, candidate_costs, leaf_costs
from memlib.specs import LanguageSpec, SecretsSpec, TextSpec, TopicsSource, TrainingSpec
from memlib.stats.multiplicity import combined_p
from memlib.stats.tails import goodness_of_fit
from memlib.training import loop
from memlib.training.loop import Training, TrainingSet
from memlib.training.privacy import make_private

torch.set_num_threads(1)

ALPHA = 0.05
DIGITS = tuple("0123456789")


def recipe(**changes: Any) -> Recipe:
    """Return a recipe with the settings of the tests; only `trained` trains anything."""
    plain = {
        "data": {"source": {"kind": "topics"}},
        "training": {"objective": {"kind": "language"}, "epochs": 1, "augment": None},
    }
    return Recipe.model_validate(plain | changes)


def findings(models: Sequence[Scored], said: Recipe, size: int, documents: pa.Table | None = None) -> Findings:
    """Return the findings of the audit's own functions for some models."""
    with patch.object(scores, "_extrapolate", lambda *_: None):  # the skew-normal law, which no test rests on
        units = score(models, size, said.score)
    return Findings.read(summarize(models, units, EXTRACTION.arrow.empty_table(), said, size=size, documents=documents))


def built(text: Text, spec: TextSpec, canaries: SecretsSpec, secret: bytes) -> Corpus:
    """Build a corpus that leaves nothing on disk."""
    with TemporaryDirectory() as folder:
        return build_corpus(text, spec, canaries, Path(folder) / "windows.npy", secret=secret)


def trained(
    corpus: Corpus, roles: Sequence[str], model: LanguageSpec, training: dict[str, Any], *, start: LanguageModel | None = None
) -> LanguageModel:
    """Train a language model, or continue its training, on the windows of some roles, in the same way as the product."""
    rows = column(select(corpus.splits, *roles), "row")
    spec = TrainingSpec.model_validate({"objective": {"kind": "language"}, "augment": None, **training})
    net = start or build_language_model(model, len(corpus.vocabulary), corpus.windows.shape[1], seed=spec.seed)
    net = net.float().train()
    data = TrainingSet(corpus.windows, rows, np.zeros(len(rows), dtype=np.int64))
    Training(net, build_objective(spec.objective), data, spec, input_size=corpus.windows.shape[1]).run()
    return net.double().eval()


def optimizer(rate_: float, name: str = "adamw") -> Row:
    """Return an optimizer without decay or warm-up."""
    return {"name": name, "learning_rate": rate_, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"}


# -- secrets that a text held -------------------------------------------------------------------------

LAWS = (3.31, 3.2, 3.0, 2.86)  # bits a digit
NETS, REDRAWS, GIVEN, UNSEEN = 4, 500, 5, 800
TIMES = (1, 4, 16)
FILE_FORMAT = "call me at {d8}"
FILE_MODELS = {
    "GRU": LanguageSpec(architecture="gru", width=64, layers=1, embedding=16),
    "fine-tuned transformer": LanguageSpec(architecture="transformer", width=32, layers=2, heads=2),
}


@cache
def digit_law(bits: float) -> NDArray[np.float64]:
    """Return probabilities of ten digits, falling geometrically, with a given entropy in bits."""
    low, high = 0.0, 2.0
    for _ in range(60):
        steep = (low + high) / 2
        weights = np.exp(-steep * np.arange(10))
        law = weights / weights.sum()
        low, high = (steep, high) if -(law * np.log2(law)).sum() > bits else (low, steep)
    solution: NDArray[np.float64] = law
    return solution


def numbers(count: int, bits: float, rng: np.random.Generator) -> list[str]:
    """Draw numbers of eight digits whose digits follow the same law in every place."""
    return ["".join(DIGITS[d] for d in row) for row in rng.choice(10, size=(count, 8), p=digit_law(bits))]


def choices_of(texts: Sequence[str]) -> NDArray[np.int32]:
    """Return the choices of the holes, (num_texts, num_holes), with nothing after them."""
    return np.array([[int(letter) for letter in text] for text in texts], dtype=np.int32)


def file_unit(unit: str) -> Row:
    """Train a net on a text full of numbers; audit secrets that it never saw, and planted ones.

    The transformer is first trained on other numbers, whose digits are uniform.
    """
    kind, law, place_ = unit.split("/")
    bits, number = float(law), int(place_)
    rng = np.random.default_rng([int(100 * bits), number])
    filler, planted = numbers(1200, bits, rng), numbers(GIVEN * len(TIMES), bits, rng)
    inserted = [*filler, *(text for place, text in enumerate(planted) for _ in range(TIMES[place // GIVEN]))]
    text = "\n".join(f"call me at {inserted[place]}" for place in rng.permutation(len(inserted)))
    spec = TextSpec(source=TopicsSource(), window=40)
    secrets = SecretsSpec(format=FILE_FORMAT, insertions=(1,), never=0)
    corpus = built(Text.of(text), spec, secrets, bytes(32))
    how = {"epochs": 12, "batch_size": 16, "optimizer": optimizer(0.004), "seed": number}
    start = None
    if kind != "GRU":
        others = "\n".join(f"call me at {one}" for one in numbers(1200, LAWS[0], rng))
        first = built(Text.of(others), spec, secrets, bytes(32))
        assert first.vocabulary == corpus.vocabulary
        start = trained(first, [TRAIN], FILE_MODELS[kind], how)
    net = trained(corpus, [TRAIN], FILE_MODELS[kind], how, start=start)
    space, context = text_candidates(
        Format(FILE_FORMAT, {}), secrets, spec, {symbol: place for place, symbol in enumerate(corpus.vocabulary)}
    )
    taken = set(inserted)

    def cost(texts: Sequence[str]) -> NDArray[np.int64]:
        return candidate_costs(net, space, choices_of(texts), context=context)

    references = candidate_costs(net, space, space.sample(10_000, rng), context=context)
    fresh = [text for text in numbers(60 * UNSEEN, bits, rng) if text not in taken]
    fresh_costs = cost(fresh)
    wrong = before = 0
    for _ in range(REDRAWS):
        drawn = rng.choice(fresh_costs, GIVEN + UNSEEN, replace=False)
        wrong += file_audit(drawn[:GIVEN], drawn[GIVEN:], references, space)
        before += uniform_rule(drawn[:GIVEN], references)
    power = {}
    for place, times in enumerate(TIMES):
        given = cost(planted[place * GIVEN : (place + 1) * GIVEN])
        power[str(times)] = file_audit(given, rng.choice(fresh_costs, UNSEEN, replace=False), references, space)
    return {"kind": kind, "bits": bits, "wrong": wrong, "before": before, "audits": REDRAWS, "power": power}


def file_audit(given: NDArray[np.int64], unseen: NDArray[np.int64], references: NDArray[np.int64], space: Space) -> bool:
    """Return whether the audit concludes that the given secrets are given away."""
    count = len(given) + len(unseen)
    kinds = ("given",) * len(given) + ("unseen",) * len(unseen)
    times = (1,) * len(given) + (0,) * len(unseen)
    costs = np.concatenate([given, unseen])
    model = Scored("", 0, 1, tuple(range(count)), kinds, times, costs, references, 1.0, {})
    settings = recipe(canaries={"file": "secrets.txt", "unseen": "unseen.txt"}, score={"method": "sampled"})
    return findings([model], settings, space.size).verdict.word == SHOWN


def uniform_rule(given: NDArray[np.int64], references: NDArray[np.int64]) -> bool:
    """Apply the former rule: the rank among the references over their number, Holm over the secrets."""
    p = [(1 + int((references <= cost).sum())) / (1 + len(references)) for cost in given]
    return len(p) * min(p) <= ALPHA


def file_report(rows: Sequence[Row]) -> Iterator[str]:
    """Report rejections of five unseen secrets by entropy, before and now, and how often planted ones are found."""
    for name, field in (("rank over all references, before", "before"), ("among unseen secrets, now", "wrong")):
        rejections = {
            f"{kind}, {bits} bits a digit": (sum(r[field] for r in chosen), sum(r["audits"] for r in chosen))
            for kind in FILE_MODELS
            for bits in LAWS
            if (chosen := [r for r in rows if (r["kind"], r["bits"]) == (kind, bits)])
        }
        yield from level_lines(f"five secrets never seen: {name}", rejections, alpha=ALPHA)
        yield ""
    cells = []
    for kind in FILE_MODELS:
        for times in TIMES:
            chosen = [bool(row["power"][str(times)]) for row in rows if row["kind"] == kind]
            if chosen:
                cells.append((f"{times}x", kind, rate(sum(chosen), len(chosen))))
    yield from table(("five secrets stood", "model", f"found ({UNSEEN} unseen secrets)"), cells)


# -- given secrets whose null is the text's own held-out part -------------------------------------------

HELD_OUT, SINGLE_NETS, SINGLE_REDRAWS, PEOPLE = (0.1, 0.3), 5, 400, 400


def single_unit(unit: str) -> Row:
    """Train a net on other numbers of the same kind; audit a text of its own, in which likely numbers are popular."""
    share, number = float(unit.split("/")[0]), int(unit.split("/")[1])
    rng = np.random.default_rng([int(100 * share), number])
    known, drawn = numbers(1200, 2.86, rng), list(dict.fromkeys(numbers(PEOPLE, 2.86, rng)))
    spec, secrets = TextSpec(source=TopicsSource(), window=40), SecretsSpec(format=FILE_FORMAT, insertions=(1,), never=0)
    corpus = built(Text.of("\n".join(f"call me at {text}" for text in known)), spec, secrets, bytes(32))
    how = {"epochs": 12, "batch_size": 16, "optimizer": optimizer(0.004), "seed": number}
    net = trained(corpus, [TRAIN], LanguageSpec(architecture="gru", width=64, layers=1, embedding=16), how)
    space, context = text_candidates(
        Format(FILE_FORMAT, {}), secrets, spec, {symbol: place for place, symbol in enumerate(corpus.vocabulary)}
    )
    drawn = [text for text in drawn if text not in set(known)]
    costs = candidate_costs(net, space, choices_of(drawn), context=context)
    references = candidate_costs(net, space, space.sample(2_000, rng), context=context)
    ease = scipy.stats.rankdata(-costs) / len(
        costs
    )  # likely numbers are popular: whoever chooses a number chooses a simple one
    popular = np.where(rng.random(len(drawn)) < ease**2, 1 + rng.geometric(0.3, len(drawn)), 1)
    documents = [(place, f"call me at {text}") for place, text in enumerate(np.repeat(drawn, popular))]
    once = np.array(single_secrets(documents, [f"call me at {text}" for text in drawn]))
    whose = np.repeat(np.arange(len(drawn)), popular)
    before = now = audited = 0
    for _ in range(SINGLE_REDRAWS):
        held = rng.permutation(len(documents)) < round(share * len(documents))
        trained_on = np.isin(np.arange(len(drawn)), whose[~held])
        for is_now, chosen in ((False, np.ones(len(drawn), dtype=bool)), (True, once)):
            given, unseen = costs[trained_on & chosen], costs[~trained_on & chosen]
            shown = len(unseen) > 0 and joint_p(given, unseen, references) <= ALPHA
            before, now = (before, now + shown) if is_now else (before + shown, now)
        audited += 1
    return {
        "share": share,
        "now": int(now),
        "before": int(before),
        "audits": audited,
        "once": int(once.sum()),
        "secrets": len(drawn),
    }


def joint_p(given: NDArray[np.int64], unseen: NDArray[np.int64], references: NDArray[np.int64]) -> float:
    """Return the p-value of the audit's joint test of all given secrets."""
    kinds, times = ("given",) * len(given) + ("unseen",) * len(unseen), (1,) * len(given) + (0,) * len(unseen)
    model = Scored("", 0, 1, tuple(range(len(kinds))), kinds, times, np.concatenate([given, unseen]), references, 1.0, {})
    return evidence_of_given(held([model], ""), alpha=ALPHA, seed=0).p_value


def single_report(rows: Sequence[Row]) -> Iterator[str]:
    """Report rejections for all given secrets, before, and for those that occur once, now."""
    mean, once = (float(np.mean([row[name] for row in rows])) for name in ("secrets", "once"))
    yield f"{SINGLE_NETS} nets, {SINGLE_REDRAWS} draws of the held-out documents each; {mean:.0f} secrets, of which {once:.0f} occur once."
    yield ""
    found = {
        f"{share:.0%} held out: {name}": (sum(r[field] for r in chosen), sum(r["audits"] for r in chosen))
        for share in HELD_OUT
        for name, field in (("all given secrets, before", "before"), ("secrets that occur once, now", "now"))
        if (chosen := [r for r in rows if r["share"] == share])
    }
    yield from level_lines("given secrets of a net that saw none", found, alpha=ALPHA, hit="given away")


# -- variants and nets that saw nothing ---------------------------------------------------------------

VARIANT_UNITS, VARIANTS, VARIANT_REDRAWS, CANARIES = 6, 8, 334, 3
VARIANT_FORMAT = "the code is {d5}"


def variants_unit(unit: str) -> Row:
    """Score eight nets that saw no canary on the same canaries: as variants, and as seeds of one training."""
    rng = np.random.default_rng(int(unit))
    spec, secrets = TextSpec(source=TopicsSource(), window=40, fraction=0.06), SecretsSpec(format=VARIANT_FORMAT, never=0)
    corpus = built(open_text(TopicsSource()), spec, secrets, bytes(32))
    space, context = text_candidates(
        Format(VARIANT_FORMAT, {}), secrets, spec, {symbol: place for place, symbol in enumerate(corpus.vocabulary)}
    )
    nets = []
    for number in range(VARIANTS):
        how = {"epochs": 4, "batch_size": 32, "optimizer": optimizer(0.004), "seed": 100 * int(unit) + number}
        net = trained(corpus, [TRAIN], LanguageSpec(architecture="gru", width=32 + 4 * number, layers=1, embedding=16), how)
        nets.append(np.concatenate(list(leaf_costs(net, space, context=context))))
    names = [f"v{number}" for number in range(VARIANTS)]
    ordered = [np.sort(costs) for costs in nets]
    counts: Counter[str] = Counter()
    for _ in range(VARIANT_REDRAWS):
        chosen = rng.choice(space.size, CANARIES, replace=False)
        sampled = rng.choice(space.size, 2000)
        models = [
            ranked(name, 0, costs, order, chosen, sampled) for name, costs, order in zip(names, nets, ordered, strict=True)
        ]
        rows = findings(models, recipe(variants={name: {} for name in names}), space.size)
        p = np.array([[model.exact[canary][1] / space.size for canary in range(CANARIES)] for model in models])
        counts["variants, before"] += bool((CANARIES * p.min(axis=1) <= ALPHA).any())
        counts["variants, now"] += rows.verdict.word == SHOWN
        seeds = [
            ranked("", number, costs, order, chosen, sampled)
            for number, (costs, order) in enumerate(zip(nets, ordered, strict=True))
        ]
        counts["nets that share canaries, pooled"] += combined_p(p.ravel().tolist()) <= ALPHA
        together = findings(seeds, recipe(seeds=VARIANTS), space.size)
        counts["nets that share canaries, now"] += together.verdict.word == SHOWN
    return {"found": {name: int(hits) for name, hits in counts.items()}, "audits": VARIANT_REDRAWS}


def ranked(
    variant: str,
    seed: int,
    costs: NDArray[np.int64],
    order: NDArray[np.int64],
    chosen: NDArray[np.int64],
    sampled: NDArray[np.int64],
) -> Scored:
    """Return a net's costs of some candidates, with their exact ranks."""
    chosen_costs = costs[chosen]
    ranks = np.searchsorted(order, chosen_costs, side="right").tolist()
    exact = {canary: ("enumerated", rank, 1) for canary, rank in enumerate(ranks)}
    count = len(chosen)
    kinds, times = ("inserted",) * count, (1,) * count
    return Scored(variant, seed, 1, tuple(range(count)), kinds, times, chosen_costs, costs[sampled], 1.0, exact)


def variants_report(rows: Sequence[Row]) -> Iterator[str]:
    """Report the runs of eight that call something given away."""
    names = dict.fromkeys(name for row in rows for name in row["found"])
    counts = {name: (sum(r["found"].get(name, 0) for r in rows), sum(r["audits"] for r in rows)) for name in names}
    yield from level_lines("eight nets, three canaries that none saw", counts, alpha=ALPHA)


# -- intervals ----------------------------------------------------------------------------------------

TRUE_BITS = (2.0, 5.0, 8.0, 10.0, 16.0, 20.0, 26.0)
REFERENCES = (1_000, 10_000)
DRAWS, FITTED = 400, 40


def intervals_unit(unit: str) -> Row:
    """Check intervals and lower bounds for canaries of known exposure among normally distributed references."""

    truth, count = float(unit.split("/")[0]), int(unit.split("/")[1])
    rng = np.random.default_rng([int(10 * truth), count])
    cost = float(scipy.stats.norm.ppf(2.0**-truth))
    held = bounded = 0
    for below in rng.binomial(count, 2.0**-truth, size=DRAWS):
        _, low, high = exposure_by_sampling(int(below), count)
        held += low <= truth and (high is None or truth <= high)
        bounded += high is None
    at_least = accepted = 0
    for _ in range(FITTED):
        references = np.round((60 + 4 * rng.normal(size=count)) * UNITS_PER_BIT).astype(np.int64)
        canary = np.array([round((60 + 4 * cost) * UNITS_PER_BIT)], dtype=np.int64)
        fit = goodness_of_fit(np.sort(references) / UNITS_PER_BIT, replicates=20, seed=0)
        model = Scored("", 0, 1, (0,), ("inserted",), (1,), canary, references, 1.0, {}, fit_p=fit)
        (row,) = score([model], 10**12, Config(replicates=20)).to_pylist()
        accepted += row["method"] == "extrapolated"
        at_least += row["method"] == "extrapolated" and row["ci_low"] <= truth and row["ci_high"] is None
    return {"bits": truth, "references": count, "held": held, "one_sided": bounded, "draws": DRAWS, "accepted": accepted, "at_least": at_least}  # fmt: skip


def intervals_report(rows: Sequence[Row]) -> Iterator[str]:
    """Report coverage by true exposure."""
    cells = [
        (
            row["bits"], row["references"], rate(row["held"], row["draws"]), f"{row['one_sided'] / row['draws']:.2f}",
            rate(row["at_least"], row["accepted"]) if row["accepted"] else "",
        )
        for row in rows
    ]  # fmt: skip
    headings = ("true bits", "references", "interval holds it", "lower bound only", "lower bound holds it, extrapolated")
    yield from table(headings, cells)


# -- claims of privacy --------------------------------------------------------------------------------

CORRECT, BROKEN, EPSILON = 20, 10, 1.0
PRIVATE_FORMAT = "my code is {d5}"


def without_noise(*args: Any, noise: float, **kwargs: Any) -> Any:
    """Make training private but for a planted bug: gradients are clipped, but no noise is added."""
    return make_private(*args, noise=1e-6, **kwargs)


def epsilon_unit(unit: str) -> Row:
    """Run one training that claims epsilon 1, with three canaries, each in one window."""
    kind, number = unit.split("/")
    spec = TextSpec(source=TopicsSource(), window=32, fraction=0.02)
    secrets = SecretsSpec(format=PRIVATE_FORMAT, insertions=(1,), each=3, never=0, together=True)
    corpus = built(open_text(TopicsSource()), spec, secrets, int(number).to_bytes(32, "big"))
    roles = [TRAIN, *(role_of(canary) for canary in range(3))]
    how = {
        "epochs": 20, "batch_size": 32, "optimizer": optimizer(0.003, "rmsprop"), "seed": int(number),
        "privacy": {"epsilon": EPSILON, "delta": 1e-5},
    }  # fmt: skip
    with ExitStack() as stack:
        if kind == "noise left out":
            stack.enter_context(patch.object(loop, "make_private", without_noise))
        net = trained(corpus, roles, LanguageSpec(architecture="cnn", width=48, layers=4), how)
    vocabulary = {symbol: place for place, symbol in enumerate(corpus.vocabulary)}
    space, context = text_candidates(Format(PRIVATE_FORMAT, {}), secrets, spec, vocabulary)
    choices = np.array(corpus.canaries["choices"].to_pylist(), dtype=np.int32)[:, -5:]
    costs = candidate_costs(net, space, choices, context=context)
    whole = np.sort(np.concatenate(list(leaf_costs(net, space, context=context))))
    ranks = np.searchsorted(whole, costs, side="right").tolist()
    exact = {canary: ("enumerated", rank, 1) for canary, rank in enumerate(ranks)}
    claim = {"epsilon": EPSILON, "delta": 1e-5, "noise": 1.0, "accountant": "rdp"}
    kinds = ("inserted",) * 3
    model = Scored("", 0, 20, (0, 1, 2), kinds, (1, 1, 1), costs, whole[::50].copy(), 1.0, exact, claim)
    rows = findings([model], recipe(), space.size)
    test, bound = rows.first("privacy_claim"), rows.first("epsilon_lower_bound")
    return {
        "kind": kind, "refuted": test.verdict == SHOWN, "p": test.p_value, "at_least": bound.value,
        "ceiling": bound.params["ceiling"],
        "exposures": [round(math.log2(space.size / rank), 2) for rank in ranks],
    }  # fmt: skip


def epsilon_report(rows: Sequence[Row]) -> Iterator[str]:
    """Report how often a claim of epsilon 1 is refuted."""
    cells = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_kind = [row for row in rows if row["kind"] == kind]
        bounds = sorted(row["at_least"] for row in of_kind)
        middle = f"{bounds[len(bounds) // 2]:.2f} (at most {max(bounds):.2f}; ceiling {of_kind[0]['ceiling']:.1f})"
        cells.append((kind, rate(sum(row["refuted"] for row in of_kind), len(of_kind)), middle))
    yield from table(("training that claims epsilon 1", "claim refuted", "median lower bound of epsilon"), cells)


PARTS = (
    Part(
        "exposure-file", "Are secrets from a file called given away although the model never saw them, but knows others of their kind?",
        lambda: [f"{kind}/{bits}/{number}" for number in range(NETS) for bits in LAWS for kind in FILE_MODELS],
        file_unit, file_report,
    ),
    Part(
        "exposure-recurring", "Are given secrets called given away, although the model never saw them, where popular ones recur and held-out ones are the null?",
        lambda: [f"{share}/{number}" for number in range(SINGLE_NETS) for share in HELD_OUT], single_unit, single_report,
    ),
    Part(
        "exposure-variants", "Is any canary called given away in eight variants, or nets, that saw none of the canaries?",
        lambda: [str(number) for number in range(VARIANT_UNITS)], variants_unit, variants_report,
    ),
    Part(
        "exposure-intervals", "Do intervals and lower bounds contain the true exposure?",
        lambda: [f"{bits}/{count}" for count in REFERENCES for bits in TRUE_BITS], intervals_unit, intervals_report,
    ),
    Part(
        "exposure-epsilon", "Is a private training detected when its noise was left out, and is a correct one believed?",
        lambda: [*(f"noise left out/{n}" for n in range(BROKEN)), *(f"correct/{n}" for n in range(CORRECT))],
        epsilon_unit, epsilon_report,
    ),
)  # fmt: skip
