"""One address for everything: chosen, checked, and its interface found."""

from __future__ import annotations

import socket
from collections import namedtuple
from typing import Any

import psutil
import pytest

from llmgw.config.agent import AgentConfig
from llmgw.hardware.interfaces import AddressError, choose_address, interface_of

Address = namedtuple("Address", "family address")


def config(server: str = "https://127.0.0.1:8443", **keys: Any) -> AgentConfig:
    return AgentConfig(node_id="node01", server=server, **keys)


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Address]]:
    """A machine with these interfaces; addresses of other families are as psutil gives them."""
    machine = {
        "lo": [Address(socket.AF_INET, "127.0.0.1"), Address(socket.AF_INET6, "::1")],
        "eth0": [
            Address(socket.AF_PACKET, "b8:3f:d2:03:00:01"),
            Address(socket.AF_INET, "169.254.7.7"),
            Address(socket.AF_INET6, "fe80::1%eth0"),
            Address(socket.AF_INET6, "2001:db8::7"),
            Address(socket.AF_INET, "10.0.0.7"),
        ],
        "eth1": [Address(socket.AF_INET6, "fe80::2%eth1"), Address(socket.AF_INET6, "fd00::7")],
        "ib0": [Address(socket.AF_INET6, "fe80::3%ib0")],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: machine)
    return machine


def test_a_management_address_is_taken_as_it_is() -> None:
    assert choose_address(config(mgmt_addr="127.0.0.1")) == "127.0.0.1"


def test_every_loopback_address_is_this_machines_own() -> None:
    assert choose_address(config(mgmt_addr="127.0.0.11")) == "127.0.0.11"
    assert interface_of("127.0.0.11") == interface_of("127.0.0.1") is not None


def test_a_management_address_of_another_machine_is_a_sentence() -> None:
    with pytest.raises(AddressError, match=r"192\.0\.2\.1 is not an address of this machine.*127\.0\.0\.1"):
        choose_address(config(mgmt_addr="192.0.2.1"))


@pytest.mark.usefixtures("interfaces")
@pytest.mark.parametrize(("name", "address"), [("eth0", "10.0.0.7"), ("eth1", "fd00::7"), ("lo", "127.0.0.1")])
def test_an_interface_gives_its_global_address_ipv4_before_ipv6(name: str, address: str) -> None:
    assert choose_address(config(mgmt_interface=name)) == address


@pytest.mark.usefixtures("interfaces")
def test_an_interface_with_link_local_addresses_only_is_a_sentence() -> None:
    with pytest.raises(AddressError, match="'ib0' has no address that other nodes can reach"):
        choose_address(config(mgmt_interface="ib0"))


@pytest.mark.usefixtures("interfaces")
def test_an_interface_that_does_not_exist_is_a_sentence_with_those_that_do() -> None:
    with pytest.raises(AddressError, match=r"'eth9' does not exist.*eth0, eth1, ib0, lo"):
        choose_address(config(mgmt_interface="eth9"))


def test_without_either_it_is_the_address_that_reaches_the_server() -> None:
    assert choose_address(config("https://127.0.0.1:8443")) == "127.0.0.1"
    assert choose_address(config("https://localhost:8443")) in ("127.0.0.1", "::1")


def test_a_server_without_a_port_in_its_address_is_reached_too() -> None:
    assert choose_address(config("https://127.0.0.1")) == "127.0.0.1"


def test_a_server_that_cannot_be_resolved_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(AddressError, match=r"'gateway\.invalid' cannot be resolved.*set mgmt_addr"):
        choose_address(config("https://gateway.invalid:8443"))


def test_a_name_that_is_no_name_is_a_sentence() -> None:
    with pytest.raises(AddressError, match="cannot be resolved"):
        choose_address(config(f"https://{'x' * 70}.example:1"))


@pytest.mark.usefixtures("interfaces")
@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.7", "eth0"),
        ("2001:db8:0:0::7", "eth0"),
        ("fd00::7", "eth1"),
        ("127.0.0.1", "lo"),
        ("127.8.8.8", "lo"),
        ("::1", "lo"),
        ("192.0.2.1", None),
        ("not an address", None),
    ],
)
def test_the_interface_of_an_address_is_found(address: str, name: str | None) -> None:
    assert interface_of(address) == name
