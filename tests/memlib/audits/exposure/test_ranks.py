"""Selection of canaries that a walk ranks, and of models whose references are tested against the law that replaces a rank."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.exposure.models import SubjectModel
from memlib.audits.exposure.observing import Ranks
from memlib.audits.exposure.recipe import Recipe
from memlib.data.canaries.secret_key import VARIABLE
from memlib.data.text.formats import LONGEST_ALPHABET, Space
from memlib.running.runners import PlainRunner
from memlib.store import Store

REPLICATES = 20
METHODS: dict[str, dict[str, Any]] = {
    "walked": {"method": "enumerated"},
    "sampled": {"method": "sampled"},
    "by law": {"method": "extrapolated"},
    "given up": {"method": "pruned", "max_evaluations": 1},
}


@dataclass(frozen=True)
class Ranked:
    """Rows by method of one model, and how many tests of a law were made for all methods."""

    units: dict[str, list[dict[str, Any]]]
    laws: int


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Ranked:
    folder = tmp_path_factory.mktemp("ranks")
    words = np.random.default_rng(0).choice(["the", "key", "of", "a", "door"], 3000)
    (folder / "text.txt").write_text(" ".join(words))
    (folder / "secret").write_bytes(bytes(range(32)))
    (folder / "secret").chmod(0o600)
    content: dict[str, Any] = {
        "data": {"source": {"kind": "text", "path": str(folder / "text.txt")}, "window": 40},
        "canaries": {"format": "pin {d5}", "insertions": [1], "each": 2, "never": 2, "together": True},
        "model": {"width": 16, "layers": 1, "embedding": 8},
        "training": {"objective": {"kind": "language"}, "epochs": 2, "batch_size": 32, "augment": None},
        "extraction": None,
    }
    store, units = Store(str(folder / "store")), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(folder / "secret"))
        for name, how in METHODS.items():
            config = {"references": 300, "shards": 2, "replicates": REPLICATES} | how
            run = body_of(AUDITS["exposure"])(PlainRunner(store), Recipe.model_validate(content | {"score": config}))
            assert run is not None
            units[name] = pq.read_table(run.results["units"]).to_pylist()
    return Ranked(units, sum(1 for _ in (folder / "store" / "artifacts" / "fit_law").glob("*/manifest.json")))


def test_the_fit_of_the_law_is_tested_only_for_methods_that_extrapolate(ranked: Ranked) -> None:
    for name in ("walked", "sampled"):
        assert {unit["method"] for unit in ranked.units[name]} == {METHODS[name]["method"]}
        assert all(unit["fit_p"] is None for unit in ranked.units[name])
    by_law, given_up = ({unit["fit_p"] for unit in ranked.units[name]} for name in ("by law", "given up"))
    assert by_law == given_up
    (p,) = by_law
    assert p * (REPLICATES + 1) == pytest.approx(round(p * (REPLICATES + 1)))
    assert ranked.laws == 1  # both ask about the same references


def test_unranked_units_are_extrapolated_only_where_requested(ranked: Ranked) -> None:
    assert {unit["method"] for unit in ranked.units["by law"]} == {"extrapolated"}
    assert all(unit["exposure"] == unit["exposure_extrapolated"] for unit in ranked.units["by law"])
    assert all(unit["rank"] is None and unit["method"] != "pruned" for unit in ranked.units["given up"])


def test_only_alphabets_divided_into_blocks_mark_the_key_of_ranks() -> None:
    def spec(length: int, *, pruned: bool = False) -> Mapping[str, Any]:
        data = SimpleNamespace(space=Space((tuple(range(length)), (0,))))
        at = SimpleNamespace(spec={}, inputs={}, data=data)
        return Ranks(cast(SubjectModel, at), (0,), (1,), 0, 2, pruned, None).spec

    assert spec(LONGEST_ALPHABET + 1) == {**spec(LONGEST_ALPHABET), "blocks": True}
    assert "blocks" not in spec(LONGEST_ALPHABET + 1, pruned=True)  # a walk of the whole space has a single part
