"""The fault matrix, and cases beyond it: models that span several nodes, fleets that shrink."""

import json
from pathlib import Path
from typing import Any

import pytest
from harness import Memlib, end_session, newest, published, wait_for

from benchmarks.faults import FAULTS, RECIPES, Watched, make_cases, ray_cluster, rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("audit", RECIPES)
def test_every_injected_fault_is_recovered_from_without_redoing_finished_work(
    memlib: Memlib, tmp_path: Path, audit: str
) -> None:
    found = list(rows(make_cases(tmp_path, [audit], memlib.environment), FAULTS))
    bad = [row for row in found if not row.good]
    assert not bad, bad


def facts_of(store: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text())["facts"] for path in store.glob("artifacts/train/*/manifest.json")]


def under_way(store: Path) -> int:
    """Count the models that have saved a state to resume from."""
    return len({path.parent.parent for path in store.glob("resume/*/*/manifest.json")})


def test_a_model_is_trained_by_two_nodes_together(memlib: Memlib, tmp_path: Path) -> None:
    (case,) = make_cases(tmp_path, ["deja-vu"], memlib.environment)
    here = memlib.audit_on_ray(tmp_path / "here", "resources.workers_per_model=2", "resources.threads_per_worker=1")
    with ray_cluster(2) as (cluster, _, environment):
        settings = (f"resources.ray_address={cluster.address}", "resources.workers_per_model=2")
        watched = case.start(tmp_path / "there", *settings, **environment)
        assert watched.end() == 0, watched.said
        end_session(watched.process.pid)
    there = newest(tmp_path / "there")
    assert {facts["world_size"] for facts in facts_of(tmp_path / "there")} == {2}
    mine, theirs = published(tmp_path / "there", there), published(tmp_path / "here", here)
    assert all(mine[name].equals(theirs[name]) for name in theirs)


def test_an_elastic_fleet_continues_with_fewer_nodes(memlib: Memlib, tmp_path: Path) -> None:
    (case,) = make_cases(tmp_path, ["forgetting (singly)"], memlib.environment)  # many models
    store, _ = case.undisturbed
    with ray_cluster(2) as (cluster, nodes, environment):
        settings = (f"resources.ray_address={cluster.address}", "resources.elastic=true", "resources.resume_seconds=0")
        watched: Watched = case.start(tmp_path / "store", *settings, **environment)
        wait_for(lambda: under_way(tmp_path / "store") == 2, process=watched.process)
        cluster.remove_node(nodes[0], allow_graceful=False)  # there is no spare
        assert watched.end() == 0, watched.said
        end_session(watched.process.pid)
    mine, theirs = published(tmp_path / "store", newest(tmp_path / "store")), published(store, newest(store))
    assert all(mine[name].equals(theirs[name]) for name in theirs)
    assert any(facts["resumed_from_step"] for facts in facts_of(tmp_path / "store"))  # what was under way went on
