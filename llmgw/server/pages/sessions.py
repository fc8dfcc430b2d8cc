"""Sessions of browsers: made with a named token, ended with it, kept in memory and nowhere else."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from llmgw.messages.admin import Done, TokenView

SESSION_S_MAX = 12 * 3600.0
"""A session ends then, whatever is done in it: a working day."""
IDLE_S_MAX = 2 * 3600.0
"""A page that is open asks every few seconds, so that only closed ones are idle."""
SESSIONS_MAX = 1000
LOGIN_FORM_S_MAX = 3600
SECRET_CHARS_MAX = 128
SAID_MAX = 20


@dataclass(slots=True)
class BrowserSession:
    """One browser that has logged in. `csrf` is what its pages send with every change."""

    by: str
    """The token's name: what audit says did it."""
    token_created_at: float
    """Another token of the same name is another token."""
    csrf: str = field(repr=False)
    began: float
    used: float
    said: dict[str, Done] = field(default_factory=dict)
    """What was done lately, by a word that stands in an address; `SAID_MAX` of them."""


class BrowserSessions:
    """All of them, by a digest of the cookie's value, so that nothing here lets anybody in.

    `clock` gives seconds that never run backwards. Their number is bounded: the one unused for longest goes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, sessions_max: int = SESSIONS_MAX) -> None:
        self._clock = clock
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[bytes, BrowserSession] = OrderedDict()
        self._key = secrets.token_bytes(32)

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, by: str, token_created_at: float) -> str:
        """A new session; the value of its cookie, which is told only once."""
        value = secrets.token_urlsafe(32)
        now = self._clock()
        session = BrowserSession(by, token_created_at, secrets.token_urlsafe(32), now, now)
        self._sessions[_digest(value)] = session
        while len(self._sessions) > self._sessions_max:
            self._sessions.popitem(last=False)
        return value

    def find(self, value: str, tokens: Iterable[TokenView]) -> BrowserSession | None:
        """The session of a cookie, used from now; None when there is none, it is over, or its token is."""
        if not 0 < len(value) <= SECRET_CHARS_MAX:
            return None
        digest = _digest(value)
        session = self._sessions.get(digest)
        if session is None:
            return None
        now = self._clock()
        over = now - session.began > SESSION_S_MAX or now - session.used > IDLE_S_MAX
        alive = any(token.name == session.by and token.created_at == session.token_created_at for token in tokens)
        if over or not alive:
            del self._sessions[digest]
            return None
        session.used = now
        self._sessions.move_to_end(digest)
        return session

    def end(self, value: str) -> None:
        """Log out: the cookie is worth nothing from now on."""
        self._sessions.pop(_digest(value), None)

    def form_proof(self, visitor: str) -> str:
        """What the login form sends back: only whoever was given both it and the visitor's cookie has both."""
        return hmac.new(self._key, visitor.encode(), hashlib.sha256).hexdigest()

    def form_proven(self, visitor: str, proof: str) -> bool:
        """Whether a form comes from a page that this server gave this visitor."""
        return bool(visitor) and hmac.compare_digest(self.form_proof(visitor).encode(), proof.encode())


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogatepass")).digest()
