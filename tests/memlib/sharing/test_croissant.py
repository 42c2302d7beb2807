"""Croissant: number of examples, digest and columns of a run's data, without examples, names of classes and locations."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness import INFLUENCE

import memlib
from memlib.errors import UserError
from memlib.runs.run import Run
from memlib.sharing.croissant import describe

from .conftest import publish


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("wards")
    rows = [f"{20 + n},{'North' if n % 3 else 'Quaintville'},{'wellish' if n % 2 else 'unwell'}" for n in range(60)]
    (folder / "patients.csv").write_text("\n".join(["age,town,health", *rows]))
    source = {"kind": "table", "path": str(folder / "patients.csv"), "label_column": "health"}
    return memlib.run(INFLUENCE | {"data": {"source": source}}, store=str(folder / "store"), quiet=True)


def test_a_table_is_described_by_size_digest_and_columns(table: Run) -> None:
    found = describe(table)
    assert found["@type"] == "sc:Dataset"
    assert found["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert found["identifier"] == f"sha256:{table.record.ledger.data}"
    assert found["license"] == {"@type": "sc:CreativeWork", "name": "unknown"}
    (records,), (files,) = found["recordSet"], found["distribution"]
    assert "60 examples of 2 classes. numeric columns: age. categorical columns: town (2)." in found["description"]
    assert [field["name"] for field in records["field"]] == ["health"]
    assert {field["source"]["fileSet"]["@id"] for field in records["field"]} == {files["@id"]}


def test_a_description_has_no_example_class_or_location(table: Run) -> None:
    text = json.dumps(describe(table))
    for private in ("Quaintville", "wellish", "unwell", "patients", table.store.root):
        assert private not in text


def test_identifiers_are_unique_and_terms_are_in_the_context(table: Run) -> None:
    found = describe(table)
    ids: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "@type" in value and "@id" in value:
                ids.append(value["@id"])
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk({name: value for name, value in found.items() if name != "@context"})
    assert len(ids) == len(set(ids)) == 3
    assert {"recordSet", "field", "fileSet", "extract", "column", "source", "dataType", "conformsTo"} <= found[
        "@context"
    ].keys()


def test_a_run_without_data_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="records no data of its own"):
        describe(run)
    with pytest.raises(UserError, match="records no data of its own"):
        describe(publish(run.store, "b" * 12, ledger={}))
