"""The control process's end of a router's socket, at the moments that are easily missed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from llmgw.messages.frames import encode_frame
from llmgw.messages.router_files import RouterFiles, worker_name
from llmgw.messages.routes import Hello
from llmgw.server.router_link import RouterLink

HELLO = Hello(router_id="r1", pid=1, software_version="1", listen="127.0.0.1:1")


def test_it_ends_when_it_is_cancelled_in_whatever_step_after_its_router_went(tmp_path: Path) -> None:
    # In one of these steps it had swallowed the cancellation, and reconnected for ever.
    async def cancelled_after(steps: int) -> bool:
        writers: list[asyncio.StreamWriter] = []

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(encode_frame(HELLO))
            writers.append(writer)
            await reader.read()

        server = await asyncio.start_unix_server(greet, RouterFiles(tmp_path, worker_name(0)).socket)
        greeted, gone = asyncio.Event(), asyncio.Event()
        link = RouterLink(
            tmp_path,
            on_hello=lambda hello: greeted.set(),
            on_telemetry=lambda telemetry: None,
            on_lost=gone.set,
            reconnect_s=0.01,
        )
        task = asyncio.create_task(link.run())
        await asyncio.wait_for(greeted.wait(), 5)
        writers[0].close()
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=0.2)
        server.close()
        if not done:
            task.cancel()
            await asyncio.wait([task], timeout=5)
        return bool(done)

    async def main() -> None:
        ended = [await cancelled_after(steps) for steps in range(16)]
        assert ended == [True] * 16

    asyncio.run(main())
