"""The commands that export examples for the owner of an external model, who returns its outputs or embeddings."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import yaml
from cyclopts import Parameter
from numpy.typing import NDArray

from flows.cli.completing import recipes
from flows.cli.store import StoreOption
from memlib.audits import AUDITS
from memlib.audits.base import Audit
from memlib.console import console
from memlib.data.canaries.secret_key import read_secret
from memlib.data.images.stored import are_images
from memlib.errors import UserError
from memlib.observe.encoders import pseudonym_of
from memlib.recipes.request import AuditRequest
from memlib.specs import DataSpec, Spec, TableSource
from memlib.store import DEFAULT_STORE, Store
from memlib.store.permissions import PRIVATE, make_folder, write_file

if TYPE_CHECKING:
    from memlib.running.runners import PlainRunner


def ids(
    *,
    recipe: Annotated[str, Parameter(completer=recipes)],
    output: Path,
    set_: Annotated[Sequence[str], Parameter(name="--set", negative="")] = (),
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Export the examples for which a model's owner is to supply outputs: members and others, or D_Q and withheld examples.

    The examples are shuffled and get random names, because an owner who can tell which of them were used could forge the
    outputs. The names are derived from your secret file, so that a run of the same recipe on this machine can match the
    outputs to the examples.

    Parameters
    ----------
    recipe
        A recipe of the forgetting or the membership audit, by name or path.
    output
        The new folder, with ids.csv and images/NAME.png, the images as the audit uses them; of points, ids.csv holds the
        coordinates, of a table its own columns.
    set_
        Override a value of the recipe, as in --set data.image_size=64.
    store
        Folder or s3:// prefix for the decoded images and the sets.
    """
    audit, spec = _audit_of(recipe, set_)
    if audit.queried is None:
        capable = " and ".join(sorted(other for other, entry in AUDITS.items() if entry.queried is not None))
        raise UserError(f"recipe {recipe} is for the {audit.name} audit; only {capable} take outputs from a model's owner")
    target = _new_folder(output)
    examples, asked = audit.queried(_runner(store), spec)
    secret = read_secret()
    names = {example: pseudonym_of(example, secret) for example in asked}
    features = _features(spec)
    if features is not None:
        shown = {name: [values.get(example, "") for values in features.values()] for example, name in names.items()}
        _write_ids(target, list(features), shown)
    else:
        _write(target, {names[example]: row for example, row in asked.items()}, examples)
    setting = "targets.NAME" if "targets" in type(spec).model_fields else "target"
    console.print(
        f"{target} has {len(names):,} examples. Ask for a Parquet or CSV file with the column example_id and the model's "
        "class scores (a column per class, or scores, a list) for all examples. Give the file's path as "
        f"{setting}.outputs.path in the recipe",
        soft_wrap=True,
    )


def export(
    *,
    recipe: Annotated[str, Parameter(completer=recipes)],
    output: Path,
    set_: Annotated[Sequence[str], Parameter(name="--set", negative="")] = (),
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Export the images of an audit for the owner of external encoders, who returns only embeddings and keeps the weights.

    The owner trains (or has trained) one encoder on the sets A and C of sets.csv and another one on B and C (only the first
    one, if the recipe has a reference), embeds every image of images.csv with each encoder, and returns one Parquet file per
    encoder: the column id, and one column per layer with lists of numbers.

    Parameters
    ----------
    recipe
        A recipe of the déjà vu or the captions audit, by name or path.
    output
        The new folder, with sets.csv, images.csv and images/: every background crop and every whole image as a PNG; for
        captions also texts.csv. memlib look takes it, with the embeddings.
    set_
        Override a value of the recipe, as in --set data.image_size=64.
    store
        Folder or s3:// prefix for the decoded images and the sets.
    """
    audit, spec = _audit_of(recipe, set_)
    if audit.exported is None:
        capable = ", ".join(other for other, found in AUDITS.items() if found.exported is not None)
        raise UserError(
            f"recipe {recipe} is for the {audit.name} audit; only {capable} takes embeddings from a model's owner"
        )
    target = _new_folder(output)
    found = audit.exported(_runner(store), spec)
    make_folder(target, PRIVATE.folder)
    make_folder(target / "images", PRIVATE.folder)
    sets = [f"{_quoted(example)},{name}" for example, name in found.sets.items()]
    write_file(target / "sets.csv", "\n".join(["example_id,set", *sets, ""]).encode(), PRIVATE.file)
    lines = ["id,file"]
    for name, picture in found.pictures:
        file = target / "images" / f"{name}.png"
        if not file.parent.is_dir():
            make_folder(file.parent, PRIVATE.folder)
        _write_png(file, picture)
        lines.append(f"{name},images/{name}.png")
    if found.texts:
        rows = [f"{name},{_quoted(text)}" for name, text in found.texts.items()]
        write_file(target / "texts.csv", "\n".join(["id,text", *rows, ""]).encode(), PRIVATE.file)
    content = yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    write_file(target / "recipe.yaml", content.encode(), PRIVATE.file)
    write_file(target / "images.csv", "\n".join([*lines, ""]).encode(), PRIVATE.file)  # last, as it names the others
    also = " and texts.csv" if found.texts else ""
    texts = f" and, in texts.csv, {len(found.texts):,} texts" if found.texts else ""
    encoders = ", ".join(f"{name}: {{kind: embeddings, path: {name}.parquet}}" for name in found.encoders)
    console.print(
        f"{target} has {found.count:,} images{texts}. Ask for one Parquet file from each encoder trained on "
        f"{' or on '.join(found.encoders.values())}, with the column id of images.csv{also} and one list of numbers per "
        f"layer. Then memlib look {target} and these files, or name them in the recipe, as in encoders: [{{{encoders}}}]",
        soft_wrap=True,
    )


def _audit_of(recipe: str, set_: Sequence[str]) -> tuple[Audit, Spec]:
    """Return a recipe's audit and the recipe, whose code may run because it was given on the command line."""
    request = AuditRequest.read(recipe, set_)
    request.allow_code()
    return request.audit, request.recipe


def _new_folder(output: Path) -> Path:
    target = output.expanduser()
    if target.exists():
        raise UserError(f"{target} already exists; choose another folder")
    return target


def _runner(store: str) -> PlainRunner:
    from memlib.running.runners import PlainRunner

    opened = Store(store)
    opened.check_writable()
    return PlainRunner(opened)


def _quoted(text: str) -> str:
    """Return a text as a cell of a CSV file."""
    cell = StringIO()
    csv.writer(cell, lineterminator="").writerow([text])
    return cell.getvalue()


def _write_png(file: Path, picture: NDArray[Any]) -> None:
    from PIL import Image

    encoded = BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture).save(encoded, format="PNG")
    write_file(file, encoded.getvalue(), PRIVATE.file)


def _write(target: Path, rows: dict[str, int], examples: NDArray[Any]) -> None:
    """Write the examples in the order of their random names."""
    make_folder(target, PRIVATE.folder)
    if not are_images(examples):
        shown = {name: [f"{value:.9g}" for value in examples[row]] for name, row in rows.items()}
        _write_ids(target, [f"x{place}" for place in range(examples.shape[1])], shown)
        return
    make_folder(target / "images", PRIVATE.folder)
    for name in sorted(rows):
        _write_png(target / "images" / f"{name}.png", np.asarray(examples[rows[name]]))
    _write_ids(target, [], {name: [] for name in rows})


def _write_ids(target: Path, columns: Sequence[str], shown: Mapping[str, Sequence[str]]) -> None:
    """Write ids.csv: a row for each random name, with the example's values in the columns."""
    make_folder(target, PRIVATE.folder)
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [["example_id", *columns], *([name, *shown[name]] for name in sorted(shown))]
    )
    write_file(target / "ids.csv", text.getvalue().encode(), PRIVATE.file)


def _features(spec: Spec) -> Mapping[str, Mapping[str, str]] | None:
    """Return the columns of a table as they are in its file, by column and example id; None for other data."""
    from memlib.data.datasets import open_source

    data = getattr(spec, "data", None)
    if not isinstance(data, DataSpec) or not isinstance(data.source, TableSource):
        return None
    table: Any = open_source(data.source, data.intensities, data.labels)
    features: Mapping[str, Mapping[str, str]] = table.features  # which converts whole columns to text
    if "example_id" in features:
        raise UserError(f"{data.source.path} has a column example_id, as ids.csv has; rename it, or name it as id_column")
    return features
