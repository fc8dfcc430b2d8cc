"""TLS contexts of the link between agents and server: both sides verify the other against the authority's root.

Everything a context needs is checked beforehand, because OpenSSL's own words name neither file nor remedy.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from llmgw.config.agent import AgentTls
from llmgw.config.server import AgentsTls
from llmgw.messages.findings import Finding
from llmgw.pki.errors import PkiError
from llmgw.pki.files import load_certificates
from llmgw.pki.pairs import check_pair, file_signature, harden, load_pair
from llmgw.pki.tls_errors import explain_tls_error as explain_tls_error
from llmgw.pki.tls_errors import server_names as server_names

_log = logging.getLogger(__name__)
_AGENT_REMEDY = (
    "On the authority's host: llmgw ctl cert issue-client NODE --address IP, then copy its files to this node."
)
_SERVER_REMEDY = "On the authority's host: llmgw ctl cert issue-server --host HOST, then copy its files here."
_CA_REMEDY = "Copy ca.pem from the authority's folder."


def agent_context(tls: AgentTls, now: float | None = None) -> ssl.SSLContext:
    """The agent's side: checks the server's name or address against its certificate, and shows our own.

    The whole chain in `tls.cert` is sent, so that a renewed certificate is understood. Raises PkiError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.hostname_checks_common_name = False
    harden(context)
    _trust(context, tls.ca, "tls.ca")
    check_pair(tls.cert, tls.key, "tls.cert", "tls.key", "client", _AGENT_REMEDY, now)
    _check_origin(tls)
    load_pair(context, tls.cert, tls.key)
    return context


def agents_server_context(tls: AgentsTls, now: float | None = None) -> ssl.SSLContext:
    """The server's side: nobody without a client certificate that goes back to the root. Raises PkiError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.sslobject_class = _AlertingSSLObject
    # A resumed session would skip verifying the certificate, also once it has expired.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    harden(context)
    reload_server_certificate(context, tls, now)
    return context


def reload_server_certificate(context: ssl.SSLContext, tls: AgentsTls, now: float | None = None) -> None:
    """Use the files as they are now for every handshake from here on; open connections stay.

    Raises PkiError when they do not fit together, and then the earlier ones stay in use.
    """
    check_pair(tls.cert, tls.key, "agents.tls.cert", "agents.tls.key", "server", _SERVER_REMEDY, now)
    _trust(context, tls.ca, "agents.tls.ca")
    load_pair(context, tls.cert, tls.key)


class _AlertingSSLObject(ssl.SSLObject):
    """Tells a refused client why.

    The loops drop a connection whose handshake failed with OpenSSL's alert still unsent (asyncio's
    `SSLProtocol._do_handshake`, and uvloop's like it), so that the client only learns that it was cut off. They
    send what is waiting when a handshake asks for more data; so it asks once more before it fails. A client
    that does not hang up then is cut off by the loop's handshake timeout.
    """

    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        """As `ssl.SSLObject`; the first failure asks the loop to send the alert, the next call raises it."""
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLSyscallError, ssl.SSLEOFError):
            raise
        except ssl.SSLError as error:
            self._failure = error
            _log.warning("a client was refused in the TLS handshake: %s", _in_words(error))
            raise ssl.SSLWantReadError from error


def _in_words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate does not hold ({error.verify_message})"
    return (error.reason or str(error)).replace("_", " ").lower()


class ServerCertificate:
    """Watches the files behind an `agents_server_context` and takes up new ones. Call `refresh` now and then."""

    def __init__(self, context: ssl.SSLContext, tls: AgentsTls) -> None:
        self._context = context
        self._tls = tls
        self._seen = self._signatures()
        self._problem: str | None = None

    def refresh(self, now: float) -> bool:
        """Read the files again if they changed (three stats); True when new ones are in use."""
        signatures = self._signatures()
        if signatures == self._seen:
            return False
        self._seen = signatures
        try:
            reload_server_certificate(self._context, self._tls, now)
        except PkiError as error:
            self._problem = str(error)
            return False
        self._problem = None
        return True

    def findings(self) -> list[Finding]:
        """Why the files on disk are not the ones in use, if they are not."""
        if self._problem is None:
            return []
        return [
            Finding(
                check="server-certificate",
                severity="error",
                where=self._tls.cert,
                what=f"{self._problem} The earlier certificate stays in use.",
                why="When it expires, or the server restarts, agents can no longer connect.",
                remedy=_SERVER_REMEDY,
            )
        ]

    def _signatures(self) -> list[tuple[int, int, int] | None]:
        return [file_signature(path) for path in (self._tls.cert, self._tls.key, self._tls.ca)]


def _trust(context: ssl.SSLContext, path: str, key: str) -> None:
    for certificate in load_certificates(Path(path), f"authority's root certificate ({key})", _CA_REMEDY):
        if certificate.issuer != certificate.subject:
            raise PkiError(f"{path} ({key}) holds a certificate that is not a root. {_CA_REMEDY}")
    context.load_verify_locations(cafile=path)


def _check_origin(tls: AgentTls) -> None:
    """Raise PkiError unless our certificate goes back to the root that we trust the server by."""
    roots = load_certificates(Path(tls.ca), "authority's root certificate (tls.ca)", _CA_REMEDY)
    certificate, *between = load_certificates(Path(tls.cert), "certificate (tls.cert)", _AGENT_REMEDY)
    for _ in range(len(between) + 1):
        if any(_signed(root, certificate) for root in roots):
            return
        certificate = next((issuer for issuer in between if _signed(issuer, certificate)), certificate)
    raise PkiError(
        f"The certificate {tls.cert} (tls.cert) comes from another authority than the one in {tls.ca} (tls.ca). "
        "Copy both from the folder that `llmgw ctl cert issue-client` made."
    )


def _signed(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
