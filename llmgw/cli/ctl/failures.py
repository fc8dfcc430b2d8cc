"""Says in one sentence why a request to the server failed: what was tried, what happened, what to do."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from llmgw.cli.ctl.find import Target
from llmgw.cli.output import plain
from llmgw.config.errors import SentenceError

if TYPE_CHECKING:
    import httpx

# openssl/x509_vfy.h
_CERTIFICATE_NOT_YET_VALID, _CERTIFICATE_EXPIRED = 9, 10
_HOSTNAME_MISMATCH, _IP_MISMATCH = 62, 64


class AwayError(SentenceError):
    """The server (or the agent it needs) is not there just now: asking again may help."""


class RefusedError(SentenceError):
    """The server said no. `status` and `code` are its own."""

    def __init__(self, sentence: str, status: int, code: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code


class StrangeError(SentenceError):
    """What answered does not speak the admin API, or another version of it."""


def transport_failure(error: httpx.HTTPError, target: Target, asked: str) -> SentenceError:
    """The sentence for a request that got no answer. `asked` is method and path."""
    import httpx

    url = f"{target.url} ({target.url_from})"
    causes = _causes(error)
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return StrangeError(_tls(cause, target))
    if isinstance(error, httpx.ConnectTimeout):
        return AwayError(
            f"{url} did not answer in time; is that the server's address, and does a firewall stand between?"
        )
    if isinstance(error, httpx.TimeoutException):
        return AwayError(f"{url} took too long to answer {asked}; ask again, or see the server's log")
    for cause in causes:
        if isinstance(cause, ConnectionRefusedError):
            return AwayError(
                f"nothing listens at {url}; start the server with llmgw server, or name another with --server URL"
            )
        if isinstance(cause, socket.gaierror):
            host = target.url.split("//", 1)[1]
            return AwayError(f"the name in {host} ({target.url_from}) is not known here; check --server")
    if isinstance(error, httpx.ConnectError):
        return AwayError(f"{url} cannot be reached: {_last_words(causes)}; check --server and the network")
    if isinstance(error, (httpx.RemoteProtocolError, httpx.ReadError)):
        hint = " (if it speaks TLS, write https://)" if target.url.startswith("http:") else ""
        return AwayError(f"{url} closed the connection without an answer{hint}")
    return AwayError(f"talking to {url} failed: {_last_words(causes)}")


def answer_failure(
    status: int, raw: bytes, content_type: str, location: str, target: Target, asked: str
) -> SentenceError:
    """The sentence for an answer that is not 2xx."""
    import msgspec

    from llmgw.messages.agent import Refusal

    if 300 <= status < 400:
        return StrangeError(
            f"{target.url} sends us on to {plain(location)!r}; if that is right, give it as --server"
        )
    try:
        refused = msgspec.json.decode(raw, type=Refusal)
    except msgspec.MsgspecError:
        if status == 503:
            return AwayError(f"{target.url} has too much to do (503); ask again")
        return not_ours(status, content_type, target)
    message = plain(refused.message)
    if status == 401:
        return RefusedError(
            f"{target.url} refuses the token of {target.token_from}: it was revoked, or is another server's",
            status,
            refused.code,
        )
    if refused.code == "unknown-route":
        message = f"{message}; the server knows no {asked}, so it is older than this llmgw"
    if status in (502, 503, 504):
        return AwayError(message)
    return RefusedError(message, status, refused.code)


def not_ours(status: int, content_type: str, target: Target) -> StrangeError:
    """The sentence for an answer that no llmgw gave."""
    return StrangeError(
        f"what answers at {target.url} ({target.url_from}) is not llmgw's admin API (HTTP {status}, "
        f"{plain(content_type) or 'no content type'}); is that the admin address, and not the model API's?"
    )


def _tls(error: ssl.SSLError, target: Target) -> str:
    url = target.url
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (_HOSTNAME_MISMATCH, _IP_MISMATCH):
            return (
                f"the certificate at {url} is for other names than the one dialled; dial one of those, or issue "
                "one with llmgw ctl cert issue-server --host NAME"
            )
        if error.verify_code == _CERTIFICATE_EXPIRED:
            return f"the certificate at {url} has expired; on the authority's host: llmgw ctl cert renew"
        if error.verify_code == _CERTIFICATE_NOT_YET_VALID:
            return f"the certificate at {url} is not valid yet; compare this host's clock with the server's"
        known = f"the authority in {target.ca}" if target.ca else "an authority that this host knows"
        return (
            f"the certificate at {url} is not signed by {known} ({error.verify_message}); name the authority's "
            "certificate with --ca FILE or LLMGW_CTL_CA"
        )
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return f"what answers at {url} does not speak TLS; if it is the right one, write http://"
    return f"TLS with {url} failed: {error.reason or error}"


def _causes(error: BaseException) -> list[BaseException]:
    """`error` and what it came from; httpx and httpcore wrap the system's own errors."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return chain


def _last_words(causes: list[BaseException]) -> str:
    for cause in reversed(causes):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return plain(str(causes[0])) or type(causes[0]).__name__
