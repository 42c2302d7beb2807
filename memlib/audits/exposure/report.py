"""What the exposure page says and shows. It holds no secrets: canaries are named by id."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from memlib.audits.exposure.documents import GAP, GREEDY, NEAR, SHARE
from memlib.audits.exposure.privacy import most_exposed
from memlib.audits.exposure.recipe import Recipe
from memlib.findings import SHOWN, verdict_of
from memlib.report.figures import INK, MUTED, REFERENCE, TARGET, new_figure, plain_ticks, save_figure
from memlib.report.page import KINDS, Page, Section, TableView, meaning_of
from memlib.stats.tails import SkewNormal

LOOSE = ", not tight: accountant pld gives less"
FIRST_ROWS = 30  # of a table; the rest is folded
MARKERS = ("o", "s", "^", "D")
NAMES = {"exposure": "bits of exposure,", "exposure_among_unseen": "bits of exposure among unseen secrets,"}
COLOURS = (TARGET, REFERENCE, "#5f8f6b", "#b07d2b", "#7a3b9a", INK)
_TERMS = (
    "canary", "candidate", "log-perplexity", "exposure", "extraction", "validation loss", "token", "epsilon", "null",
    "p-value",
    "95 % interval", "checkpoint", "diagnostic",
)  # fmt: skip
_NOT_SHOWN = (
    "How exposed secrets of another form are, or the same ones in another place or inserted more often.",
    "That a secret is safe because a search did not find it: another search, or one with more tries, may.",
    "What people see who get generated text alone: the audit asks for likelihoods, which tell more.",
    "Other models: a verdict is about these trained models. Canaries drawn anew, another seed or another text give other "
    "bits.",
)


def build_page(recipe: Recipe, run: str, tables: Mapping[str, pa.Table], facts: Mapping[str, str], folder: Path) -> Page:
    """The page of a run; figures also go to `folder` as SVG and PNG.

    Args:
        recipe: what was run.
        run: its id.
        tables: units, extractions, summary and curves by name.
        facts: rows of the last section.
        folder: gets the figures.
    """
    rows = [{**row, "params": json.loads(row["params"])} for row in tables["summary"].to_pylist()]
    units = tables["units"].to_pylist()
    said = verdict_of(rows)
    points = [{**row, "params": json.loads(row["params"])} for row in tables["curves"].to_pylist()]
    sections = [
        _variants_section(rows, points, folder),
        _insertions_section(points, units[0]["space_bits"], folder),
        _epochs_section(points, folder),
        _histogram_section(points, folder),
        _canaries_section(units, rows),
        _privacy_section(rows),
        _null_section(rows),
        _extraction_section(tables["extractions"].to_pylist(), points, folder),
        _documents_section(rows, tables["documents"], recipe, folder),
        Section(
            heading="What was run",
            paragraphs=[
                "Method: Carlini et al. 2019, The Secret Sharer (Definitions 1, 2 and 4; section 8.1). Log-perplexities are "
                "in bits, of the candidate after its known prefix. An exact rank counts every candidate at most as costly; "
                "sampled exposure counts the canary as one of the candidates; extrapolated exposure takes the "
                "log-perplexities to be skew-normal and is not bounded by the size of the space; no test rests on it. All "
                "canaries of a variant are tested together (sum of ln 1 / p, or the lowest p with Bonferroni; Holm over "
                "variants); single ones are named by Holm's procedure, where their variant's are shown. Nets "
                "of several seeds are ranked once, by their costs added."
            ],
            table=TableView(("", ""), list(facts.items())),
        ),
    ]
    return Page(
        meaning=meaning_of(
            said.word,
            shown="Whoever can ask the model how likely a text is can guess the exposed secrets in far fewer tries than "
            "without it. "
            "Secrets that were extracted can be read out without guessing at all.",
            bounded="Whoever can ask the model how likely a text is gains at most the stated bits for guessing a secret "
            "like the "
            "canaries.",
        ),
        limits=_NOT_SHOWN, terms=_TERMS, model=facts.get("model", ""),
        title=recipe.title, audit="exposure", run=run, verdict=said.sentence, verdict_kind=KINDS[said.word],
        lead=said.explanation, numbers=_numbers(rows), sections=[section for section in sections if section is not None],
    )  # fmt: skip


def _numbers(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    found = [row for row in rows if row["metric"] in NAMES and "canary" not in row["params"]][:4]
    return [
        (
            f"{row['value']:.1f}",
            " ".join(filter(None, [NAMES[row["metric"]], row["params"].get("variant"), _how_often(row["params"])])),
            _interval(row, " over "),
        )
        for row in found
    ]


def _how_often(params: Mapping[str, Any]) -> str:
    return f"{params['insertions']}x" if "insertions" in params else "mean"


def _interval(row: Mapping[str, Any], over: str = "", digits: int = 1) -> str:
    """A 95 % interval, or bound, in words; empty where there is none."""
    if row["ci_low"] is None:
        return ""
    of = f"{over}{row['interval']}" if over else ""
    if row["ci_high"] is None:
        return f"95 %: at least {row['ci_low']:.{digits}f}{of}"
    return f"95 %{of}: {row['ci_low']:.{digits}f} to {row['ci_high']:.{digits}f}"


def _insertions_section(points: Sequence[Mapping[str, Any]], bits: float, folder: Path) -> Section:
    mine = [p for p in points if p["curve"] == "exposure_by_insertions"]
    figure = new_figure()
    axes = figure.axes[0]
    for number, series in enumerate(dict.fromkeys(p["series"] for p in mine)):
        own = [p for p in mine if p["series"] == series]
        axes.plot([p["x"] for p in own], [p["y"] for p in own], "o", ms=4, alpha=0.7, color=COLOURS[number % 6], label=series)
    axes.axhline(bits, color=INK, lw=0.8, ls="--")
    axes.annotate("all of the secret", (0, bits), xytext=(2, -11), textcoords="offset points", fontsize=8)
    axes.set_xscale("symlog", linthresh=1)
    plain_ticks(axes.xaxis)
    ticks = sorted({p["x"] for p in mine})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("times inserted")
    axes.set_ylabel("exposure in bits")
    if len({p["series"] for p in mine}) > 1:
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return Section(
        heading="Exposure by insertions",
        paragraphs=[
            "Each dot is a canary under a model. At 0 insertions half of all canaries lie above 1 bit and one in 2^e "
            "above e: that is chance."
        ],
        svg=save_figure(figure, folder, "exposure_by_insertions"),
        figure_caption="Exposure of every canary (vertical) by how often it was inserted (horizontal). Dashed: all bits of "
        "the secret.",
    )


def _epochs_section(points: Sequence[Mapping[str, Any]], folder: Path) -> Section | None:
    mine = [p for p in points if p["curve"] == "exposure_by_epoch"]
    if len({p["x"] for p in mine}) < 2:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    series = list(dict.fromkeys(p["series"] for p in mine))
    lines = dict.fromkeys((p["series"], p["params"]["canary"], p["params"]["seed"]) for p in mine)
    for name, canary, seed in lines:
        own = sorted(
            (p["x"], p["y"])
            for p in mine
            if (p["series"], p["params"]["canary"], p["params"]["seed"]) == (name, canary, seed)
        )
        first = next(line for line in lines if line[0] == name) == (name, canary, seed)
        colour = COLOURS[series.index(name) % len(COLOURS)]
        label = name if first else None
        axes.plot([x for x, _ in own], [y for _, y in own], "o-", ms=3, lw=1.2, color=colour, label=label)
    axes.set_xlabel("epoch")
    axes.set_ylabel("exposure in bits")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    losses = [p for p in points if p["curve"] == "loss_by_epoch"]
    beside = axes.twinx()
    for name in dict.fromkeys(p["series"] for p in losses):
        own = sorted((p["x"], p["y"]) for p in losses if p["series"] == name)
        beside.plot([x for x, _ in own], [y for _, y in own], ":", lw=1, color=INK)
    beside.set_ylabel("validation loss in nats a symbol (dotted)")
    return Section(
        heading="Exposure through training",
        paragraphs=["Every model at its checkpoints, and the mean validation loss of each variant."],
        svg=save_figure(figure, folder, "exposure_by_epoch"),
        figure_caption="Exposure of every canary after each epoch; dotted, on the right axis: validation loss.",
    )


def _histogram_section(points: Sequence[Mapping[str, Any]], folder: Path) -> Section:
    mine = [p for p in points if p["curve"] == "perplexity_histogram"]
    at = mine[0]["params"]
    x, y = np.array([p["x"] for p in mine]), np.array([p["y"] for p in mine])
    figure = new_figure()
    axes = figure.axes[0]
    axes.bar(x, y, width=(x[1] - x[0]) * 0.95, color=MUTED, label="random candidates")
    if at.get("location") is not None:
        law = SkewNormal(at["location"], at["scale"], at["shape"])
        grid = np.linspace(min(x.min(), at["log_perplexity"]), x.max(), 300)
        axes.plot(grid, np.exp(law.log_density(grid)), color=REFERENCE, lw=1.4, label="skew-normal law")
    axes.axvline(at["log_perplexity"], color=TARGET, lw=1.6, label=f"canary {at['canary']}, {at['insertions']}x")
    axes.set_xlabel("log-perplexity in bits")
    axes.set_ylabel("density")
    axes.legend(frameon=False, fontsize=8)
    return Section(
        heading="How likely the model finds candidates",
        paragraphs=["The model that saw a canary most often, at its last checkpoint."],
        svg=save_figure(figure, folder, "perplexity_histogram"),
        figure_caption="Log-perplexities of random candidates (bars) and of the canary (red line): the further left, the "
        "more exposed.",
    )


def _canaries_section(units: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> Section:
    tests = {(row["params"].get("variant", ""), row["params"]["canary"]): row for row in rows if row["family"] == "canaries"}
    last: dict[Any, float] = {}
    for unit in units:
        key = (unit["variant"], unit["seed"], unit["canary"], unit["insertions"])
        last[key] = max(last.get(key, 0), unit["epoch"])
    cells = [
        _canary_cells(unit, tests.get((unit["variant"], unit["canary"])))
        for unit in units
        if unit["insertions"] and unit["epoch"] == last[unit["variant"], unit["seed"], unit["canary"], unit["insertions"]]
    ]
    headings = (
        "model", "canary", "stood", "bits", "exposure (95 %)", "method", "rank", "p", "p of all nets", "adjusted",
        "extrapolated",
    )  # fmt: skip
    given = any(unit["kind"] == "given" for unit in units)
    return Section(
        heading="Secrets" if given else "Canaries",
        paragraphs=[
            "At the last checkpoint. p: how often a secret of the same kind that the model never saw ranks as low; without "
            "such secrets there is none, as exposure then measures how common a secret is too."
            if given
            else "At the last checkpoint. p: how often a canary that was never inserted has so low a rank. The extrapolated "
            "value is an estimate for as long as the law holds, with the p of its fit; no interval is known for it."
        ],
        table=TableView(headings, cells[:FIRST_ROWS]),
        details=TableView(headings, cells) if len(cells) > FIRST_ROWS else None,
        details_title=f"All {len(cells)}",
    )


def _canary_cells(unit: Mapping[str, Any], test: Mapping[str, Any] | None) -> tuple[str, ...]:
    interval = _interval(unit, digits=2).removeprefix("95 %: ")
    law = unit["exposure_extrapolated"]
    return (
        " ".join(filter(None, [unit["variant"], f"seed {unit['seed']}"])),
        str(unit["canary"]),
        f"{unit['insertions']}x",
        f"{unit['log_perplexity']:.1f}",
        f"{unit['exposure']:.2f}" + (f" ({interval})" if interval else ""),
        unit["method"],
        "" if unit["rank"] is None else f"{unit['rank']:,}",
        "" if unit["p_value"] is None else f"{unit['p_value']:.2g}",
        "" if test is None else f"{test['p_value']:.2g}",
        "" if test is None else f"{test['p_adjusted']:.2g}" + (" *" if test["verdict"] == SHOWN else ""),
        "" if law is None else f"{law:.1f}" + ("" if unit["fit_p"] is None else f" (fit p {unit['fit_p']:.2g})"),
    )


def _privacy_section(rows: Sequence[Mapping[str, Any]]) -> Section | None:
    claims = {row["params"].get("variant", ""): row for row in rows if row["metric"] == "epsilon"}
    bounds = {row["params"].get("variant", ""): row for row in rows if row["metric"] == "epsilon_lower_bound"}
    tests = {row["params"].get("variant", ""): row for row in rows if row["metric"] == "privacy_claim"}
    if not claims:
        return None
    cells = [
        (
            name,
            ""
            if name not in claims
            else f"{claims[name]['value']:.3g} (delta {claims[name]['params']['delta']:g})"
            + ("" if claims[name]["params"].get("tight", True) else LOOSE),
            "" if name not in claims else _bits(most_exposed(claims[name]["value"], claims[name]["params"]["delta"])),
            "" if name not in bounds else f"{bounds[name]['value']:.2f}",
            "" if name not in bounds else f"{bounds[name]['params']['ceiling']:.1f}",
            "" if name not in tests else f"{tests[name]['p_adjusted']:.2g}",
            "" if name not in tests else "refuted" if tests[name]["verdict"] == SHOWN else "not refuted",
        )
        for name in dict.fromkeys([*claims, *bounds])
    ]
    headings = (
        "variant", "epsilon by the accountant", "so exposure is at most", "epsilon is at least", "at most provable", "p",
        "the claim is",
    )  # fmt: skip
    return Section(
        heading="Is the training as private as it says?",
        paragraphs=[
            "A canary that was drawn by chance ranks among the lowest share q of all candidates with probability q after a "
            "training without it, and at most e^epsilon q + delta after a private training with it in one window. So a low "
            "rank proves a lower bound of epsilon (95 %, for all canaries, checkpoints and variants looked at). A bound "
            "below the accountant's is no proof of privacy: the column beside it says how much could have been proved. Where "
            "the accountant is right, a canary in one window has more bits of exposure than its epsilon allows with "
            "probability at most .05; one in several windows may have more."
        ],
        table=TableView(headings, cells),
    )


def _bits(most: float | None) -> str:
    return "no bound" if most is None else f"{most:.3g} bits"


def _null_section(rows: Sequence[Mapping[str, Any]]) -> Section | None:
    cells = [
        cell for prefix, kind in (("", "drawn"), ("unseen_", "unseen secrets")) for cell in _null_cells(rows, prefix, kind)
    ]
    if not cells:
        return None
    return Section(
        heading="Canaries that were never inserted",
        paragraphs=[
            "The check of the method itself: for drawn canaries the mean of 2^-exposure should be 1/2, the median exposure 1 "
            "bit. Unseen secrets may well lie lower: so much the model knows of their kind without having seen them."
        ],
        table=TableView(("variant", "kind", "canaries", "mean of 2^-exposure (95 %)", "median exposure"), cells),
    )


def _null_cells(rows: Sequence[Mapping[str, Any]], prefix: str, kind: str) -> list[tuple[str, ...]]:
    medians = {row["params"].get("variant", ""): row["value"] for row in rows if row["metric"] == f"{prefix}exposure_median"}
    return [
        (
            row["params"].get("variant", ""), kind, str(row["n"]),
            f"{row['value']:.3f}" + ("" if row["ci_low"] is None else f" ({row['ci_low']:.3f} to {row['ci_high']:.3f})"),
            f"{medians[row['params'].get('variant', '')]:.2f}",
        )
        for row in rows
        if row["metric"] == f"{prefix}two_to_minus_exposure"
    ]  # fmt: skip


def _extraction_section(
    extractions: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]], folder: Path
) -> Section | None:
    if not extractions:
        return None
    cells = [
        (
            " ".join(filter(None, [row["variant"], f"seed {row['seed']}"])), str(row["canary"]), str(row["insertions"]),
            str(row["known"]), row["search"].replace("_", " "), "yes" if row["extracted"] else "no",
            "" if row["position"] is None else str(row["position"]), f"{row['queries']:,}", row["ended"],
        )
        for row in extractions
    ]  # fmt: skip
    headings = ("model", "canary", "inserted", "known", "search", "extracted", "place", "queries", "ended")
    return Section(
        heading="Extraction",
        paragraphs=[
            "Whether the canary is the likeliest candidate of the model (of a model that saw several: one of as many "
            "likeliest), and how many prefixes had to be asked for. Known: symbols that the search was told."
        ],
        svg=_queries_figure([p for p in points if p["curve"] == "queries_by_exposure"], folder),
        figure_caption="Prefixes that the search asked for (vertical) by the canary's exposure (horizontal), one dot a "
        "canary.",
        table=TableView(headings, cells[:FIRST_ROWS]),
        details=TableView(headings, cells) if len(cells) > FIRST_ROWS else None,
        details_title=f"All {len(cells)}",
    )


def _documents_section(
    rows: Sequence[Mapping[str, Any]], documents: pa.Table, recipe: Recipe, folder: Path
) -> Section | None:
    how = recipe.discoverable
    if how is None:
        return None
    shares = {
        (row["params"].get("variant", ""), row["metric"], row["params"].get("tries"), row["params"]["side"]): row
        for row in rows
        if row["metric"] in (GREEDY, SHARE, NEAR)
    }
    cells = []
    for row in (row for row in rows if row["metric"] == GAP):
        variant = row["params"].get("variant", "")
        cells.append((variant, "bits that a suffix costs more", "", _with_interval(row), f"{row['p_adjusted']:.2g}"))
        kinds: list[tuple[str, int | None, str]] = [
            (SHARE, tries, f"come out in {tries:,} {'try' if tries == 1 else 'tries'}") for tries in how.tries
        ]
        kinds += [(GREEDY, None, "are each time the likeliest token")]
        kinds += [(NEAR, None, f"come near in {how.samples:,} samples")] if how.samples else []
        for metric, tries, name in kinds:
            sides = (_with_interval(shares[variant, metric, tries, side], 100) for side in ("trained", "held_out"))
            cells.append((variant, f"% that {name}", *sides, ""))
    drawn = [f"temperature {how.temperature:g}"]
    drawn += [] if how.top_k is None else [f"the {how.top_k} likeliest tokens"]
    drawn += [] if how.top_p is None else [f"the likeliest tokens with {how.top_p:g} of the probability"]
    return Section(
        heading="Documents of which the beginning is known",
        paragraphs=[
            f"The model is given the first {how.prefix} tokens of a document; the next {how.suffix} come out in n tries if "
            f"that has a probability of {how.probability:g} or more (sampling: {', '.join(drawn)}). Documents were held out "
            "at random, copies of one together, so what comes out of those held out is what a model gives away without "
            "having seen them. The test permutes who was held out; it compares -log2 of the probabilities themselves, "
            "whatever the sampling."
        ],
        svg=_documents_figure(documents, folder),
        figure_caption="Bits that the suffix of a document costs, a line a variant; all models at their last checkpoint.",
        table=TableView(("variant", "", "trained on (95 %)", "held out (95 %)", "p"), cells),
    )


def _documents_figure(documents: pa.Table, folder: Path) -> str:
    frame = documents.to_pandas()
    figure = new_figure()
    axes = figure.axes[0]
    for number, (variant, mine) in enumerate(frame.groupby("variant", sort=False)):
        for held_out, style in ((False, "-"), (True, ":")):
            bits = np.sort(mine[mine["held_out"] == held_out].groupby("document")["bits"].mean().to_numpy())
            label = " ".join(filter(None, [str(variant), "held out" if held_out else "trained on"]))
            axes.step(bits, np.arange(1, len(bits) + 1) / len(bits), style, color=COLOURS[number % 6], lw=1.3, label=label)
    axes.set_xlabel("bits of the suffix")
    axes.set_ylabel("share of documents that cost at most as much")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return save_figure(figure, folder, "document_bits")


def _with_interval(row: Mapping[str, Any], times: float = 1) -> str:
    return f"{row['value'] * times:.1f} ({row['ci_low'] * times:.1f} to {row['ci_high'] * times:.1f})"


def _queries_figure(points: Sequence[Mapping[str, Any]], folder: Path) -> str:
    if len(points) < 2:
        return ""
    figure = new_figure()
    axes = figure.axes[0]
    for series, colour in (("extracted", TARGET), ("not extracted", MUTED)):
        own = [p for p in points if p["series"] == series]
        axes.plot([p["x"] for p in own], [p["y"] for p in own], "o", ms=5, alpha=0.8, color=colour, label=series)
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)
    axes.set_xlabel("exposure in bits")
    axes.set_ylabel("prefixes asked for")
    axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, folder, "queries_by_exposure")


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Those of which no other has both a lower loss and lower exposure, or one of them lower and the other equal."""

    def beaten(name: str) -> bool:
        loss, exposure = points[name]
        return any(x <= loss and y <= exposure and (x, y) != (loss, exposure) for x, y in points.values())

    return sorted((name for name in points if not beaten(name)), key=lambda name: points[name])


def _variants_section(rows: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]], folder: Path) -> Section | None:
    mine = [p for p in points if p["curve"] == "utility"]
    names = list(dict.fromkeys(p["series"] for p in mine))
    if len(names) < 2:
        return None
    means = {
        name: (
            float(np.mean([p["x"] for p in mine if p["series"] == name])),
            float(np.mean([p["y"] for p in mine if p["series"] == name])),
        )
        for name in names
    }
    front = pareto_front(means)
    private = {row["params"].get("variant"): row for row in rows if row["metric"] == "epsilon"}
    differences = {row["params"]["variant"]: row for row in rows if row["metric"] == "exposure_difference"}
    cells = []
    for row in rows:
        if row["metric"] != "exposure" or "insertions" not in row["params"] or "canary" in row["params"]:
            continue
        name = row["params"]["variant"]
        spent = private.get(name)
        cells.append(
            (
                name, str(row["params"]["insertions"]), f"{row['value']:.2f}", *_difference_cells(differences.get(name)),
                f"{means[name][0]:.4f}", "yes" if name in front else "",
                "" if spent is None else f"{spent['value']:.3g} (delta {spent['params']['delta']:g}, "
                f"noise {spent['params']['noise']:.3g}, {spent['params']['accountant']})",
            )
        )  # fmt: skip
    headings = [
        "variant", "stood", "exposure", "difference (95 %)", "p of it", "validation loss", "on the front", "epsilon"
    ]  # fmt: skip
    shown = len(headings) if private else len(headings) - 1
    return Section(
        heading="Utility against exposure",
        paragraphs=[
            "Mean exposure in bits over the canaries, and validation loss in nats a symbol: one dot a training. On the "
            "front: no other variant has both less exposure and less loss, by these means alone. Difference: paired, to the "
            "first variant over all canaries that both saw (over trainings, where they share nets and there are several); "
            "without a p it speaks of these nets only."
            + (
                " Epsilon protects one window of text. What stands in k windows has k epsilon with a delta of "
                "k e^((k - 1) epsilon) delta, which is no guarantee where that reaches 1. Noise is drawn from the training's "
                "seed, which the recipe tells: such a model is for the audit, not for release."
                if private
                else ""
            )
        ],
        svg=_utility_figure(mine, means, front, folder),
        figure_caption="Mean exposure (vertical) by validation loss (horizontal), one dot for each training: lower left is "
        "better on both.",
        table=TableView(headings[:shown], [cell[:shown] for cell in cells]),
    )


def _difference_cells(row: Mapping[str, Any] | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    interval = _interval(row, digits=2).removeprefix("95 %: ")
    p = "" if row["p_adjusted"] is None else f"{row['p_adjusted']:.2g}"
    return f"{row['value']:+.2f}" + (f" ({interval})" if interval else ""), p


def _utility_figure(
    points: Sequence[Mapping[str, Any]], means: Mapping[str, tuple[float, float]], front: Sequence[str], folder: Path
) -> str:
    figure = new_figure()
    axes = figure.axes[0]
    for number, name in enumerate(means):
        own = [p for p in points if p["series"] == name]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
        axes.plot([p["x"] for p in own], [p["y"] for p in own], marker, ms=5, alpha=0.8, color=colour, label=name)
    axes.plot([means[n][0] for n in front], [means[n][1] for n in front], color=INK, lw=0.8, ls="--", zorder=0)
    axes.set_xlabel("validation loss in nats a symbol")
    axes.set_ylabel("mean exposure in bits")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return save_figure(figure, folder, "utility")
