"""What every page's handler goes through: a refusal of the backend is a page here, not JSON."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from llmgw.server.admin.backend import AdminError
from llmgw.server.pages.rendering import error_page, sentence
from llmgw.server.store.errors import StoreError

Handler = Callable[[Request], Awaitable[Response]]


def as_page(handler: Handler) -> Handler:
    """The handler, with refusals shown as pages."""

    @functools.wraps(handler)
    async def shown(request: Request) -> Response:
        try:
            return await handler(request)
        except AdminError as error:
            return error_page(request, error.status, sentence(error.message))
        except StoreError as error:
            return error_page(request, 503, sentence(str(error)))

    return shown
