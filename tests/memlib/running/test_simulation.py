"""Simulated faults: drivers that are killed, fail and race leave a store that the next run completes; planted defects are found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import simulation
from memlib.running import in_process
from memlib.store.artifacts import Artifacts
from memlib.store.refs import Ref


@pytest.fixture(autouse=True)
def _stable_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(simulation, "base_folder", lambda: tmp_path)


def test_a_few_seeds_hold() -> None:
    assert simulation.simulate(range(2)) == {}


@pytest.mark.slow
def test_many_seeds_hold() -> None:
    assert simulation.simulate(range(1000, 1060)) == {}


def delete_files_first(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Artifacts.discard

    def discard(self: Artifacts, ref: Ref, *, evicted: bool = False) -> None:
        if self.has(ref):
            self._backend.remove(f"{ref.folder}/{self.manifest(ref).attempt}")
        own(self, ref, evicted=evicted)

    monkeypatch.setattr(Artifacts, "discard", discard)


def write_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(self: simulation.Folder, path: str, data: bytes) -> None:
        Path(self.at(path)).parent.mkdir(parents=True, exist_ok=True)
        Path(self.at(path)).write_bytes(data[: len(data) // 2])
        self.world.kill()

    monkeypatch.setattr(simulation.Folder, "_torn", torn)


def give_up_where_an_input_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def once(work: Callable[[], Any], *rest: Any) -> Any:
        return work()

    monkeypatch.setattr(in_process, "going_on", once)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [delete_files_first, write_in_place, give_up_where_an_input_is_gone])
def test_a_planted_defect_is_found(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    plant(monkeypatch)
    found = simulation.simulate(range(60))
    assert found
    print(next(iter(found.items())))
