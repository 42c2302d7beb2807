"""Glossary of the terms that pages use, defined in glossary.yaml; docs/glossary.md is generated from it."""

import functools
from collections.abc import Iterable, Mapping
from importlib.resources import files

import yaml


@functools.cache
def terms() -> Mapping[str, str]:
    """Return all definitions by term."""
    definitions: dict[str, str] = yaml.safe_load(files("memlib.report").joinpath("glossary.yaml").read_text(encoding="utf-8"))
    return definitions


def defined(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return terms with their definitions, in the order of the glossary.

    Raises:
        KeyError: for a term without a definition.
    """
    requested = set(names)
    if unknown := requested - terms().keys():
        raise KeyError(f"no definition of {', '.join(sorted(unknown))}")
    return [(term, text) for term, text in terms().items() if term in requested]
