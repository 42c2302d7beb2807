"""A run as Prefect shows it: the summary as a table, the verdict, and links to page and figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

ARTIFACT_ROWS = 50


def show_in_prefect(manifest: Mapping[str, Any], figure: str | None) -> None:
    """Attach a run's summary, verdict and figure to the Prefect run."""
    rows = [
        {
            name: row[name]
            for name in ("metric", "params", "role", "value", "ci_low", "ci_high", "p_value", "p_adjusted", "verdict")
        }
        for row in manifest["findings"][:ARTIFACT_ROWS]
    ]
    key = f"{manifest['audit']}-{manifest['run']}".replace("_", "-")
    create_table_artifact(table=rows, key=f"{key}-summary", description=manifest["title"])
    where = f"Report: `{manifest['report']}`\n\nResults: `{manifest['results']['summary']}`"
    text = f"# {manifest['title']}\n\n{_said(manifest)}{where}"
    create_markdown_artifact(markdown=text, key=f"{key}-report", description=manifest["title"])
    if figure is not None:
        create_link_artifact(link=_as_link(figure), link_text="figure", key=f"{key}-figure", description=manifest["title"])


def _said(manifest: Mapping[str, Any]) -> str:
    said = manifest.get("verdict")
    return f"**{said['sentence']}** {said['explanation']}\n\n" if said is not None else ""


def _as_link(uri: str) -> str:
    return uri if "://" in uri else Path(uri).as_uri()
