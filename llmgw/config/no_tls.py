"""What httpx is given where only plain HTTP is spoken, as to an engine on this very node."""

from __future__ import annotations

import functools
import ssl


@functools.cache
def no_tls() -> ssl.SSLContext:
    """A context that trusts nobody: unlike httpx's own, it has no file of authorities to read, which holds the
    event loop for some 30 ms with each client."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
