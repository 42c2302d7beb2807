"""The commands over a store: what ran in it, what it found, whether it is whole."""

import json
import sys
import time
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.table import Table

from flows.requests import unfinished
from memlib import comparison, ledger, upkeep
from memlib.audits import AUDITS, audit_of
from memlib.errors import RunError, UserError
from memlib.planning import Plan
from memlib.private import PRIVATE, make_folder, user_folder, write_file
from memlib.records import Finding, RequestRecord, RunRecord, StatusRecord
from memlib.runs import INDEX, list_runs, read_run, refs_of, results_path, rows_of, run_names
from memlib.store import Store

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
}  # said elsewhere
DEFAULT_STORE = "memlib-store"
StoreOption = Annotated[str, Parameter(name="--store", env_var="MEMLIB_STORE")]
JsonOption = Annotated[bool, Parameter(name="--json", negative="")]

QUIET_SECONDS = 60  # after which a running run is said not to have been heard of
WIDE = 100  # columns of a terminal that has room for every p-value

console = Console(highlight=False, markup=False)


def runs(*, data: str | None = None, store: StoreOption = DEFAULT_STORE, json_: JsonOption = False) -> None:
    """List the runs in a store, newest first, and those that have not ended.

    Parameters
    ----------
    data
        Only audits of the data with this digest, or enough of its beginning, as `memlib show RUN --json` names it: how many
        audits one set of data has had says how often something could have turned up by chance.
    store
        Folder or s3:// prefix that the runs were written to.
    json_
        Print the runs' manifests as JSON.
    """
    opened = opened_store(store)
    listed, open_ = list_runs(opened), unfinished(opened)
    found = list(listed.entries)
    if data is not None:
        found, open_ = [run for run in found if run["ledger"]["data"].startswith(data)], []
        if not found:
            raise UserError(f"no run in {store} is of data {data!r}; memlib show RUN --json names a run's data")
    if listed.damaged:
        print(f"memlib: {listed.warning()}", file=sys.stderr)
    if json_:
        finished = [read_run(opened, entry["run"]) for entry in found]
        print(json.dumps([record.model_dump() for record in (*open_, *finished)], indent=1))
        return
    for note in open_:
        started = datetime.fromtimestamp(note.started).strftime("%Y-%m-%d %H:%M")
        said = f"{note.run}  not ended, started {started}  {note.audit}  {note.title}"
        console.print(f"{said}  (memlib resume {note.run})", soft_wrap=True)
    if not found:
        console.print(f"no {'finished ' if open_ else ''}runs in {store}")
        return
    rows = [("run", "finished", "audit", "headline", "value", "p", "verdict", "title")]
    for entry in found:
        first = entry["findings"][0]
        ended = datetime.fromtimestamp(entry["finished"]).strftime("%Y-%m-%d %H:%M")
        word = entry["verdict"]["word"] if entry["verdict"] else first["verdict"] or ""
        cells = (first["metric"], _number(first["value"]), _p(first["p_value"]), word)
        rows.append((entry["run"], ended, audit_of(entry["audit"]), *cells, entry["title"]))
    print("\n".join(_aligned(rows)))


def show(
    run_id: str,
    /,
    *,
    store: StoreOption = DEFAULT_STORE,
    json_: JsonOption = False,
    reveal: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Show what a run found, and where its results and report are.

    Parameters
    ----------
    run_id
        The run's id, or enough of its beginning.
    store
        Folder or s3:// prefix that the run was written to.
    json_
        Print the run's manifest as JSON, with the recipe and the keys of all artifacts.
    reveal
        Print the canaries of an exposure audit, which are in no result or report, and what the searches found.
    """
    opened = opened_store(store)
    found = find_run(opened, run_id)
    if json_:
        print(json.dumps(found.model_dump(), indent=1))
        return
    if reveal:
        _reveal(opened, found)
        return
    print_run(opened, found, whole=True)


def open_page(run_id: str, /, *, store: StoreOption = DEFAULT_STORE) -> None:
    """Open a run's page in the browser; a page on S3 is copied to this machine first, for you alone to read.

    Parameters
    ----------
    run_id
        The run's id, or enough of its beginning.
    store
        Folder or s3:// prefix that the run was written to.
    """
    opened = opened_store(store)
    run = find_run(opened, run_id)
    path = _page_of(run)
    content = opened.published(path)
    if content is None:
        raise RunError(f"run {run.run} has no page in {opened.uri}; run its audit again")
    page = Path(opened.root) / path
    if not opened.is_local:
        page = user_folder("cache") / "pages" / f"{run.run}.html"
        make_folder(page.parent, PRIVATE.folder)
        page.unlink(missing_ok=True)
        write_file(page, content, PRIVATE.file)
    console.print(str(page), soft_wrap=True)
    if not webbrowser.open(page.as_uri()):
        console.print("no browser was found here; open the file in one")


def _page_of(run: RunRecord) -> str:
    """Return where a run's page is, below the root of whatever store it is in by now."""
    return f"runs/{run.run}/{run.report.rpartition('/')[2]}"


def status(
    run_id: str,
    /,
    *,
    store: StoreOption = DEFAULT_STORE,
    watch: Annotated[bool, Parameter(negative="")] = False,
    json_: JsonOption = False,
) -> None:
    """Show how far a run is, stage by stage; of a finished one, what its stages took.

    Parameters
    ----------
    run_id
        The run's id, or enough of its beginning, as `memlib runs` lists it.
    store
        Folder or s3:// prefix.
    watch
        Go on showing it until the run has ended.
    json_
        Print it as JSON.
    """
    opened = opened_store(store)
    found = find_asked(opened, run_id)
    if isinstance(found, RunRecord):
        rows = upkeep.metrics_by_stage(opened, found)
        if json_:
            print(json.dumps({"run": found.run, "state": "completed", "stages": rows}, indent=1))
        else:
            console.print(_metrics_table(found, rows))
            console.print(_in_all(rows))
        return
    seen = _progress(opened, found)
    if json_:
        print(json.dumps(seen.model_dump(), indent=1))
        return
    if not watch:
        console.print(_status_table(seen))
        return
    with Live(_status_table(seen), console=console, refresh_per_second=2) as live:
        while seen.state not in upkeep.ENDED and any(note.run == found.run for note in unfinished(opened)):
            time.sleep(2)
            seen = _progress(opened, found)
            if seen.stages:
                live.update(_status_table(seen))
    if seen.state not in upkeep.ENDED:
        console.print(f"run {found.run} has ended; see memlib runs")


def _progress(store: Store, note: RequestRecord) -> StatusRecord:
    from memlib.journal import read_status

    asked = StatusRecord(run=note.run, title=note.title, state="asked for", started=note.started, updated=note.started)
    return read_status(store, note.run) or asked


def _status_table(seen: StatusRecord) -> Table:
    ago = time.time() - seen.updated
    heard = f", last heard of {ago:.0f} s ago" if seen.state == "running" and ago > QUIET_SECONDS else ""
    problem = f": {seen.problem}" if seen.problem else ""
    title = f"run {seen.run}  {seen.title}  ({seen.state}{problem}{heard})"
    table = _table(title, "stage", "state", "computed", "reused", "progress", "")
    for stage, row in seen.stages.items():
        done = "" if row.total is None else f"{row.done} of {row.total}"
        table.add_row(stage, row.state, str(row.computed), str(row.cached), done, row.note)
    return table


def _metrics_table(run: RunRecord, rows: Sequence[Mapping[str, Any]]) -> Table:
    headings = ("stage", "artifacts", "seconds", "CPU seconds", "peak GiB", "GPU GiB", "MiB in", "MiB out", "units")
    table = _table(f"run {run.run}  {run.title}  (completed)", *headings)
    for row in rows:
        gpu = "" if row["gpu_peak_memory_bytes"] is None else f"{row['gpu_peak_memory_bytes'] / 2**30:.2f}"
        sizes = (f"{row['bytes_in'] / 2**20:.1f}", f"{row['bytes_out'] / 2**20:.1f}")
        times = (f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}", f"{row['peak_memory_bytes'] / 2**30:.2f}")
        table.add_row(row["stage"], str(row["artifacts"]), *times, gpu, *sizes, f"{row['units']:g}")
    return table


def _in_all(rows: Sequence[Mapping[str, Any]]) -> str:
    """What a run took, in what is paid for."""
    cores, gpus, written = (sum(row[name] for row in rows) for name in ("cpu_seconds", "gpu_seconds", "bytes_out"))
    return f"in all {cores / 3600:.2f} CPU-hours, {gpus / 3600:.2f} GPU-hours, {written / 2**30:.2f} GiB written"


def print_plan(found: Plan) -> None:
    """A line a stage, with the key where it has one part; then what cannot be known yet."""
    table = _table(f"store {found.store.uri}", "stage", "key", "parts", "there", "to compute", "estimate")
    total, unknown = 0.0, False
    for stage, parts in found.by_stage():
        todo = [part for part in parts if not part.hit]
        known = [part.seconds for part in todo if part.seconds is not None]
        total, unknown = total + sum(known), unknown or len(known) < len(todo)
        cost = "" if not todo else _seconds(sum(known)) if len(known) == len(todo) else "unknown"
        key = parts[0].ref.key[:12] if len(parts) == 1 else f"{parts[0].ref.key[:12]} ..."
        counts = (str(len(parts)), str(len(parts) - len(todo)), str(len(todo)))
        table.add_row(stage, key, *counts, cost)
    for stage, lines in found.read.items():
        for line in dict.fromkeys(lines):
            console.print(f"{stage}: {line}", soft_wrap=True)
    console.print(table)
    for stage, after in found.cascade().items():
        retrained = "; it is trained again only with --cascade" if stage == "train" else ""
        said = f"{stage} is there; it is computed again if {' or '.join(after)} comes out otherwise than before{retrained}"
        console.print(said, soft_wrap=True)
    for ref, later in found.blocked.items():
        console.print(f"not known before {ref.stage} {ref.key[:12]} is there: {', '.join(later)}", soft_wrap=True)
    for cell, problem in found.problems.items():
        console.print(f"cell {cell} cannot run: {problem}", soft_wrap=True)
    for line in found.all_limits:
        console.print(line, soft_wrap=True)
    if unknown and not total:
        console.print("no estimate of cost: this store has nothing alike yet")
        return
    said = f"{'at least ' if unknown or found.blocked else ''}{_seconds(total)}"
    console.print(f"to compute: {said} of one worker, by what alike stages took in this store", soft_wrap=True)


def _seconds(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _table(title: str, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("stage", "state", "key", "") else "right")
    return table


def opened_store(uri: str) -> Store:
    """A store that is there.

    Raises:
        UserError: with what is there instead.
    """
    store = Store(uri)
    store.check_known()
    return store


def find_run(store: Store, run_id: str) -> RunRecord:
    """Return the manifest of the finished run whose id begins so.

    Raises:
        UserError: when no id, or more than one, begins so.
    """
    return read_run(store, _only(store, run_id, run_names(store)))


def find_asked(store: Store, run_id: str) -> RunRecord | RequestRecord:
    """Return the manifest of the run whose id begins so, or the note of one that has not ended.

    Raises:
        UserError: when no id, or more than one, begins so.
    """
    notes = {note.run: note for note in unfinished(store)}
    name = _only(store, run_id, [*notes, *run_names(store)])
    return notes[name] if name in notes else read_run(store, name)


def _only(store: Store, run_id: str, names: Iterable[str]) -> str:
    found = list(dict.fromkeys(name for name in names if name.startswith(run_id)))
    if len(found) != 1:
        seen = "no run" if not found else f"{len(found)} runs"
        raise UserError(f"{seen} in {store.uri} begin{'s' if len(found) < 2 else ''} with {run_id!r}; see memlib runs")
    return found[0]


def diff(
    first: str,
    second: str,
    /,
    *,
    store: StoreOption = DEFAULT_STORE,
    json_: JsonOption = False,
) -> None:
    """Compare two runs of one audit: what their recipes, findings and artifacts have in common and what not.

    Parameters
    ----------
    first, second
        The runs' ids, or enough of their beginnings.
    store
        Folder or s3:// prefix that the runs were written to.
    json_
        Print the differences as JSON.
    """
    opened = opened_store(store)
    a, b = find_run(opened, first), find_run(opened, second)
    if a.audit != b.audit:
        raise UserError(f"run {a.run} is a {audit_of(a.audit)} audit, {b.run} a {audit_of(b.audit)} audit")
    recipes_, findings = comparison.recipe_changes(a, b), comparison.finding_changes(a, b)
    artifacts = comparison.shared_artifacts(a, b)
    if json_:
        print(json.dumps({"recipe": recipes_, "findings": findings, "artifacts": artifacts}, indent=1))
        return
    _print_rows("recipe", ("key", a.run, b.run), [[c["key"], str(c["first"]), str(c["second"])] for c in recipes_])
    rows = []
    for change in (c for c in findings if c["difference"] != 0):
        values = [_number(value) for value in (change["first"], change["second"], change["difference"])]
        rows.append([f"{change['metric']} {change['params']}", *values, "intervals apart" if change["apart"] else ""])
    _print_rows("findings", ("metric", a.run, b.run, "difference", ""), rows)
    counts = ", ".join(f"{len(names)} {how}" for how, names in artifacts.items() if names)
    console.print(f"artifacts: {counts}")


def _print_rows(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        console.print(f"{title}: no difference")
        return
    table = Table(*headings, box=None, pad_edge=False, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Pad each column to its widest cell, one line per row however long: a rich table of 10,000 runs takes 16 seconds."""
    sizes = [[len(cell) if cell.isascii() else cell_len(cell) for cell in row] for row in rows]
    widths = [max(column) for column in zip(*sizes, strict=True)]
    for row, taken in zip(rows, sizes, strict=True):
        yield "  ".join(cell + " " * (width - size) for cell, width, size in zip(row, widths, taken, strict=True)).rstrip()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def verify(
    run_id: str | None = None,
    /,
    *,
    trust: Path | None = None,
    store: StoreOption = DEFAULT_STORE,
    json_: JsonOption = False,
) -> None:
    """Check that a store, or one run in it, is what was committed: every byte, every digest, and every number of a run.

    Of a run it checks its artifacts, tables, page, findings, verdict, recipe and name against each other. What is damaged
    is computed again by the next run that needs it. Ends with status 2 when anything is not as it was.

    Parameters
    ----------
    run_id
        The run's id, or enough of its beginning; by default all runs and artifacts are checked.
    trust
        A public key (Ed25519, PEM) from outside the store: runs must be signed with its private half, see memlib sign.
    store
        Folder or s3:// prefix.
    json_
        Print the findings as JSON.
    """
    from memlib import verification  # loads scipy

    opened = opened_store(store)
    runs, problems = [], []
    listed = list_runs(opened, indexed=False)
    if list_runs(opened) != listed:
        problems.append(verification.Problem(INDEX, "says otherwise than the runs; delete it, it is made again"))
    if run_id is None:
        problems += [verification.Problem(f"run {name}", problem) for name, problem in listed.damaged.items()]
        runs, refs = [read_run(opened, entry["run"]) for entry in listed.entries], upkeep.committed(opened)
        if not (runs or refs or problems):
            raise UserError(f"{store} is empty: there is nothing to verify")
    else:
        runs = [find_run(opened, run_id)]
        refs = sorted(refs_of(runs[0]), key=str)
    problems += verification.check_artifacts(opened, refs)
    rows = rows_of(listed.entries)
    for run in runs:
        problems += verification.check_run(opened, run, rows)
        problems += verification.check_signature(opened, run, trust) if trust is not None else ()
    older = [run.run for run in runs if not verification.is_checkable(run)]
    if json_:
        named = [asdict(problem) for problem in problems]
        print(json.dumps({"artifacts": len(refs), "runs": len(runs), "older": older, "problems": named}, indent=1))
    for problem in problems if not json_ else ():
        console.print(f"{problem.what}: {problem.problem}", soft_wrap=True)
    if older and not json_:
        said = f"{older[0]}{f' and {len(older) - 1} more' if len(older) > 1 else ''}"
        console.print(f"older, not checkable but for their artifacts: {said} (run their audits again)", soft_wrap=True)
    if problems:
        count = len({found.what for found in problems})
        raise RunError(f"{count} of {len(refs)} artifacts and {len(runs)} runs in {store} are not as they were committed")
    if not json_:
        signed = f", and signed with the key of {trust}" if trust is not None else ""
        said = f"{len(refs)} artifacts and {len(runs)} runs in {store} are as they were committed{signed}"
        console.print(said, soft_wrap=True)


def sign(run_id: str, /, *, key: Path, store: StoreOption = DEFAULT_STORE) -> None:
    """Sign a run, so that others can check with memlib verify --trust that it is yours and unchanged.

    Publishing the run again, as by running its audit once more, needs a new signature.

    Parameters
    ----------
    run_id
        The run's id, or enough of its beginning.
    key
        A file with your private key, readable by you alone: openssl genpkey -algorithm ed25519 -out key.pem makes one, and
        openssl pkey -in key.pem -pubout its public half.
    store
        Folder or s3:// prefix.
    """
    from memlib import verification  # loads scipy

    opened = opened_store(store)
    run = find_run(opened, run_id)
    rows = rows_of(list_runs(opened, indexed=False).entries)
    problems = [*verification.check_artifacts(opened, sorted(refs_of(run), key=str))]
    problems += verification.check_run(opened, run, rows)
    if problems:
        raise RunError(f"{problems[0].what}: {problems[0].problem}; nothing was signed, see memlib verify {run.run}")
    console.print(f"signed: {verification.sign(opened, run, key)}", soft_wrap=True)


def gc(
    *,
    keep: Annotated[Sequence[str], Parameter(negative="")] = (),
    days: float = 7.0,
    delete: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = DEFAULT_STORE,
    json_: JsonOption = False,
) -> None:
    """List what no run refers to: artifacts, broken attempts, states to resume from, Ray's notes. Deletes only when told.

    Parameters
    ----------
    keep
        A run to keep, by its id or enough of its beginning; may be given several times. By default all runs are kept; the
        results, report and artifacts of runs that are not are listed too.
    days
        Only what nobody has written to for so many days. A run that has not ended and was heard of since then, or within a
        day, may use any artifact, so that none is listed.
    delete
        Delete it.
    store
        Folder or s3:// prefix.
    json_
        Print it as JSON.
    """
    if days < 0:
        raise UserError(f"--days {days:g} lies in the future; use 0 or more")
    opened = opened_store(store)
    kept = {find_run(opened, run_id).run for run_id in keep} if keep else None
    found = (upkeep.clear if delete else upkeep.garbage)(opened, keep=kept, days=days)
    if json_:
        print(json.dumps({"deleted": delete, "found": [asdict(item) for item in found]}, indent=1))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("kind", "count", "MiB"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for kind in dict.fromkeys(item.kind for item in found):
        mine = [item for item in found if item.kind == kind]
        table.add_row(kind, str(len(mine)), f"{sum(item.size for item in mine) / 2**20:.1f}")
    if found:
        console.print(table)
    said = f"{len(found)} unreferenced items; {'all' if kept is None else len(kept)} runs kept"
    if alive := len(upkeep.under_way(opened, days=days)):
        said += f"; {alive} under way (until they end no artifact goes, as any may be in use)"
    console.print(f"deleted {said}" if delete else f"found {said}; --delete removes what was found")


def adopt(*, mode: Literal["private", "group", "open"] | None = None, store: StoreOption = DEFAULT_STORE) -> None:
    """Mark a store that an earlier memlib made, before stores were marked. Until then it is neither read nor cleared.

    Parameters
    ----------
    mode
        Who may use what is written to it from now on: private: its owner; group: the folder's group reads and writes all of
        it; open: everybody reads results and runs. By default as the folder is: group where its group may write to it.
    store
        Folder or s3:// prefix.
    """
    opened = Store(store)
    seen = opened.adopt(mode)
    console.print(f"{opened.uri} is a store now ({opened.mode}): {seen} artifacts and runs", soft_wrap=True)


def print_run(store: Store, run: RunRecord, *, whole: bool = False) -> None:
    """Print the verdict and findings of a run, and where its results and report are, wherever the store is by now."""
    said = run.verdict
    rows = [(row, json.loads(row.params)) for row in run.findings]
    if not whole:
        headline, audit = rows[0][1], AUDITS[audit_of(run.audit)]
        rows = [(row, params) for row, params in rows if audit.in_brief(params, headline)]
    console.print(run.title, style="italic", soft_wrap=True)
    _print_findings(rows)
    if said is not None:
        console.print(f"\n{said.sentence}\n{said.explanation}", soft_wrap=True)
    if earlier := run.ledger.earlier:
        console.print(f"\n{ledger.in_words(earlier)}", soft_wrap=True)
    done = f"{len(run.computed)} stages computed, {len(run.reused)} reused, {run.seconds:.0f} s"
    console.print(f"\nrun {run.run}: {done}")
    table_name = "summary" if "summary" in run.results else next(iter(run.results), "summary")
    console.print(f"results {store.uri.rstrip('/')}/{results_path(table_name, run.audit, run.run)}", soft_wrap=True)
    console.print(f"report  {store.uri.rstrip('/')}/{_page_of(run)}", soft_wrap=True)


def _print_findings(rows: Sequence[tuple[Finding, dict[str, Any]]]) -> None:
    """Print findings below the setting that they share; a narrow terminal has adjusted p-values alone."""
    varying = _varying([params for _, params in rows])
    is_wide = console.width >= WIDE or not any(row.p_adjusted is not None for row, _ in rows)
    adjusted = "p adjusted" if is_wide else "p adj."
    groups: dict[str, list[dict[str, str]]] = {}
    for row, params in rows:
        setting = ", ".join(_setting(name, params[name]) for name in varying if name in params)
        cells = {"metric": row.metric, "value": _value(row.value), "95 % interval": _interval(row)}
        cells |= {"p": _p(row.p_value)} if is_wide else {}
        cells |= {adjusted: _p(row.p_adjusted), "n": str(row.n), "verdict": row.verdict or ""}
        groups.setdefault(setting, []).append(cells)
    every = [cells for group in groups.values() for cells in group]
    filled = [name for name in every[0] if any(cells[name] for cells in every)]
    widths = {name: max(len(name), *(len(cells[name]) for cells in every)) for name in filled}
    others = sum(widths[name] + 2 for name in filled[1:])
    widths["metric"] = min(widths["metric"], max(20, console.width - others))
    console.print(_columns(widths, header=True))
    for setting, group in groups.items():
        if setting:
            console.print(setting, style="dim", soft_wrap=True)
        table = _columns(widths)
        for cells in group:
            table.add_row(*(cells[name] for name in widths))
        console.print(table)


def _columns(widths: Mapping[str, int], *, header: bool = False) -> Table:
    """A table without rows, whose columns are as wide as those of others like it."""
    table = Table(box=None, pad_edge=False, show_header=header)
    for name, width in widths.items():
        table.add_column(name, justify="left" if name in ("metric", "verdict") else "right", width=width, overflow="fold")
    return table


def _value(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2g}" if 0 < abs(value) < 0.001 else f"{value:.3f}"


def _interval(row: Finding) -> str:
    if row.ci_low is None:
        return ""
    return f"{row.ci_low:.3f} to {row.ci_high:.3f}" if row.ci_high is not None else f"at least {row.ci_low:.3f}"


def _reveal(store: Store, run: RunRecord) -> None:
    name = audit_of(run.audit)
    revealed = AUDITS[name].revealed if name in AUDITS else None
    if revealed is None:
        others = ", ".join(other for other, audit in AUDITS.items() if audit.revealed is not None)
        raise UserError(f"run {run.run} is a {name} audit; only {others} has secrets to reveal")
    for title, rows in revealed(store, run.recipe, run.artifacts).items():
        table = Table(box=None, pad_edge=False, title=title, title_justify="left")
        for heading in rows[0] if rows else ():
            table.add_column(heading)
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        console.print(table)


def _varying(params: Sequence[dict[str, Any]]) -> list[str]:
    """The names in which findings differ, so that a reader can tell them apart."""
    names = dict.fromkeys(name for at in params for name in at if name not in ASIDE)
    return [name for name in names if len({str(at[name]) for at in params if name in at}) > 1]


def _setting(name: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{name}={value}"


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


COMMANDS: dict[str, Callable[..., Any]] = {
    "runs": runs, "show": show, "open": open_page, "status": status, "diff": diff, "verify": verify, "sign": sign, "gc": gc,
    "adopt": adopt,
}  # fmt: skip
