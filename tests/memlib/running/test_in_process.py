"""Runs in the calling process: what they print, record and recompute, and that Prefect and Ray are never loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli.app import main
from memlib.audits.arrangement import stages_of
from memlib.errors import RunError
from memlib.pipeline.stage import AnyStage
from memlib.recipes.request import AuditRequest
from memlib.running.finished import needs_workers
from memlib.running.in_process import StepsRunner, carry_out_here
from memlib.running.verification import verified
from memlib.runs.garbage import committed
from memlib.runs.journal import read_status
from memlib.runs.records import RunRecord
from memlib.specs.resources import RunOptions
from memlib.store import Ref, Store
from memlib.training.loop import Training

MOONS: dict[str, Any] = {
    "audit": "self_influence", "title": "two moons", "data": {"source": {"kind": "two_moons", "num_examples": 40}},
    "split": {"train_per_class": 15}, "model": {"architecture": "mlp", "widths": [4]}, "influence": {"checkpoints": 1},
    "training": {"objective": {"kind": "supervised"}, "epochs": 2, "batch_size": 5, "augment": None},
}  # fmt: skip


def run(store: Path, options: RunOptions = RunOptions(), **changes: Any) -> tuple[RunRecord, list[str]]:
    said: list[str] = []
    request = AuditRequest.read(MOONS | changes, {})
    return carry_out_here(request, Store(str(store)), options, say=said.append), said


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in_process") / "store"
    run(folder)
    return folder


def test_a_run_prints_its_steps_and_leaves_no_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, _ = run(tmp_path)
    printed = capsys.readouterr().err.splitlines()
    assert printed[0].endswith(": started")
    assert {line.partition(":")[0] for line in printed} >= {"decode examples", "train models"}
    assert sum(": done in " in line for line in printed) == len(record.computed)
    assert read_status(Store(str(tmp_path)), record.run) is None
    run(tmp_path, RunOptions(quiet=True), title="another title")
    assert not capsys.readouterr().err


def test_a_run_goes_on_where_another_discards_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, discarded = StepsRunner._compute, []

    def disturbed(runner: StepsRunner, stage: AnyStage, ref: Ref, threads: int) -> None:
        if ref.stage == "self_influence" and not discarded:
            discarded.extend(ref for ref in committed(runner.store) if ref.stage in ("hold_out", "gradient_norms"))
            for other in discarded:
                runner.store.artifacts.discard(other)
        own(runner, stage, ref, threads)

    monkeypatch.setattr(StepsRunner, "_compute", disturbed)
    record, said = run(tmp_path)
    assert len(discarded) == 2
    assert any("going on with what the store holds now" in line for line in said)
    assert not set(record.computed) & set(record.reused)
    assert verified(Store(str(tmp_path))).outcome == "unchanged"


def test_a_forced_stage_is_computed_again_and_nothing_else(store: Path) -> None:
    again, _ = run(store, RunOptions(quiet=True))
    assert again.computed == []
    forced, _ = run(store, RunOptions(quiet=True, force=("gradient_norms",)))
    assert [name.partition("/")[0] for name in forced.computed] == ["gradient_norms"]


def test_a_damaged_artifact_is_named_and_computed_again(store: Path) -> None:
    damaged = next(store.glob("artifacts/gradient_norms/*/*/norms.npy"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    again, said = run(store, RunOptions(quiet=True))
    assert [name.partition("/")[0] for name in again.computed] == ["gradient_norms"]
    assert len([line for line in said if "computing it again" in line]) == 1


def test_a_failed_step_is_recorded_with_its_problem(tmp_path: Path) -> None:
    broken = MOONS["training"] | {"optimizer": {"learning_rate": 1e12}, "epochs": 5}
    with pytest.raises(RunError, match="^self-influence 0: the loss is not finite") as caught:
        run(tmp_path, RunOptions(quiet=True), training=broken)
    (status,) = (json.loads(path.read_text()) for path in tmp_path.glob("status/*.json"))
    assert (status["state"], status["problem"]) == ("failed", str(caught.value))
    assert status["stages"]["train"]["state"] == "failed"
    assert status["stages"]["decode"]["computed"] == 1


def test_a_run_stops_at_the_limits_of_its_time_and_keeps_finished_work(tmp_path: Path) -> None:
    """Both limits are over as soon as they are looked at: in the first step, and in the training."""
    for resources, said in (
        ({"max_hours": 1e-10}, "hours, but resources.max_hours allows 1e-10; finished work is kept"),
        ({"stages": {"train": {"timeout": 1e-7}}}, "train was stopped after its time limit of 1e-07 s; raise"),
    ):
        with pytest.raises(RunError, match=said):
            run(tmp_path, RunOptions(quiet=True), resources=resources)
    assert len(list(tmp_path.glob("artifacts/decode/*/manifest.json"))) == 1
    assert not list(tmp_path.glob("artifacts/train/*/manifest.json"))
    record, _ = run(tmp_path, RunOptions(quiet=True), resources={"max_hours": 1.0, "stages": {"train": {"timeout": 3600}}})
    assert "decode" not in {name.partition("/")[0] for name in record.computed}


def test_a_run_that_fails_says_its_warnings(tmp_path: Path) -> None:
    run(tmp_path, RunOptions(quiet=True))
    (damaged,) = tmp_path.glob("artifacts/gradient_norms/*/*/norms.npy")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    said: list[str] = []
    request = AuditRequest.read(MOONS | {"resources": {"stages": {"gradient_norms": {"timeout": 1e-7}}}}, {})
    with pytest.raises(RunError, match="gradient_norms was stopped after its time limit"):
        carry_out_here(request, Store(str(tmp_path)), RunOptions(quiet=True), say=said.append)
    assert [line for line in said if "computing it again" in line]


def test_only_the_result_goes_to_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code of a recipe, such as its model, prints to standard error."""

    def chatty(*arguments: Any, **named: Any) -> RunRecord:
        print("printed by a model")
        return carry_out_here(*arguments, **named)

    monkeypatch.setattr("memlib.running.in_process.carry_out_here", chatty)
    (tmp_path / "moons.yaml").write_text(yaml.safe_dump(MOONS))
    assert main(["run", str(tmp_path / "moons.yaml"), "--store", str(tmp_path / "store"), "--in-process", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["audit"] == "self_influence"
    assert "printed by a model" in printed.err


def test_an_interrupted_training_resumes_from_what_it_saved_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States are saved as often as resources.resume_seconds says: after every step, with 0."""
    steps = []

    def interrupt(self: Training, *arguments: Any) -> Any:
        steps.append(self.step)
        if len(steps) == 5:
            raise KeyboardInterrupt
        return step(self, *arguments)

    step = Training._add_gradients
    monkeypatch.setattr(Training, "_add_gradients", interrupt)
    often: dict[str, Any] = {"resources": {"resume_seconds": 0}}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, RunOptions(quiet=True), **often)
    record, _ = run(tmp_path, RunOptions(quiet=True), **often)
    assert steps[5] == 4
    (facts,) = (json.loads(path.read_text())["facts"] for path in tmp_path.glob("artifacts/train/*/manifest.json"))
    assert facts["resumed_from_step"] == 4
    assert record.verdict is not None


@pytest.mark.ray
def test_the_command_computes_in_its_process_without_prefect_and_ray(tmp_path: Path) -> None:
    (tmp_path / "moons.yaml").write_text(yaml.safe_dump(MOONS))
    program = (
        "import sys\nfrom flows.cli.app import main\nstatus = main(sys.argv[1:])\n"
        "print(sorted({'prefect', 'ray'} & {name.partition('.')[0] for name in sys.modules}))\nsys.exit(status)"
    )
    command = [sys.executable, "-c", program, "run", "moons.yaml", "--store", "store"]
    for options, engine in ((["--in-process"], ""), ([], "process")):
        environment = os.environ | {"MEMLIB_ENGINE": engine, "PYTHONPATH": os.getcwd()}
        done = subprocess.run(
            [*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "engine", "said"),
    [
        (
            ["--in-process", "--set", "resources.ray_address=auto"],
            "",
            "ray_address is auto, but --in-process computes in one",
        ),
        (["--set", "resources.workers_per_model=2"], "process", "workers_per_model is 2, but MEMLIB_ENGINE=process computes"),
        ([], "threads", "MEMLIB_ENGINE is 'threads'; set it to process or ray, or leave it unset"),
    ],
)
def test_settings_that_one_process_cannot_follow_are_refused(
    arguments: list[str], engine: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    (tmp_path / "moons.yaml").write_text(yaml.safe_dump(MOONS))
    monkeypatch.setenv("MEMLIB_ENGINE", engine)
    assert main(["run", str(tmp_path / "moons.yaml"), "--store", str(tmp_path / "store"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_ray_is_started_early_only_if_models_or_several_parts_are_missing(store: Path, tmp_path: Path) -> None:
    request = AuditRequest.read(MOONS, {})
    run(store, RunOptions(quiet=True))

    def needed(where: Path, *force: str) -> bool:
        return needs_workers(request.audit, request.recipe, Store(str(where)), request.resources, force=force)

    assert needed(tmp_path / "nothing")
    assert not needed(store)
    assert needed(store, "train")
    assert not needed(store, stages_of(request.audit)[-1].declared.name)  # the page
