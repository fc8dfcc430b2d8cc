"""What a failed connection means, as a sentence: who refused whom, why, and what to type."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from cryptography import x509

from llmgw.config.addresses import join_host_port
from llmgw.pki.certificates import alternative_names

# X509_V_ERR_… of OpenSSL's x509_vfy.h: what our verification of the server found.
_NOT_YET_VALID = 9
_EXPIRED = 10
_NO_ISSUER = {2, 7, 18, 19, 20, 21, 30}
_REVOKED = 23
_WRONG_PURPOSE = {26, 79}
_OUTSIDE_CONSTRAINTS = {47, 48}
_OTHER_NAME = {62, 64}

_ENROL = "Enrol this node again on the authority's host: llmgw ctl cert issue-client NODE --address IP"
# Alerts by which the server refuses our certificate: OpenSSL's reason (without its prefix) → why and remedy.
_ALERTS = {
    "ALERT_UNKNOWN_CA": (
        "it comes from another authority than the server's",
        "Use a certificate from the server's authority: llmgw ctl cert issue-client NODE --address IP",
    ),
    "ALERT_CERTIFICATE_EXPIRED": ("it has expired", _ENROL),
    "ALERT_CERTIFICATE_REVOKED": ("it was revoked", _ENROL),
    "ALERT_BAD_CERTIFICATE": (
        "by the server's clock it is not valid yet, or it is damaged",
        "Compare the clocks of both hosts (timedatectl status)",
    ),
    "ALERT_UNSUPPORTED_CERTIFICATE": ("it is not a client certificate", _ENROL),
    "ALERT_CERTIFICATE_UNKNOWN": ("the server found a fault in it", _ENROL),
    "ALERT_CERTIFICATE_REQUIRED": (
        "none was sent",
        "Set tls.cert and tls.key in agent.yaml to the files that `llmgw ctl cert issue-client` made",
    ),
    "ALERT_HANDSHAKE_FAILURE": ("no certificate that fits was sent", _ENROL),
}
_NOT_TLS = (
    "WRONG_VERSION_NUMBER",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
)
_TOO_OLD = ("UNSUPPORTED_PROTOCOL", "ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE", "VERSION_TOO_LOW")


def explain_tls_error(exc: BaseException, url: str, *, names: Sequence[str] = ()) -> str:
    """Turn an error of ssl, socket or httpx on the way to `url` into a sentence.

    Callers of httpx catch OSError beside `httpx.TransportError`: its asynchronous client lets `ssl.SSLError`
    through when the server refuses our certificate after the handshake, as TLS 1.3 does (httpx 0.28).
    `names` are the names of the server's certificate where they are known (`server_names` asks for them).
    """
    at = _host_port(url)
    for cause in causes(exc):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _verification(cause, at, names)
        if isinstance(cause, ssl.SSLError):
            return _alert(cause, at)
    for cause in causes(exc):
        if isinstance(cause, socket.gaierror):
            return f"The name in {url} cannot be resolved ({cause.strerror}). Check the name, DNS, or /etc/hosts."
        if isinstance(cause, ConnectionRefusedError):
            return f"Nothing listens at {at}. Check that the server runs, and its agents.listen."
        if isinstance(cause, (ConnectionResetError, BrokenPipeError)):
            return _closed(at)
        if isinstance(cause, TimeoutError):
            return f"{at} did not answer in time. Check the network and firewalls between here and there."
    kind = type(exc).__name__
    if kind in ("RemoteProtocolError", "ReadError", "WriteError", "EndOfStream", "BrokenResourceError"):
        return _closed(at)
    if "timeout" in kind.lower():
        return f"{at} did not answer in time. Check the network and firewalls between here and there."
    text = " ".join(str(exc).split()).rstrip(".") or kind
    return f"{at} cannot be reached: {text}. Check the address and the network between here and there."


def explain_connection(exc: BaseException, url: str) -> str:
    """As `explain_tls_error`, and where the server's name is to blame it is asked for those that it has.

    Blocks for a few seconds at most.
    """
    wrong_name = any(
        isinstance(cause, ssl.SSLCertVerificationError) and cause.verify_code in _OTHER_NAME
        for cause in causes(exc)
    )
    return explain_tls_error(exc, url, names=server_names(url) if wrong_name else ())


def server_names(url: str, timeout_s: float = 3.0) -> list[str]:
    """The names in the certificate that the server at `url` shows, unverified.

    For explaining, never for trusting. Blocks for up to `timeout_s`. Empty when the server cannot be asked.
    """
    host, port = _split(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout_s) as raw,
            context.wrap_socket(raw, server_hostname=host) as connection,
        ):
            der = connection.getpeercert(binary_form=True)
        return alternative_names(x509.load_der_x509_certificate(der)) if der else []
    except (OSError, ValueError):
        return []


def _closed(at: str) -> str:
    return (
        f"{at} closed the connection without an answer. When it does so at once every time, it refuses this "
        "side's certificate, or something else listens there: look into the server's log."
    )


def _verification(error: ssl.SSLCertVerificationError, at: str, names: Sequence[str]) -> str:
    host = at.rpartition(":")[0].strip("[]")
    code = error.verify_code
    if code in _OTHER_NAME:
        named = f" but only {', '.join(names)}" if names else ""
        return (
            f"The certificate of {at} does not name {host}{named}. Dial a name that it has, or issue it again: "
            f"llmgw ctl cert issue-server --host {host}{''.join(f' --host {name}' for name in names)}"
        )
    if code == _EXPIRED:
        return f"The certificate of {at} has expired. On the authority's host: llmgw ctl cert renew {host}"
    if code == _NOT_YET_VALID:
        return (
            f"By this host's clock the certificate of {at} is not valid yet. "
            "Compare the clocks of both hosts (timedatectl status)."
        )
    if code in _NO_ISSUER:
        return (
            f"The certificate of {at} comes from another authority than the one in tls.ca. Check the address, or "
            "copy ca.pem from the server's authority."
        )
    if code == _REVOKED:
        return f"The certificate of {at} was revoked. Issue one: llmgw ctl cert issue-server --host {host}"
    if code in _WRONG_PURPOSE:
        return (
            f"{at} shows a certificate that is not a server's, so it may not be the server at all. Check the "
            f"address, or issue one: llmgw ctl cert issue-server --host {host}"
        )
    if code in _OUTSIDE_CONSTRAINTS:
        return (
            f"The certificate of {at} names something that its authority may not sign for, so it is not "
            "believed. Find out who made it."
        )
    return f"The certificate of {at} is not believed: {error.verify_message}."


def _alert(error: ssl.SSLError, at: str) -> str:
    reason = error.reason or ""
    for alert, (why, remedy) in _ALERTS.items():
        if reason.endswith(alert):
            return f"{at} refuses this side's certificate: {why}. {remedy}."
    if any(word in reason for word in _NOT_TLS):
        return f"{at} does not speak TLS. Check that the port is that of agents.listen."
    if any(word in reason for word in _TOO_OLD):
        return f"{at} speaks no TLS from version 1.2 on. Check that it is the server, and no old proxy before it."
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return f"{at} closed the connection during the TLS handshake. Look into the server's log."
    return f"TLS with {at} failed: {reason or error}. Look into the server's log."


def causes(exc: BaseException) -> Iterator[BaseException]:
    """The exception and what it came from; httpx and httpcore wrap what ssl and socket raise."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [exc]
    while waiting:
        current = waiting.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions


def _split(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:  # an explanation is still owed for an address that is none
        port = None
    return parts.hostname or url, port or (80 if parts.scheme == "http" else 443)


def _host_port(url: str) -> str:
    return join_host_port(*_split(url))
