"""Code that a recipe names runs if the machine or the command line allows it; plans and stores run nothing."""

import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml

from flows.cli.app import main
from memlib.data.datasets import open_source
from memlib.errors import RunError, UnknownUntilRun, UserError
from memlib.identity import file_digest
from memlib.models.external.factory import external_digest
from memlib.pipeline import user_code
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import UNKEYED, Artifact, Stage
from memlib.running.runners import PlainRunner
from memlib.specs import DataSpec, ExternalClassifierSpec
from memlib.store import Attempt, Store
from tests.forks import run_code

MODULE = """from pathlib import Path
Path({mark!r}).write_text("run")
def wrap(f):
    return f
def make(**options):
    return None
@wrap
def wrapped():
    return None
from json import dumps
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the module `planted` was imported."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "planted.py").write_text(MODULE.format(mark=str(tmp_path / "mark")))
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.delenv("MEMLIB_CODE", raising=False)
    monkeypatch.delitem(__import__("sys").modules, "planted", raising=False)
    return tmp_path / "mark"


def test_user_modules_are_allowed_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMLIB_CODE", "mine, other.part")
    assert [user_code.is_allowed(name) for name in ("mine", "mine.deep", "minefield", "other", "other.part", "os", "")] == [
        True, True, False, False, True, False, False,
    ]  # fmt: skip
    with pytest.raises(UserError, match="os:system, which this machine does not allow.*MEMLIB_CODE=os"):
        user_code.load("os:system")
    monkeypatch.delenv("MEMLIB_CODE")
    assert not user_code.is_allowed("mine")
    user_code.allow(user_code.modules_in({"data": [{"source": {"function": "a.b:c"}}], "title": "no: code", "model": "d:E"}))
    assert os.environ["MEMLIB_CODE"] == "a,d"


def test_user_functions_are_loaded_or_reported_as_missing(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMLIB_CODE", "planted,nosuch")
    assert callable(user_code.load("planted:make"))
    assert mark.exists()
    for named, said in (("planted:nothing", "no function 'nothing'"), ("nosuch:f", "cannot import 'nosuch'")):
        with pytest.raises(UserError, match=said):
            user_code.load(named)


def test_the_source_of_a_function_is_found_without_running_it(mark: Path) -> None:
    file = user_code.source_file("planted:make")
    assert file is not None
    assert file.name == "planted.py"
    for named in ("planted:wrapped", "planted:dumps", "planted:nothing", "nosuch:f", "json.nosuch:f", "sys:exit"):
        assert user_code.source_file(named) is None, named
    assert user_code.source_file("json.decoder:JSONDecoder") == Path(json.decoder.__file__)
    assert not mark.exists()


def test_keys_of_external_models_need_no_code_if_the_source_suffices(mark: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"weights")
    spec = ExternalClassifierSpec(model="planted:make", weights=str(weights), inputs="unit")
    assert file_digest(tmp_path / "code" / "planted.py") in external_digest(spec, str(weights))
    with user_code.planning(), pytest.raises(UnknownUntilRun):
        external_digest(spec.model_copy(update={"model": "planted:wrapped"}), str(weights))
    assert not mark.exists()


def recipe(folder: Path, function: str = "planted:make") -> Path:
    file = folder / "recipe.yaml"
    file.write_text(
        "audit: deja_vu\ndata:\n  source: {kind: import, function: 'FUNCTION', options: {command: touch here}}\n"
        "split: {train_per_class: 2, public_per_class: 2}\ntraining: {objective: {kind: supervised}, epochs: 1}\n".replace(
            "FUNCTION", function
        )
    )
    return file


def test_plan_runs_no_user_code_and_lists_the_stages_it_cannot_know(
    mark: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMLIB_CODE", "planted")  # even where a run may
    where = ["--store", str(tmp_path / "store")]
    assert main(["plan", "deja-vu", "--recipe", str(recipe(tmp_path)), *where]) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert "not known before the run: the result of planted:make" in said
    assert "stages after it: decode_block, decode, split, train" in said
    assert "no cost estimate: the stages to compute are not known before the run" in said
    assert not mark.exists()


def test_allowing_a_module_does_not_allow_the_functions_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds even for other modules of its package; only a recipe given by the user allows the whole package."""
    (tmp_path / "acme_guard").mkdir()
    (tmp_path / "acme_guard/__init__.py").write_text("")
    (tmp_path / "acme_guard/danger.py").write_text("def wipe(): return 'wiped'\n")
    (tmp_path / "acme_guard/models.py").write_text("from acme_guard.danger import wipe\ndef make(): return 'made'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MEMLIB_CODE", "acme_guard.models")
    assert user_code.load("acme_guard.models:make")() == "made"
    with pytest.raises(UserError, match=r"acme_guard.models:wipe, which is defined in acme_guard.danger"):
        user_code.load("acme_guard.models:wipe")
    user_code.allow(["acme_guard.models"])
    assert user_code.load("acme_guard.models:wipe")() == "wiped"


RESUME = """import os, sys
from flows.cli.app import main
sys.path.insert(0, sys.argv[1])
os.environ["MEMLIB_ENGINE"] = sys.argv[2]
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize("engine", ["process", pytest.param("ray", marks=pytest.mark.slow)])
def test_resume_does_not_run_user_code_that_only_the_store_names(engine: str, mark: Path, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    content = yaml.safe_load(recipe(tmp_path).read_text())
    note = {"run": "0" * 12, "audit": "deja-vu", "title": "t", "started": 1.0, "recipe": content, "finished": None}
    store.publish(f"requests/{'0' * 12}.json", json.dumps(note).encode())
    done = run_code(RESUME, str(tmp_path / "code"), engine, "resume", "000", "--store", store.uri)
    assert done.returncode == 2
    assert "planted:make, which this machine does not allow" in done.stderr
    assert "Traceback" not in done.stderr
    assert not mark.exists()


def package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a package whose module imports another one of it, and one that is not of it."""
    inner = folder / "acme_models"
    inner.mkdir()
    (inner / "__init__.py").write_text("")
    (inner / "nets.py").write_text(
        "from . import parts\nimport acme_other\ndef make():\n    from acme_models.late import more\n"
    )
    (inner / "parts.py").write_text("A = 1\n")
    (inner / "late.py").write_text("more = 1\n")
    (inner / "apart.py").write_text("A = 1\n")
    (folder / "acme_other.py").write_text("A = 1\n")
    monkeypatch.syspath_prepend(str(folder))
    return inner


@dataclass(frozen=True)
class Asking(Stage[str]):
    """Runs a function that its recipe names."""

    declared: ClassVar[Declared] = Declared("asking", 1)
    title: ClassVar[str] = "asking"

    function: str

    @property
    def spec(self) -> Mapping[str, Any]:
        return {"model": {"function": self.function}, "other": "no: code"}

    @property
    def inputs(self) -> Mapping[str, Any]:
        return {}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        attempt.path("answer.txt").write_text("answer")

    @classmethod
    def open(cls, artifact: Artifact[str]) -> str:
        return artifact.path("answer.txt").read_text()


def test_manifest_names_user_code_and_its_change_is_reported_on_reuse(mark: Path, tmp_path: Path) -> None:
    user_code.identity_of.cache_clear()
    store, stage = Store(str(tmp_path / "store")), Asking("planted:make")
    made = PlainRunner(store).run(stage)
    named = store.artifacts.manifest(made.ref).named
    assert named == {"planted": user_code.identity_of("planted")}
    again = PlainRunner(store)
    again.run(stage)
    assert again.old_code.lines == []
    file = tmp_path / "code" / "planted.py"
    file.write_text(file.read_text() + "\nmore = 1\n")
    user_code.identity_of.cache_clear()
    changed = PlainRunner(store)
    assert changed.run(stage).ref == made.ref
    assert changed.reused == [str(made.ref)]
    (said,) = changed.old_code.lines
    assert "asking: its code has changed since its artifact was made" in said
    assert "--force-stage asking recomputes them" in said
    assert store.artifacts.manifest(made.ref).named == named
    assert not mark.exists()
    user_code.identity_of.cache_clear()


@dataclass(frozen=True)
class Calling(Asking):
    """Calls the function; `during` is written to its file meanwhile."""

    during: str = field(default="", metadata=UNKEYED)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        made = user_code.load(self.function)()
        if self.during:
            Path(inspect.getfile(user_code.load(self.function))).write_text(self.during)
        attempt.path("answer.txt").write_text(made)


def test_code_that_is_changed_while_it_runs_is_not_recorded_as_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_during.py").write_text("def make(): return 'first'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MEMLIB_CODE", "acme_during")
    store = Store(str(tmp_path / "store"))
    with pytest.raises(RunError, match="the code of acme_during changed while the run was under way"):
        PlainRunner(store).run(Calling("acme_during:make", during="def make(): return 'second'\n"))
    with pytest.raises(RunError, match="restart its kernel"):  # this process still has the first code
        PlainRunner(store).run(Calling("acme_during:make"))
    assert not list(tmp_path.glob("store/artifacts/*/*/manifest.json"))


def test_files_that_code_imports_by_name_or_reads_are_recorded_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/acme_hidden.py").write_text("SIZE = 3\n")
    (tmp_path / "acme_settings.json").write_text("{}")
    (tmp_path / "acme_indirect.py").write_text(
        f"import importlib, json, pathlib, sys\nsys.path.insert(0, {str(tmp_path / 'elsewhere')!r})\n"
        "hidden = importlib.import_module('acme_' + 'hidden')\n"
        "json.loads(pathlib.Path(__file__).with_name('acme_settings.json').read_text())\ndef make(): return str(hidden.SIZE)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MEMLIB_CODE", "acme_indirect")
    store, stage = Store(str(tmp_path / "store")), Calling("acme_indirect:make")
    ran = store.artifacts.manifest(PlainRunner(store).run(stage).ref).facts["ran"]
    assert {Path(path).name for path in ran} == {"acme_indirect.py", "acme_hidden.py", "acme_settings.json"}
    for changed in (tmp_path / "elsewhere/acme_hidden.py", tmp_path / "acme_settings.json"):
        again = PlainRunner(store)
        again.run(stage)
        assert again.old_code.lines == []
        before = changed.read_text()
        changed.write_text(before + "\n")
        again = PlainRunner(store)
        again.run(stage)
        assert "asking: its code has changed" in again.old_code.lines[0]
        changed.write_text(before)


@pytest.mark.parametrize(
    ("file", "same"),
    [("acme_models/nets.py", False), ("acme_models/parts.py", False), ("acme_models/late.py", False),
     ("acme_models/__init__.py", False), ("acme_models/apart.py", True), ("acme_other.py", False), ("acme_apart.py", True)],
)  # fmt: skip
def test_identity_of_user_code_covers_local_files_that_it_imports(
    file: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, monkeypatch)
    user_code.identity_of.cache_clear()
    before = user_code.identity_of("acme_models.nets")
    assert before != "unknown"
    with (tmp_path / file).open("a") as text:
        text.write("B = 2\n")
    user_code.identity_of.cache_clear()
    assert (user_code.identity_of("acme_models.nets") == before) is same
    assert "acme_models" not in __import__("sys").modules


@pytest.mark.parametrize(
    ("file", "same"), [("acme_models/parts.py", False), ("acme_other.py", False), ("acme_apart.py", True)]
)
def test_keys_of_models_and_sources_depend_on_the_files_that_their_module_imports(
    file: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, monkeypatch)
    (tmp_path / "acme_models" / "own.py").write_text(
        "from acme_other import A\nfrom acme_models import parts\nclass Own:\n    class_names = ['a']\n    def __len__(self):\n"
        "        return 0\n    def __getitem__(self, index):\n        raise IndexError\ndef make():\n    return Own()\n"
    )
    monkeypatch.setenv("MEMLIB_CODE", "acme_models")

    def digests(version: str | None = None) -> tuple[str, str]:
        model = ExternalClassifierSpec(model="acme_models.own:make", version=version)
        source = DataSpec.model_validate(
            {"source": {"kind": "import", "function": "acme_models.own:make", "version": version}}
        ).source
        return external_digest(model), open_source(source).content_digest()

    before, declared = digests(), digests("1")
    with (tmp_path / file).open("a") as text:
        text.write("B = 2\n")
    assert [now == then for now, then in zip(digests(), before, strict=True)] == [same, same]
    assert digests("1") == declared


def test_imports_from_other_entries_of_the_path_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "acmecloud" / "part").mkdir(parents=True)
    (tmp_path / "lib" / "acme_helper.py").write_text("A = 1\n")
    (tmp_path / "acme_net.py").write_text(
        "from acmecloud.part import store\nfrom acme_helper import A\nimport google.cloud\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert user_code.imported_files("acme_net") == []
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    assert user_code.imported_files("acme_net") == []
    assert user_code.imported_files("no_such_package.module") == []


def test_installed_packages_are_identified_by_their_version() -> None:
    assert user_code.identity_of("scipy.stats").startswith("scipy 1.")
    assert user_code.identity_of("no_such_package.module") == "unknown"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from subprocess import check_output", "check_output"),
        ("import functools, os\nrun = functools.partial(os.system)", "run"),
    ],
)
def test_a_function_that_an_allowed_module_only_imported_is_refused(
    line: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme_borrowing.py").write_text(f"{line}\ndef own(): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(user_code.VARIABLE, "acme_borrowing")
    assert user_code.load("acme_borrowing:own")() == 1
    with pytest.raises(UserError, match="which is defined in"):
        user_code.load(f"acme_borrowing:{name}")
    __import__("sys").modules.pop("acme_borrowing")
