"""The flow of deployments: what its parameters request, and how a mistake ends."""

from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from flows import deja_vu
from flows.deployed import audit
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
