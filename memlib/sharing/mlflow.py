"""Findings of a run in MLflow, by its REST interface (2.0); sharing the same run again updates its run in MLflow."""

import base64
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote, urlencode

from memlib.errors import RunError, UserError
from memlib.findings import Finding, Findings
from memlib.report.spreadsheet import csv_of
from memlib.runs.index import page_path
from memlib.runs.run import Run
from memlib.sanitize import brief, one_line, plain
from memlib.sharing.aggregates import Extra, names_of, shared_findings, shared_recipe
from memlib.sharing.card import card_of, markdown_of
from memlib.sharing.web import WebError, check_url, host_of, send

API = "/api/2.0/mlflow/"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/"
PROXIED = "mlflow-artifacts:/"  # location of artifacts that the server itself stores
RUN_TAG = "memlib.run"
TOKEN, USERNAME, PASSWORD = "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
LONGEST_NAME, LONGEST_PARAM, LONGEST_TAG = 250, 500, 5000  # the limits of MLflow 2.0; later servers take longer values
MOST_METRICS, MOST_PARAMS = 1000, 100  # of one request
OTHER_SERVER = "the server does not answer as MLflow does; is the address right?"
FOLDER = "memlib"  # of the run's artifacts in MLflow


@dataclass(frozen=True)
class Shared:
    """The content of a run in MLflow."""

    title: str  #: its name.
    started: int  #: started, finished: times in milliseconds since 1970.
    finished: int
    metrics: Mapping[str, float]  #: metrics, params, tags: its values by name.
    params: Mapping[str, str]
    tags: Mapping[str, str]
    files: Mapping[str, bytes]  #: content of its artifacts by path.


@dataclass(frozen=True)
class Receipt:
    """The record of a run that was shared."""

    url: str  #: address of the run in MLflow's pages.
    is_new: bool  #: whether the run was created; otherwise it was updated.
    files: Sequence[str]  #: paths of the artifacts that were uploaded.
    #: location of artifacts to which the server passes nothing on, so that none were uploaded; "" otherwise.
    kept_at: str = ""


def share(run: Run, uri: str, *, experiment: str = "memlib", extra: Sequence[Extra] = ()) -> Receipt:
    """Share a finished run with an MLflow server, and return a record of it.

    Credentials are read from MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.

    Args:
        experiment: name of the experiment, which is created if it is missing.
        extra: what to upload beside aggregates: the page, the published tables.

    Raises:
        UserError: if the address, the experiment or the credentials cannot be used.
        RunError: if the server cannot be reached or refuses the run, or a published file is missing.
    """
    server, shared = Server(uri), content_of(run, extra)
    try:
        return _sent(server, run, shared, experiment, extra)
    except (AttributeError, LookupError, RecursionError, TypeError) as error:  # of an answer without what MLflow's have
        raise RunError(OTHER_SERVER) from error


def _sent(server: "Server", run: Run, shared: Shared, experiment: str, extra: Sequence[Extra]) -> Receipt:
    """Send a run to a server, and return a record of it."""
    place = server.experiment(experiment)
    found = server.find(place, run.id)
    info = found or server.create(place, run.id, shared)
    url = one_line(f"{server.uri}/#/experiments/{quote(place)}/runs/{quote(info['run_id'])}")
    server.log(info["run_id"], shared)
    kept_at = "" if str(info["artifact_uri"]).startswith(PROXIED) else one_line(str(info["artifact_uri"]))
    if kept_at and extra:
        raise RunError(
            f"{host_of(server.uri)} does not store artifacts itself (they are kept at {brief(kept_at)}), so memlib cannot "
            "upload them; share the run without --with, or start the server with --serve-artifacts"
        )
    if not kept_at:
        server.upload(str(info["artifact_uri"]).removeprefix(PROXIED).strip("/"), shared.files)
    server.finish(info["run_id"], shared)
    return Receipt(url, found is None, [] if kept_at else list(shared.files), kept_at)


def content_of(run: Run, extra: Sequence[Extra] = ()) -> Shared:
    """Return the content of a run in MLflow: by default findings, recipe, summary and model card, without single records."""
    record, findings = run.record, shared_findings(run.record)
    if not findings:
        raise UserError(f"run {run.id} has findings about single records alone, which are not shared")
    card = card_of(run)
    files = {"summary.csv": _summary(findings), "card.md": markdown_of([card]).encode()}
    if "page" in extra:
        files["report.html"] = run.published(page_path(record))
    if "tables" in extra:
        tables = [path for path in record.published if path.startswith("results/")]
        files |= {path.replace("results/table=", "tables/", 1): run.published(path) for path in tables}
    tags = {
        RUN_TAG: run.id,
        "memlib.audit": record.audit,
        "memlib.verdict": run.verdict.word,
        "memlib.sentence": run.verdict.sentence,
        "memlib.looks": card.looks,
        "memlib.data": record.ledger.data,
        "memlib.version": card.memlib,
        "mlflow.note.content": f"{run.verdict.word.capitalize()}. {run.verdict.sentence} {card.looks}".strip(),
    }
    return Shared(
        title=record.title or run.id,
        started=round(1000 * (record.finished - record.seconds)),
        finished=round(1000 * record.finished),
        metrics=_metrics(findings),
        params={valid_name(key): _cut(value, LONGEST_PARAM) for key, value in shared_recipe(record.recipe).items()},
        tags={name: _cut(plain(value), LONGEST_TAG) for name, value in tags.items() if value},
        files={f"{FOLDER}/{name}": content for name, content in files.items()},
    )


def _metrics(findings: Findings) -> dict[str, float]:
    """Return value, interval, p-values and bound of each finding, and those of the headline under a name of their own."""
    named = {"headline": findings.head} | dict(zip(names_of(findings), findings, strict=True))
    return {
        valid_name(name, f"/{part}"): value
        for name, row in named.items()
        for part, value in _numbers(row).items()
        if value is not None and math.isfinite(value)
    }


def _numbers(row: Finding) -> dict[str, float | None]:
    ends = {"low": row.low, "high": row.high}
    return {"value": row.value, **ends, "p": row.p_value, "p_adjusted": row.p_adjusted, "upper_bound": row.upper_bound}


def valid_name(name: str, suffix: str = "") -> str:
    """Return a name that every MLflow server accepts: letters, digits and " _-.", of limited length.

    Args:
        name: any text; what is replaced or cut is told apart by a digest.
        suffix: end of the name, which stays as it is.
    """
    valid = re.sub(r"[^A-Za-z0-9_.\- ]", "-", name).strip(". ") or "-"
    if len(valid) + len(suffix) > LONGEST_NAME or valid != name:
        digest = "-" + hashlib.sha256(name.encode(errors="replace")).hexdigest()[:6]
        valid = valid[: LONGEST_NAME - len(suffix) - len(digest)].rstrip(". ") + digest
    return valid + suffix


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _summary(findings: Findings) -> bytes:
    """Return findings as CSV, by the names of their metrics."""
    named = zip(names_of(findings), findings, strict=True)
    rows = [{"finding": name, **_numbers(row), "n": row.n, "verdict": row.verdict} for name, row in named]
    return csv_of(rows).encode()


class Server:
    """An MLflow tracking server.

    Attributes:
        uri: its address, without a slash at the end.
    """

    def __init__(self, uri: str) -> None:
        check_url(uri, name="the address of the MLflow server", remedy=f"set {TOKEN}, or {USERNAME} and {PASSWORD}, instead")
        self.uri = uri.rstrip("/")
        self._headers = {"Content-Type": "application/json", **_authorization()}

    def experiment(self, name: str) -> str:
        """Return the id of an experiment, which is created if it is missing."""
        try:
            found = self._get("experiments/get-by-name", experiment_name=name)["experiment"]
        except WebError as error:
            if error.status != 404:
                self._explain(error)
            return str(self._post("experiments/create", name=name)["experiment_id"])
        if found.get("lifecycle_stage") == "deleted":
            raise UserError(f"the experiment {name!r} was deleted on the server; restore it, or choose another --experiment")
        return str(found["experiment_id"])

    def find(self, experiment: str, run: str) -> Mapping[str, Any] | None:
        """Return the oldest run that shares a run of memlib, as MLflow describes it; None if there is none."""
        found = self._post(
            "runs/search",
            experiment_ids=[experiment],
            filter=f"tags.`{RUN_TAG}` = '{run}'",
            order_by=["attributes.start_time ASC"],
            max_results=1,
        )
        runs: list[dict[str, Any]] = found.get("runs", [])
        return runs[0]["info"] if runs else None

    def create(self, experiment: str, run: str, shared: Shared) -> Mapping[str, Any]:
        """Create a run, and return it as MLflow describes it."""
        made = self._post(
            "runs/create",
            repeatable=False,
            experiment_id=experiment,
            run_name=shared.title,
            start_time=shared.started,
            tags=[{"key": RUN_TAG, "value": run}],
        )
        info: dict[str, Any] = made["run"]["info"]
        return info

    def log(self, run_id: str, shared: Shared) -> None:
        """Write tags, params and metrics; values that the run has already stay as they are."""
        at = {"timestamp": shared.finished, "step": 0}
        metrics = [{"key": key, "value": value, **at} for key, value in shared.metrics.items()]
        params = [{"key": key, "value": value} for key, value in shared.params.items()]
        self._post("runs/log-batch", run_id=run_id, tags=[{"key": key, "value": text} for key, text in shared.tags.items()])
        for start in range(0, len(params), MOST_PARAMS):
            self._post("runs/log-batch", run_id=run_id, params=params[start : start + MOST_PARAMS])
        for start in range(0, len(metrics), MOST_METRICS):
            self._post("runs/log-batch", run_id=run_id, metrics=metrics[start : start + MOST_METRICS])

    def upload(self, folder: str, files: Mapping[str, bytes]) -> None:
        """Write artifacts.

        Args:
            folder: location of the run's artifacts on the server.
            files: content of the files by path.
        """
        headers = {**self._headers, "Content-Type": "application/octet-stream"}
        for path, content in files.items():
            self._send("PUT", f"{ARTIFACTS}{quote(f'{folder}/{path}')}", content, headers)

    def finish(self, run_id: str, shared: Shared) -> None:
        """Mark a run as finished, and give it its present title."""
        self._post("runs/update", run_id=run_id, status="FINISHED", end_time=shared.finished, run_name=shared.title)

    def _get(self, endpoint: str, **query: str) -> dict[str, Any]:
        return _answer(send("GET", f"{self.uri}{API}{endpoint}?{urlencode(query)}", headers=self._headers))

    def _post(self, endpoint: str, *, repeatable: bool = True, **body: Any) -> dict[str, Any]:
        content = json.dumps(body).encode()
        return _answer(self._send("POST", f"{API}{endpoint}", content, self._headers, repeatable=repeatable))

    def _send(
        self, method: str, path: str, content: bytes, headers: Mapping[str, str], *, repeatable: bool = True
    ) -> bytes:  # fmt: skip
        try:
            return send(method, f"{self.uri}{path}", content, headers=headers, repeatable=repeatable)
        except WebError as error:
            self._explain(error)

    def _explain(self, error: WebError) -> NoReturn:
        """Raise an error in one line, with the server's reason."""
        if error.status in (401, 403):
            raise UserError(f"{error}: it refuses the credentials; set {TOKEN}, or {USERNAME} and {PASSWORD}") from error
        try:
            reason = str(json.loads(error.content)["message"]).splitlines()[0]
        except (ValueError, LookupError, TypeError):
            reason = ""
        raise RunError(f"{error}{': ' if reason else ''}{brief(reason)}") from error


def _authorization() -> dict[str, str]:
    """Return the header with the credentials of the environment; an empty mapping without credentials.

    Raises:
        UserError: for credentials that fit in no header.
    """
    token, user = os.environ.get(TOKEN, ""), os.environ.get(USERNAME, "")
    if not (token or user):
        return {}
    if any(character < " " for character in token):
        raise UserError(f"{TOKEN} has several lines, or other control characters; set it to the token alone")
    pair = base64.b64encode(f"{user}:{os.environ.get(PASSWORD, '')}".encode()).decode()
    return {"Authorization": f"Bearer {token}" if token else f"Basic {pair}"}


def _answer(content: bytes) -> dict[str, Any]:
    """Return the answer of the server, which is a JSON object.

    Raises:
        RunError: if it is anything else, as that of another server.
    """
    try:
        answer = json.loads(content or b"{}")
    except (RecursionError, ValueError):
        answer = None
    if not isinstance(answer, dict):
        raise RunError(OTHER_SERVER)
    return answer
