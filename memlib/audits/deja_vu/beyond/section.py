"""The section of a déjà vu page on what is remembered beyond the class."""

from collections.abc import Iterator, Sequence

from memlib.audits.deja_vu.recipe import BEYOND
from memlib.audits.deja_vu.verdict import said_beyond
from memlib.findings import Finding, Findings
from memlib.report.format import format_interval, format_p, percent
from memlib.report.page import Section, TableView

BEYOND_TERMS = ("attribute beyond the class", "rank within the class")
_HEADINGS = (
    "asked", "images", "target model", "reference model", "guessing", "difference", "95 % interval", "p", "p, adjusted",
    "verdict",
)  # fmt: skip
_TEXT = (
    "The class is given here: only public images of the image's own class are searched, so that nothing is gained by knowing "
    "it. An attribute beyond the class is named by the majority of the k nearest of them; guessing names the most frequent "
    "value of the class among the public images. The rank within the class is the share of other images of the class, from "
    "the same set (A or B), whose whole picture lies closer to the crop than the picture that it was cut from (0: none of "
    "them), relative to its distance to other crops of the class. Without memory, too, a crop is often closest to its own "
    "picture, of which it is a part: memory is what the models differ in."
)
_TESTED = (
    "The difference compares each image under the model that was trained on it with the same image under the other model, "
    "within classes; for the rank, it is by how much nearer the image is. Its test redraws which images each model was "
    "trained on; these p-values are adjusted together (Holm), and again over the headline families. The accuracies and mean "
    "ranks of single models are diagnostics. 95 % intervals are over {over}, those of single models over {units}."
)


def beyond_section(findings: Findings) -> Section | None:
    """Return the section, from the findings of a run; None if memory beyond the class was not measured."""
    rows = [row for row in findings if _is_beyond(row)]
    if not rows:
        return None
    tests = findings.tests(BEYOND)
    nothing = "Beyond the class: nothing was tested, as the sets were not drawn at random."
    first = said_beyond(tests) if tests else nothing
    over, units = (_sampled(some) for some in (rows, findings.all(*_ACCURACIES.values())))
    return Section(
        "Beyond the class",
        first,
        f"{_TEXT} {_TESTED.format(over=over, units=units)} {' '.join(_of_missing(rows))}",
        TableView(_HEADINGS, [_row(row, findings) for row in rows], data=[*rows, *findings.all(*_ACCURACIES.values())]),
    )


def _sampled(rows: Sequence[Finding]) -> str:
    """Return the units that the intervals of some findings sample."""
    return next(row.interval.over for row in rows if row.interval is not None)


def _is_beyond(row: Finding) -> bool:
    """Return whether a finding is a difference beyond the class, tested or not."""
    return row.metric in _ACCURACIES


_ACCURACIES = {"attribute_excess": "attribute_accuracy", "neighbor_rank_gain": "neighbor_rank"}
"""The metric of single models that belongs to each difference."""


def _row(row: Finding, findings: Findings) -> tuple[str, ...]:
    """Return one line of the table."""
    name = row.params.get("attribute")
    by = {one.params["by"]: one for one in findings.all(_ACCURACIES[row.metric], attribute=name)}
    cells = [_with_interval(by[which]) if which in by else "" for which in ("target", "reference", "guessing")]
    asked = name or f"rank among the class, of up to {row.params['candidates']} others those of its set"
    tested = (format_p(row.p_value), format_p(row.p_adjusted), row.verdict or "")
    return asked, str(row.n), *cells, percent(row.value), format_interval(row, percent), *tested


def _with_interval(row: Finding) -> str:
    return f"{percent(row.value)} ({format_interval(row, percent)})"


def _of_missing(rows: Sequence[Finding]) -> Iterator[str]:
    """Yield, for each row that leaves out audited images, a sentence with their number and the reason."""
    for row in rows:
        count = row.params.get("without_value", row.params.get("without_candidates", 0))
        if count:
            lacking = f"value of {row.params['attribute']}" if "attribute" in row.params else "other image of their class"
            yield f"{count:,} audited images without a known {lacking} are left out of that line."
