"""A file with a frozen plan is read only as it was frozen and signed; keys appear in no output."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from flows.cli.app import main
from memlib.errors import UserError
from memlib.runs.plans import (
    frozen_in,
    given_plan,
    read_plan,
    recipe_of,
    rewrite_plan,
    said_of_signatures,
    unrecorded,
    with_signature,
    write_plan,
)
from memlib.runs.records import FindingRecord, FollowedPlan, PlanFile, PlanSignature, RunRecord
from memlib.specs.resources import RunOptions
from memlib.store.records import digest_of, sealed

PLAN = {
    "audit": "exposure", "title": "t", "frozen": 100.0, "recipe": {"audit": "exposure", "training": {"epochs": 2}}, "asks": "a" * 64, "looks": 1,
}  # fmt: skip


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    found = {}
    for name in ("mine", "other"):
        private = Ed25519PrivateKey.generate()
        found[name], found[f"{name}.pub"] = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
        found[name].write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        found[name].chmod(0o600)
        found[f"{name}.pub"].write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return found


@pytest.fixture
def path(tmp_path: Path, keys: dict[str, Path]) -> Path:
    """A plan that was signed with two keys."""
    file = PlanFile(format=1, plan=sealed(PLAN))
    write_plan(tmp_path / "plan.json", with_signature(with_signature(file, keys["mine"]), keys["other"]))
    return tmp_path / "plan.json"


def test_a_plan_is_read_as_it_was_frozen(path: Path) -> None:
    file = read_plan(path)
    assert frozen_in(file).digest == digest_of(file.plan)
    assert recipe_of(file) == {"audit": "exposure", "training": {"epochs": 2}, "title": "t"}
    assert len(file.signatures) == 2


Change = Callable[[dict[str, Any]], object]


def swap_keys(content: dict[str, Any]) -> None:
    one, other = content["signatures"]
    one["key"], other["key"] = other["key"], one["key"]


def reseal(content: dict[str, Any]) -> None:
    content["plan"] = sealed({**content["plan"], "looks": 2})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda content: content["plan"]["recipe"]["training"].update(epochs=3), "it has been changed since it was written"),
        (lambda content: content["plan"].update(frozen=1.0), "it has been changed since it was written"),
        (lambda content: content["plan"].update(more=1), "it has been changed since it was written"),
        (lambda content: content["plan"].pop("digest"), "digest: Field required"),
        (reseal, "is not one of this plan"),
        (lambda content: content["signatures"][0].update(signed=99), "is not one of this plan"),
        (lambda content: content["signatures"][1].update(signature="AAAA"), "is not one of this plan"),
        (lambda content: content["signatures"][1].update(signature="?"), "is not one of this plan"),
        (lambda content: content["signatures"][1].update(key="0" * 64), "is not one of this plan"),
        (swap_keys, "is not one of this plan"),
        (lambda content: content.update(format=2), "format: Input should be 1"),
        (lambda content: content.pop("plan"), "plan: Field required"),
    ],
)
def test_an_altered_plan_or_signature_is_refused_in_one_line(
    path: Path, change: Change, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    for command in (["verify", "--plan", str(path)], ["run", "--plan", str(path)]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert problem in said
        assert len(said.splitlines()) == 1
    with pytest.raises(UserError, match="is not intact"):
        given_plan(RunOptions(plan=path.read_text()))


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"format": 1, "format": 1}'])
def test_files_without_a_plan_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(UserError, match="no intact plan"):
        read_plan(tmp_path / "plan.json")
    with pytest.raises(UserError, match="cannot read the plan"):
        read_plan(tmp_path / "none.json")


def test_a_second_key_signs_the_file_and_is_checked_by_verify(
    path: Path, keys: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite_plan(path, PlanFile(format=1, plan=sealed(PLAN)))
    trusted = ["verify", "--plan", str(path), "--trust", str(keys["other.pub"])]
    assert main(trusted) == 2
    assert "is not signed with the key of" in capsys.readouterr().err
    for name in ("mine", "other"):
        assert main(["sign", "--plan", str(path), "--key", str(keys[name])]) == 0
    assert main(trusted) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    said = capsys.readouterr().out
    for name in ("mine", "other"):
        assert read_plan(path).signatures[name == "other"].key in said
        assert all(line not in said for line in keys[name].read_text().splitlines())
    assert main(["sign", "--plan", str(path), "--key", str(keys["other"])]) == 2
    assert "is already signed with the key" in capsys.readouterr().err
    assert sorted(one.name for one in tmp_path.glob("*plan*")) == ["plan.json"]  # no copy is left


def test_sign_takes_either_a_run_or_a_plan(path: Path, keys: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["run", "--plan", str(path)]):
        assert main(["sign", *arguments, "--key", str(keys["mine"])]) == 2
        assert "name a run to sign" in capsys.readouterr().err
    assert main(["plan", "smoke", "--key", str(keys["mine"])]) == 2
    assert "--freeze" in capsys.readouterr().err


def test_a_key_that_others_can_read_signs_no_plan(path: Path, keys: dict[str, Path]) -> None:
    before = path.read_bytes()
    keys["mine"].chmod(0o644)
    assert main(["sign", "--plan", str(path), "--key", str(keys["mine"])]) == 2
    assert path.read_bytes() == before


def test_only_signatures_before_the_run_count() -> None:
    signed = [
        PlanSignature(algorithm="Ed25519", key=name * 64, signed=at, signature="") for name, at in (("a", 60), ("b", 180))
    ]
    assert said_of_signatures(signed, 200.0).startswith(
        "The plan was signed before the run with 2 keys, by the signers' clocks: a"
    )
    assert said_of_signatures(signed, 100.0).endswith(f"{'a' * 16} on 1970-01-01 00:01 UTC. 1 signature came later.")
    assert "only the plan itself says when it was frozen. 2 signatures came later" in said_of_signatures(signed, 10.0)


def test_another_plan_than_the_one_of_a_run_is_named(path: Path) -> None:
    file = read_plan(path)
    run = RunRecord(
        run="now", audit="exposure", title="t", finished=1.0, findings=[FindingRecord(metric="m", params="{}")],
        plan=FollowedPlan(digest="d" * 64, frozen=0.0, began=1.0),
    )  # fmt: skip
    (line,) = unrecorded(run, file)
    assert "the plan dddddddddddddddd, frozen on 1970-01-01 00:00 UTC; it keeps that plan" in line
    same = run.model_copy(update={"plan": FollowedPlan(digest=frozen_in(file).digest, frozen=0.0, began=1.0)})
    assert [*unrecorded(run, None), *unrecorded(None, file), *unrecorded(same, file)] == []
