"""The numbers of CPU cores and threads that this process may use, often smaller than the machine's, and its memory."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

LIMIT_OF_THREADS = "OMP_NUM_THREADS"  # environment variable that limits the threads of numerical libraries
CGROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cores(cgroups: Path = CGROUPS, own: Path = OWN) -> int:
    """Return the smallest of CPU affinity, the cgroups' quotas and SLURM_CPUS_ON_NODE where it is set; at least 1.

    Args:
        cgroups: root of the cgroup file system.
        own: file that names this process's cgroups.
    """
    try:
        affinity = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        affinity = os.cpu_count() or 1
    granted = os.environ.get("SLURM_CPUS_ON_NODE", "")
    slurm = [int(granted)] if granted.isdecimal() else []
    return max(1, min([affinity, *slurm, *(math.floor(quota) for quota in _quotas(cgroups, own))]))


def threads(granted: int | None = None) -> int:
    """Return the threads to compute with: all cores, or those granted, limited by OMP_NUM_THREADS where it is set."""
    limit = os.environ.get(LIMIT_OF_THREADS, "").partition(",")[0].strip()  # a list is of nested levels
    most = cores() if granted is None else granted
    return min(most, int(limit)) if limit.isdecimal() and int(limit) else most


def memory() -> int:
    """Return the bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _quotas(cgroups: Path, own: Path) -> Iterator[float]:
    """Yield the CPU quotas, in cores, of this process's cgroups (both versions) and of their ancestors."""
    for line in _text(own).splitlines():
        kinds, path = line.split(":", 2)[1:] if line.count(":") >= 2 else ("", "")
        if kinds not in ("", "cpu", "cpu,cpuacct", "cpuacct,cpu"):
            continue
        place = Path(path.lstrip("/"))
        for inner in (place, *place.parents):
            quota, _, period = _text(cgroups / inner / "cpu.max").strip().partition(" ")
            if kinds:
                base = next((base for base in (cgroups / kinds, cgroups / "cpu") if (base / inner).is_dir()), cgroups)
                quota = _text(base / inner / "cpu.cfs_quota_us").strip()
                period = _text(base / inner / "cpu.cfs_period_us").strip()
            if quota.isdigit() and period.isdigit() and int(period):
                yield int(quota) / int(period)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, ValueError):
        return ""
