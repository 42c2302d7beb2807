"""Attacks on documents of a fine-tune, beside the model before it: what each finds alone, and the level of all together."""

import lzma
import random
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.first_answers import DATA
from benchmarks.validity.harness import Part, Row, level_lines, rate, table
from memlib.audits.membership.documents.audited import signals_of
from memlib.identity import derive_seed
from memlib.models.causal import Causal, with_adapters
from memlib.objectives import build_objective
from memlib.observe.token_scores import token_scores
from memlib.specs import LoraSpec, TrainingSpec
from memlib.stats.coins import coin_tests
from memlib.stats.operating import auc, auc_interval, operating_point
from memlib.training.loop import Training, TrainingSet

VOCABULARY, WINDOW, WIDTH, LAYERS, HEADS = 2000, 128, 128, 4, 4
SENTENCES = 4  # of Penn Treebank in a document
MOST_DOCUMENTS, ELSEWHERE = 6_400, 800  # in all, and those of an innocent fine-tune
ALPHA, FALSE_ALARMS, REDRAWS, DRAWS = 0.05, 0.01, 999, 50
PRETRAINED, LONGER, WARMTH = 6, 9, 1.5  # epochs, and the divisor of the logits of a warmer reference
TUNES = {"all weights, 3 epochs": (3, False), "LoRA of rank 8, 3 epochs": (3, True), "all weights, 1 epoch": (1, False)}
WORLDS, INNOCENT_WORLDS, STARTS = 3, 5, 2  # fine-tunes of a kind, and pretrained models from which they start
REFERENCES = ("as the target's start", "trained longer", "warmer", "of the other half")
BESIDE = "InfoRMIA"  # not among the product's attacks


@cache
def documents() -> NDArray[np.int64]:
    """Return the tokens of documents in random order, (num_documents, WINDOW); -1 is padding."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    path = DATA / "ptb" / "ptb.train.txt.xz"
    if not path.exists():
        raise SystemExit(f"{path} is missing: name the folder of ptb/ptb.train.txt.xz in MEMLIB_DATA")
    with lzma.open(path, "rt") as file:
        lines = [line.strip() for line in file]
    texts = [" ".join(lines[start : start + SENTENCES]) for start in range(0, len(lines) - SENTENCES, SENTENCES)]
    random.Random(0).shuffle(texts)
    texts = texts[:MOST_DOCUMENTS]
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - 1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    rows = np.full((len(texts), WINDOW), -1, dtype=np.int64)
    for row, encoded in zip(rows, tokenizer.encode_batch(texts), strict=True):
        row[: len(encoded.ids)] = np.array(encoded.ids[:WINDOW]) + 1
    return rows


def new_model(seed: int) -> Causal:
    """Return a GPT-2 of 1.1 million random weights, whose texts begin after token 0."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=WINDOW + 1, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    return Causal(transformers.GPT2LMHeadModel(config), start=0)


def train(model: Causal, rows: NDArray[np.int64], epochs: int, seed: int, *, rate: float = 1e-3) -> Causal:
    """Train a model on documents, as the product does."""
    optimizer = {"name": "adamw", "learning_rate": rate, "weight_decay": 0.01, "warmup_epochs": 0, "schedule": "cosine"}
    how = {"epochs": epochs, "batch_size": 32, "augment": None, "seed": seed, "optimizer": optimizer}
    spec = TrainingSpec.model_validate({"objective": {"kind": "language"}, **how})
    data = TrainingSet(rows, np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64))
    Training(model.float().train(), build_objective(spec.objective), data, spec, input_size=rows.shape[1]).run()
    return model.eval()


def pretrained(name: str, rows: NDArray[np.int64], epochs: int, seed: int) -> Causal:
    """Return a pretrained model, which further units of the same process and machine share."""
    path = Path(tempfile.gettempdir()) / f"memlib-pretrained-{name}-{seed}-{epochs}-{len(rows)}.pt"
    model = new_model(seed)
    if path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
        return model.eval()
    train(model, rows, epochs, seed)
    torch.save(model.state_dict(), path)
    return model


def fine_tuned(base: Causal, rows: NDArray[np.int64], epochs: int, seed: int, *, lora: bool) -> Causal:
    """Return a copy of a model that was fine-tuned on documents."""
    model = new_model(seed)
    model.load_state_dict(base.state_dict())
    if lora:
        model.model = with_adapters(model.model, LoraSpec(rank=8, alpha=16), seed=seed)
    return train(model, rows, epochs, seed, rate=2e-3 if lora else 5e-4)


class Warmer(torch.nn.Module):
    """A model whose logits are divided."""

    def __init__(self, model: Causal) -> None:
        super().__init__()
        self.model, self.most_rows = model, model.most_rows

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """Return the scores of each token."""
        return self.model(windows) / WARMTH  # type: ignore[no-any-return]


def attacks(target: Causal, reference: torch.nn.Module, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Return the scores of documents by each attack, higher for members."""
    how = {"windows": rows, "counts": np.ones(len(rows), np.int64), "share": 0.2, "device": torch.device("cpu")}
    base = token_scores(reference, is_reference=True, **how)  # type: ignore[arg-type]
    found = token_scores(target, reference=base.own, **how)  # type: ignore[arg-type]
    sizes = found.tokens.astype(np.int64)  # compressed sizes of the text are not at hand: those of as many tokens
    scores = {name: values[0] for name, values in signals_of([found], base, sizes).items()}
    return scores | {"loss": found.mean_log_p, BESIDE: scores["ratio"] + divergence(target, reference, rows)}


@torch.inference_mode()
def divergence(target: Causal, reference: torch.nn.Module, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean Kullback-Leibler divergence of the target's next token from the reference's, in nats.

    InfoRMIA adds it to the log ratio (Tao and Shokri 2025, arXiv 2510.05582).
    """
    found = []
    for some in torch.from_numpy(rows).split(32):
        own, other = (torch.log_softmax(model(some).float(), dim=-1) for model in (target, reference))
        apart, inside = (other.exp() * (other - own)).sum(dim=-1), some >= 0
        found.append((apart * inside).sum(dim=1) / inside.sum(dim=1))
    return torch.cat(found).double().numpy()


def compute(unit: str) -> Row:
    """Fine-tune one model and attack it: on its own documents, or on documents that it never saw, with redrawn coins."""
    kind, place = unit.split("/")
    number = int(place)
    rows, seed = documents(), derive_seed(0, "fine-tunes", number) % 2**31
    half = len(rows) // 2
    first, second = rows[:half], rows[half:]
    rng = np.random.default_rng(derive_seed(1, unit))
    start = number % STARTS
    base = pretrained("first", first, PRETRAINED, start)
    if kind in TUNES:
        epochs, lora = TUNES[kind]
        coins = rng.random(len(second)) < 0.5
        target = fine_tuned(base, second[coins], epochs, seed, lora=lora)
        return {"kind": kind, **of_attacks(attacks(target, base, second), coins)}
    order = rng.permutation(len(second))
    elsewhere, audited = second[order[:ELSEWHERE]], second[order[half // 2 :]]
    target = fine_tuned(base, elsewhere, TUNES["all weights, 3 epochs"][0], seed, lora=False)
    reference: torch.nn.Module = base
    if kind == "trained longer":
        reference = pretrained("first", first, LONGER, start)
    elif kind == "warmer":
        reference = Warmer(base)
    elif kind == "of the other half":
        reference = pretrained("other", second[order[: half // 2]], PRETRAINED, number)
    scores = attacks(target, reference, audited)
    scores.pop(BESIDE)
    hits = sum(family(scores, rng.random(len(audited)) < 0.5, number) <= ALPHA for _ in range(DRAWS))
    return {"kind": kind, "hits": hits, "count": DRAWS}


def family(scores: dict[str, NDArray[np.float64]], coins: NDArray[np.bool_], seed: int) -> float:
    """Return the p-value of all attacks together."""
    tests = coin_tests(np.stack(list(scores.values())), coins, np.zeros(len(coins), int), redraws=REDRAWS, seed=seed)
    return min(test.adjusted_p for test in tests)


def of_attacks(scores: dict[str, NDArray[np.float64]], coins: NDArray[np.bool_]) -> Row:
    """Return what each attack finds, and how often all together show memory among 100 documents."""
    found: Row = {"members": int(coins.sum()), "others": int((~coins).sum()), "attacks": {}}
    for name, values in scores.items():
        point = operating_point(values, coins, FALSE_ALARMS)
        found["attacks"][name] = [auc(values, coins), *auc_interval(values, coins), point.hits]
    tested = {name: values for name, values in scores.items() if name != BESIDE}
    parts = [np.arange(len(coins))[start : start + 100] for start in range(0, len(coins) - 99, 100)]
    few = ("ratio", "min_k", "zlib", "loss")
    for name, chosen in (("with", tuple(tested)), ("without", few)):
        alone = {one: tested[one] for one in chosen}
        p = [family({one: v[part] for one, v in alone.items()}, coins[part], 0) for part in parts]
        found[name] = [int(np.sum(np.array(p) <= ALPHA)), len(parts)]
    return found


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Report each attack alone, the family, and its level on innocent models."""
    yield (
        f"Penn Treebank in documents of {SENTENCES} sentences; GPT-2 of 1.1 million weights, pretrained for {PRETRAINED} epochs "
        "on one half and fine-tuned on documents of the other half that fair coins chose."
    )
    for kind in TUNES:
        of = [row for row in rows if row["kind"] == kind]
        if not of:
            continue
        yield ""
        members, others = (sum(row[side] for row in of) for side in ("members", "others"))
        yield f"{kind}: {len(of)} fine-tunes, {members:,} members and {others:,} others in all."
        yield ""
        cells = []
        for name in of[0]["attacks"]:
            each = [row["attacks"][name] for row in of]
            low, high = min(one[1] for one in each), max(one[2] for one in each)
            area = float(np.mean([one[0] for one in each]))
            cells.append((name, f"{area:.3f} ({low:.3f} to {high:.3f})", rate(sum(one[3] for one in each), members)))
        headings = ("attack", "AUC (the fine-tunes' outermost 95 % limits)", "members found at 1 % false alarms")
        yield from table(headings, cells)
        yield ""
        shown = {name: rate(*(sum(row[name][place] for row in of) for place in (0, 1))) for name in ("with", "without")}
        yield (
            f"All attacks but {BESIDE} together on 100 documents: shown in {shown['with']}; without EZ and WBC in "
            f"{shown['without']}."
        )
    yield ""
    nulls = {
        f"reference {kind}, {len(of)} models": (sum(row["hits"] for row in of), sum(row["count"] for row in of))
        for kind in REFERENCES
        if (of := [row for row in rows if row["kind"] == kind])
    }
    yield from level_lines("fine-tuned on other documents", nulls, alpha=ALPHA, hit="shown")


def units() -> list[str]:
    """Return the plants, and innocents of each kind of reference."""
    plants = [f"{kind}/{number}" for number in range(WORLDS) for kind in TUNES]
    return [*plants, *(f"{kind}/{number}" for number in range(INNOCENT_WORLDS) for kind in REFERENCES)]


PARTS = (
    Part(
        "documents-attacks", "Which documents of a fine-tune does each attack find, and what do all together say of innocents?",
        units, compute, report,
    ),
)  # fmt: skip
