"""The simulated engine's HTTP API, in the shapes of vLLM 0.32: routes, errors, and what is no generation."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
from collections.abc import Awaitable, Callable
from hmac import compare_digest
from typing import Any

from llmgw import __version__
from llmgw.sim.engine_core import Core
from llmgw.sim.engine_faults import FaultError, ResetFault
from llmgw.sim.engine_generate import GenerationRunner
from llmgw.sim.engine_http import Exchange, Request
from llmgw.sim.engine_options import Options, Surroundings
from llmgw.sim.engine_requests import ApiError, Fields, Generation, prompts_of, read_chat, read_completion
from llmgw.sim.engine_text import EMBEDDING_DIMENSIONS, count_tokens, embed
from llmgw.sim.engine_tokens import detokenize, rerank, score, tokenize

Route = Callable[[Exchange], Awaitable[None]]


class Api:
    """Answers requests; `log` gets one line for each POST."""

    def __init__(
        self, options: Options, surroundings: Surroundings, core: Core, log: Callable[[str], None]
    ) -> None:
        self._options = options
        self._api_key = surroundings.api_key
        self._core = core
        self._log = log
        self._faults_at_start = core.faults.current()
        self._created = int(time.time())
        self._runner = GenerationRunner(core, surroundings.shard, options.answer_tokens)
        self._routes: dict[str, dict[str, Route]] = {
            "/health": {"GET": self._health},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            "/v1/models": {"GET": self._models},
            "/v1/chat/completions": {"POST": self._chat},
            "/v1/completions": {"POST": self._completions},
            "/v1/embeddings": {"POST": self._embeddings},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            **{path: {"POST": self._rerank} for path in ("/rerank", "/v1/rerank", "/v2/rerank")},
            **{path: {"POST": self._score} for path in ("/score", "/v1/score")},
            "/sim/faults": {"GET": self._show_faults, "POST": self._change_faults, "DELETE": self._end_faults},
        }

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request, whatever it is."""
        request = exchange.request
        try:
            if request.refused is not None:
                raise ApiError(*request.refused)
            methods = self._routes.get(request.path)
            if not self._authorized(request):
                respond_json(exchange, 401, {"error": "Unauthorized"})
            elif methods is None:
                respond_json(exchange, 404, {"detail": "Not Found"})
            elif request.method not in methods:
                headers = {"allow": ", ".join(methods)}
                respond_json(exchange, 405, {"detail": "Method Not Allowed"}, headers)
            else:
                await methods[request.method](exchange)
        except ApiError as error:
            respond_json(exchange, error.status, error.body())
        except FaultError as error:
            respond_json(exchange, 500, ApiError(500, str(error), kind="InternalServerError").body())
        except ResetFault:
            await exchange.reset()
        finally:
            if request.method == "POST":
                self._log(self._log_line(exchange))

    def _log_line(self, exchange: Exchange) -> str:
        """What became of a request, with its id: who counts them needs no more than the log."""
        request = exchange.request
        became = exchange.status or "no answer"
        cut = "" if exchange.whole or exchange.status is None else " cut off"
        asked = f" {request_id(request)}" if request.path.startswith("/v1/") else ""
        return f'"{request.method} {request.path} HTTP/1.1" {became}{cut}{asked}'.rstrip()

    def _authorized(self, request: Request) -> bool:
        """Like vLLM, the key guards `/v1` and nothing else."""
        if self._api_key is None or not request.path.startswith("/v1/"):
            return True
        given = request.headers.get("authorization", "")
        return compare_digest(given.encode(), f"Bearer {self._api_key}".encode())

    async def _health(self, exchange: Exchange) -> None:
        exchange.respond(200, b"")

    async def _version(self, exchange: Exchange) -> None:
        respond_json(exchange, 200, {"version": f"sim-{__version__}"})

    async def _metrics(self, exchange: Exchange) -> None:
        if self._core.faults.metrics_silent:
            await asyncio.get_running_loop().create_future()  # until the client leaves
        text = self._core.metrics.render().encode()
        exchange.respond(200, text, "text/plain; version=1.0.0; charset=utf-8")

    async def _models(self, exchange: Exchange) -> None:
        names = self._options.served_names
        data = [
            {
                "id": name,
                "object": "model",
                "created": self._created,
                "owned_by": "vllm",
                "root": names[0],
                "parent": None,
                "max_model_len": self._options.max_model_len,
            }
            for name in names
        ]
        respond_json(exchange, 200, {"object": "list", "data": data})

    async def _chat(self, exchange: Exchange) -> None:
        fields = self._read(exchange)
        self._log(f"received {fields.request_id}".rstrip())
        await self._generate(exchange, read_chat(fields, self._model(fields), self._options.max_model_len))

    async def _completions(self, exchange: Exchange) -> None:
        fields = self._read(exchange)
        await self._generate(exchange, read_completion(fields, self._model(fields), self._options.max_model_len))

    async def _generate(self, exchange: Exchange, generation: Generation) -> None:
        body = await self._runner.run(exchange, generation)
        if body is not None:
            respond_json(exchange, 200, body)

    async def _embeddings(self, exchange: Exchange) -> None:
        fields = self._read(exchange)
        model = self._model(fields)
        texts = prompts_of(fields.values.get("input"), "input")
        dimensions = fields.integer("dimensions", 1, 65536) or EMBEDDING_DIMENSIONS
        encoding = fields.values.get("encoding_format", "float")
        if encoding not in ("float", "base64"):
            raise ApiError(400, f"encoding_format is float or base64, not {encoding!r}", param="encoding_format")
        tokens = sum(count_tokens(text) for text in texts)
        await self._runner.prefill(tokens)
        data = []
        for index, text in enumerate(texts):
            vector: Any = embed(text, dimensions)
            if encoding == "base64":
                vector = base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
            data.append({"index": index, "object": "embedding", "embedding": vector})
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
        respond_json(exchange, 200, {"object": "list", "model": model, "data": data, "usage": usage})

    async def _tokenize(self, exchange: Exchange) -> None:
        fields = self._read(exchange)
        self._model(fields)
        respond_json(exchange, 200, tokenize(fields, self._options.max_model_len))

    async def _detokenize(self, exchange: Exchange) -> None:
        fields = self._read(exchange)
        self._model(fields)
        respond_json(exchange, 200, detokenize(fields))

    async def _rerank(self, exchange: Exchange) -> None:
        fields = self._read(exchange)
        body, tokens = rerank(fields, self._model(fields))
        await self._runner.prefill(tokens)
        respond_json(exchange, 200, body)

    async def _score(self, exchange: Exchange) -> None:
        fields = self._read(exchange)
        body, tokens = score(fields, self._model(fields))
        await self._runner.prefill(tokens)
        respond_json(exchange, 200, body)

    async def _show_faults(self, exchange: Exchange) -> None:
        respond_json(exchange, 200, self._core.faults.current())

    async def _change_faults(self, exchange: Exchange) -> None:
        self._set_faults(exchange, self._read(exchange).values)

    async def _end_faults(self, exchange: Exchange) -> None:
        self._set_faults(exchange, self._faults_at_start)

    def _set_faults(self, exchange: Exchange, values: dict[str, Any]) -> None:
        try:
            self._core.faults.change(values)
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        self._core.faults_changed()
        respond_json(exchange, 200, self._core.faults.current())

    def _read(self, exchange: Exchange) -> Fields:
        request = exchange.request
        fields = Fields.parse(bytes(request.body))
        fields.request_id = request_id(request)
        return fields

    def _model(self, fields: Fields) -> str:
        """The model asked for; like vLLM, the first name when none is given."""
        names = self._options.served_names
        model = fields.values.get("model")
        if model is None:
            return names[0]
        if model not in names:
            aliases = ", ".join(names)
            sentence = f"The model `{model}` does not exist. Valid aliases: {aliases}."
            raise ApiError(404, sentence, kind="NotFoundError", param="model")
        return str(model)


def request_id(request: Request) -> str:
    """What the client calls it; empty when it has no name."""
    return request.headers.get("x-request-id", "")[:128]


def respond_json(exchange: Exchange, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    """Answer with JSON."""
    exchange.respond(status, json.dumps(body).encode(), headers=headers)
