"""Many streams at a time over two routers on one socket: none fails, and each costs little memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil

from llmgw.config.listeners import open_listener
from llmgw.config.server import ServerConfig
from llmgw.messages.router_files import worker_name
from llmgw.messages.routes import RouteTable, TableVersion
from llmgw.server.router_link import RouterLink
from llmgw.server.router_process import start_router
from tests.router.support import EVENT_STREAM, Engine, chunk, model, post, until

STREAMS = 400
KIB_MAX = 16.0


async def open_streams(port: int, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """So many clients, each with the first event of its stream."""
    opened = []
    for start in range(0, count, 100):
        batch = [
            await asyncio.open_connection("127.0.0.1", port, limit=4096) for _ in range(min(100, count - start))
        ]
        for _, writer in batch:
            writer.write(post(b'{"model":"m","stream":true}'))
        for reader, _ in batch:
            async with asyncio.timeout(30):
                assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
                assert b"data: first" in await reader.readuntil(b"\n\n")
        opened += batch
    return opened


def test_hundreds_of_streams_over_two_routers_end_whole_and_cost_little(tmp_path: Path) -> None:
    async def main() -> None:
        go_on = asyncio.Event()
        waiting = 0

        async def script(seen, reader, writer) -> None:
            nonlocal waiting
            writer.write(b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n")
            writer.write(chunk(b"data: first\n\n"))
            waiting += 1
            await go_on.wait()
            writer.write(chunk(b"data: last\n\n") + b"0\r\n\r\n")

        engine = await Engine(script).start()
        config = ServerConfig.model_validate({"router": {"connections_max": 2 * STREAMS}})
        links, tasks, routers = [], [], []
        with open_listener("127.0.0.1:0", "listen") as sock:
            port = sock.getsockname()[1]
            for worker in range(2):
                process = start_router(tmp_path, [sock], config, worker=worker, share_of=2)
                routers.append(process)
                acknowledged: list[object] = []
                link = RouterLink(
                    tmp_path,
                    worker=worker_name(worker),
                    on_hello=lambda _: None,
                    on_telemetry=lambda frame, to=acknowledged: to.append(frame.acked),
                    reconnect_s=0.02,
                )
                link.send_table(RouteTable(version=TableVersion("e", 1), models=[model("m", engine)]))
                links.append(link)
                tasks.append(asyncio.create_task(link.run()))
                await until(lambda to=acknowledged: any(to), "the table is acknowledged")
        try:
            warm = await open_streams(port, 50)
            memory = [psutil.Process(process.pid).memory_info().rss for process in routers]
            opened = await open_streams(port, STREAMS)
            held = [len(psutil.Process(process.pid).net_connections("tcp")) for process in routers]
            grown = sum(psutil.Process(p.pid).memory_info().rss - m for p, m in zip(routers, memory, strict=True))
            assert waiting == STREAMS + 50
            assert min(held) > STREAMS * 0.5, "both have their part"
            assert grown / 1024 / STREAMS < KIB_MAX
            print(f"{grown / 1024 / STREAMS:.1f} KiB of memory for an open stream")
            go_on.set()
            for reader, writer in warm + opened:
                assert (await reader.readuntil(b"0\r\n\r\n")).endswith(b"data: last\n\n\r\n0\r\n\r\n")
                writer.close()
        finally:
            for task in tasks:
                task.cancel()
            for process in routers:
                process.kill()
                process.wait()
            engine.kill()

    asyncio.run(main())
