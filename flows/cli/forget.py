"""The command that erases a person from a store."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

import memlib
from flows.cli.store import NOT_CHECKABLE, JsonOption, StoreOption
from memlib.console import console, show_json
from memlib.sanitize import count_of
from memlib.store import DEFAULT_STORE

if TYPE_CHECKING:
    from memlib.running.erasing import Held, Survey

MEANINGS = {
    "rows": "artifacts with her rows",
    "computed": "artifacts computed from them",
    "model": "models trained on them",
    "unfinished": "unfinished work of unknown origin",
    "table": "published tables",
    "page": "pages and figures",
    "manifest": "manifests of runs in which her ids, or digests of her rows, are replaced",
    "signature": "signatures of such manifests",
    "log": "logs",
    "request": "records of runs that have not ended",
    "status": "status files",
    "index": "index of runs, which is rebuilt",
    "copy": "files in your cache",
    "prefect": "Prefect's database",
    "unknown": "items that cannot be searched",
}

MOST_NEAR = 5  # ids that are listed


def forget(
    *,
    person: str | None = None,
    example: str | None = None,
    models: Annotated[bool, Parameter(negative="")] = False,
    delete: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = DEFAULT_STORE,
    json_: JsonOption = False,
) -> int:
    """List all that a store holds of a person or an example, and what was computed from it; with --delete, erase it.

    Artifacts are deleted as a whole; the next run makes them again from the source, from which you delete the person first.
    Runs keep their aggregates, and memlib verify says of them what was erased. Exits with status 2 if nothing in the store
    concerns the id, and with 3 if items cannot be searched.

    Parameters
    ----------
    person
        Id of a person: the name that the groups of a recipe or a person column give, or the id of one of the examples.
    example
        Id of a single example, as in tables of units.
    models
        Delete models that were trained on the examples, too, and unfinished work, whose origin no file records.
    delete
        Delete the listed items; models and unfinished work only with --models.
    store
        Folder or s3:// prefix.
    json_
        Print the list as JSON.
    """
    from memlib.running import erasing  # loads Arrow

    found = memlib.forget(person=person, example=example, models=models, delete=delete, store=store)
    found = found.with_items(_in_prefect(found, delete=delete))
    if json_:
        show_json(erasing.as_json(found, deleted=delete, models=models))
    else:
        _print(found, delete=delete, models=models)
    return NOT_CHECKABLE if found.unknown else 0


def _in_prefect(found: Survey, *, delete: bool) -> list[Held]:
    """List, or delete, what Prefect's database on this machine says of her; a server elsewhere cannot be searched."""
    from memlib.running.erasing import Held
    from tasks.prefect_records import count_rows, delete_rows, local_database

    items = []
    if (database := local_database()) is not None:
        rows, kept = count_rows(database, found.marks.in_text)
        items += [Held("prefect", str(database), 0, count_of(rows - kept, "row"))] if rows > kept else []
        items += [Held("unknown", str(database), 0, "deployments or blocks of Prefect name her; edit them")] if kept else []
        if delete and rows > kept:
            delete_rows(database, found.marks.in_text)
    if (url := os.environ.get("PREFECT_API_URL")) and any(item.kind in ("manifest", "request") for item in found.items):
        items.append(Held("unknown", url, 0, "flow runs on this server may have recipes that name her; delete them there"))
    return items


def _print(found: Survey, *, delete: bool, models: bool) -> None:
    """Print every item by kind, then a summary and what remains to be done."""
    doomed = found.doomed(models=models)
    for kind, meaning in MEANINGS.items():
        items = [item for item in found.items if item.kind == kind]
        if items:
            console.print(
                f"{meaning}: {len(items)} ({sum(item.size for item in items) / 2**20:.1f} MiB)", style="bold", soft_wrap=True
            )
        for item in items:
            console.print(f"  {item.path}{f': {item.note}' if item.note else ''}", soft_wrap=True)
    if found.near:
        names = ", ".join(found.near[:MOST_NEAR])
        more = f" and {len(found.near) - MOST_NEAR} more" if len(found.near) > MOST_NEAR else ""
        console.print(f"written nearly the same, and not meant unless you name them: {names}{more}", soft_wrap=True)
    for record in found.earlier.values():
        console.print(f"erased before, on {datetime.fromtimestamp(record.when):%Y-%m-%d}")
    kept = [item for item in found.items if item not in doomed and item.kind != "unknown"]
    runs = f"{count_of(len(found.runs), 'run')} affected" if found.runs else "no run affected"
    if delete:
        console.print(f"erased {count_of(len(doomed), 'item')}; {runs}")
    else:
        console.print(f"found {count_of(len(doomed), 'item')} to erase; {runs}; --delete erases them")
    if kept:
        left = count_of(len(kept), "model or unfinished item", "models and unfinished items")
        console.print(f"{left} {'remain' if delete else 'would remain'}; --models erases them, too", soft_wrap=True)
    if found.unknown:
        console.print(f"{count_of(len(found.unknown), 'item')} cannot be searched and may hold more of her", soft_wrap=True)
