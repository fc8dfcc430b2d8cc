"""Changes that pages make: a form of our own page, and then that page again with a sentence of what was done."""

from __future__ import annotations

import secrets

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from llmgw.messages.admin import Done
from llmgw.server.admin import border
from llmgw.server.admin.backend import AdminError
from llmgw.server.pages.login import cross_site, proven, read_form
from llmgw.server.pages.rendering import PAGE_HEADERS
from llmgw.server.pages.sessions import SAID_MAX, BrowserSession

SAID = "said"
"""The parameter that names a sentence of the session's: never the sentence, which any link could make up."""


async def read_change(request: Request) -> dict[str, str]:
    """The fields of a form that a page of this session has sent, its `csrf` field proven.

    Raises AdminError(400, 403, 408, 413 or 415).
    """
    border.only_parameters(request, SAID)
    session: BrowserSession | None = getattr(request.state, "session", None)
    form = await read_form(request)
    if session is None or cross_site(request) or not proven(session, form.pop("csrf", "")):
        message = (
            "this was not sent by a page of this server, or that page is of an earlier session; "
            "nothing was changed"
        )
        raise AdminError(403, "no-csrf-token", message)
    return form


def shown_again(request: Request, path: str, done: Done) -> Response:
    """To `path`, where the page says what was done."""
    session: BrowserSession = request.state.session
    request.state.sentence = done.message  # for the audit log
    token = secrets.token_hex(4)
    session.said[token] = done
    while len(session.said) > SAID_MAX:
        del session.said[next(iter(session.said))]
    return RedirectResponse(f"{path}?{SAID}={token}", 303, PAGE_HEADERS)
