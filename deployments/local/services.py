"""PostgreSQL, a Prefect server and workers on one machine, on loopback, with passwords generated for each run."""

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deployments.local.api import Api
from deployments.local.processes import MARK, Unexpected, call, end, free_port, start, wait_for

POOL = "local-process"
PREFECT = (sys.executable, "-m", "prefect", "--no-prompt")


def postgres_binaries() -> Path | None:
    """Return the folder with initdb and postgres: from pg_config, on the PATH, or in Debian's folder; None if not found."""
    candidates = []
    if config := shutil.which("pg_config"):
        answer = subprocess.run([config, "--bindir"], capture_output=True, text=True, check=False)
        candidates.append(Path(answer.stdout.strip()))
    if initdb := shutil.which("initdb"):
        candidates.append(Path(initdb).resolve().parent)
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((path for path in candidates if all((path / name).exists() for name in ("initdb", "postgres"))), None)


def _other_user() -> dict[str, Any]:
    """Return the options that start PostgreSQL as another user if this is root, as it refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise Unexpected("PostgreSQL does not run as root, and there is no user postgres or nobody")


@contextlib.contextmanager
def postgres(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Run a new PostgreSQL cluster on loopback, with a database for Prefect.

    Yields:
        the URL for PREFECT_API_DATABASE_CONNECTION_URL.
    """
    binaries = postgres_binaries()
    if binaries is None:
        raise Unexpected("PostgreSQL not found; install it (Debian: apt-get install postgresql postgresql-contrib)")
    user, password, port, data = _other_user(), secrets.token_urlsafe(24), free_port(), folder / "data"
    folder.mkdir(mode=0o700)
    (folder / "password").write_text(password)
    if user:
        for path in (folder, folder / "password"):
            os.chown(path, user["user"], user["group"])
    access = ["-U", "prefect", "-A", "scram-sha-256", "--pwfile", str(folder / "password")]
    call([str(binaries / "initdb"), "-D", str(data), *access], environment, cwd=folder, **user)
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"]
    log = folder.parent / "postgres.log"
    server = start([str(binaries / "postgres"), "-D", str(data), "-p", str(port), *options], environment, log, **user)
    try:
        client = dict(environment) | {"PGPASSWORD": password}
        ask = [str(binaries / "psql"), "-h", "127.0.0.1", "-p", str(port), "-U", "prefect", "-qXc"]
        wait_for(lambda: _answers([*ask, "select 1", "postgres"], client), "PostgreSQL", seconds=60)
        call([*ask, "create database prefect", "postgres"], client, cwd=folder.parent)
        call([*ask, "create extension pg_trgm", "prefect"], client, cwd=folder.parent)
        yield f"postgresql+asyncpg://prefect:{password}@127.0.0.1:{port}/prefect"
    finally:
        end(server)


def _answers(command: list[str], environment: Mapping[str, str]) -> bool:
    return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def prefect_server(folder: Path, environment: Mapping[str, str], database: str) -> Iterator[tuple[Api, dict[str, str]]]:
    """Run a password-protected Prefect server on loopback, with PostgreSQL as its database.

    Yields:
        its API, and the environment for its clients.
    """
    port, password = free_port(), f"admin:{secrets.token_urlsafe(24)}"
    own = dict(environment) | {
        "PREFECT_API_DATABASE_CONNECTION_URL": database,
        "PREFECT_SERVER_API_AUTH_STRING": password,
        "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "5",
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "5",  # by default a new schedule waits for a minute
    }
    command = [*PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    server = start(command, own, folder / "server.log")
    api = Api(f"http://127.0.0.1:{port}/api", password)
    try:
        wait_for(lambda: server.poll() is not None or api.healthy(), "the Prefect server", seconds=180)
        if server.poll() is not None:
            raise Unexpected(f"the Prefect server ended: {(folder / 'server.log').read_text()[-2000:]}")
        yield api, dict(environment) | {"PREFECT_API_URL": api.url, "PREFECT_API_AUTH_STRING": password}
    finally:
        end(server)


def start_worker(folder: Path, environment: Mapping[str, str], name: str) -> subprocess.Popen[bytes]:
    """Start a worker of the local pool that polls for work every two seconds."""
    own = dict(environment) | {"PREFECT_WORKER_QUERY_SECONDS": "2"}
    command = [*PREFECT, "worker", "start", "--pool", POOL, "--name", name]
    return start(command, own, folder / f"{name}.log", cwd=folder)


def environment_for(folder: Path, mark: str) -> dict[str, str]:
    """Return an environment that neither reads nor writes the user's Prefect settings and caches."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MEMLIB_", "RAY_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return kept | {
        MARK: mark, "PATH": path, "MEMLIB_STORE": str(folder / "store"), "PREFECT_HOME": str(folder / "prefect"),
        "XDG_CACHE_HOME": str(folder / "cache"), "XDG_CONFIG_HOME": str(folder / "config"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "COLUMNS": "200",
    }  # fmt: skip
