"""uvicorn's HTTP protocol with the client's certificate in the scope, which uvicorn itself leaves out (0.54).

`scope["extensions"]["tls"]["client_cert_der"]` is bytes, or None without TLS or without a certificate.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class PeerHttpToolsProtocol(HttpToolsProtocol):
    """For `uvicorn.Config(http=PeerHttpToolsProtocol, ws="none")`.

    Each request of a connection gets the certificate: the handshake is over when the connection is made, and
    the server's context allows neither renegotiation nor a later one.
    """

    peer_der: bytes | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Remember the certificate; asyncio and uvloop call this when the handshake is over."""
        super().connection_made(transport)
        ssl_object = transport.get_extra_info("ssl_object")
        self.peer_der = None if ssl_object is None else ssl_object.getpeercert(binary_form=True)

    def on_message_begin(self) -> None:
        """Begin a request: uvicorn makes its scope here."""
        super().on_message_begin()
        scope = cast("dict[str, Any]", self.scope)
        extensions = scope.setdefault("extensions", {})
        extensions["tls"] = {**extensions.get("tls", {}), "client_cert_der": self.peer_der}


def client_cert_der(scope: Any) -> bytes | None:
    """The client's certificate from an ASGI scope, or None."""
    der = scope.get("extensions", {}).get("tls", {}).get("client_cert_der")
    return der if isinstance(der, bytes) else None
