"""Which address this node goes by, and which interface holds it. One choice serves engines, rendezvous and
NCCL alike, so that no two parts of a replica disagree about where a node is.
"""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

import psutil

from llmgw.config.agent import AgentConfig
from llmgw.config.errors import SentenceError

_ROUTE_PORT = 443
_NAMES_SHOWN_MAX = 16
# Bridges and ends of pipes to containers and VMs of this machine; addresses on them are the same everywhere.
_INNER_INTERFACES = ("docker", "br-", "veth", "virbr", "cni", "flannel", "lxcbr", "lxdbr", "podman")


class AddressError(SentenceError):
    """No address that other nodes could reach; the message is a sentence with the remedy."""


def choose_address(config: AgentConfig) -> str:
    """The node's management address: `mgmt_addr`, else that of `mgmt_interface`, else the one that this
    machine would speak to the server from. Never a link-local one. Blocks for as long as the server's name
    takes to resolve. Raises AddressError.
    """
    if config.mgmt_addr is not None:
        return _check_own(config.mgmt_addr)
    if config.mgmt_interface is not None:
        return _address_of_interface(config.mgmt_interface)
    return _source_address(config.server)


def interface_of(address: str) -> str | None:
    """The name of the interface that holds `address`, or None. All of 127.0.0.0/8 is on `lo`."""
    wanted = _parse(address)
    if wanted is None:
        return None
    loopback: str | None = None
    for name, addresses in _interfaces().items():
        if wanted in addresses:
            return name
        if loopback is None and any(own.is_loopback for own in addresses):
            loopback = name
    return loopback if wanted.is_loopback else None


def reachable_addresses() -> list[str]:
    """This machine's addresses that others may dial: no loopback, nothing link-local, no bridge of containers."""
    return [
        str(ip)
        for name, addresses in _interfaces().items()
        if not name.startswith(_INNER_INTERFACES)
        for ip in addresses
        if not (ip.is_loopback or ip.is_link_local or ip.is_unspecified)
    ]


_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def _interfaces() -> dict[str, list[_IpAddress]]:
    """Interface name → its IP addresses, in the kernel's order."""
    return {
        name: [
            parsed
            for entry in entries
            if entry.family in (socket.AF_INET, socket.AF_INET6) and (parsed := _parse(entry.address))
        ]
        for name, entries in psutil.net_if_addrs().items()
    }


def _parse(text: str) -> _IpAddress | None:
    try:
        # Link-local IPv6 addresses come with their interface: fe80::1%eth0.
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _check_own(address: str) -> str:
    """`mgmt_addr`, when a socket of this machine may use it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        own = [str(ip) for ips in _interfaces().values() for ip in ips if not ip.is_link_local]
        raise AddressError(
            f"mgmt_addr {address} is not an address of this machine ({error.strerror or error}); "
            f"it has {_list(own)}. Correct mgmt_addr in agent.yaml"
        ) from None
    return address


def _address_of_interface(name: str) -> str:
    interfaces = _interfaces()
    if name not in interfaces:
        raise AddressError(
            f"mgmt_interface {name!r} does not exist on this machine; it has {_list(sorted(interfaces))}. "
            "Correct mgmt_interface in agent.yaml"
        )
    usable = [ip for ip in interfaces[name] if not ip.is_link_local and not ip.is_unspecified]
    if not usable:
        raise AddressError(
            f"mgmt_interface {name!r} has no address that other nodes can reach; give it one, or name another "
            "interface in agent.yaml"
        )
    return str(min(usable, key=_preference))


def _preference(ip: _IpAddress) -> tuple[bool, bool]:
    """Global before loopback, IPv4 before IPv6; `min` keeps the kernel's order among equals."""
    return ip.is_loopback, ip.version == 6


def _source_address(server: str) -> str:
    """The address from which this machine's routes lead to the server. Nothing is sent."""
    parts = urlsplit(server)
    host, port = parts.hostname or "", parts.port or _ROUTE_PORT
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise AddressError(
            f"the server's name {host!r} cannot be resolved ({_reason(error)}), so the address that reaches it "
            "is unknown; correct server in agent.yaml, or set mgmt_addr"
        ) from None
    problem = "it has no address"
    for family, kind, protocol, _, target in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # A UDP connect asks the routing table and sends nothing (connect(2), udp(7)).
                probe.connect(target)
                source = str(probe.getsockname()[0])
        except OSError as error:
            problem = _reason(error)
            continue
        parsed = _parse(source)
        if parsed is None or parsed.is_link_local or parsed.is_unspecified:
            problem = f"the route leaves from {source}, which is link-local"
            continue
        return str(parsed)
    raise AddressError(
        f"no address of this machine reaches the server {host!r}: {problem}. Set mgmt_addr or mgmt_interface in "
        "agent.yaml"
    )


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN_MAX]) or "none"
    return shown + (" …" if len(names) > _NAMES_SHOWN_MAX else "")
