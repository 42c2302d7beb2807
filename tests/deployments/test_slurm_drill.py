"""The pure parts of the Slurm drill: its configuration, its table, and what it says where Slurm is missing."""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deployments.local.processes import Unexpected, with_variable
from deployments.local.steps import Row, carry_out, markdown, rehearse
from deployments.slurm import drill
from deployments.slurm.services import COMMANDS, DAEMONS, NODES, configuration, missing
from memlib.recipes.cells import cells_of
from memlib.recipes.request import AuditRequest

PORTS = {"slurmctld": 7001, "n1": 7002, "n2": 7003}


def install(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).touch(mode=0o755)
    return str(folder)


def test_the_configuration_has_two_nodes_with_own_ports_in_its_own_folder() -> None:
    text = configuration(Path("/tmp/d"), PORTS, user="ann", host="box", first_job=17)
    lines = text.splitlines()
    assert all(re.fullmatch(r"\w+=\S+( \w+=\S+)*", line) for line in lines)
    settings = dict(line.split("=", 1) for line in lines if not line.startswith("NodeName"))
    assert (settings["SlurmctldHost"], settings["SlurmctldPort"], settings["FirstJobId"]) == ("box(127.0.0.1)", "7001", "17")
    assert settings["SlurmUser"] == settings["SlurmdUser"] == "ann"
    assert (settings["JobRequeue"], settings["AuthInfo"]) == ("1", "socket=/tmp/d/munge/socket")
    nodes = [dict(part.split("=") for part in line.split()) for line in lines if line.startswith("NodeName")]
    assert [(node["NodeName"], node["Port"]) for node in nodes] == [("n1", "7002"), ("n2", "7003")]
    assert all((node["NodeAddr"], node["NodeHostname"], node["CPUs"]) == ("127.0.0.1", "box", "1") for node in nodes)
    assert settings["PartitionName"].startswith(f"drill Nodes={','.join(NODES)} ")
    assert "cgroup" not in text
    paths = [value for name, value in settings.items() if name.endswith(("File", "Location", "Dir"))]
    assert len(paths) == 6
    assert all(path.startswith("/tmp/d/") for path in paths)


def test_missing_programs_are_named_with_their_packages(tmp_path: Path) -> None:
    assert missing(str(tmp_path)) == (
        "not installed: munged, slurmctld, slurmd, sbatch, srun, scontrol, scancel, sinfo "
        "(Debian: apt-get install slurm-wlm munge)"
    )
    path = install(tmp_path, *DAEMONS, *(name for name in COMMANDS if name != "srun"))
    assert missing(path).startswith("not installed: srun (")
    assert missing(install(tmp_path, "srun")) == ""


def test_the_drill_starts_nothing_where_a_program_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drill, "search_path", lambda: str(tmp_path))
    monkeypatch.setattr(drill, "rehearse", lambda *_: pytest.fail("started"))
    assert drill.main() == 2
    said = capsys.readouterr().err
    assert said.startswith("not installed: munged, ")
    assert said.count("\n") == 1


def test_the_table_has_a_line_for_each_step() -> None:
    rows = [Row("ok", "first", "two\nlines", 1.4), Row("FAILED", "second", "why", 60)]
    assert markdown(rows).splitlines() == [
        "| step | | observed | s |",
        "|---|---|---|---|",
        "| first | ok | two lines | 1 |",
        "| second | FAILED | why | 60 |",
    ]


def test_a_step_fails_by_an_unexpected_observation_alone() -> None:
    def fail() -> str:
        raise Unexpected("a process is left")

    good, bad = carry_out("a", lambda: "seen"), carry_out("b", fail)
    assert (good.verdict, good.what, good.saw) == ("ok", "a", "seen")
    assert (bad.verdict, bad.what, bad.saw) == ("FAILED", "b", "a process is left")
    with pytest.raises(ZeroDivisionError):
        carry_out("c", lambda: str(1 / 0))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_processes_are_found_by_a_variable_of_their_environment() -> None:
    name = f"NODE_OF_{os.getpid()}"
    with subprocess.Popen(["sleep", "60"], env=os.environ | {name: "n1"}) as process:
        try:
            for _ in range(200):  # until it has become `sleep`, a process shows no environment
                if list(with_variable(name, "n1")):
                    break
                time.sleep(0.02)
            assert list(with_variable(name, "n1")) == [process.pid]
            assert list(with_variable(name, "n")) == []
        finally:
            process.kill()


def test_the_audits_of_the_drill_are_valid() -> None:
    AuditRequest.read(str(drill.TINY), drill.LONGER, expected="deja-vu")
    cells = cells_of(AuditRequest.read(str(drill.SWEEP), expected="sweep").recipe)  # type: ignore[arg-type]
    assert list(cells) == ["epochs=2", "epochs=4"]
    assert {cell.audit for cell in cells.values()} == {"exposure"}


def test_a_drill_ends_at_its_first_failed_step_and_keeps_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> str:
        raise Unexpected("a process is left")

    def note(folder: Path) -> str:
        (folder / "noted").touch()
        return "seen"

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert rehearse("x", contextlib.nullcontext, {"first": note, "second": fail, "third": note}, markdown) == 1
    (kept,) = tmp_path.iterdir()
    assert [path.name for path in kept.iterdir()] == ["noted"]
    said = capsys.readouterr().out
    assert "| first | ok | seen | 0 |\n| second | FAILED | a process is left | 0 |\n" in said
    assert str(kept) in said
    assert "third" not in said
    assert rehearse("x", contextlib.nullcontext, {"first": note}, markdown) == 0
    assert list(tmp_path.iterdir()) == [kept]
