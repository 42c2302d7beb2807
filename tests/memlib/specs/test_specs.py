"""Keys survive the growth of specs: new fields stay out of them at their defaults, renamed ones keep their former names."""

from collections.abc import Mapping
from typing import Any, ClassVar, get_args

import pytest
from pydantic import ValidationError

from memlib.identity import content_key
from memlib.specs import SourceSpec, Spec, TextSpec, changed
from memlib.specs.base import Source, source_of
from memlib.specs.data import CsvSource
from memlib.specs.question import without_whereabouts


class Before(Spec):
    epochs: int = 10
    rate: float = 0.1


class After(Spec):
    """The same, grown: `rate` is called learning_rate now, patience is new."""

    added_later: ClassVar[frozenset[str]] = frozenset({"patience"})
    hashed_as: ClassVar[Mapping[str, str]] = {"learning_rate": "rate"}

    epochs: int = 10
    learning_rate: float = 0.1
    patience: int | None = None


class Outer(Spec):
    inner: After = After()


def key(spec: Spec) -> str:
    return content_key("train", version=1, spec=spec.model_dump(mode="json"), inputs={})


def test_a_spec_with_new_or_renamed_fields_keeps_its_keys() -> None:
    assert key(After()) == key(Before())
    assert key(After(learning_rate=0.5)) == key(Before(rate=0.5))
    assert key(After(patience=3)) != key(After())
    assert key(After(patience=3)) != key(After(patience=4))


def test_a_renamed_field_is_read_by_both_names_and_written_by_the_old_one() -> None:
    assert After.model_validate({"rate": 0.5}) == After.model_validate({"learning_rate": 0.5})
    written = Outer(inner=After(learning_rate=0.5, patience=2)).model_dump(mode="json")
    assert written == {"inner": {"epochs": 10, "rate": 0.5, "patience": 2}}
    assert Outer.model_validate(written).inner.learning_rate == 0.5
    assert changed(Outer(), {"inner.patience": 7}).inner.patience == 7
    with pytest.raises(ValidationError):
        After.model_validate({"speed": 1})


def test_fields_declared_as_whereabouts_are_left_out_of_keys() -> None:
    source = {"kind": "csv", "path": "/here.csv", "root": "/data", "image_column": "i", "label_column": "l", "classes": ["a"]}
    described = without_whereabouts({"source": source, "image_size": 32})
    assert described == {
        "source": {"kind": "csv", "image_column": "i", "label_column": "l", "classes": ["a"]},
        "image_size": 32,
    }
    joined = {"kind": "joined", "parts": {"x": {"source": dict(source)}}}
    assert "path" not in without_whereabouts({"source": joined})["source"]["parts"]["x"]["source"]
    assert source_of("csv").whereabouts == CsvSource.whereabouts
    assert source_of("no such kind").whereabouts == frozenset()


@pytest.mark.parametrize("source", Source.__subclasses__(), ids=lambda source: source.__name__)
def test_fields_of_sources_named_like_places_are_declared_as_whereabouts(source: type[Source]) -> None:
    places: set[Any] = {"path", "files", "root", "annotations", "download", "template"} & set(source.model_fields)
    assert places == source.whereabouts


def test_every_kind_of_source_is_a_subclass_of_source() -> None:
    def members(annotation: Any) -> set[Any]:
        return {annotation} if isinstance(annotation, type) else {m for inner in get_args(annotation) for m in members(inner)}

    named = {m for m in members(SourceSpec) | members(TextSpec.model_fields["source"].annotation) if issubclass(m, Spec)}
    assert named <= set(Source.__subclasses__())
