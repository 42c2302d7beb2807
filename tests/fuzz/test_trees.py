"""Some damaged stores in each test run; `make fuzz` damages two hundred."""

import shutil
from pathlib import Path

import pytest
import trees
import yaml
from harness import INFLUENCE

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.recipes.files import load_recipe, validate
from memlib.running.runners import PlainRunner
from memlib.store import Store

STORES = 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two runs that share some artifacts."""
    folder = tmp_path_factory.mktemp("trees")
    (folder / "moons.yaml").write_text(yaml.safe_dump(INFLUENCE))
    audit = AUDITS["self-influence"]
    for settings in ((), ("training.epochs=3",)):
        spec = validate(audit.recipe, load_recipe(str(folder / "moons.yaml"), settings)[0])
        body_of(audit)(PlainRunner(Store(str(folder / "store"))), spec)
    return folder / "store"


@pytest.mark.parametrize("number", range(STORES))
def test_verify_names_every_change_of_a_store_and_gc_deletes_nothing_of_a_run(
    whole: Path, tmp_path: Path, number: int
) -> None:
    assert trees.check(whole, tmp_path, number, seed=1) == ""


def test_an_untouched_store_verifies_and_gc_deletes_nothing_of_its_runs(whole: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(whole, tmp_path / "store"))
    assert trees._called("verify", "--store", str(root))[0] == 0
    before = set(trees.rests_on(Store(str(root))))
    assert len(before) > 20
    assert trees._called("gc", "--days", "0", "--delete", "--store", str(root))[0] == 0
    assert set(trees.rests_on(Store(str(root)))) == before
