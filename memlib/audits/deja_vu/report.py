"""Build the page of the déjà vu audit."""

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
from memlib.findings import SHOWN, verdict_of, with_params
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
from memlib.report.page import KINDS, GalleryItem, Page, Section, TableView, meaning_of
from memlib.specs import Spec

COLOURS = {"memorized": TARGET, "misrepresented": REFERENCE, "correlated": ACCENT, "unassociated": MUTED}


@dataclass(frozen=True)
class Shown:
    """What a gallery needs of one example.

    Attributes:
        image: (size, size, 3) uint8.
        box: the background crop, x0, y0, x1, y1.
        target, reference: the nearest public images under each model, with their class names.
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
    "What a stronger attacker would find: this one asks for the nearest public images alone.",
    "What the world tells everybody: an object that its background gives away (a boat on water) is not counted as memory.",
    "Memory of images that were not asked about, and of other parts of these than the crop.",
    "Other models: a verdict is about these trained models, or with several pairs about models trained like them.",
)


@dataclass(frozen=True)
class Facts:
    """What was run and on what, for the last section."""

    counts: Mapping[str, int]  # examples by role
    left_out: Mapping[str, int]  # examples by reason
    seconds: Mapping[str, float]  # training time by model


class Findings:
    """The summary, looked up by metric and params."""

    def __init__(self, summary: pa.Table) -> None:
        self.rows = with_params(summary)
        self.headline = self.rows[0]["params"]

    def get(self, metric: str, **params: Any) -> dict[str, Any]:
        """The row of a metric at the headline's layer, epoch, crop and k; both directions unless said otherwise."""
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
    """The page of a run; figures also go to `folder` as SVG and PNG.

    Args:
        recipe: what was run.
        run: its id.
        units: tables.UNITS, those of the headline among them.
        summary, curves: tables.SUMMARY and CURVES.
        facts: sizes and times.
        show: gives the pictures of a row of the units.
        folder: gets the figures.
    """
    findings = Findings(summary)
    said = verdict_of(findings.rows)
    first = findings.headline
    headline = {name: first[name] for name in ("layer", "epoch", "crop", "k")}
    for name, value in headline.items():
        units = units.filter(pc.field(name) == value)
    if recipe.reference is not None:
        units = units.filter(pc.field("direction") == "A")  # pictures are of training images
    sections = [
        _curve_section(findings, curves, headline, recipe, folder),
        _category_section(findings, recipe, folder),
        _gallery_section(
            "Most memorized" if said.word == SHOWN else "Named by the target model only",
            most_memorized(units, recipe.report.gallery),
            show,
            _MEMORIZED if said.word == SHOWN else _BY_CHANCE + _MEMORIZED,
            named=_named_classes(units),
        ),
        _gallery_section(
            "Most correlated",
            most_correlated(units, recipe.report.gallery),
            show,
            _CORRELATED,
            named=_named_classes(units),
        ),
        _class_section(findings),
        *_along_sections(findings, recipe, folder),
        _change_section(findings),
        _settings_section(findings, recipe),
        _probe_section(findings),
        _stability_section(findings),
        _run_section(recipe, facts),
    ]
    return Page(
        meaning=meaning_of(
            said.word,
            shown="Whoever has the trained model, the background of a training image and public images with labels can "
            "name the "
            "object that stood in front of it more often than chance allows, without having seen it.",
            bounded="Whoever has the trained model and the background of a training image names its object hardly more "
            "often than "
            "without the model: at most by the share given above.",
        ),
        limits=_NOT_SHOWN,
        terms=_TERMS,
        model=", ".join(_model_rows(recipe)[0]),
        title=recipe.title,
        audit="deja_vu",
        run=run,
        verdict=said.sentence,
        verdict_kind=KINDS[said.word],
        lead=said.explanation,
        numbers=[
            _number(findings.get("share_excess"), "share of images memorized beyond chance"),
            _number(findings.get("deja_vu_score", p=recipe.decode.p), f"déjà vu score at p = {_percent(recipe.decode.p)}"),
            *_accuracies(findings, recipe),
        ],
        sections=[section for section in sections if section is not None],
    )


def _accuracies(findings: Findings, recipe: Recipe) -> list[tuple[str, str, str]]:
    """Two of the page's numbers: who is right how often, whatever its confidence."""
    if recipe.reference is None:
        names = {"target accuracy, all crops": ("accuracy_target", "both")}
        names["reference accuracy, all crops"] = ("accuracy_reference", "both")
    else:
        names = {"objects named, training images": ("accuracy_target", "A")}
        names["objects named, held-out images"] = ("accuracy_target", "B")
    return [_number(findings.get(metric, p=1.0, direction=side), name) for name, (metric, side) in names.items()]


def _named_classes(units: pa.Table) -> dict[int, str]:
    """The names of classes of audited images, by label."""
    return dict(zip(units["label"].to_pylist(), units["class_name"].to_pylist(), strict=True))


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if abs(100 * value - round(100 * value)) > 0.05 else f"{100 * value:.0f} %"


def _points(value: float) -> str:
    return f"{100 * value:.1f} points"


def _interval(row: Mapping[str, Any]) -> str:
    return "" if row["ci_low"] is None else f"{_percent(row['ci_low'])} to {_percent(row['ci_high'])}"


def _number(row: Mapping[str, Any], name: str) -> tuple[str, str, str]:
    return _percent(row["value"]), name, f"95 %: {_interval(row)}"


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
        beside = recipe.decode.p + 0.008 * (number - (len(lines) - 1) / 2)  # so that no whisker hides another
        axes.errorbar([beside], [row["value"]], yerr=error, color=colour, marker="o", ms=5, capsize=4)
    chance = findings.get("accuracy_reference", p=1.0, direction="A" if alone else "both")["params"]["chance"]
    axes.axhline(chance, color=MUTED, ls=":", label="guessing")
    axes.set_xlabel("share of the most confident crops")
    axes.set_ylabel("objects named correctly")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, min(1.0, axes.get_ylim()[1] * 1.1))
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)
    axes.legend(frameon=False)
    both = (
        "Both models see only the background of the target's training images. What the reference achieves is "
        "correlation: such backgrounds often come with such objects. What the target achieves beyond it is memory. "
        "The curves are the mean of both directions (each model is once the target)."
    )
    one = (
        "The model sees only backgrounds, of its training images and of held-out images that are like them. A classifier "
        "that learnt from other images' backgrounds, and does not know which images the model trained on, says what a "
        "background gives away by itself. What the model achieves beyond it on training images, and not on held-out ones, is "
        "memory."
    )
    return Section(
        heading="How well the hidden object is named",
        paragraphs=[one if alone else both],
        svg=save_figure(figure, folder, "accuracy_by_confidence"),
        figure_caption=f"Whiskers: 95 % intervals at {_percent(recipe.decode.p)}, the share at which the score is taken.",
    )


_LINES = {
    "target": ("target model", "target", "both", TARGET, "-"),
    "reference": ("reference model", "reference", "both", REFERENCE, "-"),
}
_ALONE = {
    "target": ("model, training images", "target", "A", TARGET, "-"),
    f"target{HELD_OUT}": ("model, held-out images", "target", "B", TARGET, "--"),
    "reference": ("background's classifier, training images", "reference", "A", REFERENCE, "-"),
    f"reference{HELD_OUT}": ("background's classifier, held-out images", "reference", "B", REFERENCE, "--"),
}
"""Of each series of the curves: its name, whose accuracy it is, the direction, and how it is drawn."""


def _category_section(findings: Findings, recipe: Recipe, folder: Path) -> Section:
    alone = recipe.reference is not None
    bars = {"training images": "A", "held-out images": "B"} if alone else {"": "both"}
    figure = new_figure(6.4, 2.0)
    axes = figure.axes[0]
    for place, direction in enumerate(bars.values()):
        left = 0.0
        for name in CATEGORIES:
            share = findings.get(f"share_{name}", direction=direction)["value"]
            label = None if place else name if alone else f"{name} {_percent(share)}"
            axes.barh([-place], [share], left=left, color=COLOURS[name], label=label, height=0.6)
            left += share
    axes.set_yticks([-place for place in range(len(bars))] if alone else [], list(bars) if alone else [])
    axes.set_xlim(0, 1)
    percent_axis(axes.xaxis)
    axes.legend(frameon=False, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.25))
    rows = []
    for name in (*CATEGORIES, "excess"):
        title = "memorized - misrepresented" if name == "excess" else name
        found = [findings.get(f"share_{name}", direction=direction) for direction in bars.values()]
        rows.append((title, *(cell for row in found for cell in (_percent(row["value"]), _interval(row)))))
    excess = findings.get("share_excess")
    if alone:
        rows.append(("training minus held-out", _percent(excess["value"]), _interval(excess), "", ""))
    tested = "(not tested)"
    if excess["role"] == "test":
        tested = f"(p = {excess['p_value']:.2g}, exact: by redrawing which of {excess['n']} images {{}})"
    two = (
        "Memorized: only the model trained on the image names its object. Misrepresented: only the other one does, "
        "which is what chance alone produces. The honest share is the difference "
        f"{tested.format('each model trained on')}."
    )
    one = (
        "Memorized: only the model names the object, and the background's classifier does not. Misrepresented: only the "
        "classifier does. Two such different predictors differ on held-out images too, which cannot be memory; the honest "
        f"share is what is left when that is taken off {tested.format('were held out')}."
    )
    columns = ("images", *(heading for bar in bars for heading in (f"share of {bar}" if bar else "share", "95 % interval")))
    return Section(
        heading="Four kinds of images" if alone else "Four kinds of training images",
        paragraphs=[one if alone else two],
        svg=save_figure(figure, folder, "categories"),
        figure_caption="Share of images of each kind, of each model, with 95 % intervals over images.",
        table=TableView(columns, rows),
    )


_BY_CHANCE = (
    "This run did not show memorization, so these are examples of what chance alone produces: some images are always "
    "named by one model only. "
)
_MEMORIZED = (
    "Only the target model names these, and its confidence exceeds the reference's most. The outlined background is all "
    "that the models were shown; a gold frame marks public images of the hidden object's class."
)
_CORRELATED = "The target and the reference both name these with high confidence: the background itself tells."


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
                        f"{side} model's nearest public images (confidence {row[f'{side}_confidence']:.2f} nat)"
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


def _class_section(findings: Findings) -> Section:
    classes = [r for r in findings.rows if "class" in r["params"] and _same(r, findings)]
    classes.sort(key=lambda row: -row["value"])
    rows = [
        (
            row["params"]["class"],
            _percent(row["value"]),
            _interval(row),
            str(row["n"]),
            *_tested(row),
        )
        for row in classes
    ]
    view = TableView(("class", "memorized - misrepresented", "95 % interval", "images", *TESTED), rows)
    return Section(
        heading="By class",
        paragraphs=[
            "With many classes some stand out by chance, so p-values are adjusted over all of them (Benjamini and Hochberg); "
            "intervals are of each class alone."
        ],
        table=TableView(view.headings, rows[:10]),
        details=view if len(rows) > 10 else None,
        details_title=f"All {len(rows)} classes",
    )


TESTED = ("p", "p, adjusted", "verdict")


def _tested(row: Mapping[str, Any]) -> tuple[str, str, str]:
    if row["role"] != "test":
        return "", "", ""
    return f"{row['p_value']:.2g}", f"{row['p_adjusted']:.2g}", row["verdict"]


def _same(row: Mapping[str, Any], findings: Findings) -> bool:
    return all(row["params"].get(name) == findings.headline[name] for name in ("layer", "epoch", "crop", "k"))


ALONG = {
    "epoch": ("Through training", "epochs of training", "Memory at each checkpoint of the same models"),
    "layer": ("By layer", "", "Memory in each of the layers that were decoded"),
    "k": ("By number of neighbours", "public neighbours that vote (k)", "Memory for each number of neighbours"),
}


def _along_sections(findings: Findings, recipe: Recipe, folder: Path) -> Iterator[Section]:
    """A figure for each of epoch, layer and k of which several were decoded, all else as in the headline."""
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
        axes.set_ylabel("memorized beyond chance")
        percent_axis(axes.yaxis)
        yield Section(
            heading=heading,
            paragraphs=[f"{text}; everything else is as in the headline, which is the only one that was fixed beforehand."],
            svg=save_figure(figure, folder, f"share_excess_by_{name}"),
            figure_caption="Share of images memorized beyond chance, with 95 % intervals over the same images.",
        )


def _change_section(findings: Findings) -> Section | None:
    """What fine-tuning did to the memory, image by image."""
    rows = [
        (row["params"]["layer"], str(row["params"]["epoch"]), _points(row["value"]), _interval(row), *_tested(row))
        for row in findings.rows
        if row["metric"] == CHANGE
    ]
    if not rows:
        return None
    shown = any("not_ranked" in row["params"] for row in findings.rows if row["metric"] == CHANGE)
    few = " With fewer than three pairs of models nothing is tested, and intervals are over images alone." if shown else ""
    return Section(
        heading="What fine-tuning changed",
        paragraphs=[
            "The share of images memorized beyond chance after some epochs of fine-tuning, minus that before the first: the "
            "same images, the same crops. A model that is fine-tuned on the audited images also learns their labels; compare "
            f"it with one that is fine-tuned on other images (training.on: [extra]), or whose head alone is trained.{few}"
        ],
        table=TableView(("layer", "epochs", "change", "95 % interval", *TESTED), rows),
    )


_SIDES = {"both": "both directions", "A": "A trained the target", "B": "B trained the target"}
_SIDES_ALONE = {"both": "training minus held-out images", "A": "training images", "B": "held-out images"}


def _settings_section(findings: Findings, recipe: Recipe) -> Section:
    rows = []
    for row in findings.rows:
        params = row["params"]
        if row["metric"] not in ("share_excess", "deja_vu_score") or "class" in params:
            continue
        which = (_SIDES if recipe.reference is None else _SIDES_ALONE)[params["direction"]]
        at = f"{params['layer']}, epoch {params['epoch']}, {params['crop']} crop, k = {params['k']}"
        rows.append((row["metric"].replace("_", " "), at, which, _percent(row["value"]), _interval(row), *_tested(row)))
    pairs = findings.headline["pairs"]
    what = "pairs of models" if recipe.reference is None else "models"
    speaks = (
        f"The intervals of the tested rows cover {pairs} {what} that were trained apart."
        if "trainings" in findings.rows[0]["interval"]
        else f"The intervals hold for these trained models; three {what} or more would widen them to training itself."
    )
    why = (
        "One direction alone cannot tell memory from one model simply being better, so neither is tested."
        if recipe.reference is None
        else "Training images alone cannot tell memory from a model that is better than its reference: they are not tested."
    )
    return Section(
        heading="Every setting, and each direction alone"
        if recipe.reference is None
        else "Every setting, and each set alone",
        paragraphs=[
            f"{why} The first row is the headline; all other tests are adjusted together (Benjamini and Hochberg). {speaks}"
        ],
        table=TableView(("metric", "decoded from", "direction", "value", "95 % interval", *TESTED), rows),
    )


def _probe_section(findings: Findings) -> Section | None:
    found = [row for row in findings.rows if row["metric"].startswith("probe_gap")]
    named = {row["params"]["probe_layer"]: row for row in findings.rows if row["metric"] == "knn_accuracy"}
    rows = []
    for row in found:
        layer = row["params"]["probe_layer"]
        accuracies = (_percent(row["params"][f"{part}_accuracy"]) for part in ("train", "test"))
        gap = f"{_points(row['value'])} ({_points(row['ci_low'])} to {_points(row['ci_high'])})"
        knn = f"{_percent(named[layer]['value'])} ({_interval(named[layer])})" if layer in named else ""
        rows.append((layer, *accuracies, gap, knn))
    return Section(
        heading="What the models know of whole images",
        paragraphs=[
            "The usual check for overfitting: a linear classifier on whole images, on training images against others. It "
            "does not measure déjà vu; a small gap is no reassurance. The last column shows images that a model has not "
            "trained on, whole, and lets the 20 nearest public images name them: a model that cannot do that has learnt "
            "little about these classes, and what it does not know it cannot give away."
        ],
        table=TableView(("layer", "training images", "other images", "gap", "named by neighbours"), rows),
    )


def _stability_section(findings: Findings) -> Section | None:
    rows = []
    for row in findings.rows:
        if row["metric"] not in ("sslmem", "sslmem_disjoint"):
            continue
        images = "audited images" if row["metric"] == "sslmem" else "public images, which neither model trained on"
        interval = f"{row['ci_low']:.3f} to {row['ci_high']:.3f}"
        rows.append((row["params"]["layer"], images, str(row["n"]), f"{row['value']:.3f}", interval, *_tested(row)))
    if not rows:
        return None
    return Section(
        heading="Memory without labels",
        paragraphs=[
            "How much closer a model holds the augmented views of an image that it trained on than a model that did not "
            "(SSLMem, Wang 2024), in units of the largest difference. Neither boxes nor classes take part. The test redraws "
            "which images each model trained on, as the headline's does. For public images the first model is A's and the "
            "second B's: what differs there is how the two models are scaled, not memory."
        ],
        table=TableView(("layer", "images", "n", "SSLMem", "95 % interval", *TESTED), rows),
    )


def _model_rows(recipe: Recipe) -> list[tuple[str, str]]:
    """What the audited models are, and how they came about."""
    training = recipe.training
    if training is None:
        named = [
            (f"{side}{number}", getattr(pair, side.lower())) for number, pair in enumerate(recipe.encoders) for side in "AB"
        ]
        told = [(f"encoder {name}", _pairs(spec)) for name, spec in named if spec is not None]
        word = "That A's encoder was trained on the sets A and C alone, and B's on B and C, is what their owner says"
        if recipe.reference is not None:
            word = "That the encoder was trained on the sets A and C alone is what its owner says"
        return [*told, ("trained elsewhere", f"{word}: the audit cannot check it, and its p-values hold only if it is so.")]
    projector = "-".join(map(str, recipe.audited_model.projector)) or "none"
    started = []
    if training.start is not None:
        what = "the head alone" if training.head_alone else "the whole model"
        before = f"{training.start.objective.kind}, {training.start.epochs} epochs, seed {training.start.seed}"
        started = [("before fine-tuning", before), ("fine-tuned", what)]
    trained_on = [name for name in training.on if name == "own" or recipe.split.extra_per_class]
    images = {"own": "the model's own (A or B, and C)", "extra": "extra ones (E)"}
    return [
        ("model", f"{recipe.model.backbone}, projector {projector}, sees {recipe.model.input_size} px"),
        *started,
        ("trained on images", " and ".join(images[name] for name in trained_on)),
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
        ("crop", ", ".join(f"{c.mode}, shorter side at least {_percent(c.min_side)}" for c in recipe.crops)),
        *_model_rows(recipe),
        *([] if recipe.reference is None else [("in place of a second model", _pairs(recipe.reference))]),
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
