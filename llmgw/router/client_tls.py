"""TLS towards clients: HTTP/1.1 only, new certificates without a restart, and a word to who speaks plain HTTP."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from typing import Any

from llmgw.pki.listener import ListenerCertificate
from llmgw.router.errors import ApiError, render

log = logging.getLogger(__name__)

LOOK_S = 2.0

_PLAIN_HTTP = ApiError(
    400,
    "This port speaks TLS and the request came as plain HTTP; begin its URL with https://.",
    code="plain_http",
)


class ClientTls:
    """The certificate that clients are shown. `context` is for the next handshake only."""

    def __init__(self, cert: str, key: str) -> None:
        """Raises PkiError when the files cannot be used."""
        self._certificate = ListenerCertificate(cert, key, ("--tls-cert", "--tls-key"), prepare=_prepare)
        self._told: str | None = None

    @property
    def context(self) -> ssl.SSLContext:
        return self._certificate.context

    async def watch(self) -> None:
        """Look at the files every LOOK_S, for ever. Connections that stand keep what they have."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._certificate.refresh(time.time()):
                log.info("clients are shown a new certificate")
            problem = self._certificate.problem
            if problem is not None and problem != self._told:
                log.error("the earlier certificate stays in use: %s", problem)
            self._told = problem


def _prepare(context: ssl.SSLContext) -> None:
    context.set_alpn_protocols(["http/1.1"])
    context.sslobject_class = _SpeakingSSLObject


class _SpeakingSSLObject(ssl.SSLObject):
    """Answers plain HTTP, which OpenSSL tells from a damaged handshake, with a 400 that can be read.

    The loops drop a connection whose handshake failed together with what waits to be sent, and send it when a
    handshake asks for more data; so this one asks once more before it fails.
    """

    _outgoing: ssl.MemoryBIO
    _failure: ssl.SSLError | None = None

    @classmethod
    def _create(cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any) -> Any:
        made = super()._create(incoming, outgoing, *args, **kwargs)  # type: ignore[misc]
        made._outgoing = outgoing
        return made

    def do_handshake(self) -> None:
        """As `ssl.SSLObject`; the first failure has the loop send what explains it, the next call raises it."""
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLSyscallError, ssl.SSLEOFError):
            raise
        except ssl.SSLError as error:
            self._failure = error
            if error.reason == "HTTP_REQUEST":
                self._outgoing.read()  # an alert, that would be taken for the beginning of the answer
                self._outgoing.write(render(_PLAIN_HTTP.status, _PLAIN_HTTP.body(), keep_alive=False))
            raise ssl.SSLWantReadError from error
