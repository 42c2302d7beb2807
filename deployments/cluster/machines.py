"""Machines made of namespaces of this one: own network, own disk, and a cable to a bridge that can be cut or slowed.

The program that makes them has namespaces of its own, too (`enter`), so that the host's network stays as it is and all
processes and mounts end with the program. Linux only, as root.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deployments.local.processes import Unexpected, call, end, kill, start, wait_for

HERE = "10.88.0.1"  # the address of the program and of all services
BRIDGE = "memlib"
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mkfs.ext4": "e2fsprogs"}
ENTERED = "MEMLIB_DRILL_ENTERED"
THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")  # of cgroups' version 1, for all processes


def missing() -> str:
    """Return one line that says what this host lacks; "" if it lacks nothing."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs Linux, and root, who alone makes namespaces and bridges"
    lacking = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    return f"not installed (Debian: apt-get install {' '.join(sorted(lacking))})" if lacking else ""


def enter(module: str, arguments: Sequence[str]) -> None:
    """Run this module again in new namespaces, as their first process; return if this is that process already."""
    if os.environ.pop(ENTERED, None) is None:
        namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["unshare", *namespaces, sys.executable, "-m", module, *arguments]
        os.execvpe("unshare", command, os.environ | {ENTERED: "1"})
    environment = os.environ
    for step in (
        "ip link set lo up",
        f"ip link add {BRIDGE} type bridge",
        f"ip address add {HERE}/24 dev {BRIDGE}",
        f"ip link set {BRIDGE} up",
    ):
        call(step.split(), environment)


@dataclass
class Machine:
    """A machine on the bridge, with its own network and its own content of one folder.

    Attributes:
        name: its name, of at most 12 characters.
        number: last part of its address.
        own: a folder that each machine sees with its own content.
        disk: where this content lies.
    """

    name: str
    number: int
    own: Path
    disk: Path
    _holder: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def address(self) -> str:
        """Its address."""
        return f"{HERE.rpartition('.')[0]}.{self.number}"

    def boot(self, environment: Mapping[str, str]) -> None:
        """Make its namespaces, plug its cable in and mount its disk."""
        self.disk.mkdir(parents=True, exist_ok=True)
        log = self.disk.with_suffix(".log")
        self._holder = start(["unshare", "--net", "--mount", "sleep", "infinity"], environment, log)
        own = f"/proc/{self._holder.pid}/ns/net"
        wait_for(lambda: os.readlink(own) != os.readlink("/proc/self/ns/net"), f"the namespaces of {self.name}", seconds=30)
        for step in (
            f"ip link add {self._cable} type veth peer name {self._cable}p",
            f"ip link set {self._cable}p netns {self._holder.pid}",
            f"ip link set {self._cable} master {BRIDGE} up",
        ):
            call(step.split(), environment)
        for step in (
            "ip link set lo up",
            f"ip link set {self._cable}p name eth0",
            f"ip address add {self.address}/24 dev eth0",
            "ip link set eth0 up",
            f"mount --bind {self.disk} {self.own}",
        ):
            call(self.command(*step.split()), environment)

    @property
    def _cable(self) -> str:
        return f"m{self.name}"

    @property
    def _pid(self) -> int:
        if self._holder is None:
            raise Unexpected(f"machine {self.name} has no power")
        return self._holder.pid

    def command(self, *command: str) -> list[str]:
        """Return a command as it is run on the machine."""
        return ["nsenter", "--target", str(self._pid), "--net", "--mount", "--", *command]

    def cut(self) -> None:
        """Cut the cable: no packet passes, and no side is told."""
        call(["ip", "link", "set", self._cable, "down"], os.environ)

    def mend(self) -> None:
        """Mend the cable that was cut."""
        call(["ip", "link", "set", self._cable, "up"], os.environ)

    def slow_down(self, rate: str) -> None:
        """Let at most this rate through, in each direction, as in `2mbit`."""
        limit = f"root tbf rate {rate} burst 64kbit latency 500ms"
        call(f"tc qdisc replace dev {self._cable} {limit}".split(), os.environ)
        call(self.command(*f"tc qdisc replace dev eth0 {limit}".split()), os.environ)

    def speed_up(self) -> None:
        """End the limit of `slow_down`."""
        call(f"tc qdisc del dev {self._cable} root".split(), os.environ)
        call(self.command("tc", "qdisc", "del", "dev", "eth0", "root"), os.environ)

    def processes(self) -> list[int]:
        """Return the processes on the machine."""
        own, found = os.readlink(f"/proc/{self._pid}/ns/net"), []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(folder / "ns" / "net") == own:
                    found.append(int(folder.name))
            except OSError:
                continue  # it has ended in the meantime
        return found

    def runs(self, words: str) -> bool:
        """Return whether a process with these words in its command runs on the machine."""
        return any(words in _command(pid) for pid in self.processes())

    def lose_power(self) -> None:
        """Kill all that runs on the machine at once, and its network with it."""
        kill(self.processes())
        if self._holder is not None:
            end(self._holder)
        self._holder = None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except (OSError, UnicodeDecodeError):
        return ""


@contextlib.contextmanager
def slow_disk(image: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a new disk of this size beside its image, and let it write at most 2 MiB a second for now.

    The limit is of the device and counts for all processes; the device ends with the namespaces that mounted it.

    Yields:
        the disk.

    Raises:
        Unexpected: if the host has no version 1 of the blkio controller.
    """
    if not THROTTLE.exists():
        raise Unexpected(f"this host cannot slow a disk down: it has no {THROTTLE}")
    disk = image.with_suffix("")
    disk.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(mebibytes * 2**20)
    call(["mkfs.ext4", "-q", str(image)], os.environ)
    call(["mount", "-o", "loop", str(image), str(disk)], os.environ)
    device = disk.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    THROTTLE.write_text(f"{name} {2 * 2**20}")
    try:
        yield disk
    finally:
        THROTTLE.write_text(f"{name} 0")  # no limit
