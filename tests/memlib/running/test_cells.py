"""One cell of a sweep as a run of its own, as the jobs of a job array run it."""

from pathlib import Path

import pytest

from flows.cli.app import main
from memlib.audits.sweep.recipe import Recipe, run_of
from memlib.errors import UserError
from memlib.recipes.cells import cells_of
from memlib.recipes.request import AuditRequest
from memlib.running.cells import cell_of
from memlib.specs.resources import RunOptions
from memlib.store import Store

CHANGES = {"resources.stages": {"train": {"cpus": 2}, "score_forgetting": {"cpus": 3}}}


def sweep() -> AuditRequest:
    return AuditRequest.read("sweep_smoke", CHANGES)


def test_each_cell_is_requested_as_the_sweep_requests_it(tmp_path: Path) -> None:
    request, store = sweep(), Store(str(tmp_path / "store"))
    assert isinstance(request.recipe, Recipe)
    expected = list(cells_of(request.recipe).values())
    alone = [cell_of(request, number, store) for number in (1, 2, 3)]
    assert [one.recipe for one, _ in alone] == [cell.recipe for cell in expected]
    assert [one.audit.name for one, _ in alone] == ["deja-vu", "deja-vu", "forgetting"]
    assert {look for _, look in alone} == {run_of(request.recipe)}
    assert not (tmp_path / "store").exists()


def test_a_cell_keeps_the_machines_of_its_own_stages(tmp_path: Path) -> None:
    request, store = sweep(), Store(str(tmp_path / "store"))
    first, third = (cell_of(request, number, store)[0].resources for number in (1, 3))
    assert (set(first.stages), set(third.stages)) == ({"train"}, {"train", "score_forgetting"})
    assert third.stages["score_forgetting"].cpus == 3


@pytest.mark.parametrize("number", [0, 4, -1])
def test_a_number_without_a_cell_is_refused(tmp_path: Path, number: int) -> None:
    with pytest.raises(UserError, match=rf"no cell {number} among 3; memlib validate lists"):
        cell_of(sweep(), number, Store(str(tmp_path / "store")))


def test_a_cell_of_an_audit_without_cells_and_an_unknown_stage_are_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    with pytest.raises(UserError, match="a deja-vu audit has no cells; leave out --cell 1"):
        cell_of(AuditRequest.read("smoke"), 1, store)
    with pytest.raises(UserError, match="no stage 'trian'"):
        cell_of(AuditRequest.read("sweep_smoke", {"resources.stages": {"trian": {"cpus": 2}}}), 1, store)


def test_the_command_runs_one_cell_with_the_look_of_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[AuditRequest, RunOptions]] = []
    monkeypatch.setattr(
        "flows.cli.running._carry_out", lambda request, store, options, hooks, **more: asked.append((request, options))
    )
    command = ["run", "sweep_smoke", "--store", str(tmp_path / "store")]
    assert main([*command, "--cell", "2"]) == 0
    assert "cell 2 of sweep" in capsys.readouterr().err
    assert main(command) == 0
    plan = tmp_path / "plan.json"
    assert main(["plan", "sweep_smoke", "--freeze", str(plan), "--store", str(tmp_path / "store")]) == 0
    assert main([*command, "--cell", "2", "--plan", str(plan)]) == 2
    assert "leave out --plan with --cell" in capsys.readouterr().err
    (one, options), (whole, plainly) = asked
    assert (one.audit.name, one.recipe.training.epochs) == ("deja-vu", 40)  # type: ignore[attr-defined]
    assert isinstance(whole.recipe, Recipe)
    assert (options.look, plainly.look) == (run_of(whole.recipe), "")


def test_validate_lists_the_cells_by_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "sweep_smoke"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == ["cell 1: epochs=10", "cell 2: epochs=40", "cell 3: forgetting_smoke"]
    assert main(["validate", "smoke"]) == 0
    assert "cell 1" not in capsys.readouterr().out
