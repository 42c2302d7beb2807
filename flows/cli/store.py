"""The commands that operate on a store: list and show runs, compare, verify and sign them, and delete what is unused."""

import re
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.cells import cell_len
from rich.live import Live
from rich.table import Table
from rich.text import Text

import memlib
from flows.cli.completing import all_runs, finished
from flows.cli.messages import say
from memlib.audits import AUDITS, audit_of
from memlib.console import console, show_json, show_text
from memlib.errors import RunError, UserError
from memlib.findings import Finding, Findings
from memlib.identity import file_digest
from memlib.pricing.beside import beside_plan, cost_table
from memlib.report.format import (
    finding_rows,
    format_interval,
    format_p,
    format_settings,
    format_value,
    in_words,
    varying_params,
)
from memlib.running import comparison
from memlib.running.comparison import Comparison, FindingChange
from memlib.running.freezing import MOST_SHOWN, departure_in_words
from memlib.running.planning import Plan, in_bytes, in_time
from memlib.running.publishing import said_at_publication
from memlib.runs import garbage, ledger, vouching
from memlib.runs.erasures import erased_on, erased_part, erased_runs
from memlib.runs.index import (
    cells_of,
    find_run,
    list_runs,
    only_name,
    page_path,
    read_run,
    results_path,
    run_names,
)
from memlib.runs.plans import frozen_in, on, read_plan, rewrite_plan, with_signature
from memlib.runs.records import PlanFile, RequestRecord, RunRecord, StatusRecord
from memlib.runs.requests import unfinished
from memlib.runs.run import ListedRun, Run
from memlib.runs.signatures import public_key, shown_key
from memlib.sanitize import count_of, plain
from memlib.store import DEFAULT_STORE, STORE_VARIABLE, TRUST_VARIABLE, Store
from memlib.store.permissions import replace_file

if TYPE_CHECKING:
    from memlib.pricing.price import StagePrice

StoreOption = Annotated[str, Parameter(name="--store", env_var=STORE_VARIABLE)]
TRUSTED = "A public key (Ed25519, PEM) from outside the store that must have signed every run that is read, see memlib sign."
TrustOption = Annotated[Path | None, Parameter(name="--trust", env_var=TRUST_VARIABLE, help=TRUSTED)]
JsonOption = Annotated[bool, Parameter(name="--json", negative="")]
RunId = Annotated[str, Parameter(completer=finished)]
AllOption = Annotated[bool, Parameter(name="--all", negative="")]

QUIET_SECONDS = 60  # time without an update after which a run under way is reported as silent
NOT_CHECKABLE = 3  # status of verify: nothing has changed, but something cannot be checked
COMPARED = ("metric", "first", "second", "difference")  # columns of a comparison
WIDE = 100  # columns; narrower terminals show adjusted p-values only
STYLES: Mapping[str, str] = {"shown": "bold red", "bounded": "green", "inconclusive": "yellow", "descriptive": "blue"}


def runs(
    *, data: str | None = None, store: StoreOption = DEFAULT_STORE, trust: TrustOption = None, json_: JsonOption = False
) -> None:
    """List the runs in a store: first those that have not ended, then the finished ones, newest first.

    Parameters
    ----------
    data
        List only audits of the data with this digest, or a prefix of it; `memlib show RUN --json` prints the digest. The more
        audits are run on the same data, the more results are to be expected by chance.
    store
        Folder or s3:// prefix that the runs were written to.
    json_
        Print the runs' manifests as JSON.
    """
    opened = opened_store(store, trust)
    listing = opened.listing("runs")
    listed, open_runs = list_runs(opened, listing=listing), unfinished(opened)
    entries = list(listed.entries)
    if data is not None:
        entries, open_runs = [run for run in entries if run["ledger"]["data"].startswith(data)], []
        if not entries:
            raise UserError(f"no run in {store} has data {data!r}; memlib show RUN --json prints the digest of a run's data")
    if listed.damaged:
        say(f"memlib: {listed.warning()}")
    if json_:
        finished = [read_run(opened, entry["run"]) for entry in entries]
        show_json([record.model_dump() for record in (*open_runs, *finished)])
        return
    for note in open_runs:
        started = datetime.fromtimestamp(note.started).strftime("%Y-%m-%d %H:%M")
        line = f"{note.run}  not ended, started {started}  {note.audit}  {note.title}"
        console.print(f"{line}  (memlib resume {note.run})", soft_wrap=True)
    if not entries:
        console.print(f"no {'finished ' if open_runs else ''}runs in {store}")
        return
    rows, erased = [("run", "finished", "audit", "headline", "value", "p", "verdict", "title")], erased_runs(listing)
    for run in map(ListedRun.of, entries):
        cells = (run.headline, _number(run.value), format_p(run.p_value), run.verdict)
        title = f"{run.title} (erased in part)" if run.id in erased else run.title
        rows.append((run.id, f"{run.finished:%Y-%m-%d %H:%M}", audit_of(run.audit), *cells, title))
    show_text("\n".join(_aligned(rows)))


def index(folder: Path | None = None, /, *, store: StoreOption = DEFAULT_STORE, trust: TrustOption = None) -> None:
    """Write one page over all runs of a store: by data and model, with their verdicts over time and a filter.

    The page is index.html, readable by you only. It needs no server, shows no example, and links to the pages of the runs.
    Write it again to bring it up to date.

    Parameters
    ----------
    folder
        Folder of the page; by default index/ below the store, or memlib-index/ in the current folder for a store on S3.
    store
        Folder or s3:// prefix that the runs were written to.
    """
    console.print(memlib.index(folder=folder, store=store, trust=trust).address, soft_wrap=True)


def show(
    run_id: RunId = "",
    /,
    *,
    store: StoreOption = DEFAULT_STORE,
    trust: TrustOption = None,
    all_: AllOption = False,
    json_: JsonOption = False,
    reveal: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Show the verdict and findings of a run, and the location of its results and report.

    Parameters
    ----------
    run_id
        Id of the run, or a unique prefix of it; by default the newest finished run.
    store
        Folder or s3:// prefix that the run was written to.
    all_
        Print all findings, not only the main ones.
    json_
        Print the run's manifest as JSON, with the recipe and the keys of all artifacts.
    reveal
        Print the canaries of an exposure audit, which appear in no result or report, and the texts that searches found.
    """
    opened = opened_store(store, trust)
    run = _named_or_newest(opened, run_id)
    if json_:
        show_json(run.model_dump())
        return
    if reveal:
        print_secrets(opened, run)
        return
    print_run(opened, run, every_row=all_, every_departure=True)


def open_page(run_id: RunId = "", /, *, store: StoreOption = DEFAULT_STORE, trust: TrustOption = None) -> None:
    """Open a run's report in the browser. A report on S3 is first copied to this machine, readable by you only.

    Parameters
    ----------
    run_id
        Id of the run, or a unique prefix of it; by default the newest finished run.
    store
        Folder or s3:// prefix that the run was written to.
    """
    opened = opened_store(store, trust)
    run = _named_or_newest(opened, run_id)
    page = Run(opened, run).report
    expected = run.published.get(page_path(run))
    if expected is not None and file_digest(page) != expected:
        raise RunError(f"the page of run {run.run} has been changed since it was published; see memlib verify {run.run}")
    from memlib.report.page import active_in  # loads Jinja

    if found := active_in(page.read_text(encoding="utf-8", errors="replace")):
        raise RunError(f"the page of run {run.run} holds {found}, as no page of memlib does, and is not opened: {page}")
    console.print(str(page), soft_wrap=True)
    if not webbrowser.open(page.as_uri()):
        console.print("no browser found; open this file yourself")


def _named_or_newest(store: Store, run_id: str) -> RunRecord:
    if run_id:
        return find_run(store, run_id)
    listed = list_runs(store)
    if listed.damaged:
        say(f"memlib: {listed.warning()}")
    if not listed.entries:
        raise UserError(f"no finished runs in {store.uri}")
    return read_run(store, listed.entries[0]["run"])


def status(
    run_id: Annotated[str, Parameter(completer=all_runs)],
    /,
    *,
    store: StoreOption = DEFAULT_STORE,
    watch: Annotated[bool, Parameter(negative="")] = False,
    planned: Annotated[bool, Parameter(negative="")] = False,
    json_: JsonOption = False,
) -> None:
    """Show the progress of a run, stage by stage; for a finished run, the time and resources of its stages.

    Parameters
    ----------
    run_id
        Id of the run, or a unique prefix of it, as listed by `memlib runs`.
    store
        Folder or s3:// prefix.
    watch
        Keep updating until the run has ended.
    planned
        Of a finished run, also show the CPU time, memory and bytes that a plan estimates from the machine's rates alone.
    json_
        Print the progress as JSON.
    """
    opened = opened_store(store)
    record = find_requested(opened, run_id)
    if isinstance(record, RunRecord):
        rows = beside_plan(opened, record) if planned else garbage.metrics_by_stage(opened, record)
        if json_:
            show_json({"run": record.run, "state": "completed", "stages": rows})
        else:
            console.print(f"run {record.run}  {record.title}  (completed)", soft_wrap=True)
            show_text("\n".join(_aligned([*cost_table(rows)])))
            console.print(_in_all(rows))
        return
    progress = _progress(opened, record)
    if json_:
        show_json(progress.model_dump())
        return
    if not watch:
        console.print(_status(progress), soft_wrap=True)
        return
    with Live(_status(progress), console=console, refresh_per_second=2) as live:
        while progress.state not in garbage.ENDED and any(note.run == record.run for note in unfinished(opened)):
            time.sleep(2)
            progress = _progress(opened, record)
            if progress.stages:
                live.update(_status(progress))
    if progress.state not in garbage.ENDED:
        console.print(f"run {record.run} has ended; see memlib runs")


def _progress(store: Store, note: RequestRecord) -> StatusRecord:
    from memlib.runs.journal import read_status

    requested = StatusRecord(run=note.run, title=note.title, state="asked for", started=note.started, updated=note.started)
    return read_status(store, note.run) or requested


def _status(seen: StatusRecord) -> Text:
    ago = time.time() - seen.updated
    silence = f", last update {ago:.0f} s ago" if seen.state == "running" and ago > QUIET_SECONDS else ""
    problem = f": {seen.problem}" if seen.problem else ""
    title = f"run {seen.run}  {seen.title}  ({seen.state}{problem}{silence})"
    rows = [("stage", "state", "computed", "reused", "progress", "time", "")]
    for stage, row in seen.stages.items():
        done = "" if row.total is None else f"{row.done} of {row.total}"
        taken = (time.time() if row.state == seen.state == "running" else row.updated) - row.started
        left = f"about {in_time(row.left)} left" if row.left and row.state == "running" else ""
        news = (f"waits for {row.waits}" if row.waits else "", left, row.note)
        cells = (str(row.computed), str(row.cached), done, in_time(taken) if row.started else "")
        rows.append((stage, row.state, *cells, ", ".join(filter(None, news))))
    return Text("\n".join([title, *_aligned(rows)]))


def _in_all(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the total cost of a run: CPU-hours, GPU-hours and bytes written; what was reused cost nothing."""
    cores, gpus, written = (sum(row[name] for row in rows) for name in ("cpu_seconds", "gpu_seconds", "bytes_out"))
    return f"total: {cores / 3600:.2f} CPU-hours, {gpus / 3600:.2f} GPU-hours, {written / 2**30:.2f} GiB written"


COSTS: Mapping[str, "Callable[[StagePrice], str]"] = {
    "CPU": lambda one: _short(one.cpu_seconds - one.gpu_seconds) if one.cpu_seconds > one.gpu_seconds else "",
    "GPU": lambda one: _short(one.gpu_seconds) if one.gpu_seconds else "",
    "written": lambda one: in_bytes(one.written),
    "time": lambda one: _short(one.wall_seconds),
    "memory": lambda one: in_bytes(one.memory),
}  # columns of a plan: time of a core and of a GPU, bytes; in a wide terminal, time with all of them and memory, too
NARROW = 3  # of these columns, how many a narrow terminal has


def _short(seconds: float) -> str:
    return in_time(seconds).replace("less than ", "< ")


def print_plan(found: Plan) -> None:
    """Print the data as read, a row per stage with the key of its first part, then unknown stages, limits and costs."""
    price = found.price
    priced = {} if price is None else price.stages
    fitting = list(COSTS.items())[: None if console.width >= WIDE else NARROW]
    shown = [(heading, show) for heading, show in fitting if any(show(one) for one in priced.values())]
    headings = [heading for heading, _ in shown]
    table = _table(f"store {found.store.uri}", "stage", "key", "parts", "in store", "to compute", *headings)
    by_stage = dict(found.by_stage())
    for stage in [*by_stage, *(name for name in priced if name not in by_stage)]:
        parts, one = by_stage.get(stage, []), priced.get(stage)
        missing = max(sum(not part.hit for part in parts), 0 if one is None else one.parts)
        key = "not yet known" if not parts else parts[0].ref.key[:12] + (" ..." if len(parts) > 1 else "")
        counts = (str(len(parts) or missing), str(sum(part.hit for part in parts)), str(missing))
        table.add_row(stage, key, *counts, *("" if one is None else show(one) for _, show in shown))
    for stage, lines in found.read.items():
        for line in dict.fromkeys(lines):
            console.print(f"{stage}: {line}", soft_wrap=True)
    if table.row_count:
        console.print(table)
    for stage, after in found.cascade().items():
        retrained = "; it is retrained only with --cascade" if stage == "train" else ""
        message = f"{stage} is in the store; it is recomputed if the result of {' or '.join(after)} changes{retrained}"
        console.print(message, soft_wrap=True)
    for line in found.unknown:
        console.print(line, soft_wrap=True)
    for cell, problem in found.problems.items():
        console.print(f"cell {cell} cannot run: {problem}", soft_wrap=True)
    for reason, stages in {} if price is None else price.by_reason.items():
        console.print(f"without a price: {', '.join(stages)}; {reason}", soft_wrap=True)
    for line in (*found.all_limits, *(() if price is None else (price.machine.described, *price.warnings)), found.cost):
        console.print(line, soft_wrap=True)


def print_frozen(file: PlanFile, *, named: str) -> None:
    """Print what a frozen plan fixes, and what it could not know."""
    plan = frozen_in(file)
    console.print(f"\n{named} on {on(plan.frozen)}: {plan.audit}, {plan.title}", soft_wrap=True)
    console.print(f"digest {plan.digest}")
    for one in file.signatures:
        console.print(f"signed on {on(one.signed)} with the key {one.key}", soft_wrap=True)
    levels = ", ".join(f"{name} {in_words(value)}" for name, value in plan.thresholds.items())
    console.print(f"thresholds: {levels or 'none'}; planned looks at the data: {plan.looks}", soft_wrap=True)
    for name, digests in plan.reads.items():
        console.print(f"data: {name} {', '.join(digests)}", soft_wrap=True)
    if not plan.data:
        console.print("data: no digest of the data is known before the run, so the plan does not fix them", soft_wrap=True)
    if plan.unknown:
        stages = ", ".join(plan.unknown)
        console.print(f"not known before the run: what {stages} will read", soft_wrap=True)
    if plan.earlier:
        count, names = count_of(len(plan.earlier), "audit"), ", ".join(plan.earlier)
        line = f"{count} of the same data existed in the store when the plan was frozen: {names}"
        console.print(line, soft_wrap=True)


def _table(title: str, *headings: str) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("stage", "state", "key", "") else "right")
    return table


def opened_store(uri: str, trust: Path | None = None) -> Store:
    """Open an existing store.

    Args:
        trust: file with the public key that must have signed every run that is read.

    Raises:
        UserError: if there is no store; the message says what was found instead.
    """
    store = Store(uri, trust=trust)
    store.check_known()
    return store


def find_requested(store: Store, run_id: str) -> RunRecord | RequestRecord:
    """Return the manifest of the run whose id begins with `run_id`, or the record of a run that has not ended.

    Raises:
        UserError: if no id, or more than one, matches.
    """
    notes = {note.run: note for note in unfinished(store)}
    name = only_name(store, run_id, [*notes, *run_names(store)])
    return notes[name] if name in notes else read_run(store, name)


def diff(
    first: RunId,
    second: RunId,
    /,
    *,
    page: Path | None = None,
    store: StoreOption = DEFAULT_STORE,
    trust: TrustOption = None,
    json_: JsonOption = False,
) -> None:
    """Compare the recipes, findings and artifacts of two runs of the same audit.

    The difference of the headlines is tested where the audit and the design allow it; otherwise the reason is given.

    Parameters
    ----------
    first, second
        Ids of the runs, or unique prefixes of them.
    page
        Also write the comparison to this file, as a page that shows both runs side by side. Only you can read the file.
    store
        Folder or s3:// prefix that the runs were written to.
    json_
        Print the differences as JSON.
    """
    opened = opened_store(store, trust)
    found = comparison.compare(*(Run(opened, find_run(opened, run)) for run in (first, second)))
    if page is not None:
        from memlib.report.page import render  # loads Jinja
        from memlib.running.comparison_page import page_of

        replace_file(page, render(page_of(found, opened)).encode())
    if json_:
        show_json(found.as_json())
    else:
        _print_comparison(found)
        if page is not None:
            console.print(f"page    {page}", soft_wrap=True)


def _print_comparison(found: Comparison) -> None:
    """Print one column per run, headed by the values of its recipe that differ, and the findings that differ."""
    runs, changed = (found.first, found.second), [change for change in found.findings if not change.is_same]
    heading = [("", *(run.run for run in runs), "difference" if changed else "")]
    heading += [(plain(change["key"]), in_words(change["first"]), in_words(change["second"]), "") for change in found.recipe]
    if any(run.verdict is not None for run in runs):
        heading.append(("verdict", *("" if run.verdict is None else run.verdict.word for run in runs), ""))
    params = [change.both_params for change in changed]
    varying, groups = varying_params(params), dict[str, list[tuple[str, ...]]]()
    for change, at in zip(changed, params, strict=True):
        setting = format_settings(varying, at)
        p_value = format_p(found.headlines.row.p_value) if found.headlines.row and found.tests(change) else "not tested"
        groups.setdefault(setting, []).extend(_finding_lines(change, p_value))
    widths = _widths([*heading, *(line for group in groups.values() for line in group)])
    for number, (setting, lines) in enumerate([("", heading), *groups.items()]):
        if setting or number == 1:
            console.print(setting, style="dim", soft_wrap=True)
        table = _columns(widths)
        for line in lines:
            table.add_row(*line)
        console.print(table)
    for name, rows in (("recipe", found.recipe), ("findings", changed)):
        if not rows:
            console.print(f"{name}: no difference")
    if changed:
        console.print()
        if same := len(found.findings) - len(changed):
            console.print(f"{count_of(same, 'further finding')} {'is' if same == 1 else 'are'} the same in both runs")
        console.print(found.in_words(), soft_wrap=True)
    counts = ", ".join(f"{len(names)} {how}" for how, names in found.artifacts.items() if names)
    console.print(f"artifacts: {counts}")


def _widths(lines: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the widths of a comparison's columns, limited to the terminal; longer cells are folded."""
    longest = {name: max(map(cell_len, cells)) for name, cells in zip(COMPARED, zip(*lines, strict=True), strict=True)}
    space = console.width - longest["difference"] - 2 * (len(longest) - 1)
    most = max(14, (space - min(longest["metric"], 32)) // 2)
    first, second = (min(longest[name], most) for name in ("first", "second"))
    metric = min(longest["metric"], max(20, space - first - second))
    return {"metric": metric, "first": first, "second": second, "difference": longest["difference"]}


def _finding_lines(change: FindingChange, p_value: str) -> Iterator[tuple[str, ...]]:
    """Yield the lines about one finding: value, interval, p-values and verdict, as far as either run has them.

    Args:
        change: the finding in both runs.
        p_value: that of the difference, or "not tested".
    """

    def line(name: str, text: Callable[[Finding], str], said: str = "") -> tuple[str, ...]:
        return name, *("-" if row is None else text(row) for row in (change.first, change.second)), said

    yield line(change.metric, lambda row: format_value(row.value), format_value(change.difference))
    for other in (
        line("  95 % interval", format_interval, "apart" if change.apart else ""),
        line("  p", lambda row: format_p(row.p_value), p_value),
        line("  p adjusted", lambda row: format_p(row.p_adjusted)),
        line("  verdict", lambda row: row.verdict or ""),
    ):
        if set(other[1:3]) - {"", "-"}:
            yield other


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield one line per row, columns padded to their widest cells; a rich table of 10,000 runs would take 16 seconds."""
    sizes = [[len(cell) if cell.isascii() else cell_len(cell) for cell in row] for row in rows]
    widths = [max(column) for column in zip(*sizes, strict=True)]
    for row, taken in zip(rows, sizes, strict=True):
        yield "  ".join(cell + " " * (width - size) for cell, width, size in zip(row, widths, taken, strict=True)).rstrip()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def verify(
    run_id: Annotated[str | None, Parameter(completer=finished)] = None,
    /,
    *,
    trust: TrustOption = None,
    plan: Path | None = None,
    recompute: Annotated[bool, Parameter(negative="")] = False,
    digest: Path | None = None,
    store: StoreOption = DEFAULT_STORE,
    json_: JsonOption = False,
) -> int:
    """Check that a store, or one run in it, is unchanged since it was committed: every byte, digest and number.

    The artifacts, tables, report, findings, verdict, recipe and name of a run are checked against each other. Damaged
    artifacts are recomputed by the next run that needs them. Files that belong to no run are named, too. What a run says of
    the frozen plan that it was given is checked as well, and repeated. Exits with status 2 if anything has changed, with 3 if
    nothing has but something cannot be checked.

    Parameters
    ----------
    run_id
        Id of the run, or a unique prefix of it; by default all runs and artifacts are checked.
    plan
        A file with a frozen plan (memlib plan --freeze), as it was given to you before the run: the run must have been given
        this plan. Without a run, the file itself is checked and printed; --trust then names the key that must have signed it.
    recompute
        Compute the run again from its recipe and data, in this process, and compare: on a machine of the same kind, every
        file must come out equal byte for byte, but for pages. Code that the recipe names runs only as for memlib resume.
    digest
        Instead, print the sha256 of a model's file, or of the files of its folder, and the runs that examined it. With a run,
        exits with status 2 if that run examined another model.
    store
        Folder or s3:// prefix.
    json_
        Print the findings as JSON.
    """
    if digest is not None:
        return _verify_digest(store, trust, digest, run_id, as_json=json_)
    file = None if plan is None else read_plan(plan)
    if file is not None and run_id is None:
        return _verify_plan(file, str(plan), trust, as_json=json_)
    if recompute and run_id is None:
        raise UserError("name the run that is to be recomputed: memlib verify RUN --recompute")
    from memlib.running.verification import verified  # loads scipy

    found = verified(opened_store(store), run_id, trust=trust, plan=file)
    if recompute and run_id is not None:
        from memlib.running.recomputing import with_recomputed

        found = with_recomputed(found, opened_store(store), run_id, quiet=json_, say=lambda line: say(f"warning: {line}"))
    if json_:
        show_json(found.as_json())
    for problem in found.problems if not json_ else ():
        console.print(f"{problem.what}: {problem.problem}", soft_wrap=True)
    for name, said in found.plans.items() if not json_ else ():
        console.print(f"run {name}: {said}", soft_wrap=True)
    if found.other_code and not json_:
        made = "; ".join(found.other_code)
        console.print(
            f"computed by other code than that of this memlib, or by another version of a stage: {made}", soft_wrap=True
        )
    if found.recomputed and not json_:
        console.print(found.recomputed, soft_wrap=True)
    runs = count_of(found.runs, "run")
    checked = f"{count_of(found.artifacts, 'artifact')} and {runs} were checked"
    if found.outcome == "changed":
        raise RunError(f"{count_of(len(found.changed), 'item')} in {store} failed verification ({checked})")
    if found.outcome == "unchecked":
        text = (
            f"{count_of(len(found.problems), 'item')} in {store} cannot be checked; everything else is unchanged ({checked})"
        )
        console.print(text, soft_wrap=True)
        return NOT_CHECKABLE
    if not json_:
        signed = f", and signed with the key of {trust}" if trust is not None else ""
        unused = found.of_no_run
        aside = f" ({unused} of the artifacts belong{'s' if unused == 1 else ''} to no run)" if unused else ""
        counts = f"{count_of(found.artifacts, 'artifact')}{aside} and {runs}"
        console.print(f"{counts} in {store} are unchanged since they were committed{signed}", soft_wrap=True)
    return 0


def _verify_digest(uri: str, trust: Path | None, path: Path, run_id: str | None, *, as_json: bool) -> int:
    """Print the digest of a model, and the runs that examined it if there is a store."""
    from memlib.audits.dossier.subject import model_digest, runs_of_model
    from memlib.models.external.factory import released_files

    files, skipped = released_files(path)
    digest, found = model_digest(files.values()), list[RunRecord]()
    has_store = run_id is not None or uri != DEFAULT_STORE or Path(uri).is_dir()
    if has_store:
        store = opened_store(uri, trust)
        found = runs_of_model(store, list_runs(store).entries, digest, set(files.values()))
    if run_id is not None:
        wanted = find_run(opened_store(uri, trust), run_id)
        found = [run for run in found if run.run in (wanted.run, *wanted.cells.values())]
        if not found:
            raise RunError(f"run {wanted.run} examined another model than {path} (sha256 {digest})")
    if as_json:
        runs = [{"run": run.run, "title": run.title, "verdict": run.verdict and run.verdict.word} for run in found]
        show_json({"digest": digest, "files": files, "not_read": skipped, "runs": runs})
        return 0
    console.print(f"{digest}  sha256 of {count_of(len(files), 'file')} of {path}", soft_wrap=True)
    if skipped:
        console.print(f"not part of it, as audits never read them: {', '.join(skipped[:MOST_SHOWN])}", soft_wrap=True)
    for run in found:
        word = run.verdict.word if run.verdict else "without a verdict"
        console.print(f"examined by run {run.run}, {run.title}: {word}", soft_wrap=True)
    if has_store and not found:
        console.print(f"no run in {uri} examined this model", soft_wrap=True)
    return 0


def _verify_plan(file: PlanFile, named: str, trust: Path | None, *, as_json: bool) -> int:
    """Print a frozen plan, whose digest and signatures have been checked; refuse it if a trusted key has not signed it."""
    if trust is not None and all(one.key != shown_key(public_key(trust)) for one in file.signatures):
        raise RunError(f"the plan {named} is not signed with the key of {trust}")
    if as_json:
        show_json(file.model_dump())
    else:
        print_frozen(file, named=f"{named}, frozen")
    return 0


def sign(
    run_id: Annotated[str | None, Parameter(completer=finished)] = None,
    /,
    *,
    key: Path,
    plan: Path | None = None,
    records: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Sign a run, so that others can check with memlib verify --trust that it is yours and unchanged; or a frozen plan.

    A plan is signed before the run, by whoever froze it and by others who are to vouch that they had it then.

    Requesting the same audit again changes nothing that is signed, as long as nothing has to be computed again. A sweep or a
    dossier is signed after the runs that it joins, with the same key.

    Parameters
    ----------
    run_id
        Id of the run, or a unique prefix of it.
    key
        A file with your private key, readable by you only. Create it with openssl genpkey -algorithm ed25519 -out key.pem;
        openssl pkey -in key.pem -pubout prints the public key.
    plan
        A file with a frozen plan to sign in place of a run (memlib plan --freeze); the signature is added to the file.
    records
        Sign, in place of a run, the store's records of erasures (memlib forget) and of deleted runs (memlib gc): only signed
        ones excuse an absence from memlib verify --trust.
    store
        Folder or s3:// prefix.
    """
    if (run_id is not None) + (plan is not None) + records != 1:
        raise UserError("name a run to sign, or the file of a frozen plan (--plan), or the records of absences (--records)")
    if records:
        count = vouching.sign_records(opened_store(store), key)
        console.print(f"signed: {count_of(count, 'record')} of erasures and deletions; the others were signed before")
        return
    if plan is not None:
        file = with_signature(read_plan(plan), key)
        rewrite_plan(plan, file)
        console.print(f"signed with the key {file.signatures[-1].key}: {plan}", soft_wrap=True)
    if run_id is None:
        return
    from memlib.running import verification  # loads scipy

    console.print(f"signed: {verification.sign(opened_store(store), run_id, key)}", soft_wrap=True)


def gc(
    *,
    keep: Annotated[Sequence[str], Parameter(negative="", completer=finished)] = (),
    days: float = 7.0,
    lost: Annotated[Sequence[str], Parameter(negative="")] = (),
    delete: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = DEFAULT_STORE,
    json_: JsonOption = False,
) -> None:
    """List unreferenced items (artifacts, broken attempts, resume states, records of Ray); with --delete, delete them.

    Parameters
    ----------
    keep
        A run to keep, by its id or a unique prefix of it; may be given several times. By default all runs are kept; the
        results, reports and artifacts of runs that are not kept are listed as well.
    days
        List only items that have not been written to for this number of days. No artifacts are listed while a run that
        has not ended was active within this time, or within a day, as it may use any of them.
    lost
        A run whose manifest is gone, by its whole id; may be given several times. What remains of it is listed, and with
        --delete a record says that it was deleted. Without this, gc stops at a run whose page or tables remain, as its
        artifacts are unknown; running its audit again restores it.
    delete
        Delete the listed items.
    store
        Folder or s3:// prefix.
    json_
        Print the list as JSON.
    """
    if days < 0:
        raise UserError(f"--days {days:g} is negative; use 0 or more")
    opened = opened_store(store)
    kept = {find_run(opened, run_id).run for run_id in keep} if keep else None
    items = (garbage.clear if delete else garbage.garbage)(opened, keep=kept, days=days, lost=lost)
    if json_:
        show_json({"deleted": delete, "found": [asdict(item) for item in items]})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("kind", "count", "MiB"):
        table.add_column(heading, justify="left" if heading == "kind" else "right")
    for kind in dict.fromkeys(item.kind for item in items):
        group = [item for item in items if item.kind == kind]
        table.add_row(kind, str(len(group)), f"{sum(item.size for item in group) / 2**20:.1f}")
    if items:
        console.print(table)
    summary = (
        f"{count_of(len(items), 'unreferenced item')}; {'all runs' if kept is None else count_of(len(kept), 'run')} kept"
    )
    if active := len(garbage.under_way(opened, days=days)):
        summary += f"; {active} under way (artifacts are kept until they end, as they may be in use)"
    console.print(f"deleted {summary}" if delete else f"found {summary}; --delete deletes the items")


def print_run(store: Store, run: RunRecord, *, every_row: bool = False, every_departure: bool = False) -> None:
    """Print the verdict and findings of a run, and the current location of its results and report.

    Args:
        store: store that holds the run.
        run: the run.
        every_row: whether to print all findings, not only those of short listings.
        every_departure: whether to print all departures from a frozen plan, not only the first ones.
    """
    verdict = run.verdict
    findings = Findings.of_run(run)
    if verdict is not None:
        word = (verdict.word.capitalize(), STYLES.get(verdict.word, ""))
        console.print(Text.assemble(word, f". {verdict.sentence}\n"), soft_wrap=True)
    console.print(run.title, style="italic", soft_wrap=True)
    rows = [*findings] if every_row else _in_brief(run, findings)
    _print_findings(rows)
    if len(rows) < len(findings):
        console.print(f"and {count_of(len(findings) - len(rows), 'more row')}: memlib show {run.run} --all", style="dim")
    if verdict is not None:
        console.print(f"\n{verdict.explanation}", soft_wrap=True)
    for said in said_at_publication(run, findings, cells_of(store, run)):
        console.print(f"\n{said}", soft_wrap=True)
    if every_departure and run.plan is not None:
        for departure in run.plan.departures[MOST_SHOWN:]:
            console.print(departure_in_words(departure), soft_wrap=True)
    if earlier := ledger.in_words(run.ledger):
        console.print(f"\n{earlier}", soft_wrap=True)
    if (part := erased_part(store, run.run)) is not None:
        console.print(
            f"\n{erased_on(part).capitalize()}, at a person's request: memlib verify {run.run} lists what is missing"
        )
    totals = f"{count_of(len(run.computed), 'stage')} computed, {len(run.reused)} reused, {run.seconds:.0f} s"
    console.print(f"\nrun {run.run}: {totals}")
    table_name = "summary" if "summary" in run.results else next(iter(run.results), "summary")
    console.print(f"results {store.uri.rstrip('/')}/{results_path(table_name, run.audit, run.run)}", soft_wrap=True)
    console.print(f"report  {store.uri.rstrip('/')}/{page_path(run)}", soft_wrap=True)


def _in_brief(run: RunRecord, findings: Findings) -> list[Finding]:
    """Return the findings that short listings of the run's audit include; all of them if it includes none."""
    audit, head = AUDITS[audit_of(run.audit)], findings.head
    return [row for row in findings if audit.in_brief(row.params, head.params)] or [*findings]


def _print_findings(rows: Sequence[Finding]) -> None:
    """Print findings grouped by setting; a narrow terminal shows adjusted p-values only."""
    is_wide = console.width >= WIDE or not any(row.p_adjusted is not None for row in rows)
    adjusted = "p adjusted" if is_wide else "p adj."
    groups: dict[str, list[dict[str, str]]] = {}
    left_out = () if is_wide else ("p",)
    for cells in finding_rows(rows):
        cells = {adjusted if name == "p adjusted" else name: text for name, text in cells.items() if name not in left_out}
        groups.setdefault(cells.pop("setting"), []).append(cells)
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
            table.add_row(_broken(cells["metric"], widths["metric"]), *(cells[name] for name in widths if name != "metric"))
        console.print(table)


def _broken(metric: str, width: int) -> str:
    """Return the name of a metric in lines of at most `width` characters, broken after underscores where possible."""
    lines = [""]
    for part in re.findall(r"[^_]*_?", metric):
        if len(lines[-1]) + len(part) > width and lines[-1].strip():
            lines.append("  ")
        lines[-1] += part
    return "\n".join(lines)


def _columns(widths: Mapping[str, int], *, header: bool = False) -> Table:
    """Return an empty table with fixed column widths, so that several tables align."""
    table = Table(box=None, pad_edge=False, show_header=header)
    for name, width in widths.items():
        table.add_column(name, justify="left" if name in ("metric", "verdict") else "right", width=width, overflow="fold")
    return table


def print_secrets(store: Store, run: RunRecord) -> None:
    """Print the secrets of a run, and the texts that searches found, as its audit reveals them."""
    name = audit_of(run.audit)
    revealed = AUDITS[name].revealed if name in AUDITS else None
    if revealed is None:
        others = ", ".join(other for other, audit in AUDITS.items() if audit.revealed is not None)
        raise UserError(f"run {run.run} (audit {name}) has no secrets to reveal; only {others} audits have secrets")
    for title, rows in revealed(store, run.recipe, run.artifacts).items():
        table = Table(box=None, pad_edge=False, title=title, title_justify="left")
        for heading in rows[0] if rows else ():
            table.add_column(heading)
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        console.print(table)
