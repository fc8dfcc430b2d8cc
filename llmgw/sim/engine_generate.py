"""Turns a read request into an answer of the simulated engine: whole, or streamed in vLLM's chunks."""

from __future__ import annotations

import json
import time
from typing import Any

from llmgw.sim.engine_core import PLAIN_TICK_S, STREAM_TICK_S, Core, Job
from llmgw.sim.engine_faults import FaultError
from llmgw.sim.engine_http import Exchange
from llmgw.sim.engine_prefixes import PrefixCache
from llmgw.sim.engine_requests import ApiError, Generation
from llmgw.sim.engine_text import Answer, call_tool, say

_json = json.JSONEncoder(separators=(",", ":")).encode


class GenerationRunner:
    """Runs generations on a core. `speaker` is who the answers say they come from."""

    def __init__(self, core: Core, speaker: str, answer_tokens: int) -> None:
        self._core = core
        self._speaker = speaker
        self._answer_tokens = answer_tokens
        self._prefixes = PrefixCache()

    async def run(self, exchange: Exchange, generation: Generation) -> dict[str, Any] | None:
        """Stream to the client and return None, or return the body of a whole answer.

        Raises FaultError while nothing has been sent.
        """
        answers = self._answers(generation)
        generation.cached_tokens = sum(map(self._prefixes.take, generation.contexts))
        metrics = self._core.metrics
        metrics.prefix_queries += generation.prompt_tokens
        metrics.prefix_hits += generation.cached_tokens
        job = self._core.accept(
            Job(
                prompt_tokens=generation.prompt_tokens,
                lengths=[len(answer.tokens) for answer in answers],
                tick_s=STREAM_TICK_S if generation.stream else PLAIN_TICK_S,
                finish_reason="length" if answers[0].finish_reason == "length" else "stop",
            )
        )
        if generation.stream:
            await _Stream(exchange, generation, answers, job).run(self._core)
            return None
        await self._core.run(job, _nothing)
        return _whole(generation, answers, job)

    async def prefill(self, tokens: int) -> None:
        """Take the time of a request that generates nothing. Raises FaultError."""
        await self._core.run(self._core.accept(Job(prompt_tokens=tokens, lengths=[0])), _nothing)

    def _answers(self, generation: Generation) -> list[Answer]:
        limit = generation.max_tokens
        if generation.tool is not None:
            return [call_tool(*generation.tool, limit) for _ in range(generation.n)]
        natural = limit + 1 if generation.ignore_eos else self._answer_tokens
        return [
            say(generation.model, self._speaker, prompt, choice, limit, natural, generation.stop)
            for prompt in generation.prompts
            for choice in range(generation.n)
        ]


class _Stream:
    """One answer as server-sent events."""

    def __init__(self, exchange: Exchange, generation: Generation, answers: list[Answer], job: Job) -> None:
        self._exchange = exchange
        self._generation = generation
        self._answers = answers
        self._job = job
        self._sent = 0
        kind = "chat.completion.chunk" if generation.chat else "text_completion"
        head = {"id": generation.id, "object": kind, "created": int(time.time()), "model": generation.model}
        # Every chunk begins with the same bytes.
        self._head = "data: " + _json(head)[:-1]

    async def run(self, core: Core) -> None:
        self._exchange.start_stream("text/event-stream; charset=utf-8")
        try:
            await core.run(self._job, self._emit)
        except FaultError as error:
            body = ApiError(500, str(error), kind="InternalServerError").body()
            await self._exchange.write(f"data: {_json(body)}\n\ndata: [DONE]\n\n".encode())
            self._exchange.end_stream(whole=False)
            return
        await self._exchange.write(self._closing().encode())
        self._exchange.end_stream(whole=not self._job.aborted)

    async def _emit(self, given: int) -> None:
        chunks = [] if self._sent else self._openings()
        for index, answer in enumerate(self._answers):
            length = len(answer.tokens)
            for at in range(min(self._sent, length), min(given, length)):
                reason = answer.finish_reason if at == length - 1 else None
                chunks.append(
                    self._chunk(index, self._piece(answer, answer.tokens[at]), reason, answer.stop_reason)
                )
        self._sent = given
        await self._exchange.write("".join(chunks).encode())

    def _openings(self) -> list[str]:
        if not self._generation.chat:
            return []
        chunks = []
        for index, answer in enumerate(self._answers):
            chunks.append(self._chunk(index, {"role": "assistant", "content": ""}))
            if answer.tool is not None:
                call = {
                    "index": 0,
                    "id": f"{self._generation.id}-tool-{index}",
                    "type": "function",
                    "function": {"name": answer.tool, "arguments": ""},
                }
                chunks.append(self._chunk(index, {"tool_calls": [call]}))
        return chunks

    def _piece(self, answer: Answer, token: str) -> Any:
        if not self._generation.chat:
            return token
        if answer.tool is not None:
            return {"tool_calls": [{"index": 0, "function": {"arguments": token}}]}
        return {"content": token}

    def _closing(self) -> str:
        """What follows the tokens: ends that no token carried, usage if it was asked for, and the mark."""
        chunks = [] if self._sent else self._openings()
        nothing: Any = {"content": ""} if self._generation.chat else ""
        for index, answer in enumerate(self._answers):
            if self._job.aborted and self._sent < len(answer.tokens):
                chunks.append(self._chunk(index, nothing, "abort"))
            elif not answer.tokens:
                chunks.append(self._chunk(index, nothing, answer.finish_reason, answer.stop_reason))
        if self._generation.include_usage:
            usage = _json(_usage(self._generation, self._job))
            chunks.append(f'{self._head},"choices":[],"usage":{usage}}}\n\n')
        return "".join(chunks) + "data: [DONE]\n\n"

    def _chunk(self, index: int, piece: Any, reason: str | None = None, stop_reason: str | None = None) -> str:
        key = "delta" if self._generation.chat else "text"
        end = f',"logprobs":null,"finish_reason":{_json(reason)}'
        if reason is not None:
            end += f',"stop_reason":{_json(stop_reason)}'
        return f'{self._head},"choices":[{{"index":{index},"{key}":{_json(piece)}{end}}}]}}\n\n'


def _whole(generation: Generation, answers: list[Answer], job: Job) -> dict[str, Any]:
    choices = []
    for index, answer in enumerate(answers):
        cut = job.aborted and job.given < len(answer.tokens)
        text = answer.text(job.given)
        choice: dict[str, Any] = {
            "index": index,
            "logprobs": None,
            "finish_reason": "abort" if cut else answer.finish_reason,
            "stop_reason": None if cut else answer.stop_reason,
        }
        if not generation.chat:
            choice["text"] = text
        elif answer.tool is None:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None, "tool_calls": []}
        else:
            function = {"name": answer.tool, "arguments": text}
            call = {"id": f"{generation.id}-tool-{index}", "type": "function", "function": function}
            choice["message"] = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
        choices.append(choice)
    return {
        "id": generation.id,
        "object": "chat.completion" if generation.chat else "text_completion",
        "created": int(time.time()),
        "model": generation.model,
        "choices": choices,
        "usage": _usage(generation, job),
    }


def _usage(generation: Generation, job: Job) -> dict[str, Any]:
    """As vLLM says it with `--enable-prompt-tokens-details`."""
    prompt, completion = generation.prompt_tokens, job.completion_tokens
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
    }


async def _nothing(given: int) -> None:
    """What is done with the tokens of an answer that is sent whole."""
