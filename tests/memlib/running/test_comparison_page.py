"""Two runs of a store are compared on a page and in the terminal; the difference is tested where the design allows it."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli.app import main
from memlib.audits import AUDITS
from memlib.findings import estimate, settle, tested
from memlib.report.page import render
from memlib.running.comparison import Comparison, compare
from memlib.running.comparison_page import WITHOUT, page_of
from memlib.runs.index import read_run
from memlib.runs.run import Run
from memlib.store import Ref, Store
from memlib.tables import write_table

UNITS = AUDITS["deja-vu"].tables["units"]
HEAD = {"layer": "last", "epoch": 9, "crop": "maximal", "k": 3}
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def put(
    store: Store, run: str, share: float, *, pairs: int = 3, shift: int = 0, schema: pa.Schema = UNITS.arrow, **more: Any
) -> None:
    """Publish a déjà vu run in which the target names more objects than the reference, by a share of the images."""
    rng, rows = np.random.default_rng(int(1000 * share)), []
    for pair in range(pairs):
        for image, gain in enumerate(rng.choice([1, 0, -1], p=[share, 0.8 - share, 0.2], size=300)):
            label = image % 3
            named = {"target_prediction": label if gain > 0 else 9, "reference_prediction": label if gain < 0 else 9}
            where = {"pair": pair, "direction": "AB"[image % 2], "example_id": f"{image + shift:04d}", "label": label}
            rows.append(HEAD | where | named)
    ref = Ref("score", f"{run}00000000")
    with store.artifacts.write(ref) as attempt:
        columns = pa.Table.from_pylist(rows, schema=schema)
        if schema == UNITS.arrow:
            write_table(columns, UNITS, attempt.path("units.parquet"))
        else:
            pq.write_table(columns, attempt.path("units.parquet"))
    found = settle(
        [
            tested("share_excess", HEAD, share - 0.2, n=300, p_value=0.5, family="f"),
            estimate("knn_accuracy", {}, 0.9, n=100),
            estimate("accuracy_target", {"chance": 0.1}, 0.5, n=9),
        ],
        alpha=0.05,
    )
    record = {
        "run": run, "audit": "deja_vu", "title": f"title {run}", "finished": 1.0,
        "findings": [{name: value for name, value in row.row().items() if name in RECORDED} for row in found],
        "recipe": {"training": {"epochs": pairs}}, "artifacts": {"scores": str(ref)},
        "verdict": {"word": "inconclusive", "sentence": f"sentence of {run}."},
    }  # fmt: skip
    store.publish(f"runs/{run}/manifest.json", json.dumps(record | more).encode())


RECORDED = (
    "metric", "params", "role", "value", "ci_low", "ci_high", "null_value", "p_value", "family", "p_adjusted", "alpha",
    "verdict", "n",
)  # fmt: skip


def compared(store: Store, first: str, second: str) -> Comparison:
    return compare(*(Run(store, read_run(store, run)) for run in (first, second)))


def test_the_difference_of_two_runs_is_tested_as_that_of_two_cells(store: Store) -> None:
    put(store, "aaa", 0.25)
    put(store, "bbb", 0.6)
    found = compared(store, "aaa", "bbb")
    row = found.headlines.row
    assert row is not None
    assert row.value == pytest.approx(0.35, abs=0.08)
    assert (row.verdict, found.headlines.reason, found.as_json()["tested"]) == ("shown", "", True)
    assert found.in_words().startswith("Tested: bbb is shown to memorize more than aaa. Difference in share_excess (bbb")
    assert "The other differences of findings are not tested" in found.in_words()
    back = compared(store, "bbb", "aaa")
    assert back.headlines.row is not None
    assert back.headlines.row.value == pytest.approx(-row.value)
    assert back.in_words().startswith("Tested: bbb is shown to memorize more than aaa")
    assert [found.tests(change) for change in found.findings] == [True, False, False]


def test_runs_with_equal_gains_are_not_shown_to_differ(store: Store) -> None:
    put(store, "aaa", 0.4)
    put(store, "bbb", 0.4)
    found = compared(store, "aaa", "bbb")
    assert found.headlines.row is not None
    assert (found.headlines.row.value, found.headlines.row.p_value) == (0.0, 1.0)
    assert found.in_words().startswith("Tested: neither run is shown to memorize more than the other. Difference in")


def test_a_difference_that_cannot_be_tested_has_a_reason(store: Store) -> None:
    put(store, "aaa", 0.4)
    for run, more, reason in (
        ("few", {"pairs": 2}, "each side needs the same number of pairs of models, 3 or more"),
        ("others", {"shift": 5}, "the runs do not audit the same examples on the same sides"),
        ("same", {"artifacts": {"scores": "score/aaa00000000"}}, "both runs have the same scores"),
        ("gone", {"artifacts": {"scores": "score/bbb00000000"}}, "the scores of run gone cannot be read"),
        ("old", {"artifacts": {}}, "run old does not record its scores"),
        ("older", {"schema": UNITS.arrow.remove(0)}, "run older, of an earlier version of memlib, has no example_id"),
    ):
        put(store, run, 0.5, **more)
        found = compared(store, "aaa", run)
        assert reason in found.headlines.reason, run
        assert found.in_words().startswith("The difference of the headlines is not tested: ")
        assert not found.as_json()["tested"]
        assert (found.headlines.row is not None) == (run == "few")  # an estimate with an interval
        assert not any(found.tests(change) for change in found.findings)


def test_the_page_shows_verdicts_recipes_and_drawn_findings_of_both_runs(store: Store) -> None:
    put(store, "aaa", 0.25)
    put(store, "bbb", 0.6, verdict=None, title=EVIL, recipe={"training": {"epochs": EVIL}})
    html = render(page_of(compared(store, "aaa", "bbb"), store))
    for said in ("aaa compared with bbb", "sentence of aaa.", WITHOUT, "training.epochs", "<b>shown</b>, at level 0.05"):
        assert said in html
    assert "Tested: bbb is shown to memorize more than aaa" in html
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 3
    (drawing,) = re.findall('<svg class="marks".*?</svg>', html, re.DOTALL)  # the other findings are the same
    assert re.findall("<title>(.*?)</title>", drawing) == [
        "0.050, adjusted p = 0.5, inconclusive", "0.400, adjusted p = 0.5, inconclusive",
    ]  # fmt: skip
    assert "2 findings are the same in both runs." in html


def test_the_page_of_an_untested_difference_is_descriptive(store: Store) -> None:
    put(store, "aaa", 0.25)
    put(store, "bbb", 0.6, pairs=2)
    page = page_of(compared(store, "aaa", "bbb"), store)
    assert (page.verdict.word, page.level) == ("descriptive", None)
    assert "3 or more" in page.verdict.sentence


def test_diff_writes_a_private_page_and_replaces_it(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(store, "aaa", 0.25)
    put(store, "bbb", 0.6)
    path = tmp_path / "pages/diff.html"
    for _ in range(2):
        assert main(["diff", "aaa", "bbb", "--page", str(path), "--store", store.uri]) == 0
    said = capsys.readouterr().out
    assert "Tested: bbb is shown to memorize more than aaa" in said
    assert str(path) in said.replace("\n", "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["diff.html"]
    assert main(["diff", "aaa", "bbb", "--json", "--page", str(path), "--store", store.uri]) == 0
    assert json.loads(capsys.readouterr().out)["difference"]["verdict"] == "shown"
    assert main(["diff", "aaa", "bbb", "--page", str(tmp_path), "--store", store.uri]) == 2
    assert "cannot write" in capsys.readouterr().err
