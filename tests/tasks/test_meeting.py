"""The network interface by which training workers of several machines reach each other."""

import os
import sys
import types

import pytest
import ray

from tasks.meeting import _name_interface, interface_of

VARIABLE = "GLOO_SOCKET_IFNAME"
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


def test_the_interface_of_an_address_is_found() -> None:
    assert interface_of("127.0.0.1") == LOOPBACK
    assert interface_of("192.0.2.1") is None  # of documentation, on no machine


@pytest.mark.parametrize(("before", "after"), [(None, LOOPBACK), ("eth7", "eth7")], ids=["found", "given by the user"])
def test_gloo_uses_the_interface_of_the_node(monkeypatch: pytest.MonkeyPatch, before: str | None, after: str) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setenv(VARIABLE, before or "")
    if before is None:
        monkeypatch.delenv(VARIABLE)
    _name_interface()
    assert os.environ[VARIABLE] == after


def test_an_interface_that_is_up_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    same = [types.SimpleNamespace(address="fe80::1%b")]
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {"a": same, "b": same})
    monkeypatch.setattr("psutil.net_if_stats", lambda: {name: types.SimpleNamespace(isup=name == "b") for name in "ab"})
    assert interface_of("fe80::1") == "b"


def test_an_address_of_no_interface_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.1")
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(VARIABLE)
    _name_interface()
    assert VARIABLE not in os.environ
