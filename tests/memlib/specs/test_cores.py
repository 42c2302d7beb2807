"""The number of cores is the smallest of what the machine, its scheduler and its containers grant."""

import os
from pathlib import Path

import pytest

from memlib.specs.cores import cores, threads


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)


def own(folder: Path, text: str) -> Path:
    (folder / "own").write_text(text)
    return folder / "own"


def test_cores_are_limited_by_affinity_and_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = own(tmp_path, "")
    assert cores(tmp_path, nothing) == 8
    for text, expected in (("4", 4), ("64", 8), ("0", 1), ("many", 8)):
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", text)
        assert cores(tmp_path, nothing) == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("", 6), ("0", 6), ("x", 6), ("-1", 6), ("\u00b2", 6), ("3", 3), (" 3 ", 3), ("3,2", 3), ("64", 6), ("9" * 30, 6)],
)
def test_threads_are_limited_as_openmp_reads_its_variable(limit: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a list, the first number counts; what is no number is ignored."""
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert threads(6) == expected


@pytest.mark.parametrize(
    ("quota", "expected"), [("250000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("x", 8), ("", 8)]
)
@pytest.mark.parametrize("place", ["", "jobs", "jobs/mine"])
def test_the_quota_of_a_cgroup_or_of_one_above_it_limits(quota: str, expected: int, place: str, tmp_path: Path) -> None:
    (tmp_path / "jobs/mine").mkdir(parents=True)
    (tmp_path / place / "cpu.max").write_text(quota)
    assert cores(tmp_path, own(tmp_path, "0::/jobs/mine\n")) == expected


@pytest.mark.parametrize(("quota", "expected"), [("300000", 3), ("-1", 8)])
def test_cores_are_limited_by_the_quota_of_cgroups_version_1(quota: str, expected: int, tmp_path: Path) -> None:
    folder = tmp_path / "cpu,cpuacct/slurm/job_7"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_quota_us").write_text(quota)
    (folder / "cpu.cfs_period_us").write_text("100000")
    assert cores(tmp_path, own(tmp_path, "4:memory:/slurm/job_7\n3:cpu,cpuacct:/slurm/job_7\n")) == expected
