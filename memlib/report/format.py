"""Formats of findings in terminals, in Prefect, on pages and in tables of comparisons."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from memlib.findings import Finding
from memlib.sanitize import plain

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
SMALLEST_P = 1e-15  # smaller sums of probabilities are rounding errors
ONCE_IN_A_MILLION, FEW = 1e-6, 10  # p-values below the first, and of fewer cases than the second, are said otherwise
WHOLE = 0.05  # per cent within which a share counts as whole


def format_value(value: float | None) -> str:
    """Return a value with three decimals, or two digits if it is small; "" for none."""
    if value is None or math.isnan(value):
        return ""
    return f"{value:.2g}" if ROUNDING < abs(value) < 0.001 else f"{0.0 if abs(value) <= ROUNDING else value:.3f}"


def percent(value: float, digits: int | None = None) -> str:
    """Return a share in per cent; by default with one decimal unless it is whole."""
    if digits is None:
        digits = 0 if abs(100 * value - round(100 * value)) <= WHOLE else 1
    return f"{100 * value:z.{digits}f} %"


def floored(bound: float) -> float:
    """Round a lower bound down to two decimals: rounded up, it would not be a bound."""
    return math.floor(round(100 * bound, 9)) / 100


def ceiled(bound: float) -> float:
    """Round an upper bound up to two decimals: rounded down, it would not be a bound."""
    return math.ceil(round(100 * bound, 9)) / 100


def format_interval(row: Finding, show: Callable[[float], str] = "{:.3f}".format) -> str:
    """Return a finding's interval, which may have no upper end; "" for none.

    Args:
        show: format of its ends.
    """
    if row.interval is None:
        return ""
    low, high = row.interval.low, row.interval.high
    return f"at least {show(low)}" if high is None else f"{show(low)} to {show(high)}"


def varying_params(params: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the params in which the findings differ."""
    names = dict.fromkeys(name for at in params for name in at if name not in ASIDE)
    return [name for name in names if len({str(at[name]) for at in params if name in at}) > 1]


def format_setting(name: str, value: Any) -> str:
    """Return a param as text: NAME=VALUE, or the value alone if it is a string."""
    if isinstance(value, float):
        return f"{name}={value:.3g}"
    return value if isinstance(value, str) else f"{name}={value}"


def in_words(value: Any) -> str:
    """Return a value of a recipe without brackets and quotes; "-" for null, and for a key that the recipe lacks."""
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{plain(str(name))} {in_words(inner)}" for name, inner in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(in_words(inner) for inner in value) or "none"
    return str(value).lower() if isinstance(value, bool) else plain(str(value))


def format_settings(varying: Iterable[str], params: Mapping[str, Any]) -> str:
    """Return those params of a finding that vary between findings, in words."""
    return ", ".join(format_setting(name, params[name]) for name in varying if name in params)


def format_p(value: float | None) -> str:
    """Return a p-value with two digits; "" for None. Below the resolution of sums, it is given as an inequality."""
    if value is None:
        return ""
    return f"<{SMALLEST_P:g}" if value < SMALLEST_P else f"{value:.2g}"


def say_p(value: float | None) -> str:
    """Return a p-value as an equation, or as an inequality where it is too small to print."""
    text = format_p(value)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"


def once_in(value: float | None) -> str:
    """Return a p-value as the chance of a result that is as strong without memory; "" for None.

    Example:
        >>> once_in(0.0075), once_in(0.3)
        ('by chance at most once in 133 cases', 'by chance in up to 30 % of cases')
        >>> once_in(1e-9)
        'by chance less than once in a million cases'
    """
    if value is None:
        return ""
    if value < ONCE_IN_A_MILLION:
        return "by chance less than once in a million cases"
    count = math.floor(round(1 / value, 6))
    if count < FEW:
        return f"by chance in up to {percent(value, 0)} of cases"
    digits = max(0, len(str(count)) - 3)
    return f"by chance at most once in {count // 10**digits * 10**digits:,} cases"  # rounded down: no rarer than it is


def finding_rows(rows: Sequence[Finding]) -> list[dict[str, str]]:
    """Return findings as texts by column: setting (where it varies), metric, value, interval, p-values, n and verdict."""
    varying = varying_params([row.params for row in rows])
    return [
        {
            "setting": format_settings(varying, row.params),
            "metric": row.metric,
            "value": format_value(row.value),
            "95 % interval": format_interval(row),
            "p": format_p(row.p_value),
            "p adjusted": format_p(row.p_adjusted),
            "n": str(row.n),
            "verdict": row.verdict or "",
        }
        for row in rows
    ]
