"""The gate: nothing that is missing, stale, underpowered or lost passes; comparisons with a baseline are tested."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits.policy import Policy
from memlib.errors import UserError
from memlib.recipes.files import load_recipe
from memlib.recipes.request import AuditRequest
from memlib.running.baseline import planned_margins
from memlib.running.gate import DAY, GateDecision, gate, read_policy
from memlib.runs.run import Run, open
from memlib.specs.question import asks_digest
from memlib.stats.noninferiority import decidable_margin
from memlib.store import Ref, Store
from memlib.store.records import sealed
from tests.memlib.running.policy_runs import DATA, NOW, OTHER_DATA, head, publish, units

MODEL, CODE = "a" * 64, "c" * 64
BASELINE = [0.10, 0.12, 0.14, 0.16]
SPREAD = float(np.std(BASELINE, ddof=1))
DECIDABLE = decidable_margin(SPREAD, 4, 4)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def policy(*, at_top: dict[str, Any] | None = None, **rules: Any) -> Policy:
    whole = {"verdicts": ["bounded"]} | rules
    return Policy.model_validate({"audits": [{"audit": "unique-feature", **whole}]} | (at_top or {}))


def reasons(decision: GateDecision) -> dict[str, tuple[str, str]]:
    return {judged.gate: (judged.outcome, judged.reason) for audit in decision.audits for judged in audit.findings}


@pytest.mark.parametrize(
    ("word", "accepted", "outcome"),
    [
        ("bounded", ["bounded"], "passed"),
        ("shown", ["bounded"], "failed"),
        ("inconclusive", ["bounded"], "undecided"),
        ("descriptive", ["bounded"], "undecided"),
        ("inconclusive", ["bounded", "inconclusive"], "passed"),
    ],
)
def test_only_accepted_verdicts_pass_and_only_shown_fails(store: Store, word: Any, accepted: list[str], outcome: str) -> None:
    publish(store, "abc", BASELINE, word=word)
    assert gate(policy(verdicts=accepted), store, now=NOW).outcome == outcome


def test_a_missing_audit_is_undecided_and_the_newest_run_is_judged(store: Store) -> None:
    publish(store, "bad", BASELINE, word="shown", finished=NOW - 1)
    publish(store, "abc", BASELINE, title="fine")
    found = gate(policy(), store, now=NOW)
    assert [one.run.run for one in found.audits if one.run] == ["abc"]
    assert gate(policy(title="fine"), store, now=NOW).outcome == "passed"
    missing = gate(policy(title="gone"), store, now=NOW)
    assert (missing.outcome, missing.audits[0].run) == ("undecided", None)
    assert 'no run of unique-feature "gone"' in reasons(missing)["required"][1]
    assert gate(policy(), store, now=NOW, data="c").outcome == "undecided"


def test_the_reason_of_a_verdict_names_earlier_looks(store: Store) -> None:
    looks = [{"run": f"r{n}", "audit": "unique_feature", "p_value": 1e-9, "verdict": "shown"} for n in range(19)]
    publish(store, "abc", BASELINE, ledger={"data": DATA, "earlier": looks})
    outcome, reason = reasons(gate(policy(), store, now=NOW))["verdicts=bounded"]
    assert outcome == "passed"
    assert "Look 20 at these data in this store; the verdict does not allow for the earlier ones." in reason


def test_runs_with_other_seeds_and_of_the_same_given_model_are_judged_with_the_newest(store: Store) -> None:
    publish(store, "bad", BASELINE, word="shown", finished=NOW - 1, recipe={"training": {"seed": 1, "epochs": 5}})
    publish(store, "abc", BASELINE, recipe={"training": {"seed": 2, "epochs": 5}})
    found = gate(policy(), store, now=NOW)
    assert (found.outcome, [one.run.run for one in found.audits if one.run]) == ("failed", ["abc", "bad"])
    assert gate(policy(), store, now=NOW, runs=["abc"]).outcome == "passed"  # runs that are named are judged alone
    replaced = {"asks": "same", "recipe": {"training": {"seed": 1, "epochs": 5}}}
    publish(store, "bad", BASELINE, word="shown", finished=NOW - 1, **replaced)
    publish(store, "new", BASELINE, finished=NOW, **replaced)
    assert gate(policy(), store, now=NOW).outcome == "passed"
    other = Store(f"{store.uri}/other")
    for name, epochs in (("bad", 1), ("abc", 2)):  # other settings of the attack on one model that was given
        nets = examined(other, Ref("train_nets", str(epochs) * 32))
        publish(
            other, name, BASELINE, word="shown" if name == "bad" else "bounded", recipe={"score": epochs}, computed=[nets]
        )
    found = gate(policy(n=4, ceilings=["m_white=0.05"]), other, now=NOW)
    assert found.outcome == "failed"
    assert [judged.gate for judged in found.audits[1].findings] == ["verdicts=bounded", "m_white=0.05"]  # nothing of its age


def test_runs_of_other_weights_or_of_other_rules_are_not_judged_with_the_newest(store: Store) -> None:
    for number, name in enumerate(("bad", "abc")):
        nets = examined(store, Ref("train_nets", str(number) * 32), weights=str(number) * 64)
        word = "shown" if name == "bad" else "bounded"
        publish(store, name, BASELINE, word=word, recipe={"score": number}, computed=[nets], finished=NOW + number)
    assert gate(policy(), store, now=NOW + 1).outcome == "passed"
    publish(store, "old", BASELINE, word="shown", recipe={"split_seed": 1, "epochs": 5}, title="of another rule")
    publish(store, "now", BASELINE, recipe={"split_seed": 2, "epochs": 5}, title="mine", finished=NOW + 2)
    assert gate(policy(title="mine"), store, now=NOW + 2).outcome == "passed"
    assert gate(policy(), store, now=NOW + 2).outcome == "failed"  # the same but for the seed of the split


def examined(store: Store, ref: Ref, weights: str = MODEL) -> str:
    """Write an artifact that was made from a given model, and return its address."""
    with store.artifacts.write(ref, inputs={"model": json.dumps([{"model": "their:net"}, CODE, [weights]])}) as attempt:
        attempt.path("scores.json").write_text("{}")
    return str(ref)


def test_a_policy_can_name_the_model_and_the_largest_bound(store: Store) -> None:
    publish(store, "abc", BASELINE, computed=[examined(store, Ref("score_nets", "1" * 32))])
    assert gate(policy(model=MODEL[:12]), store, now=NOW).outcome == "passed"
    assert gate(policy(model="b" * 12), store, now=NOW).outcome == "undecided"
    assert gate(policy(bound=0.05), store, now=NOW).outcome == "passed"
    loose = gate(policy(bound=0.04), store, now=NOW)
    assert reasons(loose)["bound=0.04"] == ("undecided", "bounds of the recipe: m_white: 0.05")
    publish(store, "bbc", BASELINE, finding=head(BASELINE, bound=None), finished=NOW + 1)
    assert gate(policy(bound=0.9, verdicts=["bounded"]), store, now=NOW + 1).outcome == "undecided"


def test_persons_are_counted_where_units_are_grouped(store: Store) -> None:
    rows = [{"example_id": f"{n}", "group": "p1" if n < 60 else None} for n in range(62)]
    table = pa.Table.from_pylist(rows * 2)  # images of one person and two others, at two settings
    publish(store, "abc", BASELINE, scores=table, finding=head(BASELINE, n=62))
    assert gate(policy(n=3), store, now=NOW).outcome == "passed"
    few = gate(policy(n=4), store, now=NOW)
    assert reasons(few)["n=4"] == ("undecided", "the headline rests on 3 independent units")


def test_age_is_that_of_the_numbers_and_not_of_the_page(store: Store) -> None:
    scores = Ref("score", "1" * 32)
    with store.artifacts.write(scores) as attempt:
        attempt.path("summary.json").write_text("{}")
    made = store.artifacts.manifest(scores).finished
    assert made is not None
    rules = policy(at_top={"max_age_days": 30})
    publish(store, "abc", BASELINE, finished=made + 90 * DAY)
    path = "runs/abc/manifest.json"
    record = {name: value for name, value in json.loads(store.published(path) or b"").items() if name != "digest"}
    store.publish(path, json.dumps(sealed(record | {"scores": str(scores)})).encode())
    assert gate(rules, store, now=made + 31 * DAY).outcome == "undecided"
    assert gate(rules, store, now=made + 29 * DAY).outcome == "passed"
    ahead = gate(rules, store, now=made - DAY)
    assert reasons(ahead)["max_age_days=30"] == ("undecided", "its numbers are dated 1.0 days ahead")


def test_all_runs_that_are_named_are_judged_and_each_needs_a_rule(store: Store) -> None:
    publish(store, "bad", BASELINE, word="shown")
    publish(store, "abc", BASELINE)
    assert gate(policy(), store, now=NOW, runs=["ab"]).outcome == "passed"
    both = gate(policy(), store, now=NOW, runs=["abc", "bad"])
    assert (both.outcome, len(both.audits)) == ("failed", 2)
    with pytest.raises(UserError, match="no rule for run abc"):
        gate(policy(title="bad"), store, now=NOW, runs=["abc", "bad"])
    with pytest.raises(UserError, match="not both"):
        gate(policy(), store, now=NOW, runs=["abc"], data="aa")


@pytest.mark.parametrize(
    ("at_top", "changes", "rule"),
    [
        ({"max_age_days": 2}, {"finished": NOW - 2.1 * DAY}, "max_age_days=2"),
        ({"data": "aaaaaaa"}, {"ledger": {"data": OTHER_DATA}}, "data=aaaaaaa"),
    ],
)
def test_old_runs_and_runs_on_other_data_are_stale(
    store: Store, at_top: dict[str, Any], changes: dict[str, Any], rule: str
) -> None:
    publish(store, "abc", BASELINE)
    assert gate(policy(at_top=at_top), store, now=NOW, runs=["abc"]).outcome == "passed"
    publish(store, "bbc", BASELINE, **changes)
    stale = gate(policy(at_top=at_top), store, now=NOW, runs=["bbc"])
    assert (stale.outcome, reasons(stale)[rule][0]) == ("undecided", "undecided")


def test_a_run_that_a_newer_one_replaced_is_stale(store: Store) -> None:
    publish(store, "old", BASELINE, asks="same")
    publish(store, "new", BASELINE, asks="same", finished=NOW + 1)
    publish(store, "else", BASELINE, asks="same", finished=NOW + 2, ledger={"data": OTHER_DATA})
    assert gate(policy(), store, now=NOW, runs=["old"]).outcome == "undecided"
    assert gate(policy(), store, now=NOW, runs=["new"]).outcome == "passed"
    assert gate(policy(at_top={"current": False}), store, now=NOW, runs=["old"]).outcome == "passed"
    assert [one.run.run for one in gate(policy(at_top={"data": DATA}), store, now=NOW).audits if one.run] == ["new"]


@pytest.mark.parametrize(
    ("finding", "rules", "outcome"),
    [
        ({}, {"detectable": 0.2}, "passed"),
        ({}, {"detectable": 0.19}, "undecided"),
        ({"detectable": None}, {"detectable": 0.9}, "undecided"),
        ({}, {"n": 4}, "passed"),
        ({}, {"n": 5}, "undecided"),
    ],
)
def test_an_underpowered_run_is_undecided(store: Store, finding: dict[str, Any], rules: dict[str, Any], outcome: str) -> None:
    publish(store, "abc", BASELINE, finding=head(BASELINE, **finding))
    assert gate(policy(**rules), store, now=NOW).outcome == outcome


def test_a_result_that_earlier_looks_void_fails_nothing(store: Store) -> None:
    """p = .03 is shown at the first look; at the second, twice p is above .05."""
    looks = [{"run": "r", "audit": "unique_feature", "p_value": 0.5}]
    shown = head(BASELINE, p_value=0.03)
    publish(store, "first", BASELINE, word="shown", finding=shown)
    publish(store, "second", BASELINE, word="shown", finding=shown, ledger={"data": DATA, "earlier": looks})
    assert gate(policy(), store, now=NOW, runs=["first"]).outcome == "failed"
    lost = gate(policy(), store, now=NOW, runs=["second"])
    assert lost.outcome == "undecided"
    assert "Look 2" in reasons(lost)["verdicts=bounded"][1] or "look 2" in reasons(lost)["verdicts=bounded"][1]


def test_a_ceiling_decides_by_the_upper_bound_and_refuses_unknown_metrics(store: Store) -> None:
    publish(store, "abc", BASELINE)
    assert gate(policy(ceilings=["m_white=0.04"]), store, now=NOW).outcome == "passed"
    assert gate(policy(ceilings=["m_white=0.03"]), store, now=NOW).outcome == "undecided"
    with pytest.raises(UserError, match="run abc has no m_grey; it has m_white"):
        gate(policy(ceilings=["m_grey=1"]), store, now=NOW)


def test_a_recipe_selects_the_runs_that_ask_the_same(store: Store, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(MOONS)
    spec = AuditRequest.read(str(recipe)).recipe
    publish(store, "abc", BASELINE, asks=asks_digest(spec.model_dump(mode="json")))
    publish(store, "bbc", BASELINE, word="shown", finished=NOW + 1)
    (tmp_path / "policy.yaml").write_text("audits: [{audit: unique_feature, recipe: mine.yaml, verdicts: [bounded]}]")
    found = gate(read_policy(tmp_path / "policy.yaml"), store, now=NOW)
    assert [one.run.run for one in found.audits if one.run] == ["abc"]


MOONS = """
audit: unique_feature
data: {source: {kind: two_moons, num_examples: 80}}
canary: {feature: {kind: scalar, value: 4}, label: 1}
model: {architecture: mlp, widths: [8]}
training: {objective: {kind: supervised}, epochs: 5, augment: null}
nets: {seeds: 4}
"""


# -- comparison with a baseline -----------------------------------------------------------------------


def compare(store: Store, margin: float, run: str = "new") -> tuple[str, str]:
    rules = policy(non_inferiority=[{"metric": "m_white", "margin": margin}])
    found = gate(rules, store, now=NOW, runs=[run], baseline="base")
    return reasons(found)[f"m_white<baseline+{margin:g}"]


def test_a_run_like_its_baseline_passes_at_decidable_margins_alone(store: Store) -> None:
    publish(store, "base", BASELINE)
    publish(store, "new", [0.15, 0.13, 0.11, 0.13])
    assert compare(store, DECIDABLE * 1.001)[0] == "passed"
    outcome, reason = compare(store, DECIDABLE * 0.999)
    assert outcome == "undecided"
    assert f"margins from {DECIDABLE:.4g} up" in reason


def test_a_run_that_remembers_more_than_its_baseline_fails_at_any_margin_that_it_may_exceed(store: Store) -> None:
    publish(store, "base", BASELINE)
    publish(store, "new", [gain + 0.3 for gain in BASELINE])
    assert compare(store, 0.3)[0] == compare(store, 0.01)[0] == "failed"
    assert compare(store, 0.5)[0] == "passed"
    publish(store, "less", [gain - 0.3 for gain in BASELINE])
    assert compare(store, 0.3, "less")[0] == "passed"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nets": "base"}, "the same 1 training"),
        ({"computed": []}, "trained no models"),
        ({"scores": units(BASELINE, canary="y")}, "different units"),
        ({"gains": [0.1, 0.2]}, "the run has 2 trainings"),
    ],
)
def test_dependent_runs_on_the_same_units_are_undecided(store: Store, changes: dict[str, Any], said: str) -> None:
    publish(store, "base", BASELINE)
    publish(store, "new", **({"gains": BASELINE} | changes))
    outcome, reason = compare(store, 0.5)
    assert (outcome, said in reason) == ("undecided", True), reason


def test_a_baseline_without_spread_and_the_baseline_itself_decide_nothing(store: Store) -> None:
    publish(store, "base", [0.1] * 4)
    publish(store, "new", BASELINE)
    assert compare(store, 0.5) == (
        "undecided",
        "all trainings of the baseline base have the same value, so that no margin can be computed",
    )
    assert compare(store, 0.5, "base") == ("undecided", "the run is the baseline itself")


def test_a_run_on_other_data_than_its_baseline_is_stale(store: Store) -> None:
    publish(store, "base", BASELINE)
    publish(store, "new", BASELINE, ledger={"data": OTHER_DATA})
    found = gate(policy(), store, now=NOW, runs=["new"], baseline="base")
    assert reasons(found)["data=baseline"][0] == found.outcome == "undecided"


def test_comparisons_without_a_baseline_or_without_trainings_are_mistakes(store: Store, tmp_path: Path) -> None:
    publish(store, "base", BASELINE)
    rules = policy(non_inferiority=[{"metric": "m_white", "margin": 0.1}])
    with pytest.raises(UserError, match="give --baseline"):
        gate(rules, store, now=NOW)
    publish(store, "new", BASELINE, scores=units(BASELINE, same_seed=True))
    with pytest.raises(UserError, match="no values of independent trainings for m_white"):
        gate(rules, store, now=NOW, runs=["new"], baseline="base")
    path = tmp_path / "policy.yaml"
    path.write_text("audits: [{audit: membership, non_inferiority: [{metric: auc, margin: 0.1}]}]")
    with pytest.raises(UserError, match="can for deja-vu and unique-feature"):
        read_policy(path)


def test_a_plan_states_the_margin_that_its_trainings_can_decide(store: Store, tmp_path: Path) -> None:
    publish(store, "base", BASELINE)
    (tmp_path / "moons.yaml").write_text(MOONS)
    baseline: Run = open("base", store=store.uri)

    def lines(*settings: str, margin: float = 0.1) -> list[str]:
        rules = policy(non_inferiority=[{"metric": "m_white", "margin": margin}])
        return [*planned_margins(AuditRequest.read(str(tmp_path / "moons.yaml"), settings), rules, baseline)]

    (line,) = lines(margin=DECIDABLE * 1.01)
    assert f"4 trainings, against 4 of the baseline base, decide margins from {DECIDABLE:.4g} up" in line
    assert line.endswith("can be passed")
    assert lines(margin=DECIDABLE * 0.99)[0].endswith("cannot be passed")
    assert f"margins from {decidable_margin(SPREAD, 4, 40):.4g} up" in lines("nets.seeds=40")[0]
    assert "the recipe has 2 trainings" in lines("nets.controls=2")[0]
    content, _ = load_recipe("smoke")
    assert [*planned_margins(AuditRequest.read(content), policy(), baseline)] == []
