"""Imprint of a page: author, time, code version and data, for readers who know nothing else about its origin."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from memlib.identity import VERSION
from memlib.pipeline.provenance import source_state, who
from memlib.pipeline.sources import data_digest
from memlib.pipeline.stage import AnyArtifact
from memlib.report.page import Page
from memlib.specs import Spec
from memlib.store import Store

DIGITS = 16  # hexadecimal digits shown of each digest


def signed(page: Page, question: str, recipe: Spec, store: Store, read: Sequence[AnyArtifact]) -> Page:
    """Return a page with a question and an imprint added.

    Args:
        page: the page as the audit composed it.
        question: the question that the audit answers.
        recipe: recipe of the run.
        store: store of the run's artifacts.
        read: the data artifacts of the run.
    """
    content = recipe.model_dump()
    state, digest = source_state(), data_digest(read)
    commit = f", commit {str(state['commit'])[:DIGITS]}" + (", code changed since" if state["dirty"] else "") if state else ""
    data = ", ".join(filter(None, [_source_name(recipe), f"digest {digest[:DIGITS]}" if digest else ""]))
    level = next(_levels(content), None)
    lines = {
        "drawn": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "by": who(),
        "memlib": f"memlib {VERSION}{commit}",
        "data": data,
        "model": page.model,
        "level": "" if level is None else f"{level:g}: a test shows something if its adjusted p-value is at most this",
        "store": store.uri,
        "numbers": f"memlib show {page.run}; memlib verify {page.run} checks them",
    }
    return replace(
        page,
        question=question,
        imprint=[(name, text) for name, text in lines.items() if text],
    )


def _levels(content: Any) -> Iterator[float]:
    """Yield the levels of the tests (`alpha`) in a recipe's content."""
    if isinstance(content, Mapping):
        for name, value in content.items():
            yield from [float(value)] if name == "alpha" and value is not None else _levels(value)


def _source_name(recipe: Spec) -> str:
    """Return a name for the data: the kind of source, and the name of its file or folder."""
    source: Any = getattr(getattr(recipe, "data", None), "source", None)
    if source is None:
        return ""
    path = getattr(source, "path", None)
    return source.kind if path is None else f"{source.kind} {PurePath(str(path)).name}"
