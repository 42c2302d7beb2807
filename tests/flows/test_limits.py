"""Limits of what a recipe can show are reported before anything is computed."""

import json
from pathlib import Path

import pytest

from flows.cli.app import main
from memlib.audits import AUDITS
from memlib.audits.arrangement import stages_of
from memlib.recipes.files import load_recipe, shipped_recipes, validate


@pytest.mark.parametrize(
    ("recipe", "settings", "said"),
    [
        ("forgetting_smoke", ["score.permutations=999", "verdict.alpha=0.001"], "raise score.permutations"),
        ("forgetting_smoke", ["sets.query.per_class=1", "sets.withheld.per_class=1"], "raise sets.withheld.per_class"),
        ("smoke", ["split.train_per_class=1"], "raise split.train_per_class"),
        ("two_moons", ["nets.seeds=3"], "raise nets.seeds"),
        (
            "two_moons",
            ["nets.seeds=10", "score.bound=0.3"],
            "by 0.52 at best, as few trainings may remember much, but score.bound",
        ),
        ("two_moons", ["nets.seeds=10", "score.bound=0.3"], "beyond what few controls reach only from 50 controls on"),
        ("two_moons", ["nets.seeds=60", "score.bound=0.3"], "beyond what few controls reach by 0.06 at best"),
        ("smoke", ["decode.stability={}", "decode.bound=0.05"], "SSLMem (decode.stability) has no bound"),
        (
            "exposure_fine_tuning",
            ["discoverable={}", "score.bound=10"],
            "the test of documents (discoverable) has no bound, so this run cannot end as bounded",
        ),
    ],
)
def test_limits_name_tests_that_cannot_reject_and_unreachable_bounds(recipe: str, settings: list[str], said: str) -> None:
    content, _ = load_recipe(recipe, settings)
    audit = AUDITS[str(content["audit"]).replace("_", "-")]
    assert any(said in line for line in audit.limits(validate(audit.schema(content), content)))


WITHOUT_VERDICT = {"forgetting_table_1_rho", "forgetting_table_2_rho"}  # the paper's tables; plan says so
OF_OTHERS = {"membership_own_model", "membership_outputs"}  # models that were trained elsewhere have limits of their own


def test_shipped_recipes_have_no_limits() -> None:
    for name in shipped_recipes():
        content, _ = load_recipe(name)
        audit = AUDITS[str(content["audit"]).replace("_", "-")]
        if stages_of(audit):
            said = list(audit.limits(validate(audit.schema(content), content)))
            assert bool(said) == (name in WITHOUT_VERDICT | OF_OTHERS), (name, said)


def test_plan_prints_the_limits_of_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--recipe", "smoke", "--store", str(tmp_path), "--set", "split.train_per_class=1"]
    assert main(["plan", "deja-vu", *options, "--json"]) == 0
    assert "no test of two classes can be significant" in json.loads(capsys.readouterr().out)["limits"][0]
    assert main(["plan", "deja-vu", *options]) == 0
    assert "raise split.train_per_class" in capsys.readouterr().out.replace("\n", " ")
