"""Slurm with two nodes on one machine, on loopback, with a munge of its own."""

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deployments.local.processes import Unexpected, call, command_of, end, free_port, kill, start, wait_for, with_variable

NODES = ("n1", "n2")
DAEMONS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd"}
COMMANDS = ("sbatch", "srun", "scontrol", "scancel", "sinfo")
SYSTEM_FOLDERS = ("/usr/sbin", "/sbin", "/usr/local/sbin")  # not on the PATH of every user
ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")


def search_path() -> str:
    """Return the PATH on which Slurm's daemons and commands are looked for."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS])


def missing(path: str) -> str:
    """Return one line that names the programs that a PATH lacks and how to install them; "" if it has all."""
    lacking = [name for name in (*DAEMONS, *COMMANDS) if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(lacking)} (Debian: apt-get install slurm-wlm munge)" if lacking else ""


def configuration(folder: Path, ports: Mapping[str, int], *, user: str, host: str, first_job: int) -> str:
    """Return a slurm.conf of two nodes of one core each on this machine, without cgroups and accounting.

    Args:
        folder: folder of munge's socket, states, spools and logs.
        ports: ports of slurmctld and of each node.
        user: the user who runs all daemons.
        host: this machine's name.
        first_job: id of the first job.
    """
    names = "".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[name]} CPUs=1 RealMemory=4000 State=UNKNOWN\n"
        for name in NODES
    )
    return f"""ClusterName=drill
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports["slurmctld"]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
JobRequeue=1
ReturnToService=2
SlurmdTimeout=20
KillWait=30
MinJobAge=86400
FirstJobId={first_job}
{names}PartitionName=drill Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Cluster:
    """A running Slurm: its folder, the environment of its users, and its daemons by name."""

    folder: Path
    environment: Mapping[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, *command: str) -> None:
        """Start a daemon in the foreground of its own session."""
        self.daemons[name] = start(command, self.environment, self.folder / f"{name}.out")

    def start_node(self, name: str) -> None:
        """Start a node, for the first time or after its loss, and wait until it takes jobs."""
        self.start(name, "slurmd", "-D", "-N", name)
        wait_for(lambda: self.node_state(name).startswith(("idle", "mix", "alloc")), f"node {name}", seconds=90)

    def node_state(self, name: str) -> str:
        """Return the state of a node, such as idle or down*."""
        return call(["sinfo", "--noheader", "--nodes", name, "--format=%T"], self.environment).strip()

    def lose_node(self, name: str) -> None:
        """Kill a node's slurmd and everything that runs on it, at once, as if its power were cut."""
        ours = self._jobs_on(name)
        keepers = {parent for pid in ours if (parent := _parent(pid)) and command_of(parent).startswith("slurmstepd")}
        kill([self.daemons.pop(name).pid, *keepers, *ours])

    def lose_step(self, name: str) -> None:
        """Kill the processes of jobs on a node, as if its memory had run out."""
        kill(self._jobs_on(name))

    def _jobs_on(self, name: str) -> list[int]:
        return [pid for pid in with_variable("SLURMD_NODENAME", name) if self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        try:
            return f"SLURM_CONF={self.environment['SLURM_CONF']}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    def submit(self, *arguments: str) -> int:
        """Submit a batch job, and return its id."""
        return int(call(["sbatch", "--parsable", *arguments], self.environment, cwd=self.folder))

    def job(self, job: int | str) -> dict[str, str]:
        """Return what Slurm says of a job; of the tasks of a job array, name one as JOB_TASK."""
        said = call(["scontrol", "--oneliner", "show", "job", str(job)], self.environment)
        return dict(part.split("=", 1) for part in said.split() if "=" in part)

    def ended(self, job: int | str, *, seconds: float = 900) -> dict[str, str]:
        """Wait until a job has ended, and return what Slurm says of it."""

        def done() -> dict[str, str] | None:
            found = self.job(job)
            return found if found["JobState"] in ENDED else None

        return wait_for(done, f"job {job} to end", seconds=seconds)

    def queued_again(self, job: int, *, times: int, seconds: float = 300) -> None:
        """Wait until a job is in the queue once more."""

        def is_pending() -> bool:
            found = self.job(job)
            return (found["JobState"], found["Restarts"]) == ("PENDING", str(times))

        wait_for(is_pending, f"job {job} to be queued again", seconds=seconds)

    def run_now(self, job: int) -> None:
        """Start a job that was queued again without the two minutes for which Slurm puts it off."""
        call(["scontrol", "update", f"JobId={job}", "StartTime=now", "TimeLimit=60"], self.environment)
        wait_for(lambda: self.job(job)["JobState"] == "RUNNING", f"job {job} to run", seconds=120)


@contextlib.contextmanager
def slurm(folder: Path, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Run munge, slurmctld and two nodes in a folder, and end them.

    Args:
        folder: a folder with a short path.
        environment: environment of the daemons and, with SLURM_CONF in it, of the users.

    Raises:
        Unexpected: if a program is missing or a daemon does not start.
    """
    if lacking := missing(environment["PATH"]):
        raise Unexpected(lacking)
    own = dict(environment) | {"SLURM_CONF": str(folder / "slurm.conf")}
    ports = {name: free_port() for name in ("slurmctld", *NODES)}
    host, first = socket.gethostname().partition(".")[0], 1 + secrets.randbelow(9000)
    text = configuration(folder, ports, user=getpass.getuser(), host=host, first_job=first)
    (folder / "slurm.conf").write_text(text)
    cluster = Cluster(folder, own)
    try:
        _start_munge(cluster)
        cluster.start("slurmctld", "slurmctld", "-D")
        for name in NODES:
            cluster.start_node(name)
        yield cluster
    finally:
        for daemon in reversed(cluster.daemons.values()):
            end(daemon)


def _start_munge(cluster: Cluster) -> None:
    folder = cluster.folder / "munge"
    folder.mkdir(mode=0o711)
    (folder / "key").touch(mode=0o600)
    (folder / "key").write_bytes(secrets.token_bytes(1024))
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    cluster.start(
        "munged", "munged", "--foreground", "--force", *(f"--{name}={folder / file}" for name, file in files.items())
    )
    wait_for((folder / "socket").exists, "munge", seconds=30)
    time.sleep(1)  # it listens a moment after the socket exists


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return None
