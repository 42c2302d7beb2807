"""Plans and progress of runs, forced stages, and many audits as one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from harness import Memlib, newest, published, says_one_thing

from flows.cli.app import main

TINY = Path(__file__).parents[2] / "deployments/local/tiny.yaml"

Finished = tuple[Path, dict[str, Any]]
Plan = Callable[..., dict[str, Any]]


@pytest.fixture
def copy(finished: Finished, tmp_path: Path) -> Path:
    """A store in which the tiny audit is finished."""
    return Path(shutil.copytree(finished[0], tmp_path / "store"))


@pytest.fixture
def plan(memlib: Memlib, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Return the output of `memlib plan --json`, run in this process."""

    def call(store: Path, *options: str, audit: str = "deja-vu", recipe: Path = memlib.recipe) -> dict[str, Any]:
        assert main(["plan", audit, "--recipe", str(recipe), "--store", str(store), "--json", *options]) == 0
        return dict(json.loads(capsys.readouterr().out))

    return call


def misses(found: dict[str, Any]) -> set[str]:
    return {part["stage"] for part in found["parts"] if not part["hit"]}


def test_plan_predicts_the_stages_that_a_run_computes_and_writes_nothing(
    plan: Plan, memlib: Memlib, finished: Finished, copy: Path, tmp_path: Path
) -> None:
    files = sorted(path for path in copy.rglob("*"))
    whole = plan(copy)
    assert misses(whole) == set()
    assert {f"{part['stage']}/{part['key']}" for part in whole["parts"]} == set(finished[1]["computed"])
    assert misses(plan(copy, "--force-stage", "embed")) == {"embed"}
    longer = plan(copy, "--set", "training.epochs=51")
    assert misses(longer) == {"train", "embed", "search", "probe", "score", "report"}
    assert longer["blocked"] == {}
    costs = {one["stage"]: one for one in longer["price"]["stages"]}
    assert costs.keys() == misses(longer)
    assert costs["train"]["similar"], "the finished models are like these"
    assert costs["train"]["cpu_seconds"] > 0
    assert sorted(path for path in copy.rglob("*")) == files  # nothing was written
    empty = plan(tmp_path / "nothing")
    assert misses(empty) == {"decode", "split"}
    assert list(empty["blocked"].values()) == [["train", "embed", "search", "probe", "score_setting", "score", "report"]]
    assert {one["stage"] for one in empty["price"]["stages"]} >= {
        "decode",
        "split",
        "train",
        "embed",
        "search",
        "score",
        "report",
    }
    assert not empty["is_lower_bound"]
    assert not (tmp_path / "nothing").exists()
    command = ("plan", "deja-vu", "--recipe", str(memlib.recipe), "--store", str(copy), "--set", "decode.k=[3]")
    said = memlib.call(*command)
    assert "to compute" in said.stdout
    assert "search" in said.stdout


def test_only_a_forced_stage_is_computed_again(memlib: Memlib, finished: Finished, copy: Path) -> None:
    command = ("run", "deja-vu", "--recipe", str(memlib.recipe), "--store", str(copy), "--force-stage", "score", "--json")
    done = memlib.call(*command)
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    assert [ref.split("/")[0] for ref in manifest["computed"]] == ["score"]
    assert published(copy, newest(copy)).keys() == published(*finished).keys()
    assert memlib.call(*command[:-2], "nonsense").returncode == 2


@pytest.mark.slow
def test_embeddings_not_kept_are_evicted_and_recomputed_only_where_they_are_read(
    memlib: Memlib, finished: Finished, copy: Path
) -> None:
    command = ("run", "deja-vu", "--recipe", str(memlib.recipe), "--store", str(copy), "--json")
    spare = ("--set", "resources.keep_embeddings=false")
    done = memlib.call(*command, *spare)
    assert done.returncode == 0, done.stderr
    assert not list(copy.glob("artifacts/embed/**/*.npy"))
    assert memlib.call("verify", "--store", str(copy)).returncode == 0
    assert json.loads(memlib.call(*command).stdout)["computed"] == []
    more = memlib.call(*command, *spare, "--set", "decode.k=[6]")
    assert more.returncode == 0, more.stderr
    stages = [ref.split("/")[0] for ref in json.loads(more.stdout)["computed"]]
    assert set(stages) == {"embed", "search", "score", "report"}
    assert not list(copy.glob("artifacts/embed/**/*.npy"))  # gone again
    assert memlib.call("verify", "--store", str(copy)).returncode == 0


def test_metrics_lists_the_resources_of_stages(memlib: Memlib, finished: Finished) -> None:
    store, manifest = finished
    told = memlib.call("status", manifest["run"][:6], "--store", str(store), "--json")
    stages = {row["stage"]: row for row in json.loads(told.stdout)["stages"]}
    assert stages["train"]["artifacts"] == 2
    assert stages["train"]["seconds"] > 0
    assert stages["embed"]["bytes_in"] > 0
    assert stages["train"]["units"] == 2 * 60 * 50  # models, examples, epochs
    assert "train" in memlib.call("status", manifest["run"], "--store", str(store)).stdout


@pytest.mark.slow
def test_a_sweep_publishes_its_finished_cells_and_names_the_failed_ones(
    memlib: Memlib, plan: Plan, copy: Path, tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text(memlib.recipe.read_text())
    recipe = tmp_path / "sweep.yaml"
    recipe.write_text(
        "audit: sweep\ntitle: Neighbours <b>\nrecipe: base.yaml\ngrid: {decode.k: [[3], [5], [100000]]}\n"
        "cells: [{name: other title, set: {title: other}}]\n"
    )
    options = ("--recipe", str(recipe), "--store", str(copy))
    planned = plan(copy, audit="sweep", recipe=recipe)
    assert misses(planned) == {"search", "score", "report"}
    assert list(planned["problems"]) == ["k=[100000]"]
    first = memlib.call("run", "sweep", *options)
    assert first.returncode == 2
    assert "1 of 4 cells failed (k=[100000]: decode.k is 100000, but the public set has only" in first.stderr
    assert "Traceback" not in first.stderr
    manifest = newest(copy)
    assert manifest["audit"] == "sweep"
    assert {ref.split("/")[0] for ref in manifest["computed"]} == {"search", "score", "report"}
    assert manifest["cells"]["k=[100000]"] is None
    rows = pq.read_table(manifest["results"]["sweep"], partitioning=None).to_pylist()
    assert {row["cell"] for row in rows if row["state"] == "failed"} == {"k=[100000]"}
    headline = [row["value"] for row in rows if row["metric"] == "share_excess" and row["cell"] == "k=[5]"]
    assert len(headline) >= 1
    page = Path(manifest["report"]).read_text()
    assert "Neighbours &lt;b&gt;" in page
    assert "k=[100000]" in page
    recipe.write_text(recipe.read_text().replace("[100000]", "[4]"))
    second = memlib.call("run", "sweep", *options, "--json")
    assert second.returncode == 0, second.stderr
    computed = json.loads(second.stdout)["computed"]
    assert sorted(ref.split("/")[0] for ref in computed) == ["report", "score", "search", "search"]
    third = memlib.call("run", "sweep", *options, "--json")
    assert json.loads(third.stdout)["computed"] == []
    assert Path(json.loads(third.stdout)["report"]).with_name("history.json").exists()  # its manifest may be signed
    assert memlib.call("verify", "--store", str(copy)).returncode == 0
    sentence = says_one_thing(memlib, copy, json.loads(third.stdout))
    assert (
        "of 3 audits show memorization, or use of data, adjusted for their number" in sentence
    )  # the fourth cell is the base's own run
    cell = next(
        run
        for run in json.loads(memlib.call("runs", "--store", str(copy), "--json").stdout)
        if run.get("ledger", {}).get("data")
    )
    alike = json.loads(memlib.call("runs", "--data", cell["ledger"]["data"][:12], "--store", str(copy), "--json").stdout)
    assert {run["audit"] for run in alike} == {"deja_vu"}
    assert max(len(run["ledger"]["earlier"]) for run in alike) >= 1
    assert "no run in" in memlib.call("runs", "--data", "nothing", "--store", str(copy)).stderr
    assert "cells_completed" in memlib.call("runs", "--store", str(copy)).stdout
