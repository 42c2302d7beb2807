"""Everything of memlib that runs while a stage is written is among the definitions that its code covers."""

import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
import yaml

import memlib
from memlib.pipeline import definitions
from memlib.pipeline.stage import AnyStage
from memlib.running.runners import PlainRunner
from memlib.store import Ref

ROOT = str(definitions.ROOT)
SKIPPED = (f"{ROOT}/memlib/store/", f"{ROOT}/memlib/running/in_process.py")  # the runner shows progress
STARTERS = Path(ROOT) / "deployments/starters"
SMOKE = {
    "data.source.num_examples": 700, "training.epochs": 2, "training.batch_size": 20, "model.projector": [16, 16],
    "decode.k": [10], "split.train_per_class": 8, "split.public_per_class": 20,
}  # fmt: skip
RECONSTRUCTIONS = {
    "beyond": {"attributes": {"place": "source"}},
    "reconstruct": {
        "images": 20, "samples": 2, "steps": 2, "baseline": {"epochs": 1},
        "generator": {
            "model": {"channels": [8, 8], "input_size": 8, "attention_side": 0},
            "training": {"epochs": 1, "objective": {"kind": "denoising", "ema": 0.0}},
        },
        "judge": {"epochs": 1, "model": {"width": 8, "projector": []}},
    },
}  # fmt: skip
AUDITS: dict[str, tuple[Any, dict[str, Any]]] = {
    "pair": ("smoke", SMOKE | RECONSTRUCTIONS | {"decode.stability": {"views": 2}}),
    "alone": ("smoke", SMOKE | {"reference": {"kind": "visual_words", "words": 8, "folds": 2}}),
    "exposure": (STARTERS / "exposure.yaml", {"data.fraction": 0.1, "score.references": 200}),
    "unique feature": (STARTERS / "unique_feature.yaml", {"training.epochs": 1, "nets.seeds": 2}),
    "forgetting": (STARTERS / "forgetting.yaml", {"training.epochs": 2, "seeds": 2, "verdict.models": 3, "score.permutations": 999}),
    "membership": ("membership_smoke", {"training.epochs": 2, "split.train_per_class": 12, "split.held_out_per_class": 5, "shadows.count": 6, "score.redraws": 999}),
    "membership of estimators": ("membership_smoke", {"model": {"kind": "forest", "trees": 5}, "training": None, "split.train_per_class": 12, "shadows.count": 6, "score.redraws": 999, "privacy": {"epsilon": 1}}),
    "captions": ("captions_smoke", {"data.source.num_examples": 200, "split.train_per_class": 40, "split.public_per_class": 60, "split.extra_per_class": 20, "training.epochs": 1, "training.batch_size": 20, "dose": {"copies": [2], "pairs": 5}}),
    "self-influence": (STARTERS / "self_influence.yaml", {"training.epochs": 12, "data.source.num_examples": 100, "split.validation_per_class": 10}),
    "dossier": ({"audit": "dossier", "title": "joined", "cells": [
        {"recipe": "membership_smoke", "set": {"training.epochs": 2, "split.train_per_class": 12, "split.held_out_per_class": 5, "shadows.count": 6, "score.redraws": 999}},
        {"recipe": "unique_feature_smoke", "set": {"training.epochs": 1}},
    ]}, {}),
    "sweep": ({"audit": "sweep", "title": "compared", "recipe": "smoke", "set": SMOKE, "grid": {"training.epochs": [1, 2, 3]}}, {}),
}  # fmt: skip

CHEAP = ("self-influence",)
JOINING = ("dossier", "sweep")  # of which only the stages that join other runs are traced
Ran = dict[type[AnyStage], set[CodeType]]


@pytest.fixture
def ran(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """The code of memlib that ran below each stage's write, except what the store, the display of progress and imports call."""
    found: Ran = {}
    original, name = PlainRunner._compute, request.node.callspec.params["name"]
    traced_modules = f"memlib.audits.{name}" if name in JOINING else "memlib"

    def compute(runner: PlainRunner, stage: AnyStage, ref: Ref, threads: int) -> None:
        kind, write = type(stage), type(stage).write
        if not kind.__module__.startswith(traced_modules):
            return original(runner, stage, ref, threads)
        seen = found.setdefault(kind, set())

        def note(frame: FrameType, event: str, _: Any) -> None:
            if event != "call" or frame.f_code in seen or not frame.f_code.co_filename.startswith(f"{ROOT}/memlib/"):
                return
            above = frame.f_back
            while above is not None and above.f_code is not write.__code__:
                name = above.f_code.co_filename
                if name.startswith("<frozen importlib") or name.startswith(SKIPPED):
                    return
                above = above.f_back
            seen.add(frame.f_code)

        def traced(self: AnyStage, *arguments: Any) -> None:
            sys.setprofile(note)
            try:
                write(self, *arguments)
            finally:
                sys.setprofile(None)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kind, "write", traced)
            original(runner, stage, ref, threads)

    monkeypatch.setattr(PlainRunner, "_compute", compute)
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", [name if name in CHEAP else pytest.param(name, marks=pytest.mark.ray) for name in AUDITS])
def test_identity_of_a_stage_covers_all_code_that_runs_while_it_is_written(name: str, ran: Ran, tmp_path: Path) -> None:
    recipe, changes = AUDITS[name]
    given = recipe if isinstance(recipe, str | dict) else yaml.safe_load(recipe.read_text())
    memlib.run(given, store=str(tmp_path), changes=changes)
    modules = {str(path): module for module, path in definitions._paths().items()}
    assert len(ran) >= (2 if name in JOINING else 4)
    for kind, codes in ran.items():
        covered = definitions.reached(kind.__module__, kind.__name__)
        for code in codes:
            if not code.co_filename.endswith(".py"):
                assert Path(code.co_filename) in definitions._files(covered), f"{kind.__name__} draws {code.co_filename}"
                continue
            module, parts = modules[code.co_filename], code.co_qualname.split(".")
            if parts[0].startswith("<") or module.startswith(definitions.LEFT_OUT):
                continue
            places = {(module, parts[0]), (module, ".".join(parts[:2]))}
            assert places & covered, f"{kind.__name__} runs {module}.{code.co_qualname}, which its code does not cover"
