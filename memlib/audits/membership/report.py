"""The page of a membership audit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.membership.recipe import MEMBERS, NOT_SHOWN, Recipe
from memlib.audits.membership.sections import (
    asked_section,
    declared_section,
    hidden_section,
    persons_section,
    slices_section,
    structure_section,
)
from memlib.audits.membership.verdict import BLIND, NAMES, is_only_declared, reached, shows_alone
from memlib.data.splits import HELD_OUT, TRAIN
from memlib.findings import DESCRIPTIVE, SHOWN, Finding, Findings
from memlib.report.figures import INK, MUTED, REFERENCE, TARGET, data_uri, new_figure, percent_axis, plain_ticks, save_figure
from memlib.report.format import format_interval, format_p, format_value, percent, say_p
from memlib.report.page import (
    Content,
    FigureView,
    PicturesView,
    Section,
    TableView,
    advice_of,
    facts_table,
    filled,
    first_words,
    meaning_of,
)
from memlib.report.spreadsheet import columns_of, of_curves
from memlib.specs import OwnSpec

DASHES: Sequence[Any] = (
    "-",
    "--",
    "-.",
    (0, (1, 1)),
    (0, (5, 1, 1, 1, 1, 1)),
    (0, (8, 2)),
    (0, (2, 2)),
    (0, (1, 3)),
    (0, (4, 4)),
)
"""Dashes of the attacks' curves: colours alone do not tell seven curves apart."""
COLOURS = (TARGET, REFERENCE, "#5f8f6b", "#b07d2b", "#7a3b9a", INK, MUTED, "#2aa198", "#a0522d")  # one per attack
SMALLEST_RATE = 1e-3  # of false alarms that is drawn, where non-members are many
LEAD_WORDS = 45  # of the box of the verdict; the rest follows below
ENOUGH = 64  # shadow models from which more of them add little
LISTED = 25  # units and pairs that are listed
_TERMS = ("shadow model", "member", "AUC", "true alarms", "memorization", "epsilon", "LiRA", "RMIA")
_METHOD = (
    "Method: shadow models are trained like the target, each on examples (persons) that were drawn by independent coins. "
    "LiRA (Carlini et al. 2022) compares the target's log odds with normal laws fitted to models that were and were not "
    "trained on the example, with variances shrunk to their common value; RMIA (Zarifzadeh et al. 2024) divides its "
    "confidence by the mean confidence of all models, and ranks as that ratio does, like BASE (Lassila et al. 2025). "
    "Offline attacks use only models that were not trained on the example. Thresholds are order statistics of the "
    "non-members, never quantiles of a fitted law. Tests redraw the target's coins within classes, small ones together where "
    "each example had a coin of its own; all attacks share one level (max-T, Westfall and Young 1993)."
)
_WITHOUT_SHADOWS = (
    "Method: examples are ranked by the target's own answers alone, without shadow models: by the loss, by right answers, "
    "or by scores that were given. Thresholds are order statistics of the non-members. Tests redraw the declared draw "
    "within classes, small ones together where each example had a coin of its own; all attacks share one level (max-T, "
    "Westfall and Young 1993)."
)
_OF_TEXTS = (
    "Method: scores are of a document's own tokens, in windows that hold nothing else. The log ratio compares the "
    "document's mean log probability with that under the pretrained model or, without one, with its mean under shadow "
    "models that were not trained on it; the error zone (EZ, Ilic et al. 2026) adds up what single tokens gain beside the "
    "pretrained model, over what they lose, where the target's likeliest token is wrong; windows (WBC, Chen et al. 2026) are "
    "the share of runs of tokens with a gain; Min-K%++ (Zhang et al. 2024) is the mean of the lowest log probabilities, "
    "standardized over the vocabulary at each place; the zlib ratio (Carlini et al. 2021) divides by the compressed size. "
    "Shadow models are trained like the target, each on documents drawn by independent coins. Thresholds are order "
    "statistics of the non-members. Tests redraw the target's coins; all attacks share one level (max-T, Westfall and Young "
    "1993)."
)
_ADVICE = (
    "The model's answers tell something of its training examples: limit who can query it and how exact its answers are, or "
    "train it again (on more data, as a simpler model, with differential privacy or, where there are epochs, fewer of them), "
    "and audit the new model."
)


def compose(
    recipe: Recipe,
    tables: Mapping[str, pa.Table],
    show: Callable[[str], NDArray[np.uint8] | None],
    sizes: Mapping[str, int],
    folder: Path,
) -> Content:
    """Compose the content of a run's page, and save its figures to `folder`.

    Args:
        tables: units, examples, models, summary, curves and, if there is any, influence.
        show: function that returns the picture of an example; None if it is no image.
        sizes: number of examples of each role.
    """
    findings = Findings.read(tables["summary"])
    word = findings.verdict.word
    lead, rest = first_words(findings.verdict.explanation, LEAD_WORDS)
    method = _OF_TEXTS if recipe.reads_texts else _METHOD if recipe.shadows.count else _WITHOUT_SHADOWS
    return Content(
        meaning=meaning_of(
            word,
            shown=_can(findings) if not is_only_declared(findings) else f"If the declaration is true: {_can(findings)}",
            bounded="Anyone who attacks the model as was done here, and accuses no more non-members than stated, names at "
            "most the stated part of the members (95 % limits). That may include every one of a few whom the model remembers "
            "well.",
        ),
        advice=_advice(word, findings, recipe),
        limits=NOT_SHOWN, terms=_TERMS, model=_model(recipe), lead=lead, numbers=_numbers(findings, recipe), first=2,
        sections=[
            _attacks_section(findings, tables["curves"], folder),
            _units_section(tables["units"], findings, recipe),
            Section("How the verdict was reached", rest, is_folded=True) if rest else None,
            _scores_section(recipe, tables["curves"], folder),
            slices_section(findings, recipe),
            persons_section(findings),
            hidden_section(findings),
            declared_section(findings),
            _blind_section(findings),
            _privacy_section(findings, recipe),
            _memorization_section(findings, tables.get("examples"), tables["units"], show, recipe),
            _influence_section(findings, tables.get("influence"), show),
            structure_section(findings),
            asked_section(findings),
            _models_section(findings, tables["models"], recipe),
            Section("What was run", method, facts_table(_facts(recipe, sizes, findings))),
        ],
    )  # fmt: skip


def _can(findings: Findings) -> str:
    """State what anyone can learn who attacks a model of which memory, or a refuted claim, was shown."""
    if not findings.tests(MEMBERS).shown():
        return (
            "Whoever can query the model as was done here learns more about whether someone was in its training set than the "
            "claim allows. The test of all attacks together did not show by itself that they tell members from non-members."
        )
    parts = []
    if shows_alone(findings, "auc"):
        parts.append("of examples whether they were in its training set, with fewer errors than by guessing")
    if shows_alone(findings, "tail") or not parts:
        parts.append("in which group of examples, those with the highest scores, there are more members than by chance")
    return f"Whoever can attack the model as was done here can say {'; and '.join(parts)}."


def _advice(word: str, findings: Findings, recipe: Recipe) -> str:
    declared = findings.get("declared_draw")
    if word == DESCRIPTIVE and declared is not None and declared.params["contradicted"]:
        return (
            "Ask the owner of the model how members were chosen, and whether records or labels were changed since. A "
            "contradicted declaration is no proof of a false statement, and these numbers are no evidence of memory or of "
            "its absence."
        )
    more = (
        "train more shadow models (shadows.count), and list more members and non-members" if recipe.target.is_external else ""
    )
    if findings.all("likeness", word="unlike"):
        more = (
            "first check that the right model's outputs were given, and train shadow models as it was trained (model, "
            "training, shadows.share): those of this audit are unlike it, and more of their kind will not help"
        )
    return advice_of(word, shown=_ADVICE, more=more)


def _model(recipe: Recipe) -> str:
    target = recipe.target
    if target.trained is not None:
        return getattr(target.trained, "model", "") or getattr(target.trained, "path", "")
    if target.outputs is not None:
        return "an external model, by its outputs"
    model = recipe.model
    return getattr(model, "architecture", "") or getattr(model, "model", "") or getattr(model, "kind", "")


def as_declared(recipe: Recipe) -> str:
    """Return a reservation about coins that memlib did not toss."""
    return ", if the coins are as declared" if recipe.target.is_external else ""


def _numbers(findings: Findings, recipe: Recipe) -> list[tuple[str, str, str]]:
    """Return the page's tiles (number, label, detail): AUC, true alarms and, if there is one, the bound of epsilon."""
    head = findings.head
    attack = head.params["attack"]
    tiles = [(f"{head.value:.3f}", f"AUC, {NAMES[attack]}", _interval(head))]
    for row in findings.all("true_alarms", attack=attack):
        tiles.append((percent(row.value), f"of members above what {reached(row)}", _interval(row, percent)))
    above = findings.get("above_all", attack=attack)
    if above is not None:
        over = f"of members above all {above.params['nonmembers']:,} non-members"
        tiles.append((percent(above.value), over, _interval(above, percent)))
    bound = findings.get("epsilon_lower_bound")
    if bound is not None and bound.value > 0:
        most = f"at most {bound.params['ceiling']:.2f} could have been shown"
        tiles.append((f"{bound.value:.2f}", f"epsilon at least, per {bound.params['unit']}{as_declared(recipe)}", most))
    return tiles


def _interval(row: Finding, show: Callable[[float], str] = "{:.2f}".format) -> str:
    return f"95 %: {format_interval(row, show)}"


def _attacks_section(findings: Findings, curves: pa.Table, folder: Path) -> Section:
    rows = findings.all("auc")
    rates = list(dict.fromkeys(row.params["false_alarms"] for row in findings.all("true_alarms")))
    headings = (
        "attack", "AUC (95 %)", "adjusted p", *(f"named, threshold for {percent(rate)}" for rate in rates),
        "above all non-members",
    )  # fmt: skip
    cells = [_attack_cells(row, findings, rates) for row in rows]
    nonmembers = rows[0].params["nonmembers"]
    notes = _controlled(findings, rates)
    tested = (
        " Its p-value is that of the AUC and of the top of the ranking together, adjusted for all attacks, so that it can be "
        "small beside an AUC near one half."
        if findings.tests(MEMBERS)
        else ""
    )
    ranks = f"AUC: how often a member ranks above a non-member of its class; 50 % by guessing.{tested}"
    return Section(
        "Attacks",
        f"{ranks} Named: the share of members above the score of one non-member, with its interval at this threshold. Small "
        f"rates rest on few non-members: {notes}"
        if notes
        else ranks,
        FigureView(
            _roc(curves, nonmembers, folder),
            "Share of members named (vertical) by share of false alarms (horizontal), both on log scales, one line per "
            "attack. The dotted line is guessing.",
            of_curves(curves, "roc"),
        ),
        filled(headings, cells, findings.all("auc", "true_alarms", "above_all")),
    )


def _attack_cells(row: Finding, findings: Findings, rates: Sequence[float]) -> tuple[str, ...]:
    attack = row.params["attack"]
    named = [findings.get("true_alarms", attack=attack, false_alarms=rate) for rate in rates]
    above = findings.get("above_all", attack=attack)
    return (
        NAMES[attack],
        f"{row.value:.3f} ({format_interval(row)})",
        format_p(row.p_adjusted),
        *("" if each is None else _share(each) for each in named),
        "" if above is None else _share(above),
    )


def _share(row: Finding) -> str:
    return f"{percent(row.value)} ({format_interval(row, percent)})"


def _controlled(findings: Findings, rates: Sequence[float]) -> str:
    """Return the intervals of the true rate of false alarms at each threshold, in words."""
    said = []
    for rate in rates:
        row = next(iter(findings.all("true_alarms", false_alarms=rate)))
        low, high = percent(row.params["rate_low"], 2), percent(row.params["rate_high"], 2)
        said.append(
            f"the threshold for {percent(rate)} is what {reached(row)}, and its true rate of false alarms lies between {low} "
            f"and {high} (95 %)"
        )
    return "; ".join(said) + "." if said else ""


def _roc(curves: pa.Table, nonmembers: int, folder: Path) -> str:
    figure = new_figure(width=5.2, height=4.6)
    axes = figure.axes[0]
    least = max(SMALLEST_RATE, 1 / nonmembers)
    chosen = curves.filter(pc.field("curve") == "roc")
    for place, name in enumerate(dict.fromkeys(chosen["series"].to_pylist())):
        line = chosen.filter(pc.field("series") == name)
        x, y = line["x"].to_numpy(), line["y"].to_numpy()
        axes.step(np.maximum(x, least), np.maximum(y, least), where="post", label=NAMES[name], lw=1.2 if place else 2.2,
                  color=COLOURS[place % len(COLOURS)], ls=DASHES[place % len(DASHES)])  # fmt: skip
    axes.plot([least, 1], [least, 1], color=MUTED, ls=":", lw=1.2, label="_guessing")
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.05))
    axes.set_xlabel("false alarms (share of non-members)")
    axes.set_ylabel("members named")
    for axis in (axes.xaxis, axes.yaxis):
        plain_ticks(axis)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return save_figure(figure, folder, "roc")


def _scores_section(recipe: Recipe, curves: pa.Table, folder: Path) -> Section:
    figure = new_figure()
    axes = figure.axes[0]
    chosen = curves.filter(pc.field("curve") == "scores")
    for name, colour in (("members", TARGET), ("non-members", REFERENCE)):
        line = chosen.filter(pc.field("series") == name)
        axes.step(line["x"].to_numpy(), line["y"].to_numpy(), where="mid", color=colour, label=name, lw=1.6)
    axes.set_xlabel(f"score of {NAMES[recipe.score.headline]}")
    axes.set_ylabel("share")
    percent_axis(axes.yaxis)
    axes.legend(frameon=False, fontsize=8)
    return Section(
        "Scores of members and non-members",
        FigureView(
            save_figure(figure, folder, "scores"),
            f"Distribution of the score of {NAMES[recipe.score.headline]} among members and among non-members; the "
            "outermost steps hold all scores beyond them.",
            of_curves(curves, "scores"),
        ),
    )


def _units_section(units: pa.Table, findings: Findings, recipe: Recipe) -> Section:
    persons = recipe.split.group is not None
    noun = recipe.group_noun if persons else "documents" if recipe.reads_texts else "examples"
    top = units.slice(0, LISTED).to_pylist()
    members, score, persons_alone = sum(row["member"] for row in top), recipe.score.headline, ["examples"] if persons else []
    cells = [
        (
            row["unit"], str(row["examples"]) if persons else "", row["class_name"], "yes" if row["member"] else "no",
            format_value(row[score]), percent(row["above_nonmembers"]),
        )
        for row in top
    ]  # fmt: skip
    headings = ("id", "examples", "class", "member", "score", "other non-members below")
    is_shown = findings.verdict.word == SHOWN
    evidence = "" if is_shown else " As nothing was shown, a high score is no evidence about any of them."
    return Section(
        f"The {noun} with the highest scores",
        f"The {len(top)} {noun} with the highest scores, of {units.num_rows:,}; {members} of these {len(top)} are members. "
        f"They are selected by the score, so their scores look stronger than they would in another model.{evidence}",
        filled(headings, cells, columns_of(top, "unit", *persons_alone, "class_name", "member", score, "above_nonmembers")),
    )


def _blind_section(findings: Findings) -> Section | None:
    blind = findings.get(BLIND)
    if blind is None:
        return None
    families = [(row.params["measure"], f"{row.value:.2f}") for row in findings.all("blind_auc_by_family")]
    outcome = (
        " Membership was not drawn at random. An attack on the model that does no better shows nothing; one that does better "
        "shows no memory either, as a model of other data of the members' kind does so, too."
        if findings.get("declared_draw") is None
        else ""
    )
    return Section(
        "Without the model",
        f"From ids, sizes, dates and content alone, members can be told from non-members with an AUC of {blind.value:.2f} "
        f"({_interval(blind)}).{outcome}",
        TableView(
            ("features", "AUC"), families, folded="By kind of feature", data=findings.all(BLIND, "blind_auc_by_family")
        ),
    )


def _privacy_section(findings: Findings, recipe: Recipe) -> Section | None:
    bound = findings.get("epsilon_lower_bound")
    if bound is None:
        return None
    claim, many, gaussian = (findings.get(name) for name in ("privacy_claim", "epsilon_of_training", "epsilon_if_gaussian"))
    rows = [
        (
            f"one run (Steinke 2023), per {bound.params['unit']}, delta {bound.params['delta']:g}",
            f"{bound.value:.2f}", f"{bound.params['ceiling']:.2f}",
            f"{bound.params['correct']} of {bound.params['guesses']} guesses right",
        )
    ]  # fmt: skip
    if many is not None:
        rows.append(
            (f"many runs, of the way of training, for {many.params['unit_id']}", f"{many.value:.2f}",
             f"{many.params['ceiling']:.2f}", f"{many.params['models']} models")
        )  # fmt: skip
    if gaussian is not None:
        rows.append(
            (f"one run, if the mechanism is Gaussian, delta {gaussian.params['delta']:.2g}", f"{gaussian.value:.2f}",
             f"{gaussian.params['ceiling']:.2f}", "no bound for any other mechanism; not compared with a claim")
        )  # fmt: skip
    return Section(
        "Differential privacy",
        "A training procedure that is (epsilon, delta)-private lets nobody tell members better than epsilon allows. Each "
        f"bound holds with probability 95 %{as_declared(recipe)}; the ceiling is what a perfect attack would have shown with "
        "as many examples.",
        _claimed(claim, recipe, bound.params["ceiling"]),
        TableView(
            ("bound", "epsilon at least", "ceiling", "from"), rows, data=[row for row in (bound, many, gaussian) if row]
        ),
    )


def _claimed(claim: Finding | None, recipe: Recipe, ceiling: float) -> str:
    if recipe.privacy is None:
        return ""
    if claim is None:
        return "The claim cannot be compared with the bound: their units differ, and delta is not 0."
    params = claim.params
    text = (
        f"Claimed: epsilon {params['epsilon']:g}, delta {params['delta']:g}, per {params['claimed_unit']}, neighbours by "
        f"{params['claimed_adjacency'].replace('_', ' or ')}; compared with {params['compared_with']:g} in terms of the "
        f"coins: {say_p(claim.p_adjusted)}, {'refuted' if claim.verdict == SHOWN else 'not refuted; that proves no privacy'}."
    )
    if params["compared_with"] > ceiling:
        text += f" With as many coins, not even a perfect attack could have refuted more than {ceiling:.2f}."
    if params["chosen_among"] > 1:
        text += f" The model was chosen among {params['chosen_among']} runs, which the accountant of one run does not cover."
    return text


def _memorization_section(
    findings: Findings,
    examples: pa.Table | None,
    units: pa.Table,
    show: Callable[[str], NDArray[np.uint8] | None],
    recipe: Recipe,
) -> Section | None:
    if examples is None:
        return None
    mean, count = findings.first("memorization_mean"), findings.first("memorized_examples")
    top = examples.slice(0, recipe.report.gallery).to_pylist()
    member = dict(zip(units["unit"].to_pylist(), units["member"].to_pylist(), strict=True))
    whether = [
        "" if (inside := member.get(row["group"] or row["example_id"])) is None else "yes" if inside else "no" for row in top
    ]
    whose = (
        " All this is about the models that memlib trained on parts of the pool, not about the audited model, which need not "
        "have seen these examples."
        if recipe.target.is_external
        else ""
    )
    pictures = [
        (data_uri(picture, side=96), _memorized(row)) for row in top if (picture := show(row["example_id"])) is not None
    ]
    cells = [
        (
            row["example_id"], row["class_name"], percent(row["correct_in"] or 0, 0), percent(row["correct_out"] or 0, 0),
            format_p(row["p_adjusted"]), own,
        )
        for row, own in zip(top, whether, strict=True)
        if row["memorization"] is not None
    ]  # fmt: skip
    return Section(
        "Memorized examples",
        "Memorization of an example is the difference between the shares of right answers of models that were and were not "
        f"trained on it (Feldman and Zhang 2020). On average over {mean.n:,} examples it is {mean.value:.3f}; of "
        f"{int(count.value):,} examples it is shown (adjusted over all of them). Shown below: the most memorized ones, "
        f"selected from {examples.num_rows:,}.{whose}{_agreement(findings)}",
        PicturesView(pictures)
        if pictures
        else TableView(
            ("id", "class", "right, with", "right, without", "adjusted p", "in the target's training set"),
            cells,
            data=columns_of(
                [row for row in top if row["memorization"] is not None],
                "example_id",
                "class_name",
                "correct_in",
                "correct_out",
                "p_adjusted",
            ),
        ),
    )


def _agreement(findings: Findings) -> str:
    """Return sentences on the rank correlations between memorization, the attack and self-influence."""
    found, text = findings.get("memorization_rank_correlation"), ""
    if found is not None:
        attack = NAMES[found.params["attack"]]
        text = (
            f" Memorization and the score that {attack} gives on average to models that were trained on them order the "
            f"{found.n:,} {found.params['over']} with a rank correlation (Spearman) of {found.value:.2f}."
        )
    for row in findings.all("self_influence_rank_correlation"):
        other = NAMES.get(row.params["with"], row.params["with"])
        text += (
            f" Self-influence (TracInCP over {row.params['checkpoints']} epochs) and {other} order the target's {row.n:,} "
            f"training examples with a rank correlation of {row.value:.2f}."
        )
    return text


def _memorized(row: Mapping[str, Any]) -> str:
    shares = f"right {percent(row['correct_in'] or 0, 0)} with, {percent(row['correct_out'] or 0, 0)} without"
    return f"{row['example_id']}: {row['class_name']}, {shares}"


def _influence_section(
    findings: Findings, pairs: pa.Table | None, show: Callable[[str], NDArray[np.uint8] | None]
) -> Section | None:
    found = findings.get("influence_pairs")
    if found is None or pairs is None:
        return None
    single = findings.first("influence_pairs_unadjusted")
    top = pairs.slice(0, LISTED).to_pylist()
    cells = [(row["example_id"], row["held_out_id"], f"{row['influence']:.2f}", format_p(row["p_adjusted"])) for row in top]
    data = columns_of(top, "example_id", "held_out_id", "influence", "p_adjusted")
    return Section(
        "Influence on held-out examples",
        f"Pairs of a memorized and a held-out example: {found.n:,}. Pairs with influence, adjusted over all: "
        f"{int(found.value):,}; at an unadjusted level of {single.params['unadjusted']:g}: {int(single.value):,}, where "
        f"chance alone gives {single.params['expected']:g}.",
        TableView(("memorized example", "held-out example", "influence", "adjusted p"), cells, data=data) if cells else None,
    )


def _models_section(findings: Findings, models: pa.Table, recipe: Recipe) -> Section | None:
    row = findings.get("auc_of_models")
    if row is None:
        return None
    measures = findings.all("likeness")
    external = recipe.target.is_external
    return Section(
        "The target among its shadow models",
        f"Every shadow model was attacked as if it were the target: its AUC is {row.value:.3f} on average, and between "
        f"{format_interval(row)} for 95 % of the {row.n} models ({say_p(row.p_value)}, twice the mean of their p-values)."
        + (
            " That says that the attack finds memory in such models, and nothing of the target. Shadow models that are "
            "unlike the target make attacks weaker, not tests wrong."
            if external
            else ""
        ),
        _likeness_table(measures),
    )


def _likeness_table(measures: Findings) -> TableView:
    """Return the numbers of the target beside the range of its shadow models: one row per part of the data."""
    cells: dict[str, dict[str, str]] = {}
    for row in measures:
        measure, _, part = str(row.params["measure"]).partition(", ")
        span = f"{row.params['smallest']:.3f} to {row.params['largest']:.3f}"
        unlike = ", unlike" if row.params["word"] == "unlike" else ""
        cells.setdefault(part, {})[measure] = f"{row.value:.3f} ({span}{unlike})"
    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    rows = [(part, *(row.get(name, "") for name in names)) for part, row in cells.items()]
    return TableView(("target (shadow models)", *names), rows, data=measures)


def _settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of the shadow models' architecture; of the target's own, those that are given."""
    if recipe.model is None:
        return {"": "none"}
    found = recipe.model.model_dump(mode="json")
    is_own = isinstance(recipe.model, OwnSpec)
    return {name: value for name, value in found.items() if not is_own or value not in (None, {})}


def _facts(recipe: Recipe, sizes: Mapping[str, int], findings: Findings) -> Mapping[str, str]:
    """Return the facts about the run for the last section."""
    training = recipe.training
    noun = "documents" if recipe.reads_texts else "examples"
    facts = {
        "pool": f"{sizes[TRAIN]:,} {noun}" + (f"; {sizes[HELD_OUT]:,} held out" if sizes[HELD_OUT] else ""),
        "model": ", ".join(f"{key} {value}" for key, value in _settings(recipe).items() if key != "kind"),
        "shadow models": f"{recipe.shadows.count}, each trained on an example with probability {recipe.shadows.share:g}"
        + ("; 64 find more, and those that are trained are kept" if recipe.shadows.count < ENOUGH else "")
        if recipe.shadows.count
        else "none",
        "queries": str(recipe.queries.count),
        "tests": f"level {recipe.score.level:g}, {recipe.score.redraws:,} redraws of the coins"
        if findings.tests(MEMBERS)
        else "none of the target",
    }
    if training is not None:
        facts["training"] = f"{training.epochs} epochs, batch {training.batch_size or 'all'}"
        facts["optimizer"] = ", ".join(f"{k} {v}" for k, v in training.optimizer.model_dump(mode="json").items())
    levels = findings.get("rmia_levels")
    if levels is not None:
        facts["values of RMIA's scores"] = f"{int(levels.value):,} at gamma 1"
    return facts
