"""Display of a run in Prefect: its id in the name of the flow run, and a summary of its result."""

from collections.abc import Mapping, Sequence

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext

from memlib.runs.records import RunRecord
from memlib.sanitize import plain

ARTIFACT_ROWS = 50
LONGEST_NAME = 120  # characters of a title


def name_flow_run(title: str, run: str) -> None:
    """Name the current flow run by a title and the id of the run."""
    context = FlowRunContext.get()
    if context is not None and context.flow_run is not None:
        with get_client(sync_client=True) as client:
            client.update_flow_run(context.flow_run.id, name=f"{title[:LONGEST_NAME]} ({run})")


def show_in_prefect(run: RunRecord, rows: Sequence[Mapping[str, str]], places: Mapping[str, str]) -> None:
    """Attach a run's summary to its flow run: the verdict, its findings, and where its files are.

    Prefect's server may be in other hands than the store, so the summary has no figure, only the address of the page.

    Args:
        rows: its findings, with formatted cells by column.
        places: addresses of its report and tables, by name.
    """
    key = f"{run.audit}-{run.run}-summary".replace("_", "-")
    create_markdown_artifact(markdown=_markdown(run, rows, places), key=key, description=run.title)


def show_costs(run: RunRecord, table: Sequence[Sequence[str]]) -> None:
    """Attach what each stage of a run took to its flow run.

    Args:
        table: headings, then rows of cells.
    """
    headings, *rows = table
    cells = [dict(zip(headings, row, strict=True)) for row in rows]
    key = f"{run.audit}-{run.run}-costs".replace("_", "-")
    create_table_artifact(table=cells, key=key, description=f"{run.title}: what its stages took, and what a plan estimates")


def _markdown(run: RunRecord, rows: Sequence[Mapping[str, str]], places: Mapping[str, str]) -> str:
    parts = [f"# {_text(run.title)}"]
    if run.verdict is not None:
        parts.append(f"**{_text(run.verdict.sentence)}** {_text(run.verdict.explanation)}")
    columns = [name for name in dict.fromkeys(name for row in rows for name in row) if any(row.get(name) for row in rows)]
    shown = [[row.get(name, "") for name in columns] for row in rows[:ARTIFACT_ROWS]]
    parts.append("\n".join(_row(cells) for cells in [columns, ["---"] * len(columns), *shown]))
    if len(rows) > ARTIFACT_ROWS:
        parts.append(f"and {len(rows) - ARTIFACT_ROWS} more rows")
    parts.append("\n".join(f"- {name}: `{plain(place)}`" for name, place in places.items()))
    return "\n\n".join(parts)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell if cell == '---' else _text(cell) for cell in cells)} |"


def _text(text: str) -> str:
    """Return text for Markdown, without markup and in one line."""
    text = " ".join(plain(text).split())
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#" else sign for sign in text)
