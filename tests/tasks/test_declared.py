"""A change to what a stage computes raises the stage's version, or is declared to leave its results the same.

`make pins` declares so.
"""

import json
from pathlib import Path

import pytest

from flows.audits import stages_of
from memlib.audits import AUDITS
from memlib.provenance import Declared, code_digest

PINS = Path(__file__).with_name("pins.json")


STAGES = {
    f"{kind.__module__.removeprefix('memlib.')}.{kind.__name__}": kind.declared
    for audit in AUDITS.values()
    for kind in stages_of(audit)
}


def pins() -> dict[str, list[object]]:
    return {name: [stage.name, stage.version, stage.code] for name, stage in sorted(STAGES.items())}


def test_code_that_changed_has_another_version_or_was_pinned_on_purpose() -> None:
    pinned = json.loads(PINS.read_text())
    changed = [name for name, found in pins().items() if pinned.get(name) != found]
    assert set(pinned) == set(STAGES), "a stage is new, or gone: make pins"
    assert not changed, (
        f"the code of {', '.join(changed)} is not what tests/tasks/pins.json says: if results change, raise the version in "
        "the stage's class and name it in CHANGELOG.md; then, or if they do not, make pins"
    )


@pytest.mark.parametrize(
    ("source", "same"),
    [
        ('"""Another docstring."""\n\nA = 1  # why\n\n\ndef f(x):\n    """Doubles."""\n    return 2 * x\n', True),
        ('A = 1\n\n\nclass B:\n    a: int = 1\n    """Of it."""\n\n\ndef f(x):\n    return 2 * x\n', False),
        ("A = 1\n\n\ndef f(x):\n    return 3 * x\n", False),
        ("A = True\n\n\ndef f(x):\n    return 2 * x\n", False),
        ("A = 1.0\n\n\ndef f(x):\n    return 2 * x\n", False),
    ],
)
def test_words_change_no_digest_and_everything_else_does(
    source: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("one_way", "A = 1\n\n\ndef f(x):\n    return 2 * x\n"), ("another_way", source)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "some_module_of_a_stage.py").write_text(text)
    from memlib import provenance

    digests = []
    for name in ("one_way", "another_way"):
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / name))
            provenance._module_digest.cache_clear()
            code_digest.cache_clear()
            digests.append(code_digest(("some_module_of_a_stage",)))
    provenance._module_digest.cache_clear()
    code_digest.cache_clear()
    assert (digests[0] == digests[1]) is same


def test_a_package_stands_for_all_in_it_and_a_module_that_is_gone_is_noticed() -> None:
    assert code_digest(("memlib.objectives",)) != code_digest(("memlib.objectives.language",))
    with pytest.raises((ValueError, ModuleNotFoundError)):
        Declared("x", 1, ("memlib.gone",)).code  # noqa: B018


def test_no_two_stages_have_the_same_title() -> None:
    titles = {kind: kind.title for audit in AUDITS.values() for kind in stages_of(audit)}
    assert len(set(titles.values())) == len(titles)


if __name__ == "__main__":
    PINS.write_text(json.dumps(pins(), indent=1) + "\n")
