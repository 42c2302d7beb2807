"""Tables of findings: tests, shares of single models, changes, correlations, and self-influence of the canaries."""

from collections.abc import Callable, Sequence
from functools import partial

from memlib.audits.unique_feature.comparisons import CHANGE
from memlib.audits.unique_feature.recipe import FLIPS
from memlib.audits.unique_feature.verdict import NAMES, QUANTITIES, change_in_words, of_score
from memlib.findings import Finding, Findings
from memlib.report.format import format_interval, percent, say_p
from memlib.report.page import Section, TableView

MOST_ROWS = 24  # maximum number of rows of a table that is not folded

Line = tuple[Finding, list[str]]
"""A finding, and the cells that describe it."""


def external_section(findings: Findings) -> Section:
    """Return the section with the rank test of each score among null features, and the effect that it could have found."""
    rows = [
        (
            *_score(row), *_values(findings, row, "feature", "others"), str(row.params["nulls"]),
            _p(row.p_value), _p(row.p_adjusted), _found_at(row),
        )
        for row in findings.tests()
    ]  # fmt: skip
    heads = (
        "score", "output", "the feature", "mean of others", "number of others", "p-value by rank", "adjusted (Holm)",
        "80 % power at",
    )  # fmt: skip
    return Section("Significance", TableView(heads, rows, data=findings.tests()))


def tests_section(findings: Findings) -> Section:
    """Return the section with all tests of differences between canary nets and controls."""
    lines = [
        (
            row,
            [
                " / ".join(_values(findings, row, "canary", "control")), f"{row.value:.3g}", interval_text(row),
                _p(row.p_adjusted), _found_at(row), row.verdict or ("" if row.is_test else "not tested"),
            ],
        )
        for row in findings.all(group="canary - control", statistic="mean")
        if row.metric != FLIPS
    ]  # fmt: skip
    heads = ("with / without", "difference", "95 % interval", "adjusted p-value", "80 % power at", "verdict")
    return Section(
        "What the feature changed",
        "Differences between the models that saw the feature and their controls, within pairs from the same seed. The means "
        "with and without the feature are over all models, so they need not differ by exactly this amount. The score "
        "shown first carries the verdict (Holm over variants); the other scores form a second family, adjusted together "
        "(max-T). The tests exchange models and controls within their pairs: under the null, the feature "
        "changed nothing for these canaries. The test finds a difference of the size under '80 % power at' with a "
        "probability of 80 %.",
        *_tables(findings, heads, lines),
    )


def proportions_section(findings: Findings) -> Section | None:
    """Return the section on the share of single nets that meet each criterion."""
    lines = [
        (
            row,
            [
                row.params["criterion"], percent(row.value, 1), _without(findings, row), interval_text(row),
                _p(row.p_adjusted),
            ],
        )
        for row in findings.all("proportion_memorized")
    ]  # fmt: skip
    if not lines:
        return None
    heads = ("criterion", "with the feature", "without it", "95 % interval", "adjusted p-value")
    return Section(
        "Single models",
        "Share of models that each criterion flags as memorizing. Calibrated: the score exceeds a threshold that a control "
        "exceeds by chance as often as stated. The threshold is estimated from the controls, so the test is beta-binomial "
        "and there is no interval over models. Published: the papers' paired t-test over examples, which also flags models "
        "that never saw the feature.",
        *_tables(findings, heads, lines),
    )


def flips_section(findings: Findings) -> Section | None:
    """Return the section on the decisions on other examples that the feature flips to the canary's label."""
    variants = ["variant"] if variants_of(findings) != [""] else []
    rows = [
        [
            *map(row.params.__getitem__, variants), row.params["output"].replace("_", " "),
            *(_with_interval(of_score(findings, row, FLIPS, group=group)) for group in ("canary", "control")),
            percent(row.value, 2), interval_text(row), _p(row.p_adjusted), _found_at(row, in_percent=True), row.verdict or "",
        ]
        for row in findings.all(FLIPS, group="canary - control")
    ]  # fmt: skip
    if not rows:
        return None
    heads = (
        *variants, "examples", "with the feature", "without it", "difference", "95 % interval", "adjusted p-value",
        "80 % power at", "verdict",
    )  # fmt: skip
    return Section(
        "Decisions that the feature flips",
        "Share of the examples of other classes that are predicted as the canary's class with the feature inserted, and as "
        "another class without it: what the memory of one training example does to others who carry the feature, such as "
        "patients of the same name (2023). Shares of models that saw the feature and of their controls; the difference is "
        "within pairs, and tested as the scores are, in a family of its own (Holm). Controls flip decisions, too, as any "
        "inserted feature does.",
        TableView(heads, rows, data=findings.all(FLIPS)),
    )


def _with_interval(row: Finding | None) -> str:
    """Return a share with its interval; "" without a finding."""
    if row is None:
        return ""
    interval = "" if row.interval is None else f" ({format_interval(row, partial(percent, digits=1))})"
    return f"{percent(row.value, 2)}{interval}"


def changes_section(findings: Findings) -> Section | None:
    """Return the section on changes in M and in memory from each variant's baseline."""
    lines = [
        (
            row,
            [
                row.params["from"], QUANTITIES[row.params["group"]], f"{row.value:+.3g}", interval_text(row),
                _p(row.p_adjusted), _found_at(row), change_in_words(row),
                f"{row.n} {'pairs' if row.params['paired'] else 'or more, unpaired'}",
            ],
        )
        for row in findings.all(statistic=CHANGE)
    ]  # fmt: skip
    if not lines:
        return None
    heads = (
        "compared with", "quantity", "change", "95 % interval", "adjusted p-value", "80 % power at", "result", "units",
    )  # fmt: skip
    return Section(
        "Variants compared with their baselines",
        "Changes from the variant under 'compared with' to the one under 'variant': in the mean score M "
        "of all models that saw the feature (the papers average only those with M > 0, which selects), and in memory, its "
        "difference from the controls. What raises M in models and controls alike is no memory. Tests are two-sided; each "
        "score and quantity is a family, adjusted over the variants (Holm). Where both variants have the same data, canaries "
        "and seeds, units are paired and the signs of their changes are flipped; else units are exchanged between the "
        "variants (Welch's t). Canaries that are chosen by self-influence are chosen by each variant's own models, so an "
        "unpaired change mixes what the variant changes in training with the choice of other canaries. Grey- and black-box "
        "maxima are centred by the controls of their own variant, whose error all its models share; on a single draw of the "
        "data, their changes are estimates without an interval. In a run that shows no memory, no change has a result.",
        *_tables(findings, heads, lines),
    )


def correlation_table(findings: Findings) -> TableView | None:
    """Return the table of correlations between scores on the headline's output; None if there are none."""
    rows = [
        (
            row.params.get("variant", "all models"),
            " and ".join(NAMES[name] for name in row.params["of"].split(" and ")),
            row.params["output"],
            f"{row.value:.2f}",
            interval_text(row),
            str(row.n),
        )
        for row in findings.all("correlation", output=findings.head.params["output"])
    ]
    heads = ("variant", "scores", "output", "correlation over models that saw the feature", "interval", "models")
    found = findings.all("correlation", output=findings.head.params["output"])
    return TableView(heads, rows, data=found) if rows else None


def pull_section(findings: Findings) -> Section | None:
    """Return the section on the self-influence of canaries, trained with and without the feature."""
    rows = [
        (row.params.get("variant", ""), row.params["example"], row.params["group"], f"{row.value:.3g}")
        for row in findings.all("self_influence_canary")
    ]
    if not rows:
        return None
    return Section(
        "Self-influence of the canaries",
        "Self-influence of each canary in models from the same seed, trained with the feature in it and without (2022).",
        TableView(("variant", "canary", "trained", "self-influence"), rows, data=findings.all("self_influence_canary")),
    )


def variants_of(findings: Findings) -> list[str]:
    """Return the names of the variants; only "" without variants."""
    return list(dict.fromkeys(row.params.get("variant", "") for row in findings))


def interval_text(row: Finding) -> str:
    """Return a finding's interval, in per cent for proportions, and the units that it samples; "" without an interval."""
    if row.interval is None:
        return ""
    is_share = row.metric.startswith("proportion") or row.metric == FLIPS
    show: Callable[[float], str] = partial(percent, digits=1) if is_share else "{:.3g}".format
    return f"{format_interval(row, show)} (over {row.interval.over})"


def _score(row: Finding) -> tuple[str, str]:
    """Return the name and output of the score that a finding is about."""
    return NAMES[row.params["metric"]], row.params["output"].replace("_", " ")


def _values(findings: Findings, row: Finding, *groups: str) -> list[str]:
    """Return the mean of each group on the score of a finding."""
    means = (of_score(findings, row, row.metric, group=group) for group in groups)
    return [f"{mean.value:.3g}" for mean in means if mean is not None]


def _without(findings: Findings, row: Finding) -> str:
    """Return the share of controls that meet a criterion or, if it is not known, the share expected under the null."""
    control = of_score(findings, row, "proportion_control", criterion=row.params["criterion"])
    share = row.null_value if control is None else control.value
    return "" if share is None else percent(share, 1)


def _found_at(row: Finding, *, in_percent: bool = False) -> str:
    """Return the effect that the test would have found with a power of 80 %, as text."""
    if not row.is_test:
        return ""
    if row.detectable is None:
        return "none, however large"
    return percent(row.detectable, 2) if in_percent else f"{row.detectable:.3g}"


def _p(value: float | None) -> str:
    return "" if value is None else say_p(value)


def _tables(findings: Findings, heads: Sequence[str], lines: Sequence[Line]) -> tuple[TableView, TableView | None]:
    """Return a table of the lines on the headline's score and, if there are others, a folded one of all lines."""
    variants = ["variant"] if variants_of(findings) != [""] else []
    heads = (*variants, "score", "output", *heads)
    rows = [[*map(row.params.__getitem__, variants), *_score(row), *cells] for row, cells in lines]
    score = {name: findings.head.params[name] for name in ("metric", "output")}
    main = [cells for cells, (row, _) in zip(rows, lines, strict=True) if row.has(**score)] or rows
    folded = TableView(heads, rows, folded=f"All {len(rows)} rows, with the other scores")
    found = [row for row, _ in lines]
    return TableView(heads, main[:MOST_ROWS], data=found), folded if len(rows) > len(main[:MOST_ROWS]) else None
