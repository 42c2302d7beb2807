"""The commands for getting started: write a recipe, check it, list data sources, and check this machine."""

import importlib.metadata
import json
import os
import platform
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from cyclopts import Parameter
from rich.console import Console

import memlib
from flows.asked import command_for, read_file
from flows.store_commands import JsonOption, StoreOption
from memlib.audits import AUDITS, PACKAGES
from memlib.cores import cores
from memlib.errors import RunError, UserError
from memlib.store import DEFAULT_STORE, Store

LIBRARIES = ("torch", "torchvision", "ray", "prefect", "numpy", "pyarrow", "scipy", "s3fs")
LEAST_FREE = 2 * 2**30  # bytes of disk space; most audits fail with less
console = Console(highlight=False, markup=False)


def init(
    audit: Annotated[Literal[tuple(PACKAGES)], Parameter(help="Name of the audit; see `memlib run --help`.")],  # type: ignore[valid-type]
    path: Path | None = None,
    /,
) -> None:
    """Write a commented recipe as a starting point. It runs unchanged, on embedded data.

    Parameters
    ----------
    path
        The new file; by default named after the audit, in the current folder.
    """
    field = AUDITS[audit].field
    target = Path(f"{field}.yaml") if path is None else path.expanduser()
    text = files("deployments").joinpath("starters", f"{field}.yaml").read_text(encoding="utf-8")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write(text.replace("THIS_FILE", str(target)))
    except FileExistsError as error:
        raise UserError(f"{target} already exists; choose another file") from error
    except OSError as error:
        raise UserError(f"cannot write {target} ({error.strerror})") from error
    console.print(f"wrote {target}; next: memlib run {target}", soft_wrap=True)


def validate(
    recipe: str,
    /,
    *,
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
    json_: JsonOption = False,
) -> None:
    """Check whether a recipe is valid, and list what its audit cannot show on any data. No data are read.

    Parameters
    ----------
    recipe
        Name of a shipped recipe or path of a YAML file.
    set_
        Override a value of the recipe, as in --set training.epochs=50.
    json_
        Print the recipe as JSON, with all defaults filled in.
    """
    asked = read_file(recipe, set_)
    name, spec = asked.audit.name, asked.recipe
    limits = list(asked.audit.limits(spec))
    if json_:
        print(json.dumps({"audit": name, "recipe": spec.model_dump(mode="json"), "limits": limits}, indent=1))
        return
    for line in limits:
        console.print(line, soft_wrap=True)
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
        print(json.dumps(rows_by_title, indent=1))
        return
    for title, rows in rows_by_title.items():
        console.print(title, style="bold")
        for row in rows:
            needs = f" (needs {', '.join(row['needs'])})" if row["needs"] else ""
            console.print(f"  kind: {row['kind']}{needs}: {row['meaning']}", soft_wrap=True)
    console.print("all settings: docs/recipes.md, or memlib schema AUDIT")


def _members(union: Any) -> list[Any]:
    inner = get_args(union)
    return list(get_args(inner[0])) if inner and get_args(inner[0]) else [union]


def _source(kind: Any) -> dict[str, Any]:
    fields = kind.model_fields
    needs = [name for name, field in fields.items() if field.is_required() and name != "kind"]
    meaning = " ".join((kind.__doc__ or "").split())
    return {"kind": get_args(fields["kind"].annotation)[0], "needs": needs, "meaning": meaning}


def doctor(*, store: StoreOption = DEFAULT_STORE, json_: JsonOption = False) -> int:
    """Check whether this machine can run audits: libraries, GPU, FAISS, Prefect, the store, disk space.

    Exits with status 2 if there are problems to fix.

    Parameters
    ----------
    store
        Folder or s3:// prefix that runs would write to.
    json_
        Print the results as JSON.
    """
    checks = list(_looked_at(store))
    if json_:
        rows = [{"what": what, "found": state, "problem": problem} for what, state, problem in checks]
        print(json.dumps(rows, indent=1))
    for what, state, problem in checks if not json_ else ():
        console.print(f"{what}: {state}{f'; {problem}' if problem else ''}", soft_wrap=True)
    problems = [what for what, _, problem in checks if problem]
    if not json_:
        console.print(f"to fix: {', '.join(problems)}" if problems else "all is well")
    return 2 if problems else 0


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
    yield "FAISS", faiss or "not installed", "" if faiss else "pip install 'memlib[cpu]'"
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


def check_prefect() -> None:
    """Check that the Prefect server answers, if one is configured, and else that Prefect may start one."""
    url = os.environ.get("PREFECT_API_URL")
    if not url:
        from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_ENABLED

        if not (PREFECT_API_URL.value() or PREFECT_SERVER_EPHEMERAL_ENABLED.value()):
            raise UserError(
                "PREFECT_API_URL names no server, and Prefect may start none (PREFECT_SERVER_ALLOW_EPHEMERAL_MODE is off); "
                "set one of them"
            )
        return
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=10):
            pass
    except urllib.error.HTTPError:
        pass  # it answers; Prefect itself reports whether it accepts the credentials
    except (OSError, ValueError) as error:
        raise UserError(f"no Prefect server at PREFECT_API_URL {url} ({error}); start it or unset the variable") from error


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


COMMANDS: dict[str, Callable[..., Any]] = {"init": init, "validate": validate, "sources": sources, "doctor": doctor}
