"""The commands that join all audits about one model or data set: the document, and the list of the most exposed persons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from flows.cli.files import write_new
from flows.cli.store import JsonOption, RunId, StoreOption, TrustOption, print_run
from memlib.console import console, show_json, show_text
from memlib.errors import UserError
from memlib.store import DEFAULT_STORE
from memlib.store.permissions import read_plain

if TYPE_CHECKING:
    from memlib.runs.run import Run

MOST_BYTES = 2**20  # maximum size of the owner's statements

DataOption = Annotated[str, Parameter(name="--data")]
ModelOption = Annotated[str, Parameter(name="--model")]


def dossier(
    *run_ids: RunId,
    data: DataOption = "",
    model: ModelOption = "",
    title: str = "Dossier",
    release: Path | None = None,
    beside: Annotated[list[str] | None, Parameter(consume_multiple=False)] = None,
    most_days: float | None = None,
    no_ids: Annotated[bool, Parameter(negative="")] = False,
    pdf: Path | None = None,
    store: StoreOption = DEFAULT_STORE,
    trust: TrustOption = None,
    json_: JsonOption = False,
) -> None:
    """Join all audits about one model or data set into one document: page, JSON and, if asked for, PDF.

    The document says what was tested and what was not, with one verdict that is adjusted for all audits, who stands out,
    which runs contradict it, and how to repeat each number. It is a run like any other: memlib open, verify and sign work on
    it.

    Parameters
    ----------
    run_ids
        Ids of runs, or unique prefixes of them; of a sweep, all its cells belong to the dossier.
    data
        Digest of a data set, or its beginning: all current runs on these data belong to the dossier.
    model
        Digest (sha256) of a file of weights or of supplied outputs, or its beginning: likewise for the runs on this model.
    title
        Heading of the document.
    release
        YAML file with the owner's statements about the intended release: model, digest (memlib verify --digest), released,
        policy, author, purpose, audience, access, persons, measures, residual_risk, contact.
    beside
        Another store in which runs on the same subject are looked for whose verdict contradicts the document's; can be given
        several times. Runs of this store are always looked for.
    most_days
        Age in days from which a run is stale and no longer counts.
    no_ids
        Leave out the ids of persons and examples: aggregates and digests alone.
    pdf
        Also write the document to this file, as PDF; needs pip install -e '.[pdf]' in memlib's folder.
    store
        Folder or s3:// prefix that the runs were written to.
    json_
        Print the document as JSON.
    """
    statements = {} if release is None else _read_release(release)
    options = {"title": title, "release": statements, "most_days": most_days, "ids": not no_ids}
    run = _joined(run_ids, data, model, store, trust, options, beside or ())
    if pdf is not None:
        _write_pdf(run, pdf)
    if json_:
        show_text(run.published(f"runs/{run.id}/dossier.json").decode())
    else:
        print_run(run.store, run.record)


def risk(
    *run_ids: RunId,
    data: DataOption = "",
    model: ModelOption = "",
    most: int = 20,
    csv_: Annotated[Path | None, Parameter(name="--csv")] = None,
    store: StoreOption = DEFAULT_STORE,
    trust: TrustOption = None,
    json_: JsonOption = False,
) -> None:
    """List the persons and examples that the audits of one model or data set find most exposed, by id.

    Parameters
    ----------
    run_ids
        Ids of runs, or unique prefixes of them.
    data
        Digest of a data set, or its beginning: all current runs on these data count.
    model
        Digest (sha256) of a file of weights or of supplied outputs, or its beginning: likewise for the runs on this model.
    most
        Number of rows to print.
    csv_
        Write all rows to this new file, as CSV.
    store
        Folder or s3:// prefix that the runs were written to.
    json_
        Print the rows as JSON.
    """
    run = _joined(run_ids, data, model, store, trust, {})
    if "risk" not in run.tables:
        raise UserError("none of these audits ranks single persons or examples; memlib recipes lists audits that do")
    table = run.tables["risk"]
    if csv_ is not None:
        from memlib.report.spreadsheet import csv_of

        write_new(csv_, csv_of(table.to_pylist()).encode())
    rows = table.slice(0, most).to_pylist()
    if json_:
        show_json(rows)
        return
    from memlib.report.format import format_p

    for row in rows:
        p = f"  p = {format_p(row['p_value'])}, adjusted {format_p(row['p_adjusted'])}" if row["p_value"] is not None else ""
        console.print(
            f"{row['place']:>6}  {row['kind']} {row['id']}  named by {row['named']} of {row['examined']}{p}",
            soft_wrap=True,
        )
    console.print(f"{len(rows)} of {table.num_rows}; the dossier is run {run.id}")


def _joined(
    run_ids: Sequence[str],
    data: str,
    model: str,
    store: str,
    trust: Path | None,
    options: dict[str, Any],
    beside: Sequence[str] = (),
) -> Run:
    """Run the dossier in this process."""
    if not run_ids and not data and not model:
        raise UserError("name the subject: --data DIGEST, --model DIGEST, or ids of runs; memlib runs lists them")
    from memlib.running.api import run

    subject = {"data": data, "model": model, "runs": list(run_ids), "beside": list(beside)}
    return run({"audit": "dossier", "subject": subject, **options}, store=store, trust=trust, quiet=True)


def _read_release(path: Path) -> Any:
    from memlib.recipes.yaml import read_yaml

    try:
        content = read_plain(path, MOST_BYTES)
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror or error})") from error
    return read_yaml(content.decode("utf-8", errors="replace"), str(path))


def _write_pdf(run: Run, path: Path) -> None:
    """Print the page to PDF with WeasyPrint."""
    try:
        import weasyprint
    except (ImportError, OSError) as error:  # OSError: without pango
        raise UserError(f"--pdf needs WeasyPrint and pango: pip install -e '.[pdf]' in memlib's folder ({error})") from error
    content = weasyprint.HTML(filename=str(run.report), url_fetcher=_no_network).write_pdf()
    write_new(path, content)


def _no_network(url: str, *_: Any, **__: Any) -> Any:
    """Refuse every address but data URIs: pages need no network."""
    import weasyprint

    if not url.startswith("data:"):
        raise ValueError(f"pages name no files or addresses, but this one names {url[:80]!r}")
    return weasyprint.default_url_fetcher(url)
