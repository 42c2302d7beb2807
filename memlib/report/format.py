"""Formats of findings in terminals, in Prefect and in tables of comparisons."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memlib.runs.records import Finding

ASIDE = {
    "interval",
    "pairs",
    "train_accuracy",
    "test_accuracy",
    "nets",
    "controls",
    "alpha",
    "metric",
    "setting",
    "kind",
    "models",
    "examples",
    "withheld",
    "known",
    "assumes",
    "chance",
    "wins",
    "losses",
}  # params left out of settings, as they are shown elsewhere
ROUNDING = 1e-12  # smaller values are rounding errors of 0


def format_value(value: float | None) -> str:
    """Return a value with three decimals, or two digits if it is small; "" for none."""
    if value is None:
        return ""
    return f"{value:.2g}" if ROUNDING < abs(value) < 0.001 else f"{0.0 if abs(value) <= ROUNDING else value:.3f}"


def format_interval(row: Finding) -> str:
    """Return a finding's interval, which may have no upper end; "" for none."""
    if row.ci_low is None:
        return ""
    return f"{row.ci_low:.3f} to {row.ci_high:.3f}" if row.ci_high is not None else f"at least {row.ci_low:.3f}"


def varying_params(params: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the params in which the findings differ."""
    names = dict.fromkeys(name for at in params for name in at if name not in ASIDE)
    return [name for name in names if len({str(at[name]) for at in params if name in at}) > 1]


def format_setting(name: str, value: Any) -> str:
    """Return a param in words: a word stands for itself."""
    if isinstance(value, float):
        return f"{name}={value:.3g}"
    return value if isinstance(value, str) else f"{name}={value}"


def format_settings(varying: Iterable[str], params: Mapping[str, Any]) -> str:
    """Return those params of a finding that vary between findings, in words."""
    return ", ".join(format_setting(name, params[name]) for name in varying if name in params)


def format_p(value: float | None) -> str:
    """Return a p-value with two digits; "" for none."""
    return "" if value is None else f"{value:.2g}"


def finding_rows(rows: Iterable[tuple[Finding, dict[str, Any]]]) -> list[dict[str, str]]:
    """Return findings as texts by column: the setting in which they vary, metric, value, interval, p-values, n and verdict.

    Args:
        rows: findings with their params.
    """
    rows = list(rows)
    varying = varying_params([params for _, params in rows])
    return [
        {
            "setting": format_settings(varying, params),
            "metric": row.metric,
            "value": format_value(row.value),
            "95 % interval": format_interval(row),
            "p": format_p(row.p_value),
            "p adjusted": format_p(row.p_adjusted),
            "n": str(row.n),
            "verdict": row.verdict or "",
        }
        for row, params in rows
    ]
