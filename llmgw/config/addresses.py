"""host:port, written and read in one place, IPv6 included."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator

_HOSTNAME = re.compile(
    r"^(?=.{1,253}$)([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\.?$"
)


def join_host_port(host: str, port: int) -> str:
    """`10.0.0.1`, 80 → `10.0.0.1:80`; `::1`, 80 → `[::1]:80`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> tuple[str, int]:
    """The opposite of `join_host_port`. An empty host (`:8080`) means every address and is refused.

    Raises ValueError with a sentence.
    """
    host, colon, port_text = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host.partition("%")[0])
        except ValueError:
            raise ValueError(f"{text!r} is not host:port: {host!r} is not an IPv6 address") from None
    elif ":" in host:
        raise ValueError(f"{text!r} is not host:port: put the IPv6 address into brackets, like [::1]:8080")
    elif not _HOSTNAME.match(host):
        raise ValueError(f"{text!r} is not host:port; write for example 127.0.0.1:8080 or [::1]:8080")
    if not colon or not port_text.isascii() or not port_text.isdigit() or not 0 <= int(port_text) <= 65535:
        raise ValueError(f"{text!r} is not host:port: {port_text!r} is not a port from 0 to 65535")
    return host, int(port_text)


def is_loopback(host: str) -> bool:
    """True for 127.0.0.0/8, ::1 and the name localhost; False for every other name."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def overlap(one: str, other: str) -> bool:
    """True when two listeners, each `host:port`, would need the same port of one address; never for port 0."""
    (host, port), (other_host, other_port) = split_host_port(one), split_host_port(other)
    if port == 0 or port != other_port:
        return False
    hosts = {"127.0.0.1" if each.lower() == "localhost" else each for each in (host, other_host)}
    # `::` takes IPv4 too.
    return len(hosts) == 1 or bool(hosts & {"0.0.0.0", "::"})


def _host_port(value: str) -> str:
    host, port = split_host_port(value)
    return join_host_port(host, port)


HostPort = Annotated[str, AfterValidator(_host_port)]
"""`host:port` as a string, checked; `split_host_port` takes it apart."""
