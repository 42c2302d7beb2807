"""Another user of the machine during an audit: what they can read, write, stop or request."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import Memlib, end_session, resume_step, wait_for

NOBODY = 65534
ATTACK = r"""
asked = json.loads(sys.argv[1])
done = {"entered": [], "read": [], "written": [], "stopped": [], "asked": {}, "lines": []}
for top in asked["folders"]:
    for folder, folders, files in os.walk(top):
        if folder != top:
            done["entered"].append(folder)
        for name in folders:
            path = os.path.join(folder, name)
            for change in (lambda: os.rename(path, path + "-mine"), lambda: open(path + "/mine", "w").close()):
                try:
                    change()
                    done["written"].append(path)
                except OSError:
                    pass
        for name in files:
            path = os.path.join(folder, name)
            try:
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    socket.socket(socket.AF_UNIX).connect(path)
                else:
                    open(path, "rb").read(1)
                done["read"].append(path)
            except OSError:
                pass
            try:
                os.close(os.open(path, os.O_WRONLY))
                done["written"].append(path)
            except OSError:
                pass
for pid in asked["processes"]:
    for name in ("environ", "mem", "maps"):
        try:
            open(f"/proc/{pid}/{name}", "rb").read(1)
            done["read"].append(f"/proc/{pid}/{name}")
        except OSError:
            pass
    try:
        done["lines"].append(open(f"/proc/{pid}/cmdline").read())
        os.kill(pid, 0)
        done["stopped"].append(pid)
    except OSError:
        pass
for host, port in asked["listening"]:
    try:
        done["asked"][f"{port} health"] = urllib.request.urlopen(f"http://{host}:{port}/api/health", timeout=1).status
    except (OSError, http.client.HTTPException):
        continue  # no server of Prefect's
    for path, body in (("flow_runs/filter", b"{}"), ("deployments/filter", b"{}"), ("admin/database/clear", b'{"confirm": true}'),
                       ("work_pools/filter", b"{}"), ("logs/filter", b"{}")):
        request = urllib.request.Request(f"http://{host}:{port}/api/{path}", body, {"Content-Type": "application/json"})
        try:
            done["asked"][f"{port} {path}"] = urllib.request.urlopen(request, timeout=5).status
        except urllib.error.HTTPError as error:
            done["asked"][f"{port} {path}"] = error.code
print(json.dumps(done))
"""
ASK_RAY = r"""
try:
    client = GcsClient(address=sys.argv[1])
    print("told", client.internal_kv_keys(b"", namespace=None, timeout=10))
except Exception as error:
    print("refused", type(error).__name__, error)
"""
BECOME = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); os.chdir('/')\n"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder such as /tmp: everybody may enter it and write there."""
    folder = Path(tempfile.mkdtemp(prefix="m-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def as_nobody(imports: str, code: str, argument: str, **environment: str) -> str:
    """Return the output of a program that becomes another user once it is loaded."""
    done = subprocess.run(
        [sys.executable, "-c", f"import os, sys\n{imports}\n{BECOME}{code}", argument],
        capture_output=True, text=True, timeout=300, env={"PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def listening(processes: list[psutil.Process]) -> dict[tuple[str, int], str]:
    """Address and port of what listens, and which program that is."""
    return {
        (connection.laddr.ip.replace("::", "127.0.0.1"), connection.laddr.port): process.name()
        for process in processes
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.mark.slow
def test_another_user_can_neither_read_nor_write_nor_stop_runs(memlib: Memlib, shared_folder: Path) -> None:
    store, careless = shared_folder / "store", shared_folder / "careless.txt"
    careless.write_text("what the attack can read, if it works")
    careless.chmod(0o666)
    mine = {"TMPDIR": "", "HOME": "", "PREFECT_HOME": "prefect", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "config"}
    memlib = replace(memlib, environment=memlib.environment | {k: str(shared_folder / v) for k, v in mine.items()})
    before = {path: path.stat().st_mtime for path in Path("/dev/shm").iterdir()}
    process = memlib.start(store, "training.epochs=5000", "resources.resume_seconds=1")
    try:
        wait_for(lambda: resume_step(store), process=process)
        own = [p for p in psutil.process_iter() if _session(p) == process.pid]
        (token,), passwords = said_in(own, "RAY_AUTH_TOKEN"), said_in(own, "PREFECT_API_AUTH_STRING")
        assert len(passwords) == 1
        ports = listening(own)
        asked = {"folders": [str(shared_folder)], "processes": [p.pid for p in own], "listening": list(ports)}
        loaded = "import encodings.idna, http.client, json, socket, stat, urllib.error, urllib.request"
        done: dict[str, Any] = json.loads(as_nobody(loaded, ATTACK, json.dumps(asked)))
        assert (done["entered"], done["stopped"]) == ([], [])
        assert done["read"] == done["written"] == [str(careless)]
        assert not [line for line in done["lines"] if token in line or passwords & set(line.split("="))]
        answers = Counter(done["asked"].values())
        assert answers == {200: 1, 401: 5}, (done["asked"], ports)  # that it lives is all that Prefect tells
        new = [path for path in Path("/dev/shm").iterdir() if path not in before and path.exists()]
        assert not [path for path in new if path.stat().st_mode & 0o077]
        gcs = next(port for (_, port), name in ports.items() if name.startswith("gcs_server"))
        for mode, word, answer in (("", "", "refused Auth"), ("token", "0" * 64, "refused Auth"), ("token", token, "told")):
            way = {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": word} if mode else {}
            assert as_nobody("from ray._raylet import GcsClient", ASK_RAY, f"127.0.0.1:{gcs}", **way).startswith(answer)
        assert process.poll() is None
        step = resume_step(store)
        wait_for(lambda: resume_step(store) > step, process=process, seconds=300)
    finally:
        end_session(process.pid)


def said_in(processes: list[psutil.Process], name: str) -> set[str]:
    """The values that a variable has in some processes' environments."""
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found.add(process.environ().get(name, ""))
    return found - {""}


def _session(process: psutil.Process) -> int:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return 0
