"""What a worker is called while nothing is heard of it."""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path

from llmgw.messages.frames import encode_frame
from llmgw.messages.router_files import RouterFiles, worker_name
from llmgw.messages.routes import Hello, Telemetry
from llmgw.server.router_worker import SILENT_AFTER_S, Worker
from tests.router.support import until


def test_one_that_has_closed_its_socket_is_silent_only_when_it_stays(tmp_path: Path) -> None:
    # Between its socket's end and its process's it was told to operators as a router that hangs.
    async def main() -> None:
        hello = Hello(router_id="r1", pid=1, software_version="1", listen="127.0.0.1:1")
        files = RouterFiles(tmp_path, worker_name(0))
        clock = [100.0]
        writers: list[asyncio.StreamWriter] = []

        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(encode_frame(hello))
            writers.append(writer)
            await reader.read()

        with files.lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # its process lives
            listener = await asyncio.start_unix_server(greet, files.socket)
            worker = Worker(
                tmp_path,
                worker_name(0),
                on_hello=lambda worker, hello: None,
                on_telemetry=lambda worker, telemetry: None,
                on_lost=lambda: None,
                clock=lambda: clock[0],
            )
            assert worker.view().state == "starting"  # found a moment ago
            worker.follow()
            await until(lambda: worker.link.connected, "it has greeted")
            writers[0].write(encode_frame(Telemetry(spans_sent=3, spans_dropped=1)) * 2)
            await until(lambda: worker.view().spans_sent == 6, "its spans are counted")
            assert worker.view().spans_dropped == 2
            worker.greeted = True
            worker.finish(10.0)
            assert worker.view().state == "finishing"
            clock[0] += 60.0
            listener.close()
            files.socket.unlink(missing_ok=True)
            writers[0].close()
            await until(lambda: not worker.link.connected, "its socket is closed")
            assert not worker.ended()
            assert worker.view().state == "finishing"
            clock[0] += SILENT_AFTER_S
            assert worker.view().state == "silent"
            await worker.forget()

    asyncio.run(main())
