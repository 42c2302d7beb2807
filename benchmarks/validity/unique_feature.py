"""Unique feature: nulls, plants and coverage on nets that are trained on handwritten digits with room for a name.

An example is one of scikit-learn's digits, enlarged to 16 x 16 pixels, below a line with room for a text of four letters:
noise where one letter is planted, black where models know names.
Nets are MLPs with one hidden layer that reach about 95 % on new digits, trained by memlib's stacked engine.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from benchmarks.validity.harness import Part, Row, level_lines, rate, table
from memlib.audits.unique_feature.analysis import Analysis, settings, unit_means
from memlib.audits.unique_feature.calibrated_maxima import ByLabel, maxima, settings_of
from memlib.audits.unique_feature.exchange import Score, exchange
from memlib.audits.unique_feature.external import own_units, summarize_external
from memlib.audits.unique_feature.findings import summarize
from memlib.audits.unique_feature.recipe import HEADLINE, Config
from memlib.audits.unique_feature.scoring import Net, Shown, calibrate, score, score_by_label
from memlib.audits.unique_feature.tables import with_column
from memlib.data.canaries.features import Feature, TrainingRows, build_feature, null_features, training_rows
from memlib.data.images.glyphs import LETTERS
from memlib.data.text.names import other_names
from memlib.findings import Findings
from memlib.identity import derive_seed
from memlib.models.classifiers import build_classifier
from memlib.observe.outputs import Forward, class_scores
from memlib.specs import CanarySpec, ClassifierSpec, GlyphFeature, TrainingSpec
from memlib.stats.inference import exact_interval, exchanges, mcnemar_p, mean_interval, permutation_p
from memlib.stats.multiplicity import holm
from memlib.training.stacked import Examples, NetJob, StackedNet, train_nets

ALPHA, PAIRS, EXAMPLES, CLASSES = 0.05, 20, 600, 10
CONFIG = Config(replicates=500, permutations=999, max_examples=200)
MODEL = ClassifierSpec(architecture="mlp", widths=(32,))
TRAINING = TrainingSpec.model_validate(
    {
        "objective": {"kind": "supervised"},
        "epochs": 15,
        "batch_size": 100,
        "augment": None,
        "optimizer": {"learning_rate": 3e-3, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"},
    }
)
CPU = torch.device("cpu")
NULL_DRAWS, NULL_NETS, PARTITIONS = 45, 120, 3
PLANT_DRAWS, PLANT_REPEATS = 20, (1, 3, 10)
COVERAGE_DRAWS, CANARIES, NETS_EACH, RESAMPLES = 10, 25, 10, 40
OWN_DRAWS, OWN_NETS, KNOWN_NAMES, NAME_REPEATS = 12, 3, 60, 20


LETTER = GlyphFeature(kind="glyph", text="A", top=1, left=2)  # over noise


def text(name: str, **changes: Any) -> GlyphFeature:
    """Return the feature that writes a name in a black line above the digit."""
    return GlyphFeature(kind="glyph", text=name, top=1, left=2, cover=True, **changes)


@functools.cache
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (1797, 24, 28, 1) images and their labels."""
    from sklearn.datasets import load_digits

    source = load_digits()
    large = np.kron(source.images, np.ones((2, 2))) * 255 / 16
    images = np.zeros((len(large), 24, 28, 1), np.uint8)
    images[:, 7:23, 6:22, 0] = large
    return images, source.target.astype(np.int64)


def noisy(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the images with noise in the place of the text, so that a letter there is not the canary's only distinction."""
    changed = images.copy()
    changed[:, :7] = np.random.default_rng(0).integers(0, 256, changed[:, :7].shape, dtype=np.uint8)
    return changed


@dataclass(frozen=True)
class Draw:
    """A draw of the data: training rows, probe rows (never trained on), and the canary's row."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    members: NDArray[np.int64]
    probe: NDArray[np.int64]
    canary: int

    @property
    def label(self) -> int:
        return int(self.labels[self.canary])


def draw_of(seed: int, *, noise: bool = True) -> Draw:
    """Draw 600 digits for training and 200 others, with noise or a black line above the digit."""
    images, labels = digits()
    images = noisy(images) if noise else images
    order = np.random.default_rng(derive_seed(seed, "draw")).permutation(len(images))
    return Draw(images, labels, np.sort(order[:EXAMPLES]), order[EXAMPLES : EXAMPLES + 200], int(order[0]))


def trained(draw: Draw, feature: Feature, jobs: Sequence[NetJob]) -> Forward:
    """Train the nets of these jobs; return them as one forward pass."""
    torch.set_num_threads(1)
    data = Examples(draw.images, draw.labels, feature)
    results = train_nets(MODEL, TRAINING, data, jobs, CLASSES, stack_size=20, device=CPU)
    net = build_classifier(MODEL, (1, 24, 28), CLASSES, seed=0)
    assert isinstance(net, torch.nn.Sequential)
    state = {name: torch.stack([result.state[name] for result in results]) for name in results[0].state}
    stacked = StackedNet.load(net, state, CPU)
    return lambda inputs: stacked.forward(inputs[None])


def shown(draw: Draw, forward: Forward, feature: Feature, count: int, *, without: Sequence[int], random: bool) -> Shown:
    """Return the class scores that the audit compares, computed as in its score stage."""

    def see(images: NDArray[Any]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return class_scores(forward, images, num_nets=count, device=CPU)

    members = np.setdiff1d(draw.members, without)
    own = {label: draw.images[members[draw.labels[members] == label]] for label in range(CLASSES)}
    other = draw.images[draw.probe]
    labels = sorted({int(draw.labels[row]) for row in without}) if random else []
    partners = {label: [see(feature.insert_random(own[label], seed=label))] for label in labels}
    return Shown(
        labels, {label: (see(feature.clean(x)), see(feature.insert(x))) for label, x in own.items()},
        (see(feature.clean(other)), see(feature.insert(other))), partners,
        [see(feature.insert_random(other, seed=0))] if random else [],
    )  # fmt: skip


@dataclass(frozen=True)
class Scored:
    """Nets and their scores."""

    nets: Sequence[Net]
    units: pa.Table
    by_label: NDArray[np.float64]

    def audit(self, pairs: Sequence[tuple[int, int]], *, repair: bool = False) -> tuple[pa.Table, ByLabel]:
        """Return the units of an audit of some canary nets and their controls, given by position.

        With `repair`, the nets of a pair get the pair's number as their seed.
        """
        chosen = [i for i, _ in pairs] + [j for _, j in pairs]
        nets = []
        for place, position in enumerate(chosen):
            net, pair = self.nets[position], place % len(pairs)
            partner = self.nets[pairs[pair][0]]
            nets.append(Net(pair, partner.canary, place >= len(pairs), pair if repair else net.seed, partner.label))
        cell = ByLabel(nets, self.by_label[chosen])
        rows: dict[int, list[Row]] = {}
        for row in self.units.to_pylist():
            rows.setdefault(row["net"], []).append(row)
        found = [
            {**row, "net": net.number, "canary": net.canary, "control": net.control, "seed": net.seed,
             "own_label": row["metric"] == "m_kl" or row["label"] == net.label}
            for net, position in zip(nets, chosen, strict=True) for row in rows[position]
        ]  # fmt: skip
        plain = calibrate(pa.Table.from_pylist(found, schema=self.units.schema))
        units = pa.concat_tables([plain, maxima(cell, CONFIG)])
        for name, value in (("variant", ""), ("data_seed", 0), ("example_id", "x"), ("epoch", 1)):
            units = with_column(units, name, [value] * units.num_rows)
        return units, cell


def scored(
    draw: Draw, nets: Sequence[Net], rows: Sequence[TrainingRows], feature: Feature, canaries: Sequence[int]
) -> Scored:
    """Train nets and score them; each unit row has the net's position as its number."""
    forward = trained(draw, feature, [NetJob(net.seed, r) for net, r in zip(nets, rows, strict=True)])
    outputs = shown(draw, forward, feature, len(nets), without=canaries, random=True)
    numbered = [Net(i, net.canary, net.control, net.seed, net.label) for i, net in enumerate(nets)]
    return Scored(nets, score(numbered, outputs, CONFIG), score_by_label(outputs, CONFIG))


# -- (a) nothing is memorized -------------------------------------------------------------------------


def null_unit(unit: str) -> Row:
    """Audit canary nets that saw no feature either: 20 nets against 20 others of other seeds, each net used three times."""
    draw, feature = draw_of(int(unit)), build_feature(LETTER, (24, 28, 1))
    rows = training_rows(draw.members, draw.canary, CanarySpec(feature=LETTER), with_feature=False)
    nets = [Net(i, 0, True, derive_seed(int(unit), "net", i), draw.label) for i in range(NULL_NETS)]
    pool = scored(draw, nets, [rows] * NULL_NETS, feature, [draw.canary])
    audits, rng = [], np.random.default_rng(derive_seed(int(unit), "partition"))
    for _ in range(PARTITIONS):
        for chosen in rng.permutation(NULL_NETS).reshape(-1, PAIRS, 2):
            pairs = [(int(i), int(j)) for i, j in chosen]
            audits.append(before(pool, pairs) | after(*pool.audit(pairs, repair=True)))
    return {"audits": audits}


def after(units: pa.Table, cell: ByLabel) -> Row:
    """Return the verdict and the smallest p-values of the audit."""
    found = Findings.read(summarize(units, {("", 0): cell}, CONFIG))
    places = {setting: place for place, setting in enumerate(settings_of(CONFIG))}
    scores = [
        Score([Analysis(part, CONFIG) for part in parts], places.get((params["metric"], params["output"])))
        for params, parts in settings(units)
    ]
    joint = exchange(scores, [cell], alpha=ALPHA, permutations=CONFIG.permutations, seed=1)
    assert joint is not None
    single = found.tests("single nets")
    return {
        "headline": found.head.p_adjusted, "joint": float(joint.adjusted.min()), "raw_exchange": float(joint.p_values.min()),
        "single": min(row.p_adjusted or 0.0 for row in single), "single_headline": single.head.p_value,
        "word": found.verdict.word,
    }  # fmt: skip


def before(pool: Scored, pairs: Sequence[tuple[int, int]]) -> Row:
    """Return the smallest raw p-values of the former tests.

    These are eight differences (maxima of raw scores), and McNemar tests of each by both criteria.
    """
    nets = [i for i, _ in pairs] + [j for _, j in pairs]
    values: dict[tuple[str, str], NDArray[np.float64]] = {}
    published: dict[tuple[str, str], NDArray[np.bool_]] = {}
    for row in pool.units.to_pylist():
        if row["own_label"] and row["net"] in set(nets):
            key = (row["metric"], row["output"])
            values.setdefault(key, np.zeros(len(nets)))[nets.index(row["net"])] = row["value"]
            hit = row["published_p"] < ALPHA and row["value"] > 0
            published.setdefault(key, np.zeros(len(nets), bool))[nets.index(row["net"])] = hit
    for place, key in enumerate(settings_of(CONFIG)):
        m = pool.by_label[nets, place, :, 0] - pool.by_label[nets, place, :, 1]
        top = m.argmax(axis=1)
        values[key] = m.max(axis=1)
        published[key] = (pool.by_label[nets, place, top, 2] < ALPHA) & (values[key] > 0)
    signs = exchanges(len(pairs), 999, seed=0)
    p = []
    half = len(pairs)
    for key, v in values.items():
        gains = v[:half] - v[half:]
        p.append(permutation_p(float(gains.mean()), signs @ gains / half))
        ranks = np.array([(1 + (np.delete(v[half:], i % half) >= v[i]).sum()) / half for i in range(len(v))])
        for hits in (published[key], ranks <= ALPHA):
            wins, losses = int((hits[:half] & ~hits[half:]).sum()), int((~hits[:half] & hits[half:]).sum())
            p.append(mcnemar_p(wins, losses))
    return {"any_before": float(min(p)), "differences_before": float(min(p[::3]))}


def null_report(rows: Sequence[Row]) -> Iterator[str]:
    audits = [audit for row in rows for audit in row["audits"]]
    count = len(audits)

    def hits(name: str) -> tuple[int, int]:
        return sum(a[name] <= ALPHA for a in audits), count

    yield f"{count} audits of 20 pairs of nets that never saw the feature, {len(rows)} draws of the data, each net used three times."
    yield ""
    yield from table(
        ("before: no correction", "rejected at .05"),
        [
            ("any of 24 raw p-values (8 differences, 16 McNemar tests)", rate(*hits("any_before"))),
            ("any of the 8 differences", rate(*hits("differences_before"))),
        ],
    )
    yield ""
    yield from level_lines(
        "after",
        {
            "verdict of the run (headline)": hits("headline"),
            "any of 8 scores, max-T": hits("joint"),
            "any score's calibrated proportion, Holm": hits("single"),
            "calibrated proportion of the headline's score, unadjusted": hits("single_headline"),
        },
        alpha=ALPHA,
    )


# -- (b) a planted feature ----------------------------------------------------------------------------


def plant_unit(unit: str) -> Row:
    """Audit 20 canary nets, trained on some copies of one example with the feature, and their controls."""
    seed, repeats = (int(part) for part in unit.split("-"))
    draw, spec = draw_of(1000 + seed), CanarySpec(feature=LETTER, mode="append", repeats=repeats)
    feature = build_feature(spec.feature, (24, 28, 1))
    nets = [Net(i, 0, control, derive_seed(seed, "plant", i), draw.label) for control in (False, True) for i in range(PAIRS)]
    rows = [training_rows(draw.members, draw.canary, spec, with_feature=not net.control) for net in nets]
    pool = scored(draw, nets, rows, feature, [draw.canary])
    pairs = [(i, PAIRS + i) for i in range(PAIRS)]
    units, cell = pool.audit(pairs)
    labels: dict[str, list[int]] = {}
    for place, (metric, output) in enumerate(settings_of(CONFIG)):
        raw = (pool.by_label[:PAIRS, place, :, 0] - pool.by_label[:PAIRS, place, :, 1]).argmax(axis=1)
        of_setting = [r for r in units.to_pylist() if (r["metric"], r["output"], r["control"]) == (metric, output, False)]
        labels[f"{metric} {output}"] = [int((raw == draw.label).sum()), sum(r["label"] == draw.label for r in of_setting)]
    found = Findings.read(summarize(units, {("", 0): cell}, CONFIG))
    p = {f"{row.metric} {row.params['output']}": row.p_adjusted for row in found.tests(HEADLINE, "scores")}
    return {"labels": labels, "p": p, "word": found.verdict.word, "before": before(pool, pairs)["any_before"]}


def plant_report(rows: Sequence[Row]) -> Iterator[str]:
    by_repeats: dict[str, list[Row]] = {}
    for row in rows:
        by_repeats.setdefault(row["unit"].split("-")[1], []).append(row)
    yield "Power at .05, 20 pairs of nets; scores other than the headline by max-T."
    yield ""
    names = list(rows[0]["p"])
    lines = []
    for repeats, of_repeats in by_repeats.items():
        hits = [f"{sum(row['p'][name] <= ALPHA for row in of_repeats)}" for name in names]
        lines.append(
            (repeats, len(of_repeats), rate(sum(row["word"] == "shown" for row in of_repeats), len(of_repeats)), *hits)
        )
    yield from table(("copies with the feature", "audits", "verdict shown", *names), lines)
    yield ""
    yield "Canary nets whose grey-box or black-box maximum falls on the canary's own label (chance: 1 in 10)."
    yield ""
    lines = []
    for repeats, of_repeats in by_repeats.items():
        for name in rows[0]["labels"]:
            raw, centred = (sum(row["labels"][name][k] for row in of_repeats) for k in (0, 1))
            lines.append((repeats, name, rate(raw, PAIRS * len(of_repeats)), rate(centred, PAIRS * len(of_repeats))))
    yield from table(("copies", "score", "before: raw maximum", "after: centred by the controls"), lines)


# -- (c) coverage -------------------------------------------------------------------------------------


def coverage_unit(unit: str) -> Row:
    """Train 10 nets for each of many canaries on one draw; compare intervals from 5 canaries with the mean of all."""
    seed = int(unit)
    draw, spec = draw_of(2000 + seed), CanarySpec(feature=LETTER, mode="append", repeats=5)
    feature = build_feature(spec.feature, (24, 28, 1))
    rng = np.random.default_rng(derive_seed(seed, "canaries"))
    canaries = rng.permutation(draw.members)[:CANARIES]
    nets, rows = [], []
    for control in (False, True):
        for i in range(CANARIES * NETS_EACH):
            canary = int(canaries[i // NETS_EACH])
            nets.append(Net(i, i // NETS_EACH, control, derive_seed(seed, "coverage", i), int(draw.labels[canary])))
            rows.append(training_rows(draw.members, canary, spec, with_feature=not control))
    forward = trained(draw, feature, [NetJob(net.seed, r) for net, r in zip(nets, rows, strict=True)])
    gains, hits = _white(draw, forward, feature, nets, canaries)
    canary_of = np.repeat(np.arange(CANARIES), NETS_EACH)
    truth = {"difference": float(gains.mean()), "published": float(hits.mean())}
    held = {f"{what} over {over}": 0 for what in truth for over in ("nets", "canaries")}
    for _ in range(RESAMPLES):
        chosen = np.isin(canary_of, rng.choice(CANARIES, 5, replace=False))
        for what, values in (("difference", gains[chosen]), ("published", hits[chosen].astype(float))):
            means = unit_means([values], [canary_of[chosen]])
            intervals = {
                over: mean_interval(units, replicates=500, seed=0)
                if what == "difference"
                else exact_interval(float(units.sum()), len(units))
                for over, units in (("canaries", means), ("nets", values))
            }
            for over, (low, high) in intervals.items():
                held[f"{what} over {over}"] += low - 1e-12 <= truth[what] <= high + 1e-12
    return {"held": held, "resamples": RESAMPLES}


def _white(
    draw: Draw, forward: Forward, feature: Feature, nets: Sequence[Net], canaries: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return M of each canary net at its own label minus its control's, and the published criterion.

    Both are computed on probabilities.
    """
    outputs = shown(draw, forward, feature, len(nets), without=[int(c) for c in canaries], random=True)
    config = CONFIG.model_copy(update={"outputs": ("probability",)})
    rows = [r for r in score(nets, outputs, config, random=False).to_pylist() if r["own_label"]]
    values = {(r["net"], r["control"]): (r["value"], r["published_p"] < ALPHA and r["value"] > 0) for r in rows}
    count = len(nets) // 2
    gains = np.array([values[i, False][0] - values[i, True][0] for i in range(count)])
    return gains, np.array([values[i, False][1] for i in range(count)])


def coverage_report(rows: Sequence[Row]) -> Iterator[str]:
    total = sum(row["resamples"] for row in rows)
    yield (
        f"95 % intervals from 5 canaries x {NETS_EACH} nets, drawn from {CANARIES} canaries of each of {len(rows)} draws of "
        "the data; the truth is the mean over all canaries of the draw. Resamples share nets, so that the intervals of these "
        "rates are too narrow."
    )
    yield ""
    yield from table(
        ("interval", "covered"), [(name, rate(sum(r["held"][name] for r in rows), total)) for name in rows[0]["held"]]
    )


# -- (d) an external model ----------------------------------------------------------------------------

KINDS = (
    "no names", "others in its class, codes in the rest", "others in all classes", "the name alone",
    "the name, others in all classes", "the name, others in its class, codes in the rest",
)  # fmt: skip


def own_unit(unit: str) -> Row:
    """Train models that know no name, 60 other names, the tested name (20 copies in one class), or both.

    Names have 4 letters. Where codes of random letters stand in the other classes, a model must learn what makes a name.
    """
    seed = int(unit)
    draw, rng = draw_of(3000 + seed, noise=False), np.random.default_rng(derive_seed(seed, "names"))
    pool = ["JOHN", *other_names("JOHN", 199, seed=0)]
    images, labels, jobs, tested, kinds = [draw.images], [draw.labels], [], [], []
    at = len(draw.images)
    class_rows = draw.members[draw.labels[draw.members] == draw.label]
    for kind, i in itertools.product(KINDS, range(OWN_NETS)):
        order = [pool[k] for k in rng.permutation(len(pool))]
        where = draw.members if "all classes" in kind else class_rows
        bearers = [(name, int(rng.choice(where))) for name in order[1 : 1 + KNOWN_NAMES] if "others" in kind]
        bearers += [(order[0], int(rng.choice(class_rows))) for _ in range(NAME_REPEATS) if "the name" in kind]
        codes = ["".join(rng.choice(list(LETTERS), 4)) for _ in range(KNOWN_NAMES) if "codes" in kind]
        bearers += [(code, int(rng.choice(np.setdiff1d(draw.members, class_rows)))) for code in codes]
        images += [build_feature(text(name), (24, 28, 1)).insert(draw.images[row][None]) for name, row in bearers]
        labels.append(draw.labels[[row for _, row in bearers]])
        rows = np.concatenate([draw.members, np.arange(at, at + len(bearers))])
        at += len(bearers)
        jobs.append(NetJob(derive_seed(seed, kind, i), TrainingRows(rows, np.zeros(len(rows), bool))))
        tested.append([order[0], *order[1 + KNOWN_NAMES : 100 + KNOWN_NAMES]])
        kinds.append(kind)
    whole = Draw(np.concatenate(images), np.concatenate(labels), draw.members, draw.probe, draw.canary)
    return {"models": [_own(whole, job, names, kind) for job, names, kind in zip(jobs, tested, kinds, strict=True)]}


def _own(draw: Draw, job: NetJob, names: Sequence[str], kind: str) -> Row:
    """Test one model; `names` are the tested one and 99 that it does not know."""
    name = names[0]
    bare = text(name).model_copy(update={"cover": False})  # a cover would black out the names that stand in the images
    forward = trained(draw, build_feature(bare, (24, 28, 1)), [job])
    result: Row = {"kind": kind}
    for nulls in ("letters", "names", "list"):
        spec = text(name, nulls=None if nulls == "list" else nulls)
        others = {other: build_feature(text(other), (24, 28, 1)) for other in names[1:]}
        if nulls != "list":
            others = null_features(spec, (24, 28, 1), 99, seed=0)
        features = {"canary": build_feature(spec, (24, 28, 1)), **others}
        scores = np.stack(
            [
                score_by_label(shown(draw, forward, feature, 1, without=[], random=False), CONFIG)[0]
                for feature in features.values()
            ]
        )
        for label in (None, draw.label):
            units = own_units(list(features), scores, CONFIG, label=label)
            word = Findings.read(summarize_external(units, CONFIG, null=nulls)).verdict.word
            result[f"{nulls}{'' if label is None else ', label known'}"] = word == "shown"
        if nulls == "letters":
            result["before"] = _own_before(scores)
    return result


def _own_before(scores: NDArray[np.float64]) -> bool:
    """Apply the former rule: raw maxima among random letters, Bonferroni over the scores."""
    values = (scores[..., 0] - scores[..., 1]).max(axis=2)
    p = [permutation_p(float(values[0, s]), values[1:, s]) for s in range(values.shape[1])]
    return bool(min(p) < ALPHA / len(p) or holm(p).min() <= ALPHA)


def own_report(rows: Sequence[Row]) -> Iterator[str]:
    models = [model for row in rows for model in row["models"]]
    yield "Rate at which a name is singled out among 99 others at .05. In the first three rows the model never saw the tested name."
    yield ""
    columns = {
        "before: raw maximum, letters": "before", "letters": "letters", "names": "names",
        "names that it does not know": "list", "the same, label known": "list, label known",
    }  # fmt: skip
    lines = []
    for kind in KINDS:
        of_kind = [model for model in models if model["kind"] == kind]
        lines.append((kind, *(rate(sum(model[key] for model in of_kind), len(of_kind)) for key in columns.values())))
    yield from table(("the model was trained on", *columns), lines)


def _numbers(count: int) -> Mapping[str, None]:
    return dict.fromkeys(str(i) for i in range(count))


PARTS: tuple[Part, ...] = (
    Part(
        "unique-feature-null", "How often does the audit show memory where no net saw the feature?",
        lambda: _numbers(NULL_DRAWS), null_unit, null_report,
    ),
    Part(
        "unique-feature-plant", "Is a planted feature found, and is it found on the canary's own label?",
        lambda: [f"{i}-{repeats}" for i in range(PLANT_DRAWS) for repeats in PLANT_REPEATS], plant_unit, plant_report,
    ),
    Part(
        "unique-feature-coverage", "Do intervals from a few canaries with many nets each cover the mean over canaries?",
        lambda: _numbers(COVERAGE_DRAWS), coverage_unit, coverage_report,
    ),
    Part(
        "own-model", "Does an external model that knows other names single out a name that it never saw?",
        lambda: _numbers(OWN_DRAWS), own_unit, own_report,
    ),
)  # fmt: skip
