"""Which audits of the same data came before: whoever looks often enough finds something by chance."""

from collections.abc import Mapping, Sequence
from typing import Any

Run = Mapping[str, Any]


def data_of(run: Run) -> str:
    """The digest of a run's data; empty for runs of before digests were kept, and for sweeps."""
    return str(run.get("ledger", {}).get("data", ""))


def entry(runs: Sequence[Run], run: str, data: str, before: Run | None) -> dict[str, Any]:
    """What a run's manifest records at its first publication: the data, and the audits of it that came before.

    Args:
        runs: the finished runs of the store.
        run: this one's id.
        data: digest of its data.
        before: this run's manifest as it was published earlier; what it recorded stays.
    """
    if not data:
        return {"data": "", "earlier": []}
    if before is not None and data_of(before) == data:
        return dict(before["ledger"])
    earlier = sorted((one for one in runs if data_of(one) == data and one["run"] != run), key=lambda one: one["finished"])
    return {"data": data, "earlier": [_line(one) for one in earlier]}


def _line(run: Run) -> dict[str, Any]:
    first = run["findings"][0]
    said = run.get("verdict") or {}
    return {
        "run": run["run"], "audit": run["audit"], "finished": run["finished"], "headline": first["metric"],
        "p_value": first["p_value"], "verdict": said.get("word"),
    }  # fmt: skip


def in_words(earlier: Sequence[Mapping[str, Any]]) -> str:
    """One line about the audits that came before."""
    count = len(earlier)
    tests = [one for one in earlier if one["p_value"] is not None]
    shown = sum(one["verdict"] == "shown" for one in tests)
    audits = f"{count} audit{'s' if count > 1 else ''} of the same data came before"
    return (
        f"{audits} in this store: {len(tests)} tested something, {shown} showed it. Their verdicts are not adjusted together."
    )
