"""Ledger of earlier audits of the same data: repeated testing finds something by chance sooner or later."""

import hashlib
from collections.abc import Iterable, Sequence

from memlib.identity import canonical_json
from memlib.records import EarlierAudit, Ledger, RunEntry, RunRecord
from memlib.stage import AnyArtifact

DATA_STAGES = ("decode", "secret/corpus")


def entry(runs: Sequence[RunEntry], run: str, data: str, before: RunRecord | None) -> Ledger:
    """Return the ledger that a run records when it is first published: its data digest and earlier audits of that data.

    Args:
        runs: the finished runs of the store. Sweeps, and runs published before digests were recorded, have no data digest.
        run: id of this run.
        data: digest of the run's data.
        before: this run's manifest if it was published before; a ledger recorded there for the same data is kept.
    """
    if not data:
        return Ledger()
    if before is not None and before.ledger.data == data:
        return before.ledger
    earlier = [one for one in runs if one["ledger"]["data"] == data and one["run"] != run]
    return Ledger(data=data, earlier=[_line(one) for one in sorted(earlier, key=lambda one: one["finished"])])


def _line(run: RunEntry) -> EarlierAudit:
    first = run["findings"][0]
    return EarlierAudit(
        run=run["run"],
        audit=run["audit"],
        finished=run["finished"],
        headline=first["metric"],
        p_value=first["p_value"],
        verdict=None if run["verdict"] is None else run["verdict"]["word"],
    )


def in_words(earlier: Sequence[EarlierAudit]) -> str:
    """Return one line of text about the earlier audits."""
    count = len(earlier)
    tests = [one for one in earlier if one.p_value is not None]
    shown = sum(one.verdict == "shown" for one in tests)
    audits = f"{count} earlier audit{'s' if count > 1 else ''} of the same data"
    return (
        f"{audits} in this store: {len(tests)} with a test, {shown} with the verdict 'shown'. "
        "Their p-values are not adjusted jointly."
    )


def data_digest(artifacts: Iterable[AnyArtifact]) -> str:
    """Return a digest of the content of a run's data sources, independent of the decoded size; "" if it has no sources.

    Args:
        artifacts: artifacts of the run, including its decoded sources and corpora.
    """
    sources = []
    for ref, store in {artifact.ref: artifact.store for artifact in artifacts}.items():
        if ref.stage in DATA_STAGES:
            manifest = store.artifacts.manifest(ref)
            sources.append([manifest.inputs.get("source") or manifest.inputs["text"], manifest.spec.get("source")])
    return hashlib.sha256(canonical_json(sorted(sources, key=canonical_json)).encode()).hexdigest() if sources else ""
