"""Prefect sends nothing to its makers, unless the user has said otherwise; proxies do not stand before this machine."""

import os
import subprocess
import sys

import pytest

from flows.environment import prepare_environment

NAMES = ("DO_NOT_TRACK", "PREFECT_SERVER_ANALYTICS_ENABLED")


@pytest.mark.parametrize(("own", "expected"), [({}, ("1", "false")), (dict.fromkeys(NAMES, "0"), ("0", "0"))])
def test_telemetry_is_off_unless_the_user_sets_it(
    own: dict[str, str], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(own))
    prepare_environment()
    assert tuple(os.environ[name] for name in NAMES) == expected


def test_prefect_analytics_are_disabled_by_the_prepared_environment() -> None:
    program = """
from flows.environment import prepare_environment
prepare_environment()
from prefect.settings import get_current_settings
print(get_current_settings().server.analytics_enabled)
"""
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert ended.stdout.split() == ["False"], ended.stderr
