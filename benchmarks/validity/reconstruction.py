"""Reconstructions: gains of models that cannot remember an image or whose memory counts against them, and planted memory."""

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

import memlib
from benchmarks.validity.harness import Part, Row, crossed, level_lines, rate, table
from memlib.audits import sides as audited_sides
from memlib.audits.arrangement import body_of
from memlib.audits.deja_vu.recipe import BEYOND, Config, Recipe
from memlib.audits.deja_vu.reconstruction.findings import BEYOND_FAMILY, BEYOND_PUBLIC, FAMILY, GAIN, reconstruction_rows
from memlib.audits.deja_vu.reconstruction.judging import AVERAGED, NEAREST, RANK, RANK_PIXELS, Judge
from memlib.audits.deja_vu.reconstruction.sampling import SHUFFLED
from memlib.audits.deja_vu.tables import NEIGHBORS
from memlib.data.splits import REFERENCE, TARGET
from memlib.data.stages import Shard, Split, decode
from memlib.findings import Finding, Findings
from memlib.identity import derive_seed
from memlib.pipeline.stage import Artifact, Out, Stage
from memlib.recipes.request import AuditRequest
from memlib.running.runners import PlainRunner
from memlib.stats.inference import mean_interval
from memlib.store import Store
from memlib.training.fit import Train

RECIPE = "scenes_reconstruction"
CONFIG = Config(replicates=100, permutations=199)
RANK_GAINS = (f"{GAIN}, {RANK}", f"{GAIN}, {RANK_PIXELS}")


def seeded(seed: int) -> dict[str, Any]:
    """Return the changes of a recipe that draw new scenes, sides, trainings and noise."""
    return dict.fromkeys(("data.source.seed", "split.seed", "training.seed", "reconstruct.seed"), seed)


# -- models without memory, or with memory that counts against them ----------------------------------------

RUNS, REDRAWS = 4, 500  # audits of one kind; redraws of the sides for each
SMALL: dict[str, Any] = {
    "data.source.num_examples": 1000, "split.train_per_class": 10, "split.public_per_class": 30, "training.epochs": 1000,
    "reconstruct.images": 120, "reconstruct.samples": 2, "reconstruct.steps": 10, "reconstruct.baseline": None,
    "reconstruct.judge": {"model": {"width": 16, "projector": []}, "epochs": 20},
    "reconstruct.generator": {
        "model": {"channels": [8, 16, 24], "input_size": 16},
        "training": {"epochs": 30, "batch_size": 64, "objective": {"kind": "denoising", "ema": 0.97}},
    },
}  # fmt: skip
UNTRAINED, ELSEWHERE, OWN = "untrained encoders", "encoders trained on other scenes", "encoders trained on their sides"
KINDS = (UNTRAINED, ELSEWHERE, OWN)
EXCHANGED, UNRELATED = "sides exchanged", "shuffled conditions"  # with encoders trained on their sides
ATTACK = (GAIN, BEYOND_PUBLIC)  # the tests of each measure


@dataclass
class Audited:
    """The judged pictures of an audit: tables.RECONSTRUCTIONS, and tables.SPLITS."""

    judged: pa.Table
    splits: pa.Table


class Watching(PlainRunner):
    """A runner that keeps what the judges say; if `elsewhere` is given, the audited models are trained on these images."""

    elsewhere: tuple[Artifact[Shard], Artifact[pa.Table]] | None = None
    audited: Audited

    def _run(self, stage: Stage[Out], parts: int) -> Artifact[Out]:
        if type(stage) is Train and self.elsewhere is not None:
            shard, splits = self.elsewhere
            stage = cast(Stage[Out], replace(stage, shard=shard, splits=splits))
        artifact = super()._run(stage, parts)
        if isinstance(stage, Judge):
            self.audited = Audited(cast(pa.Table, artifact.content), stage.splits.content)
        return artifact


def audited(kind: str, number: int) -> Audited:
    """Audit a pair of encoders of one kind on small scenes by the stages of the recipe, and return what the judges say."""
    seed = derive_seed(number, kind) % 2**31
    changes = SMALL | seeded(seed) | ({"training.epochs": 0} if kind == UNTRAINED else {})
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner, request = Watching(Store(folder)), AuditRequest.read(RECIPE, changes)
        if kind == ELSEWHERE:
            other = cast(Recipe, AuditRequest.read(RECIPE, changes | seeded(seed + 1)).recipe)
            shard = decode(runner, other.data)
            runner.elsewhere = shard, runner.run(Split(other.split, shard))
        body_of(request.audit)(runner, request.recipe)
        return runner.audited


def sides_of(splits: pa.Table) -> NDArray[np.bool_]:
    """Return which audited images are on side A, in the order of the splits."""
    audited_ones = splits.filter(pc.is_in(splits["role"], value_set=pa.array([TARGET, REFERENCE])))
    return np.asarray(pc.equal(audited_ones["role"], TARGET))


def with_sides(splits: pa.Table, of_a: NDArray[np.bool_]) -> pa.Table:
    """Return the splits with other sides of the audited images."""
    roles = splits["role"].to_numpy(zero_copy_only=False).copy()
    roles[np.isin(roles, (TARGET, REFERENCE))] = np.where(of_a, TARGET, REFERENCE)
    return splits.set_column(splits.schema.get_field_index("role"), "role", pa.array(roles, type=pa.string()))


def redrawn(rng: np.random.Generator, splits: pa.Table) -> NDArray[np.bool_]:
    """Draw the sides of the audited images again, as many of each class for A as before."""
    before = sides_of(splits)
    labels = splits.filter(pc.is_in(splits["role"], value_set=pa.array([TARGET, REFERENCE])))["label"].to_numpy()
    of_a = before.copy()
    for label in np.unique(labels):
        of_a[labels == label] = rng.permutation(before[labels == label])
    return of_a


def turned_against(trained: NDArray[np.bool_], of_a: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Exchange A and B where most images of a draw are on the side of the model that was trained on them."""
    return ~of_a if (of_a == trained).mean() > 0.5 else of_a


def p_values(judged: pa.Table, splits: pa.Table, *, source: str = NEIGHBORS) -> dict[str, float]:
    """Return the p-value of each test, had the pictures of a source been those of the attack."""
    chosen = judged.filter(pc.is_in(judged["source"], value_set=pa.array([source, NEAREST, AVERAGED])))
    as_attack = pc.if_else(pc.equal(chosen["source"], source), NEIGHBORS, chosen["source"])
    chosen = chosen.set_column(chosen.schema.get_field_index("source"), "source", as_attack)
    with mock.patch.object(audited_sides, "detectable_shift", return_value=None):  # power, most of the time of a small audit
        rows = Findings(reconstruction_rows([chosen], splits, CONFIG)).tests()
    return {f"{row.metric}, {row.params['measure']}": float(row.p_value or 0.0) for row in rows}


def judge_null(unit: str) -> Row:
    torch.set_num_threads(1)
    kind, number = unit.rsplit("/", 1)
    found, rng = audited(kind, int(number)), np.random.default_rng([int(number), derive_seed(9, kind) % 2**31])
    trained = sides_of(found.splits)
    p: dict[str, dict[str, list[float]]] = {}
    for _ in range(REDRAWS):
        of_a = redrawn(rng, found.splits)
        draws = {kind: (of_a, NEIGHBORS)}
        if kind == OWN:
            draws = {EXCHANGED: (turned_against(trained, of_a), NEIGHBORS), UNRELATED: (of_a, SHUFFLED)}
        for null, (sides, source) in draws.items():
            for test, value in p_values(found.judged, with_sides(found.splits, sides), source=source).items():
                p.setdefault(null, {}).setdefault(test, []).append(value)
    return {"kind": kind, "p": p, "once": once(found, kind), "ranks": shuffled_ranks(found.judged)}


def once(found: Audited, kind: str) -> dict[str, dict[str, float]]:
    """Return the p-values under the sides as they were drawn; models that were trained on them also with sides exchanged."""
    if kind != OWN:
        return {kind: p_values(found.judged, found.splits)}
    return {
        kind: p_values(found.judged, found.splits),
        EXCHANGED: p_values(found.judged, with_sides(found.splits, ~sides_of(found.splits))),
        UNRELATED: p_values(found.judged, found.splits, source=SHUFFLED),
    }


def shuffled_ranks(judged: pa.Table) -> list[float]:
    """Return the ranks, under A's model, of pictures that were drawn from another image's neighbours, in order of ids."""
    here = (pc.field("source") == SHUFFLED) & (pc.field("measure") == RANK) & (pc.field("model") == "A")
    ranks: list[float] = judged.filter(here).sort_by("example_id")["value"].to_pylist()
    return ranks


def report_null(rows: Sequence[Row]) -> Iterator[str]:
    yield f"Up to {RUNS} audits of small scenes for each kind of encoders, and {REDRAWS} redraws of the sides for each. Pictures do not depend on"
    yield "redrawn sides, so that every draw is as likely as any other, and every test is at its level, whatever encoders remember. This holds"
    yield "for the actual sides only where no encoder was trained on audited images (the first two kinds); after training on one side, they"
    yield "give one p-value a run (second table). So that memory counts against the models, draws are exchanged, A for B, where most images"
    yield "lie on the side of the model that was trained on them. Shuffled conditions (the neighbours of another image of the class) are"
    yield "tested as if they were the attack."
    yield ""
    for metric in ATTACK:
        yield from level_lines(f"{metric}: null, measure", counted(rows, metric), alpha=0.05)
        yield ""
    yield "Under the sides that were drawn for the audit, one p-value a run:"
    yield ""
    yield from table(("pictures", "test", "runs with p at most .05", "p-values"), actual(rows))
    yield ""
    yield from rank_lines(rows)


def counted(rows: Sequence[Row], metric: str) -> dict[str, tuple[int, int]]:
    """Return rejections at .05 and tries of a metric's tests by null and measure."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for null, tests in row["p"].items():
            for test, values in tests.items():
                if test.startswith(metric):
                    found.setdefault(null + test.removeprefix(metric), []).extend(values)
    return {name: (sum(p <= 0.05 for p in values), len(values)) for name, values in sorted(found.items())}


def actual(rows: Sequence[Row]) -> Iterator[tuple[str, str, str, str]]:
    """Yield pictures, test, share rejected and p-values under the sides of the audits."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        for pictures, tests in row["once"].items():
            for test, p in tests.items():
                if test.startswith(GAIN):  # the other tests' p-values are no smaller
                    found.setdefault((pictures, test), []).append(p)
    for (pictures, test), values in found.items():
        each = ", ".join(f"{p:.2f}" for p in sorted(values))
        yield pictures, test, rate(sum(p <= 0.05 for p in values), len(values)), each


def rank_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the mean rank of pictures from shuffled conditions: of one image per run, and of all its images."""
    yield "Rank of the true image for shuffled conditions, a diagnostic of the scenes, whose crops tell nothing of what they hide: uniform but"
    yield "for the image whose neighbours were used, which is one of the few candidates and nearer than the true one more often than not."
    yield ""
    lines = []
    for name, values in (
        ("the first image of each run", [row["ranks"][0] for row in rows]),
        ("mean over the images of each run", [float(np.mean(row["ranks"])) for row in rows]),
    ):
        low, high = mean_interval(np.array(values), replicates=2000, seed=0) if len(values) > 1 else (0.0, 1.0)
        lines.append((name, len(values), f"{np.mean(values):.3f}", f"{max(0.0, low):.3f} to {min(1.0, high):.3f}"))
    yield from table(("ranks", "runs", "mean", "95 % interval over runs"), lines)


# -- models that were trained on their own sides ------------------------------------------------------------

SPLITS = 10
PLANTED: dict[str, Any] = {  # encoders that remember in any draw, a fifth of the generators' training, and half their channels
    "data.source.num_examples": 1600, "training.epochs": 2000, "reconstruct.samples": 2, "reconstruct.steps": 10,
    "reconstruct.baseline": None, "reconstruct.judge": {"model": {"width": 16, "projector": []}, "epochs": 20},
    "reconstruct.generator": {
        "model": {"channels": [8, 16, 24], "input_size": 16},
        "training": {"epochs": 44, "objective": {"kind": "denoising", "ema": 0.99}},
    },
}  # fmt: skip


def judge_plant(unit: str) -> Row:
    """Audit the recipe's scenes with other seeds of data, sides, training and noise."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = memlib.run(RECIPE, store=folder, changes=seeded(int(unit)) | PLANTED, quiet=True)
        findings = Findings.of_run(run.record)
    tests = [findings.first("share_excess"), *findings.tests(BEYOND, FAMILY, BEYOND_FAMILY)]
    return {
        "word": run.verdict.word,
        "tests": {name_of(row): [row.value, row.low, row.high, row.p_adjusted] for row in tests},
    }


def name_of(row: Finding) -> str:
    """Return the metric of a test, and what it measures."""
    measure = row.params.get("measure") or row.params.get("attribute")
    return f"{row.metric}, {measure}" if measure else row.metric


def report_plant(rows: Sequence[Row]) -> Iterator[str]:
    yield f"Shown: p at most .05, adjusted within its family. {SPLITS} splits of scenes as in `{RECIPE}`, each with its own scenes, sides, training and"
    planted, given = PLANTED["training.epochs"], AuditRequest.read(RECIPE).recipe.training.epochs
    yield f"noise, but not with the recipe's settings: encoders are trained for {planted:,} epochs instead of {given}, as after a first look memory after {given}"
    yield "differed much between splits; generators are half as wide and have a fifth of the training. How often the recipe itself shows a gain was"
    yield f"not measured. The p-value of `{BEYOND_PUBLIC}` is the largest of three (against the other model, the nearest public image, and"
    yield "the mean of the neighbours), its interval that of the worse public comparison; the model itself chooses these public images."
    yield ""
    names = list(dict.fromkeys(name for row in rows for name in row["tests"]))
    lines = []
    for name in names:
        ours = [row["tests"][name] for row in rows if name in row["tests"]]
        values = np.array([value for value, *_ in ours])
        low, high = mean_interval(values, replicates=2000, seed=0) if len(values) > 1 else (np.nan, np.nan)
        lines.append((name, f"{values.mean():.3f} ({low:.3f} to {high:.3f})", rate(sum(map(is_shown, ours)), len(ours))))
    yield from table(("test", "mean over splits (95 %)", "shown"), lines)
    yield ""
    remembering = [row for row in rows if row["word"] == "shown"]
    if remembering:
        found = sum(any(is_shown(row["tests"][name]) for name in RANK_GAINS if name in row["tests"]) for row in remembering)
        objects = sum(is_shown(row["tests"]["share_excess"]) for row in remembering)
        surpass = sum(any(is_shown(row["tests"][name]) for name in names if name.startswith(BEYOND_PUBLIC)) for row in rows)
        yield f"Memory is shown in {len(remembering)} of {len(rows)} splits, of objects in {objects}. A gain of rank, by judges or by pixels, where memory is shown:"
        yield f"{rate(found, len(remembering))}. Splits in which pictures surpass public images by any measure: {surpass}."
        yield ""
    cells = ((row["unit"], row["word"], *(in_cell(row["tests"].get(name)) for name in names)) for row in rows)
    yield from table(("split", "verdict", *names), cells)


def is_shown(test: Sequence[float | None]) -> bool:
    """Return whether the adjusted p-value, the last of a test's numbers, is at most .05."""
    return test[-1] is not None and test[-1] <= 0.05


def in_cell(test: Sequence[float | None] | None) -> str:
    """Return a value with its interval and p-value."""
    if test is None or test[0] is None:
        return "-"
    value, low, high, p = (np.nan if number is None else number for number in test)
    return f"{value:.3f} ({low:.3f} to {high:.3f}), p {p:.2g}"


PARTS = (
    Part(
        "reconstruction-null",
        "Reconstructions where no model can have remembered an image, or memory counts against it: are gains found? (embedded scenes of 16 px)",
        lambda: crossed(KINDS, RUNS), judge_null, report_null,
    ),
    Part(
        "reconstruction-plant",
        "Do reconstructions show what models remember that were trained on their own sides? (embedded scenes, VICReg)",
        lambda: map(str, range(SPLITS)), judge_plant, report_plant,
    ),
)  # fmt: skip
