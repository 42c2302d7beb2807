"""The audits there are: one package each, with the same rooms.

recipe.py (what is asked for), stages.py, scores.py, summary.py, verdict.py, tables.py, report.py; AUDIT in `__init__.py`.
"""

import importlib
from collections.abc import Iterator, Mapping

from memlib.audit import Audit
from memlib.tables import CURVES, RUNS, SUMMARY, Table

PACKAGES = {
    "deja-vu": "memlib.audits.deja_vu",
    "unique-feature": "memlib.audits.unique_feature",
    "self-influence": "memlib.audits.self_influence",
    "forgetting": "memlib.audits.forgetting",
    "exposure": "memlib.audits.exposure",
    "sweep": "memlib.audits.sweep",
}


class _Audits(Mapping[str, Audit]):
    """Audits by their names on the command line, each imported when it is asked for."""

    def __getitem__(self, name: str) -> Audit:
        found: Audit = importlib.import_module(PACKAGES[name]).AUDIT
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(PACKAGES)

    def __len__(self) -> int:
        return len(PACKAGES)


AUDITS: Mapping[str, Audit] = _Audits()


def audit_of(field: str) -> str:
    """Return the command-line name of the audit that a recipe's `audit` field names."""
    return field.replace("_", "-")


def published_tables() -> dict[str, dict[str, Table]]:
    """Return the tables below results/, by name and audit ("" where all audits share one)."""
    found: dict[str, dict[str, Table]] = {table.name: {"": table} for table in (RUNS, SUMMARY, CURVES)}
    for audit in AUDITS.values():
        for name, table in audit.tables.items():
            found.setdefault(name, {})[audit.field] = table
    return found


def tables_of(field: str) -> dict[str, Table]:
    """Return the tables that runs of an audit publish, by name; the table of runs comes last and is not among them.

    Args:
        field: the audit, as in recipes.
    """
    audit = AUDITS[audit_of(field)]
    return {**({} if audit.holds_others else {"summary": SUMMARY, "curves": CURVES}), **audit.tables}
