"""The command that says which examples of one data set have a copy in another one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows.cli.completing import recipes
from flows.cli.files import write_new
from flows.cli.store import StoreOption
from memlib.console import console
from memlib.errors import UserError
from memlib.recipes.request import AuditRequest
from memlib.report.spreadsheet import csv_of
from memlib.specs import DataSpec
from memlib.specs.captions import CaptionSpec
from memlib.store import DEFAULT_STORE, Store

if TYPE_CHECKING:
    from memlib.data.overlap import Set
    from memlib.running.runners import PlainRunner


def overlap(
    first: Annotated[str, Parameter(completer=recipes)],
    second: Annotated[str, Parameter(completer=recipes)],
    /,
    *,
    near: float = 2.0,
    shared: float = 0.5,
    output: Path | None = None,
    set_: Annotated[Sequence[str], Parameter(name="--set", negative="")] = (),
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Say which examples of one data set have a copy, or nearly one, in another: is an evaluation set in the training data?

    Compares stored pixels, small versions of images, and captions where both recipes have them. Nothing is trained.

    Parameters
    ----------
    first
        A recipe, by name or path, of which only the data (and captions) are read: the examples that are looked for.
    second
        A recipe of the data in which they are looked for.
    near
        Largest root mean square difference, in grey levels, of the 16 x 16 versions of images that are alike.
    shared
        Smallest share of equal runs of four words (Jaccard index) of captions that are alike.
    output
        A new CSV file with the examples, their copies, the kind of copy and the distance.
    set_
        Override a value of both recipes, as in --set data.image_size=64: images are compared at their stored size.
    store
        Folder or s3:// prefix for the decoded data.
    """
    from memlib.data.overlap import OVERLAP
    from memlib.data.overlap import overlap as compared
    from memlib.running.runners import PlainRunner

    opened = Store(store)
    opened.check_writable()
    runner = PlainRunner(opened)
    one, other = (_read(runner, recipe, set_) for recipe in (first, second))
    found = compared(one, other, near=near, shared=shared)
    if output is not None:
        rows = found.to_pylist() or [dict.fromkeys(OVERLAP.names, "")]
        write_new(output, csv_of(rows).encode())
    names = {name: set[str]() for name in ("identical", "alike", "caption")}
    for row in found.to_pylist():
        names[row["by"]].add(row["example_id"])
    total = len(set[str]().union(*names.values()))
    counts = ", ".join(f"{len(names[by])} {text}" for by, text in (("identical", "identical"), ("alike", "alike"),
                                                                  ("caption", "with a like caption")))  # fmt: skip
    console.print(
        f"{total:,} of {len(one.ids):,} examples of {first} have a copy in {second} ({counts})"
        + (f"; see {output}" if output is not None else ""),
        soft_wrap=True,
    )


def _read(runner: PlainRunner, recipe: str, set_: Sequence[str]) -> Set:
    """Return the examples that a recipe's data section describes."""
    from memlib.data.images.caption_stages import Captions
    from memlib.data.overlap import Set
    from memlib.data.stages import decode

    request = AuditRequest.read(recipe, set_)
    request.allow_code()
    data, captions = getattr(request.recipe, "data", None), getattr(request.recipe, "captions", None)
    if not isinstance(data, DataSpec):
        raise UserError(f"recipe {recipe} has no images or points to compare; name one with a section data")
    shard = decode(runner, data)
    texts: dict[str, str] = {}
    if isinstance(captions, CaptionSpec):
        table = runner.run(Captions(data, captions, shard)).content.table
        texts = dict(zip(table["example_id"].to_pylist(), table["caption"].to_pylist(), strict=True))
    return Set.of(shard.content, captions=texts)
