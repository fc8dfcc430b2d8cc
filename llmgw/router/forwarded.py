"""What proxies say of the clients behind them: believed from those that an operator trusts, else thrown away."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Sequence

from llmgw.router.request import Request

ADDRESSES_KEPT_MAX = 1024


class TrustedProxies:
    """The networks that an operator's own proxies are in."""

    def __init__(self, networks: Sequence[str]) -> None:
        """`networks` are as `llmgw.config.origins.parse_network` gives them."""
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self.trusts = functools.lru_cache(ADDRESSES_KEPT_MAX)(self._trusts)
        """Whether an address, as sockets name it, is a trusted proxy's."""

    def pass_on(self, request: Request, address: str) -> None:
        """Let what a trusted proxy said go on to the engine, the proxy's own address added (as nginx does)."""
        if not self.trusts(address):
            return
        before: list[bytes] = []
        for name, value in request.forwarded:
            if name == b"x-forwarded-for":
                before.append(value)
            else:
                request.lines += b"%b: %b\r\n" % (name, value)
        if before:
            request.lines += b"x-forwarded-for: %b, %b\r\n" % (b", ".join(before), address.encode())

    def _trusts(self, address: str) -> bool:
        try:
            at = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        # A socket that takes both names IPv4 addresses so.
        mapped = at.ipv4_mapped if isinstance(at, ipaddress.IPv6Address) else None
        return any((mapped or at) in network for network in self._networks)
