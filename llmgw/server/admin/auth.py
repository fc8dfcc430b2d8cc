"""Who may use admin API and pages: tokens, browsers' sessions, a limit on guesses, nothing in the clear."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llmgw.config.addresses import is_loopback
from llmgw.server.admin.answers import ALWAYS, refusal
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.pages.cookies import SESSION, read_cookie
from llmgw.server.pages.events import EVENTS
from llmgw.server.pages.handlers import sentence
from llmgw.server.pages.origin import by_a_link, from_another_site
from llmgw.server.pages.rendering import error_page
from llmgw.server.pages.sessions import BrowserSession, BrowserSessions

_log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health"})
LOCAL_PATHS = frozenset({"/metrics"})
"""Open without a token to what runs on this host: names and counts, no secrets, and a scraper needs no secret."""
LOGIN_PATHS = frozenset({"/admin/login", "/admin/logout"})
OPEN_PREFIX = "/admin/static/"
"""Scripts and styles that are in every copy of llmgw."""
READS = frozenset({"GET", "HEAD"})
TOKEN_CHARS_MAX = 512
FAILURES_BURST_MAX = 10
FAILURE_REFILL_S = 6.0
PEERS_MAX = 4096
KNOWN_TOKENS_MAX = 1024


class Attempts:
    """Failed attempts per peer address: `FAILURES_BURST_MAX` at once, one more every `FAILURE_REFILL_S`.

    The table forgets the peers that were quiet longest, so its size is bounded. `clock` gives seconds that
    never run backwards.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, peers_max: int = PEERS_MAX) -> None:
        self._clock = clock
        self._peers_max = peers_max
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._spent)

    def take(self, peer: str) -> float:
        """Count one attempt as failed until `give_back`. 0 when it may be made, else seconds to wait."""
        spent = self._now(peer)
        if spent > FAILURES_BURST_MAX - 1:
            return (spent - (FAILURES_BURST_MAX - 1)) * FAILURE_REFILL_S
        self._set(peer, spent + 1)
        return 0.0

    def give_back(self, peer: str) -> None:
        """The attempt was none: its token was right."""
        self._set(peer, self._now(peer) - 1)

    def _now(self, peer: str) -> float:
        spent, at = self._spent.get(peer, (0.0, 0.0))
        return max(0.0, spent - (self._clock() - at) / FAILURE_REFILL_S)

    def _set(self, peer: str, spent: float) -> None:
        if spent <= 0:
            self._spent.pop(peer, None)
            return
        self._spent[peer] = (spent, self._clock())
        self._spent.move_to_end(peer)
        while len(self._spent) > self._peers_max:
            self._spent.popitem(last=False)


class TokenCheck:
    """Whether a token is right, with a limit on guesses. One for headers and the login form together."""

    def __init__(self, backend: AdminBackend, attempts: Attempts | None = None) -> None:
        self._backend = backend
        self._attempts = Attempts() if attempts is None else attempts
        # Tokens that were right once, as digests under a key that dies with the process. They are still
        # looked up each time, but a stranger's guesses from the same address cannot lock their owner out.
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._key = os.urandom(32)

    async def check(self, token: str, host: str, method: str, path: str) -> tuple[float, str | None]:
        """(seconds to wait before another guess, the token's name) of what came with a request for `path`. Tokens
        that nobody knows are counted in the audit log, also those that are not looked at."""
        peer = peer_key(host)
        digest = hashlib.blake2b(token.encode(), key=self._key, digest_size=16).digest()
        counted = digest not in self._known
        if counted and (wait_s := self._attempts.take(peer)):
            self._backend.audit.wrong_token(peer, method, path)
            return wait_s, None
        by = await self._backend.authenticate(token)
        if by is None:
            self._backend.audit.wrong_token(peer, method, path)
            self._known.pop(digest, None)
            return 0.0, None
        if counted:
            self._attempts.give_back(peer)
        self._known[digest] = None
        self._known.move_to_end(digest)
        while len(self._known) > KNOWN_TOKENS_MAX:
            self._known.popitem(last=False)
        return 0.0, by


class Guard:
    """ASGI middleware: lets a request through with `scope["state"]["by"]` set to its token's name.

    A browser's session counts as its token for reading; a change must also carry the session's `csrf` word, in
    the header `x-csrf-token` (forms of pages carry it in a field, which their handlers look at). `secure` says
    that the listener speaks TLS; without it only loopback peers are answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        backend: AdminBackend,
        secure: bool,
        check: TokenCheck,
        sessions: BrowserSessions,
    ) -> None:
        self._app = app
        self._backend = backend
        self._secure = secure
        self._check = check
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        host = scope["client"][0] if scope.get("client") else "localhost"
        if not self._secure and not is_loopback(host.removeprefix("::ffff:")):
            message = "this listener speaks plain HTTP, where only loopback is answered; set admin.tls"
            await refusal(403, "insecure", message)(scope, receive, send)
            return
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            await self._app(scope, receive, send)
            return
        token = bearer_token(scope["headers"])
        if token is None and path in LOCAL_PATHS and is_local(host, scope["headers"]):
            await self._app(scope, receive, send)
            return
        if token is not None:
            await self._with_token(token, host, scope, receive, send)
        elif any(name == b"authorization" for name, _ in scope["headers"]):
            await _no_token(scope, receive, send)
        else:
            await self._with_cookie(scope, receive, send)

    async def _with_token(self, token: str, host: str, scope: Scope, receive: Receive, send: Send) -> None:
        wait_s, by = await self._check.check(token, host, scope["method"], scope["path"])
        if wait_s:
            message = f"too many wrong tokens came from {host}; try again in {math.ceil(wait_s)} s"
            headers = {"retry-after": str(math.ceil(wait_s))}
            await refusal(429, "too-many-attempts", message, headers)(scope, receive, send)
        elif by is None:
            _log.warning("a wrong admin token came from %s", host)
            message = "this token is not known; it was mistyped or revoked"
            headers = {"www-authenticate": 'Bearer realm="llmgw", error="invalid_token"'}
            await refusal(401, "wrong-token", message, headers)(scope, receive, send)
        else:
            scope.setdefault("state", {})["by"] = by
            await self._let_in(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Before anything is read: what happens while a page is made is news for it.
        scope["state"]["news"] = self._backend.news.version
        await self._app(scope, receive, send)
        if scope["method"] not in READS:
            self._backend.news.happen()

    async def _with_cookie(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, reads = scope["path"], scope["method"] in READS
        value = read_cookie(scope["headers"], SESSION, secure=self._secure)
        session = None if value is None else self._sessions.find(value, await self._backend.tokens())
        if session is not None:
            # Before anything is refused: the audit log says in whose name it was asked.
            scope.setdefault("state", {}).update(by=session.by, session=session)
            is_page = path.startswith("/admin/")
            # Cookies go to every port of a host. A page of another one cannot read an answer, but would hold this
            # session's streams, and measure what pages weigh.
            if from_another_site(scope["headers"]) and not (reads and by_a_link(scope["headers"])):
                message = "this was not sent by a page of this server; nothing was changed"
                as_page = is_page and _is_form(scope["headers"])  # a page's script reads JSON
                refuse = _refusal_page(scope, message) if as_page else refusal(403, "cross-site", message)
                await refuse(scope, receive, send)
                return
            if not reads and not is_page and not _carries(scope["headers"], session):
                message = (
                    "a change from a page carries its session's word in x-csrf-token; programs send "
                    "Authorization: Bearer TOKEN"
                )
                await refusal(403, "no-csrf-token", message)(scope, receive, send)
                return
            await self._let_in(scope, receive, send)
        elif path in LOGIN_PATHS:
            await self._app(scope, receive, send)
        elif reads and _is_page(path, scope["headers"]):
            # As it was sent: a name in it may hold what means something else when it is not quoted.
            sent = scope.get("raw_path") or quote(path).encode()
            onward = sent.partition(b"?")[0].decode("latin-1")
            onward += f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
            over = "&over=1" if value is not None else ""
            headers = {"location": f"/admin/login?next={quote(onward, safe='/')}{over}", **ALWAYS}
            await Response(status_code=303, headers=headers)(scope, receive, send)
        elif value is not None:
            message = "this session is over; log in again at /admin/login"
            await refusal(401, "session-over", message)(scope, receive, send)
        else:
            await _no_token(scope, receive, send)


def _is_page(path: str, headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a person looks at this address, who is better sent to the login than refused."""
    if path == "/":
        return any(name == b"accept" and b"text/html" in value for name, value in headers)
    return path == "/admin" or (path.startswith("/admin/") and path != EVENTS and not path.endswith(".svg"))


def _is_form(headers: list[tuple[bytes, bytes]]) -> bool:
    kinds = [value for name, value in headers if name == b"content-type"]
    return bool(kinds) and kinds[0].lower().startswith(b"application/x-www-form-urlencoded")


def _refusal_page(scope: Scope, message: str) -> Response:
    return error_page(Request(scope), 403, sentence(message))


async def _no_token(scope: Scope, receive: Receive, send: Send) -> None:
    message = "this needs a token: send Authorization: Bearer TOKEN"
    headers = {"www-authenticate": 'Bearer realm="llmgw"'}
    await refusal(401, "no-token", message, headers)(scope, receive, send)


def _carries(headers: list[tuple[bytes, bytes]], session: BrowserSession) -> bool:
    words = [value for name, value in headers if name == b"x-csrf-token"]
    return len(words) == 1 and hmac.compare_digest(words[0], session.csrf.encode())


def acceptable_token(token: str) -> bool:
    """Whether this may be a token at all: what a header could carry."""
    return token.isascii() and 0 < len(token) <= TOKEN_CHARS_MAX


def bearer_token(headers: list[tuple[bytes, bytes]]) -> str | None:
    """The token of the one Authorization header (RFC 6750 section 2.1), or None."""
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) != 1:
        return None
    scheme, _, token = values[0].strip().partition(b" ")
    token = token.strip()
    text = token.decode("latin-1")
    return text if scheme.lower() == b"bearer" and acceptable_token(text) else None


def is_local(host: str, headers: list[tuple[bytes, bytes]]) -> bool:
    """True for a request that a program of this very host made for itself.

    A proxy's is not, though it comes from loopback as well; nor is that of a browser here, whose page comes from
    elsewhere and had its name changed to this address (DNS rebinding): its Host header has that name.
    """
    if not is_loopback(host.removeprefix("::ffff:")):
        return False
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 or any(name in _FORWARDED for name, _ in headers):
        return False
    name = hosts[0].decode("latin-1")
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    return is_loopback(name)


_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via"})


def peer_key(host: str) -> str:
    """What attempts are counted by: the address, or its /64 for IPv6, of which one host has a whole one."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)
