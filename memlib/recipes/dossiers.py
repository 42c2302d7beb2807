"""The recipe of a dossier for given data: every audit that applies to them, and a reason for every other one."""

from collections.abc import Mapping
from typing import Any

from memlib.audits import AUDITS
from memlib.audits.attacks import DataFacts
from memlib.audits.cells import CellSpec
from memlib.errors import UserError
from memlib.recipes.cells import cells_of
from memlib.recipes.files import validate
from memlib.recipes.request import AuditRequest
from memlib.specs import DataSpec, TextSpec
from memlib.specs.base import Source, source_of

EMBEDDED = ("topics", "topic_pairs")  # texts of which their recipes use a part


def dossier_recipe(
    data: Mapping[str, Any] | str, *, persons: str = "", model: Mapping[str, Any] | None = None, members: str = ""
) -> dict[str, Any]:
    """Return the recipe of a dossier with the audits that apply to data, as plain JSON.

    Args:
        data: the section `data` of recipes, its source alone, or the kind of a source that has no settings.
        persons: regular expression that finds the person in an example's id; by default as the source knows her.
        model: an existing model, as in `trained` of recipes; by default, audits train models of their own.
        members: file that lists the training examples of this model.

    Raises:
        UserError: if the data, or an audit of them, is not valid.

    Example:
        >>> recipe = dossier_recipe("two_moons")
        >>> [cell["name"] for cell in recipe["cells"]], recipe["not_run"]["exposure"]
        (['unique-feature', 'self-influence', 'membership'], 'for texts; the data are points')
    """
    section, source = _read(data)
    asked = _applied(DataFacts(source, persons or source.persons, model, members))
    cells = [cell for cell in asked.values() if isinstance(cell, CellSpec)]
    if not cells:
        raise UserError(f"no audit applies: {'; '.join(f'{name}: {reason}' for name, reason in asked.items())}")
    content = {
        "audit": "dossier",
        "title": "Dossier",
        "every": {"data": section},
        "cells": [_plain(cell) for cell in cells],
        "not_run": {name: reason for name, reason in asked.items() if isinstance(reason, str)},
    }
    cells_of(AuditRequest.read(content).recipe)  # type: ignore[arg-type]
    return content


def _applied(facts: DataFacts) -> dict[str, CellSpec | str]:
    """Return, by audit, a cell that carries it out on the data, or the reason why there is none."""
    return {name: audit.applied_to(facts) for name, audit in AUDITS.items() if not audit.has_cells}


def _read(data: Mapping[str, Any] | str) -> tuple[dict[str, Any], Source]:
    """Return the section `data` of the audits' recipes, and its source."""
    given = {"kind": data} if isinstance(data, str) else data
    section = dict(given) if "source" in given else {"source": dict(given)}
    kind = section["source"].get("kind") if isinstance(section["source"], Mapping) else section["source"]
    if source_of(kind) is Source:
        raise UserError(
            f"there is no source of kind {kind!r}; memlib sources lists them, as in {{kind: image_folder, path: photos}}"
        )
    if source_of(kind).holds != "texts":
        return section, validate(DataSpec, section, what="data").source
    if kind not in EMBEDDED:
        section = {"fraction": 1.0} | section
    return section, validate(TextSpec, section, what="data").source


def _plain(cell: CellSpec) -> dict[str, Any]:
    """Return a cell as recipes have it, without empty changes."""
    return {"name": cell.name, "recipe": cell.recipe, "set": {key: value for key, value in cell.set.items() if value != {}}}
