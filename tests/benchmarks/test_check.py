"""The checks of benchmarks: a ratio beyond its bound, and one that is not printed, are failures."""

import subprocess

import pytest

from benchmarks import check

OUTPUT = "search                     plain   19.334 s   ours    2.616 s   ratio    7.4\nsame neighbours 100.0000%, same votes 99%\n"


@pytest.mark.parametrize(
    ("line", "least", "most", "within"),
    [
        (r"^search .* ratio +" + check.NUMBER, 7.0, float("inf"), True),
        (r"^search .* ratio +" + check.NUMBER, 8.0, float("inf"), False),
        (r"same neighbours " + check.NUMBER + "%", 0.0, 99.0, False),
        (r"^vote .* ratio +" + check.NUMBER, 1.0, float("inf"), False),
    ],
)
def test_a_printed_number_is_compared_with_its_bound(line: str, least: float, most: float, within: bool) -> None:
    assert [verdict for _, verdict in check.judged(OUTPUT, [check.Bound(line, least, most)])] == [within]


def test_too_few_lines_are_a_failure() -> None:
    bound = check.Bound(r"same (?:neighbours|votes) " + check.NUMBER + "%", most=100.0, lines=3)
    assert [verdict for _, verdict in check.judged(OUTPUT, [bound])] == [False, True, True]


def test_the_status_tells_whether_every_check_passed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = {"decode.py": (0, OUTPUT, ""), "one.py": (1, "", "Traceback\nValueError: no data\n")}

    def run(command: list[object], **_: object) -> subprocess.CompletedProcess[str]:
        status, out, err = printed[str(command[1]).rpartition("/")[2]]
        return subprocess.CompletedProcess([], status, out, err)

    monkeypatch.setattr(check.subprocess, "run", run)
    bounds = (check.Bound(r"^search .* ratio +" + check.NUMBER, least=2),)
    monkeypatch.setattr(check, "CHECKS", {"decode.py --small": bounds})
    assert check.main([]) == 0
    monkeypatch.setattr(check, "CHECKS", {"decode.py --small": bounds, "one.py": bounds})
    assert check.main(["--only", "decode"]) == 0
    assert check.main([]) == 1
    assert capsys.readouterr().out.endswith("FAILED one: status 1: ValueError: no data\n")
