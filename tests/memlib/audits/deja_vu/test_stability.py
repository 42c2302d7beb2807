"""SSLMem finds planted memory, shows nothing where there is none, and does not depend on how it is computed."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import scipy
import torch

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.deja_vu import stability
from memlib.audits.deja_vu.recipe import HEADLINES, Config
from memlib.audits.deja_vu.stability import Compared, stability_rows
from memlib.audits.deja_vu.verdict import verdict
from memlib.errors import UserError
from memlib.findings import Finding, Findings, Interval, settle, tested
from memlib.models.encoder import build_encoder
from memlib.observe.embeddings import outputs_of
from memlib.observe.stability import view_distances
from memlib.recipes.files import load_recipe, validate
from memlib.running.runners import PlainRunner
from memlib.specs import AugmentSpec, ModelSpec
from memlib.store import Store

SETTINGS = [
    "data.source.num_examples=700", "split.train_per_class=8", "split.public_per_class=20", "training.batch_size=20",
    "model.projector=[16, 16]", "decode.k=[10]",
]  # fmt: skip
QUICK = Config(replicates=200, permutations=400)


class Given:
    """An artifact whose content is at hand."""

    def __init__(self, content: pa.Table) -> None:
        self.content, self.key = content, "key"


def made_up(rng: np.random.Generator, memory: float, *, images: int = 80, scale: float = 1.0) -> tuple[Compared, pa.Table]:
    ids = [f"{n:03d}" for n in range(images + 20)]
    roles = np.array(["public"] * (images + 20), dtype=object)
    labels = np.arange(images + 20) % 4
    for label in range(4):
        mine = rng.permutation(np.flatnonzero(labels[:images] == label))
        roles[mine[: len(mine) // 2]], roles[mine[len(mine) // 2 :]] = "target", "reference"
    own = rng.gamma(4, 1, size=len(ids))
    a, b = (own + rng.normal(0, 0.3, size=len(ids)) for _ in range(2))
    a, b = a - memory * (roles == "target"), scale * (b - memory * (roles == "reference"))
    splits = pa.table({"example_id": ids, "role": roles.tolist(), "label": labels, "group": pa.nulls(len(ids), pa.string())})
    tables = [pa.table({"example_id": ids, "last": values}) for values in (a, b)]
    return Compared(0, ([Given(tables[0])], [Given(tables[1])])), splits.take(rng.permutation(len(ids)))  # type: ignore[list-item]


def rows_of(compared: Compared, splits: pa.Table, **config: Any) -> Findings:
    return settle(stability_rows([compared], splits, ["last"], QUICK.model_copy(update=config)), alpha=0.05)


def test_sslmem_of_planted_memory_is_shown_and_equals_the_normalized_mean() -> None:
    compared, splits = made_up(np.random.default_rng(0), 0.5)
    audited, disjoint = rows_of(compared, splits)
    assert (audited.metric, audited.verdict) == ("sslmem", "shown")
    a, b = (side[0].content["last"].to_numpy() for side in compared.by_model)
    role = dict(zip(splits["example_id"].to_pylist(), splits["role"].to_pylist(), strict=True))
    own = {i: (b[n] - a[n]) * (1 if role[i] == "target" else -1) for n, i in enumerate(role_order(compared))
           if role[i] != "public"}  # fmt: skip
    largest = max(abs(value) for value in own.values())
    assert audited.value == pytest.approx(np.mean(list(own.values())) / largest)
    assert (audited.low or 0) > 0
    assert audited.n == 80
    assert (disjoint.metric, disjoint.n, disjoint.verdict) == ("sslmem_disjoint", 20, None)
    assert abs(disjoint.value) < 0.2


def role_order(compared: Compared) -> list[str]:
    return compared.by_model[0][0].content["example_id"].to_pylist()


@pytest.mark.usefixtures("without_power")
@pytest.mark.parametrize("scale", [1.0, 1.4])  # models that differ in scale differ on both sides alike
def test_sslmem_test_keeps_its_level_without_memory(scale: float) -> None:
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(200):
        p = rows_of(*made_up(rng, 0.0, scale=scale), replicates=100, permutations=200).head.p_value
        assert p is not None
        wrong += p <= 0.05
    assert wrong <= scipy.stats.binom.ppf(0.999, 200, 0.05)


def test_distances_equal_a_slow_plain_version_in_blocks_of_any_size() -> None:
    encoder = build_encoder(ModelSpec(width=4, projector=(6,), input_size=16), num_classes=None, seed=0).eval()
    images = np.random.default_rng(0).integers(0, 256, size=(10, 20, 20, 3), dtype=np.uint8)
    options: dict[str, Any] = {
        "input_size": 16, "layers": ["last", "backbone"], "augment": AugmentSpec(), "views": 3, "seed": 5, "batch_size": 4,
        "device": torch.device("cpu"), "progress": lambda done, total: None,
    }  # fmt: skip
    seen: list[torch.Tensor] = []

    found = view_distances(encoder, images, np.arange(10), first=0, **options)
    parts = [view_distances(encoder, images, np.arange(10)[rows], first=n, **options)
             for n, rows in ((0, slice(0, 4)), (1, slice(4, 10)))]  # fmt: skip
    for layer in ("last", "backbone"):
        assert np.allclose(np.concatenate([part[layer] for part in parts]), found[layer])
    from memlib.training.augment import apply_view, draw_view, pixels

    scaled = pixels(torch.from_numpy(images[:4]), torch.device("cpu"))
    with torch.inference_mode():
        for view in range(3):
            draws = draw_view(AugmentSpec(), batch=4, seed=5, step=0, view=view)
            seen.append(encoder(apply_view(scaled, draws, side=16)))
    for image in range(4):
        pairs = [float((seen[i][image] - seen[j][image]).norm()) for i, j in itertools.combinations(range(3), 2)]
        assert found["last"][image] == pytest.approx(np.mean(pairs), rel=1e-4)


def test_the_last_layer_is_the_layer_of_its_recipe_name() -> None:
    encoder = build_encoder(ModelSpec(width=4, projector=(6,), input_size=16), num_classes=None, seed=0).eval()
    named = outputs_of(encoder, torch.rand(2, 3, 16, 16), ["last", "projector_1"])
    assert torch.equal(named[0][1], named[1][1])


def audited(folder: Path, *settings: str) -> tuple[PlainRunner, Any]:
    spec = validate(AUDITS["deja-vu"].recipe, load_recipe("smoke", [*SETTINGS, *settings])[0])
    runner = PlainRunner(Store(str(folder)))
    return runner, body_of(AUDITS["deja-vu"])(runner, spec)


@pytest.mark.usefixtures("without_power")
def test_stability_is_measured_only_on_request_and_inconclusive_if_untrained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stability, "BLOCK_ROWS", 300)
    runner, plain = audited(tmp_path / "store", "training.epochs=0")
    again, run = audited(tmp_path / "store", "training.epochs=0", "decode.stability.views=4", "decode.stability.disjoint=30")
    made = {ref.split("/")[0] for ref in run.computed}
    assert made == {"stability", "score", "report"}  # everything else is as it was
    assert len([ref for ref in run.computed if ref.startswith("stability")]) == 4
    rows = Findings.of_run(run)
    assert rows.first("sslmem").verdict == "inconclusive"
    assert rows.first("sslmem").params == {"layer": "classifier", "pairs": 1}
    assert rows.first("sslmem_disjoint").n == 30
    assert [row.value for row in rows.all("share_excess")] == [
        row.value for row in Findings.of_run(plain).all("share_excess")
    ]
    assert "Memory without labels" in Path(run.report).read_text()
    assert "Memory without labels" not in Path(plain.report).read_text()
    assert runner.store.uri == again.store.uri


def test_stability_is_refused_for_supplied_embeddings() -> None:
    pair = "[{a: {kind: embeddings, path: a}, b: {kind: embeddings, path: b}}]"
    with pytest.raises(UserError, match="runs the encoders on new views"):
        validate(
            AUDITS["deja-vu"].recipe,
            load_recipe("smoke", ["training=null", f"encoders={pair}", "decode.stability.views=4"])[0],
        )


def headline(**changed: Any) -> Finding:
    row = tested(
        "share_excess", {"k": 10}, 0.01, n=600, interval=Interval(-0.02, 0.04, "examples"), p_value=0.4, family="headline",
        upper_bound=0.035, detectable=0.04, smallest_p=1e-9,
    )  # fmt: skip
    return replace(row, **changed)


@pytest.mark.parametrize(
    ("excess", "memory", "word", "sentence"),
    [
        (
            {},
            0.5,
            "shown",
            "lie closer together than in models that did not see them, but naming their objects from memory was not shown",
        ),
        ({"bound": 0.05}, 0.5, "shown", "but from memory, this attack names the objects of fewer than 5 % of them"),
        ({"bound": 0.05}, -0.5, "inconclusive", "fewer than 5 % of training images. Whether views of them lie closer"),
        ({"p_value": 1e-6}, 0.5, "shown", "The models remember some of their training images"),
        (
            {"value": -0.05, "interval": Interval(-0.08, -0.02, "examples"), "p_value": 0.99},
            0.5,
            "shown",
            "opposite direction to memorization",
        ),
        ({}, -0.5, "inconclusive", "neither shown nor ruled out"),
    ],
)
def test_verdict_combines_the_headline_with_the_stability_of_views(
    excess: dict[str, Any], memory: float, word: str, sentence: str
) -> None:
    compared, splits = made_up(np.random.default_rng(0), memory)
    rows = [headline(**excess), *stability_rows([compared], splits, ["last"], QUICK)]
    said = verdict(settle(rows, alpha=0.05, headlines=HEADLINES))
    assert said.word == word
    assert sentence in said.sentence
    assert "SSLMem" in said.explanation
