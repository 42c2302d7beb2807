"""Terminals and pages get no control characters, whatever comes in; errors quote nothing of files that are not recipes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flows.cli.app import main
from memlib.audits import AUDITS
from memlib.data.canaries.secret_key import read_secret
from memlib.errors import RunError, UserError
from memlib.recipes.files import load_recipe, validate
from memlib.report.figures import new_figure, plain_ticks, save_figure
from memlib.sanitize import brief, plain
from memlib.store import Store, permissions
from memlib.store.permissions import user_folder
from tasks import cluster

CREDENTIALS = "[default]\naws_access_key_id = AKIAIOSFODNN7EXAMPLE\naws_secret_access_key = wJalrXUtnFEMI/K7MDENG\n"


@pytest.mark.parametrize(
    "text",
    [
        CREDENTIALS,
        "password: *hunter2\n",
        "key: 'AKIAIOSFODNN7\n",
        "AKIAIOSFODNN7EXAMPLE\n",
        "a: &AKIAIOSFODNN7 1\nb: &AKIAIOSFODNN7 2\nc: *AKIAIOSFODNN7EXAMPLE\n",
        "- AKIAIOSFODNN7EXAMPLE\n",
        "%AKIA 1\n---\n",
    ],
)
def test_errors_about_files_that_are_not_recipes_do_not_quote_their_content(text: str, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(text)
    with pytest.raises(UserError) as said:
        load_recipe(str(tmp_path / "credentials"))
    assert not [secret for secret in ("AKIA", "hunter2", "wJalr") if secret in str(said.value)], said.value


@pytest.mark.parametrize("title", [r"\ud800", r"\e[31mred", r"a\u202eb", r"\x07"])
def test_recipes_with_control_characters_or_surrogates_are_refused(title: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(f'extends: smoke\ntitle: "{title}"\n')
    with pytest.raises(UserError, match="control character"):
        load_recipe(str(tmp_path / "recipe.yaml"))
    with pytest.raises(UserError, match="control character"):
        load_recipe("smoke", [f'title="{title}"'])


def test_control_characters_from_a_store_never_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(str(tmp_path / "store"))
    finding = {"metric": "m\x1b[2J", "params": "{}", "value": 1.0, "p_value": None, "verdict": "x\x1b]0;t\x07"}
    run = {"run": "r1", "audit": "exposure", "title": "\x1b[31mred\ud800", "findings": [finding], "finished": 1.0}
    store.publish("runs/r1/manifest.json", json.dumps(run).encode())
    assert main(["runs", "--store", store.uri]) == 0
    assert main(["show", "r1", "--store", store.uri]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "red" in said.out
    assert brief("x" * 20_000) == f"{'x' * 2000} ... (20000 characters)"
    assert plain("tab\tand\nline stay, \x1b does not") == "tab\tand\nline stay, \N{REPLACEMENT CHARACTER} does not"


def test_dollar_signs_in_figure_labels_are_not_typeset_as_formulas(tmp_path: Path) -> None:
    figure = new_figure()
    axes = figure.axes[0]
    axes.plot([1, 10], [1, 100], label="wd $10^{-4$")
    axes.set_title(r"$\frac{")
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)
    axes.legend()
    markup = save_figure(figure, tmp_path, "a")
    assert "wd $10^{-4$" in markup
    assert "mathdefault" not in markup


def test_a_missing_home_directory_raises_a_user_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MEMLIB_CACHE", "MEMLIB_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    for call in (lambda: user_folder("cache"), lambda: read_secret(), lambda: Store("memory://b")):
        with pytest.raises(UserError, match="set HOME or XDG"):
            call()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_folder("cache") == tmp_path / "memlib"


def test_the_ray_folder_has_a_short_path_and_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("x" * 60)))
    with pytest.raises(RunError, match="too long a path for Ray's sockets.*RAY_TMPDIR"):
        cluster._own_folder()
    monkeypatch.setenv("RAY_TMPDIR", "/dev/null/none")
    with pytest.raises(RunError, match="cannot create a folder for Ray below /dev/null/none"):
        cluster._own_folder()
    monkeypatch.delenv("RAY_TMPDIR")
    monkeypatch.setattr(cluster.tempfile, "gettempdir", lambda: str(tmp_path / ("x" * 60)))
    folder = Path(cluster._own_folder())
    try:
        assert len(str(folder)) < 40
        assert folder.parent.stat().st_mode & 0o077 == 0
    finally:
        cluster.stop_ray()
    assert not folder.exists()


def test_a_secret_file_that_others_can_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(os.urandom(32))
    file.chmod(0o620)
    with pytest.raises(UserError, match="others can write the secret file .*chmod 600"):
        read_secret(str(file))
    file.chmod(0o640)
    assert len(read_secret(str(file))) == 32


def test_temporary_folders_of_killed_processes_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom memlib.store.permissions import scratch\n"
        "with scratch('test', Path(sys.argv[1])) as folder:\n    (folder / 'image').write_text('private')\n    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=300)
    (left,) = tmp_path.glob("memlib-test-*")
    assert left.stat().st_mode & 0o077 == 0
    permissions.sweep(tmp_path)
    assert left.exists()  # it may have been made just now
    before = time.time() - 120
    os.utime(left / ".lock", (before, before))
    with permissions.scratch("other", tmp_path) as alive:
        os.utime(alive.parent / ".lock", (before, before))
        permissions.sweep(tmp_path)
        assert not left.exists()
        assert alive.exists()


def test_a_command_whose_output_is_closed_exits_with_status_0(tmp_path: Path) -> None:
    Store(str(tmp_path)).check_writable()
    command = f"{sys.executable} -m flows.cli.entry runs --store {tmp_path} >&-"
    assert subprocess.run(["/bin/sh", "-c", command], capture_output=True, timeout=300).returncode == 0


def test_a_variant_whose_model_is_not_a_mapping_is_refused() -> None:
    content = {
        "audit": "exposure", "data": {"source": {"kind": "topics"}}, "model": {"architecture": "gru"},
        "training": {"objective": {"kind": "language"}, "epochs": 2, "augment": None},
        "variants": {"a": {}, "big": {"model": "transformer"}},
    }  # fmt: skip
    with pytest.raises(UserError, match="model: a model is a mapping"):
        validate(AUDITS["exposure"].recipe, content)
