"""One GET for a file, from an offset on: redirects, tokens, and a sentence for what comes instead of the file."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx

from llmgw import __version__
from llmgw.agent.weights.answers import Answer, CannotFetch, Lost, OutOfRange, Validator
from llmgw.config.sources import shown_url
from llmgw.pki.system_trust import system_context
from llmgw.pki.tls_errors import causes

REDIRECTS_MAX = 5
CONNECT_TIMEOUT_S = 15.0
READ_TIMEOUT_S = 60.0
RETRY_AFTER_S_MAX = 300.0
TOKEN_BYTES_MAX = 16384
_REDIRECTS = (301, 302, 303, 307, 308)
_TRY_AGAIN = (408, 421, 425, 429, 500, 502, 503, 504)
_LATER = "check the source in the catalog and that host"


class HttpPlace:
    """Fetches over http and https. Proxy variables of the environment are ignored.

    `ca` is an authority's file that is believed beside the system's; `token_files` as in agent.yaml.
    """

    def __init__(self, *, ca: str | None, token_files: Mapping[str, str]) -> None:
        self._ca = ca
        self._token_files = token_files
        self._context: ssl.SSLContext | None = None

    @asynccontextmanager
    async def open(self, url: str, offset: int, validator: Validator) -> AsyncIterator[Answer]:
        """The file from `offset` on, or from its beginning when the content is not what `validator` means, or the
        server knows no ranges. Raises CannotFetch, OutOfRange or Lost, the last also while chunks are read.
        """
        limits = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        headers = {"accept-encoding": "identity", "user-agent": f"llmgw/{__version__}"}
        if offset and validator.for_range is not None:
            headers |= {"range": f"bytes={offset}-", "if-range": validator.for_range}
        verify = await asyncio.to_thread(self._verify) if url.lower().startswith("https:") else False
        async with httpx.AsyncClient(verify=verify, timeout=limits, trust_env=False, headers=headers) as client:
            response = await self._follow(client, url)
            try:
                yield _answer(response, url, offset)
            finally:
                await response.aclose()

    async def _follow(self, client: httpx.AsyncClient, url: str) -> httpx.Response:
        """The answer behind all redirects."""
        at = url
        for _ in range(REDIRECTS_MAX + 1):
            token = await asyncio.to_thread(self._token, at)
            request = client.build_request(
                "GET", at, headers={"authorization": f"Bearer {token}"} if token else {}
            )
            try:
                response = await client.send(request, stream=True, follow_redirects=False)
            except (httpx.TransportError, OSError) as error:
                raise connection_failure(error, at) from None
            if response.status_code not in _REDIRECTS or "location" not in response.headers:
                return response
            await response.aclose()
            at = _redirected(at, response.headers["location"])
        raise CannotFetch(
            f"{shown_url(url)} redirects more than {REDIRECTS_MAX} times; give the last address as source"
        )

    def _verify(self) -> ssl.SSLContext:
        if self._context is None:
            context = system_context()
            if self._ca is not None:
                try:
                    context.load_verify_locations(self._ca)
                except OSError as error:
                    raise CannotFetch(
                        f"the authority {self._ca} cannot be read ({error.strerror or error}); "
                        "set weights.ca in agent.yaml to a PEM file"
                    ) from None
            self._context = context
        return self._context

    def _token(self, url: str) -> str | None:
        """The token for the host of this very URL. Blocking. Raises CannotFetch for a file of no use."""
        parts = urlsplit(url)
        file = self._token_files.get(parts.netloc.lower()) or self._token_files.get(
            (parts.hostname or "").lower()
        )
        if file is None:
            return None
        if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise CannotFetch(
                f"{shown_url(url)} is plain http, over which the token of {parts.hostname} is not sent; "
                "use https, or take the host out of weights.token_files"
            )
        where = f"weights.token_files in agent.yaml names {file} for {parts.hostname}"
        try:
            with Path(file).open("rb") as opened:
                mode = stat.S_IMODE(Path(file).stat().st_mode)
                first = opened.read(TOKEN_BYTES_MAX).split(b"\n", 1)[0].strip()
        except OSError as error:
            raise CannotFetch(f"{where}, which cannot be read: {error.strerror}") from None
        if mode & 0o077:
            raise CannotFetch(f"{where}, which others may read; chmod 600 {file}")
        token = first.decode("ascii", "replace")
        if not re.fullmatch(r"[\x21-\x7e]+", token):
            raise CannotFetch(f"{where}, whose first line is no token; write the token there and nothing else")
        return token


def _redirected(url: str, location: str) -> str:
    shown = shown_url(url)
    target = urljoin(url, location)
    try:
        parts = urlsplit(target)
        parts.port  # noqa: B018 - reading it raises for ports that are none
    except ValueError:
        raise CannotFetch(f"{shown} redirects to an address that cannot be read; {_LATER}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise CannotFetch(f"{shown} redirects to {parts.scheme[:20] or 'no'}:, which is not followed; {_LATER}")
    if urlsplit(url).scheme == "https" and parts.scheme != "https":
        raise CannotFetch(
            f"{shown} redirects from https to plain http ({shown_url(target)}), which is not followed; {_LATER}"
        )
    if "@" in parts.netloc:
        raise CannotFetch(f"{shown} redirects to an address with a password, which is not followed; {_LATER}")
    return target


def _answer(response: httpx.Response, url: str, offset: int) -> Answer:
    """The answer to a GET, when it is the file. Raises CannotFetch or Lost."""
    status, headers = response.status_code, response.headers
    at = str(response.request.url)
    shown = (
        shown_url(url) if shown_url(at) == shown_url(url) else f"{shown_url(url)} (redirected to {shown_url(at)})"
    )
    if status == 416 and offset:
        raise OutOfRange
    if status not in (200, 206):
        raise _refusal(status, headers, shown, urlsplit(at).hostname or at)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml"):
        raise CannotFetch(
            f"{shown} answers with a web page and not with a file, probably a login page; check the source, or "
            f"name a file with a token for {urlsplit(url).hostname} under weights.token_files in agent.yaml"
        )
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise CannotFetch(
            f"{shown} is sent compressed though nobody asked for it; give a source that is sent as it is"
        )
    validator = Validator(headers.get("etag"), headers.get("last-modified"))
    start, total = _extent(status, headers)
    return Answer(start, total, validator, _chunks(response, at))


def _extent(status: int, headers: httpx.Headers) -> tuple[int, int | None]:
    """(where the body begins, the whole length if it is said)."""
    if status == 206:
        # RFC 9110 section 14.4: `bytes 5-9/10`, or `*` for an unknown length.
        found = re.fullmatch(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", headers.get("content-range", "").strip())
        if found is None:
            raise Lost("the server answers with a part and does not say which")
        return int(found[1]), None if found[2] == "*" else int(found[2])
    length = headers.get("content-length", "")
    return 0, int(length) if re.fullmatch(r"\d{1,18}", length) else None


async def _chunks(response: httpx.Response, at: str) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.aiter_raw():
            yield chunk
    except (httpx.TransportError, OSError) as error:
        raise connection_failure(error, at) from None


def _refusal(status: int, headers: httpx.Headers, shown: str, host: str) -> CannotFetch | Lost:
    if status in _TRY_AGAIN:
        after = headers.get("retry-after", "")
        wait_s = min(float(after), RETRY_AFTER_S_MAX) if re.fullmatch(r"\d{1,9}", after) else None
        return Lost(f"{shown} answers {status}", wait_s)
    if status in (404, 410):
        return CannotFetch(f"{shown} does not exist ({status}); check the source in the catalog")
    if status in (401, 403):
        return CannotFetch(
            f"{shown} refuses this node ({status}); name a file with a token for {host} under "
            "weights.token_files in agent.yaml, or check what its token may read"
        )
    return CannotFetch(f"{shown} answers {status} and no file; {_LATER}")


def connection_failure(error: BaseException, url: str) -> CannotFetch | Lost:
    """What a failed connection means."""
    parts = urlsplit(url)
    host, at = parts.hostname or "", parts.netloc
    chain = list(causes(error))
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return CannotFetch(
                f"the certificate of {at} is not believed ({cause.verify_message}); when an authority of your "
                "own signed it, set weights.ca in agent.yaml to that authority's file"
            )
    for cause in chain:
        if isinstance(cause, socket.gaierror):
            return Lost(
                f"the name {host} cannot be resolved ({cause.strerror}); check the source, and this node's DNS"
            )
        if isinstance(cause, ssl.SSLError):
            return Lost(f"TLS with {at} failed ({cause.reason or cause}); check that it speaks https")
        if isinstance(cause, ConnectionRefusedError):
            return Lost(f"nothing listens at {at}; check the source and that host")
    if isinstance(error, (httpx.ConnectTimeout, httpx.PoolTimeout)):
        return Lost(
            f"{at} did not answer within {CONNECT_TIMEOUT_S:g} s; check the source, the network and firewalls"
        )
    if isinstance(error, httpx.TimeoutException):
        return Lost(f"{at} sent nothing for {READ_TIMEOUT_S:g} s; check that host and the network")
    if isinstance(error, httpx.ConnectError):
        return Lost(f"{at} cannot be reached; check the source, the network and firewalls")
    return Lost(f"the connection to {at} was lost; check that host and the network")
