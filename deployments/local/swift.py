"""A real S3 server, in contrast to moto: OpenStack Swift with its S3 interface.

It checks signatures, stores its data durably on disk, and can be killed with -9 and started again with the data it had.
"""

import fcntl
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import botocore.session

from deployments.local.processes import Unexpected, start, wait_for

SWIFT = "swift==2.38.3"
TOOLS = Path(os.environ.get("MEMLIB_TEST_TOOLS", Path(__file__).parents[2] / ".venv" / "tools"))
PARTS = ("account", "container", "object")
KEY = "memlib:u"
SWIFT_CONF = """
[swift-hash]
swift_hash_path_suffix = tests
[storage-policy:0]
name = only
default = yes
"""
STORAGE_CONF = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
disable_fallocate = true
log_level = WARNING
[pipeline:main]
pipeline = {part}-server
[app:{part}-server]
use = egg:swift#{part}
"""
PROXY_CONF = f"""
[DEFAULT]
bind_ip = {{host}}
bind_port = {{port}}
workers = 0
swift_dir = {{folder}}
log_level = WARNING
[pipeline:main]
pipeline =
    catch_errors gatekeeper healthcheck proxy_logging listing_formats bulk s3api tempauth slo dlo versioned_writes symlink
    proxy_logging proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
min_segment_size = 5242880
[filter:tempauth]
use = egg:swift#tempauth
user_{KEY.replace(":", "_")} = {{secret}} .admin
"""
PLAIN = "catch_errors gatekeeper healthcheck proxy_logging listing_formats bulk slo dlo versioned_writes symlink"
PROXY_CONF += "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in PLAIN.split())  # filters without options


class Missing(Exception):
    """Something that Swift needs is not there."""


def install() -> Path:
    """Make a virtual environment with Swift below `TOOLS`, once, and return the folder of its programs.

    Raises:
        Missing: if pip cannot get Swift.
        Unexpected: if pip cannot install it.
    """
    folder = TOOLS / "swift"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run of the tests may be at it
        done = folder / SWIFT
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
            command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--retries", "1"]
            pip = subprocess.run([*command, SWIFT, "setuptools<81"], capture_output=True, text=True, check=False)
            if "from versions: none" in pip.stderr or "Retrying (" in pip.stderr:
                raise Missing(f"pip cannot get {SWIFT} from PyPI: {pip.stderr.strip().splitlines()[-1]}")
            if pip.returncode != 0:
                raise Unexpected(f"pip did not install {SWIFT}: {pip.stderr.strip()}")
            done.touch()
    return folder / "bin"


def free_ports(number: int) -> list[int]:
    """Return ports on loopback below those that outgoing connections get: the server comes back to them."""
    found: list[int] = []
    while len(found) < number:
        port = random.SystemRandom().randrange(15000, 32000)
        with socket.socket() as free:
            if port not in found and free.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found


@dataclass
class SwiftServer:
    """One account of one user, on one device.

    Attributes:
        folder: its data, configuration and logs.
        programs: what `install` returned.
        host: the address of its S3 interface.
        ports: the ports of its processes.
        secret: the secret of its user.
    """

    folder: Path
    programs: Path
    host: str = "127.0.0.1"
    ports: dict[str, int] = field(default_factory=dict)
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    _running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def endpoint(self) -> str:
        """The URL of its S3 interface."""
        return f"http://{self.host}:{self.ports['proxy']}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its clients."""
        return {
            "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": self.secret, "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }  # fmt: skip

    def prepare(self) -> None:
        """Make its device, configuration and rings.

        Raises:
            Missing: if the folder cannot hold its device.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        device = self.folder / "devices" / "d1"
        device.mkdir(parents=True)
        try:
            os.setxattr(device, "user.swift.probe", b"1")
        except (OSError, AttributeError) as error:
            raise Missing(f"Swift needs user xattrs, which {device} does not have: {error}") from error
        self.ports = dict(zip((*PARTS, "proxy"), free_ports(4), strict=True))
        (self.folder / "swift.conf").write_text(SWIFT_CONF)
        for part, port in self.ports.items():
            text = PROXY_CONF if part == "proxy" else STORAGE_CONF
            own = {"host": self.host, "secret": self.secret, "port": port, "folder": self.folder, "part": part}
            (self.folder / f"{part}.conf").write_text(text.format(**own))
        for part in PARTS:
            ring = [str(self.programs / "swift-ring-builder"), str(self.folder / f"{part}.builder")]
            where = f"--region 1 --zone 1 --ip 127.0.0.1 --port {self.ports[part]} --device d1 --weight 1"
            for step in ("create 4 1 1", f"add {where}", "rebalance"):
                subprocess.run([*ring, *step.split()], check=True, capture_output=True)

    def start(self) -> None:
        """Start the server that was prepared, on the ports and data that it had before, if any, and wait until it answers."""
        for part in (*PARTS, "proxy"):
            self._running.append(self._run(part))
        wait_for(self._is_up, "Swift", seconds=60)

    def stop(self) -> None:
        """Kill the server; what it has acknowledged stays."""
        for process in reversed(self._running):  # the proxy first: it needs the others for what it has begun
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(0.1)  # the container learns of an object that was written
        self._running.clear()

    def make_bucket(self, name: str) -> None:
        """Create a bucket."""
        names = {"aws_access_key_id": KEY, "aws_secret_access_key": self.secret, "region_name": "us-east-1"}
        client = botocore.session.get_session().create_client("s3", endpoint_url=self.endpoint, **names)
        client.create_bucket(Bucket=name)

    def log(self) -> str:
        """Return what all its processes have written."""
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))

    def _is_up(self) -> bool:
        if any(process.poll() is not None for process in self._running):
            raise Unexpected(f"Swift has ended: {self.log()[-2000:]}")
        return all(self._answers(part) for part in self.ports)

    def _run(self, part: str) -> subprocess.Popen[bytes]:
        command = [str(self.programs / f"swift-{part}-server"), str(self.folder / f"{part}.conf"), "--verbose"]
        return start(command, os.environ, self.folder / f"{part}.log")

    def _answers(self, part: str) -> bool:
        host = self.host if part == "proxy" else "127.0.0.1"
        try:
            urllib.request.urlopen(f"http://{host}:{self.ports[part]}/healthcheck", timeout=10)
        except urllib.error.HTTPError:
            return True  # only the proxy knows that path
        except OSError:
            return False
        return True
