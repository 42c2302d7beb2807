"""Finished runs of a unique-feature audit whose numbers are written by hand, published as a store holds them."""

import hashlib
import io
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from memlib.audits.unique_feature.tables import UNITS
from memlib.findings import Finding, Findings, Verdict, Word, settle, tested
from memlib.runs.index import results_path
from memlib.store import Store
from memlib.store.records import sealed

DATA, OTHER_DATA = "a" * 64, "b" * 64
NOW = 1_000_000.0
PARAMS = {"metric": "m_white", "output": "probability", "group": "canary - control", "statistic": "mean"}


def units(gains: Sequence[float], *, canary: str = "x", same_seed: bool = False) -> pa.Table:
    """Return the scores of nets with these gains: canary nets at .25 + gain, controls at .25, in order of the controls."""
    rows = []
    for control in (True, False):
        for net, gain in enumerate(gains):
            score = dict.fromkeys(UNITS.arrow.names) | {
                "variant": "", "data_seed": 0, "net": net, "canary": net if same_seed else 0, "example_id": canary, "control": control,
                "seed": 0 if same_seed else net, "metric": "m_white", "output": "probability", "feature": "canary", "draw": 0,
                "label": 1, "own_label": True, "value": 0.25 if control else 0.25 + gain,
            }  # fmt: skip
            rows += [score, score | {"output": "logit", "value": 99.0}, score | {"feature": "canary - 1", "value": 99.0},
                     score | {"own_label": False, "label": 0, "value": 99.0}]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=UNITS.arrow)


def head(gains: Sequence[float], **changes: Any) -> Finding:
    given: dict[str, Any] = {
        "p_value": 0.5, "family": "headline", "upper_bound": 0.04, "bound": 0.05, "detectable": 0.2, "n": len(gains),
    }  # fmt: skip
    return settle([tested("m_white", PARAMS, sum(gains) / len(gains), **(given | changes))], alpha=0.05)[0]


def publish(
    store: Store,
    name: str,
    gains: Sequence[float],
    *,
    word: Word = "bounded",
    nets: str = "",
    scores: pa.Table | None = None,
    finding: Finding | None = None,
    **changes: Any,
) -> None:
    """Publish a run with these gains of its nets; `nets` names the artifact of the nets, by default that of this run."""
    store.check_writable()
    row = head(gains) if finding is None else finding
    verdict = Verdict(word, f"The word is {word}.", "")
    tables = {"summary": Findings([row]).table(verdict), "units": units(gains) if scores is None else scores}
    results, published = {}, {}
    for table, content in tables.items():
        path, buffer = results_path(table, "unique_feature", name), io.BytesIO()
        pq.write_table(content, buffer)
        store.publish(path, buffer.getvalue())
        results[table], published[path] = path, hashlib.sha256(buffer.getvalue()).hexdigest()
    record = {
        "run": name, "audit": "unique_feature", "title": name, "finished": NOW, "asks": name, "recipe": {"of": name},
        "results": results, "published": published, "findings": [row.row()], "ledger": {"data": DATA},
        "verdict": {"word": word, "sentence": verdict.sentence},
        "computed": [f"train_nets/{hashlib.sha256((nets or name).encode()).hexdigest()}"],
    }  # fmt: skip
    store.publish(f"runs/{name}/manifest.json", json.dumps(sealed(record | changes)).encode())
