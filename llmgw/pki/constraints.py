"""Names and addresses: reading them, and the root's name constraints that every certificate must keep.

The root may be trusted system-wide, so it can only sign for what the operator names. What OpenSSL would
refuse in the handshake is refused here when it is issued, with a sentence.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509

from llmgw.messages.agent import NODE_ID_PATTERN
from llmgw.pki.errors import PkiError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# RFC 6761 (localhost), RFC 6762 (local), RFC 8375 (home.arpa), ICANN 2024 (internal); lan is what home
# routers hand out and is not delegated.
DEFAULT_DNS = ("localhost", "local", "lan", "internal", "home.arpa")
# RFC 1122 and RFC 4291 loopback, RFC 1918, RFC 6598 (carriers and overlay networks), RFC 4193.
DEFAULT_IP = (
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "::1/128",
    "fc00::/7",
)
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True)
class Constraints:
    """What a root may sign for: DNS names (each with everything below it) and networks."""

    dns: tuple[str, ...]
    networks: tuple[Network, ...]

    @classmethod
    def choose(cls, dns: Iterable[str], ip: Iterable[str], own_name: str = "") -> Constraints:
        """What the operator named. A kind of which nothing was named gets private names or addresses only.

        `own_name` is the host's own full name; its domain is added to the default names. Both kinds are always
        constrained, because a kind that a certificate does not mention is not constrained at all (RFC 5280,
        4.2.1.10). Raises PkiError.
        """
        names = [_parse_suffix(text) for text in dns] or [*DEFAULT_DNS, *own_domain(own_name)]
        networks = [_parse_network(text) for text in ip] or [ipaddress.ip_network(text) for text in DEFAULT_IP]
        return cls(tuple(dict.fromkeys(names)), tuple(dict.fromkeys(networks)))

    @classmethod
    def of(cls, root: x509.Certificate) -> Constraints:
        """The constraints that a root carries. Raises PkiError when it carries none."""
        try:
            permitted = root.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees
        except x509.ExtensionNotFound:
            raise PkiError(
                "The root certificate has no name constraints, so it was not made by `llmgw ctl cert init-ca`. "
                "Make a new authority in a folder of its own."
            ) from None
        subtrees = permitted or []
        return cls(
            tuple(name.value for name in subtrees if isinstance(name, x509.DNSName)),
            tuple(
                name.value
                for name in subtrees
                if isinstance(name, x509.IPAddress)
                and isinstance(name.value, (ipaddress.IPv4Network, ipaddress.IPv6Network))
            ),
        )

    def extension(self) -> x509.NameConstraints:
        """These constraints as an X.509 extension."""
        return x509.NameConstraints(
            permitted_subtrees=[
                *(x509.DNSName(name) for name in self.dns),
                *(x509.IPAddress(network) for network in self.networks),
            ],
            excluded_subtrees=None,
        )

    def permits(self, host: str | Address) -> bool:
        """True when a certificate for `host` holds under these constraints."""
        if isinstance(host, str):
            return any(host == name or host.endswith(f".{name}") for name in self.dns)
        return any(host in network for network in self.networks)

    def check(self, host: str | Address) -> None:
        """Raise PkiError when a certificate for `host` would be refused in the handshake."""
        if self.permits(host):
            return
        if isinstance(host, str):
            kind, option, permitted = "name", "--permit-dns", ", ".join(self.dns)
        else:
            kind, option, permitted = "address", "--permit-ip", ", ".join(map(str, self.networks))
        raise PkiError(
            f"The {kind} {host} lies outside of what this authority may sign for ({permitted}), so every peer "
            f"would refuse the certificate. Make an authority that may, in a new folder: "
            f"llmgw ctl cert init-ca --pki NEW {option} {_widest(host)}"
        )

    def check_node_id(self, node_id: str) -> None:
        """Raise PkiError when `node_id` as a common name would be refused.

        OpenSSL holds a common name with a dot against the DNS constraints when the certificate has no DNS name
        (`NAME_CONSTRAINTS_check_CN`, crypto/x509/v3_ncons.c); one without a dot it does not take for a name.
        """
        if not re.fullmatch(NODE_ID_PATTERN, node_id):
            raise PkiError(
                f"{node_id!r} is not a node id. It is the host name: lower-case letters, digits, '-' and '.', "
                "beginning and ending with a letter or digit, at most 63."
            )
        if "." in node_id:
            self.check(parse_host(node_id, ip=False))


def parse_host(text: str, *, ip: bool = True) -> str | Address:
    """A DNS name (lower case, no dot at its end) or an address, from what an operator types. Raises PkiError.

    With `ip` False a dotted number is a name, as OpenSSL sees it in a common name.
    """
    host = text.strip()
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if ip and _looks_like_address(bare):
        return parse_address(bare)
    if "://" in host or "/" in host:
        raise PkiError(
            f"{text!r} is a URL, not a host; write only the name or the address, like gw.lan or 10.0.0.5."
        )
    if ":" in host:
        raise PkiError(
            f"{text!r} names a port; a certificate is for a host, so write only {host.partition(':')[0]!r}."
        )
    if "*" in host:
        raise PkiError(f"{text!r} is a wildcard; name each host that agents dial by itself.")
    name = host.lower().removesuffix(".")
    if not name.isascii():
        raise PkiError(f"{text!r} has letters outside of ASCII; write the name as DNS has it, like xn--….")
    if not _DNS_NAME.fullmatch(name):
        raise PkiError(
            f"{text!r} is neither a DNS name nor an IP address; write for example gw.lan, 10.0.0.5 or ::1."
        )
    return name


def _looks_like_address(text: str) -> bool:
    """True for what can be no DNS name: several colons, or four numbers."""
    return (text.count(":") > 1 and "/" not in text) or re.fullmatch(r"\d+(\.\d+){3}", text) is not None


def parse_address(text: str) -> Address:
    """An IP address without a zone; an IPv4 address in IPv6 clothes is undressed. Raises PkiError."""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        raise PkiError(f"{text!r} is not an IP address; write for example 10.0.0.5 or fd00::5.") from None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise PkiError(
                f"{text!r} has a zone, which means something on one host only; leave out %{address.scope_id}."
            )
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
    return address


def parse_node_address(text: str) -> Address:
    """The address at which a node's engines are reached. Raises PkiError for one that nobody can dial."""
    address = parse_address(text)
    if address.is_unspecified or address.is_multicast or address.is_link_local:
        raise PkiError(
            f"{address} is not an address that other hosts can reach; give the node's own unicast address."
        )
    return address


def own_domain(own_name: str) -> list[str]:
    """What a host may be called by default, from its own full name; never anything like a public suffix.

    `gw1.lab.example.org` gives `lab.example.org` and `gw1`; `gw.com` gives `gw.com`, never `com`. A name without
    a dot permits everything below it too, and `ai` or `dev` are top-level domains: only those with a digit or a
    hyphen, which no top-level domain has (RFC 1123, 2.1; `xn--` apart), are taken.
    """
    try:
        name = parse_host(own_name)
    except PkiError:
        return []
    if not isinstance(name, str):
        return []
    bare = name.partition(".")[0]
    safe = any(mark in bare for mark in "0123456789-") and not bare.startswith("xn--") and not bare.isdigit()
    domains = [_domain_of(name)] if "." in name else []
    return [*domains, *([bare] if safe else [])]


def _domain_of(name: str) -> str:
    """The domain that a full name is in, or the name where the domain looks like a suffix for everybody."""
    domain = name.partition(".")[2]
    labels = domain.split(".")
    country_code_suffix = len(labels) == 2 and len(labels[1]) == 2 and len(labels[0]) <= 3
    return name if len(labels) < 2 or country_code_suffix else domain


def _parse_suffix(text: str) -> str:
    suffix = text.strip().removeprefix("*").removeprefix(".")
    try:
        host = parse_host(suffix)
    except PkiError:
        host = None
    if not isinstance(host, str):
        raise PkiError(
            f"{text!r} is not a DNS name that can be permitted; write for example lab.example.org, which permits "
            "it and everything below it (addresses are permitted with --permit-ip)."
        )
    return host


def _parse_network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise PkiError(
            f"{text!r} is not a network ({error}); write for example 10.20.0.0/16, 10.20.0.5 or fd00:1::/64."
        ) from None


def _widest(host: str | Address) -> str:
    return _domain_of(host) if isinstance(host, str) else str(host)
