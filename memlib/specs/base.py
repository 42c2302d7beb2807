"""Base class of all specs, functions that change a spec's content by key, and limits of numbers in recipes."""

import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator


class Spec(BaseModel):
    """Base class of all specs: immutable, no unknown fields, no NaN.

    A field that was added after content keys existed is listed in `added_later` of its class: a default value is left out
    of the key, so that existing keys do not change. A renamed field is mapped from its new to its old name in `hashed_as`:
    it is hashed and written under the old name, and read under either name.

    Example:
        >>> from memlib.specs import OptimizerSpec, changed
        >>> adam = OptimizerSpec(learning_rate=0.01)
        >>> changed(adam, {"learning_rate": 0.1}).learning_rate, adam == OptimizerSpec(learning_rate=0.01)
        (0.1, True)
        >>> OptimizerSpec(learning_speed=0.01)  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        ValidationError: Extra inputs are not permitted
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, defer_build=True
    )
    added_later: ClassVar[frozenset[str]] = frozenset()
    hashed_as: ClassVar[Mapping[str, str]] = MappingProxyType({})

    @model_serializer(mode="wrap")
    def _as_hashed(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        for name in self.added_later & fields.keys():
            if getattr(self, name) == type(self).model_fields[name].get_default(call_default_factory=True):
                del fields[name]
        return {self.hashed_as.get(name, name): value for name, value in fields.items()}

    @model_validator(mode="before")
    @classmethod
    def _read_as_hashed(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        new = {old: new for new, old in cls.hashed_as.items()}
        fields = {new.get(name, name): value for name, value in content.items()}
        for name in fields.keys() & _numbers_of(cls):
            values = fields[name] if isinstance(fields[name], list | tuple) else [fields[name]]
            if any(isinstance(value, bool) for value in values):
                raise ValueError(f"{name} must be a number, not {fields[name]!r}")
        return fields


@functools.cache
def _numbers_of(kind: type[Spec]) -> frozenset[str]:
    """Return the fields that accept numbers but not booleans, which Python would take for 0 and 1."""
    leaves = {name: set(_leaves(field.annotation)) for name, field in kind.model_fields.items()}
    return frozenset(name for name, types in leaves.items() if types & {int, float} and bool not in types)


def _leaves(annotation: Any) -> Iterator[Any]:
    inner = () if get_origin(annotation) is Literal else get_args(annotation)
    if not inner:
        yield annotation
    for part in inner:
        if isinstance(part, type) or get_args(part):
            yield from _leaves(part)


Kind = Literal["images", "pairs", "tables", "points", "texts", "ids"]
"""Kinds of data: pictures, pictures with captions, rows with named columns, rows of coordinates alone, text, and examples of
which ids and scores alone are known."""


class Source(Spec):
    """A source of examples or of text. Keys contain the digest of the files' content, but not their location.

    Each class lists in `whereabouts` the fields that state the location, and names in `holds` the kind of its data.

    Example:
        >>> from memlib.specs import ImageFolderSource
        >>> source = ImageFolderSource(kind="image_folder", path="photos")
        >>> "path" in source.whereabouts  # the location of the files is part of no key
        True
    """

    whereabouts: ClassVar[frozenset[str]] = frozenset()
    holds: ClassVar[Kind] = "images"
    is_embedded: ClassVar[bool] = False  #: whether the data come with memlib, for demonstrations and tests.

    @property
    def has_boxes(self) -> bool:
        """True if images have boxes of their objects."""
        return False

    @property
    def states_ids(self) -> bool:
        """True if the data state the ids of examples; otherwise memlib makes them, from their positions."""
        return not self.is_embedded

    @property
    def persons(self) -> str:
        """Regular expression that finds the person in an example's id; "" if the source does not know persons."""
        return ""


def source_of(kind: object) -> type[Source]:
    """Return the class of a kind of source; `Source` itself for a kind that there is not."""
    kinds = {get_args(source.model_fields["kind"].annotation)[0]: source for source in Source.__subclasses__()}
    return kinds.get(kind, Source)


Changed = TypeVar("Changed", bound=Spec)


def changed(spec: Changed, changes: Mapping[str, Any]) -> Changed:
    """Return a validated copy of a spec with some keys changed; keys may be dotted (training.patience)."""
    return type(spec).model_validate(changed_content(spec.model_dump(mode="json"), changes))


def changed_content(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a spec with some keys changed, without validation; keys may be dotted."""
    result = dict(content)
    for key, value in changes.items():
        for name in reversed(key.split(".")):
            value = {name: value}
        result = merged(result, value)
    return result


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated by `change`; nested mappings are merged key by key unless `change` names another `kind`."""
    result = dict(base)
    for name, value in change.items():
        old = result.get(name)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) == old.get("kind"):
            value = merged(old, value)
        result[name] = value
    return result


MOST_SEED = 2**63 - 1
MOST_MODELS = 1_000_000  # small models of one kind, workers, parts
MOST_TRAINED = 10_000  # models, or sets of models, that are artifacts of their own
MOST_DRAWS = 1_000_000_000  # replicates, permutations, guesses, pictures of a page
MOST_EXAMPLES = 1_000_000_000
MOST_STEPS = 1_000_000_000  # epochs, steps
MOST_PIXELS = 100_000  # along a side; also tokens in a window
MOST_WIDTH = 1_000_000  # units, layers
MOST_NUMBER = 1e12
