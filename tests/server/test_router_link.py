"""The control process's end of a router's socket, at the moments that are easily missed."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from llmgw.config.server import ServerConfig
from llmgw.messages.frames import FrameReader, encode_frame
from llmgw.messages.router_files import RouterFiles, worker_name
from llmgw.messages.routes import FromServer, Hello, ModelRoute, RouterShare, RouteTable, TableVersion
from llmgw.router.table_file import TableFile
from llmgw.server.router_link import RouterLink
from llmgw.server.router_process import start_router
from tests.router.support import Client, RouterProcess, until

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


def test_a_routers_sockets_come_with_its_greeting_and_outlive_it(tmp_path: Path) -> None:
    router = RouterProcess(tmp_path)

    async def main() -> None:
        await router.serving()
        kept: list[socket.socket] = []
        link = RouterLink(
            router.state,
            on_hello=lambda hello: kept.extend(link.take_listeners()),
            on_telemetry=lambda telemetry: None,
            reconnect_s=0.01,
        )
        task = asyncio.create_task(link.run())
        await until(lambda: kept, "the sockets have come")
        (sock,) = kept
        assert sock.getsockname()[1] == router.port
        assert not sock.get_inheritable()
        router.stop()
        # Nobody accepts, and nobody is refused.
        client = Client(*await asyncio.open_connection(router.host, router.port))
        client.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
        next_one = start_router(router.state, [sock], ServerConfig(), worker=1)
        try:
            assert (await client.answer()).status == 200
        finally:
            client.close()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            sock.close()
            next_one.kill()
            next_one.wait()

    try:
        asyncio.run(main())
    finally:
        router.stop()


def test_several_workers_write_one_table_file_and_it_is_always_whole(tmp_path: Path) -> None:
    path = tmp_path / "routes.msgpack"
    files = [TableFile(path, tmp_path / f"routes-{number}.new") for number in range(4)]

    async def main() -> None:
        for number in range(30):
            models = [ModelRoute(name=f"m{each}") for each in range(number * 7 % 20)]
            table = RouteTable(version=TableVersion("e", number), models=models)
            for file in files:
                file.save(table)
            await asyncio.sleep(0)
            if path.exists():
                assert files[0].load() is not None
        for file in files:
            await file.flush()
        assert files[0].load() == table

    asyncio.run(main())
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_share_is_sent_behind_the_table_that_it_is_of(tmp_path: Path) -> None:
    async def main() -> None:
        got: list[object] = []
        reads = asyncio.Event()

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(encode_frame(HELLO))
            await reads.wait()
            frames: FrameReader[FromServer] = FrameReader(FromServer)
            while data := await reader.read(65536):
                got.extend(frames.feed(data))

        listener = await asyncio.start_unix_server(greet, RouterFiles(tmp_path, worker_name(0)).socket)
        sent: list[RouterLink] = []

        def greeted(hello: Hello) -> None:
            # All in one turn, so that the later share and table take the places of the earlier ones.
            link = sent[0]
            link.send_share(RouterShare(workers=2, number=1))
            link.send_table(RouteTable(version=TableVersion("e", 1)))
            link.send_share(RouterShare(workers=2, number=2))

        link = RouterLink(tmp_path, on_hello=greeted, on_telemetry=lambda telemetry: None)
        sent.append(link)
        task = asyncio.create_task(link.run())
        reads.set()
        await until(lambda: len(got) == 2, "both have come")
        assert [type(each) for each in got] == [RouteTable, RouterShare]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listener.close()

    asyncio.run(main())
