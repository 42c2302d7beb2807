"""Follow each shipped recipe through all its stages without the heavy work, and note every content key.

Stages that decide who trains on what are computed (decode, splits, canaries, corpus); models and observations of them are
ghosts: files with only the contents from which later stages derive their keys. So no key depends on the machine.
"""

import contextlib
import hashlib
import json
import re
import shutil
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.numpy import save_file

import memlib.models.external.language  # noqa: F401  _ghosts replaces its function
from memlib.audits import AUDITS, audit_of
from memlib.audits.arrangement import body_of, resolved
from memlib.audits.base import Audit
from memlib.audits.cells import CellsSpec
from memlib.audits.exposure.observing import COSTS, COUNTS
from memlib.audits.last_stages import PageStage
from memlib.data.canaries.secret_key import VARIABLE
from memlib.data.datasets import open_source
from memlib.data.images.shards import INDEX_FILE
from memlib.data.images.stored import IMAGES
from memlib.data.splits import SPLITS_FILE
from memlib.data.text.streams import Documents, Text
from memlib.identity import canonical_json
from memlib.pipeline.stage import AnyArtifact, AnyStage, Artifact, CellRequest, Out, Stage
from memlib.recipes.cells import cells_of
from memlib.recipes.files import load_recipe, validate
from memlib.specs import Resources, Spec
from memlib.specs.question import run_name, without_whereabouts
from memlib.store import Attempt, Ref, Store
from memlib.tables import INDEX, SUMMARY, TRAINING, write_table
from memlib.training.files import step_file, weights_file
from memlib.training.fit import HISTORY, Train
from memlib.training.pretrained import Pretrained

Keys = dict[str, list[str]]
COMPUTED = {
    "split",
    "hold_out",
    "sets",
    "mixes",
    "canaries",
    "captions",
    "split_pairs",
    "secret/corpus",
    "secret/halves",
    "self_influence",
}
EMBEDDED = ("scenes", "captioned_scenes", "digits", "breast_cancer", "two_moons")
PER_CLASS = {
    "forgetting_table_1": 1800,
    "forgetting_table_2": 1300,
    "forgetting_xray": 900,
    "deja_vu_imagenet": 1200,
    "deja_vu_imagenet_reconstruction": 1200,
    "chexpert": 450,
    "deja_vu_own_model": 60,
}  # examples per class, where 600 do not suit the recipe
SMALLER = {"captions_coco": ("split.train_per_class=40", "split.public_per_class=200", "split.extra_per_class=4")}
"""Settings of recipes whose data are too large for stand-ins."""
TEXT = "the quick brown fox jumps over the lazy dog and looks back at nobody because there is nothing to be seen"


def keys_of(recipe: str, folder: Path, monkeypatch: pytest.MonkeyPatch, settings: Sequence[str] = ()) -> Keys:
    """Return the keys of every stage of a shipped recipe, sorted, by stage; and the names of the runs.

    Args:
        recipe: its name.
        folder: an empty folder, for data and store.
        monkeypatch: undoes the changes of environment and working folder.
        settings: as after --set.
    """
    content, _ = load_recipe(recipe, [*SMALLER.get(recipe, ()), *settings])
    audit = AUDITS[audit_of(str(content["audit"]))]
    spec = validate(audit.schema(content), resolved(audit, content))
    cells = cells_of(spec).values() if isinstance(spec, CellsSpec) else [CellRequest(audit.name, spec, {})]
    _write_files(folder, content.get("canaries", {}).get("format", ""))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv(VARIABLE, "secret")
    by_stage: Keys = {}
    store = Store(str(folder / "store"))
    store.begin()
    for cell in cells:
        for stage, keys in _follow(AUDITS[cell.audit], cell.recipe, store, PER_CLASS.get(recipe, 600)).items():
            by_stage.setdefault(stage, []).extend(keys)
    return {stage: sorted(set(keys)) for stage, keys in sorted(by_stage.items())}


def _follow(audit: Audit, recipe: Spec, store: Store, per_class: int) -> Keys:
    runner = GhostRunner(store, per_class)
    body = body_of(audit)  # loads the modules in which _ghosts replaces functions
    with _ghosts():
        body(runner, recipe)
    by_stage: Keys = {"run": runner.runs}
    for ref in runner.refs:
        by_stage.setdefault(ref.stage, []).append(ref.key)
    return by_stage


class GhostRunner:
    """Runner that needs no Prefect, Ray, models or data files, and notes its artifacts."""

    def __init__(self, store: Store, per_class: int) -> None:
        self.store, self.resources, self._per_class = store, Resources(), per_class
        self.runs: list[str] = []
        self.refs: set[Ref] = set()

    def run(self, stage: Stage[Out]) -> Artifact[Out]:
        return self._run(stage)

    def evict(self, artifacts: Sequence[AnyArtifact]) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        return [self._run(stage) for stage in stages]

    def _run(self, stage: Stage[Out]) -> Artifact[Out]:
        ref = stage.identity.ref
        self.refs.add(ref)
        if isinstance(stage, PageStage):
            self.runs.append(stage.run)
        if self.store.artifacts.lookup(ref.stage, ref.key) is None:
            with self.store.artifacts.write(ref, **stage.record({})) as attempt:
                self._fill(stage, attempt)
        return Artifact(self.store, ref, type(stage))

    def _fill(self, stage: AnyStage, attempt: Attempt) -> None:
        name = stage.declared.name
        if isinstance(stage, Train):
            _train(stage, attempt)
        elif name == "decode" and stage.spec["source"]["kind"] not in EMBEDDED:
            _decode(stage.spec, self._per_class, attempt)
        elif name in (*COMPUTED, "decode"):
            stage.write(attempt, torch.device("cpu"))
        else:
            _observe(name, stage, attempt)

    def publish(self, recipe: Any, scores: Any, report: Any, artifacts: Any) -> dict[str, Any]:
        assert self.runs[-1] == run_name(recipe.model_dump(mode="json"), scores.key)
        return {"run": self.runs[-1]}


@contextlib.contextmanager
def _ghosts() -> Iterator[None]:
    """Replace sources of data, texts, and external models."""
    replaced = {
        "open_source": _open, "open_text": lambda source: Text.of(_text()), "load_outside": _load_outside,
        "open_documents": lambda source: Documents(lambda: iter(_text().splitlines())),
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name in (
                "memlib.data.stages",
                "memlib.data.images.caption_stages",
                "memlib.audits.exposure.stages",
                "memlib.models.external.language",
            ):
                for function in replaced.keys() & vars(module).keys():
                    stack.enter_context(mock.patch.object(module, function, replaced[function]))
        stack.enter_context(mock.patch.object(Pretrained, "tokenizer", GhostTokenizer()))
        stack.enter_context(mock.patch.object(Pretrained, "check_precision", return_value=None))
        yield


class GhostTokenizer:
    """A tokenizer of single characters, and one mark for start and end."""

    start = end = 95
    pieces = (*(chr(code) for code in range(32, 127)), None)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[ord(character) - 32 for character in text] for text in texts]


def _nothing(attempt: Attempt) -> None:
    attempt.path("ghost").write_text("nothing was computed")
    write_table(SUMMARY.arrow.empty_table(), SUMMARY, attempt.path("summary.parquet"))


def _train(job: Train, attempt: Attempt) -> None:
    """Write a loss that falls by a tenth per epoch, and checkpoints without weights."""
    training = job.training
    attempt.facts["steps_per_epoch"] = 11
    attempt.facts["training_seconds"] = 1.0
    attempt.facts["privacy"] = None
    rows = [
        {"epoch": epoch, "term": "loss", "value": 0.9**epoch, "learning_rate": training.optimizer.learning_rate}
        for epoch in range(1, training.epochs + 1)
    ]
    write_table(pa.Table.from_pylist(rows, schema=TRAINING.arrow), TRAINING, attempt.path(HISTORY))
    names = [weights_file(int(epoch)) for epoch in training.kept_epochs]
    for name in (*names, *(step_file(step) for step in training.checkpoint_steps)):
        save_file({"weight": np.zeros(1, np.float32)}, attempt.path(name))


def _observe(stage: str, job: Any, attempt: Attempt) -> None:
    _nothing(attempt)
    if stage == "secret/sanitize":
        shutil.copyfile(job.corpus.path(SPLITS_FILE), attempt.path(SPLITS_FILE))
    if stage == "gradient_norms":
        np.save(attempt.path("norms.npy"), _drawn(job.spec, int(job.units)))
    if stage == "perplexities":
        canaries = (_drawn(job.spec, len(job.canaries)) * 2**20).astype(np.int64)
        references = np.sort((_drawn(["references", job.seed], job.references) * 2**20).astype(np.int64))
        np.savez(attempt.path(COSTS), canaries=canaries, references=references, validation_loss=np.array(1.0))
    if stage == "ranks":
        attempt.facts["ended"] = bool(_drawn(job.spec, 1)[0] < 0.8)  # so that some laws are fitted in place of ranks
        attempt.facts["evaluations"] = 1
        np.save(attempt.path(COUNTS), np.ones(len(job.canaries), np.int64))


def _drawn(what: Any, count: int) -> Any:
    """Draw `count` numbers in [0, 1) from a seed that is a digest of what they stand for."""
    seed = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).digest()
    return np.random.default_rng(list(seed)).random(count)


# -- data ---------------------------------------------------------------------------------------------


class GhostSource:
    """A stand-in for files that only has a digest of their description."""

    def __init__(self, spec: Any) -> None:
        self._spec = spec

    def __len__(self) -> int:
        return 1  # keys are the same, whether or not there are blocks

    def content_digest(self) -> str:
        described = without_whereabouts({"source": self._spec.model_dump(mode="json")})
        return hashlib.sha256(canonical_json(described).encode()).hexdigest()


def _open(spec: Any, intensities: Any = None, labels: Any = None) -> Any:
    return open_source(spec) if spec.kind in EMBEDDED else GhostSource(spec)


def _decode(spec: Mapping[str, Any], per_class: int, attempt: Attempt) -> None:
    """Write images of noise, so that no two are alike, each with a box in the middle if the source has boxes."""
    source, size = spec["source"], spec["image_size"]
    parts = (
        {f"{name}/": part["source"] for name, part in source["parts"].items()} if source["kind"] == "joined" else {"": source}
    )
    rows = []
    for part, described in parts.items():
        classes = _classes(described)
        for number in range(per_class * len(classes)):
            person = f"{number // 3:05d}/" if described.get("person_column") else ""
            label, name = number % len(classes), f"{part}{person}{number:06d}"
            boxes = [size // 3, size // 3, size // 2, size // 2] if described.get("boxes", "none") != "none" else []
            rows.append(
                {
                    "example_id": name, "label": label, "class_name": classes[label], "boxes": boxes,
                    "content": [0, 0, size, size], "original_width": size, "original_height": size,
                    "digest": hashlib.sha256(name.encode()).hexdigest(), "unreadable": None,
                }
            )  # fmt: skip
    rows = [{**row, "row": place} for place, row in enumerate(sorted(rows, key=lambda row: row["example_id"]))]
    shape = (len(rows), size, size, spec["channels"])
    np.save(attempt.path(IMAGES), np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8))
    write_table(pa.Table.from_pylist(rows, schema=INDEX.arrow), INDEX, attempt.path(INDEX_FILE))


def _classes(source: Mapping[str, Any]) -> list[str]:
    if source["kind"] == "csv":
        return list(source["classes"])
    if source.get("class_names"):
        return list(source["class_names"])
    few = source.get("attribute") is not None or (source["kind"] == "image_folder" and not source["num_classes"])
    return [f"class {number}" for number in range(2 if few else source.get("num_classes") or 10)]


def _text() -> str:
    """Draw a hundred thousand words, and put the secrets of secrets.txt among them."""
    words = TEXT.split()
    drawn = np.random.default_rng(0).integers(len(words), size=(12_000, 8))
    lines = [" ".join(words[word] for word in line) for line in drawn.tolist()]
    secrets = Path("secrets.txt").read_text().splitlines()
    return "\n".join([*lines[:6000], *secrets, *lines[6000:]])


def _load_outside(spec: Any) -> Any:
    """Return a stand-in for an external model whose vocabulary is the printable ASCII characters."""
    return types.SimpleNamespace(vocabulary=[chr(code) for code in range(32, 127)])


def _write_files(folder: Path, form: str) -> None:
    """Write the files that recipes name beside their data: secrets, and external models."""

    def fill(number: int) -> str:
        return re.sub(r"{d(\d)}", lambda hole: f"{7 * number + 1:0{hole[1]}d}"[-int(hole[1]) :], form)

    (folder / "secrets.txt").write_text("".join(f"{fill(n)}\n" for n in range(1, 4)))
    sets = "".join(f"{number:06d},{'ABX'[number // 2 % 3]}\n" for number in range(120))
    (folder / "sets.csv").write_text(f"example_id,set\n{sets}")
    (folder / "members.csv").write_text("example_id,member\n" + "".join(f"{number:06d},yes\n" for number in range(120)))
    (folder / "outputs.csv").write_text("example_id,p0\n")
    (folder / "unseen.txt").write_text("".join(f"{fill(n)}\n" for n in range(5, 14)))
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").write_text("")
    (folder / "my_package" / "my_module.py").write_text("def build():\n    raise NotImplementedError\n")
    coco, images = folder / "coco" / "annotations", [{"id": n, "file_name": f"{n:06d}"} for n in range(1200)]
    coco.mkdir(parents=True)
    texts = [{"id": n, "image_id": n, "caption": f"a man and {TEXT.split()[n % 20]} {n}"} for n in range(1200)]
    (coco / "captions_train2017.json").write_text(json.dumps({"images": images, "annotations": texts}))
    objects = [{"image_id": n, "category_id": n % 3} for n in range(1200)]
    kinds = [{"id": n, "name": ("person", "dog", "fox")[n]} for n in range(3)]
    (coco / "instances_train2017.json").write_text(json.dumps({"categories": kinds, "annotations": objects}))
    (folder / "secret").write_bytes(bytes(range(32)))
    (folder / "secret").chmod(0o600)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "my-model").mkdir()
    (folder / "my-model" / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text("no weights")
