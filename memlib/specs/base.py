"""Base of all specs, and how a recipe's content is changed by name."""

import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator


class Spec(BaseModel):
    """Base of all specs: immutable, no unknown fields, no NaN.

    A field that was added after keys had been made stays out of them at its default, so that the default changes no key:
    its class names it in `added_later`. One that was renamed is hashed, written and also read by its old name: its class
    maps the new name to that in `hashed_as`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, defer_build=True
    )
    added_later: ClassVar[frozenset[str]] = frozenset()
    hashed_as: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @model_serializer(mode="wrap")
    def _as_hashed(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = handler(self)
        for name in self.added_later & found.keys():
            if getattr(self, name) == type(self).model_fields[name].get_default(call_default_factory=True):
                del found[name]
        return {self.hashed_as.get(name, name): value for name, value in found.items()}

    @model_validator(mode="before")
    @classmethod
    def _read_as_hashed(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        new = {old: new for new, old in cls.hashed_as.items()}
        found = {new.get(name, name): value for name, value in content.items()}
        for name in found.keys() & _numbers_of(cls):
            values = found[name] if isinstance(found[name], list | tuple) else [found[name]]
            if any(isinstance(value, bool) for value in values):
                raise ValueError(f"{name} is a number, and {found[name]!r} is none")
        return found


@functools.cache
def _numbers_of(kind: type[Spec]) -> frozenset[str]:
    """Return the fields that hold numbers and no truth values, which Python takes for 0 and 1."""
    leaves = {name: set(_leaves(field.annotation)) for name, field in kind.model_fields.items()}
    return frozenset(name for name, found in leaves.items() if found & {int, float} and bool not in found)


def _leaves(annotation: Any) -> Iterator[Any]:
    inner = () if get_origin(annotation) is Literal else get_args(annotation)
    if not inner:
        yield annotation
    for part in inner:
        if isinstance(part, type) or get_args(part):
            yield from _leaves(part)


class Source(Spec):
    """A source of examples or of text. Where its files lie is in no key: the digest of their content stands for them.

    Its class names the fields that say so in `whereabouts`.
    """

    whereabouts: ClassVar[frozenset[str]] = frozenset()


def whereabouts_of(kind: str) -> frozenset[str]:
    """Return the fields of a kind of source that say where its files lie."""
    kinds = {get_args(source.model_fields["kind"].annotation)[0]: source for source in Source.__subclasses__()}
    return kinds[kind].whereabouts if kind in kinds else frozenset()


Changed = TypeVar("Changed", bound=Spec)


def changed(spec: Changed, changes: Mapping[str, Any]) -> Changed:
    """A copy of a spec with some keys changed, validated; keys may be dotted (training.patience)."""
    return type(spec).model_validate(changed_content(spec.model_dump(mode="json"), changes))


def changed_content(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a spec with some keys changed, not validated; keys may be dotted."""
    found = dict(content)
    for key, value in changes.items():
        for name in reversed(key.split(".")):
            value = {name: value}
        found = merged(found, value)
    return found


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`change` over `base`; mappings merge key by key unless they name another `kind`."""
    result = dict(base)
    for name, value in change.items():
        old = result.get(name)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) == old.get("kind"):
            value = merged(old, value)
        result[name] = value
    return result
