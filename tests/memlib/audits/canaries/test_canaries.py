"""Audits of canaries as runs: looks and coins of their plan, words that follow, and nothing that says who was inserted."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from small_models import save_canaries

import memlib
from memlib.audits.canaries.recipe import Recipe
from memlib.data.canaries.documents import ALL_FILE, read_documents
from memlib.data.canaries.losses import read_losses, replace_losses
from memlib.data.canaries.plan import COINS_FILE, PLAN_FILE, read_coins
from memlib.errors import UserError
from memlib.findings import Findings
from memlib.running.verification import sign
from memlib.runs.run import Run


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def saved(**settings: Any) -> None:
    save_canaries(Path("c"), Path("l.parquet"), **settings)


def audited(store: str = "store", **changes: Any) -> Run:
    return memlib.run({"audit": "canaries", "canaries": "c", "losses": "l.parquet", **changes}, store=store, quiet=True)


def test_a_training_that_remembers_is_shown_with_its_looks_and_its_page_is_verified() -> None:
    saved(looks=4)
    run = audited(privacy={"epsilon": 0.1})
    assert run.verdict.word == "shown"
    head = Findings.of_run(run.record).head
    assert (head.metric, head.params["looks"], head.params["made"]) == ("canary_auc", 4, 4)
    units = run.units.to_pylist()
    assert [row["look"] for row in units] == [1, 2, 3, 4]
    assert [row["look"] for row in units if row["stopped"]] == [head.params["stopped"]]
    assert sum(row["share"] for row in units) == pytest.approx(1)
    assert f"the test stopped at look {head.params['stopped']} of 4" in run.verdict.explanation
    page = Path(str(run.report)).read_text()
    for text in ("The looks", "Inserted canaries by score", "Is the training as private as claimed?", "epsilon, at least"):
        assert text in page
    shutil.rmtree("c")  # a folder that was erased leaves a run that can be read and verified
    assert memlib.verify(run.id, store="store").problems == []
    assert memlib.open(run.id, store="store").verdict.word == "shown"


def test_nothing_that_is_stored_or_shown_says_which_canary_was_inserted() -> None:
    saved(gain=30.0)
    run, coins = audited(), read_coins(Path("c"))
    names = [one.canary for one in read_documents(Path("c"))]
    texts = [one.text[3:15] for one in read_documents(Path("c"))]
    for path in Path("store").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == ".parquet":
                content = json.dumps(pq.read_table(path).to_pydict(), default=str).encode()
            assert not any(name.encode() in content for name in [*names, *texts]), path
    revealed = memlib.audits.AUDITS["canaries"].revealed  # type: ignore[attr-defined]
    told = revealed(run.store, run.record.recipe, run.record.artifacts)["inserted"]
    assert [row["canary"] for row in told] == [name for name, inside in zip(names, coins.inside, strict=True) if inside]


def test_the_same_folder_has_the_same_key_and_numbers_wherever_it_lies(tmp_path: Path) -> None:
    saved()
    first = audited()
    Path("elsewhere").mkdir()
    for name in ("c", "l.parquet"):
        Path(name).rename(Path("elsewhere") / name)
    again = audited(canaries=str(tmp_path / "elsewhere/c"), losses="elsewhere/l.parquet")
    assert (again.id, again.record.scores) == (first.id, first.record.scores)
    assert again.summary.equals(first.summary)


def test_losses_that_were_changed_or_coins_that_were_tossed_again_are_another_run() -> None:
    saved()
    first = audited()
    recorded = read_losses(Path("l.parquet"))
    values = recorded.table["loss_sum"].to_numpy() + np.where(np.arange(recorded.table.num_rows) == 70, 1.0, 0.0)
    place = recorded.table.column_names.index("loss_sum")
    replace_losses(Path("l.parquet"), replace(recorded, table=recorded.table.set_column(place, "loss_sum", [values])))
    assert audited().record.scores != first.record.scores


def test_a_step_that_is_chosen_afterwards_is_described() -> None:
    saved(gain=30.0)
    run = audited(step=20)
    assert run.verdict.word == "descriptive"
    assert run.verdict.sentence == "Nothing was tested: the step was chosen after the plan of the looks was made."
    assert all(row.p_value is None for row in Findings.of_run(run.record))
    assert [*memlib.audits.AUDITS["canaries"].limits(Recipe.model_validate(run.record.recipe))]  # type: ignore[attr-defined]


def test_missed_looks_spend_their_share_and_a_killed_training_is_named_so() -> None:
    saved(looks=4, made=(1, 3), gain=-1.0)
    run = audited()
    assert run.verdict.word == "inconclusive"
    assert "Looks that were missed spent their share of the level." in run.verdict.explanation
    assert "The training ended before its planned end" in run.verdict.explanation
    rows = run.units.to_pylist()
    assert [row["step"] for row in rows] == [10, None, 30, None]
    p_value = Findings.of_run(run.record).head.p_value
    assert p_value is not None
    assert p_value > 0.05


def test_a_few_canaries_that_stand_out_are_named_as_few() -> None:
    saved(count=400, looks=1, gain=0.0)
    coins, recorded = read_coins(Path("c")), read_losses(Path("l.parquet"))
    losses, steps = recorded.table["loss_sum"].to_numpy().copy(), recorded.table["step"].to_numpy()
    few = np.flatnonzero(coins.inside)[:14]
    losses[np.flatnonzero(steps == 10)[few]] -= 20
    worse = np.flatnonzero(coins.inside)[14:80]
    losses[np.flatnonzero(steps == 10)[worse]] += 1.5  # so that the AUC does not rise
    place = recorded.table.column_names.index("loss_sum")
    replace_losses(Path("l.parquet"), replace(recorded, table=recorded.table.set_column(place, "loss_sum", [losses])))
    run = audited()
    head = Findings.of_run(run.record).head
    assert run.verdict.word == "shown"
    assert head.low is not None
    assert head.low <= 0.5
    assert run.verdict.sentence.endswith("A few of them stand out; on the whole, inserted ones do not.")


def test_canaries_without_a_loss_rank_lowest_and_are_counted() -> None:
    saved(looks=1)
    recorded = read_losses(Path("l.parquet"))
    table = recorded.table.slice(0, recorded.table.num_rows - 3)
    replace_losses(Path("l.parquet"), replace(recorded, table=table))
    run = audited()
    assert run.units["missing"].to_pylist() == [3]
    assert "3 canaries have no finite loss and the lowest rank." in run.verdict.explanation


@pytest.mark.parametrize(
    ("privacy", "made", "said"),
    [
        ({"epsilon": 0.1}, {"gain": 30.0}, "the claim of epsilon 0.1 at delta 0 for one record is refuted"),
        ({"epsilon": 9.0}, {"gain": -1.0}, "The claim of epsilon 9 at delta 0 for one record cannot be tested"),
        ({"epsilon": 0.5, "scope": "last"}, {"gain": -1.0, "count": 300}, "for one record is not refuted"),
        ({"epsilon": 1, "adjacency": "replace"}, {"gain": 30.0}, "is not compared: it is about replacements"),
        ({"epsilon": 1, "delta": 1e-5}, {"gain": 30.0, "repeats": 2}, "is not compared: 2 copies change delta"),
        ({"epsilon": 1, "scope": "last"}, {"gain": 30.0, "made": (1, 2)}, "as none of the looks at which epsilon is bounded"),
    ],
)
def test_claims_are_tested_at_a_level_of_their_own(privacy: dict[str, Any], made: dict[str, Any], said: str) -> None:
    saved(**made)
    run = audited(privacy=privacy)
    assert said in run.verdict.explanation
    assert (Findings.of_run(run.record).get("privacy_claim") is None) == ("not compared" in said or "none of" in said)
    if made.get("repeats"):
        assert "Each was inserted 2 times." in run.verdict.explanation


def test_a_bound_at_delta_needs_no_claim() -> None:
    saved(gain=30.0)
    bounds = [Findings.of_run(audited(privacy=one).record).first("epsilon_lower_bound") for one in (None, {"delta": 1e-3})]
    assert [bound.params["delta"] for bound in bounds] == [0, 1e-3]
    described = Findings.of_run(audited(privacy={"epsilon": 1}, step=20).record)
    assert not described.all("epsilon_lower_bound", "privacy_claim")
    assert "not refuted" not in Path(str(audited(privacy={"epsilon": 1}, step=20).report)).read_text()


def test_the_page_says_which_look_ended_the_training() -> None:
    saved()
    recorded = read_losses(Path("l.parquet"))
    table = recorded.table.slice(0, recorded.table.num_rows - 3)
    replace_losses(Path("l.parquet"), replace(recorded, table=table, stopped=2))
    said = audited().verdict.explanation
    assert "The training was ended by its own test at look 2." in said
    assert "level 0.05)" in said


def test_a_first_look_that_can_stop_nothing_states_no_power() -> None:
    saved(looks=10, made=(1,), gain=30.0)
    run = audited()
    head = Findings.of_run(run.record).head
    assert (head.smallest_p, head.detectable) == (1.0, None)
    assert "No size would have been found" in run.verdict.explanation


def test_folders_without_a_plan_have_one_look_at_the_end() -> None:
    """As earlier versions wrote them."""
    saved(looks=1)
    recorded = read_losses(Path("l.parquet"))
    replace_losses(Path("l.parquet"), replace(recorded, canaries="", plan="", looks={}))
    table = pq.read_table(Path("c") / COINS_FILE)
    kept = {name: value for name, value in table.schema.metadata.items() if name in (b"memlib.repeats", b"memlib.guesses")}
    pq.write_table(table.replace_schema_metadata(kept), Path("c") / COINS_FILE)
    (Path("c") / PLAN_FILE).unlink()
    run = audited()
    assert Findings.of_run(run.record).head.params["looks"] == 1
    assert run.units["look"].to_pylist() == [1]


def test_files_that_are_missing_or_of_other_canaries_are_refused() -> None:
    saved()
    with pytest.raises(UserError, match="none does not exist"):
        audited(losses="none")
    with pytest.raises(UserError, match="canaries: none does not exist"):
        audited(canaries="none")
    save_canaries(Path("other"), Path("other.parquet"), count=50)
    with pytest.raises(UserError, match=r"other.parquet has losses of other canaries than those of c; name their own folder"):
        audited(losses="other.parquet")
    (Path("c") / ALL_FILE).unlink()
    assert audited().verdict.word in ("shown", "inconclusive")  # documents are not needed


def test_a_run_is_a_row_of_a_dossier_and_fails_a_gate() -> None:
    saved(gain=30.0)
    run = audited()
    dossier = memlib.run({"audit": "dossier", "subject": {"runs": [run.id]}}, store="store", quiet=True)
    assert dossier.verdict.word == "shown"
    assert "inserted canaries are more likely than those that were left out" in dossier.verdict.sentence
    assert any(row.metric == "canary_auc" for row in Findings.of_run(dossier.record))
    Path("policy.yaml").write_text("audits: [{audit: canaries, verdicts: [inconclusive], detectable: 0.9}]\n")
    assert memlib.gate("policy.yaml", store="store").outcome == "failed"
    saved_again = {"canaries": "d", "losses": "m.parquet"}
    save_canaries(Path("d"), Path("m.parquet"), gain=-1.0, count=300)
    assert audited(**saved_again).verdict.word == "inconclusive"
    assert memlib.gate("policy.yaml", store="store").outcome == "passed"


def test_losses_that_were_edited_in_the_store_are_named_by_a_verification(tmp_path: Path) -> None:
    saved()
    run = audited()
    key = Ed25519PrivateKey.generate()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "key.pem").chmod(0o600)
    sign(run.store, run.id, tmp_path / "key.pem")
    (file,) = [path for path in Path("store").rglob("losses.parquet") if "read_losses" in str(path)]
    table = pq.read_table(file)
    place = table.column_names.index("loss_sum")
    file.chmod(0o600)
    pq.write_table(table.set_column(place, "loss_sum", [np.asarray(table["loss_sum"]) + 1.0]), file)
    problems = memlib.verify(run.id, store="store").problems
    assert any("losses.parquet" in str(problem) for problem in problems)
