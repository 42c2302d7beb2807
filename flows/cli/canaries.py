"""Canary documents for a trainer elsewhere: coins decide which ones it trains on, and the audit tests these coins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.table import Table

from flows.cli.store import JsonOption
from memlib.console import console, show_json
from memlib.errors import UserError
from memlib.sanitize import count_of

if TYPE_CHECKING:
    from memlib.data.canaries.documents import CanaryDocument, Coins
    from memlib.observe.canary_likelihoods import EncodedCanary
    from memlib.stats.canaries import CanaryAudit

FAILED = 1
canaries = App(
    name="canaries",
    help=__doc__,
)


@canaries.command
def make(
    folder: Path,
    /,
    *,
    count: int = 500,
    seed: int = 0,
    format_: Annotated[str | None, Parameter(name="--format")] = None,
    prompt: str | None = None,
    field: str | None = None,
    repeats: int = 1,
    guesses: Annotated[Sequence[int], Parameter(negative="", show_default=False)] = (),
    json_: JsonOption = False,
) -> None:
    """Draw canary documents and a fair coin for each, and write a folder of three files that only you can read.

    insert.jsonl has the documents whose coin is in: add them to the training data. all.jsonl has all documents, for recording
    the model's losses on them. coins.parquet is for the audit alone. Documents and coins also depend on your secret file.

    Parameters
    ----------
    folder
        The new folder.
    count
        Number of canaries, at least 20; about half are inserted.
    seed
        Seed of documents and coins; the same seed gives the same canaries on this machine.
    format_
        Text with holes that are filled at random, as in "Code {d9}"; the alphabets are those of memlib scan. By default a
        record of random letters and digits.
    prompt
        For chats: the user's turn, possibly with holes; the format is then the assistant's answer.
    field
        The records' field with the text or the messages; by default text, or messages for chats.
    repeats
        Number of times that each inserted document is written to insert.jsonl.
    guesses
        A number of guesses of the bound of epsilon, half of them "in"; may be given several times. By default a tenth, three
        tenths and eight tenths of the canaries. It is fixed here, before any score is seen.
    json_
        Print the numbers as JSON.
    """
    from memlib.data.canaries import documents
    from memlib.data.canaries.secret_key import read_secret

    form = documents.Form(documents.FORMAT if format_ is None else format_, prompt, field)
    target = folder.expanduser()
    coins = documents.write_canaries(
        target, form, count, repeats=repeats, guesses=guesses, secret=read_secret(), seed=seed
    )  # fmt: skip
    inserted = int(coins.inside.sum())
    if json_:
        numbers = {"canaries": count, "inserted": inserted, "repeats": repeats, "guesses": list(coins.guesses)}
        show_json({"folder": str(target), **numbers})
        return
    lines = [
        f"{target} has {count_of(count, 'canary', 'canaries')}, of which {inserted:,} are in {documents.INSERT_FILE}",
        f"next: add {documents.INSERT_FILE} to the training data, and record losses of {documents.ALL_FILE} with "
        f"CanaryCallback or memlib canaries score; keep {documents.COINS_FILE} from the trainer",
    ]
    for line in lines:
        console.print(line, soft_wrap=True)


@canaries.command
def check(
    folder: Path,
    /,
    *,
    model: str,
    data: Path | None = None,
    max_length: int | None = None,
    json_: JsonOption = False,
) -> int:
    """Check before a training that a model can learn the canaries: their lengths, and whether the training data hold them.

    With the coins beside the canaries, the data must hold all that were inserted and no others. Exits with status 0 if no
    problem is found, else with 1. CanaryCallback runs the same checks on the trainer's own data and
    collator.

    Parameters
    ----------
    folder
        Folder of the canaries, or their all.jsonl.
    model
        Folder of the Hugging Face model, or of its config and tokenizer.
    data
        Tokenized training data: a Parquet file with the columns input_ids and, if the collator does not add them, labels.
    max_length
        Number of tokens after which the training cuts texts off.
    json_
        Print the outcome as JSON.
    """
    encoded, window = _encoded(folder, model)
    limits = [limit for limit in (max_length, window) if limit is not None]
    longest = max(len(one.tokens) for one in encoded)
    problems, remarks = [], ["the training data were not checked; give --data, or use CanaryCallback"]
    if limits and longest > min(limits):
        cut = sum(len(one.tokens) > min(limits) for one in encoded)
        problems.append(
            f"{cut} of {len(encoded)} canaries are longer than {min(limits)} tokens (up to {longest}); raise the limit, or "
            "make canaries of a shorter format"
        )
    if data is not None:
        found = _checked_data(data, encoded, _coins_of(folder, encoded))
        problems, remarks = [*problems, *found[0]], found[1]
    if json_:
        outcome = {"canaries": len(encoded), "longest": longest, "problems": problems, "remarks": remarks}
        show_json(outcome)
    else:
        console.print(f"{count_of(len(encoded), 'canary', 'canaries')} of up to {longest} tokens", soft_wrap=True)
        for line in [*(f"problem: {problem}" for problem in problems), *remarks]:
            console.print(line, soft_wrap=True)
    return FAILED if problems else 0


@canaries.command
def score(
    folder: Path,
    /,
    *,
    model: str,
    output: Path,
    base: str | None = None,
    adapter: str | None = None,
    step: int = 1,
) -> None:
    """Record the losses of all canaries under a trained model, for trainings without CanaryCallback.

    Parameters
    ----------
    folder
        Folder of the canaries, or their all.jsonl.
    model
        Folder of the trained Hugging Face model; with --adapter, of its base model.
    output
        The new Parquet file of losses.
    base
        Folder of the model before the training; the audit then takes its losses off.
    adapter
        Folder of a LoRA adapter.
    step
        Number of optimizer steps of the training, for the record.
    """
    from memlib.data.canaries.losses import BASE_STEP, write_losses

    if step <= BASE_STEP:
        raise UserError(f"the trained model is at step {step}; give the number of its optimizer steps, at least 1")
    encoded, _ = _encoded(folder, model)
    known = [] if base is None else [_measured(base, None, encoded, BASE_STEP)]
    write_losses(output.expanduser(), [*known, _measured(model, adapter, encoded, step)])
    console.print(f"losses of {count_of(len(encoded), 'canary', 'canaries')}: {output}", soft_wrap=True)


@canaries.command
def audit(
    folder: Path,
    losses: Path,
    /,
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    adjacency: Literal["add-remove", "replace"] = "add-remove",
    step: int | None = None,
    alpha: float = 0.05,
    redraws: int = 9999,
    json_: JsonOption = False,
) -> None:
    """Test from the losses whether the model remembers the canaries, bound epsilon, and test a claim.

    A canary's score is the loss of the base model (step 0) minus that of the trained one, or minus the latter if the base was
    not recorded. No line says which canary was inserted.

    Parameters
    ----------
    folder
        Folder of the canaries, with coins.parquet.
    losses
        Parquet file of losses, as written by CanaryCallback or memlib canaries score.
    epsilon
        The claimed epsilon of the training for one record.
    delta
        Delta of the claim and of the bound.
    adjacency
        Adjacency of the claim. The coins put records in or leave them out (add-remove); a claim about replacements is not
        compared.
    step
        Step of the audited model, chosen before any result is seen; by default the last.
    alpha
        Level of the tests and of the bound.
    redraws
        Number of redraws of the coins.
    json_
        Print the result as JSON.
    """
    from memlib.data.canaries.documents import read_coins
    from memlib.data.canaries.losses import read_losses, score_canaries
    from memlib.stats.canaries import audit_canaries

    coins = read_coins(folder)
    scores = score_canaries(read_losses(losses), coins.canaries, step=step)
    claimed = epsilon if adjacency == "add-remove" else None
    result = audit_canaries(
        scores.values, coins.inside, guesses=coins.guesses, repeats=coins.repeats, claimed=claimed, delta=delta, level=alpha,
        redraws=redraws,
    )  # fmt: skip
    claim = _claim(epsilon, adjacency, result)
    score_ = "base loss - loss" if scores.relative else "-loss"
    if json_:
        facts = {"step": scores.step, "score": score_, "alpha": alpha, "adjacency": "add-remove", "claimed_epsilon": epsilon}
        show_json({**facts, **asdict(result), "outcome_of_claim": claim})
        return
    _print_table(
        {"model": f"step {scores.step}, score {score_}", **_rows(result, alpha), **({"claim": claim} if claim else {})}
    )


def _rows(result: CanaryAudit, alpha: float) -> Mapping[str, str]:
    low, high = result.auc_interval
    bound = result.bound
    shown = "shown" if result.test.p_value <= alpha else "not shown"
    unit = "" if result.repeats == 1 else f", for {result.repeats} copies"
    record = "" if result.repeats == 1 or not result.epsilon_per_record else f"; per record {result.epsilon_per_record:.2f}"
    return {
        "canaries": f"{result.num_canaries:,}, {result.num_inserted:,} inserted",
        "memory": f"{shown} at level {alpha:g} (p = {result.test.p_value:.4g}, coins redrawn)",
        "AUC": f"{result.test.auc:.3f} (95 % interval {low:.3f} to {high:.3f})",
        "epsilon": f"at least {bound.epsilon:.2f}{unit} at delta {bound.delta:g}, add-remove{record}; a perfect attack would "
        f"have given {bound.ceiling:.2f} ({bound.correct} of {bound.guesses} guesses right)",
    }


def _claim(epsilon: float | None, adjacency: str, result: CanaryAudit) -> str | None:
    """Return a sentence on the claim; None without one."""
    if epsilon is None:
        return None
    if adjacency != "add-remove":
        return f"epsilon {epsilon:g} under {adjacency} adjacency: not compared, as the audit measures add-remove adjacency"
    if result.claim is None:
        return f"epsilon {epsilon:g} per record: not compared, as {result.repeats} copies change delta; use --delta 0"
    p, smallest, level = result.claim.p_value, result.claim.smallest_p, result.bound.level
    if smallest > level:
        return f"epsilon {epsilon:g}: cannot be tested, as a perfect attack would have p = {smallest:.3g}; draw more canaries"
    return f"epsilon {epsilon:g}: {'refuted' if p <= level else 'not refuted'} at level {level:g} (p = {p:.4g})"


def _print_table(rows: Mapping[str, str]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, text in rows.items():
        table.add_row(name, text)
    console.print(table)


def _encoded(folder: Path, model: str) -> tuple[list[EncodedCanary], int | None]:
    """Return the canaries as tokens of a model, and the length of its window."""
    from memlib.data.canaries.documents import read_documents
    from memlib.observe.canary_likelihoods import encode_canaries, load_tokenizer

    documents = read_documents(folder)
    tokenizer, window = load_tokenizer(model)
    return encode_canaries(documents, tokenizer, rendered=_rendered(documents, model)), window


def _rendered(documents: Sequence[CanaryDocument], model: str) -> list[str]:
    """Return the texts; chats are rendered in a child process, as a chat template is a program."""
    if documents[0].prompt is None:
        return [one.text for one in documents]
    from memlib.data.text.chats import Chat, render

    chats: list[tuple[str, Chat]] = [(one.canary, [*one.messages]) for one in documents]
    return list(render(chats, model))


def _coins_of(folder: Path, encoded: Sequence[EncodedCanary]) -> Coins | None:
    """Return the coins beside the canaries; None if the folder has none, as at a trainer that is not trusted."""
    from memlib.data.canaries.documents import COINS_FILE, read_coins

    home = folder if folder.is_dir() else folder.parent
    if not (home / COINS_FILE).exists():
        return None
    coins = read_coins(home)
    if list(coins.canaries) != [one.canary for one in encoded]:
        raise UserError(f"{home / COINS_FILE} has coins of other canaries; use the folder that memlib canaries make wrote")
    return coins


def _checked_data(data: Path, encoded: Sequence[EncodedCanary], coins: Coins | None) -> tuple[tuple[str, ...], list[str]]:
    """Return the problems of tokenized data, and remarks."""
    from memlib.data.canaries.losses import read_tokenized
    from memlib.observe.canary_checks import CanaryIndex, check_dataset

    items, labelled = read_tokenized(data)
    inside, repeats = (None, 1) if coins is None else (coins.inside, coins.repeats)
    result = check_dataset(items, _collated, CanaryIndex.of(encoded), inside=inside, repeats=repeats)
    unknown = [] if labelled else [f"{data} has no labels; whether canaries have a loss was not checked"]
    return result.problems, [
        f"canaries in the training data: {result.found}, {count_of(result.seen, 'time')} in all",
        *result.remarks,
        *unknown,
    ]


def _collated(items: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return rows as a batch; without labels, every token has a loss."""
    return {
        "input_ids": [item["input_ids"] for item in items],
        "labels": [item.get("labels", item["input_ids"]) for item in items],
    }


def _measured(model: str, adapter: str | None, encoded: Sequence[EncodedCanary], step: int) -> Any:
    from memlib.models.causal import load_model
    from memlib.observe.canary_likelihoods import measure_losses

    return measure_losses(load_model(model, adapter), encoded, step=step)
