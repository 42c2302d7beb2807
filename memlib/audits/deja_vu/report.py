"""The report page of a déjà vu audit."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.deja_vu.beyond.section import BEYOND_TERMS, beyond_section
from memlib.audits.deja_vu.findings import GAP_CHANGE, GAPS, HELD_OUT, most_correlated, most_memorized
from memlib.audits.deja_vu.gains import CHANGE
from memlib.audits.deja_vu.recipe import BEYOND, NOT_SHOWN, Recipe
from memlib.audits.deja_vu.reconstruction.section import Reconstructed, sections
from memlib.audits.deja_vu.scores import CATEGORIES
from memlib.findings import DESCRIPTIVE, INCONCLUSIVE, SHOWN, Finding, Findings
from memlib.report.figures import (
    ACCENT,
    MUTED,
    REFERENCE,
    TARGET,
    data_uri,
    new_figure,
    new_panels,
    outlined,
    percent_axis,
    save_figure,
)
from memlib.report.format import format_interval, format_p, percent, say_p
from memlib.report.page import Content, ExampleView, FigureView, Section, TableView, advice_of, facts_table, meaning_of
from memlib.specs import Spec

COLOURS = {"memorized": TARGET, "misrepresented": REFERENCE, "correlated": ACCENT, "unassociated": MUTED}


@dataclass(frozen=True)
class Shown:
    """Pictures of one example for a gallery."""

    image: NDArray[np.uint8]  #: (size, size, 3) uint8.
    box: tuple[int, int, int, int]  #: the background crop, x0, y0, x1, y1.
    #: target, reference: the nearest public images under each model, with their class names; reference is empty with a single
    #: model.
    target: Sequence[tuple[NDArray[np.uint8], str]]
    reference: Sequence[tuple[NDArray[np.uint8], str]]


_TERMS = (
    "target model", "reference model", "A, B, C, X", "crop", "kNN", "déjà vu score", "share excess", "SSLMem", "probe gap",
    "named by neighbours (knn_accuracy)",
)  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """Sizes and times of the run, for the last section."""

    counts: Mapping[str, int]  # examples by role
    left_out: Mapping[str, int]  # examples by reason
    seconds: Mapping[str, float]  # training time by model


def compose(
    recipe: Recipe,
    units: pa.Table,
    summary: pa.Table,
    curves: pa.Table,
    facts: Facts,
    show: Callable[[Mapping[str, Any]], Shown],
    folder: Path,
    *,
    reconstructed: Reconstructed | None = None,
) -> Content:
    """Return the content of a run's page, and save its figures to `folder`.

    Args:
        units: tables.UNITS, including those of the headline.
        summary, curves: tables.SUMMARY and CURVES.
        show: returns the pictures for a row of the units.
        reconstructed: pictures that generators drew, if there are any.
    """
    findings = Findings.read(summary)
    setting = {name: findings.head.params[name] for name in ("layer", "epoch", "crop", "k")}
    here, word, alone = findings.all(**setting), findings.verdict.word, recipe.reference is not None
    names = word if word != SHOWN or here.head.verdict == SHOWN else INCONCLUSIVE  # another headline may show memory
    for name, value in setting.items():
        units = units.filter(pc.field(name) == value)
    if alone:
        units = units.filter(pc.field("direction") == "A")  # pictures are of training images
    memorized, correlated = (choose(units, recipe.report.gallery) for choose in (most_memorized, most_correlated))
    named = dict(zip(units["label"].to_pylist(), units["class_name"].to_pylist(), strict=True))
    return Content(
        meaning=meaning_of(
            word,
            shown=_can(here, findings),
            bounded="Anyone who has the trained model and the background of a training image can name its object hardly more "
            "often than without the model: the gain is at most the share given above.",
        ),
        advice=advice_of(
            word,
            shown="Treat the model as confidentially as its training images. Fewer epochs, more images or differential "
            "privacy may reduce memory: change the training, and audit the new model again.",
            more="audit more of its training images, and more held-out ones that were drawn like them"
            if recipe.encoders
            else "",
        ),
        limits=NOT_SHOWN,
        terms=_TERMS if recipe.beyond is None else (*_TERMS, *BEYOND_TERMS),
        model=_named_model(recipe),
        numbers=_numbers(here, recipe, names),
        sections=[
            _curve_section(here, curves.filter(pc.field("params") == json.dumps(setting, sort_keys=True)), recipe, folder),
            _category_section(here, folder, alone=alone),
            _gallery_section(
                "Named by the target model only", _BY_CHANCE.get(names, _NOT_SHOWN_HERE) + _MEMORIZED, memorized, show, named
            ),
            _gallery_section("Most correlated", _CORRELATED, correlated, show, named),
            *(
                sections(findings, units, reconstructed, recipe.reconstruct.shown)
                if recipe.reconstruct and reconstructed
                else ()
            ),
            _class_section(here, alone=alone),
            beyond_section(findings),
            *_along_sections(findings, recipe, folder),
            _training_section(findings, folder),
            _change_section(findings.all(CHANGE)) if recipe.fine_tuned else None,
            _settings_section(findings, alone=alone),
            _probe_section(findings),
            _stability_section(findings.all("sslmem", "sslmem_disjoint")),
            _run_section(recipe, facts),
        ],
    )


def _numbers(here: Findings, recipe: Recipe, word: str) -> list[tuple[str, str, str]]:
    """Return the tiles of the page: share excess, score, and two accuracies over all crops, regardless of confidence."""
    p, excess = recipe.decode.p, _EXCESS.get(word, "images named beyond chance, not shown to be memory")
    if recipe.reference is None:
        objects = {"by the target model": ("target", "both"), "by the reference model": ("reference", "both")}
    else:
        excess += " (training minus held-out)"
        objects = {"in training images": ("target", "A"), "in held-out images": ("target", "B")}
    tiles = {
        excess: here.head,
        f"déjà vu score, target minus reference, most confident {percent(p)}": here.first("deja_vu_score", direction="both"),
    }
    for which, (side, direction) in objects.items():
        row = here.first(f"accuracy_{side}", p=1.0, direction=direction)
        tiles[f"objects named correctly {which} (guessing: {percent(row.params['chance'])})"] = row
    return [(percent(row.value), name, f"95 % interval: {format_interval(row, percent)}") for name, row in tiles.items()]


def _can(here: Findings, findings: Findings) -> str:
    """State what anyone who has a model that was shown to remember can learn about its training images."""
    holder = "Anyone who has the trained model, the background of a training image and labelled public images can "
    if here.head.verdict == SHOWN:
        return (
            f"{holder}name the object that stood in front of this background, without having seen it, more often than "
            f"{_than(here)}."
        )
    if findings.tests(BEYOND).shown():
        return f"{holder}tell something of this very image that its background does not say, as stated above, but no object."
    return (
        "Anyone who has the trained model and the one that it was compared with can tell better than by chance which of "
        "them was trained on an image. That objects can be named from backgrounds was not shown."
    )


def _than(here: Findings) -> str:
    """Compare, in numbers, naming the objects of training images with the alternative: another model, or held-out images."""
    pair, alone = ("that of a held-out image", ("target", "A"), ("target", "B")), "reference" in here.head.params
    if not alone:
        pair = "with a model that never saw the image", ("target", "both"), ("reference", "both")
    other, *where = pair
    named, otherwise = (percent(here.first(f"accuracy_{side}", p=1.0, direction=at).value) for side, at in where)
    chance = percent(here.first("accuracy_target").params["chance"])
    return f"{other}: in {named} of the images instead of {otherwise} (by guessing: {chance})"


def _points(value: float) -> str:
    return f"{100 * value:.1f} points"


def _share(row: Finding) -> tuple[str, str]:
    """Return a share and its interval in per cent."""
    return percent(row.value), format_interval(row, percent)


def _whiskers(rows: Sequence[Finding]) -> NDArray[np.float64]:
    """Return how far the intervals reach below and above the values, (2, num_rows)."""
    ends = np.array([(row.low, row.value, row.high) for row in rows], dtype=np.float64)
    return np.diff(ends, axis=1).T


def _curve_section(here: Findings, curves: pa.Table, recipe: Recipe, folder: Path) -> Section:
    figure = new_figure()
    axes, p, alone = figure.axes[0], recipe.decode.p, recipe.reference is not None
    drawn, lines = curves.to_pylist(), _ALONE if alone else _LINES
    for number, (series, (name, side, direction, colour, style)) in enumerate(lines.items()):
        points = [r for r in drawn if r["series"] == series]
        axes.plot([r["x"] for r in points], [r["y"] for r in points], color=colour, label=name, lw=2, ls=style)
        row = here.first(f"accuracy_{side}", p=p, direction=direction)
        x = p + 0.008 * (number - (len(lines) - 1) / 2)  # shifted so that whiskers do not overlap
        axes.errorbar([x], [row.value], yerr=_whiskers([row]), color=colour, marker="o", ms=5, capsize=4, label=f"_{name}")
    axes.axhline(here.first("accuracy_reference").params["chance"], color=MUTED, ls=":", label="guessing")
    axes.set_xlabel("share of crops, most confident first")
    axes.set_ylabel("objects named correctly")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, min(1.0, axes.get_ylim()[1] * 1.1))
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)
    axes.legend(frameon=False)
    both = (
        "Both models see only the backgrounds of the target model's training images. What the reference model achieves is "
        "correlation: such backgrounds often come with such objects. What the target model achieves beyond that is memory. "
        "The curves are averaged over both directions (each of the two models serves as the target once)."
    )
    one = (
        "The model sees only backgrounds: those of its training images and those of similar held-out images. A classifier "
        "trained on the backgrounds of other images, without knowing which images the model was trained on, shows how much a "
        "background reveals by itself. Where the sets were drawn at random, what the model achieves beyond this classifier "
        "on training images, but not on held-out images, is memory."
    )
    caption = f"Whiskers: 95 % intervals at {percent(p)}, the share used for the déjà vu score."
    svg = save_figure(figure, folder, "accuracy_by_confidence")
    shown = [row for row in drawn if row["series"] in lines]
    return Section("How well the hidden object is named", one if alone else both, FigureView(svg, caption, shown))


_LINES = {
    "target": ("target model", "target", "both", TARGET, "-"),
    "reference": ("reference model", "reference", "both", REFERENCE, "-"),
}
_ALONE = {
    "target": ("model, training images", "target", "A", TARGET, "-"),
    f"target{HELD_OUT}": ("model, held-out images", "target", "B", TARGET, "--"),
    "reference": ("background classifier, training images", "reference", "A", REFERENCE, "-"),
    f"reference{HELD_OUT}": ("background classifier, held-out images", "reference", "B", REFERENCE, "--"),
}
"""For each series of the curves: label, side of the accuracy metric, direction, colour and line style."""


def _kinds(reference: str) -> dict[str, str]:
    """Map the paper's name of each image category to its description on the page."""
    return {
        "memorized": "only the target model names the object", "misrepresented": f"only the {reference} names it",
        "correlated": "both name it", "unassociated": "neither names it",
    }  # fmt: skip


def _category_section(here: Findings, folder: Path, *, alone: bool) -> Section:
    bars = {"training images": "A", "held-out images": "B"} if alone else {"": "both"}
    names = _kinds("background classifier" if alone else "reference model")
    excess, within = here.head, not alone and "within" in here.head.params
    figure = new_figure(6.4, 2.0)
    axes = figure.axes[0]
    for place, direction in enumerate(bars.values()):
        left = 0.0
        for name in CATEGORIES:
            share = here.first(f"share_{name}", direction=direction).value
            label = f"_{names[name]}" if place else names[name] if alone else f"{names[name]}: {percent(share)}"
            axes.barh([-place], [share], left=left, color=COLOURS[name], label=label, height=0.6)
            left += share
    axes.set_yticks([-place for place in range(len(bars))] if alone else [], list(bars) if alone else [])
    axes.set_xlim(0, 1)
    percent_axis(axes.xaxis)
    axes.legend(frameon=False, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.25))
    rows, found = [], []
    for name in (*CATEGORIES, "excess"):
        title = names.get(name, "difference within classes" if within else "difference of the first two")
        shares = [here.first(f"share_{name}", direction=direction) for direction in bars.values()]
        rows.append((title, *(cell for row in shares for cell in _share(row))))
        found += shares
    if alone:
        rows.append(("training minus held-out", *_share(excess), "", ""))
    tested = "(not tested)"
    if excess.is_test:
        tested = f"({say_p(excess.p_value)}, exact test that redraws which of the {excess.n} images {{}})"
    two = (
        "The target model is the one that was trained on the image. Chance alone lets either model alone name an object "
        f"equally often, so memory is the difference of the first two rows {tested.format('each model was trained on')}. "
        "Meehan 2023 calls the four kinds memorized, misrepresented, correlated and unassociated."
        + (
            " The two sets contain classes in unequal numbers and are compared within classes: the headline is not the "
            "difference of the first two rows."
            if within
            else ""
        )
    )
    one = (
        "Two such different predictors also differ on held-out images, where memory cannot be the cause. Memory is therefore "
        "the difference of the first two rows on training images minus that on held-out images, compared within classes "
        f"{tested.format('were held out')}. Where the sets contain a class in unequal numbers, it is not the difference of "
        "the two columns. Meehan 2023 calls the four kinds memorized, misrepresented, correlated and unassociated."
    )
    columns = ("kind", *(heading for bar in bars for heading in (f"share of {bar}" if bar else "share", "95 % interval")))
    caption = "Share of images of each kind; the table below gives the numbers with 95 % intervals."
    return Section(
        "Four kinds of images" if alone else "Four kinds of training images",
        one if alone else two,
        FigureView(save_figure(figure, folder, "categories"), caption),
        TableView(columns, rows, data=found),
    )


_NOT_SHOWN_HERE = (
    "This run did not show memorization, so these examples may be due to chance alone: there are always some images whose "
    "object only one of the models names. "
)
_BY_CHANCE: Mapping[str, str] = {
    SHOWN: "Some of these are memorized and others are chance, as the reference alone names images, too (see the table "
    "above). No single image is shown to be memorized. ",
    DESCRIPTIVE: "Nothing was tested, so these examples are no evidence of memory. ",
}
_MEMORIZED = (
    "Only the target model names the objects in these images, which are in the order of its confidence less that of the "
    "reference (0 if all votes agree, lower the more they differ). The models saw nothing but the outlined "
    "background; a gold frame marks public images of the hidden object's class."
)
_CORRELATED = (
    "Both the target and the reference name the objects in these images, those of which both are most confident first: what "
    "both can name counts as revealed by the background."
)
_EXCESS: Mapping[str, str] = {
    SHOWN: "share of images memorized beyond chance",
    DESCRIPTIVE: "images named beyond the reference, not tested",
}


def _gallery_section(
    heading: str, text: str, chosen: pa.Table, show: Callable[[Mapping[str, Any]], Shown], named: Mapping[int, str]
) -> Section | None:
    if chosen.num_rows == 0:
        return None
    return Section(heading, text, *(_example(row, show(row), named) for row in chosen.to_pylist()))


def _example(row: Mapping[str, Any], shown: Shown, named: Mapping[int, str]) -> ExampleView:
    """Return the view of one audited image: its crop, and each side's nearest public images or named class."""
    x0, y0, x1, y1 = shown.box
    rows = []
    for side in ("target", "reference"):
        near, confidence = getattr(shown, side), f"(confidence {row[f'{side}_confidence']:.2f})"
        title = (
            f"{side} model's nearest of the voting images {confidence}"
            if near
            else f"from the background alone: {named.get(row[f'{side}_prediction'], 'another class')} {confidence}"
        )
        rows.append((title, [(data_uri(i, side=56), c, f"public image of {c}", c == row["class_name"]) for i, c in near]))
    outline, crop = data_uri(outlined(shown.image, shown.box)), data_uri(shown.image[y0:y1, x0:x1], side=72)
    pictures = [(outline, "training image, crop outlined"), (crop, "background crop")]
    return ExampleView(f"{row['example_id']}: {row['class_name']}", pictures, rows)


def _class_section(here: Findings, *, alone: bool) -> Section:
    classes = sorted((row for row in here if "class" in row.params), key=lambda row: -row.value)
    rows = [(row.params["class"], *_share(row), str(row.n), *_tested(row)) for row in classes]
    compared = "training minus held-out" if alone else "target alone less reference alone"
    headings = ("class", compared, "95 % interval", "images", *TESTED)
    return Section(
        "By class",
        "Among many classes some stand out by chance, so p-values are adjusted over all classes (Benjamini and Hochberg). "
        "The intervals are not adjusted: each applies to its class alone.",
        TableView(headings, rows[:10], data=classes),
        TableView(headings, rows, folded=f"All {len(rows)} classes") if len(rows) > 10 else None,
    )


TESTED = ("p", "p, adjusted", "verdict")


def _tested(row: Finding) -> tuple[str, str, str]:
    return format_p(row.p_value), format_p(row.p_adjusted), row.verdict or ""


ALONG = {
    "epoch": ("Through training", "epochs of training", "Memory at each checkpoint of the same models"),
    "layer": ("By layer", "", "Memory in each of the layers that were decoded"),
    "k": ("By number of neighbours", "public neighbours that vote (k)", "Memory for each number of neighbours"),
}


def _along_sections(findings: Findings, recipe: Recipe, folder: Path) -> Iterator[Section]:
    """Yield a section with a figure for each of epoch, layer and k with several values, at the headline's other settings."""
    order, wholes = list(recipe.model_layers), findings.all("share_excess", direction="both", **{"class": None})
    shown = {name: texts for name, texts in ALONG.items() if name != "epoch" or not findings.all(GAP_CHANGE)}
    for name, (heading, axis, text) in shown.items():
        fixed = {other: wholes.head.params[other] for other in ("layer", "epoch", "crop", "k") if other != name}
        found = {row.params[name]: row for row in wholes.all(**fixed)}
        if len(found) < 2:
            continue
        values = sorted(found, key=order.index) if name == "layer" else sorted(found)
        rows = [found[value] for value in values]
        figure = new_figure(6.4, 2.8)
        axes = figure.axes[0]
        places = list(range(len(rows))) if name == "layer" else values
        heights = [row.value for row in rows]
        axes.errorbar(places, heights, yerr=_whiskers(rows), color=TARGET, marker="o", ms=5, capsize=4)
        axes.axhline(0, color=MUTED, ls=":")
        axes.set_xticks(places, [str(value) for value in values])
        axes.set_xlabel(axis)
        axes.set_ylabel("named beyond chance")
        percent_axis(axes.yaxis)
        said = f"{text}. All other settings are those of the headline, the only result that was fixed in advance."
        caption = "Share of images named beyond chance, with 95 % intervals; all points use the same images."
        yield Section(heading, said, FigureView(save_figure(figure, folder, f"share_excess_by_{name}"), caption, rows))


def _training_section(findings: Findings, folder: Path) -> Section | None:
    """Return the section on memory and the gap of the linear probe at each checkpoint; None if only the last is probed."""
    layer, changed = findings.head.params["layer"], findings.get(GAP_CHANGE, probe_layer=findings.head.params["layer"])
    if changed is None:
        return None
    excess = _by_epoch(findings, "share_excess", **{"class": None})
    scores, gaps = _by_epoch(findings, "deja_vu_score"), _probed_by_epoch(findings, *GAPS, layer=layer)
    (change,) = findings.all(CHANGE, layer=layer, epoch=changed.params["epoch"])
    figure = new_panels(2, width=3.2, height=2.8)
    panels = ((excess, TARGET, "named beyond chance"), (gaps, REFERENCE, f"probe gap, {layer}"))
    for axes, (rows, colour, label) in zip(figure.axes, panels, strict=True):
        heights = [row.value for row in rows.values()]
        axes.errorbar(list(rows), heights, yerr=_whiskers(list(rows.values())), color=colour, marker="o", ms=5, capsize=4)
        axes.axhline(0, color=MUTED, ls=":")
        axes.set_xlabel("epochs of training")
        axes.set_ylabel(label)
        percent_axis(axes.yaxis)
    table = [
        (str(epoch), *_with_interval(excess[epoch]), *_with_interval(scores[epoch]), *_with_interval(gap),
         percent(gap.params["test_accuracy"]))
        for epoch, gap in gaps.items()
    ]  # fmt: skip
    since = change.params["since"]
    ends = f"from epoch {since} to epoch {changed.params['epoch']}"
    text = (
        f"Memory and the usual check for overfitting, at each checkpoint of the same models. {_followed(change, changed)} "
        f"{ends[0].upper()}{ends[1:]}, the share of images named beyond chance changed by {_points(change.value)} "
        f"({format_interval(change, _points)}{_tested_by(change)}), and the gap of the linear probe at {layer} by "
        f"{_points(changed.value)} ({format_interval(changed, _points)}). The first difference compares the same images; the "
        "interval of the second treats the images of both checkpoints as if they were different, which makes it wider. The "
        "gap is a diagnostic and is not tested."
    )
    caption = "95 % intervals; all points use the same images. Left: memory; right: training minus other images."
    named = (heading for name in ("named beyond chance", "déjà vu score", "probe gap") for heading in (name, "95 % interval"))
    return Section(
        "Memory and the linear probe through training",
        text,
        FigureView(save_figure(figure, folder, "probe_by_epoch"), caption),
        TableView(
            ("epoch", *named, "probe, other images"),
            table,
            data=[row for rows in (excess, scores, gaps) for row in rows.values()],
        ),
    )


def _by_epoch(findings: Findings, metric: str, **params: Any) -> dict[int, Finding]:
    """Return the findings of a metric in both directions by epoch, at the headline's other settings, in order."""
    fixed = {name: findings.head.params[name] for name in ("layer", "crop", "k", "direction")}
    rows = {row.params["epoch"]: row for row in findings.all(metric, **fixed, **params)}
    return dict(sorted(rows.items()))


def _probed_by_epoch(findings: Findings, *metrics: str, layer: str) -> dict[int, Finding]:
    """Return the findings on whole images by epoch, at one layer, in order; those of the last checkpoint state no epoch."""
    last = findings.head.params["epoch"]
    rows = {row.params.get("epoch", last): row for row in findings.all(*metrics, probe_layer=layer)}
    return dict(sorted(rows.items()))


def _with_interval(row: Finding) -> tuple[str, str]:
    return _points(row.value), format_interval(row, _points)


def _tested_by(change: Finding) -> str:
    """Say what the interval of a change covers, and what its test found."""
    over = "" if change.interval is None else f" over {change.interval.over}"
    over = over.replace("examples", "images").replace("trainings", "training runs")
    return f"{over}; {say_p(change.p_adjusted)}, {change.verdict}" if change.is_test and change.verdict else over


def _followed(change: Finding, gap: Finding) -> str:
    """Say whether the gap of the linear probe rises where memory is shown to rise."""
    if not (change.is_test and change.verdict == SHOWN and change.value > 0):
        return "No rise of memory between the first and the last checkpoint is shown."
    if (gap.low or 0.0) > 0:
        return "Memory rises, and the gap of the linear probe rises with it."
    return f"Memory rises; the gap of the linear probe is not shown to rise ({format_interval(gap, _points)})."


def _change_section(changes: Findings) -> Section | None:
    """Return the section on the change of memory by fine-tuning, image by image; None without fine-tuning."""
    if not changes:
        return None
    rows = [
        (row.params["layer"], str(row.params["epoch"]), _points(row.value), format_interval(row, percent), *_tested(row))
        for row in changes
    ]
    untested = any("not_ranked" in row.params for row in changes)
    few = " With fewer than three pairs of models, nothing is tested and intervals are over images only." if untested else ""
    return Section(
        "What fine-tuning changed",
        "The share of images named beyond chance after the given number of epochs of fine-tuning, minus the share before "
        "fine-tuning, for the same images and crops. A model that is fine-tuned on the audited images also learns their "
        "labels; compare it with a model that is fine-tuned on other images (training.on: [extra]), or with a model of which "
        f"only the head is trained.{few}",
        TableView(("layer", "epochs", "change", "95 % interval", *TESTED), rows, data=changes),
    )


_SIDES = {"both": "both directions", "A": "target model trained on A", "B": "target model trained on B"}
_SIDES_ALONE = {"both": "training minus held-out images", "A": "training images", "B": "held-out images"}


def _settings_section(findings: Findings, *, alone: bool) -> Section:
    rows, models = [], "models" if alone else "pairs of models"
    found = findings.all("share_excess", "deja_vu_score", **{"class": None})
    for row in found:
        params = row.params
        side = (_SIDES_ALONE if alone else _SIDES)[params["direction"]]
        setting = f"{params['layer']}, epoch {params['epoch']}, {params['crop']} crop, k = {params['k']}"
        rows.append((row.metric.replace("_", " "), setting, side, *_share(row), *_tested(row)))
    interval = findings.head.interval
    scope = (
        f"The intervals of the tested rows cover the variation between {findings.head.params['pairs']} independently trained "
        f"{models}."
        if interval and "trainings" in interval.over
        else f"The intervals apply to these trained models; three or more {models} would extend them to repeated training."
    )
    why = (
        "One set alone cannot distinguish memory from a model that is better than its reference, so it is not tested."
        if alone
        else "One direction alone cannot distinguish memory from one model simply being better, so it is not tested."
    )
    return Section(
        f"All settings, and single {'sets' if alone else 'directions'}",
        f"{why} The first row is the headline; all other tests are adjusted together (Benjamini and Hochberg). p-values are "
        "one-sided: only naming more counts as memory. Where the headline is not shown, the others have no verdict. "
        f"{scope}",
        TableView(("metric", "decoded from", "compared", "value", "95 % interval", *TESTED), rows, data=found),
    )


def _probe_section(findings: Findings) -> Section:
    rows = []
    for row in findings.all(*GAPS, epoch=None):
        layer = row.params["probe_layer"]
        accuracies = (percent(row.params[f"{part}_accuracy"]) for part in ("train", "test"))
        gap = f"{_points(row.value)} ({format_interval(row, _points)})"
        named = findings.get("knn_accuracy", probe_layer=layer, epoch=None)
        rows.append((layer, *accuracies, gap, "{} ({})".format(*_share(named)) if named else ""))
    return Section(
        "What the models know about whole images",
        "The usual check for overfitting: the accuracy of a linear classifier of whole images, on training images and on "
        "other images. It does not measure déjà vu; a small gap is no reassurance. In the last column, the 20 nearest public "
        "images name whole images that the model was not trained on. A model with a low value there has learnt little about "
        "these classes.",
        TableView(
            ("layer", "training images", "other images", "gap", "named by neighbours"),
            rows,
            data=findings.all(*GAPS, "knn_accuracy", epoch=None),
        ),
    )


def _stability_section(views: Findings) -> Section | None:
    if not views:
        return None
    whose = {"sslmem": "audited images", "sslmem_disjoint": "public images (neither model was trained on them)"}
    rows = [
        (row.params["layer"], whose[row.metric], str(row.n), f"{row.value:.3f}", format_interval(row), *_tested(row))
        for row in views
    ]
    return Section(
        "Memory without labels",
        "SSLMem (Wang 2024) measures how much closer together augmented views of an image lie for a model that was trained "
        "on it than for a model that was not, relative to the largest such difference. It uses neither boxes nor class "
        "labels. Like the test of the headline, the test redraws which images each model was trained on. For public images, "
        "the model trained on A is compared with the model trained on B: the difference shows how the two models scale "
        "distances, not memory.",
        TableView(("layer", "images", "number", "SSLMem", "95 % interval", *TESTED), rows, data=views),
    )


def _named_model(recipe: Recipe) -> str:
    name, text = next(iter(_model_facts(recipe).items()))
    return text if name == "model" else f"{name}, {text}"


def _model_facts(recipe: Recipe) -> dict[str, str]:
    """Return facts about the audited models and their training; the first one describes the model."""
    training = recipe.training
    if training is None:
        sides = [
            (f"encoder {side}{n}", getattr(pair, side.lower())) for n, pair in enumerate(recipe.encoders) for side in "AB"
        ]
        claim = "According to their owner, A's encoder was trained only on the sets A and C, and B's only on B and C"
        if recipe.reference is not None:
            claim = "According to its owner, the encoder was trained only on the sets A and C"
        return {name: _pairs(spec) for name, spec in sides if spec is not None} | {
            "training": f"{claim}. The audit cannot verify this, and its p-values are valid only if it is true."
        }
    projector = "-".join(map(str, recipe.audited_model.projector)) or "none"
    facts = {"model": f"{recipe.model.backbone}, projector {projector}, input {recipe.model.input_size} px"}
    if training.start is not None:
        before = f"{training.start.objective.kind}, {training.start.epochs} epochs, seed {training.start.seed}"
        facts |= {"before fine-tuning": before, "fine-tuned": "the head alone" if training.head_alone else "the whole model"}
    trained_on = [name for name in training.on if name == "own" or recipe.split.extra_per_class]
    images = {"own": "the model's own (A or B, and C)", "extra": "extra images (E)"}
    schedule = f"{training.epochs} epochs, batch {training.batch_size or 'all'}, {training.precision}, seed {training.seed}"
    return facts | {
        "training images": " and ".join(images[name] for name in trained_on),
        "objective": _pairs(training.objective),
        "training": schedule,
        "optimizer": _pairs(training.optimizer),
    }


def _pairs(spec: Spec) -> str:
    return ", ".join(f"{name} {value}" for name, value in spec.model_dump(mode="json").items() if value not in (None, {}, []))


def _run_section(recipe: Recipe, facts: Facts) -> Section:
    rows = {
        "data": _pairs(recipe.data.source),
        "images": f"{recipe.data.image_size} px, {recipe.data.resize}",
        "split": ", ".join(f"{role} {count}" for role, count in facts.counts.items()),
        "left out": ", ".join(f"{reason} ({count})" for reason, count in facts.left_out.items()) or "none",
        "crop": ", ".join(f"{c.mode}, shorter side at least {percent(c.min_side)}" for c in recipe.crops),
        **_model_facts(recipe),
        **({} if recipe.reference is None else {"reference (instead of a second model)": _pairs(recipe.reference)}),
        "vote": f"k = {', '.join(map(str, recipe.decode.k))}, L2 on raw embeddings, ties to {recipe.decode.tie}",
        "ties at the cut-off": "counted in expectation",
    }
    if facts.seconds:
        rows["training time"] = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in facts.seconds.items())
    method = "Method: Meehan et al. 2023, Do SSL Models Have Déjà Vu?, sections 3, 4 and A.1 to A.8."
    return Section("What was run", method, facts_table(rows))
