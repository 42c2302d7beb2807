"""The check of a GPU: its sections keep their time, and what fails, is skipped or is left out is printed and recorded."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.device import __main__ as device
from benchmarks.device.checks import NO_GPU, Check, Clock, Found, Report, carry_out


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path / "results.jsonl", "cpu")


def rows(report: Report) -> list[dict[str, Any]]:
    return [json.loads(line) for line in report.results.read_text().splitlines()]


def outcomes(report: Report) -> list[tuple[str, bool | None, bool]]:
    return [(row["check"], row["passed"], row["skipped"]) for row in rows(report)]


def test_all_sections_together_take_at_most_eight_minutes() -> None:
    assert sum(section.seconds for section in device.SECTIONS) <= 480
    assert all(section.seconds > device.LAST_SECONDS for section in device.SECTIONS)
    folder = Path(device.__file__).parent
    assert {section.name for section in device.SECTIONS} == {path.stem for path in folder.glob("*.py")} - {
        "__init__", "__main__", "checks",
    }  # fmt: skip


def test_the_help_and_the_document_name_sections_and_paths_that_have_never_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        device.main(["--help"])
    said = capsys.readouterr().out
    assert all(path in said for path in device.NEVER_RUN)
    document = (Path(__file__).parents[2] / "docs" / "evidence" / "performance.md").read_text()
    for section in device.SECTIONS:
        assert f"{section.name:12} {section.seconds:4g} s" in said
        assert f"| `{section.name}` | {section.seconds:g} |" in document


def test_a_failed_check_stops_no_other_and_decides_the_result(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Found:
        raise RuntimeError("CUDA error\nan illegal memory access")

    checks = [
        Check("measured", lambda: Found(None, "3", {"ratio": 3.0})),
        Check("broken", broken),
        Check("gpu", broken, NO_GPU),
        Check("right", lambda: Found(True, "equal")),
    ]
    assert not carry_out("stacks", checks, Clock(60), report)
    assert outcomes(report) == [
        ("measured", None, False), ("broken", False, False), ("gpu", None, True), ("right", True, False),
    ]  # fmt: skip
    assert rows(report)[0]["ratio"] == 3.0
    assert all(row["section"] == "stacks" and row["versions"]["torch"] and row["machine"]["cores"] for row in rows(report))
    said = capsys.readouterr().out
    assert "| stacks | broken | FAILED | RuntimeError: an illegal memory access |" in said
    assert "| stacks | gpu | skipped | not run: needs a GPU |" in said
    assert carry_out("stacks", [checks[0], *checks[2:]], Clock(60), report), "skips and measurements are no failures"


def test_checks_that_a_section_has_no_time_for_are_failures(report: Report) -> None:
    checks = [Check("late", lambda: Found(True, "")), Check("gpu", lambda: Found(True, ""), NO_GPU)]
    assert not carry_out("search", checks, Clock(0), report)
    assert outcomes(report) == [("late", False, False), ("gpu", None, True)]
    assert rows(report)[0]["found"] == "not run: the section's 0 s are spent"


@pytest.mark.parametrize(
    ("code", "seconds", "passed", "found"),
    [
        ("", 60, True, None),
        (f"raise SystemExit({device.FAILED})", 60, False, None),
        ("import os; os.kill(os.getpid(), 9)", 60, False, "its process ended with status -9"),
        ("raise ImportError", 60, False, "its process ended with status 1"),
        ("import time; time.sleep(60)", 0.2, False, "ended after its 0.2 s"),
    ],
)
def test_a_section_ends_with_its_process_or_its_time(
    report: Report, code: str, seconds: float, passed: bool, found: str | None
) -> None:
    section = device.Section("search", seconds, "")
    command = [sys.executable, "-I", "-S", "-c", code]
    assert device.carry_out_apart(section, report, command) is passed
    assert (rows(report)[0]["found"] if report.results.exists() else None) == found


def test_a_section_that_fails_does_not_stop_the_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    begun = []

    def carried_out(section: device.Section, report: Report, command: list[str]) -> bool:
        begun.append((section.name, command[-1], report.device))
        return section.name != "stacks"

    monkeypatch.setattr(device, "carry_out_apart", carried_out)
    assert device.main(["--device", "cpu", "--results", str(tmp_path / "r")]) == 1
    assert begun == [(section.name, section.name, "cpu") for section in device.SECTIONS]
    assert "failed: stacks; " in capsys.readouterr().out
    assert device.main(["--device", "cpu", "--only", "search", "resuming"]) == 0


def test_a_machine_without_a_gpu_is_refused_unless_its_cpu_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert device.main([]) == 2
    assert capsys.readouterr().err.startswith("no GPU is visible to PyTorch; --device cpu")


def test_the_environment_is_checked_on_a_cpu(report: Report) -> None:
    section = next(section for section in device.SECTIONS if section.name == "environment")
    assert device.carry_out_here(section, report) == 0
    assert outcomes(report) == [("PyTorch", None, False), ("FAISS", None, False), ("GPU", None, True)]


@pytest.mark.slow
def test_the_cpu_passes_beside_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.jsonl"
    assert device.main(["--device", "cpu", "--results", str(results)]) == 0
    found = rows(Report(results, "cpu"))
    assert sum(row["check"].startswith("train, ") for row in found) == 11
    assert {row["check"] for row in found if row["skipped"]} == {
        "GPU", "a stack that does not fit", "FAISS on the GPU", "FAISS on the GPU, float16",
    }  # fmt: skip
    assert {row["section"] for row in found} == {section.name for section in device.SECTIONS}
