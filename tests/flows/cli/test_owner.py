"""Requests to a model's owner do not reveal which examples belong to D_Q; the answers are joined by the requested names."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flows.cli.app import main
from memlib.data.canaries.secret_key import read_secret
from memlib.observe.encoders import pseudonym_of
from memlib.observe.supplied_outputs import read_outputs
from memlib.specs import OutputsSpec


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    (tmp_path / "secret").write_bytes(bytes(range(32)))
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("MEMLIB_SECRET_FILE", str(tmp_path / "secret"))
    return read_secret()


def listed(folder: Path) -> list[str]:
    with (folder / "ids.csv").open() as file:
        return [row["example_id"] for row in csv.DictReader(file)]


def test_ids_lists_the_whole_pool_under_pseudonyms_that_reveal_no_role(tmp_path: Path, secret: bytes) -> None:
    def ask(folder: str) -> int:
        return main(
            ["ids", "--recipe", "forgetting_smoke", "--output", str(tmp_path / folder), "--store", str(tmp_path / "s")]
        )

    assert ask("asked") == 0
    names = listed(tmp_path / "asked")
    splits = pq.ParquetFile(next((tmp_path / "s").glob("artifacts/sets/*/*/splits.parquet"))).read().to_pylist()
    pool = {row["example_id"]: row["role"] for row in splits if row["role"] in ("query", "known", "withheld")}
    assert len(set(pool.values())) == 3
    assert names == sorted(pseudonym_of(name, secret) for name in pool)
    assert not any(name in shown for name in pool for shown in names)
    real = {pseudonym_of(name, secret): name for name in pool}
    ranks = {role: [n for n, name in enumerate(names) if pool[real[name]] == role] for role in set(pool.values())}
    for places in ranks.values():  # spread over the list as at random
        assert abs(np.mean(places) / len(names) - 0.5) < 4 * np.sqrt(1 / 12 / len(places))
    rows = {row["example_id"]: row["row"] for row in splits}
    stored = np.load(next((tmp_path / "s").glob("artifacts/decode/*/*/images.npy")))
    for name in names[:20]:
        picture = np.asarray(Image.open(tmp_path / "asked" / "images" / f"{name}.png"))
        assert np.array_equal(picture.reshape(stored[0].shape), stored[rows[real[name]]])
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "asked").rglob("*") if path.is_file()} == {0o600}
    assert ask("again") == 0
    assert listed(tmp_path / "again") == names


def test_ids_names_the_setting_for_outputs_of_a_membership_audit(
    tmp_path: Path, secret: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    store, asked = str(tmp_path / "s"), tmp_path / "asked"
    assert main(["ids", "--recipe", "membership_breast_cancer", "--output", str(asked), "--store", store]) == 0
    assert "Give the file's path as target.outputs.path" in capsys.readouterr().out
    assert len(listed(asked)) == 569


def test_ids_of_a_table_include_its_columns_except_label_person_and_id(tmp_path: Path, secret: bytes) -> None:
    ages = ["?", "1.5", *(f"{20 + number}" for number in range(38))]  # as they are in the file, whatever a model sees
    rows = [f'p{number // 2},n{number},{ages[number]},"a, {number % 3}",{number % 2}' for number in range(40)]
    (tmp_path / "table.csv").write_text("\n".join(["who,name,age,town,ill", *rows]))
    recipe, asked = tmp_path / "recipe.yaml", tmp_path / "asked"
    source = f"{{kind: table, path: {tmp_path}/table.csv, label_column: ill, id_column: name, person_column: who}}"
    recipe.write_text(
        f"audit: membership\ndata: {{source: {source}}}\nsplit: {{group: {{pattern: '^(.+)/'}}}}\nmodel: {{kind: forest}}\n"
    )
    assert main(["ids", "--recipe", str(recipe), "--output", str(asked), "--store", str(tmp_path / "s")]) == 0
    with (asked / "ids.csv").open() as file:
        found = {row.pop("example_id"): row for row in csv.DictReader(file)}
    assert found == {
        pseudonym_of(f"p{number // 2}/n{number}", secret): {"age": ages[number], "town": f"a, {number % 3}"}
        for number in range(40)
    }


def test_ids_refuses_a_table_with_a_column_named_example_id(
    tmp_path: Path, secret: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "table.csv").write_text("\n".join(["example_id,ill", *(f"{n},{n % 2}" for n in range(20))]))
    source = f"{{kind: table, path: {tmp_path}/table.csv, label_column: ill}}"
    (tmp_path / "recipe.yaml").write_text(f"audit: membership\ndata: {{source: {source}}}\nmodel: {{kind: forest}}\n")
    command = ["ids", "--recipe", str(tmp_path / "recipe.yaml"), "--output", str(tmp_path / "asked")]
    assert main([*command, "--store", str(tmp_path / "s")]) == 2
    assert "has a column example_id, as ids.csv has; rename it" in capsys.readouterr().err


def test_ids_refuses_an_existing_output_folder_and_audits_without_outputs_of_owners(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there").mkdir()
    asked: list[Any] = [
        "ids",
        "--recipe",
        "forgetting_smoke",
        "--output",
        str(tmp_path / "there"),
        "--store",
        str(tmp_path / "s"),
    ]
    assert main(asked) == 2
    assert "already exists; choose another folder" in capsys.readouterr().err
    assert main(["ids", "--recipe", "smoke", "--output", str(tmp_path / "new")]) == 2
    assert (
        "for the deja-vu audit; only forgetting and membership take outputs from a model's owner" in capsys.readouterr().err
    )


def test_outputs_listed_by_pseudonym_are_joined_to_the_same_examples(tmp_path: Path, secret: bytes) -> None:
    scores = [[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]]
    members = pa.table({"example_id": ["a", "b", "c"], "label": [0, 1, 1], "class_name": ["x", "y", "y"]})
    plain = pa.table({"example_id": ["a", "b", "c"], "scores": scores})
    named = pa.table(
        {"example_id": [pseudonym_of(name, secret) for name in ("c", "a", "b")], "scores": [scores[n] for n in (2, 0, 1)]}
    )
    found = []
    for table in (plain, named):
        pq.write_table(table, tmp_path / "outputs.parquet")
        found.append(read_outputs(OutputsSpec(path=str(tmp_path / "outputs.parquet")), members, 2))
    np.testing.assert_array_equal(found[0].scores, found[1].scores)
    assert found[0].digest == found[1].digest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in ("plan", "resume", "--recipe", "__complete"))
