"""The page of an exposure audit. It contains no secrets: canaries are named by id."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from memlib.audits.exposure.documents import GAP, GREEDY, NEAR, SHARE
from memlib.audits.exposure.privacy import most_exposed
from memlib.audits.exposure.recipe import DOCUMENTS, HEADLINE, PRIVACY, Recipe
from memlib.audits.exposure.verdict import floored
from memlib.findings import SHOWN, verdict_of
from memlib.report.figures import INK, MUTED, REFERENCE, TARGET, new_figure, plain_ticks, save_figure
from memlib.report.page import KINDS, Page, Section, TableView, advice_of, filled, meaning_of
from memlib.specs.text import GIVEN, RECURRING
from memlib.stats.tails import SkewNormal

LOOSE = ", not tight: the pld accountant gives a smaller value"
FIRST_ROWS = 30  # rows of a table that are always visible; the full table is folded
MARKERS = ("o", "s", "^", "D")
NAMES = {"exposure": "bits of exposure,", "exposure_among_unseen": "bits of exposure among unseen secrets,"}
COLOURS = (TARGET, REFERENCE, "#5f8f6b", "#b07d2b", "#7a3b9a", INK)
_TERMS = (
    "canary", "candidate", "log-perplexity", "exposure", "extraction", "validation loss", "token", "epsilon", "null",
    "p-value",
    "95 % interval", "checkpoint", "diagnostic",
)  # fmt: skip
_NOT_SHOWN = (
    "How exposed secrets of another format are, or the same secrets in another place or inserted more or less often.",
    "That a secret is safe because a search did not find it: another search, or a longer one, may find it.",
    "What people can learn from generated text alone: the audit uses the likelihoods of texts. Where a greedy search "
    "extracted a secret, generated text may reveal it, too.",
    "Other models: the verdict is about these trained models. Other canaries, another seed or another text give other "
    "results.",
)


def build_page(recipe: Recipe, run: str, tables: Mapping[str, pa.Table], facts: Mapping[str, str], folder: Path) -> Page:
    """Build the page of a run; the figures are also saved in `folder` as SVG and PNG.

    Args:
        recipe: the recipe of the run.
        run: id of the run.
        tables: units, extractions, documents, summary and curves, by name.
        facts: rows of the table in the last section.
        folder: directory for the figures.
    """
    rows = [{**row, "params": json.loads(row["params"])} for row in tables["summary"].to_pylist()]
    units = tables["units"].to_pylist()
    verdict = verdict_of(rows)
    points = [{**row, "params": json.loads(row["params"])} for row in tables["curves"].to_pylist()]
    noun = "secret" if any(unit["kind"] in (GIVEN, RECURRING) for unit in units) else "canary"
    listed = recipe.trained is not None  # nobody but the model's owner knows what it saw, and how often
    sections = [
        _variants_section(rows, points, folder),
        _insertions_section(points, units[0]["space_bits"], folder, noun, listed=listed),
        _epochs_section(points, folder),
        _histogram_section(points, folder, noun, listed=listed),
        _canaries_section(units, rows, noun, listed=listed),
        _privacy_section(rows),
        _null_section(rows, noun),
        _extraction_section(tables["extractions"].to_pylist(), points, folder, noun, listed=listed),
        _documents_section(rows, tables["documents"], recipe, folder),
        Section(
            heading="What was run",
            paragraphs=[
                "Method: Carlini et al. 2019, The Secret Sharer (Definitions 1, 2 and 4; section 8.1). The log-perplexity "
                "of a candidate is given in bits and taken after the known prefix. An exact rank counts every candidate that "
                "the model finds at least as likely. Sampled exposure estimates the rank from random candidates, with the "
                "canary counted as one of them. Extrapolated exposure assumes that log-perplexities are skew-normal and is "
                "not bounded by the size of the space; no test rests on it. All canaries of a variant are tested together "
                "(sum of ln 1 / p, or the lowest p with Bonferroni's correction; Holm's correction over variants). Single "
                "canaries are named by Holm's procedure, and only if the joint test of their variant is significant. "
                "Models trained from several seeds are ranked once, by the sum of their log-perplexities."
            ],
            table=TableView(("", ""), list(facts.items())),
        ),
    ]
    extracted = any(row["extracted"] and not row["known"] for row in tables["extractions"].to_pylist())
    read_out = verdict.word != SHOWN and extracted
    return Page(
        meaning=_READ_OUT
        if read_out
        else meaning_of(verdict.word, shown=_gained(rows), bounded=_BOUNDED[rows[0]["metric"] == "exposure_among_unseen"]),
        advice=advice_of(
            verdict.word,
            shown="Treat the model as confidentially as the secrets in its training text. Removing secrets, deduplication or "
            "differentially private training (training.privacy) may reduce exposure: change the training, and audit again.",
            before=_CAREFUL if read_out else "",
            more="" if recipe.trained is None else "add secrets of the same kind that it never saw (canaries.unseen)",
        ),
        limits=_NOT_SHOWN, terms=_TERMS, model=facts.get("model", ""),
        title=recipe.title, audit="exposure", run=run, verdict=verdict.sentence, verdict_kind=KINDS[verdict.word],
        lead=verdict.explanation, numbers=_numbers(rows, recipe),
        sections=[section for section in sections if section is not None],
    )  # fmt: skip


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


def _gained(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what outsiders gain from the families of tests that show memory."""
    shown = [row["family"] for row in rows if row["role"] == "test" and row["verdict"] == SHOWN]
    texts = [text for family, text in _GAINED.items() if family in shown]
    if any(row["metric"] == "extracted" and not row["params"]["known"] and row["value"] for row in rows):
        texts.append("Whoever knows the text around a secret that a search extracted can read it out without guessing.")
    return " ".join(texts)


def _numbers(rows: Sequence[Mapping[str, Any]], recipe: Recipe) -> list[tuple[str, str, str]]:
    headlines = [row for row in rows if row["metric"] in NAMES and "canary" not in row["params"]][:4]
    return [
        (
            f"{row['value']:.1f}",
            " ".join(filter(None, [NAMES[row["metric"]], row["params"].get("variant"), _how_often(row["params"], recipe)])),
            _interval(row, " over "),
        )
        for row in headlines
    ]


def _how_often(params: Mapping[str, Any], recipe: Recipe) -> str:
    if "insertions" not in params:
        return "mean"
    if recipe.trained is None:
        return f"seen {params['insertions']}x"
    return "listed as seen" if params["insertions"] == 1 else f"listed as seen {params['insertions']}x"


def _occurrences(insertions: int, *, listed: bool) -> str:
    """Return how often a secret occurred; "" where an external model's list names it without saying how often."""
    return "" if listed and insertions == 1 else f"{insertions}x"


def _of_occurrences(*, listed: bool) -> str:
    return "occurrences, as listed" if listed else "occurrences"


def _interval(row: Mapping[str, Any], over: str = "", digits: int = 1) -> str:
    """Return a 95 % interval, or a lower bound, as text; empty if there is none."""
    if row["ci_low"] is None:
        return ""
    of = f"{over}{row['interval']}" if over else ""
    if row["ci_high"] is None:
        return f"95 %: at least {row['ci_low']:.{digits}f}{of}"
    return f"95 %{of}: {row['ci_low']:.{digits}f} to {row['ci_high']:.{digits}f}"


def _insertions_section(
    points: Sequence[Mapping[str, Any]], bits: float, folder: Path, noun: str, *, listed: bool
) -> Section:
    dots = [p for p in points if p["curve"] == "exposure_by_insertions"]
    figure = new_figure()
    axes = figure.axes[0]
    for k, series in enumerate(dict.fromkeys(p["series"] for p in dots)):
        group = [p for p in dots if p["series"] == series]
        axes.plot([p["x"] for p in group], [p["y"] for p in group], "o", ms=4, alpha=0.7, color=COLOURS[k % 6], label=series)
    axes.axhline(bits, color=INK, lw=0.8, ls="--")
    axes.annotate("the whole secret", (0, bits), xytext=(2, -11), textcoords="offset points", fontsize=8)
    axes.set_xscale("symlog", linthresh=1)
    plain_ticks(axes.xaxis)
    ticks = sorted({p["x"] for p in dots})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    times = "listed occurrences" if listed else "occurrences" if noun == "secret" else "insertions"
    axes.set_xlabel(f"number of {times}")
    axes.set_ylabel("exposure in bits")
    if len({p["series"] for p in dots}) > 1:
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return Section(
        heading=f"Exposure by number of {times}",
        paragraphs=[
            "Each dot is one secret under one model. Common secrets are exposed without having been seen, so exposure alone "
            "is no evidence of memory. Randomly drawn candidates that do not occur stand at 0."
            if noun == "secret"
            else "Each dot is one canary under one model. At 0 insertions, chance alone puts half of all canaries above 1 "
            "bit and one in 2^e above e bits."
        ],
        svg=save_figure(figure, folder, "exposure_by_insertions"),
        figure_caption=f"Exposure of each {noun} (vertical) by the number of its {times} (horizontal). Dashed line: all bits "
        "of the secret.",
    )


def _epochs_section(points: Sequence[Mapping[str, Any]], folder: Path) -> Section | None:
    measured = [p for p in points if p["curve"] == "exposure_by_epoch"]
    if len({p["x"] for p in measured}) < 2:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    series = list(dict.fromkeys(p["series"] for p in measured))
    lines = dict.fromkeys((p["series"], p["params"]["canary"], p["params"]["seed"]) for p in measured)
    for name, canary, seed in lines:
        line_points = sorted(
            (p["x"], p["y"])
            for p in measured
            if (p["series"], p["params"]["canary"], p["params"]["seed"]) == (name, canary, seed)
        )
        first = next(line for line in lines if line[0] == name) == (name, canary, seed)
        colour = COLOURS[series.index(name) % len(COLOURS)]
        label = name if first else None
        axes.plot([x for x, _ in line_points], [y for _, y in line_points], "o-", ms=3, lw=1.2, color=colour, label=label)
    axes.set_xlabel("epoch")
    axes.set_ylabel("exposure in bits")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    losses = [p for p in points if p["curve"] == "loss_by_epoch"]
    beside = axes.twinx()
    for name in dict.fromkeys(p["series"] for p in losses):
        line_points = sorted((p["x"], p["y"]) for p in losses if p["series"] == name)
        beside.plot([x for x, _ in line_points], [y for _, y in line_points], ":", lw=1, color=INK)
    beside.set_ylabel("validation loss in nats per symbol (dotted)")
    return Section(
        heading="Exposure during training",
        paragraphs=["Exposure at every checkpoint of each model, and the mean validation loss of each variant."],
        svg=save_figure(figure, folder, "exposure_by_epoch"),
        figure_caption="Exposure of each canary (vertical) by epoch (horizontal). Dotted lines, right axis: validation loss.",
    )


def _histogram_section(points: Sequence[Mapping[str, Any]], folder: Path, noun: str, *, listed: bool) -> Section:
    bars = [p for p in points if p["curve"] == "perplexity_histogram"]
    marked = bars[0]["params"]
    x, y = np.array([p["x"] for p in bars]), np.array([p["y"] for p in bars])
    figure = new_figure()
    axes = figure.axes[0]
    axes.bar(x, y, width=(x[1] - x[0]) * 0.95, color=MUTED, label="random candidates")
    if marked.get("location") is not None:
        law = SkewNormal(marked["location"], marked["scale"], marked["shape"])
        grid = np.linspace(min(x.min(), marked["log_perplexity"]), x.max(), 300)
        axes.plot(grid, np.exp(law.log_density(grid)), color=REFERENCE, lw=1.4, label="fitted skew-normal distribution")
    name = ", ".join(filter(None, [f"{noun} {marked['canary']}", _occurrences(marked["insertions"], listed=listed)]))
    axes.axvline(marked["log_perplexity"], color=TARGET, lw=1.6, label=name)
    axes.set_xlabel("log-perplexity in bits")
    axes.set_ylabel("density")
    axes.legend(frameon=False, fontsize=8)
    return Section(
        heading="How likely the model finds the candidates",
        paragraphs=[
            f"Shown for a {noun} that the model is listed as having seen."
            if listed
            else f"Shown for the model that saw a {noun} most often, at its last checkpoint."
        ],
        svg=save_figure(figure, folder, "perplexity_histogram"),
        figure_caption=f"Log-perplexities of random candidates (bars) and of the {noun} (red line): the further left it "
        "lies, the more exposed it is.",
    )


def _canaries_section(
    units: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], noun: str, *, listed: bool
) -> Section:
    tests = {(row["params"].get("variant", ""), row["params"]["canary"]): row for row in rows if row["family"] == "canaries"}
    last: dict[Any, float] = {}
    for unit in units:
        key = (unit["variant"], unit["seed"], unit["canary"], unit["insertions"])
        last[key] = max(last.get(key, 0), unit["epoch"])
    cells = [
        _canary_cells(unit, tests.get((unit["variant"], unit["canary"])), listed=listed)
        for unit in units
        if unit["insertions"] and unit["epoch"] == last[unit["variant"], unit["seed"], unit["canary"], unit["insertions"]]
    ]
    headings = (
        "model", noun, _of_occurrences(listed=listed), "log-perplexity", "exposure (95 %)", "method", "rank", "p",
        "p over all seeds", "adjusted p", "extrapolated",
    )  # fmt: skip
    fitted = any(unit["fit_p"] is not None for unit in units)
    return Section(
        heading=_plural(noun).capitalize(),
        paragraphs=[
            "Log-perplexity and exposure in bits, at the last checkpoint. p is the probability that a secret of the same "
            "kind which the model never saw ranks as low. Without such secrets there is no p, because exposure then also "
            "reflects how common a secret is."
            if noun == "secret"
            else "Log-perplexity and exposure in bits, at the last checkpoint. p is the probability that a canary which was "
            "never inserted ranks as low. A star marks canaries that are shown to be remembered.",
            "The extrapolated value is an estimate that holds only if the log-perplexities are skew-normal"
            f"{' (fit p: the p-value of that assumption)' if fitted else ''}; no interval is known for it. It may exceed all "
            "bits of the secret: then it does not hold.",
        ],
        **_folded(headings, cells),
    )


def _folded(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the fields of a section with a table: its first rows, and all of them folded; without empty columns."""
    whole = filled(headings, cells)
    more = len(cells) > FIRST_ROWS
    first = TableView(whole.headings, whole.rows[:FIRST_ROWS])
    return {"table": first, "details": whole if more else None, "details_title": f"All {len(cells)}"}


def _plural(noun: str) -> str:
    return "secrets" if noun == "secret" else "canaries"


def _canary_cells(unit: Mapping[str, Any], test: Mapping[str, Any] | None, *, listed: bool) -> tuple[str, ...]:
    interval = _interval(unit, digits=2).removeprefix("95 %: ")
    law = unit["exposure_extrapolated"]
    return (
        " ".join(filter(None, [unit["variant"], f"seed {unit['seed']}"])),
        str(unit["canary"]),
        _occurrences(unit["insertions"], listed=listed),
        f"{unit['log_perplexity']:.1f}",
        f"{unit['exposure']:z.2f}" + (f" ({interval})" if interval else ""),
        unit["method"],
        "" if unit["rank"] is None else f"{unit['rank']:,}",
        "" if unit["p_value"] is None else f"{unit['p_value']:.2g}",
        "" if test is None else f"{test['p_value']:.2g}",
        "" if test is None else f"{test['p_adjusted']:.2g}" + (" *" if test["verdict"] == SHOWN else ""),
        ""
        if law is None
        else f"{law:.1f}"
        + (" (above all bits)" if law > unit["space_bits"] else "")
        + ("" if unit["fit_p"] is None else f" (fit p {unit['fit_p']:.2g})"),
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
            "" if name not in bounds else f"{floored(bounds[name]['value']):.2f}",
            "" if name not in bounds else f"{bounds[name]['params']['ceiling']:.1f}",
            "" if name not in tests else f"{tests[name]['p_adjusted']:.2g}",
            "" if name not in tests else "refuted" if tests[name]["verdict"] == SHOWN else "not refuted",
        )
        for name in dict.fromkeys([*claims, *bounds])
    ]
    headings = (
        "variant", "epsilon claimed", "exposure implied, at most", "epsilon proved, at least", "largest provable epsilon",
        "p", "the claim is",
    )  # fmt: skip
    return Section(
        heading="Is the training as private as claimed?",
        paragraphs=[
            "The claimed epsilon was computed by the privacy accountant of the training. After a training without it, a "
            "randomly drawn canary ranks among the lowest share q of all candidates with probability q; after a private "
            "training with the canary in one window of text, with probability at most e^epsilon q + delta. A low rank "
            "therefore proves a lower bound on epsilon (at 95 %, jointly for all canaries, checkpoints and variants that "
            "were examined). A bound below the claimed epsilon is no proof of privacy; the next column gives the largest "
            "bound that could have been proved. If the claim is right, a canary in one window exceeds the implied exposure "
            "with probability at most 0.05; a canary in several windows may have more."
        ],
        table=filled(headings, cells),
    )


def _bits(most: float | None) -> str:
    return "no bound" if most is None else f"{most:.3g} bits"


def _null_section(rows: Sequence[Mapping[str, Any]], noun: str) -> Section | None:
    cells = [
        cell for prefix, kind in (("", "drawn"), ("unseen_", "unseen secrets")) for cell in _null_cells(rows, prefix, kind)
    ]
    if not cells:
        return None
    return Section(
        heading=f"{_plural(noun).capitalize()} that the model never saw",
        paragraphs=[
            "Drawn: random candidates that were never inserted, or that only other models saw. They check the method itself: "
            "the mean of 2^-exposure should be 1/2 and the median exposure 1 bit. For unseen secrets the mean may well be "
            "lower: that is what the model knows about their kind without having seen them.",
            *_of_check(rows),
        ],
        table=filled(("variant", "kind", "canaries", "mean of 2^-exposure (95 %)", "median exposure"), cells),
    )


def _of_check(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what a mean of 2^-exposure away from 1/2 says about candidates that were never inserted."""
    checks = [row for row in rows if row["metric"] == "two_to_minus_exposure"]
    ends = [(row["value"], row["value"]) if row["ci_low"] is None else (row["ci_low"], row["ci_high"]) for row in checks]
    if any(low > (0.5 if low < high else 0.9) for low, high in ends):
        yield (
            "Here the mean is above 1/2: the model finds many candidates equally likely, and a rank counts all of them. "
            "Exposures are then too small rather than too large."
        )
    if any(high < (0.5 if low < high else 0.1) for low, high in ends):
        yield (
            "Here the mean is below 1/2, although the model cannot remember what was never inserted: do not rely on the "
            "exposures before the reason is known."
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
    extractions: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]], folder: Path, noun: str, *, listed: bool
) -> Section | None:
    if not extractions:
        return None
    cells = [
        (
            " ".join(filter(None, [row["variant"], f"seed {row['seed']}"])), str(row["canary"]),
            _occurrences(row["insertions"], listed=listed).removesuffix("x"), str(row["known"]),
            row["search"].replace("_", " "), "yes" if row["extracted"] else "no",
            "" if row["position"] is None else str(row["position"]), f"{row['queries']:,}",
            _ended(row),
        )
        for row in extractions
    ]  # fmt: skip
    headings = (
        "model", noun, _of_occurrences(listed=listed), "known symbols", "search", "extracted", "position", "queries",
        "ended by",
    )  # fmt: skip
    return Section(
        heading="Extraction",
        paragraphs=[
            f"A {noun} counts as extracted if it is the likeliest candidate that the search finds or, where k "
            f"{_plural(noun)} share a search, one of the k likeliest. The shortest path finds the model's likeliest "
            "candidates for certain; greedy and beam search may miss them. Every search is given the text around the secret. "
            "Queries: the number of prefixes whose next symbols the search requested from the model. Known symbols: how many "
            "symbols of the secret the search was given."
        ],
        svg=_queries_figure([p for p in points if p["curve"] == "queries_by_exposure"], folder),
        figure_caption=f"Prefixes that the search queried (vertical) by the {noun}'s exposure (horizontal), one dot per "
        f"{noun} and model.",
        **_folded(headings, cells),
    )


def _ended(row: Mapping[str, Any]) -> str:
    """Return why a search ended, in words; only an exact search knows that it found the likeliest candidates."""
    if row["ended"] != "found":
        return str(row["ended"])
    return "likeliest found" if row["exact"] else "search complete"


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
        cells.append((variant, "extra bits per suffix", "", _with_interval(row), f"{row['p_adjusted']:.2g}"))
        kinds: list[tuple[str, int | None, str]] = [
            (SHARE, tries, f"reproduced within {tries:,} {'try' if tries == 1 else 'tries'}") for tries in how.tries
        ]
        kinds += [(GREEDY, None, "reproduced by always taking the likeliest token")]
        kinds += [(NEAR, None, f"nearly reproduced in {how.samples:,} samples")] if how.samples else []
        for metric, tries, name in kinds:
            sides = (_with_interval(shares[variant, metric, tries, side], 100) for side in ("trained", "held_out"))
            cells.append((variant, f"% {name}", *sides, ""))
    drawn = [f"temperature {how.temperature:g}"]
    drawn += [] if how.top_k is None else [f"the {how.top_k} likeliest tokens"]
    drawn += [] if how.top_p is None else [f"the likeliest tokens with a total probability of {how.top_p:g}"]
    return Section(
        heading="Documents whose beginning is known",
        paragraphs=[
            f"The model is given the first {how.prefix} tokens of a document (the prefix). The next {how.suffix} tokens (the "
            "suffix) count as reproduced within n tries if at least one of n sampled continuations is equal to them with a "
            f"probability of {how.probability:g} or more (sampling: {', '.join(drawn)}). Documents were held out at random, "
            "all copies of a document together, so the share of held-out documents that is reproduced is what a model "
            "reproduces without having seen them. The test permutes which documents were held out. It compares -log2 of "
            "the suffixes' unrestricted probabilities (in bits), so it does not depend on the sampling."
        ],
        svg=_documents_figure(documents, folder),
        figure_caption="Share of documents (vertical) whose suffix has at most the given number of bits (horizontal): "
        "trained on (solid) and held out (dotted), one colour per variant, all models at their last checkpoint.",
        table=filled(("variant", "", "trained on (95 %)", "held out (95 %)", "p"), cells),
    )


def _documents_figure(documents: pa.Table, folder: Path) -> str:
    frame = documents.to_pandas()
    figure = new_figure()
    axes = figure.axes[0]
    for number, (variant, of_variant) in enumerate(frame.groupby("variant", sort=False)):
        for held_out, style in ((False, "-"), (True, ":")):
            bits = np.sort(of_variant[of_variant["held_out"] == held_out].groupby("document")["bits"].mean().to_numpy())
            label = " ".join(filter(None, [str(variant), "held out" if held_out else "trained on"]))
            axes.step(bits, np.arange(1, len(bits) + 1) / len(bits), style, color=COLOURS[number % 6], lw=1.3, label=label)
    axes.set_xlabel("bits of the suffix, -log2 of its probability")
    axes.set_ylabel("share of documents at or below")
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
        of_series = [p for p in points if p["series"] == series]
        axes.plot([p["x"] for p in of_series], [p["y"] for p in of_series], "o", ms=5, alpha=0.8, color=colour, label=series)
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)
    axes.set_xlabel("exposure in bits")
    axes.set_ylabel("prefixes queried")
    axes.legend(frameon=False, fontsize=8)
    return save_figure(figure, folder, "queries_by_exposure")


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


def _variants_section(rows: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]], folder: Path) -> Section | None:
    trainings = [p for p in points if p["curve"] == "utility"]
    names = list(dict.fromkeys(p["series"] for p in trainings))
    if len(names) < 2:
        return None
    means = {
        name: (
            float(np.mean([p["x"] for p in trainings if p["series"] == name])),
            float(np.mean([p["y"] for p in trainings if p["series"] == name])),
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
        budget = private.get(name)
        cells.append(
            (
                name, str(row["params"]["insertions"]), f"{row['value']:.2f}", *_difference_cells(differences.get(name)),
                f"{means[name][0]:.4f}", "yes" if name in front else "",
                "" if budget is None else f"{budget['value']:.3g} (delta {budget['params']['delta']:g}, "
                f"noise {budget['params']['noise']:.3g}, {budget['params']['accountant']})",
            )
        )  # fmt: skip
    headings = [
        "variant", "occurrences", "exposure", "difference (95 %)", "p of difference", "validation loss", "on the front",
        "epsilon",
    ]  # fmt: skip
    shown = len(headings) if private else len(headings) - 1
    return Section(
        heading="Utility against exposure",
        paragraphs=[
            "Mean exposure over the canaries, in bits, and validation loss in nats per symbol: one dot per training. On the "
            "front: no other variant is lower in one of the two and not higher in the other, judged by these means alone. "
            "Difference: paired difference from the first variant over all canaries that both saw (over trainings, if "
            "canaries share models and there are several trainings); without a p it describes these models only."
            + (
                " Epsilon protects one window of text. Text in k windows is protected by k epsilon with a delta of "
                "k e^((k - 1) epsilon) delta, which is no guarantee once that delta reaches 1. The noise is drawn from the "
                "training's seed, which is in the recipe: such a model is for the audit, not for release."
                if private
                else ""
            )
        ],
        svg=_utility_figure(trainings, means, front, folder),
        figure_caption="Mean exposure (vertical) by validation loss (horizontal), one dot per training: lower left is "
        "better in both.",
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
        group = [p for p in points if p["series"] == name]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]
        axes.plot([p["x"] for p in group], [p["y"] for p in group], marker, ms=5, alpha=0.8, color=colour, label=name)
    axes.plot([means[n][0] for n in front], [means[n][1] for n in front], color=INK, lw=0.8, ls="--", zorder=0)
    axes.set_xlabel("validation loss in nats per symbol")
    axes.set_ylabel("mean exposure in bits")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return save_figure(figure, folder, "utility")
