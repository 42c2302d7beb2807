"""The commands for first steps."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from flows.cli.app import main
from flows.cli.start import QUESTION, Have, _in_yaml, _starter
from memlib.audits import AUDITS
from memlib.recipes.request import AuditRequest
from memlib.store import Store
from memlib.store.records import sealed


@pytest.mark.parametrize("name", list(AUDITS))
def test_a_starter_is_a_valid_recipe_that_names_the_next_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", name]) == 0
    path = f"{AUDITS[name].field}.yaml"
    assert f"memlib run {path}" in capsys.readouterr().out
    assert f"#   memlib validate {path}" in Path(path).read_text()
    assert main(["validate", path]) == 0
    assert f"{path} is a valid recipe for the {name} audit" in capsys.readouterr().out
    assert list(AUDITS[name].limits(AuditRequest.read(path).recipe)) == []
    assert main(["init", name]) == 2
    assert "already exists; choose another file" in capsys.readouterr().err
    assert main(["init", name, "none/there.yaml"]) == 2


@pytest.mark.parametrize("have", get_args(Have))
def test_every_starter_recipe_validates_with_its_examples_and_with_answers(
    have: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--for", have]) == 0
    path = f"{have.replace('-', '_')}.yaml"
    assert f"wrote {path}; next: memlib validate {path}" in capsys.readouterr().out
    text = Path(path).read_text()
    assert text.startswith("# You have ")
    assert "<<" not in text
    assert main(["validate", path]) == 0
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return (
            ""
            if "none, voc" in question or "losses" in question or "Kind of" in question
            else ANSWERS.get(question.split()[0], "no: {1}")
        )

    monkeypatch.setattr("flows.cli.start.can_ask", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    assert main(["init", "--for", have, "mine.yaml"]) == 0
    assert len(asked) == len({question for question, _ in QUESTION.findall(_starter(f"for_{have}.yaml"))})
    assert "CROP" not in text
    assert main(["validate", "mine.yaml"]) == 0
    values = set(map(str, _leaves(yaml.safe_load(Path("mine.yaml").read_text()))))
    assert not asked or "no: {1}" in values


ANSWERS = {"Architecture,": "resnet18", "Side": "32", "Did": "true", "Function": "a.b:c", "The": "my pin is {d4}",
           "Fitted": "m.joblib", "How": "fixed", "Address": "https://host/v1"}  # fmt: skip


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


def test_init_without_arguments_asks_which_data_or_model_the_user_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 2
    assert "memlib look FILE_OR_FOLDER ..., or memlib init --for membership|" in capsys.readouterr().err
    monkeypatch.setattr("flows.cli.start.can_ask", lambda: True)
    answers = iter(["", "11"])
    monkeypatch.setattr("builtins.input", lambda question: next(answers, ""))
    assert main(["init"]) == 0
    printed = capsys.readouterr().out
    assert "10  table: You have a table (CSV or Parquet) with a label." in printed
    assert "wrote nothing.yaml" in printed
    answers = iter(["", "13"])
    assert main(["init"]) == 2
    assert main(["init", "nosuch"]) == 2
    assert "there is no audit 'nosuch'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["photos/a b", "007", "no", "a: b", '"x', "{d4} é", "yes", "1e3", "", "-", "a #b"])
def test_answers_are_quoted_so_that_yaml_reads_them_as_text(text: str) -> None:
    assert yaml.safe_load(f"key: {_in_yaml(text)}") == {"key": text}
    assert yaml.safe_load(f"{{key: {_in_yaml(text)}, other: 1}}")["key"] == text


def test_validate_prints_limits_and_errors_of_a_recipe_without_reading_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: two_moons\nnets: {seeds: 3}\n")
    assert main(["validate", str(path)]) == 0
    assert "raise nets.seeds" in capsys.readouterr().out.splitlines()[0]  # a limit comes first
    assert main(["validate", str(path), "--set", "nets.seeds=0"]) == 2
    assert "(in --set nets.seeds)" in capsys.readouterr().err
    assert main(["validate", "smoke", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"]["training"]["epochs"] == 90
    path.write_text("title: nothing\n")
    assert main(["validate", str(path)]) == 2
    assert "names no audit" in capsys.readouterr().err


def test_sources_lists_every_kind_with_its_required_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sources"]) == 0
    said = capsys.readouterr().out
    assert "kind: csv (needs path, root, label_column, classes):" in said
    assert main(["sources", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["kind"] for rows in found.values() for row in rows} >= {"joined", "import", "pairs", "topics"}


def test_doctor_names_an_unusable_store_and_prefect_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert main(["doctor", "--store", str(tmp_path / "store")]) == 0
    assert "does not exist yet" in capsys.readouterr().out
    assert not (tmp_path / "store").exists()
    Store(str(tmp_path / "store")).begin()
    assert main(["doctor", "--store", str(tmp_path / "store")]) == 0
    assert "is writable (private)" in capsys.readouterr().out
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert main(["doctor", "--store", str(tmp_path), "--json"]) == 2
    problems = {row["what"]: row["problem"] for row in json.loads(capsys.readouterr().out) if row["problem"]}
    assert set(problems) == {"Prefect", "store"}
    assert "not a memlib store" in problems["store"]


def test_without_a_run_the_newest_one_is_shown_and_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path / "store"))
    store.begin()
    for command in ("show", "open"):
        assert main([command, "--store", store.uri]) == 2
        assert capsys.readouterr().err == f"memlib: no finished runs in {store.uri}\n"
    for run, finished in (("abc", 1.0), ("fed", 3.0), ("bcd", 2.0)):
        manifest = {
            "run": run,
            "audit": "deja_vu",
            "title": "t",
            "finished": finished,
            "findings": [{"metric": "share_excess", "params": "{}"}],
            "report": "report.html",
        }
        store.publish(f"runs/{run}/report.html", b"<p>a page</p>", secret=True)
        store.publish(f"runs/{run}/manifest.json", json.dumps(sealed(manifest)).encode())
    monkeypatch.setattr("webbrowser.open", lambda uri: True)
    for command in ("show", "open"):
        assert main([command, "--store", store.uri]) == 0
        assert "runs/fed/report.html" in capsys.readouterr().out


def test_pages_are_opened_and_shown_at_their_place_in_a_moved_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(str(tmp_path / "before"))
    run = {
        "run": "abc", "audit": "deja_vu", "title": "t", "finished": 1.0, "findings": [{"metric": "share_excess", "params": "{}"}],
        "report": "/before/runs/abc/report.html", "results": {"summary": "/before/results/part-0.parquet"},
    }  # fmt: skip
    store.publish("runs/abc/manifest.json", json.dumps(sealed(run)).encode())
    store.publish("runs/abc/report.html", b"<p>a page</p>", secret=True)
    there = tmp_path / "after"
    Path(store.uri).rename(there)
    assert main(["show", "abc", "--store", str(there)]) == 0
    said = capsys.readouterr().out
    assert f"results {there}/results/table=summary/audit=deja_vu/run=abc/part-0.parquet" in said
    assert f"report  {there}/runs/abc/report.html" in said
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda uri: opened.append(uri) or len(opened) > 1)
    assert main(["open", "a", "--store", str(there)]) == 0
    assert "no browser found; open this file yourself" in capsys.readouterr().out
    assert main(["open", "a", "--store", str(there)]) == 0
    assert opened == [(there / "runs/abc/report.html").as_uri()] * 2
    (there / "runs/abc/report.html").unlink()
    assert main(["open", "a", "--store", str(there)]) == 2
    assert "has no report" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run deja-vu", "deja-vu is an audit and needs a recipe"),
        ("plan nosuch --recipe smoke", "there is no audit 'nosuch'; choose from deja-vu"),
        ("run deja-vu --recipe smoke --sett x=1", "Unknown option: --sett. Did you mean --set?"),
        ("run deja-vu --recipe smoke --epochs 3", "--epochs is a setting of the recipe: write --set training.epochs=VALUE"),
        ("plan deja-vu --recipe smoke --batch-size=4", "write --set training.batch_size=VALUE"),
        ("runs --epochs 3", "Unknown option: --epochs"),
        ("run smke", "did you mean smoke?"),
        ("runs --store http://127.0.0.1:9/x", "cannot be written to, so it cannot be a store"),
        ("runs --store=", "the address of the store is empty"),
        ("validate smokey", "did you mean smoke?"),
        ("validate nothing-like-it", "memlib recipes lists"),
        ("plan unique-feature --recipe two_moons --set nets.seeds=1000000000", "less than or equal to 1000000"),
    ],
)
def test_mistakes_on_the_command_line_print_exactly_one_line(
    command: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("memlib: ")
    assert said in line


def test_a_closed_output_pipe_ends_the_command_silently_with_status_141() -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "flows.cli.entry", "recipes", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert run.stdout is not None
    run.stdout.close()  # as head does
    assert run.stderr is not None
    assert run.stderr.read() == ""
    assert run.wait(timeout=300) == 141


def test_a_dossier_of_given_data_lists_its_audits_and_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "dossier", "--data", "{kind: table, path: 'a: b.csv', label_column: outcome}"]) == 0
    text = Path("dossier.yaml").read_text()
    assert "#   memlib plan dossier.yaml" in text
    assert "  deja-vu: for images; the data are tables\n" in text
    assert Path("dossier.yaml").stat().st_mode & 0o777 == 0o600
    assert main(["validate", "dossier.yaml"]) == 0
    recipe = AuditRequest.read("dossier.yaml").recipe
    assert recipe.every["data"]["source"]["path"] == "a: b.csv"  # type: ignore[attr-defined]
    capsys.readouterr()
    model = ["--model", "{model: 'nets:build', weights: m.pt}", "--members", "members.csv"]
    assert main(["init", "dossier", "mine.yaml", "--data", "digits", "--persons", "^(p[0-9]+)", *model]) == 0
    assert main(["validate", "mine.yaml"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["membership", "--data", "digits"], "--data is for a dossier"),
        (["--for", "table", "--data", "digits"], "--data is for a dossier"),
        (["dossier", "--members", "a.csv"], "--members needs --data"),
        (["dossier", "--data", "photos/cats"], "no YAML mapping"),
        (["dossier", "--data", "cats"], "no source of kind 'cats'"),
        (["dossier", "--data", "{kind: !remove }"], "cannot remove kind"),
    ],
)
def test_a_dossier_of_no_data_is_refused(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
