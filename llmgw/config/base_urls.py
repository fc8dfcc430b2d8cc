"""URLs of other services in a configuration: http or https, and nothing in them that is secret."""

from __future__ import annotations

from urllib.parse import urlsplit


def check_base_url(text: str, like: str, secrets_in: str) -> None:
    """Raises ValueError with a sentence: `like` are examples of a good one, `secrets_in` the key for secrets."""
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise ValueError(f"{text!r} is not a URL like {like}")
    if parts.query or parts.fragment or parts.username or parts.password:
        # The value is not repeated: it may hold a password, and errors end up in logs.
        raise ValueError(f"the URL carries a query, a fragment or a password; {secrets_in}")
