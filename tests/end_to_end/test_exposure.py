"""The exposure audit through the command line: a planted secret is found, and stays where secrets belong."""

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from harness import Memlib, published, says_one_thing

RECIPE = """
audit: exposure
title: tiny secrets
data: {source: {kind: topics}, fraction: 0.04, window: 40, validation: 0.1}
canaries: {format: "the code is {d5}.", insertions: [40], never: 10}
model: {architecture: gru, width: 48, layers: 1, embedding: 16}
training:
  objective: {kind: language}
  epochs: 12
  batch_size: 16
  augment: null
  checkpoint_epochs: [1]
  optimizer: {learning_rate: 0.01, weight_decay: 0, warmup_epochs: 0, schedule: constant}
score: {references: 1000, shards: 2, replicates: 20}
extraction: {known: [0, 2], top: 3, batch: 16}
"""


UNKNOWN = "canaries.known_prefix: false, canaries.known_suffix: false"


@pytest.fixture(scope="module")
def audited(memlib: Memlib, tmp_path_factory: pytest.TempPathFactory) -> tuple[Memlib, Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("exposure")
    (folder / "recipe.yaml").write_text(RECIPE)
    mine = replace(memlib, recipe=folder / "recipe.yaml", audit_name="exposure")
    return mine, folder / "store", mine.audit(folder / "store")


def secrets_of(store: Path) -> list[dict[str, Any]]:
    return pq.read_table(next(store.glob("artifacts/secret/corpus/*/*/canaries.parquet"))).to_pylist()


def test_a_secret_inserted_often_is_exposed_and_extracted(audited: tuple[Memlib, Path, dict[str, Any]]) -> None:
    mine, store, manifest = audited
    says_one_thing(mine, store, manifest)
    tables = published(store, manifest)
    assert tables.keys() == {"summary", "curves", "units", "extractions", "documents"}
    assert not tables["documents"].num_rows
    units = tables["units"].to_pylist()
    assert {unit["epoch"] for unit in units} == {1, 12}
    last = next(unit for unit in units if unit["insertions"] and unit["epoch"] == 12)
    assert last["rank"] == 1
    assert last["method"] == "enumerated"
    assert last["exposure"] == pytest.approx(16.61, abs=0.01)
    never = [unit for unit in units if not unit["insertions"] and unit["epoch"] == 12]
    assert len(never) == 11  # with the inserted one, under the model that did not see it
    assert sum(unit["exposure"] < 8 for unit in never) >= 10
    searches = tables["extractions"].to_pylist()
    assert {(row["search"], row["known"]) for row in searches} == {
        (search, known) for search in ("shortest_path", "greedy", "beam") for known in (0, 2)
    }
    best = next(row for row in searches if row["search"] == "shortest_path" and row["known"] == 0)
    assert best["extracted"]
    assert best["exact"]
    assert best["queries"] < 11_111
    page = Path(manifest["report"]).read_text()
    assert (
        "The model gives away information about 1 of 1 inserted canary. Given the text around the secrets, "
        "but none of their symbols, a search extracted 1 of 1." in page
    )
    assert page.count("<svg") == 3


def test_secrets_appear_only_in_private_files_and_on_reveal(audited: tuple[Memlib, Path, dict[str, Any]]) -> None:
    mine, store, manifest = audited
    secrets = [row["text"].removeprefix("the code is ").removesuffix(".") for row in secrets_of(store)]
    for path in store.rglob("*"):
        if not path.is_file() or "secret" in path.relative_to(store).parts:
            continue
        if path.suffix in (".json", ".html", ".svg"):
            text = path.read_text()
            assert not any(f"is {secret}." in text for secret in secrets), path
    for path in store.glob("artifacts/secret/**/*"):
        if path.is_file():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    columns = [column for name in manifest["results"] for column in published(store, manifest)[name].column_names]
    assert not {"text", "choices"} & set(columns)
    shown = mine.call("show", manifest["run"], "--store", str(store)).stdout
    assert not any(secret in shown for secret in secrets)
    revealed = mine.call("show", manifest["run"], "--reveal", "--store", str(store)).stdout
    assert revealed.count(secrets[0]) >= 2  # inserted, and found
    assert secrets[1] not in revealed


@pytest.mark.slow
def test_a_second_run_computes_nothing_and_an_added_variant_only_its_own_stages(
    audited: tuple[Memlib, Path, dict[str, Any]],
) -> None:
    mine, store, manifest = audited
    again = mine.audit(store)
    assert again["run"] == manifest["run"]
    assert again["computed"] == []
    private = "{training.epochs: 1, training.privacy: {noise: 2, clip: 0.1}, training.checkpoint_epochs: []}"
    variants = f"variants={{plain: {{}}, eight bits: {{quantize: true}}, private: {private}, unknown: {{{UNKNOWN}}}}}"
    changed = mine.audit(store, variants, "extraction.known=[0]", "extraction.beam=null", "title=quantized")
    trained = [name for name in changed["computed"] if name.startswith(("train/", "secret/corpus"))]
    assert len(trained) == 2  # the private ones, with and without the canary
    rows = [{**row, "params": json.loads(row["params"])} for row in published(store, changed)["summary"].to_pylist()]
    by = {row["params"].get("variant"): row["value"] for row in rows if row["metric"] == "validation_loss"}
    assert by["eight bits"] == pytest.approx(by["plain"], rel=0.05)
    assert by["eight bits"] != by["plain"] == by["unknown"]
    (epsilon,) = [row for row in rows if row["metric"] == "epsilon"]
    assert epsilon["params"]["variant"] == "private"
    assert 0 < epsilon["value"] < 1
    exposed = {row["params"].get("variant"): row for row in rows if row["metric"] == "exposure" and "canary" in row["params"]}
    assert exposed["private"]["value"] < 8 < exposed["plain"]["value"]  # 40 insertions are not hidden, a rank of 1 is
    assert exposed["plain"]["verdict"] == "shown"
    claims = [row for row in rows if row["metric"] == "privacy_claim"]
    assert [(row["params"]["variant"], row["verdict"]) for row in claims] == [("private", "inconclusive")]
    differences = [row["params"]["variant"] for row in rows if row["metric"] == "exposure_difference"]
    assert differences == ["eight bits", "private", "unknown"]
    bits = {variant: row["params"]["log_perplexity"] for variant, row in exposed.items()}
    assert bits["unknown"] > bits["plain"]  # digits after nothing, and no more after them
    page = Path(changed["report"]).read_text()
    assert "Utility against exposure" in page
    assert "is no guarantee" in page
    revealed = mine.call("show", changed["run"], "--reveal", "--store", str(store)).stdout
    assert revealed.count(secrets_of(store)[0]["text"]) == 1


@pytest.mark.slow
def test_together_inserted_canaries_of_another_secret_are_audited(
    audited: tuple[Memlib, Path, dict[str, Any]], tmp_path: Path
) -> None:
    mine, store, manifest = audited
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    (tmp_path / "secret").chmod(0o600)
    settings = ("canaries.together=true", "canaries.insertions=[2, 30]", "canaries.never=5", "training.epochs=6")
    other = mine.audit(
        store, *settings, "score.method=pruned", "score.max_evaluations=3000", MEMLIB_SECRET_FILE=str(tmp_path / "secret")
    )
    assert other["artifacts"]["corpus"] != manifest["artifacts"]["corpus"]
    assert [name for name in other["artifacts"] if name.startswith("all canaries")] == ["all canaries 0"]
    units = [unit for unit in published(store, other)["units"].to_pylist() if unit["epoch"] == 6]
    assert [unit["insertions"] for unit in units] == [2, 30, 0, 0, 0, 0, 0]
    assert {unit["method"] for unit in units} <= {"pruned", "extrapolated", "sampled"}
    assert all((unit["rank"] is None) == (unit["method"] != "pruned") for unit in units)


@pytest.mark.slow
def test_a_frequent_given_secret_is_shown_and_printed_only_on_reveal(
    audited: tuple[Memlib, Path, dict[str, Any]], tmp_path: Path
) -> None:
    mine, store, _ = audited
    text = "\n".join(f"note {i}: call me back at {i * 7919 % 100_000:05d}, or use pin 40717. thanks" for i in range(300))
    (tmp_path / "mail.txt").write_text(text)
    (tmp_path / "pins.txt").write_text("pin 40717.\n")
    (tmp_path / "others.txt").write_text("".join(f"pin {10_000 + 97 * i}.\n" for i in range(60)))
    manifest = mine.audit(
        store, f"data={{source: {{kind: text, path: '{tmp_path / 'mail.txt'}'}}, fraction: 1}}", "extraction.known=[0]",
        f"canaries={{format: 'pin {{d5}}.', file: '{tmp_path / 'pins.txt'}', unseen: '{tmp_path / 'others.txt'}'}}",
        "training.epochs=4",
    )  # fmt: skip
    units = [unit for unit in published(store, manifest)["units"].to_pylist() if unit["epoch"] == 4]
    assert units[0]["insertions"] > 100
    assert units[0]["rank"] == 1
    assert [unit["insertions"] for unit in units[1:]] == [0] * 70
    assert [unit["kind"] for unit in units] == ["given"] + ["unseen"] * 60 + ["never"] * 10
    first = published(store, manifest)["summary"].to_pylist()[0]
    assert (first["metric"], first["conclusion"]) == ("exposure_among_unseen", "shown")
    assert first["sentence"].startswith("The model gives away information about 1 of 1 given secret.")
    assert first["p_value"] == 1 / 61
    assert "40717" not in json.dumps(manifest)
    assert "40717" not in Path(manifest["report"]).read_text()
    assert "10097" not in Path(manifest["report"]).read_text()
    assert "pin 40717." in mine.call("show", manifest["run"], "--reveal", "--store", str(store)).stdout


OUTSIDE = """
audit: exposure
data: {source: {kind: text, path: PATH/text.txt}, window: 30}
canaries: {format: "my pin is {d4}.", file: PATH/secrets.txt, never: 5}
trained: TRAINED
score: {references: 500, replicates: 20, enumerate_up_to: 100}
extraction: {batch: 4, beam: 2}
"""
MODULE = """
import numpy as np

class Remembers:
    vocabulary = sorted(set("\\n my pinsthecab0123456789."))

    def next_log_probs(self, prefixes, state):
        known = "my pin is 4071."
        found = np.full((len(prefixes), len(self.vocabulary)), 0.2 / len(self.vocabulary))
        for row, prefix in enumerate(prefixes):
            text = "".join(self.vocabulary[s] for s in prefix)
            place = next((n for n in range(len(text), 0, -1) if text.endswith(known[:n])), 0)
            found[row, self.vocabulary.index(known[place % len(known)])] += 0.8
        return np.log(found), None
"""


def outside(memlib: Memlib, folder: Path, trained: str) -> dict[str, Any]:
    (folder / "text.txt").write_text("the cat sits. my pin is hip. " * 40)
    (folder / "secrets.txt").write_text("my pin is 4071.\t7\nmy pin is 9382.\n")
    (folder / "recipe.yaml").write_text(OUTSIDE.replace("PATH", str(folder)).replace("TRAINED", trained))
    mine = replace(memlib, recipe=folder / "recipe.yaml", audit_name="exposure")
    return mine.audit(folder / "store", PYTHONPATH=str(folder))


def test_an_imported_model_with_next_log_probs_is_ranked_and_searched(memlib: Memlib, tmp_path: Path) -> None:
    (tmp_path / "remembers.py").write_text(MODULE)
    manifest = outside(memlib, tmp_path, "{kind: import, model: 'remembers:Remembers'}")
    units = published(tmp_path / "store", manifest)["units"].to_pylist()
    assert [unit["insertions"] for unit in units] == [7, 1, 0, 0, 0, 0, 0]
    assert (units[0]["rank"], units[0]["method"]) == (1, "pruned")
    assert units[1]["exposure"] < 4
    first = published(tmp_path / "store", manifest)["summary"].to_pylist()[0]
    assert first["conclusion"] == "inconclusive"
    assert "secrets of the same kind that it never saw are missing" in first["sentence"]
    searches = published(tmp_path / "store", manifest)["extractions"].to_pylist()
    assert {row["search"] for row in searches if row["extracted"]} == {"shortest_path", "greedy", "beam"}
    assert {row["by_chance"] for row in searches} == {2 / 10_000}


@pytest.mark.slow
def test_a_hugging_face_model_exposes_and_emits_the_secret_it_was_trained_on(memlib: Memlib, tmp_path: Path) -> None:
    """A small GPT-2, trained here as its owner would: the secret it saw is exposed and extracted, the other is not."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    text = "my pin is 4071. the cat sits. my pin is hip. 40 and 71 and 407. "
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text * 20], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    assert len(fast.tokenize(" 4071")) < 4  # its digits are joined
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=len(fast), n_positions=64, n_embd=32, n_layer=1, n_head=2, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tokens = torch.tensor([[0, *fast(text).input_ids]])
    for _ in range(60):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    model.save_pretrained(tmp_path / "gpt")
    fast.save_pretrained(tmp_path / "gpt")
    manifest = outside(memlib, tmp_path, f"{{kind: huggingface, path: '{tmp_path / 'gpt'}'}}")
    tables = published(tmp_path / "store", manifest)
    units = tables["units"].to_pylist()
    assert (units[0]["rank"], units[0]["method"]) == (1, "pruned")
    assert units[0]["exposure"] == pytest.approx(13.29, abs=0.01)
    assert units[1]["exposure"] < 8
    best = next(row for row in tables["extractions"].to_pylist() if row["search"] == "shortest_path" and row["canary"] == 0)
    assert best["extracted"]
    assert best["exact"]
    done = memlib.call("show", manifest["run"], "--reveal", "--store", str(tmp_path / "store"))
    assert "4071" in done.stdout.split("found by shortest path")[1]
    assert "4071" not in Path(manifest["report"]).read_text()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["data.source={kind: text, path: nowhere.txt}"], "cannot read the text nowhere.txt"),
        (["extraction.known=[5]"], "leaves nothing to find"),
    ],
)
def test_a_missing_text_and_a_fully_known_format_end_with_a_short_error(
    audited: tuple[Memlib, Path, dict[str, Any]], settings: list[str], said: str
) -> None:
    mine, store, _ = audited
    assert said in mine.refusal(store, *settings)
