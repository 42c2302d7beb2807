"""The drill between machines: what it says where something is missing, and machines, where they can be made."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.cluster import drill, machines
from deployments.local.drill import TINY
from memlib.recipes.request import AuditRequest

ROOT = Path(__file__).parents[2]
LACKING = machines.missing()
# what a machine reaches before, while and after its cable is cut, what it sees in its own folder, and what is left of it
TRIAL = """
import os, pathlib, subprocess, sys
from deployments.cluster.machines import HERE, Machine, enter
enter("trial", [])
folder = pathlib.Path(sys.argv[1])
own = folder / "own"
own.mkdir()
machine = Machine("n1", 11, own, folder / "disks" / "n1")
machine.boot(os.environ)

def reaches():
    program = f"import socket; socket.create_connection(('{HERE}', 7000), timeout=2)"
    return subprocess.run(machine.command(sys.executable, "-c", program), capture_output=True).returncode == 0

import socket
listening = socket.create_server((HERE, 7000))
said = [reaches()]
machine.cut()
said.append(reaches())
machine.mend()
said.append(any(reaches() for _ in range(10)))  # it may take a moment
machine.slow_down("1mbit")
machine.speed_up()
subprocess.run(machine.command("touch", str(own / "file")), check=True)
said += [list(own.iterdir()), [path.name for path in machine.disk.iterdir()]]
sleeping = subprocess.Popen(machine.command("sleep", "600"))
while not machine.runs("sleep 600"):
    pass
machine.lose_power()
said.append(sleeping.wait())
print(said)
"""


@pytest.mark.skipif(bool(LACKING), reason=LACKING)
def test_a_machine_has_a_cable_and_a_disk_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "trial.py").write_text(TRIAL.replace("sys.argv[1]", repr(str(tmp_path))))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    before = sorted(os.listdir("/sys/class/net"))
    done = subprocess.run(
        [sys.executable, "-m", "trial"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "unshare failed: Operation not permitted" in done.stderr:
        pytest.skip("root may not make namespaces here")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[True, False, True, [], ['file'], -9]\n", done.stdout + done.stderr
    assert sorted(os.listdir("/sys/class/net")) == before


@pytest.mark.parametrize("who", ["user", "root"])
def test_missing_programs_and_rights_take_one_line(
    who: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0 if who == "root" else 1000)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(drill, "install", lambda: pytest.fail("installed"))
    monkeypatch.setattr(drill, "enter", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(sys, "argv", ["drill"])
    assert drill.main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    expected = {
        "user": "needs Linux, and root",
        "root": "not installed (Debian: apt-get install e2fsprogs iproute2 util-linux)",
    }
    assert said.startswith(expected[who])


def test_the_audit_of_the_drill_is_valid() -> None:
    assert AuditRequest.read(str(TINY), drill.LONGER, expected="deja-vu").recipe.title == "drill"
