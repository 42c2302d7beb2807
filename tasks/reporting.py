"""Display of a run in Prefect: the summary as a table, the verdict, the page's address and a link to a figure."""

from pathlib import Path

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from memlib.records import RunRecord

ARTIFACT_ROWS = 50


def show_in_prefect(run: RunRecord, figure: str | None) -> None:
    """Attach a run's summary, verdict and figure to the Prefect run."""
    rows = [
        {
            name: getattr(row, name)
            for name in ("metric", "params", "role", "value", "ci_low", "ci_high", "p_value", "p_adjusted", "verdict")
        }
        for row in run.findings[:ARTIFACT_ROWS]
    ]
    key = f"{run.audit}-{run.run}".replace("_", "-")
    create_table_artifact(table=rows, key=f"{key}-summary", description=run.title)
    where = f"Report: `{run.report}`\n\nResults: `{run.results['summary']}`"
    text = f"# {run.title}\n\n{_said(run)}{where}"
    create_markdown_artifact(markdown=text, key=f"{key}-report", description=run.title)
    if figure is not None:
        create_link_artifact(link=_as_link(figure), link_text="figure", key=f"{key}-figure", description=run.title)


def _said(run: RunRecord) -> str:
    verdict = run.verdict
    return f"**{verdict.sentence}** {verdict.explanation}\n\n" if verdict is not None else ""


def _as_link(uri: str) -> str:
    return uri if "://" in uri else Path(uri).as_uri()
