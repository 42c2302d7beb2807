"""Locks: a hash for every file that is installed, one version of each package everywhere, and PyTorch from elsewhere if asked."""

import base64
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ("cpu", "gpu", "test", "docs", "image")


def module(name: str) -> object:
    spec = importlib.util.spec_from_file_location(name, ROOT / "locks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


install, lock = module("install"), module("lock")


def locked(name: str) -> dict[str, str]:
    """Return the version of each package in a lock; each must have a hash."""
    found: dict[str, str] = {}
    for part in install.parts((ROOT / f"locks/{name}.txt").read_text()):  # type: ignore[attr-defined]
        first, *hashes = part.splitlines()
        matched = re.match(r"([\w.-]+)(?:\[[^]]*])?==(\S+)", first)
        assert matched, first
        assert hashes, first
        assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in hashes), first
        assert found.setdefault(plain(matched[1]), matched[2]) == matched[2]
    return found


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_environment_is_locked_with_the_versions_of_the_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {plain(line.split("==")[0]): line.split("==")[1] for line in lines if "==" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(lock.ENVIRONMENTS) == set(install.EXTRAS) == set(ENVIRONMENTS)  # type: ignore[attr-defined]
    for name in ENVIRONMENTS:
        found, extras = locked(name), lock.ENVIRONMENTS[name]  # type: ignore[attr-defined]
        assert install.EXTRAS[name] == ",".join(extras)  # type: ignore[attr-defined]
        wanted = [*project["dependencies"], *(need for extra in extras for need in project["optional-dependencies"][extra])]
        assert {plain(re.split(r"[<>=\[ ]", need)[0]) for need in wanted} | {"setuptools"} <= set(found)
        assert {package: version for package, version in found.items() if pinned.get(package, version) != version} == {}
    assert locked("lightly")["lightly"] == pinned["lightly"]
    assert ("faiss-gpu" in locked("gpu"), "faiss-cpu" in locked("gpu")) == (True, False)


def test_locks_are_complete_for_the_oldest_python() -> None:
    # Debian 12's; pip refuses a package that has no hash
    oldest = {"python_full_version": "3.11.2", "python_version": "3.11", "extra": ""}
    for name in ("cpu", "test", "image"):
        found = set(locked(name))
        missing = set()
        for package in found:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # of the cluster, which is not installed here
                needs = [Requirement(text) for text in importlib.metadata.requires(package) or ()]
                missing |= {plain(need.name) for need in needs if not need.marker or need.marker.evaluate(oldest)} - found
        assert missing == set(), name


def test_without_torch_removes_torch_and_its_gpu_packages_only() -> None:
    whole = (ROOT / "locks/cpu.txt").read_text()
    left = install.without_torch(whole)  # type: ignore[attr-defined]
    assert not re.search(r"^(torch|torchvision|triton|nvidia-|cuda-)", left, re.MULTILINE)
    gone = set(locked("cpu")) - {plain(line.split("==")[0].split("[")[0]) for line in left.splitlines() if "==" in line}
    assert {"torch", "torchvision", "triton"} <= gone
    assert all(name in ("torch", "torchvision", "triton") or name.startswith(("nvidia-", "cuda-")) for name in gone)


def wheel(folder: Path, name: str, version: str) -> None:
    about = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
             "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"}  # fmt: skip
    inside = {f"{name}/__init__.py": "", **{f"{name}-{version}.dist-info/{key}": text for key, text in about.items()}}
    record = [f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},{len(text)}"
              for path, text in inside.items()]  # fmt: skip
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as file:
        for path, text in inside.items():
            file.writestr(path, text)
        file.writestr(f"{name}-{version}.dist-info/RECORD", "\n".join([*record, f"{name}-{version}.dist-info/RECORD,,"]))


def test_torch_is_installed_from_a_folder_if_named(tmp_path: Path) -> None:
    versions = locked("cpu")
    for name in ("torch", "torchvision"):
        wheel(tmp_path, name, f"{versions[name]}+cpu")
    arguments = install.from_index((ROOT / "locks/cpu.txt").read_text(), str(tmp_path))  # type: ignore[attr-defined]
    command = [sys.executable, "-m", "pip", *arguments, "--target", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"site/torch-{versions['torch']}+cpu.dist-info").exists()


def test_install_warns_that_torch_from_another_index_is_not_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[tuple[str, ...]] = []
    monkeypatch.setattr(install, "pip", lambda *arguments: called.append(arguments))
    monkeypatch.setattr(install, "compile_all", lambda: called.append(("compile",)))
    monkeypatch.setattr(sys, "argv", ["install.py", "cpu", "--torch-index", "https://wheels"])
    monkeypatch.setattr(sys, "platform", "linux")
    install.main()  # type: ignore[attr-defined]
    assert capsys.readouterr().err == "PyTorch comes from https://wheels, and no hash of it is checked\n"
    assert ["--require-hashes" in arguments for arguments in called] == [
        False,
        False,
        True,
        False,
        False,
    ]  # faiss, torch, rest, memlib, bytecode
    monkeypatch.setattr(sys, "argv", ["install.py", "test"])
    called.clear()
    install.main()  # type: ignore[attr-defined]
    assert ["--require-hashes" in arguments for arguments in called] == [False, True, True, False, False]
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_sbom_names_every_locked_package_with_its_hashes(tmp_path: Path) -> None:
    done = subprocess.run(["make", "sbom"], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    listed = json.loads((ROOT / "memlib-cpu.cdx.json").read_text())
    assert listed["bomFormat"] == "CycloneDX"
    found = {plain(component["name"]): component["version"] for component in listed["components"]}
    assert found == locked("cpu")
    assert all(component["externalReferences"][0]["hashes"] for component in listed["components"])
