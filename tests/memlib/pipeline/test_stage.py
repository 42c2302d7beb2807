"""A stage's key derives from its spec and inputs; it is computed once and opened by its type, also by PlainRunner."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from memlib.errors import CorruptArtifact, MissingArtifact, RunError
from memlib.identity import content_key, file_digest
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import UNKEYED, Artifact, Identity, Known, Stage
from memlib.running.checks import check_artifacts
from memlib.running.runners import PlainRunner
from memlib.specs import DataSpec
from memlib.store import Attempt, Ref, Store
from memlib.store.records import sealed
from tests.forks import run_code

computed: list[str] = []


@dataclass(frozen=True)
class Word(Stage[str]):
    declared: ClassVar[Declared] = Declared("word", 3)
    title: ClassVar[str] = "word"

    text: str

    def write(self, attempt: Attempt, device: torch.device) -> None:
        computed.append(self.text)
        attempt.path("word.txt").write_text(self.text)
        attempt.facts["length"] = len(self.text)

    @classmethod
    def open(cls, artifact: Artifact[str]) -> str:
        return artifact.path("word.txt").read_text()


@dataclass(frozen=True)
class Sentence(Stage[str]):
    declared: ClassVar[Declared] = Declared("sentence", 1)
    title: ClassVar[str] = "sentence"

    words: tuple[Artifact[str], ...]

    @property
    def units(self) -> float:
        return float(len(self.words))

    def write(self, attempt: Attempt, device: torch.device) -> None:
        computed.append("sentence")
        attempt.warn("short")
        attempt.path("word.txt").write_text(" ".join(word.content for word in self.words))

    @classmethod
    def open(cls, artifact: Artifact[str]) -> str:
        return artifact.path("word.txt").read_text()


@dataclass(frozen=True)
class Typed(Word):
    size: tuple[int, ...] = (3, 4)
    model: DataSpec | None = None
    title_: Artifact[str] | None = None
    others: Mapping[str, Artifact[str]] = field(default_factory=dict)
    threads: int = field(default=1, metadata=UNKEYED)


@dataclass(frozen=True)
class At:
    epoch: int

    @property
    def spec(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    @property
    def inputs(self) -> dict[str, Any]:
        return {"model": "0" * 32}


@dataclass(frozen=True)
class Probing(Word):
    at: At = At(3)


def test_a_field_with_spec_and_inputs_contributes_both_to_its_stage() -> None:
    assert Probing("a").spec == {"text": "a", "epoch": 3}
    assert Probing("a").inputs == {"model": "0" * 32}


def test_unmarked_fields_of_a_stage_form_its_spec_and_inputs(tmp_path: Path) -> None:
    word = Artifact(Store(str(tmp_path)), Ref("word", "0" * 32), Word)
    assert Typed("a").spec == {"text": "a", "size": [3, 4], "model": None, "title_": None, "others": {}}
    assert Typed("a").inputs == {}
    data = DataSpec.model_validate({"source": {"kind": "digits"}})
    made = Typed("a", model=data, title_=word, others={"x": word}, threads=9)
    assert made.spec == {"text": "a", "size": [3, 4], "model": data.model_dump(mode="json")}
    assert made.inputs == {"title_": "0" * 32, "others": {"x": "0" * 32}}
    assert made.identity == replace(made, threads=1).identity
    assert json.loads(json.dumps(made.spec)) == made.spec  # as the manifest records it


@pytest.fixture
def runner(tmp_path: Path) -> PlainRunner:
    computed.clear()
    return PlainRunner(Store(str(tmp_path / "store")))


def test_a_stage_runs_once_and_its_artifact_opens_by_its_type(runner: PlainRunner) -> None:
    words = runner.run_all([Word("to"), Word("be"), Word("to")])
    sentence = runner.run(Sentence(tuple(words)))
    assert sentence.content == "to be to"
    assert runner.run(Sentence(tuple(words))) == sentence
    assert computed == ["to", "be", "sentence"]
    assert words[0] == words[2]
    assert words[0].facts["length"] == 2
    assert sentence.seen_as(Word).content == "to be to"
    assert runner.warnings == ["short"]
    with pytest.raises(MissingArtifact):
        _ = Artifact(runner.store, Ref("word", "0" * 32), Word).content


def test_stage_key_is_the_hash_of_the_spec_inputs_and_version_in_its_manifest(runner: PlainRunner) -> None:
    word = runner.run(Word("to"))
    stage = Sentence((word,))
    found = runner.run(stage)
    assert found.ref == Ref("sentence", content_key("sentence", version=1, spec={}, inputs={"words": [word.key]}))
    manifest = runner.store.artifacts.manifest(found.ref)
    assert Identity.recorded(found.ref, manifest) == stage.identity
    assert manifest.metrics.units == 1.0
    assert list(check_artifacts(runner.store, [word.ref, found.ref])) == []
    path = next(Path(runner.store.uri).glob("artifacts/sentence/*/manifest.json"))
    path.write_text(json.dumps(sealed({**json.loads(path.read_text()), "version": 2})))
    (problem,) = check_artifacts(runner.store, [found.ref])
    assert "its spec, inputs or version do not match its key" in problem.problem


def test_an_artifact_computed_from_an_earlier_input_is_not_reused(runner: PlainRunner) -> None:
    word = runner.run(Word("to"))
    runner.run(Sentence((word,)))
    runner.store.artifacts.discard(word.ref)
    with runner.store.artifacts.write(word.ref, **Word("to").record({})) as attempt:
        attempt.path("word.txt").write_text("two")
    again = PlainRunner(runner.store)
    assert again.run(Sentence((again.run(Word("to")),))).content == "two"
    key = again.computed[0].split("/")[1][:8]
    changed = (
        f"inputs of sentence {key} have changed: word was recomputed with different content; computing the artifact again"
    )
    assert again.warnings == [changed, "short"]
    assert [name.split("/")[0] for name in again.computed] == ["sentence"]


@dataclass(frozen=True)
class Copied(Stage[str]):
    """Copies a file, whose digest is in its key; `during` replaces the file while it is read."""

    declared: ClassVar[Declared] = Declared("copied", 1)
    title: ClassVar[str] = "copy a file"

    path: Path
    during: str = field(default="", metadata=UNKEYED)

    @property
    def spec(self) -> Mapping[str, Any]:
        return {}

    @property
    def inputs(self) -> Mapping[str, Any]:
        return {"file": file_digest(self.path)}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        if self.during:
            self.path.write_text(self.during)
        attempt.path("copy.txt").write_text(self.path.read_text())

    @classmethod
    def open(cls, artifact: Artifact[str]) -> str:
        return artifact.path("copy.txt").read_text()


def test_a_file_that_is_replaced_while_it_is_read_is_not_stored_under_its_former_digest(
    runner: PlainRunner, tmp_path: Path
) -> None:
    file = tmp_path / "weights"
    file.write_text("first")
    with pytest.raises(RunError, match="what copied .* reads changed while it was read; run the same command again"):
        runner.run(Copied(file, during="second"))
    assert runner.run(Copied(file)).content == "second"
    assert runner.run(Copied(file, during="second")).content == "second"


def test_a_damaged_artifact_is_not_read_and_a_runner_computes_it_again(runner: PlainRunner) -> None:
    word = runner.run(Word("to"))
    next(Path(runner.store.uri).glob("artifacts/word/*/*/word.txt")).write_text("xx")
    again = PlainRunner(Store(runner.store.uri))
    with pytest.raises(CorruptArtifact):
        _ = Artifact(again.store, word.ref, Word).content
    assert again.run(Word("to")).content == "to"
    assert [line for line in again.warnings if "computing it again" in line]


def test_a_pickled_artifact_drops_its_cached_content(runner: PlainRunner) -> None:
    word = runner.run(Word("to"))
    assert word.content == "to"
    there: Artifact[str] = pickle.loads(pickle.dumps(word))
    assert there == word
    assert "content" not in vars(there)
    assert there.content == "to"
    stage = Sentence((word,))
    assert pickle.loads(pickle.dumps(stage)).identity == stage.identity
    assert replace(stage, words=(word, word)).identity != stage.identity  # no identity is taken over


def test_inputs_are_found_at_any_depth(runner: PlainRunner) -> None:
    known, refs = Known(), [runner.run(Word(text)).ref for text in ("a", "b", "c")]
    for ref in refs:
        known.add(ref)
    inputs = {"x": refs[0].key, "y": [[refs[1].key], {"z": refs[0].key}], "n": 3, "other": "no key"}
    assert known.named_in(inputs) == refs[:2]
    assert set(known.contents_of(runner.store, inputs)) == {ref.key for ref in refs[:2]}


NOTEBOOK = """
import sys
from flows.self_influence import audit
from memlib.audits.self_influence.recipe import Recipe
from memlib.store.records import sealed
from memlib.running.runners import PlainRunner
from memlib.store import Store

recipe = Recipe.model_validate({
    "title": "moons",
    "data": {"source": {"kind": "two_moons", "num_examples": 60}},
    "split": {"train_per_class": 20},
    "model": {"architecture": "mlp", "widths": [8]},
    "training": {
        "objective": {"kind": "supervised"}, "epochs": 4, "batch_size": 5, "augment": None,
        "optimizer": {"learning_rate": 0.01, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"},
    },
    "influence": {"checkpoints": 2},
})
first = audit(PlainRunner(Store(sys.argv[1])), recipe)
again = audit(PlainRunner(Store(sys.argv[1])), recipe)
assert len(first.computed) == len(again.reused) and not again.computed, again.computed
assert again.run == first.run
assert first.verdict.sentence.startswith("The most influential of 40 training examples accounts for")
assert not {"prefect", "ray"} & set(sys.modules)

from flows.cli.app import main
sys.exit(main(["verify", "--store", sys.argv[1]]))
"""


@pytest.mark.long
def test_a_notebook_runs_a_whole_audit_without_prefect_and_ray(tmp_path: Path) -> None:
    done = run_code(NOTEBOOK, str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    assert "are unchanged since they were committed" in done.stdout
