"""Imprint of a page: author, time, code version and data, for readers who know nothing else about its origin."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from memlib.findings import Verdict
from memlib.pipeline.provenance import source_state
from memlib.pipeline.sources import data_digest
from memlib.pipeline.stage import AnyArtifact
from memlib.report.page import Content, Page
from memlib.runs.index import data_name, is_given
from memlib.specs import Spec
from memlib.specs.base import source_of
from memlib.version import VERSION

DIGITS = 16  # hexadecimal digits shown of each digest


def signed(
    content: Content, verdict: Verdict, *, level: float | None, audit: str, question: str, recipe: Spec, run: str,
    sure: str = "", read: Sequence[AnyArtifact] = (),
) -> Page:  # fmt: skip
    """Return the page of a run: the audit's content below heading and verdict, with an imprint.

    Args:
        content: the part of the page that the audit composes.
        level: significance level of the tests that decide the verdict; None without such tests.
        audit, question: name of the audit, and the question that it answers.
        sure: how often so strong a result comes without memory, in a sentence; "" if nothing is shown.
        read: the data artifacts of the run.
    """
    state, digest, recorded = source_state(), data_digest(read), recipe.model_dump(mode="json")
    commit = f", commit {str(state['commit'])[:DIGITS]}" + (", code changed since" if state["dirty"] else "") if state else ""
    drawn, version = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), f"memlib {VERSION}{commit}"
    lines = {
        "drawn": drawn,
        "memlib": version,
        "data": ", ".join(filter(None, [data_name(recorded), f"digest {digest[:DIGITS]}" if digest else ""])),
        "model": content.model,
        "level": "" if level is None else f"{level:g}: a test shows something if its adjusted p-value is at most this",
        "numbers": f"memlib show {run}; memlib verify {run} checks them",
    }
    about = {
        "model": "" if "audited" in content.about else _model(content.model, recorded),
        **content.about,
        "data": content.about.get("data", "") or data_in_words(recorded),
        "run by": getattr(getattr(recipe, "report", None), "author", ""),
        "made": f"{drawn[:10]}, by memlib {VERSION}",
    }
    title = str(recorded["title"])
    imprint = [(name, text) for name, text in lines.items() if text]
    said = {name: text for name, text in about.items() if text}
    return Page(title, audit, run, question, verdict, content, imprint, level, said, sure)


def _model(name: str, recipe: Mapping[str, Any]) -> str:
    """Return the name of the audited model, and whether the audit trained it; "" without any."""
    return (
        f"{name}, {'given to the audit' if is_given(recipe) else 'trained for this audit; no finished model was examined'}"
        if name
        else ""
    )


def is_demonstration(recipe: Mapping[str, Any]) -> bool:
    """Return whether a recipe's data come with memlib."""
    return source_of(((recipe.get("data") or {}).get("source") or {}).get("kind")).is_embedded


def data_in_words(recipe: Mapping[str, Any]) -> str:
    """Return the name of a recipe's data, and whether they are only for demonstrations; "" without any."""
    source = (recipe.get("data") or {}).get("source") or {}
    if not source:
        return ""
    whose = "embedded in memlib, for demonstrations" if is_demonstration(recipe) else "of whoever ran the audit"
    return f"{data_name(recipe)}, {whose}"
