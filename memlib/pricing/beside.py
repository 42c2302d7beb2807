"""Measured costs of the stages of a run, beside the estimates of a plan by the machine's rates alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memlib.runs.garbage import metrics_by_stage
from memlib.runs.records import RunRecord
from memlib.store import Store

COLUMNS = {
    "stage": "stage",
    "artifacts": "artifacts",
    "reused": "reused",
    "seconds": "seconds",
    "each": "s each",
    "cpu_seconds": "CPU s",
    "peak_memory_bytes": "peak GiB",
    "gpu_peak_memory_bytes": "GPU GiB",
    "bytes_in": "MiB in",
    "bytes_out": "MiB out",
    "units": "units",
}
PLANNED = ("cpu_seconds", "peak_memory_bytes", "bytes_out")


def beside_plan(store: Store, record: RunRecord) -> list[dict[str, Any]]:
    """Return the rows of `metrics_by_stage`, with `planned` values of `PLANNED` where known and nothing was reused."""
    from memlib.audits import audit_of
    from memlib.audits.arrangement import stage_names
    from memlib.pricing.price import price_of
    from memlib.recipes.request import AuditRequest

    request = AuditRequest.read(record.recipe, (), record.resources, expected=audit_of(record.audit))
    every = [name.rpartition("/")[2] for name in stage_names(request.audit, request.recipe)]
    price = price_of(request.audit, request.recipe, store, request.resources, forced=every, by_similar=False)
    rows = metrics_by_stage(store, record)
    for row in rows:
        if row["stage"] in price.stages and not row["reused"]:
            one = price.stages[row["stage"]]
            values = (one.cpu_seconds, one.memory + one.mapped, one.written)
            row["planned"] = dict(zip(PLANNED, values, strict=True))
    return rows


def cost_table(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield the headings and formatted rows of a table of what stages took, beside what was planned where that is known."""
    beside = any("planned" in row for row in rows)
    shown = [
        (name, with_plan) for name in COLUMNS for with_plan in ((False, True) if beside and name in PLANNED else (False,))
    ]
    yield [f"planned {COLUMNS[name]}" if with_plan else COLUMNS[name] for name, with_plan in shown]
    for row in rows:
        values = {**row, "each": row["seconds"] / max(1, row["artifacts"])}
        yield [_cell(name, (row.get("planned", {}) if with_plan else values).get(name)) for name, with_plan in shown]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("memory_bytes"):
        return f"{value / 2**30:.2f}"
    if name.startswith("bytes"):
        return f"{value / 2**20:.1f}"
    return f"{value:g}" if name == "units" else f"{value:.1f}" if isinstance(value, float) else str(value)
