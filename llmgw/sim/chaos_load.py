"""Constant load that trusts nobody: every request has an id, and every answer is compared with the words that the
engine which it names would say. What became of each request is one of `FATES`.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import httpx

from llmgw.sim.engine_text import say

Fate = Literal[
    "served", "broken", "cut", "engine 500", "refused", "lost", "truncated", "wrong text", "strange", "running"
]
FATES: dict[Fate, str] = {
    "served": "whole, word for word, from the one engine that its head names",
    "broken": "a stream that had begun and ended with an error event; its words so far were right",
    "cut": "an answer that is no stream and had begun, whose connection ended before it was whole",
    "engine 500": "an engine's own answer, passed on: 500 says nothing of other engines",
    "refused": "an error of the gateway's own instead of an answer",
    "lost": "the connection ended before a byte of an answer came",
    "truncated": "a stream that ended like a whole one, without [DONE] and without an error event",
    "wrong text": "words that are missing, come twice, or are another engine's",
    "strange": "an answer that is none of these",
    "running": "not over yet",
}

PREFIX = "chaos-"
ENGINE_WORDS_MAX = 64
"""What an engine says when nothing limits it: the default of `llmgw sim engine --answer-tokens`."""
PAUSE_AFTER_FAILURE_S = 0.2
_SPEAKER = re.compile(r" on (\S+)\.")


@dataclass(slots=True)
class ChaosRequest:
    """One request and what became of it."""

    id: str
    model: str
    stream: bool
    began_at: float
    ended_at: float = 0.0
    fate: Fate = "running"
    what: str = ""
    """In words, when it was not served."""
    replica: str | None = None
    """Which replica the answer's head names."""
    shard: str | None = None
    """Which engine the answer's words name."""


@dataclass
class ChaosLoad:
    """So many clients for each model. Every other one streams; two of four keep their connection, and the others
    make a new one for each request."""

    api: str
    clients: dict[str, int]
    """By model."""
    tokens: int = 24
    requests: list[ChaosRequest] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _stopping: bool = False

    def start(self) -> None:
        """Start the clients."""
        for model, count in self.clients.items():
            for number in range(count):
                self._tasks.append(asyncio.create_task(self._client(model, number % 2 == 0, number % 4 < 2)))

    async def stop(self) -> None:
        """Start no further request and wait for those that run."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    def fates(self) -> Counter[Fate]:
        """How many requests had each fate."""
        return Counter(request.fate for request in self.requests)

    async def _client(self, model: str, stream: bool, keeps: bool) -> None:
        limits = httpx.Limits(max_keepalive_connections=1 if keeps else 0)
        async with httpx.AsyncClient(trust_env=False, timeout=60.0, limits=limits) as client:
            while not self._stopping:
                name = f"{PREFIX}{len(self.requests)}"
                request = ChaosRequest(name, model, stream, time.monotonic())
                self.requests.append(request)
                await self._run(client, request)
                request.ended_at = time.monotonic()
                if request.fate != "served":
                    await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    async def _run(self, client: httpx.AsyncClient, request: ChaosRequest) -> None:
        body = {
            "model": request.model,
            "messages": [{"role": "user", "content": f"I am {request.id}"}],
            "max_tokens": self.tokens,
            "stream": request.stream,
        }
        url, headers = f"{self.api}/v1/chat/completions", {"x-request-id": request.id}
        try:
            async with client.stream("POST", url, json=body, headers=headers) as answer:
                request.replica = answer.headers.get("x-llmgw-replica")
                if answer.status_code != 200:
                    text = (await answer.aread()).decode(errors="replace")
                    own = request.replica is not None and answer.status_code == 500
                    request.fate = "engine 500" if own else "refused"
                    request.what = f"{answer.status_code} {text[:300]}"
                elif request.stream:
                    await self._read_stream(answer, request)
                else:
                    await self._read_whole(answer, request)
        except httpx.HTTPError as error:
            request.fate = "lost"
            request.what = f"{type(error).__name__}: {error}"

    async def _read_whole(self, answer: httpx.Response, request: ChaosRequest) -> None:
        try:
            content = json.loads(await answer.aread())["choices"][0]["message"]["content"]
        except httpx.HTTPError as error:
            request.fate, request.what = "cut", f"{type(error).__name__}: {error}"
        except (ValueError, KeyError, TypeError, IndexError) as error:
            request.fate, request.what = "strange", f"{type(error).__name__}: {error}"
        else:
            self._judge_text(request, content, whole=True)

    async def _read_stream(self, answer: httpx.Response, request: ChaosRequest) -> None:
        text, done, error, finish = "", 0, "", None
        try:
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                if line == "data: [DONE]":
                    done += 1
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    error = str(event["error"].get("message", event["error"]))
                    continue
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                    finish = choice["finish_reason"] or finish
        except httpx.HTTPError as failure:
            request.fate, request.what = "truncated", f"no orderly end, {type(failure).__name__}: {failure}"
            return
        except (ValueError, KeyError, TypeError) as failure:
            request.fate, request.what = "strange", f"{type(failure).__name__}: {failure}"
            return
        self._judge_text(request, text, whole=not error)
        if request.fate != "served":
            return
        if error:
            request.fate, request.what = "broken", error
        elif done != 1 or finish not in ("length", "stop"):
            request.fate, request.what = "truncated", f"{done} times [DONE], finish_reason {finish}"

    def _judge_text(self, request: ChaosRequest, text: str, *, whole: bool) -> None:
        """`served` when the text is what its engine says (up to where it broke off, unless `whole`)."""
        named = _SPEAKER.search(text)
        if named is None:
            short = not whole and "This is".startswith(text[:7])
            request.fate, request.what = "served" if short else "wrong text", "" if short else text[:200]
            return
        request.shard = named[1]
        prompt = f"I am {request.id}"
        foretold = say(request.model, request.shard, prompt, 0, self.tokens, ENGINE_WORDS_MAX, ()).text()
        right = foretold == text if whole else foretold.startswith(text)
        if not right or not request.shard.startswith(request.replica or "?"):
            request.fate = "wrong text"
            request.what = f"replica {request.replica} says {text[:200]!r}"
            return
        request.fate = "served"
