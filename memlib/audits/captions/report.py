"""The report page of an audit of image-text models."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from memlib.audits.captions.findings import EXCESS, GAP, TOP, UNIMPLIED
from memlib.audits.captions.gallery import Found, Shown
from memlib.audits.captions.recipe import NOT_SHOWN, Recipe
from memlib.findings import SHOWN, Finding, Findings
from memlib.pipeline.tables import Tables
from memlib.report.figures import MUTED, REFERENCE, TARGET, data_uri, new_figure, percent_axis, save_figure
from memlib.report.format import format_interval, format_p, percent
from memlib.report.page import Block, Content, ExampleView, FigureView, Section, TableView, facts_table
from memlib.report.spreadsheet import of_curves

SERIES = {"A": ("pairs of A", TARGET), "B": ("pairs of B", REFERENCE), "H": ("held out from both", MUTED)}
_ADVICE = (
    "Mask words of captions at random in training (training.objective.masked), remove copies of pairs, or train for fewer "
    "epochs; then audit again, and compare utility beside memory in a sweep."
)
_ADVICE_NOT_SHOWN = (
    "Do not take this for proof that nothing is remembered. Audit more pairs, or pairs that the model saw several times "
    "(dose), where memory is strongest."
)


def compose(recipe: Recipe, tables: Tables, shown: Sequence[Shown], folder: Path) -> Content:
    """Compose the content of a run's page, and save its figure to `folder`.

    Args:
        tables: tables of the run's scores.
        shown: pairs that the page shows.
    """
    findings = Findings.read(tables["summary"])
    is_found = findings.verdict.word == SHOWN
    return Content(
        meaning=_meaning(findings) if is_found else "",
        advice=_ADVICE if is_found else _ADVICE_NOT_SHOWN,
        limits=NOT_SHOWN,
        terms=("unnamed object", "population gap"),
        numbers=_numbers(findings),
        sections=[
            _gains(tables["curves"], findings, folder, has_reference=len(recipe.directions) > 1),
            _recalls(findings),
            _doses(findings),
            _settings(findings),
            _pairs(shown, recipe),
            Section(
                "What was run",
                "Method: déjà vu of image-text models (Jayaraman 2024), tested by redrawing the sides of the pairs.",
                facts_table(_facts(recipe, findings.head)),
            ),
        ],
    )  # fmt: skip


def _meaning(findings: Findings) -> str:
    right, other = (percent(findings.first(f"precision_{who}").value) for who in ("target", "reference"))
    return (
        "Whoever has the caption of a training image, the model, and labelled public images can name objects in the image "
        "that the caption does not mention, and is right more "
        f"often than without the model's memory: {right} of the named objects are in the image, {other} without memory."
    )


def _numbers(findings: Findings) -> list[tuple[str, str, str]]:
    head = findings.head
    rows = [(percent(head.value), f"excess recall of unnamed objects in {head.n:,} pairs", _interval(head))]
    for name, text in (
        ("recall_target", "of unnamed objects named by models trained on the pair"),
        ("recall_reference", "by models not trained on it" if findings.all(GAP) else "in pairs that were not trained on"),
        ("recall_words", "by the words of the caption alone"),
    ):
        if (row := findings.get(name)) is not None:
            rows.append((percent(row.value), text, _interval(row)))
    return rows


def _interval(row: Finding) -> str:
    return f"95 % interval over {row.interval.over}: {format_interval(row, percent)}" if row.interval else ""


def _cells(row: Finding) -> tuple[str, str, str]:
    return percent(row.value, 1), format_interval(row, lambda value: percent(value, 1)), f"{row.n:,}"


def _gains(curves: pa.Table, findings: Findings, folder: Path, *, has_reference: bool) -> Section:
    figure = new_figure()
    axes = figure.axes[0]
    for name, (label, colour) in SERIES.items():
        points = [(row["x"], row["y"]) for row in curves.to_pylist() if row["series"] == name]
        if points:
            axes.step(*zip(*points, strict=True), where="post", color=colour, lw=2, label=label)
    axes.set_ylim(0, 1.02)
    percent_axis(axes.yaxis)
    axes.set_xlabel(
        "recall under the model trained on A less recall under the model trained on B"
        if has_reference
        else "twice the recall under the model trained on A"
    )
    axes.set_ylabel("share of the pairs with at most this")
    axes.legend(frameon=False)
    caption = (
        "Gains of single pairs. Without memory, the lines of A and B coincide; a difference in quality between the models "
        "moves all lines alike, those of pairs held out from both included."
    )
    gaps = [(SERIES[row.params["direction"]][0], *_cells(row)) for row in findings.all(GAP)]
    return Section(
        "Gains by set",
        FigureView(save_figure(figure, folder, "gain_by_set"), caption, of_curves(curves, "gain_by_set")),
        "The paper's population gap: the share of pairs of which the model trained on A names more unnamed objects, less the "
        "share of which the model trained on B does. On held-out pairs it shows a difference in quality, and is not tested, "
        "as two honest trainings differ." if gaps else None,
        TableView(("set", "population gap", "95 % interval", "pairs"), gaps, data=findings.all(GAP)) if gaps else None,
    )  # fmt: skip


def _recalls(findings: Findings) -> Section:
    texts = {
        "target": "model trained on the pair",
        "reference": "model not trained on it" if findings.all(GAP) else "the same, pairs that were not trained on",
        "words": "words of the caption alone", "chance": "neighbours of another caption (chance)",
    }  # fmt: skip
    rows, shown = [], list[Finding]()
    for metric in ("recall", "precision", "f_score"):
        for who, text in texts.items():
            if (row := findings.get(f"{metric}_{who}")) is not None:
                shown.append(row)
                rows.append((metric.replace("f_score", "F"), text, *_cells(row)))
    for row in findings.all("named_recall"):
        shown.append(row)
        rows.append(("recall of named objects", texts[row.params["by"]], *_cells(row)))
    return Section(
        "Who names which objects",
        "Unnamed objects are those that the caption does not mention, in the singular, plural or by a synonym of the recipe.",
        TableView(("measure", "by", "mean", "95 % interval", "pairs"), rows, data=shown),
    )


def _doses(findings: Findings) -> Section | None:
    """Return the section on pairs that were trained on several times; None if there are none."""
    rows = [row for row in findings.all(EXCESS) if "copies" in row.params]
    if not rows:
        return None
    cells = [(str(row.params["copies"]), *_cells(row), format_p(row.p_adjusted)) for row in rows]
    return Section(
        "By number of copies",
        "Pairs on which a model was trained several times in each epoch, drawn before the sides were.",
        TableView(("copies", "excess", "95 % interval", "pairs", "p (Holm)"), cells, data=rows),
    )


def _settings(findings: Findings) -> Section:
    head = findings.head.params
    rows = [("all pairs of A and B", *_cells(findings.head))]
    rows += [("objects that the words do not imply", *_cells(row)) for row in findings.all(UNIMPLIED)]
    rows += [
        (f"captions nearest to a public image, {percent(row.params['top'])} of them", *_cells(row))
        for row in findings.all(TOP)
    ]
    others = [
        row for row in findings.all(EXCESS)
        if "copies" not in row.params and (row.params["epoch"], row.params["k"]) != (head["epoch"], head["k"])
    ]  # fmt: skip
    rows += [(f"epoch {row.params['epoch']}, k {row.params['k']}", *_cells(row)) for row in others]
    return Section(
        "Other settings",
        "Only the first row is tested. The key of the nearest captions is the distance under all models together, which does "
        "not see who was trained on what: pairs chosen by what was found in them show a gap without any memory.",
        TableView(
            ("pairs and setting", "excess", "95 % interval", "pairs"),
            rows,
            data=[findings.head, *findings.all(UNIMPLIED, TOP), *others],
        ),
    )


def _pairs(shown: Sequence[Shown], recipe: Recipe) -> Section | None:
    if not shown:
        return None
    views: list[Block] = [_view(one) for one in shown]
    rule = (
        f"The first {len(shown)} audited pairs by a hash of their ids, whatever was found, with the public images nearest "
        f"to their captions. {recipe.score.k[0]} such images vote; the objects with the most votes that the caption does not "
        "name are what a model names."
    )
    return Section("Pairs and what their captions retrieve", rule, *views)


def _view(one: Shown) -> ExampleView:
    unnamed = [name for name in one.objects if name not in one.named]
    caption = f"{one.example_id} (set {one.direction}): “{one.caption}”; not named: {', '.join(unnamed) or 'nothing'}"
    rows = [
        (_title(found, one), [(data_uri(image, side=56), "", "public image", False) for image in found.images])
        for found in one.found
    ]
    return ExampleView(caption, [(data_uri(one.image), "image of the pair")], rows)


def _title(found: Found, one: Shown) -> str:
    seen = "trained on this pair" if found.trained_on == one.direction else "not trained on it"
    right = [name for name in found.named if name in one.objects]
    return f"Model {found.trained_on}, {seen}: names {', '.join(found.named) or 'nothing'}; right: {len(right)}"


def _facts(recipe: Recipe, head: Finding) -> dict[str, str]:
    alone = "" if len(recipe.directions) > 1 else ", without a reference"
    facts = {"data": recipe.data.source.kind, "pairs of models": f"{len(recipe.encoders) or recipe.pairs}{alone}"}
    if recipe.training is None:
        facts["model"] = "external, " + " and ".join(sorted({pair.a.kind for pair in recipe.encoders}))
    else:
        masked = recipe.training.objective.masked
        facts["data"] += f", {recipe.split.budget:,} pairs for each model"
        facts["model"] = f"{recipe.model.image.backbone} and {recipe.model.text.architecture}"
        facts["training"] = f"{recipe.training.epochs} epochs, batch {recipe.training.batch_size}" + (
            f", {percent(masked)} of the words masked" if masked else ""
        )
    return facts | {
        "retrieval": f"{head.params['k']} public images, {head.params['objects']} objects named",
    }
