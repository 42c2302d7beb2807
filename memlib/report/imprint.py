"""Imprint of a page: author, time, code version and data, for readers who know nothing else about its origin."""

import time
from collections.abc import Sequence

from memlib.findings import Verdict
from memlib.pipeline.provenance import source_state, who
from memlib.pipeline.sources import data_digest
from memlib.pipeline.stage import AnyArtifact
from memlib.report.overview import FILE, FOLDER
from memlib.report.page import Content, Page
from memlib.runs.index import data_name
from memlib.specs import Spec
from memlib.store import Store
from memlib.version import VERSION

DIGITS = 16  # hexadecimal digits shown of each digest
OVERVIEW = f"../../{FOLDER}/{FILE}"  # from the page of a run, runs/<run>/report.html


def signed(
    content: Content, verdict: Verdict, *, level: float | None, audit: str, question: str, recipe: Spec, run: str,
    store: Store, read: Sequence[AnyArtifact] = (),
) -> Page:  # fmt: skip
    """Return the page of a run: the audit's content below heading and verdict, with an imprint.

    Args:
        content: the part of the page that the audit composes.
        level: significance level of the tests that decide the verdict; None without such tests.
        audit, question: name of the audit, and the question that it answers.
        store: store of the run's artifacts.
        read: the data artifacts of the run.
    """
    state, digest = source_state(), data_digest(read)
    commit = f", commit {str(state['commit'])[:DIGITS]}" + (", code changed since" if state["dirty"] else "") if state else ""
    data = ", ".join(filter(None, [data_name(recipe.model_dump(mode="json")), f"digest {digest[:DIGITS]}" if digest else ""]))
    lines = {
        "drawn": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "by": who(),
        "memlib": f"memlib {VERSION}{commit}",
        "data": data,
        "model": content.model,
        "level": "" if level is None else f"{level:g}: a test shows something if its adjusted p-value is at most this",
        "store": store.uri,
        "numbers": f"memlib show {run}; memlib verify {run} checks them",
    }
    title = str(recipe.model_dump()["title"])
    imprint = [(name, text) for name, text in lines.items() if text]
    return Page(title, audit, run, question, verdict, content, imprint, level, OVERVIEW if store.is_local else "")
