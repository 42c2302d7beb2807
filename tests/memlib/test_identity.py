import pytest

from memlib.identity import canonical_json, content_key, derive_seed
from memlib.specs import DataSpec, ScenesSource
from tests.forks import run_code


def test_canonical_json_ignores_the_order_of_keys_and_the_type_of_sequences() -> None:
    assert canonical_json({"b": (1, 2), "a": 0.5}) == canonical_json({"a": 0.5, "b": [1, 2]}) == '{"a":0.5,"b":[1,2]}'


@pytest.mark.parametrize("value", [{1, 2}, len, {1: "a"}, b"x", object()])
def test_canonical_json_refuses_values_without_order_or_content(value: object) -> None:
    with pytest.raises(TypeError, match="canonical JSON"):
        canonical_json({"value": value})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_canonical_json_refuses_numbers_that_are_not_finite(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        canonical_json([value])


def test_every_part_of_a_stage_changes_its_key() -> None:
    base = content_key("train", version=1, spec={"epochs": 1}, inputs={"shard": "a"})
    others = [
        content_key("embed", version=1, spec={"epochs": 1}, inputs={"shard": "a"}),
        content_key("train", version=2, spec={"epochs": 1}, inputs={"shard": "a"}),
        content_key("train", version=1, spec={"epochs": 2}, inputs={"shard": "a"}),
        content_key("train", version=1, spec={"epochs": 1}, inputs={"shard": "b"}),
    ]
    assert len({base, *others}) == 5


def test_a_key_is_the_same_in_another_process() -> None:
    spec = DataSpec(source=ScenesSource(num_examples=50))
    key = content_key("decode", version=1, spec=spec, inputs={})
    code = (
        "from memlib.identity import content_key; from memlib.specs import *;"
        "print(content_key('decode', version=1, spec=DataSpec(source=ScenesSource(num_examples=50)), inputs={}))"
    )
    found = run_code(code)
    assert found.stdout.strip() == key, found.stderr


def test_derived_seeds_are_fixed_and_differ_by_name() -> None:
    assert derive_seed(0, "order", 3) == 6_782_676_000_726_402_274
    names = [("order", 0), ("order", 1), ("augment", 0), ("order", "0")]
    assert len({derive_seed(seed, *name) for seed in (0, 1) for name in names}) == 8
