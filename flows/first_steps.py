"""The commands with which somebody begins: a recipe to start from, whether it can run, and whether this machine can."""

import importlib.metadata
import json
import os
import platform
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from cyclopts import Parameter
from rich.console import Console

import memlib
from flows.audits import resolved
from flows.recipes import load_recipe, origin_of
from flows.recipes import validate as validated
from flows.store_commands import DEFAULT_STORE, JsonOption, StoreOption
from memlib.audits import AUDITS, PACKAGES, audit_of
from memlib.errors import RunError, UserError
from memlib.specs import Resources
from memlib.store import Store

LIBRARIES = ("torch", "torchvision", "ray", "prefect", "numpy", "pyarrow", "scipy", "s3fs")
LEAST_FREE = 2 * 2**30  # bytes on a disk: less than that ends most audits
console = Console(highlight=False, markup=False)


def init(
    audit: Annotated[Literal[tuple(PACKAGES)], Parameter(help="Which audit; see `memlib run --help`.")],  # type: ignore[valid-type]
    path: Path | None = None,
    /,
) -> None:
    """Write a commented recipe to start from. It runs as it is, on embedded data.

    Parameters
    ----------
    path
        The new file; by default the audit's name in this folder.
    """
    field = AUDITS[audit].field
    target = Path(f"{field}.yaml") if path is None else path.expanduser()
    text = files("deployments").joinpath("starters", f"{field}.yaml").read_text(encoding="utf-8")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text.replace("THIS_FILE", str(target)))
    except FileExistsError as error:
        raise UserError(f"{target} is there already; name another file") from error
    except OSError as error:
        raise UserError(f"cannot write {target} ({error.strerror})") from error
    console.print(f"{target} is there; next: memlib run {audit} --recipe {target}", soft_wrap=True)


def validate(
    recipe: str,
    /,
    *,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
    json_: JsonOption = False,
) -> None:
    """Say whether a recipe is valid, and what it could not show, whatever the data. No data are read.

    Parameters
    ----------
    recipe
        The name of a shipped recipe or the path of a YAML file.
    set_
        Change a value of the recipe, as in --set training.epochs=50.
    json_
        Print the recipe with all defaults filled in as JSON.
    """
    content, machines = load_recipe(recipe, set_)
    name = audit_of(str(content.get("audit", "")))
    if name not in AUDITS:
        raise UserError(f"{recipe} does not say which audit it is for (audit: {', '.join(AUDITS)})")
    audit = AUDITS[name]
    spec = validated(audit.recipe, resolved(audit, content), origin=partial(origin_of, recipe, set_))
    validated(Resources, machines, origin=lambda place: origin_of(recipe, set_, ["resources", *place]))
    limits = list(audit.limits(spec))
    if json_:
        print(json.dumps({"audit": name, "recipe": spec.model_dump(mode="json"), "limits": limits}, indent=1))
        return
    for line in limits:
        console.print(line, soft_wrap=True)
    console.print(
        f"{recipe} is a valid recipe for the {name} audit; next: memlib plan {name} --recipe {recipe}", soft_wrap=True
    )


def sources(*, json_: JsonOption = False) -> None:
    """List the kinds of data that a recipe can name, with what they need.

    Parameters
    ----------
    json_
        Print them as JSON.
    """
    from memlib.specs.data import JoinedSource, PlainSource
    from memlib.specs.text import TextSource

    kinds = {"images and points": [*_members(PlainSource), JoinedSource], "text": _members(TextSource)}
    found = {title: [_source(kind) for kind in members] for title, members in kinds.items()}
    if json_:
        print(json.dumps(found, indent=1))
        return
    for title, rows in found.items():
        console.print(title, style="bold")
        for row in rows:
            needs = f" (needs {', '.join(row['needs'])})" if row["needs"] else ""
            console.print(f"  kind: {row['kind']}{needs}: {row['meaning']}", soft_wrap=True)
    console.print("their keys: docs/recipes.md, memlib schema AUDIT")


def _members(union: Any) -> list[Any]:
    inner = get_args(union)
    return list(get_args(inner[0])) if inner and get_args(inner[0]) else [union]


def _source(kind: Any) -> dict[str, Any]:
    fields = kind.model_fields
    needs = [name for name, field in fields.items() if field.is_required() and name != "kind"]
    meaning = " ".join((kind.__doc__ or "").split())
    return {"kind": get_args(fields["kind"].annotation)[0], "needs": needs, "meaning": meaning}


def doctor(*, store: StoreOption = DEFAULT_STORE, json_: JsonOption = False) -> int:
    """Look whether this machine can run audits: libraries, GPU, FAISS, Prefect, the store, room on the disk.

    Ends with status 2 when something has to be mended.

    Parameters
    ----------
    store
        Folder or s3:// prefix that runs would write to.
    json_
        Print what was found as JSON.
    """
    found = list(_looked_at(store))
    if json_:
        rows = [{"what": what, "found": said, "problem": problem} for what, said, problem in found]
        print(json.dumps(rows, indent=1))
    for what, said, problem in found if not json_ else ():
        console.print(f"{what}: {said}{f'; {problem}' if problem else ''}", soft_wrap=True)
    problems = [what for what, _, problem in found if problem]
    if not json_:
        console.print(f"to be mended: {', '.join(problems)}" if problems else "all is well")
    return 2 if problems else 0


def _looked_at(store: str) -> Iterator[tuple[str, str, str]]:
    """Yield what was looked at, what was found, and what is wrong with it."""
    yield "memlib", f"{memlib.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores", ""
    for name in LIBRARIES:
        version = _version(name)
        yield name, version or "not there", "" if version else f"pip install {name}"
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    yield "GPU", f"{count} ({torch.cuda.get_device_name(0)})" if count else "none; audits run on the CPU", ""
    faiss = next((f"{name} {_version(name)}" for name in ("faiss-gpu", "faiss-cpu") if _version(name)), "")
    yield "FAISS", faiss or "not there", "" if faiss else "pip install 'memlib[cpu]'"
    yield "Prefect", *_prefect()
    yield "store", *_store(store)
    for what, place in (("temporary files", tempfile.gettempdir()), ("this folder", os.getcwd())):
        free = shutil.disk_usage(place).free
        yield what, f"{place}, {free / 2**30:.0f} GiB free", "" if free >= LEAST_FREE else "make room"


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
        return url, str(error)
    return (f"{url} answers" if url else "each run starts a server of its own (PREFECT_API_URL is not set)"), ""


def check_prefect() -> None:
    """Asks the Prefect server for a sign of life, when one is configured."""
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        return
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=10):
            pass
    except urllib.error.HTTPError:
        pass  # it answers; what it thinks of us is for Prefect to find out
    except (OSError, ValueError) as error:
        raise UserError(f"no Prefect server at PREFECT_API_URL {url} ({error}); start it or unset the variable") from error


def _store(uri: str) -> tuple[str, str]:
    try:
        opened = Store(uri)
        if opened.marker() is None:
            opened.check_room()
            return f"{opened.uri} is not there yet; the first run makes it", ""
        opened.check_writable()
    except (UserError, RunError, OSError) as error:
        return uri, str(error)
    return f"{opened.uri} can be written ({opened.mode})", ""


COMMANDS: dict[str, Callable[..., Any]] = {"init": init, "validate": validate, "sources": sources, "doctor": doctor}
