"""Machines made of namespaces of this one: own network, own disk, and a cable to a bridge that can be cut or slowed.

The program that makes them has namespaces of its own, too (`enter`), so that the host's network stays as it is, and so that
all processes and mounts end with the program. Linux only, as root.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deployments.local.processes import Unexpected, call, command_of, descendants, end, kill, start, wait_for
from deployments.local.steps import NotHere

HERE = "10.88.0.1"  # the address of the program on the bridge
BRIDGE = "memlib"
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mkfs.ext4": "e2fsprogs"}
ENTERED = "MEMLIB_DRILL_ENTERED"
THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")  # of cgroups' version 1
SLOW = 2 * 2**20  # bytes a second that a slow disk writes
TRIAL = 2**20  # bytes that are sent to see how fast a cable is


def missing() -> str:
    """Return one line that says what this host lacks; "" if it lacks nothing."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "needs Linux, and root, who alone makes namespaces and bridges"
    lacking = {package for program, package in PROGRAMS.items() if shutil.which(program) is None}
    return f"not installed (Debian: apt-get install {' '.join(sorted(lacking))})" if lacking else ""


def enter(module: str, arguments: Sequence[str]) -> None:
    """Run a module again in new namespaces, as their first process, and exit with its status; return if this is that process.

    SIGTERM is passed on to that process.
    """
    if not (os.environ.pop(ENTERED, None) and os.getpid() == 1):
        before = _limits()
        namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = ["unshare", *namespaces, sys.executable, "-m", module, *arguments]
        with subprocess.Popen(command, env=os.environ | {ENTERED: "1"}) as running:
            signal.signal(signal.SIGTERM, lambda number, _: _pass_on(running.pid, number))
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to that process, too
            status = running.wait()
        for limit in _limits() - before:  # left by a program that was killed
            THROTTLE.write_text(f"{limit.split()[0]} 0")
        sys.exit(status if status >= 0 else 128 - status)
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("no_proxy"), HERE, "127.0.0.1"]))
    for step in (
        "ip link set lo up",
        f"ip link add {BRIDGE} type bridge",
        f"ip address add {HERE}/24 dev {BRIDGE}",
        f"ip link set {BRIDGE} up",
    ):
        call(step.split(), os.environ)


def _limits() -> set[str]:
    return set(THROTTLE.read_text().splitlines()) if THROTTLE.exists() else set()


def _pass_on(parent: int, number: int) -> None:
    for child in descendants(parent)[:1]:
        os.kill(child, number)


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
    _network: str = field(default="", init=False)

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
        self._network = os.readlink(own)
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
    def is_on(self) -> bool:
        """Whether it has power."""
        return self._holder is not None

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
        """Cut the cable: no packet passes, and no connection is closed."""
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
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(folder / "ns" / "net") == self._network:
                    found.append(int(folder.name))
            except OSError:
                continue  # it has ended in the meantime
        return found

    def runs(self, words: str) -> bool:
        """Return whether a process with these words in its command runs on the machine."""
        return any(words in command_of(pid) for pid in self.processes())

    def lose_power(self) -> None:
        """Cut the cable, then kill all that runs on the machine: nobody hears of it."""
        self.cut()
        while running := self.processes():
            kill(running)
        assert self._holder is not None
        end(self._holder)
        self._holder = None
        with contextlib.suppress(Unexpected):  # it goes with the namespace, sooner or later
            call(["ip", "link", "delete", self._cable], os.environ)

    def seconds_of_a_transfer(self) -> float:
        """Return how long the machine takes to receive a mebibyte over its cable."""
        with socket.create_server((HERE, 0)) as listening:
            port = listening.getsockname()[1]
            program = f"import socket; s = socket.create_connection(('{HERE}', {port}))\nwhile s.recv(65536): pass"
            receiving = subprocess.Popen(self.command(sys.executable, "-c", program))
            connection, _ = listening.accept()
            began = time.monotonic()
            with connection:
                connection.sendall(bytes(TRIAL))
            receiving.wait(timeout=60)
            return time.monotonic() - began


@contextlib.contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a new disk of this size, which nothing may use after the block.

    Yields:
        the disk, which `fill` fills.
    """
    folder.mkdir(parents=True)
    call(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)], os.environ)
    try:
        yield folder
    finally:
        call(["umount", "--lazy", str(folder)], os.environ)


def fill(disk: Path) -> Path:
    """Fill a disk to the last byte with one file, and return it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(65536))
    return filler


@contextlib.contextmanager
def slow_disk(image: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a new disk of this size beside its image, and limit what is written to it to 2 MiB/s within this block.

    Yields:
        the disk, which nothing may use after the block.

    Raises:
        NotHere: if the host cannot slow a disk down.
    """
    if not THROTTLE.exists():
        raise NotHere(f"this host cannot slow a disk down: it has no {THROTTLE}")
    disk = image.with_suffix("")
    disk.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(mebibytes * 2**20)
    call(["mkfs.ext4", "-q", str(image)], os.environ)
    call(["mount", "-o", "loop", str(image), str(disk)], os.environ)
    device = disk.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    try:
        THROTTLE.write_text(f"{name} {SLOW}")
        _check_slowness(disk / "trial")
        yield disk
    finally:
        THROTTLE.write_text(f"{name} 0")  # no limit
        call(["umount", "--lazy", str(disk)], os.environ)


def _check_slowness(file: Path) -> None:
    began = time.monotonic()
    with file.open("wb") as trial:
        trial.write(os.urandom(3 * SLOW))
        trial.flush()
        os.fsync(trial.fileno())
    if time.monotonic() - began < 2:
        raise NotHere("this host cannot slow a disk down: the limit has no effect")
    file.unlink()
