"""Rows of persons: the resemblance of one person's rows, and the excessive narrowness of intervals over rows."""

import numpy as np

from memlib.audits.membership.audited import Audited
from memlib.findings import Finding, Interval, diagnostic, estimate
from memlib.stats.clusters import intraclass_correlation
from memlib.stats.operating import auc, auc_interval


def person_findings(audited: Audited) -> list[Finding]:
    """Return the intraclass correlation of the headline attack's scores of single rows, and their AUC with two intervals.

    Both intervals are of the AUC over rows: one treats rows as independent, the other persons. The list is empty without
    persons, or if all rows have the same score.
    """
    if not audited.units.are_persons:
        return []
    scores, member, groups = audited.row_scores, audited.member, audited.pool.groups
    if np.ptp(scores) == 0:
        return []
    value, count, persons, noun = auc(scores, member), len(scores), len(audited.units), audited.units.noun
    by_row, by_person = auc_interval(scores, member), auc_interval(scores, member, groups=groups)
    params = {"attack": audited.recipe.score.headline, "units": persons, "over": noun, "rows": count}
    correlation = intraclass_correlation(scores, groups, member.astype(np.int64))
    ratio = (by_person[1] - by_person[0]) / (by_row[1] - by_row[0])
    return [
        diagnostic("intraclass_correlation", params, correlation, n=count),
        estimate("auc_of_rows", params, value, n=persons, interval=Interval(*by_person, noun)),
        diagnostic("auc_of_rows_alone", params, value, n=count, interval=Interval(*by_row, "rows")),
        diagnostic("interval_width_ratio", params, ratio, n=persons),
    ]
