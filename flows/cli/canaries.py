"""Canary documents for a trainer elsewhere: coins decide which ones it trains on, and the audit tests these coins."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from flows.cli.store import JsonOption, StoreOption
from memlib.console import console, show_json
from memlib.errors import UserError
from memlib.sanitize import count_of
from memlib.store import DEFAULT_STORE

if TYPE_CHECKING:
    from memlib.data.canaries.documents import CanaryDocument
    from memlib.data.canaries.losses import Recorded
    from memlib.data.canaries.plan import Coins
    from memlib.observe.canary_likelihoods import EncodedCanary
    from memlib.stats.canaries import Plan

FAILED = 1
Spending = Literal["late", "equal", "last_half"]
Statistic = Literal["auc_and_top", "auc"]
Scope = Literal["checkpoints", "last"]
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
    seed: int | None = None,
    format_: Annotated[str | None, Parameter(name="--format")] = None,
    prompt: str | None = None,
    field: str | None = None,
    images: str | None = None,
    classes: int | None = None,
    repeats: int = 1,
    looks: int = 1,
    every_epochs: int | None = None,
    spending: Spending = "late",
    statistic: Statistic = "auc_and_top",
    alpha: float = 0.05,
    epsilon_looks: int | None = None,
    guesses: Annotated[Sequence[int], Parameter(negative="", show_default=False)] = (),
    json_: JsonOption = False,
) -> None:
    """Draw canaries and a fair coin for each, plan the looks at their training, and write a folder that only you can read.

    insert.jsonl has the documents whose coin is in: add them to the training data. all.jsonl has all documents, for recording
    the model's losses on them, and plan.json says when. coins.parquet is for the audit alone. Canaries and coins also depend
    on your secret file. With --images, insert.npz and all.npz have pictures with random labels.

    Parameters
    ----------
    folder
        The new folder.
    count
        Number of canaries, at least 20; about half are inserted.
    seed
        Seed of canaries and coins; by default a random one. The same seed and plan give the same canaries on this machine.
    format_
        Text with holes that are filled at random, as in "Code {d9}"; the alphabets are those of memlib scan. By default a
        record of random letters and digits.
    prompt
        For chats: the user's turn, possibly with holes; the format is then the assistant's answer.
    field
        The records' field with the text or the messages; by default text, or messages for chats.
    images
        Draw pictures of this size instead, for an image classifier, as in 32x32x3; with --classes.
    classes
        Number of classes of the classifier.
    repeats
        Number of times that each inserted canary is written to the file of those to insert.
    looks
        Number of looks at the training, which can stop it; the last is at its end.
    every_epochs
        Look after every so many epochs, as often as --looks says. By default looks are equally spaced over the steps.
    spending
        How the level is spent over the looks: late (cubic: memory grows with training), equal, or last_half.
    statistic
        What is tested: the AUC and the highest scores together, or the AUC alone.
    alpha
        Level of all looks together.
    epsilon_looks
        Number of the looks at which epsilon is bounded, too; by default 4. Half of the level is for the last.
    guesses
        A number of guesses of the bound of epsilon, half of them "in"; may be given several times. By default a tenth, three
        tenths and eight tenths of the canaries. It is fixed here, before any score is seen.
    json_
        Print the numbers as JSON.
    """
    from memlib.data.canaries import documents, pictures
    from memlib.data.canaries.plan import COINS_FILE
    from memlib.data.canaries.secret_key import read_secret
    from memlib.stats.canaries import Plan

    plan = Plan.of(
        looks, alpha=alpha, epsilon_looks=epsilon_looks, every_epochs=every_epochs, spending=spending, statistic=statistic
    )
    drawn = secrets.randbits(63) if seed is None else seed
    target, how = folder.expanduser(), {"repeats": repeats, "guesses": tuple(guesses), "plan": plan, "seed": drawn}
    if images is None:
        if classes is not None:
            raise UserError("--classes is for pictures: give their size, as in --images 32x32x3")
        form = documents.Form(documents.FORMAT if format_ is None else format_, prompt, field)
        coins = documents.write_canaries(target, form, count, secret=read_secret(), **how)  # type: ignore[arg-type]
        names = documents.INSERT_FILE, documents.ALL_FILE
    else:
        if format_ is not None or prompt is not None or field is not None or classes is None:
            raise UserError("pictures have no format, prompt or field; give --images HEIGHTxWIDTHxCHANNELS and --classes")
        shape = _shape(images)
        coins = pictures.write_pictures(target, count, shape, classes, secret=read_secret(), **how)  # type: ignore[arg-type]
        names = pictures.INSERT_FILE, pictures.ALL_FILE
    inserted = int(coins.inside.sum())
    if json_:
        numbers = {"canaries": count, "inserted": inserted, "repeats": repeats, "guesses": list(coins.guesses)}
        show_json({"folder": str(target), **numbers, "plan": asdict(plan)})
        return
    lines = [
        f"{target} has {count_of(count, 'canary', 'canaries')}, of which {inserted:,} are in {names[0]}",
        f"plan: {_planned(plan)}",
        f"next: add {names[0]} to the training data, and record losses of {names[1]} with CanaryCallback, CanaryAudit or "
        f"memlib canaries score; keep {COINS_FILE} from a trainer that you do not trust",
    ]
    for line in lines:
        console.print(line, soft_wrap=True)


def _planned(plan: Plan) -> str:
    """State when the looks of a plan are made."""
    if plan.looks == 1:
        return f"one look, at the end of the training, at level {plan.alpha:g}"
    when = (
        "equally spaced over the training" if plan.every_epochs is None else f"every {count_of(plan.every_epochs, 'epoch')}"
    )
    return f"{plan.looks} looks, {when}, the last one at its end, at level {plan.alpha:g} in all"


def _shape(text: str) -> tuple[int, int, int]:
    """Read HEIGHTxWIDTHxCHANNELS."""
    parts = text.lower().split("x")
    if len(parts) != 3 or not all(part.isdecimal() and part.isascii() and len(part) < 6 for part in parts):
        raise UserError(f"--images {text}: give height, width and channels, as in 32x32x3")
    height, width, channels = map(int, parts)
    return height, width, channels


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
    from memlib.data.canaries.plan import coins_beside

    folder = folder.expanduser()
    encoded, window = _encoded(_documents(folder), model)
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
        found = _checked_data(data, encoded, coins_beside(folder, [one.canary for one in encoded]))
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
    url: str | None = None,
    key: str | None = None,
    sends: bool = False,
    step: int = 1,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Record the losses of all canaries under a trained model, for trainings without CanaryCallback: the last planned look.

    Parameters
    ----------
    folder
        Folder of the canaries, or their all.jsonl.
    model
        Folder of the trained Hugging Face model; with --adapter, of its base model; with --url, its name at the service.
    output
        The new Parquet file of losses.
    base
        Folder, or name, of the model before the training; the audit then takes its losses off.
    adapter
        Folder of a LoRA adapter.
    url
        Address of a service that scores given texts, as in https://host/v1; the canaries are sent to it.
    key
        Name of the environment variable with the service's key.
    sends
        Allow that the canaries are sent to the service.
    step
        Number of optimizer steps of the training, for the record.
    store
        With --url: folder or s3:// prefix in which answers are kept, so that nothing is asked twice.
    """
    import pyarrow as pa

    from memlib.data.canaries.documents import digest_of
    from memlib.data.canaries.losses import BASE_STEP, Recorded, write_losses
    from memlib.data.canaries.plan import read_plan

    if step <= BASE_STEP:
        raise UserError(f"the trained model is at step {step}; give the number of its optimizer steps, at least 1")
    folder = folder.expanduser()
    if url is not None:
        if adapter is not None:
            raise UserError("a service has its adapters under names of their own: give the adapter's name as --model")
        recorded = _asked(folder, _services(url, key, sends, model, base), step, store)
        write_losses(output.expanduser(), recorded)
        console.print(f"losses of {count_of(recorded.table.num_rows, 'canary', 'canaries')}: {output}", soft_wrap=True)
        return
    documents = _documents(folder)
    encoded, _ = _encoded(documents, model)
    known = [] if base is None else [_measured(base, None, encoded, BASE_STEP)]
    table = pa.concat_tables([*known, _measured(model, adapter, encoded, step)])
    plan = read_plan(folder)
    recorded = Recorded(table, {plan.looks: step}, canaries=digest_of(documents), plan=plan.digest)
    write_losses(output.expanduser(), recorded)
    console.print(f"losses of {count_of(len(encoded), 'canary', 'canaries')}: {output}", soft_wrap=True)


def _services(url: str, key: str | None, sends: bool, model: str, base: str | None) -> dict[str, Any]:
    """Return the services of a recipe that options name."""
    told = {"kind": "served", "url": url, "key": key, "sends": sends}
    return {"service": {**told, "model": model}, **({} if base is None else {"base": {**told, "model": base}})}


def _asked(folder: Path, services: dict[str, Any], step: int, store: str) -> Recorded:
    """Ask a service for the losses of canaries."""

    from memlib.audits.canaries.asked import losses_of_service
    from memlib.recipes.request import AuditRequest
    from memlib.running.runners import PlainRunner
    from memlib.store import Store

    request = AuditRequest.read({"audit": "canaries", "canaries": str(folder), **services})
    request.allow_code()
    recipe: Any = request.recipe
    runner = PlainRunner(Store(store))
    runner.warn = lambda text: console.print(text, soft_wrap=True)  # type: ignore[method-assign]
    return losses_of_service(runner, recipe, step)


@canaries.command
def audit(
    folder: Path,
    losses: Path | None = None,
    /,
    *,
    url: str | None = None,
    model: str | None = None,
    base: str | None = None,
    key: str | None = None,
    sends: bool = False,
    epsilon: float | None = None,
    delta: float = 0.0,
    adjacency: Literal["add-remove", "replace"] = "add-remove",
    scope: Scope = "checkpoints",
    step: int | None = None,
    title: str = "Canaries",
    store: StoreOption = DEFAULT_STORE,
    json_: JsonOption = False,
) -> None:
    """Test from the losses whether the model remembers the canaries, bound epsilon, and test a claim: a run with a page.

    A canary's score is the loss of the base model (step 0) minus that of the trained one, or minus the latter if the base was
    not recorded. Looks, level and statistic are those that were planned with the coins. Nothing that is printed or stored
    says which canary was inserted (memlib show RUN --reveal does). memlib run does the same from a recipe (memlib init
    canaries).

    Parameters
    ----------
    folder
        Folder of the canaries, with coins.parquet.
    losses
        Parquet file of losses, as written by CanaryCallback, CanaryAudit or memlib canaries score; without it, a service is
        asked (--url), for likelihoods or, if it gives none, for endings of the canaries.
    url
        Address of the trained model behind a service, as in https://host/v1; canaries are sent to it.
    model
        Name of the trained model at the service.
    base
        Name at the service of the model before the training; its losses are taken off.
    key
        Name of the environment variable with the service's key.
    sends
        Allow that the canaries are sent to the service.
    epsilon
        The claimed epsilon of the training for one record.
    delta
        Delta of the claim and of the bound.
    adjacency
        Adjacency of the claim. The coins put records in or leave them out (add-remove); a claim about replacements is not
        compared.
    scope
        Whether the claim is about the training with all its checkpoints, or about its last model alone.
    step
        A step that is not one of the planned looks: it is described, and nothing is tested.
    title
        Heading of the page.
    store
        Folder or s3:// prefix for artifacts, results and reports.
    json_
        Print the run's manifest as JSON.
    """
    from flows.cli.store import print_run
    from memlib.running import api

    said = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency, "scope": scope}
    privacy = said if epsilon is not None or delta else None
    places: dict[str, Any] = {"canaries": str(folder.expanduser())}
    if losses is not None:
        places["losses"] = str(losses.expanduser())
    if url is not None:
        if model is None:
            raise UserError("--url is the address of a service: give the model's name there as --model")
        places |= _services(url, key, sends, model, base)
    elif losses is None:
        raise UserError("name the file of losses, or the service to ask (--url, --model)")
    recipe = {"audit": "canaries", "title": title, **places, "privacy": privacy}
    with warnings.catch_warnings():
        if url is None:
            warnings.simplefilter("ignore", UserWarning)  # the page has them
        else:
            warnings.showwarning = lambda text, *_, **__: console.print(str(text), soft_wrap=True)
        run = api.run({**recipe, "step": step}, store=store, quiet=True)
    if json_:
        show_json(run.record.model_dump())
        return
    print_run(run.store, run.record)


def _documents(folder: Path) -> list[CanaryDocument]:
    """Return the canaries of a folder, or of its all.jsonl, which are not pictures."""
    from memlib.data.canaries.documents import read_documents
    from memlib.data.canaries.pictures import is_of_pictures

    if is_of_pictures(folder):
        raise UserError(f"{folder} has canaries that are pictures: record their losses with CanaryAudit in the training")
    return read_documents(folder)


def _encoded(documents: Sequence[CanaryDocument], model: str) -> tuple[list[EncodedCanary], int | None]:
    """Return the canaries as tokens of a model, and the length of its window."""
    from memlib.observe.canary_likelihoods import encode_canaries, load_tokenizer

    tokenizer, window = load_tokenizer(model)
    return encode_canaries(documents, tokenizer, rendered=_rendered(documents, model)), window


def _rendered(documents: Sequence[CanaryDocument], model: str) -> list[str]:
    """Return the texts; chats are rendered in a child process, as a chat template is a program."""
    if documents[0].prompt is None:
        return [one.text for one in documents]
    from memlib.data.text.chats import Chat, render

    chats: list[tuple[str, Chat]] = [(one.canary, [*one.messages]) for one in documents]
    return list(render(chats, model))


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
