"""What the page says first."""

from typing import Any

import pyarrow as pa

from memlib.report.unique_feature.findings import ALPHA, Findings, in_words, proportions, score_name


def verdict(summary: pa.Table) -> tuple[str, str, str]:
    """(kind, one sentence, its explanation): what a reader who reads nothing else must know.

    It rests on the paired differences to controls that never saw the feature, corrected for their number.
    """
    findings = Findings(summary)
    heads = {variant: findings.first(variant) for variant in findings.variants}
    first = heads[findings.variants[0]]
    if first["params"].get("null") == "other features":
        return _verdict_on_own(findings)
    if all(row["p_value"] is None for row in heads.values()):
        return "odd", "One seed says nothing about chance.", (
            "Whether a net memorizes varies with its seed, so a single one gives no proportion and no test; raise nets.seeds."
        )  # fmt: skip
    beyond = {variant: _beyond(findings, variant, ALPHA / len(heads)) for variant in heads}
    found = [variant for variant, rows in beyond.items() if rows]
    if len(heads) > 1:
        text = (
            f"Some score beyond the controls, at .05 over all scores and {len(heads)} variants: {', '.join(found) or 'none'}."
        )
        if found:
            return "found", f"{len(found)} of {len(heads)} variants remember the feature.", text
        return "not_found", f"None of {len(heads)} variants was shown to remember the feature.", text
    rows = beyond[findings.variants[0]]
    named = ", ".join(score_name(row["params"]) for row in rows)
    text = f"{in_words(first)} {proportions(findings, first['params'])}"
    if rows:
        return "found", "The models remember the feature.", (
            f"{text} Of the {len(_differences(findings, findings.variants[0]))} scores of this run, these lie beyond their "
            f"controls at .05 corrected for their number: {named}."
        )  # fmt: skip
    if first["ci_high"] is not None and first["ci_high"] < 0:
        return "odd", "The comparison is upside down.", text + " That is not memory of the feature at its label."
    missed = " A smaller effect could have been missed."
    limit = ALPHA / max(1, len(_differences(findings, findings.variants[0])))
    if 0.5 ** first["n"] >= limit:  # of exchanges within pairs, the observed one and its equals
        missed = f" With {first['n']} pairs no effect, however large, could have passed; raise nets.seeds or data_seeds."
    return "not_found", "No memory of the feature was shown.", text + missed


def _differences(findings: Findings, variant: str) -> list[dict[str, Any]]:
    """A variant's tested differences between canary nets and controls, one a score."""
    rows = [row for row in findings.rows if row["params"].get("variant", "") == variant and row["p_value"] is not None]
    return [row for row in rows if row["params"].get("group") == "canary - control"]


def _beyond(findings: Findings, variant: str, level: float) -> list[dict[str, Any]]:
    """Those beyond the controls at a level that all of them share."""
    rows = _differences(findings, variant)
    return [row for row in rows if row["p_value"] < level / len(rows) and (row["ci_low"] is None or row["ci_low"] > 0)]


def _verdict_on_own(findings: Findings) -> tuple[str, str, str]:
    first, limit = findings.rows[0], ALPHA / len(findings.rows)
    found = [score_name(row["params"]) for row in findings.rows if row["p_value"] < limit]
    text = in_words(first)
    if found:
        listed = ", ".join(found)
        return "found", "The model reacts to this feature as to no other.", (
            f"{text} Beyond the other features at .05 over all {len(findings.rows)} scores: {listed}."
        )  # fmt: skip
    text += " A weaker memory could have been missed."
    if 1 / (first["n"] + 1) >= limit:
        text = f"{in_words(first)} With {first['n']} other features no score could have passed; use a longer text."
    return "not_found", "The model does not single this feature out.", text
