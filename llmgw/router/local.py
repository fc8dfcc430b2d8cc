"""What the gateway answers by itself: the list of models, liveness, and which methods a path takes."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec

from llmgw.messages.routes import ModelRoute
from llmgw.router.cors import preflight_headers
from llmgw.router.errors import ApiError, not_yet_known, render, unknown_model
from llmgw.router.request import Request
from llmgw.router.table import RoutingTable

MODELS_PATH = "/v1/models"
_encode = msgspec.json.Encoder().encode


def is_passed_on(request: Request) -> bool:
    """True for what goes to an engine: every POST below /v1/ but for the gateway's own paths."""
    path = request.path
    return request.method == b"POST" and _methods(path) == ["POST"]


def answer_locally(request: Request, table: RoutingTable, *, keep_alive: bool) -> bytes:
    """The whole answer for everything but a POST below /v1/. Raises ApiError."""
    path = request.path
    methods = _methods(path)
    if not methods and not (path == "*" and request.method == b"OPTIONS"):
        raise ApiError(
            404,
            f"There is nothing at {path[:200]!r}; the API is below /v1/, and GET /v1/models lists the models.",
            type="not_found_error",
            code="not_found",
        )
    allow = b"allow: " + ", ".join([*methods, "OPTIONS"]).encode()
    if request.method == b"OPTIONS":
        headers = [allow, *preflight_headers(request, methods)]
        return render(204, b"", keep_alive=keep_alive, headers=headers, more_headers=request.answer_headers)
    if request.method.decode("latin-1") not in methods:
        raise ApiError(
            405,
            f"{request.method.decode('latin-1')} is not a method of {path[:200]}; use {' or '.join(methods)}.",
            code="method_not_allowed",
            headers=[allow],
        )
    if path == "/health":
        body = b'{"status":"ok"}'
    elif table.snapshot is None:
        # An empty list would be believed, and the models given up by whoever asked.
        raise not_yet_known()
    elif path == MODELS_PATH:
        entries = [_entry(name, model.route) for name, model in sorted(table.models.items())]
        body = _encode({"object": "list", "data": entries})
    else:
        name = unquote(path[len(MODELS_PATH) + 1 :])
        model = table.models.get(name)
        if model is None:
            raise unknown_model(name, sorted(table.models))
        body = _encode(_entry(name, model.route))
    head_only = request.method == b"HEAD"
    return render(200, body, keep_alive=keep_alive, more_headers=request.answer_headers, head_only=head_only)


def _methods(path: str) -> list[str]:
    if path == "/health" or path == MODELS_PATH or path.startswith(MODELS_PATH + "/"):
        return ["GET", "HEAD"]
    return ["POST"] if path.startswith("/v1/") and len(path) > len("/v1/") else []


def _entry(name: str, route: ModelRoute) -> dict[str, Any]:
    """A model as OpenAI's list has it; an alias stands as an entry of its own and names its model as `root`."""
    return {"id": name, "object": "model", "created": route.created_s, "owned_by": "llmgw", "root": route.name}
