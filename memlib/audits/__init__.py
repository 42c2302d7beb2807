"""Registry of the audits: one package per audit.

Each package declares AUDIT in `__init__.py`, the schema of its recipes in recipe.py and its published tables in tables.py;
its other modules hold its stages, scores, findings, verdict and page.
"""

import importlib
from collections.abc import Iterator, Mapping

from memlib.audits.base import Audit
from memlib.errors import RunError
from memlib.sanitize import plain
from memlib.tables import COMMON, CURVES, RUNS, SUMMARY, Table

PACKAGES = {
    "deja-vu": "memlib.audits.deja_vu",
    "unique-feature": "memlib.audits.unique_feature",
    "self-influence": "memlib.audits.self_influence",
    "membership": "memlib.audits.membership",
    "forgetting": "memlib.audits.forgetting",
    "exposure": "memlib.audits.exposure",
    "captions": "memlib.audits.captions",
    "canaries": "memlib.audits.canaries",
    "sweep": "memlib.audits.sweep",
    "dossier": "memlib.audits.dossier",
}


class NoSuchAudit(RunError, KeyError):
    """An audit that a manifest or a caller names, but that this memlib does not have."""

    __str__ = RunError.__str__


class _Audits(Mapping[str, Audit]):
    """Mapping from command-line names to audits, each imported on first access."""

    def __getitem__(self, name: str) -> Audit:
        if name not in PACKAGES:
            raise NoSuchAudit(f"this memlib has no audit {plain(name)!r}; a later memlib may have it")
        audit: Audit = importlib.import_module(PACKAGES[name]).AUDIT
        return audit

    def __iter__(self) -> Iterator[str]:
        return iter(PACKAGES)

    def __len__(self) -> int:
        return len(PACKAGES)


AUDITS: Mapping[str, Audit] = _Audits()


def audit_of(field: str) -> str:
    """Return the command-line name of the audit that a recipe's `audit` field names."""
    return field.replace("_", "-")


def published_tables() -> dict[str, dict[str, Table]]:
    """Return the tables below results/, by name and audit ("" for tables that all audits share)."""
    tables: dict[str, dict[str, Table]] = {table.name: {"": table} for table in (RUNS, SUMMARY, CURVES)}
    for audit in AUDITS.values():
        for name, table in audit.tables.items():
            if name not in COMMON:
                tables.setdefault(name, {})[audit.field] = table
    return tables


def tables_of(field: str) -> dict[str, Table]:
    """Return the tables that runs of an audit publish, by name; the table of runs, published last, is not included.

    Args:
        field: the audit's name in recipes.
    """
    return dict(AUDITS[audit_of(field)].tables)
