"""What the gateway answers by itself: the list of models, liveness, and which methods a path takes."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import msgspec

from llmgw.messages.routes import ModelRoute
from llmgw.router.cors import preflight_headers
from llmgw.router.errors import ApiError, not_yet_known, render, unknown_model
from llmgw.router.keys import Keys
from llmgw.router.request import Request
from llmgw.router.table import Model, RoutingTable

MODELS_PATH = "/v1/models"
# What engines serve beside /v1/ and what names a model in its body. Nothing else of theirs is for clients: most
# of the rest changes the engine (weights, sleeping, profiles).
BESIDE_V1 = frozenset(
    (
        "/tokenize",
        "/detokenize",
        "/rerank",
        "/v2/rerank",
        "/score",
        "/classify",
        "/pooling",
    )
)
# Below /v1/ too: vLLM loads adapters for whoever asks, when it is started so.
_NOT_FOR_CLIENTS = frozenset(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"))
# Things that some service would keep between requests. Here nothing is kept, and no engine would find it again.
_KEPT = (
    "/v1/files",
    "/v1/batches",
    "/v1/messages/batches",
    "/v1/conversations",
    "/v1/vector_stores",
    "/v1/uploads",
)
_KEPT_ANSWERS = ("/v1/responses/", "/v1/chat/completions/")
_POST = ["POST"]
_encode = msgspec.json.Encoder().encode


def is_passed_on(request: Request) -> bool:
    """True for what goes to an engine: every POST below /v1/, and some beside it, but for the gateway's own."""
    return request.method == b"POST" and _takes_posts(request.path)


@functools.lru_cache(maxsize=256)
def _takes_posts(path: str) -> bool:
    return _methods(path) == _POST and not _is_kept(path, b"POST")


def answer_locally(request: Request, table: RoutingTable, keys: Keys, *, keep_alive: bool) -> bytes:
    """The whole answer for everything that is not passed on. Raises ApiError."""
    path = request.path
    if _is_kept(path, request.method):
        raise ApiError(
            404,
            f"There is nothing at {path[:200]!r}: this gateway keeps no answers, files or batches, and each "
            "request may go to another engine. Send the whole conversation with every request.",
            type="not_found_error",
            code="not_kept",
        )
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
        return render(204, b"", keep_alive=keep_alive, headers=headers, more_headers=request.own_lines)
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
        entries = [_entry(name, model.route) for name, model in _allowed(request, table, keys)]
        body = _encode(_list(entries))
    else:
        name = unquote(path[len(MODELS_PATH) + 1 :])
        allowed = dict(_allowed(request, table, keys))
        model = allowed.get(name)
        if model is None:
            raise unknown_model(name, list(allowed))
        body = _encode(_entry(name, model.route))
    head_only = request.method == b"HEAD"
    return render(200, body, keep_alive=keep_alive, more_headers=request.own_lines, head_only=head_only)


def _allowed(request: Request, table: RoutingTable, keys: Keys) -> list[tuple[str, Model]]:
    """The models that this caller may use, by name and by alias. Raises ApiError for a caller that is none."""
    caller = keys.caller(request)
    return [(name, model) for name, model in sorted(table.models.items()) if caller.may_use(model.name)]


def _methods(path: str) -> list[str]:
    if path == "/health" or path == MODELS_PATH or path.startswith(MODELS_PATH + "/"):
        return ["GET", "HEAD"]
    if path in _NOT_FOR_CLIENTS:
        return []
    return _POST if (path.startswith("/v1/") and len(path) > len("/v1/")) or path in BESIDE_V1 else []


def _is_kept(path: str, method: bytes) -> bool:
    """True for a path of something that would have been kept: an earlier answer, a file, a batch."""
    if path.startswith(_KEPT_ANSWERS):
        return method not in (b"POST", b"OPTIONS") or path.endswith("/cancel")
    return path.startswith(_KEPT)


def _list(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """OpenAI's list, and Anthropic's, whose fields have other names."""
    names = [entry["id"] for entry in entries]
    return {
        "object": "list",
        "data": entries,
        "has_more": False,
        "first_id": names[0] if names else None,
        "last_id": names[-1] if names else None,
    }


def _entry(name: str, route: ModelRoute) -> dict[str, Any]:
    """A model as OpenAI's and Anthropic's lists have it; an alias stands as an entry of its own and names its
    model as `root`. `max_model_len` is what engines call the context length.
    """
    created = datetime.fromtimestamp(route.created_s, UTC)
    return {
        "id": name,
        "object": "model",
        "created": route.created_s,
        "owned_by": "llmgw",
        "root": route.name,
        "kinds": route.kinds,
        "max_model_len": route.context_length,
        "ready": bool(route.endpoints),
        "type": "model",
        "display_name": name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": route.context_length,
        "lifecycle": "active",
    }
