"""The flow of deployments: what its parameters request, and how a mistake ends."""

import errno
import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.settings import PREFECT_API_URL, temporary_settings

import memlib
from flows import deja_vu
from flows.deployed import _costs, audit
from memlib.errors import EngineLost, RunError, StoreUnreachable, UserError


def test_a_mistaken_recipe_name_fails_the_flow_with_one_line(tmp_path: Path) -> None:
    state = audit.fn(recipe="smok", store=str(tmp_path))
    assert state.is_failed()
    assert state.message == "no recipe 'smok'; did you mean smoke?"
    assert not list(tmp_path.iterdir())


def test_a_store_in_the_workers_own_folder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "some")
    monkeypatch.chdir(tmp_path)
    state = audit.fn(store="here")
    assert state.is_failed()
    assert "absolute" in state.message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "crashed"),
    [(EngineLost("Ray has died"), True), (StoreUnreachable("no answer"), True), (RunError("a loss is not finite"), False)],
)
def test_lost_engines_and_unreachable_stores_crash_the_flow_and_other_errors_fail_it(
    error: RunError, crashed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("flows.deployed.flow_of", lambda audit: broken)
    state = audit.fn(store=str(tmp_path / "store"))
    assert (state.is_crashed(), state.is_failed()) == (crashed, not crashed)
    assert state.message == str(error)


def test_the_page_of_a_run_in_prefect_shows_what_its_stages_took_beside_the_plan(
    prefect_api: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipe = tmp_path / "moons.json"
    recipe.write_text(
        json.dumps({
            "audit": "self_influence", "data": {"source": {"kind": "two_moons", "num_examples": 60}},
            "split": {"train_per_class": 20}, "model": {"architecture": "mlp", "widths": [4]}, "influence": {"checkpoints": 2},
            "training": {"objective": {"kind": "supervised"}, "epochs": 4, "batch_size": 10, "augment": None},
        })
    )  # fmt: skip
    store = str(tmp_path / "store")
    record = memlib.run(str(recipe), store=store, quiet=True).record
    monkeypatch.setattr("flows.deployed.flow_of", lambda audit: lambda *_: record)
    with temporary_settings({PREFECT_API_URL: prefect_api}):
        state = audit(recipe=str(recipe), store=store, return_state=True)
        with get_client(sync_client=True) as client:
            of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
            (costs,) = client.read_artifacts(artifact_filter=of_run)
    assert state.is_completed()
    (train,) = [row for row in json.loads(costs.data) if row["stage"] == "train"]
    assert float(train["planned peak GiB"]) > 0.5
    assert {"CPU s", "planned CPU s", "MiB out", "planned MiB out"} <= train.keys()


def test_the_message_of_a_run_on_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "a.npy")

    monkeypatch.setattr("flows.deployed.flow_of", lambda audit: full)
    state = audit.fn(store=str(tmp_path / "store"))
    assert state.is_failed()
    assert state.message == "OSError: [Errno 28] No space left on device: 'a.npy'"


def test_a_plan_that_cannot_be_made_takes_nothing_from_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.deployed.beside_plan", lambda *_: 1 / 0)
    monkeypatch.setattr("flows.deployed.metrics_by_stage", lambda *_: [{"stage": "train"}])
    assert _costs(None, None) == [{"stage": "train"}]


def test_an_arrangement_has_one_flow_named_after_its_audit() -> None:
    assert deja_vu.deja_vu.name == "deja-vu"
    assert deja_vu.deja_vu is deja_vu.deja_vu
    state = deja_vu.deja_vu.fn(recipe="exposure_smoke", store="/tmp")
    assert state.message == "recipe exposure_smoke is for the exposure audit, not deja-vu"
    with pytest.raises(AttributeError, match="has no attribute 'exposure'"):
        _ = deja_vu.exposure


def test_a_package_that_shadows_the_flows_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hiding = ModuleSpec("flows", None, is_package=True)
    hiding.submodule_search_locations = [str(tmp_path / "flows")]
    monkeypatch.setattr("memlib.audits.arrangement.find_spec", lambda name: hiding)
    with pytest.raises(UserError, match=f"hidden by {tmp_path}/flows; deploy from another folder"):
        _ = deja_vu.deja_vu
