"""The verdict of a dossier: Holm over audits and looks, and audits that take part without being named."""

from collections.abc import Sequence
from typing import Any

import pytest

from memlib.audits.dossier.attacks import attacks
from memlib.audits.dossier.listed import BLIND, LOST, POWERLESS, STALE, Failed, Listed, audits_table, listed, rows_of
from memlib.audits.dossier.recipe import ReleaseSpec
from memlib.audits.dossier.report import _is_possible
from memlib.audits.dossier.subject import AuditedModels
from memlib.audits.dossier.verdict import verdict
from memlib.audits.outcomes import Outcome
from memlib.runs.records import EarlierAudit, FindingRecord, Ledger, RunRecord, VerdictRecord


def run_of(
    name: str, p: float | None, word: str, *, audit: str = "membership", earlier: int = 0, **changes: Any
) -> RunRecord:
    """Return the manifest of a run with one finding, a headline test unless p is None."""
    test = {"role": "test", "null_value": 0.5, "p_value": p, "p_adjusted": p, "family": "members", "alpha": 0.05}
    row = {
        "metric": "auc", "params": "{}", "value": 0.6, "ci_low": 0.5, "ci_high": 0.7, "n": 100, "verdict": word,
        "detectable": 0.58, "smallest_p": 0.0001, "role": "estimate", **({} if p is None else test), **changes,
    }  # fmt: skip
    looks = [EarlierAudit(run=f"{number:012d}", audit=audit, p_value=0.5) for number in range(earlier)]
    return RunRecord(
        run=name, audit=audit, title=f"audit {name}", finished=0.0, findings=[FindingRecord(**row)],
        verdict=VerdictRecord(word=word, sentence=f"{name} is {word}."), ledger=Ledger(data="d", look=name, earlier=looks),
        recipe={"data": {"source": {"kind": "table"}}}, artifacts={"scores": f"scores/{name}"},
    )  # fmt: skip


def audits_of(runs: Sequence[RunRecord], *, looks: int = 0, stale: Sequence[str] = ()) -> list[Listed]:
    """Return the audits of a dossier of some runs."""
    outcomes = [Outcome(run.run, run.audit, {}, run) for run in runs]
    return listed(outcomes, [AuditedModels(0, external=("ab" * 32,))] * len(runs), looks=looks, stale=stale)


def word_of(runs: Sequence[RunRecord], **how: Any) -> str:
    """Return the word of a dossier's verdict."""
    return verdict(audits_of(runs, **how), looks=how.get("looks", 0)).word


def test_verdict_is_shown_only_if_the_p_value_survives_all_audits() -> None:
    weak, nothing = run_of("a", 0.03, "shown"), run_of("b", 0.8, "inconclusive")
    assert word_of([weak]) == "shown"
    assert word_of([weak, nothing]) == "inconclusive"  # 2 * .03
    assert word_of([run_of("a", 0.02, "shown"), nothing]) == "shown"


def test_verdict_counts_further_looks_as_tests_that_found_nothing() -> None:
    assert word_of([run_of("a", 0.02, "shown")], looks=1) == "shown"
    assert word_of([run_of("a", 0.02, "shown")], looks=2) == "inconclusive"
    found = verdict(audits_of([run_of("a", 0.02, "shown")], looks=2), looks=2)
    assert "1 audit and for 2 further looks" in found.explanation


def test_verdict_is_bounded_only_if_every_tested_audit_is() -> None:
    bounded, open_ = run_of("a", 0.5, "bounded"), run_of("b", 0.5, "inconclusive")
    assert word_of([bounded, run_of("c", 0.9, "bounded")]) == "bounded"
    assert word_of([bounded, open_]) == "inconclusive"
    assert word_of([bounded, run_of("c", 0.9, "bounded")], stale=["c"]) == "inconclusive"


def test_verdict_is_not_bounded_if_an_audit_failed() -> None:
    failed = [Failed("the released model", "membership", "killed")]
    found = verdict(audits_of([run_of("a", 0.5, "bounded")]), looks=0, failed=failed)
    assert found.word == "inconclusive"
    assert found.sentence.endswith("1 audit failed.")
    assert "Failed, with no result: the released model." in found.explanation
    found = verdict(audits_of([run_of("a", 0.001, "shown")]), looks=0, failed=failed)
    assert (found.word, "the released model" in found.explanation) == ("shown", True)


def test_each_attack_of_a_run_has_findings_of_its_own() -> None:
    more = [
        FindingRecord(metric="extracted", params="{}", value=0.0, n=10),
        FindingRecord(metric="document_bits", params="{}", value=0.1, n=100, p_value=0.6, p_adjusted=0.6, role="test",
                      family="documents", alpha=0.05, verdict="inconclusive", null_value=0.0),
    ]  # fmt: skip
    run = run_of("a", 1e-9, "shown", audit="exposure", metric="exposure", family="headline")
    run = run.model_copy(update={"findings": [*run.findings, *more], "recipe": {"data": {"source": {"kind": "text"}}}})
    table = audits_table(audits_of([run]), {})
    rows = {row["attack"].split(":")[-1].split(" (")[0].strip(): row for row in table.to_pylist() if row["state"] == "run"}
    read = {name: (row["leads"], row["metric"], row["shown"], row["word"]) for name, row in rows.items()}
    assert read == {
        "exposure": (True, "exposure", True, "shown"),
        "extraction": (False, "extracted", None, None),
        "continuation of training documents": (False, "document_bits", None, "inconclusive"),
    }
    assert [row["p_dossier"] is None for row in rows.values()] == [False, True, True]
    possible = [_is_possible(row, ReleaseSpec(access="texts")) for row in rows.values()]
    assert possible == ["not possible", "not possible", "possible"]


def test_verdict_is_descriptive_without_a_test() -> None:
    assert word_of([run_of("a", None, "descriptive")]) == "descriptive"


def test_verdict_counts_runs_of_the_same_scores_once() -> None:
    one = run_of("a", 0.03, "shown")
    twin = run_of("b", 0.03, "shown").model_copy(update={"artifacts": one.artifacts})
    assert word_of([one, twin]) == "shown"


@pytest.mark.parametrize(
    ("run", "stale", "doubt"),
    [
        (run_of("a", 0.001, "shown"), ["a"], STALE),
        (run_of("a", 0.02, "shown", earlier=4), [], LOST),
        (run_of("a", 0.2, "inconclusive", smallest_p=0.2), [], POWERLESS),
        (run_of("a", 0.2, "inconclusive", detectable=None), [], BLIND),
    ],
)
def test_an_audit_in_doubt_is_marked_and_never_named_as_shown(run: RunRecord, stale: list[str], doubt: str) -> None:
    (one,) = audits_of([run], stale=stale)
    assert one.doubts == (doubt,)
    found = verdict([one], looks=0)
    assert found.word == "inconclusive"
    alone = "by itself it shows memory, p = 0.001; " if doubt == STALE else ""
    assert f"Not counted: audit a ({alone}{doubt})" in found.explanation


def test_rows_name_every_known_attack_once_or_more() -> None:
    rows = rows_of(audits_of([run_of("a", 0.5, "bounded")]), {})
    assert {attack.name for attack, *_ in rows} == {attack.name for _, attack in attacks()}
    states = {attack.name: state for attack, state, _, _ in rows}
    assert states["membership of single records or persons"] == "run"
    assert states["unique feature of a single training example"] == "not run"
    assert states["pictures of the hidden part of training images (RCDM)"] == "not applicable"


def test_the_owners_reason_is_given_for_an_audit_that_was_not_run_but_changes_no_state() -> None:
    audits = audits_of([run_of("a", 0.5, "bounded")])
    stated = {"self-influence": "its checkpoints are lost", "exposure": "we did not want to", "membership": "never"}
    before = {attack.name: (state, reason) for attack, state, reason, _ in rows_of(audits, {})}
    after = {attack.name: (state, reason) for attack, state, reason, _ in rows_of(audits, stated)}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"influence of single examples (self-influence)"}
    assert after[changed.pop()] == ("not run", "its checkpoints are lost")
    assert after["secrets in training text: exposure"] == ("not applicable", "for texts; the data are tables")


def test_sentence_speaks_of_the_model_only_if_one_was_given() -> None:
    run = run_of("a", 0.001, "shown")
    given = listed([Outcome("a", run.audit, {}, run)], [AuditedModels(0, external=("ab" * 32,))], looks=0, stale=[])
    trained = listed([Outcome("a", run.audit, {}, run)], [AuditedModels(3, own=("ab" * 32,))], looks=0, stale=[])
    assert verdict(given, looks=0).sentence == "1 of 1 audit with a test shows that the model gives away training data."
    assert verdict(trained, looks=0).sentence == (
        "1 of 1 audit with a test shows that models trained in this way give away training data."
    )


def dossier_of(*found: tuple[RunRecord, AuditedModels], stale: Sequence[str] = ()) -> tuple[str, str]:
    """Return the sentence and the explanation of a dossier of runs and their models."""
    outcomes = [Outcome(run.run, run.audit, {}, run) for run, _ in found]
    said = verdict(listed(outcomes, [models for _, models in found], looks=0, stale=stale), looks=0)
    return said.sentence, said.explanation


GIVEN, OTHER, TRAINED = AuditedModels(0, external=("ab" * 32,)), AuditedModels(0, external=("cd" * 32,)), AuditedModels(3)


def test_an_audit_that_does_not_count_is_not_said_to_show_nothing() -> None:
    strong, nothing = run_of("a", 0.001, "shown"), run_of("b", 0.8, "inconclusive")
    sentence, text = dossier_of((strong, GIVEN), stale=["a"])
    assert sentence == "1 audit with a test was run, but none counts, so nothing is said of memory."
    assert "Not counted: audit a (by itself it shows memory, p = 0.001; stale" in text
    _, text = dossier_of(
        (run_of("a", 0.03, "shown"), GIVEN), *[(run_of(str(n), 0.8, "inconclusive"), GIVEN) for n in range(9)], stale=["a"]
    )
    assert "by itself it shows memory, p = 0.03;" in text
    sentence, _ = dossier_of((strong, GIVEN), (nothing, GIVEN), stale=["a"])
    assert sentence == (
        "None of the 1 audit that counts, of 2 audits with a test, shows memory, adjusted for all of them; 0 of them bound it."
    )
    sentence, _ = dossier_of((run_of("a", 0.03, "shown"), GIVEN), (nothing, GIVEN))
    assert sentence == "None of 2 audits with a test shows memory, adjusted for all of them; 0 of them bound it."


def test_memory_of_models_that_audits_trained_is_not_said_of_a_given_model() -> None:
    strong, nothing = run_of("a", 0.001, "shown"), run_of("b", 0.8, "inconclusive")
    sentence, text = dossier_of((strong, TRAINED), (nothing, GIVEN))
    assert sentence == "1 of 2 audits with a test shows that models trained in this way give away training data."
    assert "a given model was examined in 1 audit with a test, which did not show it" in text
    _, text = dossier_of((strong, TRAINED), (run_of("c", 0.001, "shown"), GIVEN), stale=["c"])
    assert "did not show it" not in text  # the audit of the given model does not count
    sentence, _ = dossier_of((strong, TRAINED), (run_of("c", 0.001, "shown"), GIVEN))
    assert sentence == (
        "2 of 2 audits with a test show that the model (1) and models trained in this way (1) give away training data."
    )
    sentence, text = dossier_of((strong, GIVEN), (nothing, TRAINED))
    assert sentence == "1 of 2 audits with a test shows that the model gives away training data."
    assert "given model" not in text
    sentence, _ = dossier_of((strong, GIVEN), (run_of("b", 0.001, "shown"), OTHER))
    assert sentence == "2 of 2 audits with a test show that models that were given give away training data."


def test_a_bounded_dossier_names_what_its_bounds_leave_out() -> None:
    bounded, described = run_of("a", 0.5, "bounded"), run_of("b", None, "descriptive")
    sentence, text = dossier_of((bounded, GIVEN), (described, GIVEN))
    assert sentence == "None of 1 audit with a test shows memory, and each of them bounds it."
    assert text.startswith("1 audit without a test bounds nothing. ")
    _, text = dossier_of((bounded, GIVEN), (run_of("c", 0.9, "bounded"), GIVEN))
    assert text.startswith("Each limit holds at 95 % by itself, not all of them together. ")
