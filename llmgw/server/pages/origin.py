"""Whether a browser says that another site's page made a request."""

from __future__ import annotations

from urllib.parse import urlsplit

_OWN = (b"same-origin", b"none")


def from_another_site(headers: list[tuple[bytes, bytes]]) -> bool:
    """By `Sec-Fetch-Site` (Fetch Metadata, W3C) and `Origin` (RFC 6454, section 7); programs send neither."""
    if any(value not in _OWN for name, value in headers if name == b"sec-fetch-site"):
        return True
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    return any([_netloc(value.decode("latin-1"))] != hosts for name, value in headers if name == b"origin")


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def by_a_link(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a person goes to this address: a page alone never reads what comes of it (Fetch Metadata, W3C)."""
    return [value for name, value in headers if name == b"sec-fetch-mode"] == [b"navigate"]
