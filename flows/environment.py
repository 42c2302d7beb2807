"""Environment variables of a process that starts Prefect and Ray, set before either is imported."""

import os


def prepare_environment() -> None:
    """Set defaults for Prefect, and exempt this machine from proxies."""
    _quiet_prefect()
    _reach_this_machine_directly()


def _quiet_prefect() -> None:
    """Set defaults for Prefect: no log output, and enough time to start a local API server."""
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")  # Prefect's telemetry, and its notice


def _reach_this_machine_directly() -> None:
    """Exempt this machine from proxies, as the servers that Ray and Prefect start on it cannot be reached through them."""
    exempt = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host.strip() for host in exempt.split(",") if host.strip()]
    if "*" not in hosts:
        hosts += [host for host in ("127.0.0.1", "localhost", "::1") if host not in hosts]
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)
