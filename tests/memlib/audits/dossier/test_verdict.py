"""The verdict of a dossier: Holm over audits and looks, and audits that take part without being named."""

from collections.abc import Sequence
from typing import Any

import pytest

from memlib.audits import AUDITS
from memlib.audits.dossier.attacks import attacks
from memlib.audits.dossier.beside import Beside
from memlib.audits.dossier.listed import BLIND, LOST, POWERLESS, STALE, Failed, Listed, audits_table, listed, rows_of
from memlib.audits.dossier.recipe import ReleaseSpec
from memlib.audits.dossier.report import _is_possible
from memlib.audits.dossier.subject import AuditedModels
from memlib.audits.dossier.verdict import verdict
from memlib.audits.outcomes import Outcome
from memlib.runs.records import (
    Departure,
    EarlierAudit,
    FindingRecord,
    FollowedPlan,
    Ledger,
    Publication,
    RunRecord,
    VerdictRecord,
)


def run_of(
    name: str,
    p: float | None,
    word: str,
    *,
    audit: str = "membership",
    earlier: int = 0,
    data: str = "d",
    begun: float = 0.0,
    plan: FollowedPlan | None = None,
    **changes: Any,
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
        verdict=VerdictRecord(word=word, sentence=f"{name} is {word}."), ledger=Ledger(data=data, look=name, earlier=looks),
        history=[Publication(started=begun)], plan=plan,
        recipe={"data": {"source": {"kind": "table"}}}, artifacts={"scores": f"scores/{name}"},
    )  # fmt: skip


def audits_of(runs: Sequence[RunRecord], *, looks: int = 0, stale: Sequence[str] = ()) -> list[Listed]:
    """Return the audits of a dossier of some runs."""
    outcomes = [Outcome(run.run, run.audit, {}, run) for run in runs]
    return listed(outcomes, [AuditedModels(0, external=("ab" * 32,))] * len(runs), looks=looks, stale=stale)


def word_of(runs: Sequence[RunRecord], **how: Any) -> str:
    """Return the word of a dossier's verdict."""
    beside = how.pop("beside", ())
    return verdict(audits_of(runs, **how), looks=how.get("looks", 0), beside=beside).word


def test_verdict_is_shown_only_if_the_p_value_survives_all_audits() -> None:
    weak, nothing = run_of("a", 0.03, "shown"), run_of("b", 0.8, "inconclusive", audit="forgetting")
    assert word_of([weak]) == "shown"
    assert word_of([weak, nothing]) == "inconclusive"  # 2 * .03
    assert word_of([run_of("a", 0.02, "shown"), nothing]) == "shown"


def test_verdict_counts_further_looks_as_tests_that_found_nothing() -> None:
    assert word_of([run_of("a", 0.02, "shown")], looks=1) == "shown"
    assert word_of([run_of("a", 0.02, "shown")], looks=2) == "inconclusive"
    found = verdict(audits_of([run_of("a", 0.02, "shown")], looks=2), looks=2)
    assert (
        "1 audit and for at least 2 further looks at the same data (Holm); looks in other stores are not" in found.explanation
    )


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
    assert f"Not counted: audit a ({doubt})" in found.explanation
    first = (
        f"Audit a shows memory on its own page (by chance at most once in 1,000 cases), and does not count here ({STALE})."
    )
    assert found.sentence.startswith(first) == (doubt == STALE)


def test_rows_name_every_known_attack_once_or_more() -> None:
    rows = rows_of(audits_of([run_of("a", 0.5, "bounded")]), {})
    assert {attack.name for attack, *_ in rows} == {attack.name for _, attack in attacks() if attack.is_attack}
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
    clause = "as a group, members of the training set can be told from non-members (audit a)"
    said = f"{clause}. Shown by one audit, by chance at most once in 1,000 cases."
    assert verdict(given, looks=0).sentence == f"The model (sha256 abababababab): {said}"
    assert verdict(trained, looks=0).sentence == f"Models that the audits trained on table (data d): {said}"


def dossier_of(*found: tuple[RunRecord, AuditedModels], stale: Sequence[str] = (), **how: Any) -> tuple[str, str]:
    """Return the sentence and the explanation of a dossier of runs and their models."""
    outcomes = [Outcome(run.run, run.audit, {}, run) for run, _ in found]
    audits = listed(outcomes, [models for _, models in found], looks=how.get("looks", 0), stale=stale)
    said = verdict(audits, **{"looks": 0, **how})
    return said.sentence, said.explanation


GIVEN, OTHER, TRAINED = AuditedModels(0, external=("ab" * 32,)), AuditedModels(0, external=("cd" * 32,)), AuditedModels(3)
MODEL = "The model (sha256 abababababab)"


def test_an_audit_that_does_not_count_is_not_said_to_show_nothing() -> None:
    strong, nothing = run_of("a", 0.001, "shown"), run_of("b", 0.8, "inconclusive", audit="forgetting")
    first = (
        f"Audit a shows memory on its own page (by chance at most once in 1,000 cases), and does not count here ({STALE})."
    )
    sentence, _ = dossier_of((strong, GIVEN), stale=["a"])
    assert sentence == f"{first} {MODEL}: 1 audit with a test was run, but none counts, so nothing is said of memory."
    sentence, _ = dossier_of((strong, GIVEN), (nothing, GIVEN), stale=["a"])
    assert sentence == f"{first} {MODEL}: none of the 1 that count, of 2 audits with a test, shows memory."
    sentence, _ = dossier_of((run_of("a", 0.03, "shown"), GIVEN), (nothing, GIVEN))
    assert sentence == (
        "Audit a shows memory on its own page (by chance at most once in 33 cases), but not after allowing for 1 further audit of this "
        f"dossier. {MODEL}: none of 2 audits with a test shows memory after the adjustment."
    )


def test_each_model_has_a_sentence_of_its_own() -> None:
    strong, nothing = run_of("a", 0.001, "shown"), run_of("b", 0.8, "inconclusive", audit="forgetting")
    clause = "as a group, members of the training set can be told from non-members (audit a)"
    trained = f"Models that the audits trained on table (data d): {clause}"
    sentence, _ = dossier_of((strong, TRAINED), (nothing, GIVEN))
    assert sentence == (
        f"{MODEL}: the one audit with a test shows no memory. {trained}. Shown by one audit, by chance at most once in 500 cases."
    )
    sentence, _ = dossier_of((strong, TRAINED), (run_of("c", 0.001, "shown"), GIVEN), stale=["c"])
    assert sentence.startswith(f"{MODEL}: 1 audit with a test was run, but none counts")
    sentence, _ = dossier_of((strong, GIVEN), (nothing, OTHER))
    assert sentence.endswith("The model (sha256 cdcdcdcdcdcd): the one audit with a test shows no memory.")


@pytest.mark.parametrize(
    ("audit", "row", "clause"),
    [
        ("forgetting", {"family": "targets"}, "the data set in question (D_Q) was used in training, at least in part"),
        ("membership", {"family": "privacy", "params": '{"epsilon": 1.5}'}, "the claim of epsilon 1.5 is refuted"),
        ("captions", {"family": "headline"}, "objects in training images that their captions do not mention are named"),
    ],
)
def test_each_audit_says_what_it_shows(audit: str, row: dict[str, Any], clause: str) -> None:
    sentence, _ = dossier_of((run_of("a", 0.001, "shown", audit=audit, **row), TRAINED))
    assert f": {clause}" in sentence
    assert "gives away" not in sentence


def test_every_headline_family_has_a_clause_and_advice() -> None:
    for audit in AUDITS.values():
        assert set(audit.leaks) == set(audit.headlines)
        assert all(one.clause and one.advice.endswith(".") for one in audit.leaks.values())


def test_a_bounded_dossier_names_what_its_bounds_leave_out() -> None:
    bounded, described = run_of("a", 0.5, "bounded"), run_of("b", None, "descriptive", audit="self_influence")
    sentence, text = dossier_of((bounded, GIVEN), (described, GIVEN))
    assert sentence == f"{MODEL}: the one audit with a test shows no memory, and bounds it."
    assert text.startswith("Without a test, 1 audit bounds nothing. ")
    sentence, text = dossier_of((bounded, GIVEN), (run_of("c", 0.9, "bounded", audit="forgetting"), GIVEN))
    assert sentence == f"{MODEL}: none of 2 audits with a test shows memory, and each of them bounds it."
    assert text.startswith("Each limit holds at 95 % by itself, not all of them together. ")


def test_an_audit_counts_at_the_level_of_dossiers_and_at_its_own() -> None:
    lax, strict = run_of("a", 0.21, "shown", alpha=0.45), run_of("b", 0.03, "inconclusive", alpha=0.01, audit="forgetting")
    assert word_of([lax]) == "inconclusive"
    assert word_of([lax, run_of("c", 0.5, "bounded", audit="captions")]) == "inconclusive"
    sentence, _ = dossier_of((lax, GIVEN))
    assert "shows memory" not in sentence.partition(":")[0]
    assert word_of([strict]) == "inconclusive"


def test_a_level_above_that_of_dossiers_denies_no_bound() -> None:
    bounded, lax = run_of("a", 0.5, "bounded"), run_of("b", 0.21, "shown", alpha=0.45)
    assert (
        word_of([bounded], beside=[Beside(lax, "", passes=False, reason="its level is above that of dossiers")]) == "bounded"
    )


def test_memory_is_never_bounded_where_a_run_shows_it_by_itself() -> None:
    """Sixteen further audits erase a p-value of .003 in Holm's method."""
    innocent = [run_of(f"b{n}", 0.9, "bounded", audit="forgetting", data=f"d{n}") for n in range(40)]
    shown = run_of("a", 0.003, "shown")
    assert word_of([shown, *innocent[:15]]) == "shown"
    found = verdict(audits_of([shown, *innocent]), looks=0)
    assert found.word == "inconclusive"
    assert found.sentence.startswith(
        "Audit a shows memory on its own page (by chance at most once in 333 cases), but not after allowing for 40 further audits of "
        "this dossier. "
    )


def test_audits_of_one_design_are_one_entry() -> None:
    """The first has half of the level, the others share the other half: none is erased by repetition, and none gains by it."""
    first, later = run_of("a", 0.003, "shown"), [run_of(f"b{n}", 0.9, "bounded", begun=n + 1.0) for n in range(40)]
    assert word_of([first, *later]) == "shown"
    assert [one.entry for one in audits_of([*later[:2], first])] == ["a", "a", "a"]
    weak = run_of("a", 0.3, "inconclusive")
    for p, word in ((0.0006, "shown"), (0.0007, "inconclusive")):  # 2 * 40 * p
        assert word_of([weak, run_of("c", p, "shown", begun=0.5), *later[:39]]) == word
    assert word_of([run_of("a", 0.04, "shown"), run_of("c", 0.04, "shown", begun=1.0)]) == "inconclusive"


def test_frozen_plans_have_half_of_the_level_to_themselves() -> None:
    plan = FollowedPlan(digest="00" * 32, frozen=0.0, began=1.0)
    planned = run_of("a", 0.02, "shown", plan=plan)
    innocent = [run_of(f"b{n}", 0.9, "bounded", audit="forgetting", data=f"d{n}") for n in range(40)]
    assert word_of([planned, *innocent], looks=3) == "shown"
    departed = plan.model_copy(update={"departures": [Departure(what="data")]})
    assert word_of([run_of("a", 0.02, "shown", plan=departed), *innocent]) == "inconclusive"
    other = run_of("c", 0.04, "shown", audit="captions", data="d")
    words = [one.is_shown for one in audits_of([planned, other])]
    assert words == [True, True]  # a group that is rejected whole passes its half on


def test_a_powerless_audit_takes_no_part_in_the_adjustment() -> None:
    powerless = [run_of(f"b{n}", 0.5, "inconclusive", smallest_p=0.5, audit="forgetting", data=f"d{n}") for n in range(9)]
    assert word_of([run_of("a", 0.04, "shown"), *powerless]) == "shown"
    assert word_of(powerless) == "inconclusive"
    sentence, _ = dossier_of((powerless[0], GIVEN))
    assert sentence == f"{MODEL}: with their size, 1 audit with a test could show nothing."


def test_runs_beside_the_dossier_that_say_otherwise_come_first_and_deny_a_bound() -> None:
    bounded, shown = run_of("a", 0.5, "bounded"), run_of("b", 0.001, "shown")
    beside = [Beside(shown, "", passes=True, reason="")]
    assert word_of([bounded], beside=beside) == "inconclusive"
    sentence, _ = dossier_of((bounded, GIVEN), beside=beside)
    assert sentence.startswith(
        "Audit b (run b), which is not part of this dossier, shows memory (by chance at most once in 1,000 cases). "
    )
    other = [Beside(run_of("c", 0.5, "bounded"), "s3://other", passes=False, reason="")]
    _, text = dossier_of((shown, GIVEN), beside=other)
    assert "Runs that are not part of this dossier say otherwise: audit c (run c in s3://other), bounded." in text
    assert "say otherwise" not in dossier_of((bounded, GIVEN), beside=other)[1]


def test_a_verdict_begins_with_a_released_model_that_was_not_audited() -> None:
    shown = run_of("a", 0.001, "shown")
    sentence, _ = dossier_of((shown, GIVEN), released="cd" * 32)
    assert sentence.startswith("The released model (sha256 cdcdcdcdcdcd) is none of those that were audited. The model")
    assert dossier_of((shown, GIVEN), released="ab" * 32)[0].startswith(MODEL)
    assert dossier_of((shown, TRAINED), released="ab" * 32)[0].startswith("The released model")
