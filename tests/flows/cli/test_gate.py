"""The gate for builds: nothing undecided passes, and an exposure that chance explains fails no build."""

import hashlib
import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.validity.gate import RECIPE, answers
from flows.cli.app import main
from memlib.audits.deja_vu import answers as deja_vu
from memlib.audits.deja_vu.findings import summarize
from memlib.audits.exposure import answers as exposure
from memlib.audits.judging import decide, judge
from memlib.findings import Finding, Interval, estimate, settle, tested
from memlib.findings import Verdict as Said
from memlib.runs.index import results_path
from memlib.store import Store
from memlib.store.records import sealed
from tests.memlib.running.policy_runs import publish


def ends(
    rng: np.random.Generator, count: int, share: float, *, chance: float = 0.1, persons: int | None = None
) -> tuple[float, float, int]:
    found = deja_vu.shares(answers(rng, count, persons, share, chance), RECIPE)
    assert found is not None
    return found


def test_share_without_right_answers_has_the_exact_upper_limit() -> None:
    """Without any right answer, 20 images bound the share by 1 - .025^(1/20)."""
    low, high, count = ends(np.random.default_rng(0), 20, 0.0, chance=0.0)
    assert (low, count) == (0.0, 20)
    assert high == pytest.approx(1 - 0.025 ** (1 / 20))
    assert ends(np.random.default_rng(0), 400, 0.0, chance=0.0)[1] < 0.01


@pytest.mark.parametrize(("count", "persons"), [(40, None), (200, None), (200, 40)])
def test_a_share_above_the_limit_rarely_passes(count: int, persons: int | None) -> None:
    """A true share of .10 may pass a limit of .05 at most in .05 of runs; P(Binomial(60, .05) > 13) = 7e-7."""
    rng = np.random.default_rng(1)
    passed = 0
    for _ in range(60):
        found = deja_vu.shares(answers(rng, count, persons, 0.1, 0.1), RECIPE)
        passed += found is not None and found[1] <= 0.05
    assert passed <= 13


def test_strong_memory_fails_the_gate_and_grouping_by_person_widens_its_interval() -> None:
    rng = np.random.default_rng(2)
    assert ends(rng, 400, 0.6)[0] > 0.4
    alone, grouped = ends(rng, 200, 0.5), ends(rng, 200, 0.5, persons=20)
    assert grouped[2] == 20
    assert grouped[1] - grouped[0] > alone[1] - alone[0]


def row(**changes: Any) -> Finding:
    given = {"p_value": 0.5, "family": "headline", "upper_bound": 0.04, "bound": 0.05}
    return settle([tested("m", {}, 0.02, n=9, interval=Interval(0.01, 0.03, "x"), **(given | changes))], alpha=0.05)[0]


@pytest.mark.parametrize(
    ("changes", "limit", "outcome"),
    [
        ({}, 0.05, "passed"),
        ({}, 0.03, "undecided"),
        ({"bound": None}, 0.05, "undecided"),  # inconclusive, although its interval lies below the limit
        ({"p_value": 0.01}, 0.005, "failed"),
        ({"p_value": 0.01}, 0.02, "undecided"),
        ({}, 0.005, "undecided"),  # not shown, although its interval lies above the limit
    ],
)
def test_judge_passes_only_bounded_and_fails_only_shown_headline_tests(
    changes: dict[str, Any], limit: float, outcome: str
) -> None:
    assert judge(row(**changes), limit, decides=True).outcome == outcome
    assert judge(row(**changes), limit, decides=False).outcome == "undecided"
    assert judge(estimate("m", {}, 0.0, n=9, interval=Interval(0, 0.001, "x")), limit, decides=True).outcome == "undecided"


def test_only_the_headline_of_the_share_excess_decides_a_gate() -> None:
    """A single direction is no test and decides no gate, even if requested; METRIC=VALUE refers to the headline."""
    units = answers(np.random.default_rng(3), 400, None, 0.5, 0.0)
    summary = summarize(units, RECIPE.decode.model_copy(update={"replicates": 100}), num_classes=3)
    run = SimpleNamespace(
        id="r", audit="deja-vu", summary=summary, tables={"summary": ""}, units=units, recipe=RECIPE.model_dump(mode="json"),
    )  # fmt: skip
    whole = decide(run, fail_above=["share_excess=0.05"])  # type: ignore[arg-type]
    assert [(judged.params["direction"], judged.outcome) for judged in whole.findings] == [("both", "failed")]
    assert whole.outcome == "failed"
    of_one = decide(run, fail_above=["share_excess[direction=A]=0.05"])  # type: ignore[arg-type]
    assert [judged.outcome for judged in of_one.findings] == ["undecided"]
    assert "not tested" in of_one.findings[0].reason
    assert decide(run, fail_above=["share_excess[direction=B]=0.99"]).outcome == "undecided"  # type: ignore[arg-type]


def canary(number: int, bits: float, p: float, *, rank: int | None = 5, upper: float | None = None) -> Finding:
    params = {"canary": number} | ({} if rank is None else {"rank": rank})
    interval = None if rank is not None else Interval(bits - 1, bits + 1, "references")
    return tested(
        "exposure", params, bits, n=1, p_value=p, family="canaries", interval=interval, upper_bound=bits if upper is None else upper,
        null_value=1.44, either_direction=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("canaries", "outcome", "said"),
    [
        ([canary(0, 3.0, 0.1), canary(1, 2.0, 0.25)], "passed", "none of 2 has more than 3.0 bits"),
        ([canary(0, 29.9, 1e-9), canary(1, 2.0, 0.25)], "failed", "canary 0 has 29.9 bits"),
        ([canary(n, 11.0 if n == 3 else 1.0, 0.0005 if n == 3 else 0.5) for n in range(200)], "undecided", "in 18 % of runs"),
        ([canary(0, 9.5, 0.001, rank=None, upper=10.5)], "undecided", "cannot be ruled out"),
    ],
)
def test_an_exposure_gate_compares_ranks_exactly_and_fails_no_build_by_chance(
    canaries: list[Finding], outcome: str, said: str
) -> None:
    head = tested("exposure", {}, 2.0, n=len(canaries), p_value=1e-6, family="headline", null_value=1.44)
    rows = settle([head, *canaries], alpha=0.05)
    run = SimpleNamespace(summary=rows.table(Said("shown", "", "")))
    found = exposure.judge(run, rows.head, 10)  # type: ignore[arg-type]
    assert found is not None
    assert found.outcome == outcome
    assert said in found.reason


def test_check_passes_or_leaves_gates_undecided_and_refuses_malformed_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path / "store"))
    rows = settle(
        [
            tested("m_white", {"k": 1}, 0.02, n=9, p_value=0.5, family="headline", upper_bound=0.04, bound=0.05),
            tested("m_grey", {"k": 1}, 0.5, n=9, p_value=0.5, family="scores", interval=Interval(0.4, 0.6, "nets")),
            estimate("m_white", {"k": 2}, 0.0, n=9, interval=Interval(0, 0.01, "nets")),
        ],
        alpha=0.05,
    )
    store.check_writable()
    path, content = results_path("summary", "unique_feature", "abc"), io.BytesIO()
    pq.write_table(rows.table(Said("bounded", "Less than .05.", "")), content)
    store.publish(path, content.getvalue())
    published = {path: hashlib.sha256(content.getvalue()).hexdigest()}
    run = {
        "run": "abc", "audit": "unique_feature", "title": "<t>", "finished": 1.0, "results": {"summary": path}, "published": published, "findings": [{"metric": "m_white", "params": "{}"}],
        "verdict": {"word": "bounded", "sentence": "Less than .05."},
    }  # fmt: skip
    store.publish("runs/abc/manifest.json", json.dumps(sealed(run)).encode())

    def check(*options: str) -> int:
        return main(["check", "ab", *options, "--store", store.uri, "--junit", str(tmp_path / "junit.xml")])

    def above(*gates: str) -> int:
        return check(*(part for gate in gates for part in ("--fail-above", gate)))

    assert check("--fail-on", "shown") == 0
    assert above("m_white=0.05") == 0  # the headline decides, not the estimate beside it
    assert above("m_white=0.03") == above("m_white[k=2]=0.05") == above("m_grey=0.1") == 3
    assert above("m_white=0.05", "m_grey=0.1") == 3
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "0", "1")
    capsys.readouterr()
    for gate, said in (("share", "is not METRIC=VALUE"), ("m=nan", "with a finite number"), ("gone=1", "it has m_white, m_grey"),
                       ("m_white[k=9]=1", "at these params")):  # fmt: skip
        assert above(gate) == 2
        assert said in capsys.readouterr().err
    assert check() == 2
    assert "--fail-on shown" in capsys.readouterr().err


# -- policies -----------------------------------------------------------------------------------------

POLICY = """
title: "Release | <b>now</b>"
audits:
  - audit: unique-feature
    title: new
    verdicts: [bounded]
    ceilings: [m_white=0.05]
    detectable: 0.2
    non_inferiority: [{metric: m_white, margin: 0.3}]
"""
LOADED = """
import sys
from flows.cli.app import main
status = main(sys.argv[1:])
heavy = {name.partition(".")[0] for name in sys.modules} & {"torch", "scipy", "prefect", "ray", "pandas", "matplotlib", "sklearn"}
print(status, *sorted(heavy), file=sys.stderr)
"""


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A store with a baseline, a run like it, and one that remembers more; and a policy beside it."""
    store = Store(str(tmp_path / "store"))
    publish(store, "base", [0.10, 0.12, 0.14, 0.16])
    publish(store, "new", [0.15, 0.13, 0.11, 0.13])
    publish(store, "worse", [0.55, 0.53, 0.51, 0.53], word="shown", title="<i>worse</i>\x1b[31m | x")
    (tmp_path / "policy.yaml").write_text(POLICY)
    return tmp_path


def gate(folder: Path, *arguments: str) -> int:
    policy = ("--policy", str(folder / "policy.yaml"))
    return main(["gate", *arguments, *policy, "--store", str(folder / "store"), "--baseline", "base"])


def test_the_gate_reads_finished_runs_without_torch_scipy_and_prefect(released: Path) -> None:
    arguments = ["gate", "--policy", "policy.yaml", "--store", "store", "--baseline", "base"]
    command = [sys.executable, "-c", LOADED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=released, check=False)
    assert done.stderr.splitlines()[-1] == "0"
    assert done.stdout.splitlines()[-1] == "passed"


def test_the_gate_exits_with_the_status_of_its_outcome(released: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(released, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["outcome"], found["audits"][0]["run"]) == ("passed", "new")
    (released / "policy.yaml").write_text(POLICY.replace("title: new", "title: gone"))
    assert gate(released) == 3
    (released / "policy.yaml").write_text(POLICY.replace("    title: new\n", ""))
    assert gate(released, "worse") == 1
    capsys.readouterr()
    (released / "policy.yaml").write_text(POLICY.replace("verdicts", "verdict"))
    assert gate(released) == 2
    assert "unknown policy key audits.0.verdict; did you mean verdicts?" in capsys.readouterr().err
    (released / "policy.yaml").unlink()
    assert gate(released) == 2
    assert "there is no policy" in capsys.readouterr().err


def test_junit_and_the_summary_list_every_rule_and_interpret_no_title(released: Path) -> None:
    (released / "policy.yaml").write_text(POLICY.replace("    title: new\n", ""))
    junit, summary = released / "gate.xml", released / "gate.md"
    assert gate(released, "worse", "new", "--junit", str(junit), "--summary", str(summary)) == 1
    suites = ElementTree.parse(junit).getroot()
    counts = [[suite.get(name) for name in ("tests", "failures", "errors")] for suite in suites]
    assert sorted(counts) == [["6", "0", "0"], ["6", "2", "0"]]
    lines = summary.read_text().splitlines()
    assert lines[0] == r"# Release \| &lt;b&gt;now&lt;/b&gt;: failed"
    rows = [line for line in lines if line.startswith("| unique-feature")]
    assert len(rows) == 12
    assert all(len(row.replace(r"\|", "").split("|")) == 6 for row in rows)
    assert not any(mark in "".join(lines) for mark in ("<", "\x1b"))


def test_a_plan_with_a_policy_needs_a_baseline(released: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "smoke", "--policy", str(released / "policy.yaml"), "--store", str(released / "store")]) == 2
    assert "give --policy and --baseline together" in capsys.readouterr().err
