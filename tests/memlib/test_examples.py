"""The examples in docstrings run, and every public name has one."""

import doctest
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import memlib

MODULES = {
    "memlib.audits.base": ("Audit",),
    "memlib.audits.exposure.privacy": ("epsilon_bound", "refuted_p", "most_exposed"),
    "memlib.audits.exposure.scores": (
        "exposure_of_rank", "exposure_by_sampling", "upper_exposure", "sampled_p", "canary_p",
    ),
    "memlib.data.given_sets": ("p_of_draw",),
    "memlib.objectives.base": ("Objective",),
    "memlib.pipeline.stage": ("Stage", "Artifact"),
    "memlib.running.api": ("run", "plan", "list_runs", "diff", "check", "verify"),
    "memlib.running.planning": ("Plan",),
    "memlib.runs.run": ("Run", "open"),
    "memlib.specs.base": ("Spec", "Source"),
    "memlib.stats.attributes": ("attribute_inference",),
    "memlib.stats.blind": ("described_baseline", "folds_by_group", "tested_baseline"),
    "memlib.stats.changes": ("flipped_p", "welch_p"),
    "memlib.stats.divergence": ("ks_gap", "weighted_ks"),
    "memlib.stats.epsilon": (
        "audit_one_run", "correct_guesses", "exceeds", "gaussian_epsilon", "gaussian_one_run", "one_run_ceiling",
        "one_run_epsilon", "one_run_p", "per_record", "refutes_gaussian", "split_epsilon",
    ),
    "memlib.stats.inference": (
        "exact_interval", "exceedance_p", "largest_mean", "mcnemar_p", "mean_interval", "permutation_p", "threshold_rank",
    ),
    "memlib.stats.likelihood": ("log_odds",),
    "memlib.stats.likeness": ("likeness", "utility"),
    "memlib.stats.multiplicity": ("holm", "holm_over_families", "benjamini_hochberg", "max_t_p", "combined_p"),
    "memlib.stats.neighbors": ("nearest_neighbors", "vote"),
    "memlib.stats.noninferiority": ("decidable_margin", "t_cdf", "t_quantile", "welch_difference"),
    "memlib.stats.randomization": ("Design", "attributable_bound", "detectable", "smallest_two_class_p", "two_sided_p"),
    "memlib.stats.structure": ("output_classes", "structural_risk"),
    "memlib.stats.tails": ("SkewNormal", "fit_skew_normal", "goodness_of_fit"),
    "memlib.store.store": ("Store",),
    "memlib.looking.api": ("look",),  # last, as it adds a run to the store of the others
}  # fmt: skip
"""The names of each module that have an example."""

MOONS: dict[str, Any] = {
    "audit": "self_influence", "title": "moons", "data": {"source": {"kind": "two_moons", "num_examples": 60}},
    "split": {"train_per_class": 20}, "model": {"architecture": "mlp", "widths": [8]}, "influence": {"checkpoints": 2},
    "training": {"objective": {"kind": "supervised"}, "epochs": 4, "batch_size": 5, "augment": None},
}  # fmt: skip
"""The recipe of the example of `memlib.run`."""
LONGEST = 8  # lines of an example, without its output


def examples_of(module: str) -> dict[str, doctest.DocTest]:
    """Return the examples of a module's docstrings by the name of the object, methods with their class."""
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module))
    return {test.name.removeprefix(f"{module}."): test for test in found if test.examples}


EXAMPLES = {(module, name): test for module in MODULES for name, test in examples_of(module).items()}
NAMES = [f"{module}.{name}" for module, name in EXAMPLES]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A current folder that has the recipe moons.yaml and a store with the run of the example of `memlib.run`."""
    place = tmp_path_factory.mktemp("examples")
    (place / "moons.yaml").write_text(json.dumps(MOONS))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.delenv("MEMLIB_STORE", raising=False)
        memlib.run("moons.yaml", quiet=True)
        yield place


@pytest.mark.parametrize(("module", "name"), EXAMPLES, ids=NAMES)
def test_docstring_examples_print_the_output_they_show(module: str, name: str, folder: Path) -> None:
    said: list[str] = []
    failed = (
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(EXAMPLES[module, name], out=said.append).failed
    )
    assert not failed, "".join(said)


def test_every_public_name_has_an_example() -> None:
    missing = [f"{module}.{name}" for module, names in MODULES.items() for name in names if (module, name) not in EXAMPLES]
    assert not missing, f"give the docstrings an example: {', '.join(missing)}"
    public = {(getattr(memlib, name).__module__, name) for name in memlib.__all__ if name != "__version__"}
    assert public <= set(EXAMPLES)


@pytest.mark.parametrize(("module", "name"), EXAMPLES, ids=NAMES)
def test_an_example_is_short(module: str, name: str) -> None:
    lines = [line for example in EXAMPLES[module, name].examples for line in example.source.splitlines()]
    assert len(lines) <= LONGEST
