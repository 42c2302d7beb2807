"""What the owner of a model is asked: every example of a pool by a name that says nothing of its role."""

from collections.abc import Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray
from rich.console import Console

from flows.recipes import load_recipe, origin_of, validate
from flows.store_commands import DEFAULT_STORE, StoreOption
from memlib import code
from memlib.audits import AUDITS, audit_of
from memlib.data.secret import read_secret
from memlib.errors import UserError
from memlib.observe.names import asked_as
from memlib.private import PRIVATE, make_folder, write_file
from memlib.store import Store

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
    content, _ = load_recipe(recipe, set_)
    name = audit_of(str(content.get("audit", "")))
    asked_by = AUDITS[name].asked if name in AUDITS else None
    if asked_by is None:
        able = ", ".join(other for other, audit in AUDITS.items() if audit.asked is not None)
        raise UserError(f"recipe {recipe} is for the {name} audit; owners are asked for outputs by {able} alone")
    spec = validate(AUDITS[name].recipe, content, origin=partial(origin_of, recipe, set_))
    code.allow(code.modules_in(spec.model_dump(mode="json")))
    target = output.expanduser()
    if target.exists():
        raise UserError(f"{target} is there already; name another folder")
    from memlib.running import PlainRunner

    opened = Store(store)
    opened.check_writable()
    examples, asked = asked_by(PlainRunner(opened), spec)
    secret = read_secret()
    rows = {asked_as(example, secret): row for example, row in asked.items()}
    _write(target, rows, examples)
    console.print(
        f"{target} has {len(rows):,} examples; ask for a Parquet file with the columns example_id and scores (a list of the "
        "model's class scores) for all of them, and name it as targets.NAME.outputs.path in the recipe",
        soft_wrap=True,
    )


def _write(target: Path, rows: dict[str, int], examples: NDArray[Any]) -> None:
    """Write the examples, sorted by names that are drawn at random."""
    from PIL import Image

    make_folder(target, PRIVATE.folder)
    if examples.ndim == 2:
        listed = [",".join([name, *(f"{value:.9g}" for value in examples[rows[name]])]) for name in sorted(rows)]
        heading = ["example_id", *(f"x{place}" for place in range(examples.shape[1]))]
    else:
        listed, heading = sorted(rows), ["example_id"]
        make_folder(target / "images", PRIVATE.folder)
        for name in listed:
            picture, encoded = np.asarray(examples[rows[name]]), BytesIO()
            Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture).save(encoded, format="PNG")
            write_file(target / "images" / f"{name}.png", encoded.getvalue(), PRIVATE.file)
    write_file(target / "ids.csv", "\n".join([",".join(heading), *listed, ""]).encode(), PRIVATE.file)
