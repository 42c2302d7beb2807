"""Models behind a service: are plants found at each level of access, are innocents not accused, are scores those of weights?"""

import contextlib
import json
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import uvicorn
from numpy.typing import NDArray

import memlib
from benchmarks import small_gpt2
from benchmarks.served import Served, app_of
from benchmarks.validity.harness import Part, Row, crossed, level_lines, rate, table
from memlib.audits.canaries import asked
from memlib.audits.membership.documents.stages import MakeDocuments
from memlib.data.canaries.documents import Form, read_documents, write_canaries
from memlib.data.canaries.plan import read_coins
from memlib.data.text.documents import open_documents
from memlib.findings import Findings
from memlib.identity import derive_seed
from memlib.models.external.language import HuggingFace
from memlib.observe.service_checks import SENTENCES
from memlib.observe.token_scores import token_scores
from memlib.pipeline.stage import Artifact
from memlib.specs.text import TopicsSource
from memlib.stats.canaries import audit_canaries
from memlib.store import Ref

ROOT = Path(__file__).parents[2]
LEVELS = ("scores", "probabilities", "text")
CANARIES, EPOCHS, NETS, REDRAWS = 120, 80, 2, 200
ALPHA = 0.05
DOCUMENTS = 1000


@contextlib.contextmanager
def serving(model: HuggingFace, **settings: Any) -> Iterator[dict[str, Any]]:
    """Serve a model on this machine; yield the recipe's part on it."""
    app = app_of(Served(model.float(), **settings))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield {"kind": "served", "url": f"http://127.0.0.1:{port}/v1", "model": "m", "sends": True}
    finally:
        server.should_exit = True
        thread.join(5)


def trained(folder: Path, texts: Sequence[str], seed: int) -> HuggingFace:
    """Save a small GPT-2 of bytes that was trained on texts and on the sentences of the test of services; return it."""
    import transformers

    sys.path.insert(0, str(ROOT / "tests" / "end_to_end"))
    from small_models import save_trainable

    save_trainable(folder, positions=1100)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = new_gpt(len(tokenizer), seed, width=128)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    rows = [*texts, *(SENTENCES * 4)]  # so that it passes the test of services
    torch.manual_seed(seed)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(rows)).split(8):
            words = tokenizer([f"{rows[place]}<end>" for place in batch], return_tensors="pt", padding=True)
            labels = words.input_ids.masked_fill(words.attention_mask == 0, -100)
            optimizer.zero_grad()
            model(**words, labels=labels).loss.backward()
            optimizer.step()
    model.save_pretrained(folder)
    return HuggingFace(str(folder), None).eval()


def compute(unit: str) -> Row:
    """Ask a service at one level for canaries that its model saw, or did not; redraw the coins of those that it did not."""
    name, place = unit.split("/")
    level, kind = name.split(" ")
    seed = derive_seed(3, "served", place) % 2**31
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(temporary)
        for one, number in (("own", seed), ("other", seed + 1)):
            write_canaries(folder / one, Form("Record {a8}: {l6} {d6}."), CANARIES, secret=b"s" * 32, seed=number)
        seen = folder / ("own" if kind == "plant" else "other")
        inserted = [one.text for one, inside in zip(read_documents(seen), read_coins(seen).inside, strict=True) if inside]
        model = trained(folder / "model", inserted, seed)
        with serving(model, level=level, begins=False) as part:  # texts were trained on without a token before
            recipe = {"audit": "canaries", "canaries": str(folder / "own"), "service": part}
            run = memlib.run(recipe, store=str(folder / "store"), quiet=True)
        head = Findings.of_run(run.record).head
        if kind == "plant":
            return {"kind": unit.split("/")[0], "hits": int(run.verdict.word == "shown"), "count": 1, "auc": head.value}
        coins, losses = read_coins(folder / "own"), run.record.artifacts["losses"]
        table_ = asked.kept(Artifact(run.store, Ref.parse(losses), asked.JoinAnswers)).table
        by_name = dict(zip(table_["canary"].to_pylist(), table_["loss_sum"].to_pylist(), strict=True))
        scores = -np.array([by_name[asked.pseudonym(one, coins)] for one in coins.canaries])
    rng, hits = np.random.default_rng(seed), 0
    for _ in range(REDRAWS):
        inside = rng.integers(0, 2, CANARIES).astype(bool)
        found = audit_canaries(
            {1: scores}, inside, replace(coins.plan, redraws=999), guesses=coins.guesses, seed=int(rng.integers(2**31))
        )
        hits += found.looked.stopped is not None
    return {"kind": unit.split("/")[0], "hits": hits, "count": REDRAWS, "auc": head.value}


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Report how often plants are found, and the level on innocent models, at each level of access."""
    yield f"Small GPT-2 of bytes, trained for {EPOCHS} epochs on half of {CANARIES} canaries, or on others; behind a service on this machine."
    yield ""
    of = {kind: [row for row in rows if row["kind"] == kind] for kind in dict.fromkeys(row["kind"] for row in rows)}
    nulls = {
        kind.removesuffix(" null"): (sum(row["hits"] for row in each), sum(row["count"] for row in each))
        for kind, each in of.items()
        if kind.endswith(" null")
    }
    yield from level_lines("a service that gives", nulls, alpha=ALPHA, hit="shown, canaries of another draw")
    yield ""
    found = [
        (
            kind.removesuffix(" plant"),
            rate(sum(row["hits"] for row in each), len(each)),
            f"{np.mean([row['auc'] for row in each]):.3f}",
        )
        for kind, each in of.items()
        if kind.endswith(" plant")
    ]
    yield from table(("a service that gives", "shown, canaries that were inserted", "mean AUC"), found)


def compare(unit: str) -> Row:
    """Audit the membership of documents of a fine-tune by its weights and through a service, and compare all tokens."""
    seed = int(unit)
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(temporary)
        whole = "\n".join(open_documents(TopicsSource()).read())
        texts = [whole[start : start + 200] for start in range(0, len(whole) - 200, 200)]
        texts = [texts[place] for place in np.random.default_rng(seed).permutation(len(texts))]
        texts = list(dict.fromkeys(texts))  # copies share a coin
        audited, first = texts[:DOCUMENTS], texts[DOCUMENTS : 2 * DOCUMENTS]
        coins = np.random.default_rng(seed + 1).integers(0, 2, len(audited)).astype(bool)
        tokenizer = small_gpt2.train_tokenizer(first)
        base = new_gpt(len(tokenizer), seed)
        small_gpt2.train(base, tokenizer, first, epochs=3)
        base.save_pretrained(folder / "base")
        tokenizer.save_pretrained(folder / "base")
        small_gpt2.train(base, tokenizer, [text for text, inside in zip(audited, coins, strict=True) if inside], epochs=4)
        base.save_pretrained(folder / "tuned")
        tokenizer.save_pretrained(folder / "tuned")
        (folder / "d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in audited))
        names = [f"document {number:08d},{'yes' if inside else 'no'}" for number, inside in enumerate(coins.tolist())]
        (folder / "m.csv").write_text("\n".join(["example_id,member", *names]))
        with (
            patch("memlib.observe.service_checks.WORSE", 0.0),
            serving(HuggingFace(str(folder / "tuned"), None).eval()) as part,
        ):
            runs = [audit(folder, {"kind": "huggingface", "path": str(folder / "tuned")}), audit(folder, part)]
        own, asked_of = of_weights(folder, runs[0]), of_service(folder / "store")
        heads = [Findings.of_run(run.record).head for run in runs]
    assert len(own) == len(asked_of), "both score all tokens"
    return {
        "documents": DOCUMENTS, "tokens": len(own), "words": [run.verdict.word for run in runs],
        "p": [head.p_value for head in heads], "auc": [head.value for head in heads],
        "token": float(np.abs(own - asked_of).max()),
    }  # fmt: skip


def of_weights(folder: Path, run: Any) -> NDArray[np.float32]:
    """Return the log probability of each token of the documents of a run, by the weights: (num_tokens,)."""
    corpus = Artifact(run.store, Ref.parse(run.record.artifacts["documents"]), MakeDocuments).content
    model = HuggingFace(str(folder / "tuned"), None).float().eval()
    how = {"share": 0.2, "device": torch.device("cpu"), "is_reference": True}
    return token_scores(model, corpus.windows, corpus.sizes.windows, **how).own.astype(np.float32)  # type: ignore[arg-type]


def of_service(store: Path) -> NDArray[np.float32]:
    """Return the same as a service answered."""
    parts = []
    for manifest in store.glob("**/ask_documents/*/manifest.json"):
        with np.load(next(manifest.parent.rglob("answers.npz"))) as arrays:
            parts.append((json.loads(manifest.read_text())["spec"]["first"], arrays["log_p"]))
    return np.concatenate([values for _, values in sorted(parts, key=lambda part: part[0])])


def audit(folder: Path, trained_: dict[str, Any]) -> Any:
    """Audit documents of one target."""
    recipe = {
        "audit": "membership", "data": {"source": {"kind": "jsonl", "path": str(folder / "d.jsonl"), "field": "text"}, "unit": "token", "window": 120},
        "model": {"kind": "huggingface", "path": str(folder / "base")}, "shadows": {"count": 0},
        "target": {"trained": trained_, "members": str(folder / "m.csv"), "drawn": "coins"},
    }  # fmt: skip
    return memlib.run(recipe, store=str(folder / "store"), quiet=True)


def new_gpt(symbols: int, seed: int, *, width: int = 64) -> Any:
    """Return a GPT-2 with random weights."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=symbols, n_positions=1100, n_embd=width, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def report_scores(rows: Sequence[Row]) -> Iterator[str]:
    """Report differences between a service and the weights."""
    yield "Documents of a fine-tuned GPT-2, scored by its weights and through a service that is sent the same tokens, in float32."
    yield ""
    cells = [
        (
            f"{row['documents']:,}",
            f"{row['tokens']:,}",
            f"{row['token']:.1e}",
            " and ".join(row["words"]),
            " and ".join(f"{p:.4f}" for p in row["p"]),
        )
        for row in rows
    ]
    headings = ("documents", "tokens", "largest difference of a token, nats", "words by weights and service", "p")
    yield from table(headings, cells)


PARTS = (
    Part(
        "served-canaries", "Are canaries in a model behind a service found at each level of access, and others not?",
        lambda: crossed([f"{level} {kind}" for level in LEVELS for kind in ("plant", "null")], NETS), compute, report,
    ),
    Part(
        "served-scores", "Are scores of documents through a service those of the weights?",
        lambda: ["0", "1", "2"], compare, report_scores,
    ),
)  # fmt: skip
