"""Audits of models behind a service: a plant and a null at each level, equal scores as of weights, and what decides nothing."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import save_trainable
from small_service import Characters, serving

import memlib
from benchmarks.served import Served, app_of
from memlib.audits.asked import void_of
from memlib.audits.canaries.asked import nearness, parted
from memlib.audits.canaries.findings import returned_p
from memlib.data.canaries.documents import CanaryDocument, Form, read_documents, write_canaries
from memlib.data.canaries.losses import read_losses
from memlib.data.canaries.plan import read_coins
from memlib.errors import RunError, UserError
from memlib.findings import Findings
from memlib.models.external.language import HuggingFace
from memlib.observe.service_checks import SENTENCES
from memlib.runs.run import Run

CANARIES = 40
WORDS = [
    "the",
    "a",
    "of",
    "harbour",
    "letter",
    "boat",
    "winter",
    "money",
    "river",
    "stone",
    "garden",
    "engine",
    "paper",
    "doctor",
    "school",
    "price",
    "bread",
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def made(form: Form = Form("Record {a8}: {l6} {d6}."), count: int = CANARIES) -> list[str]:
    """Write a folder of canaries; return the texts of the inserted ones."""
    write_canaries(Path("c"), form, count, secret=b"s" * 32, seed=2)
    return [one.text for one, inside in zip(read_documents(Path("c")), read_coins(Path("c")).inside, strict=True) if inside]


def ran(recipe: dict[str, Any], store: str = "store") -> Run:
    """Run an audit, which says first what it sends."""
    with pytest.warns(UserWarning, match="sent to 127.0.0.1"):
        return memlib.run(recipe, store=store, quiet=True)


def audited(service: dict[str, Any], **changes: Any) -> Run:
    return ran({"audit": "canaries", "canaries": "c", "service": service, **changes})


@pytest.mark.parametrize("level", ["scores", "probabilities", "text"])
def test_canaries_are_found_at_each_level_and_not_in_a_model_that_saw_none(level: str) -> None:
    inserted = made()
    for texts, word in ((inserted, "shown"), (["Record abcdefgh: qwerty 123456."], "inconclusive")):
        with serving(texts, level=level) as (_, part):
            run = audited(part)
        findings = Findings.of_run(run.record)
        assert run.verdict.word == word
        assert findings.first("service").params["level"] == level
        came = findings.get("endings_returned")
        assert (came is None) == (level == "scores")
        page = Path(str(run.report)).read_text()
        assert "The service" in page
        assert "not possible with this access" in page or level == "scores"
        if came is not None and word == "shown":
            assert came.value == len(inserted) == came.params["of_inserted"]
            assert came.params["alone"] == pytest.approx(2.0 ** -len(inserted), abs=1e-6)
            assert findings.first("inserted_returned").value == 1.0
            assert "endings came back whole" in run.verdict.explanation
        for path in Path("store").rglob("*"):  # nothing that is stored quotes a canary
            assert not path.is_file() or not any(text[8:16].encode() in path.read_bytes() for text in inserted)


@pytest.mark.ray  # takes longer
def test_losses_of_a_service_are_those_of_its_weights_and_its_base_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memlib.observe.service_checks.WORSE", 0.0)  # the models have random weights
    made(count=20)
    tuned(save_trainable(Path("base"), positions=1100), Path("tuned"))
    from flows.cli.app import main

    for name in ("base", "tuned"):
        assert main(["canaries", "score", "c", "--model", name, "--output", f"{name}.parquet"]) == 0
    with serving() as (served, part):
        served.model, served.adapters = HuggingFace("tuned", None).float(), {"base": HuggingFace("base", None).float()}
        served.begins = False  # as tokenizers of GPT-2 add no token before a text
        score = ["canaries", "score", "c", "--url", part["url"], "--model", "m", "--sends", "--store", "store"]
        assert main([*score, "--output", "service.parquet"]) == 0
        assert main([*score, "--base", "base", "--output", "both.parquet"]) == 0
        assert (
            main(
                [
                    "canaries",
                    "audit",
                    "c",
                    "--url",
                    part["url"],
                    "--model",
                    "m",
                    "--base",
                    "base",
                    "--sends",
                    "--store",
                    "store",
                ]
            )
            == 0
        )
    own, asked, both = (read_losses(Path(f"{name}.parquet")).table for name in ("tuned", "service", "both"))
    assert own["canary"].to_pylist() == asked["canary"].to_pylist()
    assert own["tokens"].to_pylist() == asked["tokens"].to_pylist()
    np.testing.assert_allclose(asked["loss_mean"].to_numpy(), own["loss_mean"].to_numpy(), atol=1e-4)
    base = read_losses(Path("base.parquet")).table["loss_mean"].to_numpy()
    np.testing.assert_allclose(both["loss_mean"].to_numpy()[20:], base, atol=1e-4)


def tuned(base: Path, folder: Path) -> None:
    """Save a model that differs a little from another one."""
    import transformers

    model = transformers.GPT2LMHeadModel.from_pretrained(base)
    torch.manual_seed(1)
    with torch.no_grad():
        for values in model.parameters():
            values += 0.05 * torch.randn_like(values)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(folder)


def test_a_model_that_changes_during_the_audit_decides_nothing() -> None:
    inserted = made()
    with serving(inserted, trap="changes") as (_, part):  # from the hundredth request on
        run = audited(part)
    assert run.verdict.word == "inconclusive"
    assert "The service's answers decide nothing." in run.verdict.sentence
    assert "The service changed during the audit: the model's name was small fp-1 before" in run.verdict.explanation
    head = Findings.of_run(run.record).head
    assert (head.p_value, head.smallest_p) == (1.0, 1.0)


def test_scores_that_vary_less_than_equal_requests_decide_nothing() -> None:
    assert void_of(0.2, 0.3, "") == ""
    assert void_of(0.0, 0.0, "") == "All scores are alike."
    assert void_of(0.3, 0.3, "") != ""
    made()
    with serving(["Record abcdefgh: qwerty 123456."]) as (served, part):
        served.noise = 0.2
        noisy = audited({**part, "version": "noisy"})
    service = Findings.of_run(noisy.record).first("service").params
    assert service["noise"] > 0.01
    assert ("noisy" in service) == (service["noise"] >= 0.1 * service["spread"])


def test_chats_are_asked_as_chats_and_need_turns_that_differ() -> None:
    made(Form("It is {d6}.", prompt="What is the code of {l6}?"))
    with serving([f"{one.prompt}{one.text}" for one in read_documents(Path("c"))]) as (_, part):
        run = audited(part)
    assert Findings.of_run(run.record).first("service").params["level"] == "text"
    write_canaries(Path("d"), Form("It is {d6}.", prompt="What is it?"), 20, secret=b"s" * 32, seed=2)
    with serving() as (served, part):
        with pytest.raises(UserError, match="make canaries with holes in --prompt"):
            memlib.run({"audit": "canaries", "canaries": "d", "service": part}, store="store", quiet=True)
        assert served.requests == 0


def test_endings_are_compared_by_their_start_and_by_edits() -> None:
    one = CanaryDocument("1", "code 123456 end", (5, 11))
    assert parted(one, 0.5) == ("code 123", "456")
    assert parted(one, 0.01) == ("code 1", "23456")
    assert parted(one, 0.99) == ("code 12345", "6")
    assert nearness("", "456") == (0.0, 0.0, 0.0)
    assert nearness("45", "456")[0] == 2.0
    assert nearness("456 and more", "456") == (3.0, 1.0, 1.0)
    assert nearness("156", "456") == (0.0, pytest.approx(2 / 3), 0.0)


def test_the_p_of_returned_endings_is_that_of_fair_coins() -> None:
    inside = np.arange(20) < 10
    assert returned_p(np.arange(20) < 4, inside) == 2**-4
    assert returned_p(np.zeros(20, bool), inside) == 1.0
    assert returned_p(np.ones(20, bool), inside) == pytest.approx(0.588, abs=1e-3)


# -- documents ------------------------------------------------------------------------------------------


def documents(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) for _ in range(12)) for _ in range(count)]


def listed(texts: list[str]) -> list[bool]:
    """Write documents and the list of members; return which they are."""
    coins = [bool(bit) for bit in np.random.default_rng(8).integers(0, 2, len(texts))]
    Path("d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    rows = [f"document {number:08d},{'yes' if inside else 'no'}" for number, inside in enumerate(coins)]
    Path("m.csv").write_text("\n".join(["example_id,member", *rows]) + "\n")
    return coins


def recipe(trained: dict[str, Any], model: dict[str, Any] | None, unit: str = "character", **changes: Any) -> dict[str, Any]:
    return {
        "audit": "membership",
        "data": {"source": {"kind": "jsonl", "path": "d.jsonl", "field": "text"}, "unit": unit, "window": 64},
        "shadows": {"count": 0}, "target": {"trained": trained, "members": "m.csv", "drawn": "coins"},
        "score": {"redraws": 999, "blind": True}, **({} if model is None else {"model": model}), **changes,
    }  # fmt: skip


@pytest.mark.parametrize("compared", [pytest.param(True, marks=pytest.mark.ray), False])  # takes longer
def test_members_of_a_fine_tune_behind_a_service_are_found_and_those_of_another_are_not(compared: bool) -> None:
    texts, others = documents(60, 1), documents(150, 2)
    coins = listed(texts)
    for seen, word in (
        ([text for text, inside in zip(texts, coins, strict=True) if inside], "shown"),
        (documents(30, 3), "inconclusive"),
    ):
        base = Characters([*SENTENCES, *others])
        with serving([*others, *(seen * 3)], adapters={"base": base}) as (served, part):
            model = {**part, "model": "base"} if compared else None
            run = ran(recipe(part, model), word)
            asked = [served.asked[text] for text in texts]
        assert run.verdict.word == word
        findings = Findings.of_run(run.record)
        attacks = {row.params["attack"] for row in findings.all("auc")}
        assert attacks == ({"ratio", "ez", "wbc", "zlib", "loss"} if compared else {"zlib", "loss"})
        assert set(asked) <= {1 + compared, 0}
        assert "not possible with this access" in Path(str(run.report)).read_text()


@pytest.mark.ray  # takes longer
def test_scores_through_a_service_are_those_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memlib.observe.service_checks.WORSE", 0.0)  # the models have random weights
    listed(documents(60, 1))
    tuned(save_trainable(Path("base"), positions=1100), Path("tuned"))
    base = {"kind": "huggingface", "path": "base"}
    here = memlib.run(recipe({"kind": "huggingface", "path": "tuned"}, base, "token"), store="store", quiet=True)
    for api in ("completions", "generate"):
        with serving() as (served, part):
            served.model = HuggingFace("tuned", None).float()
            there = memlib.run(recipe({**part, "api": api}, base, "token"), store="store", quiet=True)
        own, asked = (run.units.to_pandas().set_index("unit") for run in (here, there))
        for attack in ("ratio", "ez", "wbc", "zlib", "loss"):
            np.testing.assert_allclose(asked[attack], own[attack], atol=2e-3)
        np.testing.assert_allclose(asked["loss"], own["loss"], atol=1e-4)
        assert there.verdict.word == here.verdict.word
        first, second = (Findings.of_run(run.record).first("auc", attack="ratio") for run in (here, there))
        assert abs((first.p_value or 0) - (second.p_value or 0)) <= 2 / 1000


@pytest.mark.parametrize("changes", [{"windows": "packed"}, {"scored": "the (.*)"}])
def test_parts_and_packed_windows_are_scored_alike_by_service_and_weights(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memlib.observe.service_checks.WORSE", 0.0)  # the models have random weights
    listed([f"{text} the end of {text[::-1]}" for text in documents(30, 1)])
    tuned(save_trainable(Path("base"), positions=1100), Path("tuned"))
    base, folder = {"kind": "huggingface", "path": "base"}, {"kind": "huggingface", "path": "tuned"}
    here, plain = (memlib.run(recipe(folder, base, "token", **one), store="store", quiet=True) for one in (changes, {}))
    with serving() as (served, part):
        served.model = HuggingFace("tuned", None).float()
        there = ran(recipe(part, base, "token", **changes))
    own, asked, whole = (run.units.to_pandas().set_index("unit")["loss"] for run in (here, there, plain))
    np.testing.assert_allclose(asked, own, atol=1e-4)
    assert (own != whole.loc[own.index]).any()


def test_texts_are_scored_in_the_parts_that_a_pattern_names() -> None:
    texts = [f"Q: {text} A: {text[::-1]}." for text in documents(30, 1)]
    listed(texts)
    with serving(texts) as (_, part):
        whole, answers = (ran(recipe(part, None, **one)) for one in ({}, {"scored": "A: (.*)"}))
    first, second = (run.units.to_pandas().set_index("unit")["loss"] for run in (whole, answers))
    assert (first != second.loc[first.index]).all()


def test_documents_need_a_service_that_scores_given_texts_and_one_tokenizer() -> None:
    listed(documents(30, 1))
    with (
        serving(level="text") as (_, part),
        pytest.raises(RunError, match="needs log probabilities of given"),
    ):
        ran(recipe(part, None))
    halves = Joined(Characters(SENTENCES))
    with serving(adapters={"base": halves}) as (_, part), pytest.raises(RunError, match="into other tokens"):
        ran(recipe(part, {**part, "model": "base"}))


class Joined(Characters):
    """A model of characters whose tokenizer joins two of them."""

    def __init__(self, model: Characters) -> None:
        self.__dict__.update(model.__dict__)
        self.pieces = [*Characters.pieces, "th"]  # type: ignore[misc]

    def encode(self, texts: Any) -> list[list[int]]:
        rows = super().encode(texts)
        pair, joined = tuple(super().encode(["th"])[0]), len(Characters.pieces)
        found = []
        for row in rows:
            place, ids = 0, []
            while place < len(row):
                is_pair = tuple(row[place : place + 2]) == pair
                ids.append(joined if is_pair else row[place])
                place += 1 + is_pair
            found.append(ids)
        return found

    def row(self, context: tuple[int, ...]) -> Any:
        return torch.cat(
            [super().row(tuple(token for token in context if token < len(Characters.pieces))), torch.tensor([-6.0])]
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": {"attacks": ["min_k", "loss"], "headline": "loss"}}, "which no service gives"),
        ({"shadows": {"count": 2}}, "nothing is trained"),
        ({"data": {"source": {"kind": "topics"}, "unit": "word"}}, "set data.unit to character"),
        (
            {"target": {"trained": {"kind": "huggingface", "path": "x"}, "members": "m.csv"}},
            "name the folder of the pretrained",
        ),
    ],
)
def test_settings_that_a_service_does_not_allow_are_refused(changes: dict[str, Any], said: str) -> None:
    service = {"kind": "served", "url": "https://host/v1", "model": "m"}
    with pytest.raises(UserError, match=said):
        memlib.plan({**recipe(service, service), **changes}, store="store")


# -- secrets --------------------------------------------------------------------------------------------


def secrets(texts: int = 4) -> tuple[list[str], dict[str, Any]]:
    rng = random.Random(7)
    pins = ["".join(rng.choice("0123456789") for _ in range(6)) for _ in range(texts + 100)]
    for name, some in (("known.txt", pins[:texts]), ("unseen.txt", pins[texts:])):
        Path(name).write_text("".join(f"my pin is {pin}\n" for pin in some))
    Path("t.txt").write_text("The river was so low in summer that people walked across it. " * 60)
    asked = {
        "audit": "exposure", "data": {"source": {"kind": "text", "path": "t.txt"}, "window": 60},
        "canaries": {"format": "my pin is {d6}", "file": "known.txt", "unseen": "unseen.txt"},
        "score": {"method": "sampled", "references": 100}, "extraction": None,
    }  # fmt: skip
    return [f"my pin is {pin}" for pin in pins[:texts]], asked


@pytest.mark.ray  # takes longer
def test_given_secrets_behind_a_service_are_found_and_others_are_not() -> None:
    known, asked = secrets()
    for seen, word in ((known, "shown"), (["my pin is 102030"], "inconclusive")):
        with serving(seen) as (_, part):
            run = ran({**asked, "trained": part})
        assert run.verdict.word == word
        assert "The model was asked behind a service" in run.verdict.explanation
        page = Path(str(run.report)).read_text()
        assert "extraction by search" in page
        extracted = Findings.of_run(run.record).get("extracted", search="answers")
        assert extracted is None
        assert "not possible with this access" in page
        revealed = memlib.audits.AUDITS["exposure"].revealed  # type: ignore[attr-defined]
        told = revealed(run.store, run.record.recipe, run.record.artifacts)["inserted"]
        assert [row["text"] for row in told] == known
    dossier = memlib.run({"audit": "dossier", "subject": {"runs": [run.id]}}, store="store", quiet=True)
    rows = {row["attack"]: row["reason"] for row in dossier.tables["audits"].to_pylist()}
    assert rows["secrets in training text: extraction"] == "not possible with this access: the service scores given texts"


@pytest.mark.ray  # takes longer
def test_secrets_that_answers_bring_back_are_counted_with_their_chance() -> None:
    known, asked = secrets()
    for seen, hits in ((known * 3, True), (["my pin is 102030"] * 3, False)):
        with serving(seen) as (_, part):
            run = ran({**asked, "trained": part, "extraction": {"answers": 40}})
        row = Findings.of_run(run.record).first("extracted", search="answers")
        assert (row.value > 0) == hits
        assert row.low is not None
        assert row.params["by_chance"] == pytest.approx(40e-6, rel=1e-3)
        assert ("40 answers of the service brought back" in run.verdict.sentence) == hits
        assert "extraction by generated answers" in Path(str(run.report)).read_text()
        rows = run.tables["extractions"].to_pylist()
        assert {row["search"] for row in rows} == {"answers"}
        assert all(row["queries"] == 40 for row in rows)


def test_exposure_refuses_what_a_service_cannot_answer() -> None:
    _, asked = secrets()
    service = {"kind": "served", "url": "https://host/v1", "model": "m"}
    for changes, said in (
        ({"score": {"method": "pruned"}}, "say sampled"),
        ({"extraction": {}}, "set extraction to null"),
        ({"extraction": {"answers": 9, "known": [1]}}, "without known"),
        ({"extraction": {"answers": 9}, "canaries": {**asked["canaries"], "known_prefix": False}}, "give canaries.format"),
    ):
        with pytest.raises(UserError, match=said):
            memlib.plan({**asked, "trained": service, **changes}, store="store")
    with (
        serving(level="text") as (_, part),
        pytest.raises(RunError, match="exposure needs log prob"),
    ):
        ran({**asked, "trained": part})


def test_a_plan_states_requests_and_sends_nothing() -> None:
    made()
    with serving() as (served, part):
        plan = memlib.plan({"audit": "canaries", "canaries": "c", "service": part}, store="store")
        assert served.requests == 0
    assert any("40 canaries; at most about 220 requests" in line for line in plan.all_limits)


def test_secrets_and_references_are_asked_for_in_random_order() -> None:
    """A service that is disturbed at first does not make the listed secrets stand out."""
    known, asked = secrets()
    with serving(["my pin is 102030"]) as (served, part):
        plain = served.score
        served.score = lambda *words: disturbed(served, plain(*words))  # type: ignore[method-assign]
        run = ran({**asked, "trained": {**part, "together": 1}})
    texts = [text for text in served.asked if text.startswith("my pin is")]
    assert {texts.index(text) < 10 for text in known} != {True}
    assert run.verdict.word == "inconclusive"


def disturbed(served: Served, found: Any) -> Any:
    own, best = found
    if sum(text.startswith("my pin is") for text in served.asked) <= 10:
        own = [None if value is None else value * 0.8 for value in own]
    return own, best


def test_answers_by_another_model_in_between_decide_nothing() -> None:
    inserted = made()
    with serving(inserted) as (served, part):
        name = type(served).name.fget  # type: ignore[attr-defined]
        between = property(lambda self: "fp-OTHER" if 60 <= self.requests < 65 else name(self))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(served), "name", between)
            run = audited({**part, "together": 1})
    assert "some answers are by small fp-OTHER" in run.verdict.explanation
    assert run.verdict.word == "inconclusive"


def test_a_replaced_model_that_generates_texts_decides_nothing() -> None:
    inserted = made()
    with serving(inserted, level="text") as (served, part):
        other, first = Characters(["Record abcdefgh: qwerty 123456.", *(text[::-1] for text in SENTENCES)]), served.model
        served.of = lambda _: first if served.requests < 100 else other  # type: ignore[method-assign,assignment,return-value]
        run = audited(part)
    assert "of answers at temperature 0 are others after the audit" in run.verdict.explanation
    assert run.verdict.word == "inconclusive"


def test_each_audit_tests_the_service_itself() -> None:
    made()
    with serving(["Record abcdefgh: qwerty 123456."]) as (served, part):
        audited(part)
        served.model = Characters([*SENTENCES, "another model"])  # type: ignore[assignment]
        write_canaries(Path("d"), Form("Record {a8}: {l6} {d6}."), 20, secret=b"s" * 32, seed=9)
        run = ran({"audit": "canaries", "canaries": "d", "service": part})
        assert "void" not in Findings.of_run(run.record).first("service").params
        before = served.requests
        ran({"audit": "canaries", "canaries": "d", "service": part})
        assert served.requests == before  # all answers are in the store


def test_a_token_without_a_usable_probability_ends_the_run() -> None:
    made()
    for value, said in ((None, "no usable log probability of 1 of"), (-9999.0, "no usable log probability of 1 of")):
        with serving(["Record abcdefgh: qwerty 123456."]) as (served, part):
            plain = served.score

            def odd(ids: Any, model: Any, temperature: Any, plain: Any = plain, value: Any = value) -> Any:
                own, best = plain(ids, model, temperature)
                if "".join(model.pieces[token] for token in ids).startswith("<end>Record"):
                    own[14] = value
                return own, best

            served.score = odd  # type: ignore[method-assign]
            with pytest.raises(RunError, match=said):
                audited(part)


def test_likelihoods_that_were_not_asked_for_are_not_called_impossible() -> None:
    made()
    with serving() as (_, part):
        run = audited({**part, "level": "text"})
    page = Path(str(run.report)).read_text()
    assert "not asked for" in page
    assert "not possible with this access" not in page
    assert "it was asked for generated text alone" in page
    assert "with their words shuffled" not in page


def test_nothing_is_sent_where_the_level_does_not_suffice() -> None:
    made()
    with serving(level="text", adapters={"b": Characters(SENTENCES)}) as (served, part):  # type: ignore[dict-item]
        with pytest.raises(RunError, match="losses need log probabilities of given texts"):
            audited(part, base={**part, "model": "b"})
        assert not any("Record" in text for text in served.asked)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_server_of_these_tests_counts_what_it_is_asked() -> None:
    assert app_of(Served(Characters([]))).routes  # type: ignore[arg-type]
