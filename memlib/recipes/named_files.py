"""Checks of the files that a recipe names beside its data, before anything is started."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memlib.audits.canaries.recipe import Recipe as CanariesRecipe
from memlib.data.id_files import said_of_examples
from memlib.errors import UserError
from memlib.specs import HuggingFaceSpec, OutputsSpec, Spec, SplitSpec
from memlib.specs.encoders import OpenClipEncoder, TimmEncoder, TorchvisionEncoder, TransformersEncoder
from memlib.specs.external import InFile, WithMembers, is_part


def check_files(recipe: Spec) -> list[str]:
    """Check the files that a recipe names beside its data, as far as possible without code of the recipe: sets and models.

    Returns:
        a line for each file that does not exist.

    Raises:
        UserError: for sets that do not exist, weights that are none or do not fit their architecture, and folders without a
            model.
    """
    absent = []
    for spec in specs_in(recipe):
        for name, check in _checks_of(spec):
            path = getattr(spec, name, None)
            if not isinstance(path, str):
                continue
            if "://" not in path and not os.path.exists(path):
                absent.append(f"{name}: {path} does not exist yet")
            else:
                check(path)
    return absent


def specs_in(value: Any) -> Iterator[Spec]:
    """Yield a spec and all specs within it."""
    if isinstance(value, Spec):
        yield value
        for name in type(value).model_fields:
            yield from specs_in(getattr(value, name))
    elif isinstance(value, Mapping | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from specs_in(inner)


def _check_members(path: str) -> None:
    """Check a list of members, or an array of them."""
    if path.endswith(".npy"):
        from memlib.audits.membership.supplied import mask_of

        mask_of(path)
    else:
        said_of_examples(path, "member", setting="target.members")


def _checks_of(spec: Spec) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """Yield the fields of a spec that name files, each with a function that checks its file."""
    if isinstance(spec, SplitSpec):
        from memlib.data.splits import check_sets

        yield "sets", lambda path: check_sets(said_of_examples(path, "set", setting="split.sets"))
    elif isinstance(spec, WithMembers) and not is_part(spec.members):
        yield "members", _check_members
    elif isinstance(spec, CanariesRecipe):
        from memlib.data.canaries.losses import read_losses
        from memlib.data.canaries.plan import read_coins

        yield "canaries", lambda path: read_coins(Path(path))
        yield "losses", lambda path: read_losses(Path(path))
    elif isinstance(spec, TorchvisionEncoder | TimmEncoder):
        from memlib.models.external.encoders import load_external_encoder

        yield "weights", lambda _: load_external_encoder(spec)
    elif isinstance(spec, InFile):
        from memlib.models.weights import states_in

        yield "weights", states_in
    elif isinstance(spec, HuggingFaceSpec | TransformersEncoder | OpenClipEncoder):
        from memlib.models.hugging import ENCODER, MODEL, OPEN_CLIP, check_folder

        what = {TransformersEncoder: ENCODER, OpenClipEncoder: OPEN_CLIP}.get(type(spec), MODEL)
        yield "path", lambda path: check_folder(path, what)
    elif isinstance(spec, OutputsSpec):
        from memlib.observe.supplied_outputs import check_columns

        yield "path", lambda _: check_columns(spec)


def require_files(recipe: Spec) -> None:
    """Check the files that a recipe names beside its data, see `check_files`.

    Raises:
        UserError: also for a file that does not exist.
    """
    if absent := check_files(recipe):
        raise UserError(absent[0].removesuffix(" yet"))
