"""The page of an exposure audit. It contains no secrets: canaries are named by id."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memlib.audits.asked import CARRIED_OUT, NOT_ASKED, NOT_POSSIBLE, service_section
from memlib.audits.exposure.documents import GAP, GREEDY, NEAR, SHARE
from memlib.audits.exposure.privacy import most_exposed
from memlib.audits.exposure.recipe import CANARIES, DOCUMENTS, HEADLINE, NOT_SHOWN, PRIVACY, Recipe
from memlib.audits.exposure.verdict import misranked, plural
from memlib.findings import SHOWN, Finding, Findings
from memlib.report.figures import INK, MUTED, REFERENCE, TARGET, new_figure, plain_ticks, save_figure
from memlib.report.format import floored, format_interval, format_p
from memlib.report.page import Content, FigureView, Section, TableView, advice_of, facts_table, filled, meaning_of
from memlib.report.spreadsheet import Rows, columns_of
from memlib.specs.text import GIVEN, RECURRING
from memlib.stats.tails import SkewNormal

Row = Mapping[str, Any]  # of the units, the extractions or the curves
Lines = dict[tuple[Any, ...], tuple[list[float], list[float]]]
LOOSE = ", not tight: the pld accountant gives a smaller value"
FIRST_ROWS = 30  # rows of a table that are always visible; the full table is folded
MARKERS = ("o", "s", "^", "D")
NAMES = {"exposure": "bits of exposure,", "exposure_among_unseen": "bits of exposure among unseen secrets,"}
COLOURS = (TARGET, REFERENCE, "#5f8f6b", "#b07d2b", "#7a3b9a", INK)
_TERMS = ("canary", "candidate", "log-perplexity", "exposure", "extraction", "validation loss", "token", "epsilon")


def compose(recipe: Recipe, tables: Mapping[str, pa.Table], facts: Mapping[str, str], folder: Path) -> Content:
    """Compose the content of a run's page, and save its figures to `folder`.

    Args:
        tables: units, extractions, documents, summary and curves, by name.
        facts: rows of the table in the last section.
    """
    rows = Findings.read(tables["summary"])
    units, extractions = (tables[name].to_pylist() for name in ("units", "extractions"))
    curves: dict[str, list[Row]] = defaultdict(list)
    for point in tables["curves"].to_pylist():
        curves[point["curve"]].append({**point, "params": json.loads(point["params"])})
    noun = "secret" if any(unit["kind"] in (GIVEN, RECURRING) for unit in units) else "canary"
    listed = recipe.trained is not None  # nobody but the model's owner knows what it saw, and how often
    word = rows.verdict.word
    read_out = word != SHOWN and any(row["extracted"] and not row["known"] for row in extractions)
    return Content(
        sections=[
            _variants_section(rows, curves["utility"], folder),
            _equal_loss_section(rows),
            _sanitizing_section(rows),
            _insertions_section(curves["exposure_by_insertions"], units[0]["space_bits"], folder, noun, listed=listed),
            _epochs_section(curves, units, rows, folder),
            _histogram_section(curves["perplexity_histogram"], folder, noun, listed=listed),
            _canaries_section(units, rows, noun, listed=listed),
            _privacy_section(rows),
            _null_section(rows, noun),
            _extraction_section(extractions, curves["queries_by_exposure"], folder, noun, listed=listed),
            _documents_section(rows, tables["documents"], recipe, folder),
            service_section(rows, _of_service(recipe)),
            Section("What was run", _METHOD, facts_table(facts)),
        ],
        meaning=_READ_OUT
        if read_out
        else meaning_of(word, shown=_gained(rows), bounded=_BOUNDED[rows.head.metric == "exposure_among_unseen"]),
        advice=advice_of(
            word,
            shown="Treat the model as confidentially as the secrets in its training text. Removing secrets, deduplication or "
            "differentially private training (training.privacy) may reduce exposure: change the training, and audit again.",
            before=_CAREFUL if read_out else "",
            more="" if recipe.trained is None else "add secrets of the same kind that it never saw (canaries.unseen)",
        ),
        limits=NOT_SHOWN, terms=_TERMS, model=facts.get("model", ""), numbers=_numbers(rows, listed=listed),
    )  # fmt: skip


_METHOD = (
    "Method: Carlini et al. 2019, The Secret Sharer (Definitions 1, 2 and 4; section 8.1). The log-perplexity of a candidate "
    "is given in bits and taken after the known prefix. An exact rank counts every candidate that the model finds at least "
    "as likely. Sampled exposure estimates the rank from random candidates, with the canary counted as one of them. "
    "Extrapolated exposure assumes that log-perplexities are skew-normal and is not bounded by the size of the space; no "
    "test rests on it. All canaries of a variant are tested together (sum of ln 1 / p, or the lowest p with Bonferroni's "
    "correction; Holm's correction over variants). Single canaries are named by Holm's procedure, and only if the joint test "
    "of their variant is significant. Models trained from several seeds are ranked once, by the sum of their "
    "log-perplexities."
)
_CAREFUL = (
    "Until this is settled, treat the model as confidentially as the secrets that the search read out, and change them where "
    "that is possible. "
)
_READ_OUT = (
    "A search read secrets out of the model, and so can others. Whether the model remembers them, or they are so common "
    "among secrets of their kind that a model which never saw them would give them, too, was not shown."
)
_BOUNDED = {  # whether secrets were given
    False: "Whoever can ask the model how likely a text is gains at most the stated number of bits towards guessing a secret "
    "like the canaries.",
    True: "Whoever can ask the model how likely a text is gains at most the stated number of bits towards telling a given "
    "secret from others of its kind. How well the model knows this kind of secret is not bounded.",
}
_GAINED = {
    HEADLINE: "Whoever can ask the model how likely a text is can guess the exposed secrets in fewer tries than without the "
    "model.",
    DOCUMENTS: "Whoever knows the beginning of a document can let the model continue it, and gets closer to the original if "
    "the model was trained on it.",
    PRIVACY: "The guarantee that the training claims does not hold: do not rely on its epsilon.",
}


def _gained(rows: Findings) -> str:
    """Return what outsiders gain from the families of tests that show memory."""
    shown = {row.family for row in rows.shown()}
    texts = [text for family, text in _GAINED.items() if family in shown]
    if any(row.value for row in rows.all("extracted", known=0)):
        texts.append(
            "Whoever knows the text around a secret that a search extracted, and can ask how likely each next symbol is, can "
            "read it out."
        )
    return " ".join(texts)


def _numbers(rows: Findings, *, listed: bool) -> list[tuple[str, str, str]]:
    """Return the page's tiles (number, label, interval): the most exposed secret, then means over several secrets."""
    singles = sorted(rows.tests(CANARIES), key=lambda row: -row.value)[:1]
    means = [row for row in rows.all(*NAMES, canary=None) if "insertions" in row.params and row.n > 1]
    return [
        (
            f"{row.value:.1f}",
            " ".join(filter(None, [NAMES[row.metric], row.params.get("variant"), _how_often(row, listed=listed)])),
            "" if row.interval is None else f"95 % over {row.interval.over}: {format_interval(row, '{:.1f}'.format)}",
        )
        for row in [*singles, *means][:4]
    ]


def _how_often(row: Finding, *, listed: bool) -> str:
    """State how often the secrets of a tile were seen and, for a single secret, the mean exposure of one never seen."""
    seen = f"{'listed as seen' if listed else 'seen'} {_occurrences(row.params['insertions'], listed=listed)}".strip()
    if "canary" not in row.params:
        return f"mean of those {seen}"
    chance = "" if row.null_value is None else f"; {row.null_value:.1f} on average if never seen"
    return f"the most exposed (no. {row.params['canary']}, {seen}{chance})"


def _occurrences(insertions: int, *, listed: bool) -> str:
    """Return how often a secret occurred; "" where an external model's list names it without saying how often."""
    return "" if listed and insertions == 1 else f"{insertions}x"


def _of_occurrences(*, listed: bool) -> str:
    return "occurrences, as listed" if listed else "occurrences"


def _new_axes(x: str, y: str) -> tuple[Figure, Axes]:
    """Return an empty figure, and its axes with these labels."""
    figure = new_figure()
    figure.axes[0].set(xlabel=x, ylabel=y)
    return figure, figure.axes[0]


def _with_legend(figure: Figure, folder: Path, name: str) -> str:
    """Save a figure with a legend beside its axes; return its SVG markup."""
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return save_figure(figure, folder, name)


def _lines(points: Sequence[Row], *params: str) -> Lines:
    """Return the x and the y values of the points, by series and the values of the named params."""
    lines: Lines = {}
    for point in points:
        xs, ys = lines.setdefault((point["series"], *(point["params"][name] for name in params)), ([], []))
        xs.append(point["x"])
        ys.append(point["y"])
    return lines


def _insertions_section(dots: Sequence[Row], bits: float, folder: Path, noun: str, *, listed: bool) -> Section:
    times = "listed occurrences" if listed else "occurrences" if noun == "secret" else "insertions"
    figure, axes = _new_axes(f"number of {times}", "exposure in bits")
    lines = _lines(dots)
    for k, ((series,), (x, y)) in enumerate(lines.items()):
        axes.plot(x, y, "o", ms=4, alpha=0.7, color=COLOURS[k % len(COLOURS)], label=series)
    axes.axhline(bits, color=INK, lw=0.8, ls="--", label="_the whole secret")
    axes.annotate("the whole secret", (0, bits), xytext=(2, -11), textcoords="offset points", fontsize=8)
    axes.set_xscale("symlog", linthresh=1)
    plain_ticks(axes.xaxis)
    ticks = sorted({p["x"] for p in dots})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    save = _with_legend if len(lines) > 1 else save_figure
    return Section(
        f"Exposure by number of {times}",
        "Each dot is one secret under one model. Common secrets are exposed without having been seen, so exposure alone "
        "is no evidence of memory. Randomly drawn candidates that do not occur stand at 0."
        if noun == "secret"
        else "Each dot is one canary under one model. At 0 insertions, chance alone puts half of all canaries above 1 "
        "bit and one in 2^e above e bits.",
        FigureView(
            save(figure, folder, "exposure_by_insertions"),
            f"Exposure of each {noun} (vertical) by the number of its {times} (horizontal). Dashed line: all bits of the "
            "secret.",
            dots,
        ),
    )


def _epochs_section(
    curves: Mapping[str, Sequence[Row]], units: Sequence[Row], rows: Findings, folder: Path
) -> Section | None:
    measured, losses = curves["exposure_by_epoch"], curves["loss_by_epoch"]
    if len({p["x"] for p in measured}) < 2:
        return None
    figure, axes = _new_axes("epoch", "exposure in bits")
    series: dict[str, str] = {}
    for (name, *_), (x, y) in _lines(measured, "canary", "seed").items():
        label = name if name not in series else f"_{name}"
        colour = series.setdefault(name, COLOURS[len(series) % len(COLOURS)])
        axes.plot(*zip(*sorted(zip(x, y, strict=True)), strict=True), "o-", ms=3, lw=1.2, color=colour, label=label)
    for (name, *_), (x, y) in _lines(curves["extrapolated_by_epoch"], "canary", "seed").items():
        axes.plot(*zip(*sorted(zip(x, y, strict=True)), strict=True), "--", lw=0.9, alpha=0.6, color=series[name],
                  label=f"_{name}, extrapolated")  # fmt: skip
    beside = axes.twinx()
    for (name,), (x, y) in _lines(losses).items():
        beside.plot(*zip(*sorted(zip(x, y, strict=True)), strict=True), ":", lw=1, color=INK, label=f"_{name}")
    beside.set_ylabel("validation loss in nats per symbol (dotted)")
    return Section(
        "Exposure during training",
        "Exposure at every checkpoint of each model, and the mean validation loss of each variant. The exposure of a canary "
        "that ranks first cannot rise any further, while the extrapolated one can rise and fall, if log-perplexities are "
        "skew-normal. The table lists means over inserted canaries and trainings, as diagnostics without intervals.",
        FigureView(
            _with_legend(figure, folder, "exposure_by_epoch"),
            "Exposure of each canary (vertical) by epoch (horizontal). Dashed: extrapolated. Dotted lines, right axis: "
            "validation loss.",
            [*measured, *curves["extrapolated_by_epoch"], *losses],
        ),
        *_overtraining_table(rows),
        *_folded(("variant", "epoch", "validation loss", "exposure", "extrapolated"), _epoch_cells(units)),
    )


def _epoch_cells(units: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the means of inserted canaries at each checkpoint of each variant."""
    groups = defaultdict[tuple[str, float], list[Row]](list)
    for unit in units:
        if unit["insertions"]:
            groups[unit["variant"], unit["epoch"]].append(unit)
    order = {variant: place for place, variant in enumerate(dict.fromkeys(variant for variant, _ in groups))}
    cells: list[tuple[str, ...]] = []
    for (variant, epoch), group in sorted(groups.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        laws = [unit["exposure_extrapolated"] for unit in group if unit["exposure_extrapolated"] is not None]
        means = [float(np.mean([unit[column] for unit in group])) for column in ("validation_loss", "exposure")]
        cells.append((variant, f"{epoch:g}", f"{means[0]:.4f}", f"{means[1]:z.2f}", f"{np.mean(laws):.2f}" if laws else ""))
    return cells


def _overtraining_table(rows: Findings) -> Iterator[str | TableView]:
    """Yield a table of the changes of exposure after the lowest validation loss, if training went on beyond it."""
    found = rows.all("overtraining_change")
    if not found:
        return
    yield (
        "Change from the lowest mean validation loss to the last checkpoint, in bits, over the same trainings or canaries, "
        "without canaries of which either exposure is only a lower bound (or extrapolated, in rows of measured exposure):"
    )
    cells = [
        (
            row.params.get("variant", ""), f"{row.params['from_epoch']:g} to {row.params['to_epoch']:g}",
            row.params["of"].removeprefix("exposure_"), str(row.n),
            _with_interval(row, "{:.2f}".format, "{:+.2f}".format), format_p(row.p_adjusted),
        )
        for row in found
    ]  # fmt: skip
    yield filled(("variant", "epochs", "estimate", "n", "change (95 %)", "adjusted p"), cells, found)


def _histogram_section(bars: Sequence[Row], folder: Path, noun: str, *, listed: bool) -> Section:
    marked = bars[0]["params"]
    x, y = np.array([p["x"] for p in bars]), np.array([p["y"] for p in bars])
    figure, axes = _new_axes("log-perplexity in bits", "density")
    axes.bar(x, y, width=(x[1] - x[0]) * 0.95, color=MUTED, label="random candidates")
    if marked.get("location") is not None:
        law = SkewNormal(marked["location"], marked["scale"], marked["shape"])
        grid = np.linspace(min(x.min(), marked["log_perplexity"]), x.max(), 300)
        axes.plot(grid, np.exp(law.log_density(grid)), color=REFERENCE, lw=1.4, label="fitted skew-normal distribution")
    name = ", ".join(filter(None, [f"{noun} {marked['canary']}", _occurrences(marked["insertions"], listed=listed)]))
    axes.axvline(marked["log_perplexity"], color=TARGET, lw=1.6, label=name)
    axes.legend(frameon=False, fontsize=8)
    return Section(
        "How likely the model finds the candidates",
        f"Shown for a {noun} that the model is listed as having seen."
        if listed
        else f"Shown for the model that saw a {noun} most often, at its last checkpoint.",
        FigureView(
            save_figure(figure, folder, "perplexity_histogram"),
            f"Log-perplexities of random candidates (bars) and of the {noun} (red line): the further left it "
            "lies, the more exposed it is.",
            bars,
        ),
    )


def _canaries_section(units: Sequence[Row], rows: Findings, noun: str, *, listed: bool) -> Section:
    training, last = itemgetter("variant", "seed", "canary", "insertions"), defaultdict[Any, float](float)
    for unit in units:
        last[training(unit)] = max(last[training(unit)], unit["epoch"])
    tests = {(row.params.get("variant", ""), row.params["canary"]): row for row in rows.tests(CANARIES)}
    shown = [unit for unit in units if unit["insertions"] and unit["epoch"] == last[training(unit)]]
    cells = [_canary_cells(unit, tests.get((unit["variant"], unit["canary"])), listed=listed) for unit in shown]
    headings = (
        "model", noun, _of_occurrences(listed=listed), "log-perplexity", "exposure (95 %)", "method", "rank", "p",
        "p over all seeds", "adjusted p", "extrapolated",
    )  # fmt: skip
    fitted = any(unit["fit_p"] is not None for unit in units)
    return Section(
        plural(noun).capitalize(),
        "Log-perplexity and exposure in bits, at the last checkpoint. p is the probability that a secret of the same "
        "kind which the model never saw ranks as low. Without such secrets there is no p, because exposure then also "
        "reflects how common a secret is."
        if noun == "secret"
        else "Log-perplexity and exposure in bits, at the last checkpoint. p is the probability that a canary which was "
        "never inserted ranks as low. A star marks canaries that are shown to be remembered.",
        "The extrapolated value is an estimate that holds only if the log-perplexities are skew-normal"
        f"{' (fit p: the p-value of that assumption)' if fitted else ''}; no interval is known for it. It may exceed all "
        "bits of the secret: then it does not hold.",
        *_folded(headings, cells, columns_of(shown, *_OF_CANARY)),
    )


_OF_CANARY = (
    "variant", "seed", "canary", "insertions", "epoch", "log_perplexity", "exposure", "ci_low", "ci_high", "method", "rank",
    "p_value", "exposure_extrapolated", "fit_p",
)  # fmt: skip
_OF_SEARCH = ("variant", "seed", "canary", "insertions", "known", "search", "extracted", "position", "queries", "ended")
"""Columns of the units, and of the extractions, that the page shows."""


def _folded(headings: Sequence[str], cells: Sequence[Sequence[str]], data: Rows = ()) -> list[TableView]:
    """Return a table without empty columns: its first rows and, if there are more, all of them folded."""
    whole = filled(headings, cells, data)
    more = [replace(whole, folded=f"All {len(cells)}", data=())] if len(cells) > FIRST_ROWS else []
    return [replace(whole, rows=whole.rows[:FIRST_ROWS]), *more]


def _model(row: Row) -> str:
    return " ".join(filter(None, [row["variant"], f"seed {row['seed']}"]))


def _canary_cells(unit: Row, test: Finding | None, *, listed: bool) -> tuple[str, ...]:
    low, high, law = unit["ci_low"], unit["ci_high"], unit["exposure_extrapolated"]
    interval = "" if low is None else f" (at least {low:.2f})" if high is None else f" ({low:.2f} to {high:.2f})"
    return (
        _model(unit),
        str(unit["canary"]),
        _occurrences(unit["insertions"], listed=listed),
        f"{unit['log_perplexity']:.1f}",
        f"{unit['exposure']:z.2f}{interval}",
        unit["method"],
        "" if unit["rank"] is None else f"{unit['rank']:,}",
        format_p(unit["p_value"]),
        "" if test is None else format_p(test.p_value),
        "" if test is None else format_p(test.p_adjusted) + (" *" if test.verdict == SHOWN else ""),
        ""
        if law is None
        else f"{law:.1f}"
        + (" (above all bits)" if law > unit["space_bits"] else "")
        + ("" if unit["fit_p"] is None else f" (fit p {format_p(unit['fit_p'])})"),
    )


def _privacy_section(rows: Findings) -> Section | None:
    claims = rows.all("epsilon")
    if not claims:
        return None
    variants = dict.fromkeys(row.params.get("variant") for row in (*claims, *rows.all("epsilon_lower_bound")))
    headings = (
        "variant", "epsilon claimed", "exposure implied, at most", "epsilon proved, at least", "largest provable epsilon",
        "p", "the claim is",
    )  # fmt: skip
    return Section(
        "Is the training as private as claimed?",
        "The claimed epsilon was computed by the privacy accountant of the training. After a training without it, a "
        "randomly drawn canary ranks among the lowest share q of all candidates with probability q; after a private "
        "training with the canary in one window of text, with probability at most e^epsilon q + delta. A low rank "
        "therefore proves a lower bound on epsilon (at 95 %, jointly for all canaries, checkpoints and variants that "
        "were examined). A bound below the claimed epsilon is no proof of privacy; the next column gives the largest "
        "bound that could have been proved. If the claim is right, a canary in one window exceeds the implied exposure "
        "with probability at most 0.05; a canary in several windows may have more.",
        filled(headings, [_privacy_cells(rows, variant) for variant in variants], rows.all(*_PRIVACY)),
    )


_PRIVACY = ("epsilon", "epsilon_lower_bound", "privacy_claim")


def _privacy_cells(rows: Findings, variant: str | None) -> tuple[str, ...]:
    claimed = proved = decided = ("", "")
    if (claim := rows.get("epsilon", variant=variant)) is not None:
        delta, loose = claim.params["delta"], "" if claim.params.get("tight", True) else LOOSE
        most = most_exposed(claim.value, delta)
        claimed = (f"{claim.value:.3g} (delta {delta:g}){loose}", "no bound" if most is None else f"{most:.3g} bits")
    if (bound := rows.get("epsilon_lower_bound", variant=variant)) is not None:
        proved = (f"{floored(bound.value):.2f}", f"{bound.params['ceiling']:.1f}")
    if (test := rows.get("privacy_claim", variant=variant)) is not None:
        decided = (format_p(test.p_adjusted), "refuted" if test.verdict == SHOWN else "not refuted")
    return (variant or "", *claimed, *proved, *decided)


def _null_section(rows: Findings, noun: str) -> Section | None:
    cells = [
        (row.params.get("variant", ""), kind, str(row.n), _with_interval(row, "{:.3f}".format), f"{median.value:.2f}")
        for prefix, kind in (("", "drawn"), ("unseen_", "unseen secrets"))
        for row in rows.all(f"{prefix}two_to_minus_exposure")
        for median in rows.all(f"{prefix}exposure_median", variant=row.params.get("variant"))
    ]
    if not cells:
        return None
    return Section(
        f"{plural(noun).capitalize()} that the model never saw",
        "Drawn: random candidates that were never inserted, or that only other models saw. They check the method itself: "
        "the mean of 2^-exposure should be 1/2 and the median exposure 1 bit. For unseen secrets the mean may well be "
        "lower: that is what the model knows about their kind without having seen them.",
        *_of_check(rows),
        filled(("variant", "kind", "canaries", "mean of 2^-exposure (95 %)", "median exposure"), cells, rows.all(*_OF_NULL)),
    )


_OF_NULL = ("two_to_minus_exposure", "exposure_median", "unseen_two_to_minus_exposure", "unseen_exposure_median")


def _of_check(rows: Findings) -> Iterator[str]:
    """Yield explanations of means of 2^-exposure that are too far from 1/2 for candidates that were never inserted."""
    if misranked(rows, 1):
        yield (
            "Here the mean is above 1/2: the model finds many candidates equally likely, and a rank counts all of them. "
            "Exposures are then too small rather than too large."
        )
    if misranked(rows, -1):
        yield (
            "Here the mean is below 1/2 by more than chance explains, although the model cannot remember what was never "
            "inserted: do not rely on the exposures before the reason is known."
        )


def _of_service(recipe: Recipe) -> dict[str, str]:
    """Return what became of each attack on a model behind a service."""
    return {
        "exposure of given secrets": CARRIED_OUT,
        "extraction by generated answers": NOT_ASKED if recipe.extraction is None else CARRIED_OUT,
        "extraction by search": NOT_POSSIBLE,
        "continuation of training documents": "memlib does not ask a service for it",
    }


def _extraction_section(
    extractions: Sequence[Row], points: Sequence[Row], folder: Path, noun: str, *, listed: bool
) -> Section | None:
    if not extractions:
        return None
    cells = [
        (
            _model(row), str(row["canary"]), _occurrences(row["insertions"], listed=listed).removesuffix("x"),
            str(row["known"]), row["search"].replace("_", " "), "yes" if row["extracted"] else "no",
            "" if row["position"] is None else str(row["position"]), f"{row['queries']:,}", _ended(row),
        )
        for row in extractions
    ]  # fmt: skip
    headings = (
        "model", noun, _of_occurrences(listed=listed), "known symbols", "search", "extracted", "position", "queries",
        "ended by",
    )  # fmt: skip
    return Section(
        "Extraction",
        f"A {noun} counts as extracted if it is the likeliest candidate that the search finds or, where k "
        f"{plural(noun)} share a search, one of the k likeliest. The shortest path finds the model's likeliest "
        "candidates for certain; greedy and beam search may miss them. Every search is given the text around the secret. "
        "Queries: the number of prefixes whose next symbols the search requested from the model. Known symbols: how many "
        "symbols of the secret the search was given. Answers of a service: how many were asked for; a secret counts if one "
        "begins with it.",
        _queries_figure(points, folder, noun),
        *_folded(headings, cells, columns_of(extractions, *_OF_SEARCH)),
    )


def _ended(row: Row) -> str:
    """Return why a search ended, in words; only an exact search knows that it found the likeliest candidates."""
    if row["ended"] != "found":
        return str(row["ended"])
    return "likeliest found" if row["exact"] else "search complete"


def _queries_figure(points: Sequence[Row], folder: Path, noun: str) -> FigureView | None:
    if len(points) < 2:
        return None
    figure, axes = _new_axes("exposure in bits", "prefixes queried")
    for series, colour in (("extracted", TARGET), ("not extracted", MUTED)):
        axes.plot(*_lines(points).get((series,), ([], [])), "o", ms=5, alpha=0.8, color=colour, label=series)
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)
    axes.legend(frameon=False, fontsize=8)
    return FigureView(
        save_figure(figure, folder, "queries_by_exposure"),
        f"Prefixes that the search queried (vertical) by the {noun}'s exposure (horizontal), one dot per {noun} and model.",
        points,
    )


def _documents_section(rows: Findings, documents: pa.Table, recipe: Recipe, folder: Path) -> Section | None:
    how = recipe.discoverable
    if how is None:
        return None
    kinds: list[tuple[str, int | None, str]] = [
        (SHARE, tries, f"reproduced within {tries:,} {'try' if tries == 1 else 'tries'}") for tries in how.tries
    ]
    kinds += [(GREEDY, None, "reproduced by always taking the likeliest token")]
    kinds += [(NEAR, None, f"nearly reproduced in {how.samples:,} samples")] if how.samples else []
    cells = []
    for test in rows.all(GAP):
        variant, bits = test.params.get("variant"), _with_interval(test, "{:.1f}".format)
        cells.append((variant or "", "extra bits per suffix", "", bits, format_p(test.p_adjusted)))
        for metric, tries, name in kinds:
            trained, held_out = (
                _with_interval(
                    rows.first(metric, variant=variant, tries=tries, side=side), lambda share: f"{100 * share:.1f}"
                )
                for side in ("trained", "held_out")
            )
            cells.append((variant or "", f"% {name}", trained, held_out, ""))
    drawn = [f"temperature {how.temperature:g}"]
    drawn += [] if how.top_k is None else [f"the {how.top_k} likeliest tokens"]
    drawn += [] if how.top_p is None else [f"the likeliest tokens with a total probability of {how.top_p:g}"]
    return Section(
        "Documents whose beginning is known",
        f"The model is given the first {how.prefix} tokens of a document (the prefix). The next {how.suffix} tokens (the "
        "suffix) count as reproduced within n tries if at least one of n sampled continuations is equal to them with a "
        f"probability of {how.probability:g} or more (sampling: {', '.join(drawn)}). Documents were held out at random, "
        "all copies of a document together, so the share of held-out documents that is reproduced is what a model "
        "reproduces without having seen them. The test permutes which documents were held out. It compares -log2 of "
        "the suffixes' unrestricted probabilities (in bits), so it does not depend on the sampling.",
        _documents_figure(documents, folder),
        filled(("variant", "", "trained on (95 %)", "held out (95 %)", "p"), cells, rows.all(GAP, SHARE, GREEDY, NEAR)),
    )


def _documents_figure(documents: pa.Table, folder: Path) -> FigureView:
    figure, axes = _new_axes("bits of the suffix, -log2 of its probability", "share of documents at or below")
    drawn: list[Row] = []
    for number, (variant, of_variant) in enumerate(documents.to_pandas().groupby("variant", sort=False)):
        for held_out, style in ((False, "-"), (True, ":")):
            bits = np.sort(of_variant[of_variant["held_out"] == held_out].groupby("document")["bits"].mean().to_numpy())
            label = " ".join(filter(None, [str(variant), "held out" if held_out else "trained on"]))
            axes.step(bits, np.arange(1, len(bits) + 1) / len(bits), style, color=COLOURS[number % 6], lw=1.3, label=label)
            drawn += [{"variant": variant, "held_out": held_out, "bits": value} for value in bits.tolist()]
    return FigureView(
        _with_legend(figure, folder, "document_bits"),
        "Share of documents (vertical) whose suffix has at most the given number of bits (horizontal): "
        "trained on (solid) and held out (dotted), one colour per variant, all models at their last checkpoint.",
        drawn,
    )


def _with_interval(row: Finding, show: Callable[[float], str], value: Callable[[float], str] | None = None) -> str:
    """Return a finding's value with its interval, if it has one.

    Args:
        show: format of the interval's ends, and of the value.
        value: another format of the value.
    """
    interval = format_interval(row, show)
    return (value or show)(row.value) + (f" ({interval})" if interval else "")


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names of the points that no other point beats, sorted by (loss, exposure).

    A point is beaten by one that is lower in loss or exposure and not higher in the other.

    Args:
        points: (loss, exposure) by name.
    """

    def beaten(name: str) -> bool:
        loss, exposure = points[name]
        return any(x <= loss and y <= exposure and (x, y) != (loss, exposure) for x, y in points.values())

    return sorted((name for name in points if not beaten(name)), key=lambda name: points[name])


def _variants_section(rows: Findings, trainings: Sequence[Row], folder: Path) -> Section | None:
    lines = _lines(trainings)
    if len(lines) < 2:
        return None
    means = {name: (float(np.mean(x)), float(np.mean(y))) for (name,), (x, y) in lines.items()}
    front, private = pareto_front(means), rows.all("epsilon")
    headings = [
        "variant", "occurrences", "exposure", "difference (95 %)", "p of difference", "validation loss", "on the front",
        "epsilon",
    ]  # fmt: skip
    exposures = [(row.params["variant"], row) for row in rows.all("exposure", canary=None) if "insertions" in row.params]
    cells = [_variant_cells(row, rows, means[name][0], on_front=name in front) for name, row in exposures]
    columns = len(headings) if private else len(headings) - 1
    return Section(
        "Utility against exposure",
        "Mean exposure over the canaries, in bits, and validation loss in nats per symbol: one dot per training. On the "
        "front: no other variant is lower in one of the two and not higher in the other, judged by these means alone. "
        "Difference: paired difference from the first variant over all canaries that both saw (over trainings, if "
        "canaries share models and there are several trainings); without a p it describes these models only, or rests on "
        "exposures that are extrapolated or lower bounds."
        + (
            " Epsilon protects one window of text. Text in k windows is protected by k epsilon with a delta of "
            "k e^((k - 1) epsilon) delta, which is no guarantee once that delta reaches 1. The noise is drawn from the "
            "training's seed, which is in the recipe: such a model is for the audit, not for release."
            if private
            else ""
        ),
        replace(_utility_figure(lines, means, front, folder), data=trainings),
        TableView(headings[:columns], [row[:columns] for row in cells], data=[row for _, row in exposures]),
    )


def _variant_cells(exposure: Finding, rows: Findings, loss: float, *, on_front: bool) -> list[str]:
    at = exposure.params
    difference, budget = (rows.get(metric, variant=at["variant"]) for metric in ("exposure_difference", "epsilon"))
    cells = [
        at["variant"],
        str(at["insertions"]),
        f"{exposure.value:.2f}",
        "",
        "",
        f"{loss:.4f}",
        "yes" if on_front else "",
        "",
    ]
    if difference is not None:
        cells[3:5] = _with_interval(difference, "{:.2f}".format, "{:+.2f}".format), format_p(difference.p_adjusted)
    if budget is not None:
        how = budget.params
        cells[7] = f"{budget.value:.3g} (delta {how['delta']:g}, noise {how['noise']:.3g}, {how['accountant']})"
    return cells


def _equal_loss_section(rows: Findings) -> Section | None:
    found = rows.all("exposure_at_equal_loss")
    if not found:
        return None
    cells = []
    for row in found:
        difference = rows.get("difference_at_equal_loss", variant=row.params["variant"])
        cells.append(
            (
                row.params["variant"], f"{row.params['validation_loss']:.4f}",
                "" if difference is None else f"{difference.params['loss_gap']:+.4f}", f"{row.params['epoch']:g}",
                _with_interval(row, "{:.2f}".format),
                "" if difference is None else _with_interval(difference, "{:.2f}".format, "{:+.2f}".format),
            )
        )  # fmt: skip
    headings = ("variant", "validation loss", "loss gap", "epoch", "exposure (95 %)", "difference (95 %)")
    return Section(
        "Exposure at equal loss",
        "Each training at its first checkpoint whose validation loss is as low as the loss that every training reaches; loss "
        "and epoch are means over trainings. Losses are equal only as far as checkpoints are close: the slowest training "
        "sits at that loss, others below it. Loss gap and difference: from the first variant. They are estimates, not tests, "
        "because a p-value of the difference would speak of the gap as well. Canaries with an extrapolated exposure, or only "
        "a lower bound, under any variant are left out.",
        filled(headings, cells, rows.all("exposure_at_equal_loss", "difference_at_equal_loss")),
    )


def _sanitizing_section(rows: Findings) -> Section | None:
    cells = []
    for share in rows.all("removed_by_sanitizing"):
        for removed in (True, False):
            means = rows.all("exposure_by_sanitizing", insertions=share.params["insertions"], removed=removed)
            if means:
                bits = (_with_interval(mean, "{:.2f}".format) for mean in means)
                kind = ("all windows removed" if removed else "a window was missed", str(means[0].n))
                cells.append((str(share.params["insertions"]), _share_removed(share), *kind, *bits))
    if not cells:
        return None
    headings = ("occurrences", "removed (95 %)", "canaries", "n", "exposure before (95 %)", "exposure after (95 %)")
    return Section(
        "Sanitizing by two models",
        "Two models were trained on halves of the training windows, and the windows about which they disagree most were "
        "removed, a share that the recipe sets. A canary in several windows may be in both halves: then both models know it, "
        "and its windows are missed. Exposure before: of the model of the whole text; after: of one trained on the sanitized "
        f"text, to which random candidates are exposed by {1 / np.log(2):.1f} bits on average. Models disagree more about "
        "unlikely canaries, so the removed ones tend to be the less likely candidates: nothing is tested here. Removed: the "
        "share of canaries that lost all of their windows.",
        filled(headings, cells, rows.all("removed_by_sanitizing", "exposure_by_sanitizing")),
    )


def _share_removed(share: Finding) -> str:
    return f"{100 * share.value:.0f} % ({format_interval(share, lambda end: f'{100 * end:.0f}')})"


def _utility_figure(lines: Lines, means: Mapping[str, tuple[float, float]], front: Sequence[str], folder: Path) -> FigureView:
    figure, axes = _new_axes("validation loss in nats per symbol", "mean exposure in bits")
    for number, ((name,), (x, y)) in enumerate(lines.items()):
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
        axes.plot(x, y, marker, ms=5, alpha=0.8, color=colour, label=name)
    axes.plot([means[n][0] for n in front], [means[n][1] for n in front], color=INK, lw=0.8, ls="--", zorder=0,
              label="_mean on the front")  # fmt: skip
    return FigureView(
        _with_legend(figure, folder, "utility"),
        "Mean exposure (vertical) by validation loss (horizontal), one dot per training: lower left is better in both.",
    )
