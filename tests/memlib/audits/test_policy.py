"""Policies: the notation of findings and ceilings, and rules that could fail nothing."""

import pytest
from pydantic import ValidationError

from memlib.audits.policy import Ceiling, Policy, Selected


def test_findings_are_named_by_metric_and_params() -> None:
    assert Selected.of("auc") == ("auc", {})
    assert Selected.of("m[a=1,b=x y]") == ("m", {"a": "1", "b": "x y"})
    assert Ceiling.of("m[k=1]=-2e-1") == ("m[k=1]=-2e-1", ("m", {"k": "1"}), -0.2)


@pytest.mark.parametrize("text", ["", "m", "m=", "m=x", "m=nan", "m=1=2", "m[k=1", "m[k=1]", "=1", "m n=1", "m[a=1]b=1"])
def test_malformed_ceilings_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="with a finite number"):
        Ceiling.of(text)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"audits": []}, "at least one audit"),
        ({"audits": [{"audit": "deja-vu", "n": 9}]}, "can fail no run"),
        ({"audits": [{"audit": "dejavu", "verdicts": ["bounded"]}]}, "choose from deja-vu"),
        ({"audits": [{"audit": "deja-vu", "ceilings": ["auc"]}]}, "METRIC=VALUE"),
        ({"audits": [{"audit": "deja-vu", "non_inferiority": [{"metric": "a b", "margin": 1}]}]}, "is not METRIC"),
        ({"audits": [{"audit": "deja-vu", "non_inferiority": [{"metric": "a", "margin": 0}]}]}, "greater than 0"),
    ],
)
def test_policies_that_decide_nothing_are_refused(content: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Policy.model_validate(content)


def test_audits_are_named_in_either_spelling() -> None:
    policy = Policy.model_validate({"audits": [{"audit": "deja_vu", "verdicts": ["bounded"], "title": "t"}]})
    assert (policy.audits[0].audit, policy.audits[0].named) == ("deja-vu", 'deja-vu "t"')
