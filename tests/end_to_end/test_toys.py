"""An audit, an objective and a source are added to a copy of the project by the edits that docs/architecture.md shows."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
TOYS = ROOT / "tests" / "toys"
Edit = tuple[str, str, str]  # file, the text that is there, what stands before it afterwards

AUDIT: list[Edit] = [
    (
        "memlib/audits/__init__.py",
        '    "sweep": "memlib.audits.sweep",\n',
        '    "class-sizes": "memlib.audits.class_sizes",\n',
    )
]
OBJECTIVE: list[Edit] = [
    (
        "memlib/specs/training.py",
        "class LanguageObjectiveSpec(Loss):",
        '''class MarginSpec(Loss):
    """A hinge on the scores of the classes."""

    has_classes: ClassVar[bool] = True
    per_example: ClassVar[bool] = True

    kind: Literal["margin"]
    margin: float = Field(default=1.0, gt=0)
    """How far the true class must be ahead."""


''',
    ),
    ("memlib/specs/training.py", "VICRegSpec | BarlowTwinsSpec", "MarginSpec | "),
    (
        "memlib/objectives/__init__.py",
        "        case VICRegSpec():",
        "        case MarginSpec():\n            return Margin(spec)\n",
    ),
    (
        "memlib/objectives/__init__.py",
        "from memlib.objectives.ssl import",
        "from memlib.objectives.margin import Margin\nfrom memlib.specs.training import MarginSpec\n",
    ),
]
SOURCE: list[Edit] = [
    (
        "memlib/specs/data.py",
        "class TwoMoonsSource(Source):",
        '''class StripesSource(Source):
    """Stripes, across or along."""

    kind: Literal["stripes"]
    num_examples: int = Field(default=60, ge=4)
    """How many images."""


''',
    ),
    ("memlib/specs/data.py", "ScenesSource\n    | Captioned", "StripesSource\n    | "),
    (
        "memlib/data/datasets.py",
        "        case TwoMoonsSource():",
        "        case StripesSource():\n            return Stripes(spec)\n",
    ),
    (
        "memlib/data/datasets.py",
        "from memlib.data.builtin import",
        "from memlib.data.stripes import Stripes\nfrom memlib.specs.data import StripesSource\n",
    ),
]

Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for part in ("memlib", "tasks", "flows", "deployments"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(TOYS / "class_sizes", folder / "memlib/audits/class_sizes")
    shutil.copy(TOYS / "flow.py", folder / "flows/class_sizes.py")
    shutil.copy(TOYS / "starter.yaml", folder / "deployments/starters/class_sizes.yaml")
    shutil.copy(TOYS / "margin.py", folder / "memlib/objectives/margin.py")
    shutil.copy(TOYS / "stripes.py", folder / "memlib/data/stripes.py")
    for file, there, before in (*AUDIT, *OBJECTIVE, *SOURCE):
        text = (folder / file).read_text()
        assert text.count(there) == 1, f"{there!r} stands {text.count(there)} times in {file}"
        (folder / file).write_text(text.replace(there, before + there))
    return folder


@pytest.fixture(scope="module")
def call(project: Path) -> Call:
    environment = dict(os.environ) | {
        "PYTHONPATH": str(project), "PREFECT_HOME": str(project / "prefect"), "XDG_CACHE_HOME": str(project / "cache"),
        "COLUMNS": "200",
    }  # fmt: skip

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flows.cli.entry", *arguments]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_a_user_defined_audit_works_with_every_command(project: Path, call: Call) -> None:
    call("init", "class-sizes", "sizes.yaml")
    assert "valid recipe for the class-sizes audit" in call("validate", "sizes.yaml").stdout
    asked = ("class-sizes", "--recipe", "sizes.yaml", "--store", "store")
    helped = call("run", "--help").stdout.replace("│", " ")
    assert "How unevenly are the examples spread" in " ".join(helped.split())
    assert "class_sizes" in call("plan", *asked).stdout
    manifest = json.loads(call("run", *asked, "--json").stdout)
    assert manifest["verdict"]["sentence"].startswith("The largest class has 1.0")
    assert [name.split("/")[0] for name in manifest["computed"]] == ["decode", "class_sizes", "report"]
    assert Path(manifest["results"]["units"]).exists()
    assert "The largest class has" in Path(manifest["report"]).read_text()
    shutil.rmtree(next((project / "store/artifacts/report").iterdir()))
    call("resume", manifest["run"], "--store", "store")
    assert "class-sizes" in call("runs", "--store", "store").stdout
    assert "The largest class has" in call("show", manifest["run"], "--store", "store").stdout
    assert "are unchanged since they were committed" in call("verify", "--store", "store").stdout
    assert "number of examples of the class" in call("schema", "units").stdout
    assert "smallest" in call("schema", "class-sizes").stdout


PLAIN = """
import importlib, sys, yaml
from memlib.running.runners import PlainRunner
from memlib.store import Store

for flow in sys.argv[1:]:
    module = importlib.import_module(f"flows.{flow}")
    recipe = module.Recipe.model_validate(yaml.safe_load(open(f"{flow}.yaml")))
    run = module.audit(PlainRunner(Store("plain")), recipe)
    print(run.recipe["data"]["source"]["kind"], run.recipe["training"]["objective"])
"""


def test_user_defined_objectives_and_sources_are_trained_and_documented(project: Path, call: Call) -> None:
    (project / "self_influence.yaml").write_text(
        """
title: stripes
data: {source: {kind: stripes}, image_size: 16}
split: {train_per_class: 10}
model: {architecture: mlp, widths: [8]}
training: {objective: {kind: supervised}, epochs: 2, batch_size: 5, augment: null}
influence: {checkpoints: 1}
"""
    )
    (project / "deja_vu.yaml").write_text(
        """
title: margin
data: {source: {kind: scenes, num_examples: 240, size: 16, digit_size: 8}, image_size: 16}
split: {train_per_class: 6}
model: {width: 8, projector: [8], input_size: 16}
training: {objective: {kind: margin, margin: 0.5}, epochs: 2, batch_size: 10}
decode: {k: [5], replicates: 100, permutations: 100}
report: {gallery: 0}
"""
    )
    environment = dict(os.environ) | {"PYTHONPATH": str(project)}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, "self_influence", "deja_vu"], cwd=project, env=environment, capture_output=True,
        text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "stripes {'kind': 'supervised', 'label_smoothing': 0.0}",
        "scenes {'kind': 'margin', 'margin': 0.5}",
    ]
    assert "margin" in call("schema", "deja-vu").stdout
