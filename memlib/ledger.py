"""Which audits of the same data came before: whoever looks often enough finds something by chance."""

import hashlib
from collections.abc import Iterable, Sequence

from memlib.identity import canonical_json
from memlib.records import EarlierAudit, Ledger, RunEntry, RunRecord
from memlib.stage import AnyArtifact

DATA_STAGES = ("decode", "secret/corpus")


def entry(runs: Sequence[RunEntry], run: str, data: str, before: RunRecord | None) -> Ledger:
    """What a run's manifest records at its first publication: the data, and the audits of it that came before.

    Args:
        runs: the finished runs of the store. Those of before digests were kept, and sweeps, have no data.
        run: this one's id.
        data: digest of its data.
        before: this run's manifest as it was published earlier; what it recorded stays.
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
    """One line about the audits that came before."""
    count = len(earlier)
    tests = [one for one in earlier if one.p_value is not None]
    shown = sum(one.verdict == "shown" for one in tests)
    audits = f"{count} audit{'s' if count > 1 else ''} of the same data came before"
    return (
        f"{audits} in this store: {len(tests)} tested something, {shown} showed it. Their verdicts are not adjusted together."
    )


def data_digest(artifacts: Iterable[AnyArtifact]) -> str:
    """Return a digest of a run's data: of the content of its sources, whatever size they are decoded at; empty without any.

    Args:
        artifacts: of the run; decoded sources and corpora are among them.
    """
    found = []
    for ref, store in {artifact.ref: artifact.store for artifact in artifacts}.items():
        if ref.stage in DATA_STAGES:
            manifest = store.artifacts.manifest(ref)
            found.append([manifest.inputs.get("source") or manifest.inputs["text"], manifest.spec.get("source")])
    return hashlib.sha256(canonical_json(sorted(found, key=canonical_json)).encode()).hexdigest() if found else ""
