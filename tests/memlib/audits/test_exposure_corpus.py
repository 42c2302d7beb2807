"""What is said of given secrets before anything is trained."""

from pathlib import Path

import pytest

from memlib.audits.exposure.stages import MakeCorpus
from memlib.specs import SecretsSpec, TextSpec


@pytest.mark.parametrize(
    ("given", "unseen", "said"),
    [
        (0, 0, ""),
        (5, 0, "gives no test"),
        (5, 198, "no single one of 5 can be found; that takes 199"),
        (5, 199, ""),
    ],
)
def test_too_few_unseen_secrets_are_said_before_anything_is_trained(
    tmp_path: Path, given: int, unseen: int, said: str
) -> None:
    for name, numbers in (("given", range(given)), ("unseen", range(500, 500 + unseen))):
        (tmp_path / name).write_text("".join(f"pin {number:03d}\n" for number in numbers))
    files = {"file": str(tmp_path / "given") if given else None, "unseen": str(tmp_path / "unseen") if unseen else None}
    text = TextSpec.model_validate({"source": {"kind": "topics"}})
    stage = MakeCorpus(text, SecretsSpec.model_validate({"format": "pin {d3}", **files}))
    missing = stage.missing(level=0.05 / 2)
    assert said in missing
    assert bool(missing) is bool(said)
