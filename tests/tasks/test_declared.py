"""A change to what a stage computes raises the stage's version, or is declared to leave its results the same.

`make pins` declares so.
"""

import json
from pathlib import Path

from memlib.audits import AUDITS
from memlib.audits.arrangement import stages_of

PINS = Path(__file__).with_name("pins.json")


STAGES = {
    f"{kind.__module__.removeprefix('memlib.')}.{kind.__name__}": kind
    for audit in AUDITS.values()
    for kind in stages_of(audit)
}


def pins() -> dict[str, list[object]]:
    return {name: [stage.declared.name, stage.declared.version, stage.code()] for name, stage in sorted(STAGES.items())}


def test_code_that_changed_has_another_version_or_was_pinned_on_purpose() -> None:
    pinned = json.loads(PINS.read_text())
    changed = [name for name, found in pins().items() if pinned.get(name) != found]
    assert set(pinned) == set(STAGES), "a stage is new, or gone: make pins"
    assert not changed, (
        f"the code of {', '.join(changed)} is not what tests/tasks/pins.json says: if results change, raise the version in "
        "the stage's class and name it in CHANGELOG.md; then, or if they do not, make pins"
    )


def test_no_two_stages_have_the_same_title() -> None:
    titles = {kind: kind.title for audit in AUDITS.values() for kind in stages_of(audit)}
    assert len(set(titles.values())) == len(titles)


if __name__ == "__main__":
    PINS.write_text(json.dumps(pins(), indent=1) + "\n")
