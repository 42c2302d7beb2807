"""Exposure: how many bits has a sequence model given away of a secret in its training data? (Carlini 2019)

Canaries are drawn at random from a space R of candidates and inserted into the training text. Of a model only the
log-perplexity of candidates is used:

    rank(s[r])      how many candidates the model finds at least as likely        (Definition 2)
    exposure(s[r])  log2 |R| - log2 rank(s[r])                                    (Definition 4)

so that a canary of exposure e is found in 2^-e of the guesses that it takes without the model. A canary that was never
inserted is one of R as any other: its rank is uniform, 2^-exposure is uniform on (0, 1], and that is the null; the
p-value of a canary is rank / |R|. High exposure is confirmed by extraction: a search for the likeliest candidates.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import scipy.stats
from numpy.typing import NDArray
from pydantic import Field, model_validator

from memlib.data.formats import HOLE
from memlib.errors import RunError
from memlib.observe.likelihoods import UNITS_PER_BIT
from memlib.specs import LanguageSpec, SecretsSpec, SequenceModelSpec, Spec, TextSpec, TrainingSpec, changed
from memlib.stats.tails import Extrapolation, extrapolate, fit_skew_normal
from memlib.stats.tests import wilson_interval
from memlib.tables import CURVES, EXPOSURE_UNITS, EXTRACTION, SUMMARY, summary_row

Method = Literal["auto", "pruned", "enumerated", "sampled", "extrapolated"]
ENOUGH_BELOW = 30  # references at or below a canary from which sampling measures its exposure to a third of a bit


FITS = 0.05  # goodness of fit from which auto trusts the skew-normal law; else sampling says how much is known at least
MEAN_BY_CHANCE = 1 / math.log(2)  # bits: of -log2 of a uniform number; its median is 1


class Config(Spec):
    """How candidates are scored."""

    method: Method = "auto"
    """pruned: the exact rank by walking only prefixes that cost no more than the canary; enumerated: by walking all;
    sampled: from random references; extrapolated: from their skew-normal law. auto: enumerated in small spaces,
    sampled where enough references lie below, else pruned as far as the work allows, else extrapolated where the law fits
    the references, else sampled, whose interval then says how much at least."""
    references: int = Field(default=10_000, ge=100)
    """Random candidates for sampling and extrapolation."""
    max_evaluations: int = Field(default=2_000_000, ge=1)
    """Prefixes that a pruned rank may evaluate."""
    enumerate_up_to: int = Field(default=1_000_000, ge=1)
    """auto: the largest space that is enumerated."""
    shards: int = Field(default=10, ge=1)
    """Parts of an enumeration, each committed by itself."""
    replicates: int = Field(default=100, ge=20)
    """Parametric-bootstrap replicates of the extrapolation."""
    precision: Literal["float64", "float32"] = "float64"
    """Of the model's evaluation; float32 is faster, and may move near ties."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """Level at which canaries are called exposed, over all canaries and seeds of a variant together (Holm 1979)."""
    seed: int = Field(default=0, ge=0)
    """Of references and bootstrap."""


class ExtractionSpec(Spec):
    """The search for inserted canaries."""

    known: tuple[Annotated[int, Field(ge=0)], ...] = (0,)
    """How many symbols of the holes the search is told, from the first."""
    top: int = Field(default=1, ge=1)
    """Candidates to find before the search ends; at least as many as the model saw canaries."""
    beam: int | None = Field(default=10, ge=2)
    """Width of the beam search beside it, with greedy search; null: neither."""
    batch: int = Field(default=256, ge=1)
    """Prefixes expanded in one model call."""
    max_evaluations: int = Field(default=1_000_000, ge=1)
    """Prefixes after which a search is given up."""
    max_seconds: float | None = Field(default=None, gt=0)
    """Seconds after which a search is given up; its frontier is kept."""


class ReportSpec(Spec):
    """What the page shows."""

    histogram_bins: int = Field(default=60, ge=10)
    """Bars of the histogram of the references' log-perplexities."""


class Recipe(Spec):
    """An exposure audit from text to report."""

    audit: Literal["exposure"] = "exposure"
    title: str = "Exposure audit"
    """Heading of the report."""
    data: TextSpec
    canaries: SecretsSpec = SecretsSpec()
    model: LanguageSpec = LanguageSpec()
    training: TrainingSpec | None = None
    """checkpoint_epochs, checkpoint_steps: exposure is also measured there; patience: stop at the lowest validation loss."""
    trained: SequenceModelSpec | None = None
    """Instead of model and training: a model that was trained elsewhere; canaries.file names the secrets that it saw. The
    text (data) is what its loss is shown for."""
    quantize: bool = False
    """Force each tensor of trained weights to 256 values before anything is asked (Carlini 2019, 9.1)."""
    seeds: int = Field(default=1, ge=1)
    """Trainings of every model, each from a seed of its own."""
    variants: Mapping[str, dict[str, Any]] = Field(default_factory=dict)
    """Named changes of model, training, quantize, canaries.known_prefix and canaries.known_suffix, audited with the same
    corpus and canaries; keys may be dotted."""
    score: Config = Config()
    extraction: ExtractionSpec | None = ExtractionSpec()
    """null: no search."""
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        if (self.training is None) == (self.trained is None):
            raise ValueError("an exposure audit needs either training or trained, a model that was trained elsewhere")
        if self.trained is not None:
            self._check_trained(self.trained)
        if self.training is not None:
            self._check_training(self.training)
        return self

    def _check_pairs(self) -> None:
        if self.canaries.source is None or self.canaries.file is not None or self.trained is not None:
            raise ValueError("pairs are for canaries that are inserted here: give canaries.source, and no file or trained")
        if any(cell.model.architecture != "encoder_decoder" for cell in self.cells.values()):
            raise ValueError("pairs need model.architecture encoder_decoder")
        if HOLE.search(self.canaries.source) and (self.extraction is not None or self.score.method == "pruned"):
            raise ValueError(
                "a source that holds the secret (holes in canaries.source) leaves nothing to search: set extraction to null, "
                "and score.method to auto, enumerated, sampled or extrapolated"
            )

    def _check_trained(self, trained: SequenceModelSpec) -> None:
        if self.data.paired or self.canaries.source is not None:
            raise ValueError(
                "pairs are for models that are trained here: leave out canaries.source, and give data plain text"
            )
        if self.canaries.file is None:
            raise ValueError("a model that was trained elsewhere saw its own text: name its secrets by canaries.file")
        if self.variants or self.seeds > 1 or self.quantize:
            raise ValueError("variants, seeds and quantize are for models that are trained here; leave them out")
        if trained.kind == "huggingface" and self.data.unit != "character":
            raise ValueError("a tokenizer spells characters; set data.unit to character")

    def _check_training(self, training: TrainingSpec) -> None:
        if training.objective.kind != "language":
            raise ValueError(f"training.objective {training.objective.kind} makes no language model; use language")
        if training.augment is not None:
            raise ValueError("training.augment is for images; set it to null for text")
        if self.data.paired:
            self._check_pairs()
        elif self.canaries.source is not None or self.model.architecture == "encoder_decoder":
            raise ValueError("canaries.source and encoder_decoder are for pairs: data.source of kind pairs or topic_pairs")
        for name, recipe in self.cells.items():
            if name and recipe._shared != self._shared:
                raise ValueError(f"variant {name!r} may change model, training, quantize and what is known, nothing else")

    @property
    def _shared(self) -> dict[str, Any]:
        """What all variants have in common."""
        known = {"known_prefix", "known_suffix"}
        return self.model_dump(
            exclude={"model": True, "training": True, "quantize": True, "variants": True, "canaries": known}
        )

    @property
    def cells(self) -> dict[str, "Recipe"]:
        """Every variant as a recipe of its own."""
        plain = self.model_copy(update={"variants": {}})
        return {name: changed(plain, change) for name, change in self.variants.items()} or {"": self}


# -- exposure -----------------------------------------------------------------------------------------


def exposure_of_rank(rank: int, size: int) -> float:
    """log2 |R| - log2 rank (Definition 4), exact for spaces of any size.

    Raises:
        ValueError: for a rank outside 1 to |R|.
    """
    if not 1 <= rank <= size:
        raise ValueError(f"a rank lies between 1 and {size}, not at {rank}")
    return math.log2(size) - math.log2(rank)


def exposure_by_sampling(at_or_below: int, references: int) -> tuple[float, float, float]:
    """-log2 of the share of random references that cost no more, and its 95 % interval (Theorem 1).

    Without a reference below the canary there is no upper end (infinity).

    The canary itself counts as one of the candidates, (1 + c) / (1 + n), so that no count gives infinity.

    Args:
        at_or_below: c, references that cost no more than the canary.
        references: n, all of them.
    """
    if not 0 <= at_or_below <= references or references < 1:
        raise ValueError(f"{at_or_below} of {references} references cannot lie at or below a canary")
    low = float(scipy.stats.beta.ppf(0.025, at_or_below, references - at_or_below + 1)) if at_or_below else 0.0
    high = float(scipy.stats.beta.ppf(0.975, at_or_below + 1, references - at_or_below)) if at_or_below < references else 1.0
    value = -math.log2((1 + at_or_below) / (1 + references))
    return value, max(0.0, -math.log2(high)), -math.log2(low) if low else math.inf


@dataclass(frozen=True)
class Scored:
    """What was seen of one model at one checkpoint.

    Attributes:
        variant, seed, epoch: which model.
        canaries: ids of those it was asked for.
        insertions: of each in its training data.
        costs: (num_canaries,) int64, units of 2^-16 bit.
        references: (num_references,) int64 costs of random candidates.
        validation_loss: nats a symbol.
        exact: by canary the method (pruned, enumerated), rank and evaluations, where a walk ended.
        privacy: epsilon, delta, noise and accountant of a private training at this epoch.
    """

    variant: str
    seed: int
    epoch: float
    canaries: tuple[int, ...]
    insertions: tuple[int, ...]
    costs: NDArray[np.int64]
    references: NDArray[np.int64]
    validation_loss: float
    exact: Mapping[int, tuple[str, int, int]]
    privacy: Mapping[str, Any] | None = None


def choose_method(config: Config, *, at_or_below: int, size: int) -> str:
    """What `auto` would do for a canary: enumerated, sampled or pruned (and extrapolated where that does not end)."""
    if config.method != "auto":
        return config.method
    if size <= config.enumerate_up_to:
        return "enumerated"
    return "sampled" if at_or_below >= ENOUGH_BELOW else "pruned"


def score(models: Sequence[Scored], size: int, config: Config) -> pa.Table:
    """A row a canary, model and checkpoint.

    Args:
        models: what was seen.
        size: |R|.
        config: how.

    Returns:
        tables.EXPOSURE_UNITS.
    """
    rows = [row for model in models for row in _rows_of(model, size, config)]
    return pa.Table.from_pylist(rows, schema=EXPOSURE_UNITS.arrow)


def _rows_of(model: Scored, size: int, config: Config) -> Iterator[dict[str, Any]]:
    references = np.sort(model.references)
    bits = model.costs / UNITS_PER_BIT
    tail = _extrapolated(references / UNITS_PER_BIT, bits, config)
    for place, (canary, insertions) in enumerate(zip(model.canaries, model.insertions, strict=True)):
        below = int(np.searchsorted(references, model.costs[place], side="right"))
        sampled, low, high = exposure_by_sampling(below, len(references))
        row = {
            "variant": model.variant, "seed": model.seed, "epoch": model.epoch, "canary": canary, "insertions": insertions,
            "log_perplexity": round(float(bits[place]), 2), "exposure": sampled, "ci_low": low,
            "ci_high": min(high, math.log2(size)), "method": "sampled",
            "rank": None, "p_value": (1 + below) / (1 + len(references)), "exposure_sampled": sampled,
            "space_bits": math.log2(size), "evaluations": None, "validation_loss": model.validation_loss,
        }  # fmt: skip
        if tail is not None:
            row |= {
                "exposure_extrapolated": float(tail.exposures[place]), "extrapolated_low": float(tail.low[place]),
                "extrapolated_high": float(tail.high[place]), "fit_p": tail.fit_p,
            }  # fmt: skip
        wanted = choose_method(config, at_or_below=below, size=size)
        if canary in model.exact:
            method, rank, evaluations = model.exact[canary]
            value = exposure_of_rank(rank, size)
            row |= {
                "exposure": value, "ci_low": value, "ci_high": value, "method": method, "rank": rank,
                "evaluations": evaluations, "p_value": 2.0**-value,
            }  # fmt: skip
        elif tail is not None and (wanted == "extrapolated" or (wanted != "sampled" and tail.fit_p >= FITS)):
            row |= {
                "exposure": row["exposure_extrapolated"], "ci_low": row["extrapolated_low"],
                "ci_high": row["extrapolated_high"], "method": "extrapolated",
            }  # fmt: skip
        yield row


def _extrapolated(references: NDArray[np.float64], canaries: NDArray[np.float64], config: Config) -> Extrapolation | None:
    """None where the references do not differ, as under a model that ignores the holes."""
    if np.ptp(references) == 0:
        return None
    return extrapolate(references, canaries, replicates=config.replicates, seed=config.seed)


# -- the summary --------------------------------------------------------------------------------------


def summarize(models: Sequence[Scored], units: pa.Table, extractions: pa.Table, recipe: Recipe) -> pa.Table:
    """The findings at the last checkpoint: exposure by canary and insertions, the null, extraction, validation loss.

    Args:
        models: what was seen.
        units: tables.EXPOSURE_UNITS.
        extractions: tables.EXTRACTION.
        recipe: variants and level.

    Returns:
        tables.SUMMARY.

    Raises:
        RunError: when there is nothing to say of.
    """
    frame = units.to_pandas()
    if not len(frame):
        raise RunError("no canary was scored")
    last = frame[frame["epoch"] == frame.groupby(["variant", "seed"])["epoch"].transform("max")]
    rows: list[dict[str, Any]] = []
    for variant, mine in last.groupby("variant", sort=False):
        at = {"variant": variant} if variant else {}
        inserted = mine[mine["insertions"] > 0]
        for insertions, alike in sorted(inserted.groupby("insertions"), key=lambda item: -item[0]):
            means = alike.groupby("canary")["exposure"].mean().to_numpy()  # seeds of one canary are no further canaries
            rows.append(_mean_row("exposure", {**at, "insertions": int(insertions)}, means, null=MEAN_BY_CHANCE))
        limits = _holm(inserted["p_value"].to_numpy(), recipe.score.alpha)
        rows += [
            _canary_row(at, unit, exposed=bool(exposed))
            for unit, exposed in zip(inserted.to_dict("records"), limits, strict=True)
        ]
        rows += _null_rows(at, mine[mine["insertions"] == 0])
        losses = mine.groupby(["seed"])["validation_loss"].mean().to_numpy()
        rows.append(_mean_row("validation_loss", at, losses))
    rows += _privacy_rows(models)
    rows += _extraction_rows(extractions)
    return pa.Table.from_pylist(rows, schema=SUMMARY.arrow)


def _mean_row(metric: str, params: Mapping[str, Any], values: NDArray[Any], *, null: float | None = None) -> dict[str, Any]:
    interval = None
    if len(values) > 1 and np.ptp(values):
        low, high = scipy.stats.t.interval(0.95, len(values) - 1, values.mean(), scipy.stats.sem(values))
        interval = (float(low), float(high))
    return summary_row(metric, params, float(values.mean()), interval, n=len(values), null_value=null)


def _holm(p_values: NDArray[np.float64], alpha: float) -> NDArray[np.bool_]:
    """(num_tests,) which are rejected so that with probability 1 - alpha none is rejected wrongly (Holm 1979)."""
    order = np.argsort(p_values)
    passed = np.cumprod(p_values[order] <= alpha / np.arange(len(order), 0, -1)).astype(bool)
    found = np.empty(len(order), dtype=bool)
    found[order] = passed
    return found


def _canary_row(at: Mapping[str, Any], unit: Mapping[str, Any], *, exposed: bool) -> dict[str, Any]:
    params = {
        **at, "canary": int(unit["canary"]), "seed": int(unit["seed"]), "insertions": int(unit["insertions"]),
        "method": unit["method"], "epoch": unit["epoch"], "log_perplexity": unit["log_perplexity"],
    }  # fmt: skip
    if not np.isnan(unit["rank"]):
        params["rank"] = int(unit["rank"])
    interval = (unit["ci_low"], unit["ci_high"])
    row = summary_row("exposure", params, unit["exposure"], interval, n=1, null_value=1.0, p_value=unit["p_value"])
    return row | {"verdict": "above_null" if exposed else "at_null"}


def _null_rows(at: Mapping[str, Any], never: Any) -> Iterator[dict[str, Any]]:
    """Canaries a model never saw: 2^-exposure is uniform, so its mean is 1/2 and the median exposure 1."""
    if not len(never):
        return
    by_model = {**at, "insertions": 0}
    values = np.exp2(-never["exposure"]).groupby(never["canary"]).mean().to_numpy()
    yield _mean_row("two_to_minus_exposure", by_model, values, null=0.5)
    yield summary_row("exposure_median", by_model, float(never["exposure"].median()), None, n=len(never), null_value=1.0)


def _privacy_rows(models: Sequence[Scored]) -> Iterator[dict[str, Any]]:
    """Epsilon of every variant's training, the largest of its models, which differ in size by their canaries."""
    for variant in dict.fromkeys(model.variant for model in models):
        mine = [model for model in models if model.variant == variant and model.privacy is not None]
        if mine:
            privacy = dict(max((model.privacy or {} for model in mine), key=lambda found: found["epsilon"]))
            epsilon = privacy.pop("epsilon")
            at = {"variant": variant} if variant else {}
            yield summary_row("epsilon", at | privacy, epsilon, None, n=len({m.seed for m in mine}))


def _extraction_rows(extractions: pa.Table) -> Iterator[dict[str, Any]]:
    frame = extractions.to_pandas()
    for keys, mine in frame.groupby(["variant", "search", "known", "insertions"], sort=False):
        variant, search, known, insertions = keys
        at = {"variant": variant} if variant else {}
        params = {**at, "search": search, "known": int(known), "insertions": int(insertions)}
        hits, count = int(mine["extracted"].sum()), len(mine)
        chance = float(mine["by_chance"].mean())
        yield summary_row("extracted", params, hits / count, wilson_interval(hits, count), n=count, null_value=chance)
        if search == "shortest_path":
            yield summary_row("extraction_queries", params, float(mine["queries"].median()), None, n=count)


def in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Whether a finding with these params is shown in brief: means by insertions, not canary by canary."""
    return "canary" not in params and params.get("search") in (None, "shortest_path") and not params.get("known")


def curves(models: Sequence[Scored], units: pa.Table, extractions: pa.Table, recipe: Recipe) -> pa.Table:
    """What the page draws.

    exposure_by_insertions, exposure_by_epoch, loss_by_epoch, utility (exposure by validation loss), queries_by_exposure, and
    perplexity_histogram (density of the references' costs).
    """
    frame = units.to_pandas()
    points = []
    for unit in frame.to_dict("records"):
        series = f"{unit['variant']} {unit['insertions']}x".strip()
        where = {"canary": int(unit["canary"]), "seed": int(unit["seed"])}
        if unit["insertions"]:
            points.append(_point("exposure_by_epoch", series, where, unit["epoch"], unit["exposure"]))
    for (variant, epoch), mine in frame.groupby(["variant", "epoch"], sort=False):
        points.append(_point("loss_by_epoch", variant, {}, epoch, mine["validation_loss"].mean()))
    last = frame[frame["epoch"] == frame.groupby(["variant", "seed"])["epoch"].transform("max")]
    points += _query_points(last, extractions)
    for unit in last.to_dict("records"):
        where = {"canary": int(unit["canary"]), "seed": int(unit["seed"])}
        points.append(_point("exposure_by_insertions", unit["variant"], where, unit["insertions"], unit["exposure"]))
    for (variant, seed), mine in last[last["insertions"] > 0].groupby(["variant", "seed"], sort=False):
        where = {"seed": int(seed)}
        points.append(_point("utility", variant, where, mine["validation_loss"].mean(), mine["exposure"].mean()))
    shown = max(models, key=lambda m: (m.epoch, max(m.insertions)))
    heights, edges = np.histogram(shown.references / UNITS_PER_BIT, bins=recipe.report.histogram_bins, density=True)
    most = int(np.argmax(shown.insertions))
    marked: dict[str, Any] = {
        "canary": shown.canaries[most], "insertions": shown.insertions[most], "variant": shown.variant,
        "log_perplexity": round(float(shown.costs[most] / UNITS_PER_BIT), 2), **_law(shown.references / UNITS_PER_BIT),
    }  # fmt: skip
    for height, left, right in zip(heights, edges[:-1], edges[1:], strict=True):
        points.append(_point("perplexity_histogram", "references", marked, (left + right) / 2, height))
    return pa.Table.from_pylist(points, schema=CURVES.arrow)


def _query_points(last: Any, extractions: pa.Table) -> Iterator[dict[str, Any]]:
    """Of every shortest-path search that was told nothing: the canary's exposure and the prefixes asked for."""
    searched = extractions.to_pandas()
    searched = searched[(searched["search"] == "shortest_path") & (searched["known"] == 0)]
    keys = ["variant", "seed", "canary", "insertions"]
    for row in searched.merge(last, on=keys, how="inner").to_dict("records"):
        where = {"variant": row["variant"], "canary": int(row["canary"]), "seed": int(row["seed"])}
        series = "extracted" if row["extracted"] else "not extracted"
        yield _point("queries_by_exposure", series, where, row["exposure"], row["queries"])


def _law(references: NDArray[np.float64]) -> dict[str, float]:
    """The fitted law's parameters, where there is one."""
    return asdict(fit_skew_normal(references)) if np.ptp(references) else {}


def _point(curve: str, series: str, params: Mapping[str, Any], x: float, y: float) -> dict[str, Any]:
    return {
        "curve": curve, "series": series, "params": json.dumps(dict(params), sort_keys=True), "x": float(x), "y": float(y)
    }  # fmt: skip


def empty_extractions() -> pa.Table:
    """tables.EXTRACTION of an audit that searched for nothing."""
    return pa.Table.from_pylist([], schema=EXTRACTION.arrow)
