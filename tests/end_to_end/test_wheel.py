"""A wheel works in a project that has folders flows/, tasks/ and deployments/ of its own, as every Prefect project has."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from harness import INFLUENCE

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, memlib
assert "site" in memlib.__file__, memlib.__file__
plan = memlib.plan("mine.yaml")
assert len(plan.parts) > 3
run = memlib.run("mine.yaml", store="other", quiet=True)
assert memlib.open(run.id, store="other").verdict.sentence == run.verdict.sentence
print(run.id)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a wheel, as pip lays them out."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("memlib", "tasks", "flows", "deployments"):  # a copy, as a build leaves files beside the code
        shutil.copytree(ROOT / name, folder / "code" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "code")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder), "./code"]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.mark.slow
def test_a_wheel_runs_beside_user_folders_named_like_its_packages(site: Path, tmp_path: Path) -> None:
    for name in ("flows", "tasks", "deployments"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('this is the user\\'s own code')\n")
    points = tmp_path / "points.csv"
    points.write_text("x,y,label\n" + "".join(f"{i % 7},{i % 5},{'ab'[i % 2]}\n" for i in range(60)))
    recipe = INFLUENCE | {"data": {"source": {"kind": "table", "path": "points.csv", "label_column": "label"}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "RAY_"))}
    environment |= {"PYTHONPATH": str(site), "PREFECT_HOME": str(tmp_path / "prefect"), "MEMLIB_STORE": "store"}
    entry = "import sys; from flows.cli.entry import command; sys.exit(command())"

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/memlib").write_text(entry)  # as pip writes it: the folder of the command is first on the path
    assert "60 examples of 2 classes" in call("bin/memlib", "plan", "mine.yaml")
    call("bin/memlib", "run", "mine.yaml")
    assert list((tmp_path / "store/runs").iterdir())
    run = call("-c", SCRIPT).strip()  # the current folder is first on the path
    assert (tmp_path / f"store/runs/{run}").exists()  # memlib.run and Ray computed the same run
