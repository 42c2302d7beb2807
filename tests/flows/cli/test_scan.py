"""The command that lists the secrets of a text: counts for everybody, secrets for the owner of the file alone."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli.app import main
from memlib.data.text.corpus import read_secrets
from memlib.data.text.formats import Format
from memlib.recipes.yaml import read_yaml
from memlib.specs import SecretsSpec

MAIL = "My pin is 4071. My pin is 4071, really\nMy pin is 1234; My pin is 99999\n"
ASK = ["--format", "My pin is {d4}"]


@pytest.fixture
def mail(tmp_path: Path) -> Path:
    (tmp_path / "mail.txt").write_text(MAIL)
    return tmp_path / "mail.txt"


def test_secrets_are_counted_and_listed_in_a_private_file(
    mail: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / 'it\'s "mine".txt'
    assert main(["scan", str(mail), *ASK, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert (
        f"occurrences of 'My pin is {{d4}}' in {mail}: 3; 2 different secrets, of which 1 occur once and 1 more often" in said
    )
    assert out.read_text() == "My pin is 1234\nMy pin is 4071\n"
    assert out.stat().st_mode & 0o777 == 0o600
    assert not any(secret in said for secret in ("4071", "1234"))
    line = said.splitlines()[-2].partition("the exposure audit: ")[2]
    canaries = SecretsSpec.model_validate(read_yaml(line, "here")["canaries"])
    assert len(read_secrets(canaries.file or "", Format(canaries.format, canaries.alphabets), "character")) == 2


def test_scan_accepts_alphabets_and_writes_counts_and_json(
    mail: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.txt"
    asked = ["scan", str(mail), "--format", "pin is {x4}", "--alphabet", "x=0147", "--counts", "--out", str(out), "--json"]
    assert main(asked) == 0
    numbers = {"occurrences": 2, "secrets": 1, "once": 0, "more_often": 1, "remarks": []}
    assert json.loads(capsys.readouterr().out) == {
        "text": str(mail), "format": "pin is {x4}", **numbers, "file": str(out)
    }  # fmt: skip
    assert out.read_text() == "pin is 4071\t2\n"


def test_compressed_texts_and_columns_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gzip.open(tmp_path / "mail.txt.gz", "wt") as file:
        file.write(MAIL)
    pq.write_table(pa.table({"body": ["My pin is 4071", "My pin is ", "4071", "My pin is 1"]}), tmp_path / "mail.parquet")
    (tmp_path / "mail.jsonl").write_text('{"a": {"body": "My pin is 40\\u00371"}}\n{"a": 1}\n')
    (tmp_path / "box").write_text(f"From me\nSubject: {MAIL.splitlines()[1]}\n\n{MAIL}")
    asked = (
        ["mail.txt.gz"],
        ["mail.parquet", "--column", "body"],
        ["mail.jsonl", "--column", "a.body"],
        ["box", "--kind", "mail"],
    )
    for arguments, found in zip(
        asked, (": 3; 2 different", ": 1; 1 different", ": 1; 1 different", ": 4; 2 different"), strict=True
    ):
        assert main(["scan", str(tmp_path / arguments[0]), *arguments[1:], *ASK]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert found in lines[0]
        assert "--out FILE" in lines[-1]
        assert ("records without a.body: 1" in lines) == (arguments[0] == "mail.jsonl")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "My pin is {q4}"], "unknown alphabet 'q'"),
        (["--format", "no such {d4}"], "nothing in MAIL matches the format 'no such {d4}'; characters must agree exactly"),
        ([*ASK, "--alphabet", "X"], "--alphabet 'X' is not NAME=SYMBOLS, such as x=ACGT"),
        ([*ASK, "--out", "MAIL"], "MAIL already exists; choose another file"),
        ([*ASK, "--out", "MAIL.gz"], "MAIL.gz would be read as a compressed file"),
        ([*ASK, "--out", "MAIL/none/secrets.txt"], "cannot write MAIL/none/secrets.txt (Not a directory)"),
        ([*ASK, "--column", "body"], "cannot read column 'body' of MAIL"),
        (
            [*ASK, "--kind", "text", "--column", "body"],
            "--column body is for Parquet and JSON lines, but MAIL is read as text",
        ),
    ],
)
def test_mistakes_of_scan_print_one_line_without_a_secret(
    arguments: list[str], said: str, mail: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scan", str(mail), *(argument.replace("MAIL", str(mail)) for argument in arguments)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"memlib: {said.replace('MAIL', str(mail))}") or said.replace("MAIL", str(mail)) in told
    assert len(told.splitlines()) == 1
    assert "4071" not in told
    assert mail.read_text() == MAIL


def test_scan_refuses_empty_and_missing_texts_without_writing_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    assert main(["scan", str(tmp_path / "empty.txt"), *ASK, "--out", str(tmp_path / "s.txt")]) == 2
    assert f"the text {tmp_path / 'empty.txt'} is empty" in capsys.readouterr().err
    assert main(["scan", str(tmp_path / "none.txt"), *ASK]) == 2
    assert "cannot read the text" in capsys.readouterr().err
    assert main(["scan", str(tmp_path / "none.parquet"), *ASK]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "s.txt").exists()


def test_scan_does_not_write_through_a_link(mail: Path, tmp_path: Path) -> None:
    (tmp_path / "link.txt").symlink_to(tmp_path / "elsewhere.txt")
    assert main(["scan", str(mail), *ASK, "--out", str(tmp_path / "link.txt")]) == 2
    assert not (tmp_path / "elsewhere.txt").exists()
