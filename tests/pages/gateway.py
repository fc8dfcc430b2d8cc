"""A gateway of the tests' own behind the playground: it answers as a test tells it, and sees who leaves."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.router.support import Engine, Script, Seen, chunk

HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: req-77\r\n"
    b"x-llmgw-replica: chat-small-3c4d\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Gateway:
    """In a thread with its own event loop. `script` may be changed between requests."""

    def __init__(self, script: Script) -> None:
        self.engine = Engine(self._serve)
        self.script = script
        self.open = 0
        """Requests that are being answered now."""
        self.ended = 0
        """Requests whose answer is over, be it whole or not."""
        self.left = 0
        """Those of them whose client left first."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self.engine.start(), self._loop).result(10)
        self.address = f"127.0.0.1:{self.engine.port}"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(seen.body) for seen in self.engine.requests]

    async def _serve(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        answering = asyncio.create_task(self.script(seen, reader, writer))  # type: ignore[arg-type]
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self.left += 1
            else:
                answering.result()
        finally:
            self.open -= 1
            self.ended += 1
            answering.cancel()
            leaving.cancel()
            writer.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self.engine.kill)
        self._loop.call_soon_threadsafe(self._loop.stop)


@contextmanager
def gateway(script: Script) -> Iterator[Gateway]:
    running = Gateway(script)
    try:
        yield running
    finally:
        running.close()


def event(**told: Any) -> bytes:
    return chunk(b"data: " + json.dumps(told).encode() + b"\n\n")


def delta(text: str) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}}])


def streaming(*texts: str, completion: int = 12, endless: bool = False, pause_s: float = 0.0) -> Script:
    """A stream of these texts; `endless`: then nothing more comes, and the answer does not end."""

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for text in texts:
            writer.write(delta(text))
            await writer.drain()
            await asyncio.sleep(pause_s)
        if endless:
            await asyncio.Event().wait()
        usage = {
            "prompt_tokens": 1234,
            "completion_tokens": completion,
            "prompt_tokens_details": {"cached_tokens": 1000},
        }
        writer.write(event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]))
        writer.write(event(choices=[], usage=usage) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()

    return script
