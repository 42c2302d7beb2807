"""What the owner of a model is asked: every example of a pool by a name that says nothing of its role."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray
from rich.console import Console

from flows.recipes import load_recipe, origin_of, validate
from flows.store_commands import DEFAULT_STORE, StoreOption
from memlib import code
from memlib.audit import Audit
from memlib.audits import AUDITS, audit_of
from memlib.data.secret import read_secret
from memlib.errors import UserError
from memlib.observe.names import asked_as
from memlib.private import PRIVATE, make_folder, write_file
from memlib.specs import Spec
from memlib.store import Store

if TYPE_CHECKING:
    from memlib.running import PlainRunner

console = Console(highlight=False, markup=False)


def ids(
    *,
    recipe: str,
    output: Path,
    set_: Annotated[Sequence[str], Parameter(name="--set", negative="")] = (),
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write what to ask a model's owner: images of D_Q and of withheld examples, in mixed order, under names of their own.

    An owner who can tell which of them are D_Q can make the outputs say anything. The names are drawn from your secret
    file, so that a run of the same recipe on this machine joins the outputs by them.

    Parameters
    ----------
    recipe
        A recipe of the forgetting audit, by name or path.
    output
        The new folder: ids.csv, and images/NAME.png as the audit sees them.
    set_
        Change a value of the recipe, as in --set data.image_size=64.
    store
        Folder or s3:// prefix, in which the images are decoded and the sets are drawn.
    """
    audit, spec = _audit_of(recipe, set_)
    if audit.asked is None:
        able = ", ".join(other for other, found in AUDITS.items() if found.asked is not None)
        raise UserError(f"recipe {recipe} is for the {audit.name} audit; owners are asked for outputs by {able} alone")
    target = _new_folder(output)
    examples, asked = audit.asked(_runner(store), spec)
    secret = read_secret()
    rows = {asked_as(example, secret): row for example, row in asked.items()}
    _write(target, rows, examples)
    console.print(
        f"{target} has {len(rows):,} examples; ask for a Parquet file with the columns example_id and scores (a list of the "
        "model's class scores) for all of them, and name it as targets.NAME.outputs.path in the recipe",
        soft_wrap=True,
    )


def export(
    *,
    recipe: str,
    output: Path,
    set_: Annotated[Sequence[str], Parameter(name="--set", negative="")] = (),
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write what an audit shows encoders, for an owner who embeds it and gives nothing but embeddings away.

    The owner trains (or has trained) one encoder on the sets A and C of sets.csv and another one on B and C (or, where
    the recipe has a reference, the first one alone), embeds every image of images.csv with each, and returns a Parquet
    file for each: id, and a list of numbers a layer.

    Parameters
    ----------
    recipe
        A recipe of the déjà vu audit, by name or path.
    output
        The new folder: sets.csv, images.csv and images/, every background crop and every whole image as a PNG.
    set_
        Change a value of the recipe, as in --set data.image_size=64.
    store
        Folder or s3:// prefix, in which the images are decoded and the sets are drawn.
    """
    audit, spec = _audit_of(recipe, set_)
    if audit.exported is None:
        able = ", ".join(other for other, found in AUDITS.items() if found.exported is not None)
        raise UserError(f"recipe {recipe} is for the {audit.name} audit; embeddings are taken by {able} alone")
    target = _new_folder(output)
    found = audit.exported(_runner(store), spec)
    make_folder(target, PRIVATE.folder)
    make_folder(target / "images", PRIVATE.folder)
    sets = [f"{_quoted(example)},{name}" for example, name in found.sets.items()]
    write_file(target / "sets.csv", "\n".join(["example_id,set", *sets, ""]).encode(), PRIVATE.file)
    listed = ["id,file"]
    for name, picture in found.pictures:
        file = target / "images" / f"{name}.png"
        if not file.parent.is_dir():
            make_folder(file.parent, PRIVATE.folder)
        _write_png(file, picture)
        listed.append(f"{name},images/{name}.png")
    write_file(target / "images.csv", "\n".join([*listed, ""]).encode(), PRIVATE.file)  # last: what it names is there
    given = ", ".join(f"{name}: {{kind: embeddings, path: {name}.parquet}}" for name in found.encoders)
    console.print(
        f"{target} has {found.count:,} images; ask for a Parquet file of each encoder trained on "
        f"{' or on '.join(found.encoders.values())}, with the column id of images.csv and a list of numbers a layer, and "
        f"name it in the recipe, as in encoders: [{{{given}}}]",
        soft_wrap=True,
    )


def _audit_of(recipe: str, set_: Sequence[str]) -> tuple[Audit, Spec]:
    """The audit that a recipe is for, and the recipe; whoever gives it to this command may run its code."""
    content, _ = load_recipe(recipe, set_)
    name = audit_of(str(content.get("audit", "")))
    if name not in AUDITS:
        raise UserError(f"recipe {recipe} is for the {name} audit; there are {', '.join(AUDITS)}")
    spec = validate(AUDITS[name].recipe, content, origin=partial(origin_of, recipe, set_))
    code.allow(code.modules_in(spec.model_dump(mode="json")))
    return AUDITS[name], spec


def _new_folder(output: Path) -> Path:
    target = output.expanduser()
    if target.exists():
        raise UserError(f"{target} is there already; name another folder")
    return target


def _runner(store: str) -> PlainRunner:
    from memlib.running import PlainRunner

    opened = Store(store)
    opened.check_writable()
    return PlainRunner(opened)


def _quoted(text: str) -> str:
    """A cell of a CSV file."""
    found = StringIO()
    csv.writer(found, lineterminator="").writerow([text])
    return found.getvalue()


def _write_png(file: Path, picture: NDArray[Any]) -> None:
    from PIL import Image

    encoded = BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture).save(encoded, format="PNG")
    write_file(file, encoded.getvalue(), PRIVATE.file)


def _write(target: Path, rows: dict[str, int], examples: NDArray[Any]) -> None:
    """Write the examples, sorted by names that are drawn at random."""
    make_folder(target, PRIVATE.folder)
    if examples.ndim == 2:
        listed = [",".join([name, *(f"{value:.9g}" for value in examples[rows[name]])]) for name in sorted(rows)]
        heading = ["example_id", *(f"x{place}" for place in range(examples.shape[1]))]
    else:
        listed, heading = sorted(rows), ["example_id"]
        make_folder(target / "images", PRIVATE.folder)
        for name in listed:
            _write_png(target / "images" / f"{name}.png", np.asarray(examples[rows[name]]))
    write_file(target / "ids.csv", "\n".join([",".join(heading), *listed, ""]).encode(), PRIVATE.file)
