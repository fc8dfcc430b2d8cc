"""Which API a client speaks, by the path that it asks: OpenAI's, or below `/v1/messages` Anthropic's.

What the gateway says by itself is said in that API's words.
"""

from __future__ import annotations

from llmgw.messages.routes import ModelRoute
from llmgw.router.anthropic.dialect import COUNT_PATH, MESSAGES_PATH, MessagesDialect
from llmgw.router.anthropic.errors import error_body
from llmgw.router.errors import ApiError
from llmgw.router.request import Request
from llmgw.router.request_reader import BodyBudget


def dialect_of(request: Request, route: ModelRoute, bodies: BodyBudget) -> MessagesDialect | None:
    """What stands between this request and its engines; None for a request that goes on as it is."""
    path = request.path
    if path in (MESSAGES_PATH, COUNT_PATH):
        return MessagesDialect(request, route.anthropic, bodies)
    return None


def is_anthropic(path: str) -> bool:
    """True for a path of Anthropic's API."""
    return path.startswith(MESSAGES_PATH) and path[len(MESSAGES_PATH) :][:1] in ("", "/")


def render_error(error: ApiError, path: str, request_id: bytes) -> tuple[bytes, list[bytes]]:
    """An error of the gateway's own: its body, and header lines that go with it, for who asked for `path`."""
    lines = [*error.headers]
    if not is_anthropic(path):
        return error.body(), lines
    if request_id:
        lines.append(b"request-id: " + request_id)
    return error_body(error.status, error.message, request_id), lines
