"""/admin/playground: chat with a model. The script streams; without one a form gets a whole answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from llmgw.messages.admin import ModelView
from llmgw.server.admin import border
from llmgw.server.admin.answers import ALWAYS, refusal
from llmgw.server.admin.backend import AdminBackend, AdminError, AdminPlayground
from llmgw.server.pages.changes import SAID, read_change, require_word
from llmgw.server.pages.handlers import as_page
from llmgw.server.pages.passed_on import while_there
from llmgw.server.pages.rendering import page
from llmgw.server.pages.still_may import StillMay

PATH = "/admin/playground"
BODY_BYTES_MAX = 4 * 1024 * 1024
ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""Of an answer that is shown as a page."""
ANSWER_S_MAX = 300.0
CHATS = "chat"
TASKS = {
    "completion": ("completions", "/v1/completions"),
    "embedding": ("embeddings", "/v1/embeddings"),
    "rerank": ("ranking documents", "/v1/rerank"),
    "score": ("scoring pairs of texts", "/v1/score"),
    "transcription": ("transcribing audio", "/v1/audio/transcriptions"),
}
"""What models are for that do not chat, and where it is asked of them."""
_NUMBERS: dict[str, tuple[type[int] | type[float], float, float]] = {
    "temperature": (float, 0, 2),
    "top_p": (float, 0, 1),
    "max_tokens": (int, 1, 10_000_000),
    "seed": (int, 0, 2**53),
}
_PASSED_HEADERS = ("x-request-id", "x-llmgw-replica", "x-queue-position", "x-queue-wait-ms", "retry-after")
_PASSED_TYPES = ("text/event-stream", "application/json")


class _Chat(msgspec.Struct, frozen=True):
    """What a chat request must have; the rest is for the engine to judge."""

    model: str
    messages: list[dict[str, Any]]


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message = _Message()
    finish_reason: str | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Answer(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Refused(msgspec.Struct, frozen=True):
    error: _Error


def playground_routes(backend: AdminBackend, alive: StillMay) -> list[Route]:
    """The page, the form on it, and what its script asks, for as long as whoever asked is `alive`."""

    def shown(request: Request, status: int = 200, **more: Any) -> Response:
        fields: Mapping[str, str] = more.pop("fields", {})
        models = backend.models()
        wanted = fields.get("model") or request.query_params.get("model")
        chosen = _chosen(models, wanted)
        facts: dict[str, Any] = {"answer": None, "said": None, **more}
        if wanted and facts["said"] is None and (chosen is None or wanted not in (chosen.name, *chosen.aliases)):
            facts["said"] = f"there is no model {wanted!r}"
        return page(
            request,
            "playground.html",
            status,
            models=models,
            chosen=chosen,
            tasks=TASKS,
            fields=fields,
            base_url=backend.playground.base_url(request.url.hostname or ""),
            needs_key=backend.playground.needs_key,
            **facts,
        )

    async def show(request: Request) -> Response:
        border.only_parameters(request, SAID, "model")
        if "model" in request.query_params:
            border.plain_name(request.query_params["model"], "model")
        return shown(request)

    async def ask(request: Request) -> Response:
        """One message of the form, and its whole answer."""
        form = await read_change(request)
        try:
            body = read_chat(form)
            answer = await while_there(request, _whole(backend.playground, body), alive)
        except AdminError as error:
            return shown(request, error.status, fields=form, said=error.message)
        return shown(request, fields=form, answer=answer)

    async def chat(request: Request) -> Response:
        """What the script asks: passed on, and its answer passed back as it comes."""
        border.only_parameters(request)
        require_word(request)
        body = await border.read_body(request, BODY_BYTES_MAX)
        try:
            msgspec.json.decode(body, type=_Chat)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise border.bad_request(f"this is no chat request: {error}") from None
        return PassedOn(backend.playground, body, alive)

    return [
        Route(PATH, as_page(show), methods=["GET"]),
        Route(PATH, as_page(ask), methods=["POST"]),
        Route(f"{PATH}/chat", chat, methods=["POST"]),
    ]


class PassedOn(Response):
    """The gateway's answer as it comes. The engine's work ends when the browser leaves, or its session ends."""

    def __init__(self, playground: AdminPlayground, body: bytes, alive: StillMay) -> None:
        super().__init__()
        self._playground = playground
        self._asked = body
        self._alive = alive
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_there(Request(scope, receive), self._pass(send), self._alive)
        except AdminError as error:
            if not self._begun:
                await refusal(error.status, error.code, error.message)(scope, receive, send)
                return
            # The head is out: what is left is to say it as the gateway says it of its own streams.
            event = msgspec.json.encode({"error": {"message": error.message, "code": error.code}})
            await send({"type": "http.response.body", "body": b"\n\ndata: %b\n\n" % event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass(self, send: Send) -> None:
        async with self._playground.chat(self._asked) as answer:
            kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
            headers = {
                name: value
                for name in _PASSED_HEADERS
                if (value := answer.headers.get(name)) is not None and value.isascii() and value.isprintable()
            }
            # Whatever an engine says that it answers with, nothing of it is a document of this site.
            headers["content-type"] = kind if kind in _PASSED_TYPES else "text/plain; charset=utf-8"
            raw = [(name.encode(), value.encode()) for name, value in {**ALWAYS, **headers}.items()]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": raw})
            self._begun = True
            async for part in answer.aiter_raw():
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def read_chat(form: Mapping[str, str]) -> bytes:
    """A chat request of the form's fields. Raises AdminError(400)."""
    model, message = form.get("model", ""), form.get("message", "")
    if not message.strip():
        raise border.bad_request("there is no message to send")
    body: dict[str, Any] = {"model": border.plain_name(model, "model"), "messages": []}
    if form.get("system", "").strip():
        body["messages"].append({"role": "system", "content": form["system"]})
    body["messages"].append({"role": "user", "content": message})
    for name, (kind, low, high) in _NUMBERS.items():
        text = form.get(name, "").strip()
        if text:
            body[name] = _number(text, name, kind, low, high)
    more = form.get("more", "").strip()
    if more:
        try:
            body.update(msgspec.json.decode(more, type=dict[str, Any]))
        except (msgspec.DecodeError, RecursionError) as error:
            raise border.bad_request(
                f'more parameters are a JSON object such as {{"top_k": 20}}: {error}'
            ) from None
    body["stream"] = False
    return msgspec.json.encode(body)


async def _whole(playground: AdminPlayground, body: bytes) -> dict[str, Any]:
    """An answer with everything in it that the page shows. Raises AdminError."""
    try:
        async with asyncio.timeout(ANSWER_S_MAX), playground.chat(body) as answer:
            raw = bytearray()
            async for part in answer.aiter_raw():
                raw += part
                if len(raw) > ANSWER_BYTES_MAX:
                    raise AdminError(
                        502,
                        "long-answer",
                        f"the answer is longer than {ANSWER_BYTES_MAX} bytes; lower max_tokens",
                    )
    except TimeoutError:
        raise AdminError(
            504, "slow-answer", f"the answer was not whole within {ANSWER_S_MAX:g} s; lower max_tokens"
        ) from None
    try:
        if answer.status_code != 200:
            raise AdminError(answer.status_code, "refused", msgspec.json.decode(raw, type=_Refused).error.message)
        told = msgspec.json.decode(raw, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = f"the engine answered {answer.status_code} with something that is no chat completion"
        raise AdminError(502, "odd-answer", message) from None
    choice = told.choices[0] if told.choices else _Choice()
    return {
        "text": choice.message.content or "",
        "finish": choice.finish_reason,
        "usage": told.usage or _Usage(),
        "replica": answer.headers.get("x-llmgw-replica"),
        "id": answer.headers.get("x-request-id"),
    }


def _chosen(models: list[ModelView], wanted: str | None) -> ModelView | None:
    """The model that is asked for by name or alias, else the first that can chat now, else the first."""
    for model in models:
        if wanted is not None and (wanted == model.name or wanted in model.aliases):
            return model
    chats = [model for model in models if model.task == CHATS]
    return next((model for model in chats if model.endpoints_ready), next(iter(chats or models), None))


def _number(text: str, name: str, kind: type[int] | type[float], low: float, high: float) -> float:
    try:
        if len(text) <= 20 and text.isascii():
            value = kind(text)
            if math.isfinite(value) and low <= value <= high:
                return value
    except ValueError:
        pass
    what = "a whole number" if kind is int else "a number"
    raise border.bad_request(f"{name} must be {what} from {low:g} to {high:g}, not {text[:40]!r}")
