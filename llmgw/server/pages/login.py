"""Logging in and out: a named token for a session, in a form that only our own page can send."""

from __future__ import annotations

import hmac
import logging
import math
import secrets
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from llmgw.server.admin import border
from llmgw.server.admin.auth import TokenCheck, acceptable_token
from llmgw.server.admin.backend import AdminBackend
from llmgw.server.pages.cookies import SESSION, VISITOR, drop_cookie, read_cookie, set_cookie
from llmgw.server.pages.origin import from_another_site
from llmgw.server.pages.rendering import PAGE_HEADERS, error_page, page
from llmgw.server.pages.sessions import LOGIN_FORM_S_MAX, SESSION_S_MAX, BrowserSession, BrowserSessions

_log = logging.getLogger(__name__)

LOGIN = "/admin/login"
HOME = "/admin"


class Login:
    """`/admin/login` and `/admin/logout`."""

    def __init__(
        self, backend: AdminBackend, sessions: BrowserSessions, check: TokenCheck, *, secure: bool
    ) -> None:
        self._backend = backend
        self._sessions = sessions
        self._check = check
        self._secure = secure

    async def show(self, request: Request) -> Response:
        """The form; whoever has a session already is sent on."""
        border.only_parameters(request, "next", "over")
        onward = safe_next(request.query_params.get("next"))
        if getattr(request.state, "session", None) is not None:
            return RedirectResponse(onward, 303, PAGE_HEADERS)
        over = "over" in request.query_params
        return self._form(request, onward, "Your session has ended. Log in again." if over else None)

    async def log_in(self, request: Request) -> Response:
        """Takes the form. A wrong token counts as a guess, as it does with a header."""
        border.only_parameters(request)
        form = await read_form(request)
        onward = safe_next(form.get("next"))
        visitor = read_cookie(request.scope["headers"], VISITOR, secure=self._secure) or ""
        if cross_site(request) or not self._sessions.form_proven(visitor, form.get("proof", "")):
            said = "This form was not sent by its own page, or that page was open for too long. Try again."
            return self._form(request, onward, said, 403)
        token = form.get("token", "").strip()
        if not acceptable_token(token):
            return self._form(request, onward, "A token has 1 to 512 plain characters.", 400)
        host = request.client.host if request.client else "localhost"
        wait_s, by = await self._check.check(token, host, request.method, LOGIN)
        if wait_s:
            wait = math.ceil(wait_s)
            said = f"Too many wrong tokens came from {host}; try again in {wait} s."
            answer = self._form(request, onward, said, 429)
            answer.headers["retry-after"] = str(wait)
            return answer
        known = [each for each in await self._backend.tokens() if each.name == by]
        if by is None or not known:
            _log.warning("a wrong admin token came from %s", host)
            return self._form(request, onward, "This token is not known; it was mistyped or revoked.", 401)
        self._end_present(request)
        value = self._sessions.begin(by, known[0].created_at)
        answer = RedirectResponse(onward, 303, PAGE_HEADERS)
        set_cookie(answer, SESSION, value, secure=self._secure, age_s=int(SESSION_S_MAX))
        drop_cookie(answer, VISITOR, secure=self._secure)
        # For the audit log, as below; wrong tokens are in it by `TokenCheck`.
        request.state.by, request.state.sentence = by, "logged in"
        return answer

    async def log_out(self, request: Request) -> Response:
        """Ends the session; the form proves that a page of ours asked for it."""
        session: BrowserSession | None = getattr(request.state, "session", None)
        if session is not None:
            form = await read_form(request)
            if cross_site(request) or not proven(session, form.get("csrf", "")):
                message = "This was not sent by a page of this server. Nothing was changed."
                return error_page(request, 403, message)
            self._end_present(request)
            request.state.sentence = "logged out"
        answer = RedirectResponse(LOGIN, 303, PAGE_HEADERS)
        drop_cookie(answer, SESSION, secure=self._secure)
        return answer

    def _end_present(self, request: Request) -> None:
        value = read_cookie(request.scope["headers"], SESSION, secure=self._secure)
        if value is not None:
            self._sessions.end(value)

    def _form(self, request: Request, onward: str, said: str | None, status: int = 200) -> Response:
        visitor = secrets.token_urlsafe(24)
        proof = self._sessions.form_proof(visitor)
        answer = page(request, "login.html", status, next=onward, proof=proof, said=said)
        set_cookie(answer, VISITOR, visitor, secure=self._secure, age_s=LOGIN_FORM_S_MAX)
        return answer


def proven(session: BrowserSession, token: str) -> bool:
    """Whether a change carries its session's own word."""
    return hmac.compare_digest(session.csrf.encode(), token.encode("utf-8", "surrogatepass"))


def cross_site(request: Request) -> bool:
    """Whether the browser itself says that another site's page made this request."""
    return from_another_site(request.scope["headers"])


def safe_next(path: str | None) -> str:
    """Where to go after logging in: a page of ours, whatever the address says."""
    if path is None or len(path) > 1000 or not path.isprintable() or "\\" in path:
        return HOME
    ours = path == HOME or path.startswith((f"{HOME}/", f"{HOME}?"))
    # Browsers take dot segments out, also written as %2e, and then it may be another page than it seems.
    # (A `%2F` is no end of a segment.)
    parts = {unquote(part) for part in path.partition("?")[0].split("/")}
    return path if ours and not path.startswith(LOGIN) and not {".", ".."} & parts else HOME


async def read_form(request: Request) -> dict[str, str]:
    """A form's fields, each once: of two the audit log could tell another than was meant.

    Raises AdminError(400, 408, 413 or 415).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise border.bad_request(f"{request.url.path} takes a form (application/x-www-form-urlencoded)")
    raw = await border.read_body(request)
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=20)
    except ValueError:
        raise border.bad_request("the form cannot be read") from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise border.bad_request("a field of the form is given twice")
    return fields
