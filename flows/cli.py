"""The `memlib` command."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal

import yaml
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

import memlib
from flows.audits import AUDITS, audit_of
from flows.recipes import load_recipe, overridden, shipped_recipes, validate
from flows.requests import announced, unfinished
from memlib import comparison, upkeep
from memlib.errors import RunError, UserError
from memlib.specs import Resources
from memlib.store import Store
from memlib.tables import PUBLISHED

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
    "compared",
}  # said elsewhere
DEFAULT_STORE = "memlib-store"
StoreOption = Annotated[str, Parameter(name="--store", env_var="MEMLIB_STORE")]

app = App(
    name="memlib",
    help="Memorization audits of neural networks: what does a model remember of its training data?",
    version=memlib.__version__,
    version_flags=["--version"],
    result_action="return_value",
)
console = Console(highlight=False, markup=False)


@app.command
def run(
    audit: Literal["deja-vu", "unique-feature", "self-influence", "forgetting", "exposure"],
    /,
    *,
    recipe: str,
    set_: Annotated[Sequence[str], Parameter(name="--set", negative="")] = (),
    store: StoreOption = DEFAULT_STORE,
    quiet: bool = False,
) -> None:
    """Run an audit: split, train, observe, score, report. What the store holds already is not done again.

    Killed or failed, run the same command: finished stages are reused and training resumes where it was saved.

    Parameters
    ----------
    audit
        Which audit. deja-vu: does an image model name the object of a training image from its background alone?
        unique-feature: does a classifier remember something that stood in a single training image?
        self-influence: which training examples does a classifier lean on itself for?
        forgetting: has a model used, or forgotten, this data set?
        exposure: how many bits has a model of text given away of a secret that it was trained on?
    recipe
        The name of a shipped recipe (see `memlib recipes`) or the path of a YAML file.
    set_
        Change a value of the recipe, as in --set training.epochs=50; may be given several times.
        Machines are set as in --set resources.workers_per_model=2.
    store
        Folder or s3:// prefix for artifacts, results and reports.
    quiet
        No progress, only the result.
    """
    _quiet_prefect()
    content, machines = load_recipe(recipe, set_)
    named = audit_of(str(content.get("audit", audit)))
    if named != audit:
        raise UserError(f"recipe {recipe} is for the {named} audit, not {audit}")
    _carry_out(audit, content, machines, store, quiet=quiet)


def _carry_out(audit: str, content: Mapping[str, Any], machines: Mapping[str, Any], store: str, *, quiet: bool) -> None:
    with _server_starting():
        spec = validate(AUDITS[audit].recipe, content)
        resources = validate(Resources, machines)
        opened = Store(store)
        opened.check_writable()
        _check_prefect()
        flow = AUDITS[audit].flow
    with announced(opened, audit, spec, resources):
        manifest = flow(spec, opened.uri, resources, quiet)
    _print_run(manifest)


@app.command
def resume(
    run_id: str,
    /,
    *,
    set_: Annotated[Sequence[str], Parameter(name="--set", negative="")] = (),
    store: StoreOption = DEFAULT_STORE,
    quiet: bool = False,
) -> None:
    """Go on with a run that was killed or failed, or make a finished one anew where its artifacts are damaged or gone.

    Parameters
    ----------
    run_id
        The run's id, or enough of its beginning, as `memlib runs` lists it.
    set_
        Change the machines, as in --set resources.workers_per_model=2; the recipe stays.
    store
        Folder or s3:// prefix that the run was started in.
    quiet
        No progress, only the result.
    """
    _quiet_prefect()
    other = [setting for setting in set_ if not setting.startswith("resources.")]
    if other:
        raise UserError(f"--set {other[0]} would make it another run; only resources can be changed, see memlib run")
    opened = Store(store)
    found = _run(opened, run_id, [*unfinished(opened), *opened.runs()])
    machines = overridden({"resources": found.get("resources", {})}, set_)["resources"]
    _carry_out(audit_of(found["audit"]), found["recipe"], machines, store, quiet=quiet)


@app.command
def runs(
    *, store: StoreOption = DEFAULT_STORE, json_: Annotated[bool, Parameter(name="--json", negative="")] = False
) -> None:
    """List the runs in a store, newest first, and those that have not ended.

    Parameters
    ----------
    store
        Folder or s3:// prefix that the runs were written to.
    json_
        Print the runs' manifests as JSON.
    """
    opened = Store(store)
    found, open_ = opened.runs(), unfinished(opened)
    if json_:
        print(json.dumps([*open_, *found], indent=1))
        return
    for note in open_:
        started = datetime.fromtimestamp(note["started"]).strftime("%Y-%m-%d %H:%M")
        said = f"{note['run']}  not ended, started {started}  {note['audit']}  {note['title']}"
        console.print(f"{said}  (memlib resume {note['run']})", soft_wrap=True)
    if not found:
        console.print(f"no {'finished ' if open_ else ''}runs in {store}")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "finished", "audit", "headline", "value", "p", "title"):
        table.add_column(heading, no_wrap=heading != "title")
    for entry in found:
        first = entry["findings"][0]
        finished = datetime.fromtimestamp(entry["finished"]).strftime("%Y-%m-%d %H:%M")
        cells = (first["metric"], f"{first['value']:.3g}", _p(first["p_value"]))
        table.add_row(entry["run"], finished, audit_of(entry["audit"]), *cells, entry["title"])
    console.print(table)


@app.command
def show(
    run_id: str,
    /,
    *,
    store: StoreOption = DEFAULT_STORE,
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
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
    opened = Store(store)
    found = _run(opened, run_id)
    if json_:
        print(json.dumps(found, indent=1))
        return
    if reveal:
        _reveal(opened, found)
        return
    _print_run(found, whole=True)


def _run(store: Store, run_id: str, among: Sequence[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The manifest of the finished run whose id begins so, or the entry among some."""
    found = [entry for entry in (store.runs() if among is None else among) if entry["run"].startswith(run_id)]
    if len(found) != 1:
        seen = "no run" if not found else f"{len(found)} runs"
        raise UserError(f"{seen} in {store.uri} begin{'s' if len(found) < 2 else ''} with {run_id!r}; see memlib runs")
    return found[0]


@app.command
def diff(
    first: str,
    second: str,
    /,
    *,
    store: StoreOption = DEFAULT_STORE,
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
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
    opened = Store(store)
    a, b = _run(opened, first), _run(opened, second)
    if a["audit"] != b["audit"]:
        raise UserError(f"run {a['run']} is a {audit_of(a['audit'])} audit, {b['run']} a {audit_of(b['audit'])} audit")
    recipes_, findings = comparison.recipe_changes(a, b), comparison.finding_changes(a, b)
    artifacts = comparison.shared_artifacts(a, b)
    if json_:
        print(json.dumps({"recipe": recipes_, "findings": findings, "artifacts": artifacts}, indent=1))
        return
    _print_rows("recipe", ("key", a["run"], b["run"]), [[c["key"], str(c["first"]), str(c["second"])] for c in recipes_])
    rows = []
    for change in (c for c in findings if c["difference"] != 0):
        values = [_number(change[name]) for name in ("first", "second", "difference")]
        rows.append([f"{change['metric']} {change['params']}", *values, "intervals apart" if change["apart"] else ""])
    _print_rows("findings", ("metric", a["run"], b["run"], "difference", ""), rows)
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


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


@app.command
def verify(
    run_id: str | None = None,
    /,
    *,
    store: StoreOption = DEFAULT_STORE,
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Read every byte of a store's artifacts, or of one run's, and name what is not as it was committed.

    What is damaged is computed again by the next run that needs it. Ends with status 2 when anything is damaged.

    Parameters
    ----------
    run_id
        The run's id, or enough of its beginning; by default all artifacts are read.
    store
        Folder or s3:// prefix.
    json_
        Print the findings as JSON.
    """
    opened = Store(store)
    refs = upkeep.committed(opened) if run_id is None else sorted(upkeep.refs_of(_run(opened, run_id)), key=str)
    damaged = [{"artifact": str(found.ref), "problem": found.problem} for found in upkeep.verify(opened, refs)]
    if json_:
        print(json.dumps({"artifacts": len(refs), "damaged": damaged}, indent=1))
    for found in damaged if not json_ else ():
        console.print(f"{found['artifact']}: {found['problem']}", soft_wrap=True)
    if damaged:
        count = len({found["artifact"] for found in damaged})
        raise RunError(f"{count} of {len(refs)} artifacts in {store} are damaged; run the audit again to make them anew")
    if not json_:
        console.print(f"{len(refs)} artifacts in {store} are as they were committed", soft_wrap=True)


@app.command
def gc(
    *,
    keep: Annotated[Sequence[str], Parameter(negative="")] = (),
    days: float = 7.0,
    delete: Annotated[bool, Parameter(negative="")] = False,
    store: StoreOption = DEFAULT_STORE,
    json_: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """List what no run refers to: artifacts, broken attempts, states to resume from, Ray's notes. Deletes only when told.

    Parameters
    ----------
    keep
        A run to keep, by its id or enough of its beginning; may be given several times. By default all runs are kept; the
        results, report and artifacts of runs that are not are listed too.
    days
        Only what nobody has written to for so many days, so that no work under way is lost.
    delete
        Delete it.
    store
        Folder or s3:// prefix.
    json_
        Print it as JSON.
    """
    if days < 0:
        raise UserError(f"--days {days:g} lies in the future; use 0 or more")
    opened = Store(store)
    kept = [_run(opened, run_id) for run_id in keep] if keep else opened.runs()
    found = upkeep.garbage(opened, kept, before=time.time() - days * 86_400)
    if delete:
        upkeep.delete(opened, found)
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
    said = f"{len(found)} of nobody's, {len(kept)} runs kept"
    console.print(f"deleted {said}" if delete else f"found {said}; --delete removes what was found")


@app.command
def recipes(name: str | None = None, /) -> None:
    """List the shipped recipes, or print one.

    Parameters
    ----------
    name
        A recipe to print in full, with what it extends filled in.
    """
    if name is not None:
        content, resources = load_recipe(name)
        print(yaml.safe_dump(content | ({"resources": resources} if resources else {}), sort_keys=False), end="")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("recipe", "audit", "title"):
        table.add_column(heading, no_wrap=heading != "title")
    for key in shipped_recipes():
        content, _ = load_recipe(key)
        table.add_row(key, audit_of(content["audit"]), content.get("title", ""))
    console.print(table)


@app.command
def schema(what: str | None = None, /) -> None:
    """Print the meaning of every column of the results, or the JSON schema of a recipe.

    Parameters
    ----------
    what
        summary, units, curves (all of them by default), or an audit's name for its recipe.
    """
    if what in AUDITS:
        print(json.dumps(AUDITS[what].recipe.model_json_schema(), indent=1))
        return
    if what is not None and what not in PUBLISHED:
        raise UserError(f"no table or audit {what!r}; there are {', '.join([*PUBLISHED, *AUDITS])}")
    for name in [what] if what else PUBLISHED:
        for audit, table in PUBLISHED[name].items():
            of = f", audit {audit}" if audit else ""
            console.print(f"{name} (version {table.version}{of}): {table.meaning}", style="bold")
            console.print(f"results/table={name}/audit={audit or '*'}/run=*/part-0.parquet", style="dim")
            grid = Table(box=None, pad_edge=False)
            for heading in ("column", "type", "unit", "meaning"):
                grid.add_column(heading)
            for column in table.columns:
                grid.add_row(column.name, str(column.type), column.unit, column.meaning)
            console.print(grid)
            console.print()


def _print_run(manifest: dict[str, Any], *, whole: bool = False) -> None:
    table = Table(box=None, pad_edge=False, title=manifest["title"], title_justify="left")
    for heading in ("metric", "value", "95 % interval", "null", "p", "n", "verdict"):
        table.add_column(heading, justify="left" if heading in ("metric", "verdict") else "right")
    rows = [{**row, "params": json.loads(row["params"])} for row in manifest["findings"]]
    if not whole:
        headline, audit = rows[0]["params"], AUDITS[audit_of(manifest["audit"])]
        rows = [row for row in rows if audit.in_brief(row["params"], headline)]
    varying = _varying([row["params"] for row in rows])
    for row in rows:
        at = ", ".join(_setting(name, row["params"][name]) for name in varying if name in row["params"])
        interval = "" if row["ci_low"] is None else f"{row['ci_low']:.3f} to {row['ci_high']:.3f}"
        null = "" if row["null_value"] is None else f"{row['null_value']:.2g}"
        name = f"{row['metric']} {at}".strip()
        cells = (name, f"{row['value']:.3f}", interval, null, _p(row["p_value"]), str(row["n"]))
        table.add_row(*cells, row["verdict"])
    console.print(table)
    done = f"{len(manifest['computed'])} stages computed, {len(manifest['reused'])} reused, {manifest['seconds']:.0f} s"
    console.print(f"\nrun {manifest['run']}: {done}")
    console.print(f"results {manifest['results']['summary']}", soft_wrap=True)
    console.print(f"report  {manifest['report']}", soft_wrap=True)


def _reveal(store: Store, manifest: dict[str, Any]) -> None:
    if manifest["audit"] != "exposure":
        raise UserError(
            f"run {manifest['run']} is a {audit_of(manifest['audit'])} audit; only exposure has canaries to reveal"
        )
    from tasks.exposure_jobs import revealed  # loads torch

    for title, rows in revealed(store, manifest["recipe"], manifest["artifacts"]).items():
        table = Table(box=None, pad_edge=False, title=title, title_justify="left")
        for heading in rows[0] if rows else ():
            table.add_column(heading)
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        console.print(table)


def _varying(params: Sequence[dict[str, Any]]) -> list[str]:
    """The names in which findings differ, so that a reader can tell them apart."""
    names = dict.fromkeys(name for at in params for name in at if name not in ASIDE)
    return [name for name in names if len({str(at.get(name)) for at in params}) > 1]


def _setting(name: str, value: Any) -> str:
    return value if isinstance(value, str) else f"{name}={value}"


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _check_prefect() -> None:
    """Asks the Prefect server for a sign of life, when one is configured."""
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=10):
            pass
    except urllib.error.HTTPError:
        pass  # it answers; what it thinks of us is for Prefect to find out
    except (OSError, ValueError) as error:
        raise UserError(f"no Prefect server at PREFECT_API_URL {url} ({error}); start it or unset the variable") from error


@contextlib.contextmanager
def _server_starting() -> Iterator[None]:
    """Has Prefect start the API it would start anyway, when none is configured, while we load torch and the recipe.

    The thread is always waited for: Python kills those that outlive it, and C++ that is being killed aborts.
    """
    unwanted = threading.Event()
    servers = []

    def start() -> None:
        if os.environ.get("PREFECT_API_URL"):
            return
        with contextlib.suppress(Exception):  # if it cannot start, the flow will say so
            from prefect.server.api.server import SubprocessASGIServer
            from prefect.settings import PREFECT_API_URL

            if not PREFECT_API_URL.value() and not unwanted.is_set():
                servers.append(SubprocessASGIServer())
                servers[0].start()

    thread = threading.Thread(target=start)
    thread.start()
    try:
        yield
    except BaseException:
        unwanted.set()
        while thread.is_alive():
            for server in servers:
                server.stop()
            thread.join(timeout=0.1)
        raise
    thread.join()


def _quiet_prefect() -> None:
    """Prefect without its chatter, and with time enough to start its own API when no server is configured."""
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")


def _interrupt(*_: object) -> None:
    """SIGTERM as Ctrl-C: Ray and the Prefect API that this run started end with it."""
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; a user's mistake or an expected fault ends in one or two lines and status 2."""
    signal.signal(signal.SIGTERM, _interrupt)
    warnings.filterwarnings("ignore", module=r"torch\b")  # they speak to developers, between our own lines
    try:
        app(arguments)
    except (UserError, RunError) as error:
        print(f"memlib: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a lost network, a folder that is a file
        print(f"memlib: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("memlib: stopped; run the same command to go on, or memlib resume", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
