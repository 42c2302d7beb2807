"""A change to what a stage computes raises the stage's version, or is declared to leave its results the same.

`make pins` declares so.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from memlib.audits import AUDITS
from memlib.audits.arrangement import stages_of
from memlib.data.stages import Decode
from memlib.pipeline import definitions

PINS = Path(definitions.__file__).with_name("pins.json")


STAGES = {
    f"{kind.__module__.removeprefix('memlib.')}.{kind.__name__}": kind
    for audit in AUDITS.values()
    for kind in stages_of(audit)
}


def pins() -> dict[str, list[object]]:
    return {name: [stage.declared.name, stage.declared.version, stage.code()] for name, stage in sorted(STAGES.items())}


def test_the_code_of_every_stage_is_as_pinned() -> None:
    pinned = json.loads(PINS.read_text())
    changed = [name for name, found in pins().items() if pinned.get(name, [])[:3] != found]
    assert set(pinned) == set(STAGES), "a stage is new, or gone: make pins"
    assert not changed, (
        f"the code of {', '.join(changed)} is not what memlib/pipeline/pins.json says: if results change, raise the version in "
        "the stage's class and name it in CHANGELOG.md; then, or if they do not, make pins"
    )


def test_no_two_stages_have_the_same_title() -> None:
    titles = {kind: kind.title for audit in AUDITS.values() for kind in stages_of(audit)}
    assert len(set(titles.values())) == len(titles)


Pins = Mapping[str, Sequence[object]]


def with_earlier(pinned: Pins, found: Pins) -> dict[str, list[object]]:
    """Return the found pins, each followed by the earlier digests of the same version."""
    renewed = {name: list(pin) for name, pin in found.items()}
    for name, (stage, version, *digests) in pinned.items():
        if renewed.get(name, [])[:2] == [stage, version]:
            renewed[name] += [digest for digest in digests if digest not in renewed[name]]
    return renewed


def test_earlier_digests_are_kept_within_a_version() -> None:
    pinned = {"A": ["a", 1, "x", "w"], "B": ["b", 1, "x"], "gone": ["c", 1, "x"]}
    found = {"A": ["a", 1, "y"], "B": ["b", 2, "y"], "new": ["d", 1, "z"]}
    renewed = with_earlier(pinned, found)
    assert renewed == {"A": ["a", 1, "y", "x", "w"], "B": ["b", 2, "y"], "new": ["d", 1, "z"]}
    assert with_earlier(renewed, found) == renewed


def test_code_counts_as_equal_to_earlier_code_only_if_pinned_together(monkeypatch: pytest.MonkeyPatch) -> None:
    name, now = ("memlib.data.stages", "Decode"), Decode.code()
    for pinned, equal in (([now, "earlier"], {now, "earlier"}), (["another", "earlier"], {now})):
        monkeypatch.setattr(definitions, "_pins", lambda pinned=pinned: {"data.stages.Decode": ["decode", 1, *pinned]})
        assert definitions.equal_codes(*name) == equal
    monkeypatch.setattr(definitions, "_pins", dict)
    assert definitions.equal_codes(*name) == {now}


if __name__ == "__main__":
    PINS.write_text(json.dumps(with_earlier(json.loads(PINS.read_text()), pins()), indent=1) + "\n")
