"""Ports that a demo, or a test, tells to its programs."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from llmgw.sim.claims import OTHER_PORTS, free_port

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_port_that_is_preferred_is_given_to_one_at_a_time() -> None:
    wanted, first = free_port("127.0.0.1", 0)
    first.close()
    with free_port("127.0.0.1", wanted)[1]:
        other, claimed = free_port("127.0.0.1", wanted)
        claimed.close()
        assert other != wanted
    again, claimed = free_port("127.0.0.1", wanted)
    claimed.close()
    assert again == wanted


def test_a_port_that_something_listens_on_is_not_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other, claimed = free_port("127.0.0.1", taken.getsockname()[1])
        claimed.close()
        assert other in OTHER_PORTS


def test_no_port_is_one_that_a_connection_may_be_given() -> None:
    if not EPHEMERAL.exists():
        pytest.skip("this system does not say which ports connections get")
    low, high = map(int, EPHEMERAL.read_text().split())
    for host in ("127.0.0.1", "127.0.0.7"):
        port, claimed = free_port(host, 0)
        claimed.close()
        assert not low <= port <= high
