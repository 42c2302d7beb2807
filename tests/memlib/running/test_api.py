"""The functions of memlib: an audit in one process, its tables and its page, and operations on finished runs."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import memlib
import memlib.audits.self_influence
from flows.cli.app import main
from memlib.audits import AUDITS
from memlib.errors import RunError, UserError
from memlib.runs import NoSuchRun
from memlib.runs.run import Run

RECIPE = Path(__file__).parents[3] / "deployments/starters/self_influence.yaml"
CHANGES: dict[str, Any] = {"training.epochs": 12, "data.source.num_examples": 100, "split.validation_per_class": 10}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("api") / "store")


@pytest.fixture(scope="module")
def run(store: str) -> Run:
    return memlib.run(RECIPE, store=store, changes=CHANGES, quiet=True)


def test_a_run_has_a_verdict_tables_and_a_page(run: Run) -> None:
    assert run.audit == "self_influence"
    assert run.verdict.word == "descriptive"
    assert run.verdict.sentence in run.report.read_text()
    assert run.summary.num_rows == len(run.summary.to_pylist())
    assert run.summary["value"][0].as_py() == run.findings[0].value
    assert set(run.tables) == {"summary", "curves", "units"}
    assert run.units.num_rows == 80
    assert run.recipe["training"]["epochs"] == 12
    assert run.id in repr(run)
    with pytest.raises(KeyError):
        run.tables["nothing"]


def test_tables_of_a_run_equal_those_read_by_duckdb(run: Run, store: str) -> None:
    import duckdb

    path = f"{store}/results/table=units/**/*.parquet"
    (count,) = duckdb.sql(f"select count(*) from read_parquet('{path}', hive_partitioning=true)").fetchall()[0]
    assert run.tables["units"].num_rows == count


def test_a_second_run_computes_nothing(run: Run, store: str) -> None:
    again = memlib.run(RECIPE, store=store, changes=CHANGES)
    assert again.id == run.id
    assert again.record.computed == []
    parts = memlib.plan(RECIPE, store=store, changes=CHANGES).parts.values()
    assert parts
    assert all(part.hit for part in parts)


def test_the_store_of_the_environment_is_the_default(
    run: Run, store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMLIB_STORE", store)
    assert memlib.open(run.id).id == run.id
    plan = memlib.plan(RECIPE, changes=CHANGES)
    assert "train: 1 of 1 in the store" in str(plan)
    assert not list(tmp_path.iterdir())


def test_memlib_show_prints_a_run_computed_in_python(run: Run, store: str) -> None:
    command = [sys.executable, "-m", "flows.cli.entry", "show", run.id[:6], "--store", store, "--json"]
    assert run.verdict.sentence in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_run_opens_by_the_beginning_of_its_name(run: Run, store: str) -> None:
    assert memlib.open(run.id[:5], store=store).record.scores == run.record.scores
    with pytest.raises(NoSuchRun, match="no run id in"):
        memlib.open("zz", store=store)
    with pytest.raises(UserError):
        memlib.open("zz", store=f"{store}-that-is-missing")


def test_a_notebook_shows_escaped_text(run: Run) -> None:
    evil = Run(run.store, run.record.model_copy(update={"title": "<script>"}))
    assert "&lt;script&gt;" in evil._repr_html_()
    assert "<script>" not in evil._repr_html_()
    assert run.findings[0].metric in evil._repr_html_()


def test_a_table_that_was_changed_is_refused(run: Run, store: str, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    copy = memlib.open(run.id, store=str(tmp_path / "store"))
    path = next((tmp_path / "store" / "results/table=units").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(RunError, match="differs from what was published"):
        _ = copy.units
    path.unlink()
    with pytest.raises(RunError, match="is missing"):
        _ = copy.units
    copy.report.unlink()
    with pytest.raises(RunError, match="has no report"):
        _ = copy.report


def test_a_limit_of_a_recipe_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = replace(AUDITS["self-influence"], limits=lambda recipe: ["too small to tell"])
    monkeypatch.setattr(memlib.audits.self_influence, "AUDIT", audit)
    with pytest.warns(UserWarning, match="too small to tell"):
        memlib.run(RECIPE, store=str(tmp_path), changes=CHANGES, quiet=True)


def test_a_sweep_runs_in_this_process(tmp_path: Path) -> None:
    sweep = {
        "audit": "sweep",
        "recipe": str(RECIPE),
        "set": CHANGES,
        "grid": {"training.epochs": [2, 3]},
        "cells": [{"name": "broken", "set": {"data.source.num_examples": 4}}],
    }
    with pytest.raises(RunError, match="1 of 3 cells failed .broken: "):
        memlib.run(sweep, store=str(tmp_path), quiet=True)
    sweep["cells"] = []
    run = memlib.run(sweep, store=str(tmp_path), quiet=True)
    assert set(run.record.cells) == {"epochs=2", "epochs=3"}
    assert memlib.verify(store=str(tmp_path)).outcome == "unchanged"
    before = run.record.history
    again = memlib.run(sweep, store=str(tmp_path), quiet=True)
    assert (again.id, again.record.computed) == (run.id, [])
    assert len(again.record.history) == len(before) + 1


def test_unknown_recipes_devices_and_attributes_raise_errors_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean"):
        memlib.run("smok", store=str(tmp_path))
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="finds no GPU"):
            memlib.run(RECIPE, store=str(tmp_path), device="cuda")
    with pytest.raises(AttributeError, match="has no attribute 'fun'"):
        memlib.fun  # noqa: B018


def test_dir_of_memlib_lists_the_public_functions_and_types() -> None:
    functions = {"run", "plan", "open", "list_runs", "look", "diff", "check", "gate", "index", "forget", "verify"}
    types = {"Run", "Plan", "Spec", "Source", "Objective", "Stage", "Artifact", "Audit", "Store"}
    assert set(dir(memlib)) == functions | types | {"__version__"}
    for name in functions | types:
        assert callable(getattr(memlib, name))
    for name in functions:
        assert f"memlib.{name}(" in (memlib.__doc__ or "")


def test_the_runs_of_a_store_are_listed(run: Run, store: str, tmp_path: Path) -> None:
    listed = memlib.list_runs(store=store)
    assert listed == sorted(listed, key=lambda one: one.finished, reverse=True)
    one = next(one for one in listed if one.id == run.id)
    assert (one.audit, one.title, one.verdict) == (run.audit, run.title, run.verdict.word)
    assert (one.headline, one.value, one.p_value) == (run.findings[0].metric, run.findings[0].value, run.findings[0].p_value)
    assert one.finished.timestamp() == pytest.approx(run.record.finished, abs=0.01)
    with pytest.raises(UserError):
        memlib.list_runs(store=str(tmp_path / "missing"))
    shutil.copytree(store, tmp_path / "store")
    (tmp_path / "store/runs" / run.id / "manifest.json").write_text("{")
    with pytest.warns(UserWarning, match=f"manifest of run {run.id}") as warned:
        assert run.id not in {one.id for one in memlib.list_runs(store=str(tmp_path / "store"))}
    assert warned[0].filename == __file__


def test_diff_compares_two_runs_of_an_audit_and_refuses_different_audits(run: Run, store: str) -> None:
    shorter = memlib.run(RECIPE, store=store, changes=CHANGES | {"training.epochs": 6}, quiet=True)
    found = memlib.diff(run, shorter.id[:8], store=store)
    assert found.recipe == [{"key": "training.epochs", "first": 12, "second": 6}]
    assert all(row.first is not None and row.second is not None for row in found.findings)
    assert found.findings[0].metric == run.findings[0].metric
    assert found.artifacts["differ"]
    assert run.id in repr(found)
    assert not memlib.diff(run, run).recipe
    other = Run(run.store, run.record.model_copy(update={"audit": "deja_vu"}))
    with pytest.raises(UserError, match="different audits"):
        memlib.diff(run, other)


def test_check_is_undecided_for_untested_metrics_and_requires_a_gate(run: Run, store: str) -> None:
    decision = memlib.check(run.id, fail_on="shown", store=store)
    assert (decision.run, decision.outcome) == (run.id, "undecided")  # descriptive
    metric = run.findings[0].metric
    decision = memlib.check(run, fail_above={metric: 1e-9})
    assert decision.outcome == "undecided"
    assert decision.findings[0].gate == f"{metric}=1e-09"
    assert "not tested" in decision.findings[0].reason
    with pytest.raises(UserError, match="no gate is given"):
        memlib.check(run)
    with pytest.raises(UserError, match="has no nothing"):
        memlib.check(run, fail_above={"nothing": 1})


def test_a_store_is_verified(run: Run, store: str, tmp_path: Path) -> None:
    found = memlib.verify(run)
    assert (found.outcome, found.runs, found.problems, found.changed) == ("unchanged", 1, [], set())
    assert memlib.verify(store=store).artifacts >= found.artifacts > 0
    shutil.copytree(store, tmp_path / "store")
    memlib.open(run.id, store=str(tmp_path / "store")).report.write_text("changed")
    found = memlib.verify(run.id[:6], store=str(tmp_path / "store"))
    assert found.outcome == "changed"
    assert f"runs/{run.id}/report.html" in found.changed
    with pytest.raises(UserError, match="cannot read the public key"):
        memlib.verify(run, trust=tmp_path / "none.pem")


def test_importing_memlib_loads_nothing_heavy() -> None:
    code = "import sys, memlib; memlib.plan, memlib.verify; sys.exit(bool({'torch', 'prefect', 'ray', 'faiss'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_gate_decides_like_the_command_by_the_newest_run_and_by_a_given_one(
    run: Run, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("title: Release\naudits: [{audit: self-influence, verdicts: [bounded]}]\n")
    decision = memlib.gate(policy, store=store)
    assert decision.outcome != "passed"  # the run describes, and bounds nothing
    newest = memlib.list_runs(store=store)[0].id
    assert memlib.gate(str(policy), runs=[newest], store=store).as_json() == decision.as_json()
    (given,) = memlib.gate(policy, runs=[run], store=store).audits
    assert (given.run and given.run.run, given.outcome) == (run.id, decision.outcome)
    assert (
        main(["gate", "--policy", str(policy), "--store", store, "--json"]) == {"failed": 1, "undecided": 3}[decision.outcome]
    )
    assert json.loads(capsys.readouterr().out) == decision.as_json()
    with pytest.raises(UserError, match="not both"):
        memlib.gate(policy, runs=[run.id], data="00", store=store)
    with pytest.raises(UserError, match="there is no policy"):
        memlib.gate(tmp_path / "none.yaml", store=store)


def test_the_index_says_where_its_page_is_and_how_many_runs_it_lists(run: Run, store: str, tmp_path: Path) -> None:
    page = memlib.index(folder=tmp_path / "pages", store=store)
    assert (page.address, page.runs, page.problems) == (
        str(tmp_path / "pages/index.html"),
        len(memlib.list_runs(store=store)),
        0,
    )
    assert run.id in Path(page.address).read_text()
    with pytest.raises(UserError, match="no store"):
        memlib.index(store=str(tmp_path / "none"))


def test_forget_lists_and_then_erases_what_holds_an_example(run: Run, store: str, tmp_path: Path) -> None:
    copy = str(shutil.copytree(store, tmp_path / "store"))
    name = run.units["example_id"][0].as_py()
    found = memlib.forget(example=name, store=copy)
    assert run.id in [one.run for one in found.runs]
    assert memlib.verify(store=copy).outcome == "unchanged"  # nothing was deleted
    assert {item.path for item in memlib.forget(example=name, models=True, delete=True, store=copy).items} == {
        item.path for item in found.items
    }
    assert not memlib.forget(example=name, store=copy).doomed(models=True)
    for given in ({}, {"person": name, "example": name}, {"person": ""}):
        with pytest.raises(UserError, match="the id either of a person or of an example"):
            memlib.forget(**given, store=copy)
