"""Prefect shows which run a flow run is, what its stages do, and its result as `memlib show` prints it."""

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, LogFilter, LogFilterFlowRunId
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.engine import CellsRunner, carry_out
from memlib.data.stages import Decode
from memlib.errors import RunError
from memlib.pipeline.stage import CellRequest
from memlib.recipes.request import AuditRequest
from memlib.runs.records import FindingRecord, RunRecord, VerdictRecord
from memlib.specs import DataSpec, Resources
from memlib.specs.resources import RunOptions
from tasks.display import LOGGER
from tasks.stage import StageRunner

pytestmark = pytest.mark.long

DATA = Decode(DataSpec.model_validate({"source": {"kind": "two_moons", "num_examples": 20}}))
FINDINGS = [
    FindingRecord(
        metric="share_excess", params='{"k": 5, "encoder": "backbone"}', role="test", value=0.13812345, n=800, ci_low=0.1,
        ci_high=0.2, p_value=2.345e-14, p_adjusted=2.345e-14, verdict="shown",
    ),
    FindingRecord(metric="probe|gap", params='{"k": 6, "encoder": "projector"}', role="diagnostic", value=0.00012345, n=7),
]  # fmt: skip
RUN = RunRecord(
    run="0123456789ab",
    audit="deja_vu",
    title="Smoke <b>",
    finished=1.0,
    findings=FINDINGS,
    verdict=VerdictRecord(word="shown", sentence="The model has memorized images.", explanation="By 13.8 %."),
    results={"summary": "elsewhere"},
    report="elsewhere/report.html",
)


@pytest.fixture(scope="module")
def prefect(prefect_api: str) -> Iterator[None]:
    with temporary_settings({PREFECT_API_URL: prefect_api}):
        yield


def body(runner: StageRunner, recipe: Any) -> RunRecord:
    if recipe.title == "fails":
        raise RunError("no room")
    runner.run(DATA)
    runner.warn("the recipe is small")
    runner.context.warn("data: cat.png is no image", names_data=True)
    return RUN


def run(store: Path, title: str = "Smoke", epochs: int = 1) -> Any:
    recipe = AuditRequest.read("smoke", {"title": title, "training.epochs": epochs}).recipe
    audited = flow(name="deja-vu", flow_run_name=title)(
        lambda: carry_out("deja-vu", body, recipe, str(store), Resources(), RunOptions(quiet=True))
    )
    return audited(return_state=True)


def of(state: Any) -> tuple[Any, list[Any], list[Any]]:
    """Return a flow run, its logs and its artifacts, as the UI gets them."""
    for handler in logging.getLogger(LOGGER).handlers:
        handler.flush()
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(state.state_details.flow_run_id)
        of_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id]))
        logs = [log for log in client.read_logs(of_run) if log.name == LOGGER]
        artifacts = client.read_artifacts(artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id])))
    return run, logs, list(artifacts)


@pytest.mark.usefixtures("prefect")
def test_a_flow_run_shows_its_id_stages_and_result(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first, logs, artifacts = of(run(tmp_path))
    assert first.name == f"Smoke ({RUN.run})"
    assert [log.message.rsplit(" in ", 1)[0] for log in logs] == [
        "decode examples: started", "decode examples: done", "the recipe is small",
        "a warning was printed that may name examples; see the output of the run",
    ]  # fmt: skip
    assert [log.level for log in logs] == [20, 20, 30, 30]
    assert logs[0].task_run_id is not None
    (summary,) = (found for found in artifacts if found.type == "markdown")  # beside the progress of slow stages
    lines = summary.data.splitlines()
    assert lines[0] == r"# Smoke \<b\>"
    assert "**The model has memorized images.** By 13.8 %." in lines
    assert "| setting | metric | value | 95 % interval | p | p adjusted | n | verdict |" in lines
    assert r"| k=5, backbone | share\_excess | 0.138 | 0.100 to 0.200 | 2.3e-14 | 2.3e-14 | 800 | shown |" in lines
    assert r"| k=6, projector | probe\|gap | 0.00012 |  |  |  | 7 |  |" in lines
    assert f"- report: `{tmp_path}/runs/{RUN.run}/report.html`" in lines
    assert "file://" not in summary.data
    assert "data: cat.png is no image" in capfd.readouterr().err
    again, logs, _ = of(run(tmp_path))
    assert again.name == first.name  # of the same recipe, it is the same run
    assert "decode examples: found in the store" in [log.message for log in logs]
    assert "found in the store" not in capfd.readouterr().err  # quiet, and no second copy by Prefect's own handlers


@pytest.mark.usefixtures("prefect")
def test_names_of_failed_runs_of_one_title_differ(tmp_path: Path) -> None:
    names = {of(run(tmp_path, "fails", epochs))[0].name for epochs in (1, 2)}
    assert len(names) == 2
    assert all(re.fullmatch(r"fails \([0-9a-f]{12}\)", name) for name in names)


@pytest.mark.usefixtures("prefect")
def test_a_cell_that_runs_on_its_own_shares_the_look_of_its_sweep(tmp_path: Path) -> None:
    looks: list[str] = []

    def looking(runner: StageRunner, recipe: Any) -> RunRecord:
        looks.append(runner.context.work.look)
        return RUN

    recipe = AuditRequest.read("smoke").recipe
    for look in ("fedcba987654", ""):
        options = RunOptions(quiet=True, look=look)
        carry_out("deja-vu", looking, recipe, str(tmp_path / "store"), Resources(), options)
    assert looks == ["fedcba987654", ""]


@pytest.mark.usefixtures("prefect")
def test_cells_keep_their_order_whichever_ends_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = AuditRequest.read("sweep_smoke").recipe
    cells = dict.fromkeys(("slow", "fast"), CellRequest("deja-vu", AuditRequest.read("smoke").recipe, {}))
    orders = []

    def end(runner: CellsRunner, name: str, cell: CellRequest) -> RunRecord:
        time.sleep(0.5 if name == "slow" else 0)
        return RUN

    def joining(runner: CellsRunner, recipe: Any) -> RunRecord:
        orders.append(list(runner.run_cells(cells, look="fedcba987654", at_once=2)))
        return RUN

    monkeypatch.setattr(CellsRunner, "_run_cell", end)
    carry_out("sweep", joining, recipe, str(tmp_path / "store"), Resources(), RunOptions(quiet=True))
    assert orders == [["slow", "fast"]]
