"""Who made a page, when, with which code, from which data: a page is read far from where it was made."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import memlib
from memlib.audits import AUDITS
from memlib.ledger import data_digest
from memlib.provenance import source_state, who
from memlib.report.page import Page
from memlib.specs import Spec
from memlib.stage import AnyArtifact
from memlib.store import Store

DIGITS = 16  # of digests


def signed(page: Page, recipe: Spec, store: Store, read: Sequence[AnyArtifact]) -> Page:
    """Return a page with the question that its audit answers, and who made it from what.

    Args:
        page: as the audit composed it.
        recipe: what was run.
        store: where the run's artifacts are.
        read: the data that the run rests on.
    """
    audit = next(one for one in AUDITS.values() if one.field == recipe.model_dump()["audit"])
    state, digest = source_state(), data_digest(read)
    commit = f", commit {str(state['commit'])[:DIGITS]}" + (" with changes" if state["dirty"] else "") if state else ""
    data = ", ".join(filter(None, [_source_name(recipe), f"digest {digest[:DIGITS]}" if digest else ""]))
    lines = {
        "drawn": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "by": who(),
        "memlib": f"memlib {memlib.__version__}{commit}",
        "data": data,
        "model": page.model,
        "store": store.uri,
        "numbers": f"memlib show {page.run}; memlib verify {page.run} checks them",
    }
    return replace(page, question=audit.question, imprint=[(name, text) for name, text in lines.items() if text])


def _source_name(recipe: Spec) -> str:
    """What the data are called: the kind of their source, and the name of its file or folder."""
    source: Any = getattr(getattr(recipe, "data", None), "source", None)
    if source is None:
        return ""
    path = getattr(source, "path", None)
    return source.kind if path is None else f"{source.kind} {PurePath(str(path)).name}"
