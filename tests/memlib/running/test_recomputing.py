"""A run that is computed again comes out equal byte for byte; what differs is named, unless the machine explains it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import INFLUENCE as MOONS

import memlib
from flows.cli.app import main
from memlib.audits.self_influence import scores, stages
from memlib.errors import UserError
from memlib.pipeline import user_code
from memlib.running.in_process import StepsRunner
from memlib.runs.run import Run

Scaled = Callable[[float], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/memlib/recomputed"


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> Scaled:
    """Multiply all scores of later runs by a factor, unnoticed by the digests of code."""
    own = scores.self_influence

    def by(factor: float) -> None:
        for module in (scores, stages):
            if hasattr(module, "self_influence"):
                monkeypatch.setattr(module, "self_influence", lambda *given: own(*given) * np.float64(factor))

    return by


def moons(store: Path, **changes: Any) -> Run:
    return memlib.run(MOONS | changes, store=str(store), quiet=True)


def test_a_run_is_recomputed_byte_for_byte_and_leaves_nothing_behind(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = moons(tmp_path / "store")
    found = memlib.verify(run, recompute=True)
    assert (found.outcome, found.recomputed) == (
        "unchanged", "recomputed here: 6 of 6 artifacts came out equal byte for byte",
    )  # fmt: skip
    assert not list(cache.iterdir())
    assert main(["verify", run.id, "--recompute", "--store", str(tmp_path / "store")]) == 0
    assert found.recomputed in capsys.readouterr().out


def test_scores_that_the_recipe_does_not_give_are_found_in_a_store_that_contradicts_itself_nowhere(
    tmp_path: Path, cache: Path, scaled: Scaled, capsys: pytest.CaptureFixture[str]
) -> None:
    scaled(0.99)
    run = moons(tmp_path / "store")
    scaled(1.0)
    assert memlib.verify(run).outcome == "unchanged"
    with pytest.warns(UserWarning, match="kept in"):
        found = memlib.verify(run, recompute=True)
    assert found.outcome == "changed"
    assert found.recomputed == "recomputed here: 5 of 6 artifacts came out equal byte for byte"
    of_scores, *of_tables = found.problems
    assert (of_scores.what, of_scores.problem) == (
        run.record.scores, "came out differently here: curves.parquet (and 2 more)",
    )  # fmt: skip
    assert "its table units differs here by 0.01" in [one.problem for one in of_tables]
    assert [path.name for path in cache.iterdir()] == [run.id]
    assert main(["verify", run.id, "--recompute", "--store", str(tmp_path / "store")]) == 2
    assert "came out differently here" in capsys.readouterr().out


@pytest.mark.parametrize(("factor", "outcome", "status"), [(1 + 1e-5, "unchanged", 0), (1.01, "unchecked", 3)])
def test_numbers_of_another_processor_are_compared_by_value(
    tmp_path: Path, scaled: Scaled, monkeypatch: pytest.MonkeyPatch, factor: float, outcome: str, status: int
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "VSX")
        scaled(factor)
        run = moons(tmp_path / "store")
    scaled(1.0)
    found = memlib.verify(run, recompute=True)
    assert found.outcome == outcome
    assert "byte for byte, as there were cpu VSX (here " in found.recomputed
    assert "; its results differ by at most " in found.recomputed
    assert main(["verify", run.id, "--recompute", "--store", str(tmp_path / "store")]) == status


def test_data_that_were_replaced_are_named(tmp_path: Path) -> None:
    table = tmp_path / "people.csv"
    rows = [f"{n},{n % 7},{'ab'[n % 2]}" for n in range(60)]
    table.write_text("\n".join(["age,visits,label", *rows]))
    run = moons(tmp_path / "store", data={"source": {"kind": "table", "path": str(table), "label_column": "label"}})
    table.write_text("\n".join(["age,visits,label", *rows[1:], "80,1,a"]))
    found = memlib.verify(run, recompute=True)
    assert [(one.what.split("/")[0], one.problem) for one in found.problems] == [
        ("decode", "would be computed from other source here than it was")
    ]
    assert found.outcome == "changed"


def test_cells_of_a_sweep_are_recomputed_with_it(tmp_path: Path) -> None:
    sweep = {"audit": "sweep", "title": "epochs", "recipe": MOONS, "grid": {"training.epochs": [1, 2]}}
    run = memlib.run(sweep, store=str(tmp_path / "store"), quiet=True)
    found = memlib.verify(run, recompute=True)
    assert (
        found.recomputed == f"recomputed here: {found.artifacts} of {found.artifacts} artifacts came out equal byte for byte"
    )
    assert found.artifacts > 10


def test_an_interrupted_recomputation_is_continued(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = moons(tmp_path / "store")
    own, computed = StepsRunner._compute, []

    def interrupted(self: StepsRunner, stage: Any, ref: Any, threads: int) -> None:
        computed.append(ref.stage)
        if len(computed) == 4:
            raise KeyboardInterrupt
        own(self, stage, ref, threads)

    monkeypatch.setattr(StepsRunner, "_compute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        memlib.verify(run, recompute=True)
    assert memlib.verify(run, recompute=True).outcome == "unchanged"
    assert len(computed) == 7  # six artifacts, one of them begun twice
    assert not list(cache.iterdir())


def test_code_that_a_store_names_does_not_run_unless_the_user_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "faces.py").write_text(
        "from PIL import Image\nclass Faces(list):\n    classes = ['a', 'b']\ndef pictures():\n"
        "    return Faces((Image.new('L', (8, 8), 3 * n), n % 2) for n in range(40))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(user_code.VARIABLE, "")
    run = moons(tmp_path / "store", data={"source": {"kind": "import", "function": "faces:pictures"}})
    assert memlib.verify(run, recompute=True).outcome == "unchanged"
    monkeypatch.setenv(user_code.VARIABLE, "")  # as in another process
    with pytest.raises(UserError, match="faces:pictures, which this machine does not allow"):
        memlib.verify(run, recompute=True)


def test_a_run_must_be_named_and_be_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = moons(tmp_path / "store")
    with pytest.raises(UserError, match="name the run"):
        memlib.verify(store=str(tmp_path / "store"), recompute=True)
    units = next((tmp_path / "store").glob("results/table=units/**/*.parquet"))
    units.write_bytes(units.read_bytes() + b" ")
    assert main(["verify", run.id, "--recompute", "--json", "--store", str(tmp_path / "store")]) == 2
    assert json.loads(capsys.readouterr().out)["recomputed"] == "not recomputed, as it has changed since it was committed"
