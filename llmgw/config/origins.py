"""Web origins and networks as operators write them, checked in one place."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", re.IGNORECASE)
_USUAL_PORTS = {"http": "80", "https": "443"}


def parse_origin(text: str) -> str:
    """An origin as browsers send it: lower-case, without the scheme's own port; `*` stays.

    Raises ValueError with a sentence.
    """
    if text == "*":
        return text
    match = _ORIGIN.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is no origin; write scheme, host and perhaps a port without a path, such as "
            "https://chat.example.org or http://localhost:3000, or * for every one"
        )
    scheme, host, port = match[1].lower(), match[2].lower(), match[3]
    if port is None or port == _USUAL_PORTS.get(scheme):
        return f"{scheme}://{host}"
    if not 0 < int(port) <= 65535:
        raise ValueError(f"{text!r} is no origin: {port} is no port from 1 to 65535")
    return f"{scheme}://{host}:{int(port)}"


def parse_network(text: str) -> str:
    """An address or a network in CIDR form, as a network: `10.0.0.5` → `10.0.0.5/32`.

    Raises ValueError with a sentence.
    """
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        why = " (bits are set beyond the prefix)" if "host bits" in str(error) else ""
        raise ValueError(
            f"{text!r} is neither an address nor a network{why}; write for example 10.0.0.5 or 10.0.0.0/24"
        ) from None


Origin = Annotated[str, AfterValidator(parse_origin)]
"""A web origin as a string, checked."""
Network = Annotated[str, AfterValidator(parse_network)]
"""A network in CIDR form as a string, checked."""
