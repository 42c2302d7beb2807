"""Documents of fine-tuned transformers: are they called remembered by a model that was fine-tuned on others?"""

import math
from collections.abc import Iterator, Sequence
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from benchmarks.validity.harness import Part, Row, by_rule, level_lines, rate, table
from memlib.audits.exposure import documents as documents_of_runs
from memlib.audits.exposure.documents import document_rows
from memlib.audits.exposure.recipe import DiscoverableSpec
from memlib.findings import settle
from memlib.identity import derive_seed
from memlib.models.causal import Causal
from memlib.objectives import build_objective
from memlib.observe.discovery import suffixes
from memlib.specs import TrainingSpec
from memlib.training.loop import Training, TrainingSet

ALPHA, NETS, REDRAWS, PERMUTATIONS = 0.05, 5, 400, 999
DOCUMENTS, SYMBOLS, HOW = 120, 40, DiscoverableSpec(prefix=8, suffix=16, tries=(1,))
EPOCHS = {"pretrained": 20, "other documents": 12, "trained on, 1 epoch": 1, "trained on, 12 epochs": 12}
NULLS, PLANTS = ("pretrained", "other documents"), ("trained on, 1 epoch", "trained on, 12 epochs")


def texts(count: int, law: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw documents from a Markov chain, each with a favourite symbol of its own: (count, length), symbols from 1."""
    rows = np.empty((count, HOW.prefix + HOW.suffix), dtype=np.int64)
    favourites, liking = rng.integers(SYMBOLS, size=count), rng.beta(1, 4, size=count)
    rows[:, 0] = favourites
    for place in range(1, rows.shape[1]):
        drawn = (law[rows[:, place - 1]].cumsum(axis=1) > rng.random((count, 1))).argmax(axis=1)
        rows[:, place] = np.where(rng.random(count) < liking, favourites, drawn)
    return rows + 1


def small_gpt(seed: int) -> Causal:
    """Return a small GPT-2 with random weights, whose texts begin after symbol 0."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=SYMBOLS + 1, n_positions=HOW.prefix + HOW.suffix, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=0,
    )  # fmt: skip
    return Causal(transformers.GPT2LMHeadModel(config), start=0)


def train(model: Causal, rows: NDArray[np.int64], epochs: int, seed: int) -> None:
    """Train a model on documents, or continue its training, as the product does."""
    optimizer = {"name": "adamw", "learning_rate": 0.003, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"}
    how = {"epochs": epochs, "batch_size": 32, "augment": None, "seed": seed, "optimizer": optimizer}
    spec = TrainingSpec.model_validate({"objective": {"kind": "language"}, **how})
    data = TrainingSet(rows, np.arange(len(rows)), np.zeros(len(rows), dtype=np.int64))
    Training(model.float().train(), build_objective(spec.objective), data, spec, input_size=rows.shape[1]).run()


def units_of(bits: NDArray[np.float64], held_out: NDArray[np.bool_]) -> pa.Table:
    """Return documents as an audit of one model stores them."""
    count = len(bits)
    return pa.table(
        {
            "variant": [""] * count, "seed": [0] * count, "document": np.arange(count), "held_out": held_out,
            "copies": [1] * count, "bits": bits, "scheme_bits": bits, "greedy": [False] * count, "near": [0] * count,
        }
    )  # fmt: skip


def is_shown(bits: NDArray[np.float64], held_out: NDArray[np.bool_]) -> bool:
    """Return whether the audit concludes that the documents are remembered that were not held out."""
    with (
        patch.object(documents_of_runs, "PERMUTATIONS", PERMUTATIONS),
        patch.object(documents_of_runs, "detectable_shift", lambda *_, **__: None),  # the power, on which no word rests
    ):
        found = settle(document_rows(units_of(bits, held_out), HOW, alpha=ALPHA), alpha=ALPHA)
    return bool(found.shown())


def compute(unit: str) -> Row:
    """Pretrain a GPT-2, fine-tune it, and audit documents that it never saw, redrawn, or those that it was fine-tuned on."""
    kind, place = unit.split("/")
    number = int(place)
    rng = np.random.default_rng(derive_seed(0, "documents of transformers", str(number)))
    law = rng.dirichlet(np.full(SYMBOLS, 0.2), size=SYMBOLS)
    first, others, documents = (texts(count, law, rng) for count in (2_000, DOCUMENTS // 2, DOCUMENTS))
    model = small_gpt(number)
    train(model, first, EPOCHS["pretrained"], number)
    held_out = np.arange(DOCUMENTS) >= DOCUMENTS // 2
    if kind == "other documents":
        train(model, others, EPOCHS[kind], number)
    elif kind in PLANTS:
        train(model, documents[~held_out], EPOCHS[kind], number)
    bits = suffixes(model.double().eval(), documents, prefix=HOW.prefix, scheme=HOW).bits
    gap = float(bits[held_out].mean() - bits[~held_out].mean())
    if kind in PLANTS:
        return {"kind": kind, "hits": int(is_shown(bits, held_out)), "count": 1, "gap": gap}
    hits = sum(is_shown(bits, rng.permutation(held_out)) for _ in range(REDRAWS))
    return {"kind": kind, "hits": hits, "count": REDRAWS, "spread": float(bits.std())}


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Report rejections for documents never seen, redrawn, and how often documents are found that were trained on."""
    yield f"{DOCUMENTS} documents, half of them held out at random; suffixes of {HOW.suffix} symbols, GPT-2 of 2 layers."
    yield ""
    of = {kind: [row for row in rows if row["kind"] == kind] for kind in EPOCHS}
    single = {kind: [(row["hits"], row["count"]) for row in of[kind]] for kind in NULLS if of[kind]}
    nulls = {
        f"{kind}, {len(each)} nets": (sum(hits for hits, _ in each), sum(count for _, count in each))
        for kind, each in single.items()
    }
    yield from level_lines("documents never seen", nulls, alpha=ALPHA, hit="shown")
    yield ""
    for kind, each in single.items():
        fail = sum(by_rule(*one, ALPHA) == "fails" for one in each)
        yield f"{kind}: {fail} of {len(each)} nets fail by themselves; the largest rate is {rate(*max(each))}."
    yield ""
    found = [
        (kind, f"{math.fsum(row['gap'] for row in of[kind]) / len(of[kind]):.1f}", rate(sum(r["hits"] for r in of[kind]), len(of[kind])))
        for kind in PLANTS
        if of[kind]
    ]  # fmt: skip
    yield from table(("fine-tuned on the documents", "mean gap, bits", "shown"), found)


PARTS = (
    Part(
        "exposure-documents", "Is a transformer said to remember documents, although it was fine-tuned on others?",
        lambda: [f"{kind}/{number}" for number in range(NETS) for kind in (*PLANTS, *NULLS)], compute, report,
    ),
)  # fmt: skip
