"""Fixtures: a finished run whose findings, tables and page are known."""

import hashlib
import io
import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from memlib.findings import Interval, Verdict, estimate, settle, tested
from memlib.runs.index import findings_of, read_run, results_path
from memlib.runs.run import Run
from memlib.store import Store
from memlib.store.records import sealed

SECRET = "anna-smith.png"
RECIPE: dict[str, Any] = {
    "audit": "membership",
    "title": "Wards",
    "data": {"source": {"kind": "table", "path": f"/home/{SECRET}", "label_column": "ill", "columns": ["age", "town"]}},
    "split": {"sets": f"/home/{SECRET}", "train_per_class": 20},
    "target": {"trained": None, "outputs": {"path": f"/home/{SECRET}", "kind": "losses"}},
    "model": {"kind": "import", "model": "mine:net", "options": {"password": SECRET}, "widths": [8, 8]},
    "encoders": [{"kind": "embeddings", "path": f"/home/{SECRET}"}],
}


def publish(store: Store, run: str = "a" * 12, *, word: str = "shown", value: float = 0.75, **changes: Any) -> Run:
    """Publish a membership run with three aggregates and two findings about single records."""
    rows = settle(
        [
            tested("auc", {"attack": "lira"}, value, n=400, p_value=0.001, family="members", null_value=0.5,
                   interval=Interval(value - 0.05, value + 0.05, "examples"), upper_bound=0.79, bound=0.55),
            estimate("auc", {"attack": "loss", "largest": 0.123}, 0.6, n=400, interval=Interval(0.55, None, "examples")),
            estimate("true_alarms", {}, float("nan"), n=400),
            estimate("self_influence", {"example": SECRET}, 0.9, n=1),
            estimate("exposure", {"canary": 3}, 9.0, n=1),
        ],
        alpha=0.05,
    )  # fmt: skip
    verdict = Verdict(word, "Members | are <b>found</b>: https://x.example/_a_", "The AUC is *high*.")  # type: ignore[arg-type]
    table, content = rows.table(verdict), io.BytesIO()
    pq.write_table(table, content)
    files = {results_path("summary", "membership", run): content.getvalue(), f"runs/{run}/report.html": b"<p>page</p>"}
    for path, data in files.items():
        store.publish(path, data)
    manifest = {
        "run": run, "audit": "membership", "title": "Wards", "finished": 1_700_000_000.0, "seconds": 60.0, "recipe": RECIPE,
        "verdict": {"word": word, "sentence": verdict.sentence, "explanation": verdict.explanation},
        "ledger": {"data": "d" * 64}, "software": {"memlib": "1.2"}, "results": {"summary": "x"}, "report": "x/report.html",
        "findings": json.loads(json.dumps(findings_of(table.to_pylist()))),
        "published": {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}, **changes,
    }  # fmt: skip
    manifest["findings"] = [
        {name: None if cell != cell else cell for name, cell in row.items()} for row in manifest["findings"]
    ]
    store.publish(f"runs/{run}/manifest.json", json.dumps(sealed(manifest)).encode())
    return Run(store, read_run(store, run))


@pytest.fixture
def run(tmp_path: Any) -> Run:
    """A run that shows memory."""
    store = Store(str(tmp_path / "store"))
    store.check_writable()
    return publish(store)
