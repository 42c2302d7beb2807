"""The commands that give a run's findings to other tools: MLflow, model cards, Croissant."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from flows.cli.store import JsonOption, RunId, StoreOption, TrustOption, opened_store
from memlib.console import console, show_text
from memlib.runs.index import find_run
from memlib.runs.run import Run
from memlib.sharing.aggregates import Extra
from memlib.store import DEFAULT_STORE


def mlflow(
    run_id: RunId,
    /,
    *,
    uri: Annotated[str, Parameter(env_var="MLFLOW_TRACKING_URI")],
    experiment: Annotated[str, Parameter(env_var="MLFLOW_EXPERIMENT_NAME")] = "memlib",
    with_: Annotated[Sequence[Extra], Parameter(name="--with", negative="", consume_multiple=True, show_default=False)] = (),
    store: StoreOption = DEFAULT_STORE,
    trust: TrustOption = None,
) -> None:
    """Share the findings, recipe and verdict of a finished run with an MLflow server; repeat the command to update them.

    By default only aggregates are uploaded: no examples, class names or canaries, and no locations of files. Credentials are
    read from MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.

    Parameters
    ----------
    run_id
        Id of the run, or a unique prefix of it.
    uri
        Address of the server, as in http://mlflow.example:5000.
    experiment
        Name of the experiment, which is created if it is missing.
    with_
        Also upload the page, which shows examples, or the published tables, which list them: --with page tables.
    store
        Folder or s3:// prefix that the run was written to.
    """
    from memlib.sharing.mlflow import share

    run = _run(store, trust, run_id)
    receipt = share(run, uri, experiment=experiment, extra=with_)
    console.print(f"{'shared' if receipt.is_new else 'updated'} run {run.id}: {receipt.url}", soft_wrap=True)
    console.print("uploaded: findings, recipe and verdict, without single examples, classes and locations", soft_wrap=True)
    for path in receipt.files:
        console.print(f"uploaded: {path}", soft_wrap=True)
    if receipt.kept_at:
        console.print(f"not uploaded: summary and card, as the server keeps artifacts at {receipt.kept_at}", soft_wrap=True)


def card(
    run_id: RunId,
    /,
    *others: RunId,
    store: StoreOption = DEFAULT_STORE,
    trust: TrustOption = None,
    json_: JsonOption = False,
) -> None:  # fmt: skip
    """Print a section for a model card: what was audited, the verdicts with their numbers, and their limits, in Markdown.

    The section holds aggregates alone: no examples, class names or canaries, and no locations of files.

    Parameters
    ----------
    run_id
        Id of the run, or a unique prefix of it.
    others
        Further runs to put into the same section.
    store
        Folder or s3:// prefix that the runs were written to.
    json_
        Print the same as JSON.
    """
    from memlib.sharing.card import as_json, cards_of, markdown_of

    cards = cards_of([_run(store, trust, name) for name in (run_id, *others)])
    show_text(
        json.dumps(as_json(cards), indent=1, ensure_ascii=False) if json_ else markdown_of(cards), end="\n" if json_ else ""
    )


def croissant(run_id: RunId, /, *, store: StoreOption = DEFAULT_STORE, trust: TrustOption = None) -> None:
    """Print a description of a run's data as Croissant (JSON-LD): kind, digest, number of examples and known columns.

    It holds no example, class name or location. Complete license, creator and date of publication, which a store does not
    know, before you publish it.

    Parameters
    ----------
    run_id
        Id of the run, or a unique prefix of it.
    store
        Folder or s3:// prefix that the run was written to.
    """
    from memlib.sharing.croissant import describe

    show_text(json.dumps(describe(_run(store, trust, run_id)), indent=1, ensure_ascii=False))


def _run(store: str, trust: Path | None, run_id: str) -> Run:
    opened = opened_store(store, trust)
    return Run(opened, find_run(opened, run_id))
