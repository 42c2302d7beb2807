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

from memlib.audits.deja_vu.curves import HELD_OUT, most_correlated, most_memorized
from memlib.audits.deja_vu.gains import CHANGE
from memlib.audits.deja_vu.recipe import Recipe
from memlib.audits.deja_vu.scores import CATEGORIES
from memlib.audits.deja_vu.verdict import percent
from memlib.findings import DESCRIPTIVE, SHOWN, verdict_of, with_params
from memlib.report.figures import (
    ACCENT,
    MUTED,
    REFERENCE,
    TARGET,
    data_uri,
    new_figure,
    outlined,
    percent_axis,
    save_figure,
)
from memlib.report.page import KINDS, GalleryItem, Page, Section, TableView, advice_of, meaning_of
from memlib.specs import Spec

COLOURS = {"memorized": TARGET, "misrepresented": REFERENCE, "correlated": ACCENT, "unassociated": MUTED}


@dataclass(frozen=True)
class Shown:
    """Pictures of one example for a gallery.

    Attributes:
        image: (size, size, 3) uint8.
        box: the background crop, x0, y0, x1, y1.
        target, reference: the nearest public images under each model, with their class names; reference is empty with a
            single model.
    """

    image: NDArray[np.uint8]
    box: tuple[int, int, int, int]
    target: Sequence[tuple[NDArray[np.uint8], str]]
    reference: Sequence[tuple[NDArray[np.uint8], str]]


_TERMS = (
    "target model", "reference model", "A, B, C, X", "crop", "kNN", "déjà vu score", "share excess", "SSLMem", "null",
    "p-value",
    "95 % interval", "power", "diagnostic", "checkpoint",
)  # fmt: skip
_NOT_SHOWN = (
    "What a stronger attacker would find: this attack uses only the nearest public images.",
    "What anyone could guess: an object that its background gives away (a boat on water) is not counted as memory.",
    "Memory of images outside the audit, or memory that only parts of an image other than the crop would bring out.",
    "Anything about other models: the verdict applies to these trained models or, with several pairs of models, to models "
    "trained in the same way.",
)


@dataclass(frozen=True)
class Facts:
    """Sizes and times of the run, for the last section."""

    counts: Mapping[str, int]  # examples by role
    left_out: Mapping[str, int]  # examples by reason
    seconds: Mapping[str, float]  # training time by model


class Findings:
    """The summary, with look-up by metric and params."""

    def __init__(self, summary: pa.Table) -> None:
        self.rows = with_params(summary)
        self.headline = self.rows[0]["params"]

    def get(self, metric: str, **params: Any) -> dict[str, Any]:
        """Return the row of a metric, by default at the headline's layer, epoch, crop and k and over both directions."""
        wanted = {name: self.headline[name] for name in ("layer", "epoch", "crop", "k")} | {"direction": "both"} | params
        for row in self.rows:
            same = all(row["params"].get(name) == value for name, value in wanted.items())
            if row["metric"] == metric and same and ("class" in row["params"]) == ("class" in params):
                return row
        raise KeyError(f"no {metric} with {wanted}")


def build_page(
    recipe: Recipe,
    run: str,
    units: pa.Table,
    summary: pa.Table,
    curves: pa.Table,
    facts: Facts,
    show: Callable[[Mapping[str, Any]], Shown],
    folder: Path,
) -> Page:
    """Return the page of a run, and save its figures to `folder` as SVG and PNG.

    Args:
        recipe: recipe of the run.
        run: id of the run.
        units: tables.UNITS, including those of the headline.
        summary, curves: tables.SUMMARY and CURVES.
        facts: sizes and times.
        show: returns the pictures for a row of the units.
        folder: receives the figures.
    """
    findings = Findings(summary)
    verdict = verdict_of(findings.rows)
    params = findings.headline
    headline = {name: params[name] for name in ("layer", "epoch", "crop", "k")}
    for name, value in headline.items():
        units = units.filter(pc.field(name) == value)
    if recipe.reference is not None:
        units = units.filter(pc.field("direction") == "A")  # pictures are of training images
    sections = [
        _curve_section(findings, curves, headline, recipe, folder),
        _category_section(findings, recipe, folder),
        _gallery_section(
            "Named by the target model only",
            most_memorized(units, recipe.report.gallery),
            show,
            _BY_CHANCE.get(verdict.word, _NOT_SHOWN_HERE) + _MEMORIZED,
            named=_named_classes(units),
        ),
        _gallery_section(
            "Most correlated",
            most_correlated(units, recipe.report.gallery),
            show,
            _CORRELATED,
            named=_named_classes(units),
        ),
        _class_section(findings, recipe),
        *_along_sections(findings, recipe, folder),
        _change_section(findings),
        _settings_section(findings, recipe),
        _probe_section(findings),
        _stability_section(findings),
        _run_section(recipe, facts),
    ]
    return Page(
        meaning=meaning_of(
            verdict.word,
            shown="Anyone who has the trained model, the background of a training image and labelled public images can "
            "name the object that stood in front of this background more often than chance allows, without having seen it.",
            bounded="Anyone who has the trained model and the background of a training image can name its object hardly more "
            "often than without the model: the gain is at most the share given above.",
        ),
        advice=advice_of(
            verdict.word,
            shown="Treat the model as confidentially as its training images. Fewer epochs, more images or differential "
            "privacy may reduce memory: change the training, and audit the new model again.",
            more="audit more of its training images, and more held-out ones that were drawn like them"
            if recipe.encoders
            else "",
        ),
        limits=_NOT_SHOWN,
        terms=_TERMS,
        model=", ".join(_model_rows(recipe)[0]),
        title=recipe.title,
        audit="deja_vu",
        run=run,
        verdict=verdict.sentence,
        verdict_kind=KINDS[verdict.word],
        lead=verdict.explanation,
        numbers=[
            _number(findings.get("share_excess"), _excess_in_words(verdict.word, alone=recipe.reference is not None)),
            _number(
                findings.get("deja_vu_score", p=recipe.decode.p), f"déjà vu score, most confident {percent(recipe.decode.p)}"
            ),
            *_accuracies(findings, recipe),
        ],
        sections=[section for section in sections if section is not None],
    )


def _excess_in_words(word: str, *, alone: bool) -> str:
    """Return the name of the first tile; with one model alone, it is a difference of training and held-out images."""
    return _EXCESS.get(word, "images named beyond chance, not shown to be memory") + (
        " (training minus held-out)" if alone else ""
    )


def _accuracies(findings: Findings, recipe: Recipe) -> list[tuple[str, str, str]]:
    """Return two tiles of the page: accuracies over all crops, regardless of confidence."""
    if recipe.reference is None:
        names = {"objects named correctly by the target model": ("accuracy_target", "both")}
        names["objects named correctly by the reference model"] = ("accuracy_reference", "both")
    else:
        names = {"objects named correctly in training images": ("accuracy_target", "A")}
        names["objects named correctly in held-out images"] = ("accuracy_target", "B")
    rows = {name: findings.get(metric, p=1.0, direction=side) for name, (metric, side) in names.items()}
    return [_number(row, f"{name} (guessing: {percent(row['params']['chance'])})") for name, row in rows.items()]


def _named_classes(units: pa.Table) -> dict[int, str]:
    """Return the class names of audited images by label."""
    return dict(zip(units["label"].to_pylist(), units["class_name"].to_pylist(), strict=True))


def _points(value: float) -> str:
    return f"{100 * value:.1f} points"


def _interval(row: Mapping[str, Any]) -> str:
    return "" if row["ci_low"] is None else f"{percent(row['ci_low'])} to {percent(row['ci_high'])}"


def _number(row: Mapping[str, Any], name: str) -> tuple[str, str, str]:
    return percent(row["value"]), name, f"95 % interval: {_interval(row)}"


def _curve_section(
    findings: Findings, curves: pa.Table, headline: Mapping[str, Any], recipe: Recipe, folder: Path
) -> Section:
    figure = new_figure()
    axes = figure.axes[0]
    params = json.dumps(dict(headline), sort_keys=True)
    alone = recipe.reference is not None
    drawn = curves.filter(pc.field("params") == params).to_pylist()
    lines = _ALONE if alone else _LINES
    for number, (series, (name, side, direction, colour, style)) in enumerate(lines.items()):
        points = [r for r in drawn if r["series"] == series]
        axes.plot([r["x"] for r in points], [r["y"] for r in points], color=colour, label=name, lw=2, ls=style)
        row = findings.get(f"accuracy_{side}", p=recipe.decode.p, direction=direction)
        error = [[row["value"] - row["ci_low"]], [row["ci_high"] - row["value"]]]
        x = recipe.decode.p + 0.008 * (number - (len(lines) - 1) / 2)  # shifted so that whiskers do not overlap
        axes.errorbar([x], [row["value"]], yerr=error, color=colour, marker="o", ms=5, capsize=4)
    chance = findings.get("accuracy_reference", p=1.0, direction="A" if alone else "both")["params"]["chance"]
    axes.axhline(chance, color=MUTED, ls=":", label="guessing")
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
    return Section(
        heading="How well the hidden object is named",
        paragraphs=[one if alone else both],
        svg=save_figure(figure, folder, "accuracy_by_confidence"),
        figure_caption=f"Whiskers: 95 % intervals at {percent(recipe.decode.p)}, the share used for the déjà vu score.",
    )


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
    """Return the kinds of images in words, by the paper's name."""
    return {
        "memorized": "only the target model names the object", "misrepresented": f"only the {reference} names it",
        "correlated": "both name it", "unassociated": "neither names it",
    }  # fmt: skip


def _category_section(findings: Findings, recipe: Recipe, folder: Path) -> Section:
    alone = recipe.reference is not None
    bars = {"training images": "A", "held-out images": "B"} if alone else {"": "both"}
    names = _kinds("background classifier" if alone else "reference model")
    within = not alone and "within" in findings.headline
    figure = new_figure(6.4, 2.0)
    axes = figure.axes[0]
    for place, direction in enumerate(bars.values()):
        left = 0.0
        for name in CATEGORIES:
            share = findings.get(f"share_{name}", direction=direction)["value"]
            label = None if place else names[name] if alone else f"{names[name]}: {percent(share)}"
            axes.barh([-place], [share], left=left, color=COLOURS[name], label=label, height=0.6)
            left += share
    axes.set_yticks([-place for place in range(len(bars))] if alone else [], list(bars) if alone else [])
    axes.set_xlim(0, 1)
    percent_axis(axes.xaxis)
    axes.legend(frameon=False, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.25))
    rows = []
    for name in (*CATEGORIES, "excess"):
        title = names.get(name, "difference within classes" if within else "difference of the first two")
        shares = [findings.get(f"share_{name}", direction=direction) for direction in bars.values()]
        rows.append((title, *(cell for row in shares for cell in (percent(row["value"]), _interval(row)))))
    excess = findings.get("share_excess")
    if alone:
        rows.append(("training minus held-out", percent(excess["value"]), _interval(excess), "", ""))
    tested = "(not tested)"
    if excess["role"] == "test":
        tested = f"(p = {excess['p_value']:.2g}, exact test that redraws which of the {excess['n']} images {{}})"
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
    return Section(
        heading="Four kinds of images" if alone else "Four kinds of training images",
        paragraphs=[one if alone else two],
        svg=save_figure(figure, folder, "categories"),
        figure_caption="Share of images of each kind; the table below gives the numbers with 95 % intervals.",
        table=TableView(columns, rows),
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
    "reference (minus the entropy of the votes, in nats: 0 if all agree). The models saw nothing but the outlined "
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
    heading: str,
    chosen: pa.Table,
    show: Callable[[Mapping[str, Any]], Shown],
    text: str,
    *,
    named: Mapping[int, str],
) -> Section | None:
    if chosen.num_rows == 0:
        return None
    items = []
    for row in chosen.to_pylist():
        shown = show(row)
        x0, y0, x1, y1 = shown.box
        items.append(
            GalleryItem(
                caption=f"{row['example_id']}: {row['class_name']}",
                image=data_uri(outlined(shown.image, shown.box)),
                crop=data_uri(shown.image[y0:y1, x0:x1], side=72),
                rows=[
                    (
                        f"{side} model's nearest of the voting images (confidence {row[f'{side}_confidence']:.2f} nat)"
                        if getattr(shown, side)
                        else f"from the background alone: {named.get(row[f'{side}_prediction'], 'another class')} "
                        f"(confidence {row[f'{side}_confidence']:.2f} nat)",
                        [(data_uri(i, side=56), name, name == row["class_name"]) for i, name in getattr(shown, side)],
                    )
                    for side in ("target", "reference")
                ],
            )
        )
    return Section(heading=heading, paragraphs=[text], gallery=items)


def _class_section(findings: Findings, recipe: Recipe) -> Section:
    classes = [r for r in findings.rows if "class" in r["params"] and _same(r, findings)]
    classes.sort(key=lambda row: -row["value"])
    rows = [
        (
            row["params"]["class"],
            percent(row["value"]),
            _interval(row),
            str(row["n"]),
            *_tested(row),
        )
        for row in classes
    ]
    compared = "target alone less reference alone" if recipe.reference is None else "training minus held-out"
    view = TableView(("class", compared, "95 % interval", "images", *TESTED), rows)
    return Section(
        heading="By class",
        paragraphs=[
            "Among many classes some stand out by chance, so p-values are adjusted over all classes (Benjamini and "
            "Hochberg). The intervals are not adjusted: each applies to its class alone."
        ],
        table=TableView(view.headings, rows[:10]),
        details=view if len(rows) > 10 else None,
        details_title=f"All {len(rows)} classes",
    )


TESTED = ("p", "p, adjusted", "verdict")


def _tested(row: Mapping[str, Any]) -> tuple[str, str, str]:
    if row["role"] != "test":
        return "", "", ""
    return f"{row['p_value']:.2g}", f"{row['p_adjusted']:.2g}", row["verdict"] or ""


def _same(row: Mapping[str, Any], findings: Findings) -> bool:
    return all(row["params"].get(name) == findings.headline[name] for name in ("layer", "epoch", "crop", "k"))


ALONG = {
    "epoch": ("Through training", "epochs of training", "Memory at each checkpoint of the same models"),
    "layer": ("By layer", "", "Memory in each of the layers that were decoded"),
    "k": ("By number of neighbours", "public neighbours that vote (k)", "Memory for each number of neighbours"),
}


def _along_sections(findings: Findings, recipe: Recipe, folder: Path) -> Iterator[Section]:
    """Yield one figure each for epoch, layer and k if several values were decoded, with the headline's other settings."""
    order = list(recipe.model_layers)
    for name, (heading, axis, text) in ALONG.items():
        values = {
            row["params"][name] for row in findings.rows if row["metric"] == "share_excess" and "class" not in row["params"]
        }
        if len(values) < 2:
            continue
        ordered = sorted(values, key=order.index) if name == "layer" else sorted(values)
        rows = [findings.get("share_excess", **{name: value}) for value in ordered]
        figure = new_figure(6.4, 2.8)
        axes = figure.axes[0]
        places = list(range(len(rows))) if name == "layer" else ordered
        low, high = ([abs(row[end] - row["value"]) for row in rows] for end in ("ci_low", "ci_high"))
        axes.errorbar(places, [row["value"] for row in rows], yerr=[low, high], color=TARGET, marker="o", ms=5, capsize=4)
        axes.axhline(0, color=MUTED, ls=":")
        axes.set_xticks(places, [str(value) for value in ordered])
        axes.set_xlabel(axis)
        axes.set_ylabel("named beyond chance")
        percent_axis(axes.yaxis)
        yield Section(
            heading=heading,
            paragraphs=[f"{text}. All other settings are those of the headline, the only result that was fixed in advance."],
            svg=save_figure(figure, folder, f"share_excess_by_{name}"),
            figure_caption="Share of images named beyond chance, with 95 % intervals; all points use the same images.",
        )


def _change_section(findings: Findings) -> Section | None:
    """Return the section on the change of memory by fine-tuning, image by image; None without fine-tuning."""
    rows = [
        (row["params"]["layer"], str(row["params"]["epoch"]), _points(row["value"]), _interval(row), *_tested(row))
        for row in findings.rows
        if row["metric"] == CHANGE
    ]
    if not rows:
        return None
    untested = any("not_ranked" in row["params"] for row in findings.rows if row["metric"] == CHANGE)
    few = " With fewer than three pairs of models, nothing is tested and intervals are over images only." if untested else ""
    return Section(
        heading="What fine-tuning changed",
        paragraphs=[
            "The share of images named beyond chance after the given number of epochs of fine-tuning, minus the share "
            "before fine-tuning, for the same images and crops. A model that is fine-tuned on the audited images also learns "
            "their labels; compare it with a model that is fine-tuned on other images (training.on: [extra]), or with "
            f"a model of which only the head is trained.{few}"
        ],
        table=TableView(("layer", "epochs", "change", "95 % interval", *TESTED), rows),
    )


_SIDES = {"both": "both directions", "A": "target model trained on A", "B": "target model trained on B"}
_SIDES_ALONE = {"both": "training minus held-out images", "A": "training images", "B": "held-out images"}


def _settings_section(findings: Findings, recipe: Recipe) -> Section:
    rows = []
    for row in findings.rows:
        params = row["params"]
        if row["metric"] not in ("share_excess", "deja_vu_score") or "class" in params:
            continue
        side = (_SIDES if recipe.reference is None else _SIDES_ALONE)[params["direction"]]
        setting = f"{params['layer']}, epoch {params['epoch']}, {params['crop']} crop, k = {params['k']}"
        rows.append((row["metric"].replace("_", " "), setting, side, percent(row["value"]), _interval(row), *_tested(row)))
    pairs = findings.headline["pairs"]
    models = "pairs of models" if recipe.reference is None else "models"
    scope = (
        f"The intervals of the tested rows cover the variation between {pairs} independently trained {models}."
        if "trainings" in findings.rows[0]["interval"]
        else f"The intervals apply to these trained models; three or more {models} would extend them to repeated training."
    )
    why = (
        "One direction alone cannot distinguish memory from one model simply being better, so it is not tested."
        if recipe.reference is None
        else "One set alone cannot distinguish memory from a model that is better than its reference, so it is not tested."
    )
    return Section(
        heading="All settings, and single directions" if recipe.reference is None else "All settings, and single sets",
        paragraphs=[
            f"{why} The first row is the headline; all other tests are adjusted together (Benjamini and Hochberg). p-values "
            "are one-sided: only naming more counts as memory. Where the headline is not shown, the others have no verdict. "
            f"{scope}"
        ],
        table=TableView(("metric", "decoded from", "compared", "value", "95 % interval", *TESTED), rows),
    )


def _probe_section(findings: Findings) -> Section | None:
    gaps = [row for row in findings.rows if row["metric"].startswith("probe_gap")]
    named = {row["params"]["probe_layer"]: row for row in findings.rows if row["metric"] == "knn_accuracy"}
    rows = []
    for row in gaps:
        layer = row["params"]["probe_layer"]
        accuracies = (percent(row["params"][f"{part}_accuracy"]) for part in ("train", "test"))
        gap = f"{_points(row['value'])} ({_points(row['ci_low'])} to {_points(row['ci_high'])})"
        knn = f"{percent(named[layer]['value'])} ({_interval(named[layer])})" if layer in named else ""
        rows.append((layer, *accuracies, gap, knn))
    return Section(
        heading="What the models know about whole images",
        paragraphs=[
            "The usual check for overfitting: the accuracy of a linear classifier of whole images, on training images and on "
            "other images. It does not measure déjà vu; a small gap is no reassurance. In the last column, the 20 nearest "
            "public images name whole images that the model was not trained on. A model with a low value there has learnt "
            "little about these classes."
        ],
        table=TableView(("layer", "training images", "other images", "gap", "named by neighbours"), rows),
    )


def _stability_section(findings: Findings) -> Section | None:
    rows = []
    for row in findings.rows:
        if row["metric"] not in ("sslmem", "sslmem_disjoint"):
            continue
        images = "audited images" if row["metric"] == "sslmem" else "public images (neither model was trained on them)"
        interval = f"{row['ci_low']:.3f} to {row['ci_high']:.3f}"
        rows.append((row["params"]["layer"], images, str(row["n"]), f"{row['value']:.3f}", interval, *_tested(row)))
    if not rows:
        return None
    return Section(
        heading="Memory without labels",
        paragraphs=[
            "SSLMem (Wang 2024) measures how much closer together augmented views of an image lie for a model that was "
            "trained on it than for a model that was not, relative to the largest such difference. It uses neither boxes nor "
            "class labels. Like the test of the headline, the test redraws which images each model was trained on. For "
            "public images, the model trained on A is compared with the model trained on B: the difference shows how the two "
            "models scale distances, not memory."
        ],
        table=TableView(("layer", "images", "number", "SSLMem", "95 % interval", *TESTED), rows),
    )


def _model_rows(recipe: Recipe) -> list[tuple[str, str]]:
    """Return table rows on the audited models and their training; the first row describes the model."""
    training = recipe.training
    if training is None:
        named = [
            (f"{side}{number}", getattr(pair, side.lower())) for number, pair in enumerate(recipe.encoders) for side in "AB"
        ]
        rows = [(f"encoder {name}", _pairs(spec)) for name, spec in named if spec is not None]
        claim = "According to their owner, A's encoder was trained only on the sets A and C, and B's only on B and C"
        if recipe.reference is not None:
            claim = "According to its owner, the encoder was trained only on the sets A and C"
        return [*rows, ("training", f"{claim}. The audit cannot verify this, and its p-values are valid only if it is true.")]
    projector = "-".join(map(str, recipe.audited_model.projector)) or "none"
    started = []
    if training.start is not None:
        part = "the head alone" if training.head_alone else "the whole model"
        before = f"{training.start.objective.kind}, {training.start.epochs} epochs, seed {training.start.seed}"
        started = [("before fine-tuning", before), ("fine-tuned", part)]
    trained_on = [name for name in training.on if name == "own" or recipe.split.extra_per_class]
    images = {"own": "the model's own (A or B, and C)", "extra": "extra images (E)"}
    return [
        ("model", f"{recipe.model.backbone}, projector {projector}, input {recipe.model.input_size} px"),
        *started,
        ("training images", " and ".join(images[name] for name in trained_on)),
        ("objective", _pairs(training.objective)),
        (
            "training",
            f"{training.epochs} epochs, batch {training.batch_size or 'all'}, {training.precision}, seed {training.seed}",
        ),
        ("optimizer", _pairs(training.optimizer)),
    ]


def _pairs(spec: Spec) -> str:
    return ", ".join(f"{name} {value}" for name, value in spec.model_dump(mode="json").items() if value not in (None, {}, []))


def _run_section(recipe: Recipe, facts: Facts) -> Section:
    source = recipe.data.source.model_dump(mode="json")
    rows = [
        ("data", ", ".join(f"{name} {value}" for name, value in source.items() if value not in (None, {}, []))),
        ("images", f"{recipe.data.image_size} px, {recipe.data.resize}"),
        ("split", ", ".join(f"{role} {count}" for role, count in facts.counts.items())),
        ("left out", ", ".join(f"{reason} ({count})" for reason, count in facts.left_out.items()) or "none"),
        ("crop", ", ".join(f"{c.mode}, shorter side at least {percent(c.min_side)}" for c in recipe.crops)),
        *_model_rows(recipe),
        *([] if recipe.reference is None else [("reference (instead of a second model)", _pairs(recipe.reference))]),
        ("vote", f"k = {', '.join(map(str, recipe.decode.k))}, L2 on raw embeddings, ties to {recipe.decode.tie}"),
        ("ties at the cut-off", "counted in expectation"),
    ]
    if facts.seconds:
        rows.append(("training time", ", ".join(f"{name} {seconds:.0f} s" for name, seconds in facts.seconds.items())))
    return Section(
        heading="What was run",
        paragraphs=["Method: Meehan et al. 2023, Do SSL Models Have Déjà Vu?, sections 3, 4 and A.1 to A.8."],
        table=TableView(("", ""), rows),
    )
