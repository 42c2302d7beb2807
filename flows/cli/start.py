"""The commands for getting started: write a recipe, check it, list data sources, and check this machine."""

import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from cyclopts import Parameter
from pydantic import ValidationError

import memlib
from flows.cli.completing import recipes
from flows.cli.files import write_new
from flows.cli.look import can_ask, look
from flows.cli.store import JsonOption, StoreOption
from flows.prefect_server import check_prefect
from memlib.audits import AUDITS, PACKAGES, audit_of
from memlib.audits.cells import CellsSpec
from memlib.console import console, show_json
from memlib.errors import RunError, UserError
from memlib.recipes.cells import cells_of
from memlib.recipes.dossiers import dossier_recipe
from memlib.recipes.files import SHIPPED
from memlib.recipes.named_files import check_files
from memlib.recipes.request import AuditRequest, command_for
from memlib.recipes.yaml import inherited, read_yaml
from memlib.specs import ServedSpec
from memlib.specs.cores import cores
from memlib.store import DEFAULT_STORE, Store

LIBRARIES = ("torch", "torchvision", "ray", "prefect", "numpy", "pyarrow", "scipy", "s3fs")
MEASURED_SECONDS = 2.5  # of each of some twenty measurements
LEAST_FREE = 2 * 2**30  # bytes of disk space; most audits fail with less
Have = Literal[
    "membership", "image-model", "classifier-and-name", "encoders", "outputs", "language-model", "service", "fine-tuning",
    "images", "table", "nothing",
]  # fmt: skip
"""Situations for which there are starters, deployments/starters/for_<situation>.yaml."""
DOSSIER = """\
# All that memlib asks of these data, in one document; not_run says why other audits are not asked.
#   memlib plan THIS_FILE       reads the data, and lists what the audits compute
#   memlib run THIS_FILE
# Numbers per class (split, sets) fit classes of 120 examples or more: lower them for smaller ones. What the document
# is for goes into release: memlib schema dossier, or docs/reference/recipes.md.
"""
Shape = Literal["auto", "completions", "generate", "chat"]
QUESTION = re.compile(r"<<([^|>]*)\|([^>]*)>>")  # in a starter: question and example


def init(
    audit: Annotated[
        str | None, Parameter(help="Name of an audit, for a recipe that runs unchanged on embedded data.")
    ] = None,
    path: Path | None = None,
    /,
    *,
    for_: Annotated[Have | None, Parameter(name="--for")] = None,
    data: str = "",
    persons: str = "",
    model: str = "",
    members: Path | None = None,
) -> None:
    """Write a commented recipe as a starting point: for an audit, or for what you have (--for), with questions on a terminal.

    Without words, a terminal is asked for files and folders, at which memlib look then looks.

    Parameters
    ----------
    path
        The new file; by default named after the audit or after what you have, in the current folder.
    for_
        Your situation: a classifier and a list of its training rows; one image model and its training images; a classifier
        and a name; two encoders; a model's outputs; a language model and secrets; the same behind a service; texts to
        fine-tune on; images alone; a table; nothing yet. The recipe has the keys that this needs; on a terminal, their values
        are asked for.
    data
        For a dossier: your data as YAML, as in "{kind: table, path: patients.csv, label_column: outcome}" (memlib sources
        lists the kinds). The recipe asks all that applies to them, and says why other audits do not apply.
    persons
        For a dossier with --data: regular expression that finds the person in an example's id, as in "^(.+)/".
    model
        For a dossier with --data: an existing model as YAML, as in "{model: 'nets:build', weights: model.pt}".
    members
        For a dossier with --model: CSV or Parquet file of the examples that it was trained on (example_id, member).
    """
    about = {"--persons": persons, "--model": model, "--members": members}
    if not data and (stray := [option for option, value in about.items() if value]):
        raise UserError(f"{stray[0]} needs --data, as in memlib init dossier --data digits")
    if data and (audit != "dossier" or for_ is not None):
        raise UserError("--data is for a dossier: memlib init dossier --data DATA; in other recipes, set data.source")
    if audit is None and for_ is None:
        if things := _ask_for_things():
            look(*things)
            return
        for_ = _ask_for_situation()
    if for_ is not None:
        name, starter = for_.replace("-", "_"), f"for_{for_}.yaml"
        if audit is not None:  # memlib init --for table mine.yaml: the word is the file
            path = Path(audit)
    elif audit is not None and audit_of(audit) in PACKAGES:
        name = AUDITS[audit_of(audit)].field
        starter = f"{name}.yaml"
    else:
        raise UserError(f"there is no audit {audit!r}; choose from {', '.join(PACKAGES)}, or use --for")
    target = Path(f"{name}.yaml") if path is None else path.expanduser()
    if target.exists():  # before any questions
        raise UserError(f"{target} already exists; choose another file")
    text = _dossier(data, persons, model, members) if data else _fill(_starter(starter))
    write_new(target, text.replace("THIS_FILE", str(target)).encode())
    console.print(f"wrote {target}; next: memlib {'run' if for_ is None else 'validate'} {target}", soft_wrap=True)


def _dossier(data: str, persons: str, model: str, members: Path | None) -> str:
    """Return the recipe of a dossier with all audits that apply to data."""
    trained = _mapping("--model", model) if model else None
    given = data if data.isidentifier() else _mapping("--data", data)
    content = dossier_recipe(given, persons=persons, model=trained, members="" if members is None else str(members))
    lines = [f"audit: {content['audit']}", f"title: {content['title']}", f"every: {_flow(content['every'])}", "cells:"]
    lines += [f"  - {_flow(cell)}" for cell in content["cells"]]
    return DOSSIER + "\n".join([*lines, "not_run:", *(f"  {_flow(one)[1:-1]}" for one in _single(content["not_run"])), ""])


def _mapping(option: str, text: str) -> dict[str, Any]:
    content = read_yaml(text, option)
    if not isinstance(content, dict):
        raise UserError(
            f"{option} {text!r} is no YAML mapping, as {{kind: image_folder, path: photos}} is; see memlib sources"
        )
    return inherited({}, content, option)


def _single(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{name: value} for name, value in content.items()]


def _flow(content: Mapping[str, Any]) -> str:
    """Return a mapping as YAML on one line."""
    text = yaml.safe_dump(content, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
    return str(text).rstrip("\n")


def _starter(name: str) -> str:
    return (SHIPPED / "starters" / name).read_text(encoding="utf-8")


def _ask_for_things() -> list[str]:
    """Ask on a terminal for files and folders, at which `memlib look` then looks; return none elsewhere."""
    if not can_ask():
        return []
    console.print("Name what you have: a model, and what it was and was not trained on; or press Enter for a list.")
    return shlex.split(input("Files, folders: "))


def _ask_for_situation() -> Have:
    """Ask what the user has, on a terminal.

    Raises:
        UserError: when there is no terminal, or the answer is none of the choices.
    """
    choices: tuple[Have, ...] = get_args(Have)
    if not can_ask():
        raise UserError(
            f"name an audit, or say what you have: memlib look FILE_OR_FOLDER ..., or memlib init --for {'|'.join(choices)}"
        )
    for number, choice in enumerate(choices, start=1):
        situation = _starter(f"for_{choice}.yaml").partition("\n")[0].removeprefix("# ")
        console.print(f"{number}  {choice}: {situation}", soft_wrap=True)
    answer = input(f"What do you have? [1 to {len(choices)}] ").strip()
    if answer in choices:
        return answer
    if not (answer.isdecimal() and 1 <= int(answer) <= len(choices)):
        raise UserError(f"{answer!r} is not a number from 1 to {len(choices)}; run the command again")
    return choices[int(answer) - 1]


def _fill(text: str) -> str:
    """Replace the questions in a starter by answers on a terminal, elsewhere by examples; each is asked once."""
    answers: dict[str, str] = {}

    def answer(found: re.Match[str]) -> str:
        question, default = found[1], found[2]
        if question not in answers:
            given = input(f"{question} [{default}]: ").strip() if can_ask() else ""
            answers[question] = given or default
        return _in_yaml(answers[question])

    filled = QUESTION.sub(answer, text)
    has_boxes = any(given != "none" for question, given in answers.items() if question.startswith("Boxes"))
    return filled.replace("CROP", "maximal" if has_boxes else "corner")


def _in_yaml(text: str) -> str:
    """Return an answer as YAML: a number, true or false, or else text, in quotes where it needs them (JSON's are YAML's)."""
    plain = re.fullmatch(r"[\w./ -]*\w", text) and yaml.safe_load(text) == text
    return (
        text
        if plain or text in ("true", "false") or re.fullmatch(r"[1-9]\d{0,5}", text)
        else json.dumps(text, ensure_ascii=False)
    )


def validate(
    recipe: Annotated[str, Parameter(completer=recipes)],
    /,
    *,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
    json_: JsonOption = False,
) -> None:
    """Check whether a recipe is valid, and list what its audit cannot show on any data, and its cells. No data are read.

    Parameters
    ----------
    recipe
        Name of a shipped recipe or path of a YAML file.
    set_
        Override a value of the recipe, as in --set training.epochs=50.
    json_
        Print the recipe as JSON, with all defaults filled in.
    """
    request = AuditRequest.read(recipe, set_)
    name, spec = request.audit.name, request.recipe
    limits = [*request.audit.limits(spec), *check_files(spec)]
    cells = list(cells_of(spec)) if isinstance(spec, CellsSpec) else []
    if json_:
        found = {"audit": name, "recipe": spec.model_dump(mode="json"), "limits": limits}
        show_json(found | ({"cells": cells} if cells else {}))
        return
    for line in limits:
        console.print(line, soft_wrap=True)
    for number, cell in enumerate(cells, start=1):
        console.print(f"cell {number}: {cell}", soft_wrap=True)
    console.print(
        f"{recipe} is a valid recipe for the {name} audit; next: memlib plan {command_for(name, recipe)}", soft_wrap=True
    )


def sources(*, json_: JsonOption = False) -> None:
    """List the kinds of data sources that a recipe can use, and the settings that each requires.

    Parameters
    ----------
    json_
        Print the list as JSON.
    """
    from memlib.specs.data import JoinedSource, PlainSource
    from memlib.specs.text import TextSource

    kinds = {"images and points": [*_members(PlainSource), JoinedSource], "text": _members(TextSource)}
    rows_by_title = {title: [_source(kind) for kind in members] for title, members in kinds.items()}
    if json_:
        show_json(rows_by_title)
        return
    for title, rows in rows_by_title.items():
        console.print(title, style="bold")
        for row in rows:
            needs = f" (needs {', '.join(row['needs'])})" if row["needs"] else ""
            console.print(f"  kind: {row['kind']}{needs}: {row['meaning']}", soft_wrap=True)
    console.print("all settings: docs/reference/recipes.md, or memlib schema AUDIT")


def _members(union: Any) -> list[Any]:
    inner = get_args(union)
    return list(get_args(inner[0])) if inner and get_args(inner[0]) else [union]


def _source(kind: Any) -> dict[str, Any]:
    fields = kind.model_fields
    needs = [name for name, field in fields.items() if field.is_required() and name != "kind"]
    meaning = " ".join((kind.__doc__ or "").split())
    return {"kind": get_args(fields["kind"].annotation)[0], "needs": needs, "meaning": meaning}


def doctor(
    *,
    store: StoreOption = DEFAULT_STORE,
    model: str | None = None,
    name: str | None = None,
    key: str | None = None,
    api: Shape = "auto",
    measure: Annotated[bool, Parameter(negative="")] = False,
    json_: JsonOption = False,
) -> int:
    """Check whether this machine can run audits: libraries, GPU, FAISS, Prefect, the store, disk space; or test a service.

    With --measure, also measure what a core, all cores and a GPU do in a second, from which memlib plan estimates costs.

    Exits with status 2 if there are problems to fix.

    Parameters
    ----------
    store
        Folder or s3:// prefix that runs would write to.
    model
        Address of a language model behind a service, as in https://host/v1: a dozen public sentences are sent to it, and
        what it can be asked is printed, instead of what this machine is.
    name
        Name of the model at the service; by default the first that it lists.
    key
        Name of the environment variable with the service's key.
    api
        Shape of the service's requests: completions, generate (SGLang's) or chat; by default it is found.
    measure
        Measure the machine for a minute, with nothing else running, and keep its rates in the store.
    json_
        Print the results as JSON.
    """
    if measure and model is not None:
        raise UserError("--measure is of this machine, --model of a service: give one of them")
    if model is None and (name or key or api != "auto"):
        raise UserError("--name, --key and --api are of a service: give its address as --model")
    checks = list(_looked_at(store)) if model is None else list(_tested(model, name, key, api))
    if measure:
        checks += _measured(store)
    if json_:
        rows = [{"what": what, "found": state, "problem": problem} for what, state, problem in checks]
        show_json(rows)
    for what, state, problem in checks if not json_ else ():
        console.print(f"{what}: {state}{f'; {problem}' if problem else ''}", soft_wrap=True)
    problems = [what for what, _, problem in checks if problem]
    if not json_:
        console.print(f"to fix: {', '.join(problems)}" if problems else "all is well")
    return 2 if problems else 0


def _measured(store: str) -> list[tuple[str, str, str]]:
    """Measure this machine, keep its rates in a store, and return them as `_looked_at` does."""
    from memlib.pricing.machines import keep, measure_here, said_of

    opened = Store(store)
    machine = measure_here(opened, seconds=MEASURED_SECONDS)
    keep(opened, machine)
    return [("measured", f"{machine.name}: {said_of(machine)}", "")]


def _tested(url: str, name: str | None, key: str | None, api: Shape) -> Iterator[tuple[str, str, str]]:
    """Yield what a service can be asked, and how its test ended, as `_looked_at`."""
    from memlib.models.external.served import first_model
    from memlib.observe.service_checks import LEVELS, check_service

    try:
        told = {"kind": "served", "url": url, "key": key, "api": api, "sends": True}
        service = ServedSpec.model_validate({**told, "model": name or "any"})
        if name is None:
            service = service.model_copy(update={"model": first_model(service)})
    except ValidationError as error:
        raise UserError(f"--model {url}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    yield "service", f"{service.model} at {service.host}", ""
    try:
        found = check_service(service)
    except RunError as error:
        yield "test", "failed", str(error)
        return
    yield "gives", f"{LEVELS[found.level]} ({found.api})", ""
    yield "requests", str(found.asked), ""
    if found.level == "scores":
        yield "difference between equal requests", f"{found.noise:.2g} nats a token at most", ""
    for remark in found.remarks:
        yield "remark", remark, ""
    yield "test", "failed" if found.problems else "passed", "; ".join(found.problems)


def _looked_at(store: str) -> Iterator[tuple[str, str, str]]:
    """Yield each item that is checked, its state, and the problem with it, or an empty string if there is none."""
    yield "memlib", f"{memlib.__version__}, Python {platform.python_version()}, {cores()} cores", ""
    for name in LIBRARIES:
        version = _version(name)
        yield name, version or "not installed", "" if version else f"pip install {name}"
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield "GPU", f"{count} ({torch.cuda.get_device_name(0)})" if count else "none; audits run on the CPU", ""
    faiss = next((f"{name} {_version(name)}" for name in ("faiss-gpu", "faiss-cpu") if _version(name)), "")
    yield "FAISS", faiss or "not installed", "" if faiss else "pip install -e '.[cpu]' in memlib's folder"
    yield "Prefect", *_prefect()
    yield "store", *_store(store)
    for what, place in (("temporary files", tempfile.gettempdir()), ("this folder", os.getcwd())):
        free = shutil.disk_usage(place).free
        yield what, f"{place}, {free / 2**30:.0f} GiB free", "" if free >= LEAST_FREE else "free some disk space"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _prefect() -> tuple[str, str]:
    url = os.environ.get("PREFECT_API_URL", "")
    try:
        check_prefect()
    except UserError as error:
        return url or "no server", str(error)
    return (f"{url} answers" if url else "each run starts its own server (PREFECT_API_URL is not set)"), ""


def _store(uri: str) -> tuple[str, str]:
    try:
        opened = Store(uri)
        if opened.marker() is None:
            opened.check_room()
            return f"{opened.uri} does not exist yet; the first run creates it", ""
        opened.check_writable()
    except (UserError, RunError, OSError) as error:
        return uri, str(error)
    return f"{opened.uri} is writable ({opened.mode})", ""
