"""The flow of deployments: what its parameters ask for, and how a mistake ends."""

from pathlib import Path

import pytest
import yaml

from flows.deployed import asked_for, audit
from memlib.errors import EngineLost, RunError, StoreUnreachable, UserError
from memlib.specs import Resources


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": "smoke", "resources": {"resume_seconds": 5, "workers_per_model": 3}}))
    return str(path)


def test_changes_are_values_and_not_texts(recipe: str) -> None:
    changes = {"training.epochs": 7, "training.optimizer.learning_rate": 1e-5, "title": "yes: no", "decode": {"k": [3]}}
    name, spec, _ = asked_for(recipe, changes, Resources())
    assert name == "deja-vu"
    found = spec.model_dump()
    assert found["training"]["epochs"] == 7
    assert found["training"]["optimizer"]["learning_rate"] == 1e-5
    assert found["title"] == "yes: no"
    assert found["decode"]["k"] == (3,)


def test_machines_of_the_form_go_before_those_of_the_recipe(recipe: str) -> None:
    _, _, machines = asked_for(recipe, {}, Resources(workers_per_model=8))
    assert (machines.resume_seconds, machines.workers_per_model) == (5, 8)
    _, _, machines = asked_for(recipe, {"resources.resume_seconds": 7}, Resources())
    assert (machines.resume_seconds, machines.workers_per_model) == (7, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training.epoch": 7}, "did you mean epochs"),
        ({"training.epochs": -1}, "training.epochs"),
        ({"audit": "nothing"}, "does not say which audit"),
        ({"resources.gpus": 1}, "did you mean gpu"),
    ],
)
def test_a_mistake_is_named(changes: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        asked_for("smoke", changes, Resources())


def test_a_mistake_ends_as_one_line(tmp_path: Path) -> None:
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
def test_what_a_machine_did_is_a_crash_and_is_run_again(
    error: RunError, crashed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("flows.deployed.flow_of", lambda audit: broken)
    state = audit.fn(store=str(tmp_path / "store"))
    assert (state.is_crashed(), state.is_failed()) == (crashed, not crashed)
    assert state.message == str(error)
