"""Whole audits of nets so small that they train in a second, in this process."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memlib
from memlib.findings import Findings
from memlib.runs.run import Run

MOONS: dict[str, Any] = {
    "audit": "unique_feature",
    "title": "moons",
    "data": {"source": {"kind": "two_moons", "num_examples": 80}},
    "split": {"held_out_per_class": 10},
    "canary": {"feature": {"kind": "scalar", "value": 4}, "label": 1},
    "model": {"architecture": "mlp", "widths": [8]},
    "training": {
        "objective": {"kind": "supervised"},
        "epochs": 5,
        "batch_size": None,
        "augment": None,
        "optimizer": {"learning_rate": 0.01, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"},
    },
    "nets": {"seeds": 6, "controls": 6, "chunk": 6},
    "probe": {"kind": "held_out", "count": 15},
    "score": {"per_epoch": True, "replicates": 100, "permutations": 100},
}


def run(folder: Path, **changes: Any) -> Run:
    return memlib.run(MOONS, store=str(folder), changes=changes, quiet=True)


def stages_of(computed: Run, stage: str) -> list[str]:
    return [ref for ref in computed.record.computed if ref.startswith(f"{stage}/")]


def scores(done: Run, **at: Any) -> Mapping[Any, float]:
    rows = [row for row in done.units.to_pylist() if all(row[name] == value for name, value in at.items())]
    return {(row["net"], row["control"]): row["value"] for row in rows}


def test_scores_after_the_last_epoch_are_those_of_the_nets_that_are_kept(tmp_path: Path) -> None:
    done = run(tmp_path, **{"score.per_epoch_also": ["m_w", "m_kl"]})
    curves = done.tables["curves"].to_pylist()
    for output, metric in (("probability", "m_white"), ("log_probability", "m_w"), ("divergence", "m_kl")):
        for series, control in (("canary", False), ("control", True)):
            drawn = [
                row
                for row in curves
                if row["curve"] == "m_by_epoch" and f'"{output}"' in row["params"] and row["series"] == series
            ]
            assert [row["x"] for row in drawn] == [1, 2, 3, 4, 5]
            kept = [value for (_, side), value in scores(done, metric=metric, output=output).items() if side == control]
            assert drawn[-1]["y"] == pytest.approx(np.mean(kept), abs=1e-5)
    page = done.report.read_text()
    assert "Scores through training" in page
    assert "M_w (2022), nats" in page


def test_a_changed_probe_retrains_nets_only_if_epochs_are_scored_on_it(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert stages_of(first, "train_nets")
    assert not stages_of(run(tmp_path, **{"probe.kind": "noise"}), "train_nets")
    also = run(tmp_path, **{"score.per_epoch_also": ["m_kl"]})
    assert stages_of(also, "train_nets")
    noise = run(tmp_path, **{"score.per_epoch_also": ["m_kl"], "probe.kind": "noise"})
    assert stages_of(noise, "train_nets")


def test_variants_with_other_probe_data_share_their_nets_and_are_compared_in_pairs(tmp_path: Path) -> None:
    kinds = {"noise": {"probe": {"kind": "noise"}}, "held-out": {}}
    done = run(tmp_path, variants=kinds, **{"score.per_epoch": False})
    assert len(stages_of(done, "train_nets")) == 2  # one chunk of nets, one of controls
    white = [scores(done, metric="m_white", output="probability", variant=name, label=1) for name in kinds]
    assert white[0] == white[1]
    assert scores(done, metric="m_black", variant="noise") != scores(done, metric="m_black", variant="held-out")
    changes = Findings.of_run(done.record).all("m_black", statistic="change")
    assert changes
    assert {row.params["paired"] for row in changes} == {True}
    assert not Findings.of_run(done.record).all("m_white", statistic="change")  # the same scores
    flips = Findings.of_run(done.record).all("flips", group="canary - control")
    assert {(row.params["variant"], row.params["output"]) for row in flips} == {
        ("noise", "training_examples"), ("held-out", "training_examples"), ("held-out", "held_out_examples"),
    }  # fmt: skip
    assert "Decisions that the feature flips" in done.report.read_text()


IMAGES = MOONS | {
    "title": "images",
    "data": {"source": {"kind": "scenes", "num_examples": 120, "size": 16, "digit_size": 8}, "image_size": 16, "channels": 1},
    "split": {"train_per_class": 4, "held_out_per_class": 2},
    "canary": {"feature": {"kind": "glyph", "text": "A", "top": 1, "left": 1}},
    "model": {"architecture": "cnn_1"},
    "training": MOONS["training"] | {"epochs": 1},
    "nets": {"seeds": 2, "controls": 2},
    "score": {"replicates": 100, "permutations": 100},
    "report": {"examples": 2, "gradcam": True},
}


@pytest.mark.filterwarnings("ignore:.*too few for a significant result")
def test_attention_of_a_model_and_its_control_is_shown_on_training_and_held_out_examples(tmp_path: Path) -> None:
    page = memlib.run(IMAGES, store=str(tmp_path), quiet=True).report.read_text()
    for whose in ("model", "its control"):
        for name in ("canary", "other example 2", "held-out example 2"):
            for title in ("with the feature", "without it"):
                assert re.search(rf"{whose}: {name}[^<,]*, {title}", page), (whose, name, title)
