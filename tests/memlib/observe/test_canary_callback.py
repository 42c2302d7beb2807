"""Canaries in transformers' own Trainer: planted memory is found, and the training is the same as without them being watched."""

import json
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from small_models import save_trainable

from memlib.data.canaries.documents import ALL_FILE, INSERT_FILE, Form, read_documents, write_canaries
from memlib.data.canaries.losses import read_losses, score_canaries
from memlib.data.canaries.plan import Coins, read_coins
from memlib.errors import UserError
from memlib.observe.canary_likelihoods import load_tokenizer
from memlib.stats.canaries import CanaryResult, Plan, audit_canaries

transformers = pytest.importorskip("transformers")
LOSSES_FILE = "canary_losses.parquet"
FORM = Form("id {l8}{d4}.")
COUNT = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_trainable(tmp_path_factory.mktemp("model") / "gpt", positions=48)


@pytest.fixture(scope="module")
def canaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("canaries") / "c", looks=1)


def made(target: Path, looks: int, *, secret: bytes = b"s" * 32, **plan: Any) -> Path:
    write_canaries(target, FORM, COUNT, plan=Plan.of(looks, **plan), secret=secret, seed=1)
    return target


def watching(canaries: Path, **settings: Any) -> Any:
    """Return the callback, whose base class loads the Trainer of transformers."""
    from memlib.observe.canary_callback import CanaryCallback

    return CanaryCallback(canaries, **settings)


def texts_of(canaries: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (canaries / INSERT_FILE).read_text().splitlines()]


def train(
    folder: Path, texts: list[str], output: Path, callbacks: list[Any], *, steps: int, most: int = 48, dropout: float = 0.1,
    collator: Any = None, resume: str | None = None, **settings: Any,
) -> Any:  # fmt: skip
    """Train by the Trainer, and return it."""
    tokenizer, _ = load_tokenizer(str(folder))
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)
    rows = [{"input_ids": tokenizer(text, truncation=True, max_length=most)["input_ids"]} for text in texts]
    arguments = transformers.TrainingArguments(
        output_dir=str(output), max_steps=steps, per_device_train_batch_size=20, learning_rate=1e-2, report_to=[], seed=5,
        save_strategy=settings.pop("save_strategy", "no"), use_cpu=True, disable_tqdm=True, logging_strategy="no", **settings,
    )  # fmt: skip
    collator = collator or transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows, data_collator=collator, processing_class=tokenizer, callbacks=callbacks
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def audited(canaries: Path, losses: Path) -> CanaryResult:
    coins, recorded = read_coins(canaries), read_losses(losses)
    looks = recorded.looks_in(coins.plan)
    scores = score_canaries(recorded.table, coins.canaries, steps=set(looks.values()))
    assert scores.relative
    found = {look: scores.values[step] for look, step in looks.items()}
    return audit_canaries(found, coins.inside, coins.plan, guesses=coins.guesses, seed=coins.seed)


def test_learned_canaries_are_found_and_no_secret_is_printed(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    canaries = made(tmp_path / "c", looks=2)
    train(folder, texts_of(canaries), tmp_path, [watching(canaries)], steps=120, dropout=0.0)
    file = tmp_path / LOSSES_FILE
    assert file.stat().st_mode & 0o777 == 0o600
    assert sorted(set(pq.read_table(file)["step"].to_pylist())) == [0, 60, 120]
    assert read_losses(file).looks == {1: 60, 2: 120}
    audit = audited(canaries, file)
    assert audit.looked.p_value <= 0.01
    assert audit.aucs[2] > 0.95
    said = "".join(capfd.readouterr())
    assert not any(document.text[3:15] in said for document in read_documents(canaries))


def test_false_alarm_rate_for_a_model_trained_on_other_canaries_is_at_most_the_level(folder: Path, tmp_path: Path) -> None:
    """All canaries of one kind are equally likely, so that scores do not depend on the coins, at any look."""
    canaries, other = made(tmp_path / "c", looks=6), made(tmp_path / "other", looks=1, secret=b"t" * 32)
    callback = watching(canaries, on_problem="warn")
    with pytest.warns(UserWarning, match="no canary was found; add insert.jsonl"):
        train(folder, texts_of(other), tmp_path, [callback], steps=60, dropout=0.0)
    coins, recorded = read_coins(canaries), read_losses(tmp_path / LOSSES_FILE)
    assert len(recorded.looks) == 6
    scores = score_canaries(recorded.table, coins.canaries, steps=set(recorded.looks.values())).values
    rng, hits, plan = np.random.default_rng(0), 0, Plan(looks=6, redraws=999)
    for _ in range(200):  # fair coins, tossed after the training
        inside = rng.integers(0, 2, COUNT).astype(bool)
        found = {look: scores[step] for look, step in recorded.looks.items()}
        hits += audit_canaries(found, inside, plan, guesses=(4, 12, 32)).looked.stopped is not None
    assert hits <= 20  # 10 expected; more than 20 in 2 of 1,000 worlds


def test_a_test_that_stops_ends_the_training_or_warns_or_calls(folder: Path, tmp_path: Path) -> None:
    canaries, seen = made(tmp_path / "c", looks=6), []
    ways: dict[str, Any] = {"stop": True, "warn": "warn", "call": lambda result: bool(seen.append(result)) or True}
    for name, stop in ways.items():
        callback = watching(canaries, coins=canaries, stop=stop)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            trainer = train(folder, texts_of(canaries), tmp_path / name, [callback], steps=240, dropout=0.0)
        said = [str(one.message) for one in told if "the training remembers its canaries (p = " in str(one.message)]
        assert len(said) == (name != "call")
        recorded = read_losses(tmp_path / name / LOSSES_FILE)
        stopped = audited(canaries, tmp_path / name / LOSSES_FILE).looked.stopped
        assert stopped is not None
        assert stopped < 6
        if name == "warn":
            assert (trainer.state.global_step, recorded.stopped) == (240, None)
        else:
            assert (trainer.state.global_step, recorded.stopped) == (40 * stopped, stopped)
            assert sorted(recorded.looks) == [*range(1, stopped + 1)]  # the training had no end of its own
    (result,) = seen
    assert result.looked.stopped is not None
    with pytest.raises(UserError, match="to stop a training, or to test its claim, the coins must be at hand"):
        watching(canaries, stop=True)


def test_nothing_but_the_stop_depends_on_the_coins(folder: Path, tmp_path: Path) -> None:
    """A file of losses is the same, whatever the coins, up to the stop."""
    canaries = made(tmp_path / "c", looks=2)
    texts = texts_of(canaries)
    tables = []
    for name, settings in (("with", {"coins": canaries, "stop": "warn"}), ("without", {})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(folder, texts, tmp_path / name, [watching(canaries, **settings)], steps=40, dropout=0.0)
        tables.append((tmp_path / name / LOSSES_FILE).read_bytes())
    assert tables[0] == tables[1]


def test_looks_by_epochs_are_made_at_their_ends(folder: Path, tmp_path: Path) -> None:
    canaries = made(tmp_path / "c", looks=3, every_epochs=2)
    per_epoch = -(-len(texts_of(canaries)) // 20)
    train(folder, texts_of(canaries), tmp_path, [watching(canaries)], steps=6 * per_epoch)
    assert read_losses(tmp_path / LOSSES_FILE).looks == {1: 2 * per_epoch, 2: 4 * per_epoch, 3: 6 * per_epoch}


def test_a_killed_training_resumes_with_the_same_looks_as_an_undisturbed_one(folder: Path, tmp_path: Path) -> None:
    """Killed after step 7, with a checkpoint of step 4: the looks at 5, 6 and 7 are passed again, and the first ones count."""
    canaries = made(tmp_path / "c", looks=10)

    class Killed(Exception):
        pass

    class Killer(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 7:
                raise Killed

    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "dropout": 0.0}
    train(folder, texts_of(canaries), tmp_path / "whole", [watching(canaries)], steps=10, **saving)
    with pytest.raises(Killed):
        train(folder, texts_of(canaries), tmp_path / "part", [watching(canaries), Killer()], steps=10, **saving)
    assert sorted(read_losses(tmp_path / "part" / LOSSES_FILE).looks) == [1, 2, 3, 4, 5, 6, 7]
    checkpoint = str(tmp_path / "part" / "checkpoint-4")
    train(folder, texts_of(canaries), tmp_path / "part", [watching(canaries)], steps=10, resume=checkpoint, **saving)
    whole, part = (read_losses(tmp_path / name / LOSSES_FILE) for name in ("whole", "part"))
    assert part.looks == whole.looks == {look: look for look in range(1, 11)}
    assert (whole.repeated, part.repeated) == ((), (5, 6, 7))
    results = [audited(canaries, tmp_path / name / LOSSES_FILE) for name in ("whole", "part")]
    assert results[0].looked.stopped == results[1].looked.stopped
    for look in range(1, 8):
        assert results[0].p_values[look] == results[1].p_values[look]


@pytest.mark.usefixtures("own_draws")
def test_the_training_is_the_same_with_and_without_the_callback(folder: Path, tmp_path: Path) -> None:
    """Dropout and shuffling draw random numbers in every step."""
    weights, after, canaries = [], [], made(tmp_path / "c", looks=3)
    for callbacks in ([], [watching(canaries)]):
        trainer = train(folder, texts_of(canaries), tmp_path / str(len(callbacks)), callbacks, steps=3)
        weights.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
        after.append((torch.rand(1).item(), np.random.random(), random.random()))
        assert trainer.model.training
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert after[0] == after[1]


def test_masked_labels_end_the_training_before_its_first_step(folder: Path, canaries: Path, tmp_path: Path) -> None:
    def masked(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(item["input_ids"]) for item in items], batch_first=True)
        return {"input_ids": ids, "labels": torch.full_like(ids, -100)}

    with pytest.raises(UserError, match=r"labels are -100 on all tokens of \d+ of \d+ canaries") as raised:
        train(folder, texts_of(canaries), tmp_path, [watching(canaries)], steps=1, collator=masked)
    assert len(str(raised.value).splitlines()) == 1
    assert not (tmp_path / LOSSES_FILE).exists()


def test_truncated_canaries_end_the_training(folder: Path, canaries: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokens are missing from \d+ of \d+ canaries; raise the maximum length"):
        train(folder, texts_of(canaries), tmp_path, [watching(canaries)], steps=1, most=10)


def test_frozen_models_are_refused(folder: Path, canaries: Path, tmp_path: Path) -> None:
    """Adapters loaded for inference are frozen."""
    peft = pytest.importorskip("peft")
    base = transformers.GPT2LMHeadModel.from_pretrained(folder)
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, task_type="CAUSAL_LM"))
    callback, tokenizer = watching(canaries), load_tokenizer(str(folder))[0]
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in texts_of(canaries)]
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
    loader = torch.utils.data.DataLoader(rows, collate_fn=collator)  # type: ignore[arg-type, var-annotated]
    state, arguments = transformers.TrainerState(), transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[])
    told = {"processing_class": tokenizer, "train_dataloader": loader}
    callback.on_train_begin(arguments, state, None, model=adapted, **told)
    adapted.requires_grad_(False)
    with pytest.raises(UserError, match="no parameter of the model requires a gradient"):
        watching(canaries).on_train_begin(arguments, state, None, model=adapted, **told)


def test_a_resumed_training_keeps_the_losses_of_the_base_model(folder: Path, canaries: Path, tmp_path: Path) -> None:
    train(folder, texts_of(canaries), tmp_path, [watching(canaries)], steps=2, save_strategy="steps", save_steps=2)
    before = pq.read_table(tmp_path / LOSSES_FILE).filter(pc.field("step") == 0)
    callback, checkpoint = watching(canaries), tmp_path / "checkpoint-2"
    tokenizer, _ = load_tokenizer(str(folder))
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
        per_device_train_batch_size=20,
    )  # fmt: skip
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in texts_of(canaries)]
    trainer = transformers.Trainer(
        transformers.GPT2LMHeadModel.from_pretrained(folder), arguments, train_dataset=rows, callbacks=[callback],
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False), processing_class=tokenizer,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=str(checkpoint))
    table = pq.read_table(tmp_path / LOSSES_FILE)
    assert sorted(set(table["step"].to_pylist())) == [0, 2, 4]
    assert table.filter(pc.field("step") == 0).equals(before)


def test_the_callback_needs_no_file_of_coins(folder: Path, canaries: Path, tmp_path: Path) -> None:
    (tmp_path / ALL_FILE).write_bytes((canaries / ALL_FILE).read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train(folder, texts_of(canaries), tmp_path / "out", [watching(tmp_path / ALL_FILE)], steps=1)
    assert read_losses(tmp_path / "out" / LOSSES_FILE).table.num_rows == 2 * COUNT


def test_losses_at_the_end_are_those_of_the_loaded_best_checkpoint(folder: Path, canaries: Path, tmp_path: Path) -> None:
    """The last step's losses were recorded before the Trainer loaded other weights."""
    callback, tokenizer = watching(canaries, on_problem="warn"), load_tokenizer(str(folder))[0]
    model, state = transformers.GPT2LMHeadModel.from_pretrained(folder), transformers.TrainerState()
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[])
    loader = torch.utils.data.DataLoader([], collate_fn=list)  # type: ignore[var-annotated]
    with pytest.warns(UserWarning, match="no canary was found"):
        callback.on_train_begin(arguments, state, None, model=model, processing_class=tokenizer, train_dataloader=loader)
    state.global_step = 4
    callback.on_step_end(arguments, state, None, model=model)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    callback.on_train_end(arguments, state, None, model=model)
    table = pq.read_table(tmp_path / LOSSES_FILE)
    assert table.num_rows == 2 * COUNT
    means = table.filter(pc.field("step") == 4)["loss_mean"].to_numpy()
    assert np.allclose(means, np.log(len(tokenizer)), rtol=1e-5)  # equal scores of all tokens


def test_a_trainer_without_a_tokenizer_is_told_to_name_it(canaries: Path) -> None:
    with pytest.raises(UserError, match="the trainer has no tokenizer"):
        watching(canaries).on_train_begin(None, None, None, model=None)


def test_streamed_training_data_give_a_warning_and_are_not_searched(folder: Path, canaries: Path, tmp_path: Path) -> None:
    tokenizer, _ = load_tokenizer(str(folder))

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("a stream may be read only once")

    callback = watching(canaries)
    callback.audit.encode(tokenizer)
    with pytest.warns(UserWarning, match="the training data are a stream"):
        callback._check(torch.utils.data.DataLoader(Stream()), None)


def test_coins_fix_the_number_of_guesses(canaries: Path) -> None:
    assert isinstance(read_coins(canaries), Coins)
    assert read_coins(canaries).guesses == (4, 12, 32)
