"""Load for scenarios: clients that stream from each model and note exactly what became of every request."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx


@dataclass(slots=True)
class Request:
    """One request's fate. `outcome` is None while it runs, `served`, or why it failed."""

    model: str
    started_at: float
    stream: bool
    replica: str | None = None
    """The replica that answered, as the gateway's response header names it."""
    outcome: str | None = None


@dataclass
class Load:
    """`clients` concurrent clients a model, half of them streaming, until `stop`."""

    api: str
    models: list[str]
    clients: int = 3
    tokens: int = 40
    key: str | None = None
    """The API key that they send, if any."""
    requests: list[Request] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _stopping: bool = False

    def start(self) -> None:
        """Start the clients."""
        for model in self.models:
            for number in range(self.clients):
                self._tasks.append(asyncio.create_task(self._client(model, stream=number % 2 == 0)))

    async def stop(self) -> None:
        """Start no further request and wait for those that run."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    @property
    def failed(self) -> list[Request]:
        """Requests that ended in another way than served."""
        return [request for request in self.requests if request.outcome not in (None, "served")]

    def counts(self) -> Counter[str]:
        """Outcome → how many."""
        return Counter(request.outcome or "running" for request in self.requests)

    async def _client(self, model: str, stream: bool) -> None:
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        async with httpx.AsyncClient(trust_env=False, timeout=60.0, headers=headers) as client:
            while not self._stopping:
                request = Request(model, time.monotonic(), stream)
                self.requests.append(request)
                await run_request(client, self.api, request, self.tokens)
                if request.outcome != "served":
                    await asyncio.sleep(0.2)


async def run_request(client: httpx.AsyncClient, api: str, request: Request, tokens: int) -> None:
    """Send one chat request and note what became of it; raises nothing."""
    body = {
        "model": request.model,
        "messages": [{"role": "user", "content": "Which shard answers?"}],
        "max_tokens": tokens,
        "stream": request.stream,
    }
    try:
        async with client.stream("POST", f"{api}/v1/chat/completions", json=body) as answer:
            request.replica = answer.headers.get("x-llmgw-replica")
            if answer.status_code != 200:
                text = (await answer.aread()).decode(errors="replace")
                request.outcome = f"{answer.status_code}: {_message(text)}"
            elif request.stream:
                request.outcome = await _read_stream(answer)
            else:
                content = json.loads(await answer.aread())["choices"][0]["message"]["content"]
                request.outcome = "served" if content else "empty answer"
    except (httpx.HTTPError, ValueError, KeyError) as error:
        request.outcome = f"{type(error).__name__}: {error}"


async def _read_stream(answer: httpx.Response) -> str:
    done = False
    async for line in answer.aiter_lines():
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            done = True
            continue
        event = json.loads(line[6:])
        if "error" in event:
            return f"stream ended with an error: {event['error'].get('message', event['error'])}"
        if any(choice.get("finish_reason") == "abort" for choice in event.get("choices", [])):
            return "aborted by the engine"
    return "served" if done else "stream ended without [DONE]"


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:200]
