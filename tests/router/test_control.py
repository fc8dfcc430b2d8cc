"""Tables come in, telemetry goes out, and no control process, dead or odd, costs a request."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import uuid
from collections.abc import Sequence

import msgspec
import pytest

from llmgw.messages.frames import FrameError, FrameReader, encode_frame
from llmgw.messages.routes import (
    FromRouter,
    Hello,
    ModelRoute,
    Outcome,
    RouteTable,
    StopRouter,
    TableVersion,
    Telemetry,
)
from llmgw.router.control import ControlServer
from llmgw.router.limits import OUTCOMES_MAX, Limits
from llmgw.router.service import Service
from tests.router.support import DEADLINE_S, EVENT_STREAM, Fleet, chunk, fleet_of, model, plain, post, until

STREAM_HEAD = b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n"


class RawControl:
    """A control process of bare frames, which reads only when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames: FrameReader[FromRouter] = FrameReader(FromRouter)
        self._messages: list[FromRouter] = []

    @classmethod
    async def connect(cls, fleet: Fleet) -> RawControl:
        return cls(*await asyncio.open_unix_connection(str(fleet.router.state / "router-0.sock")))

    async def next(self) -> FromRouter:
        async with asyncio.timeout(DEADLINE_S):
            while not self._messages:
                data = await self.reader.read(65536)
                assert data, "the router closed the connection"
                self._messages = self._frames.feed(data)
        return self._messages.pop(0)

    async def closed(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            try:
                while await self.reader.read(65536):
                    pass
            except ConnectionError:
                pass
        return True


def table(epoch: str, number: int, *models: ModelRoute) -> RouteTable:
    return RouteTable(version=TableVersion(epoch, number), models=list(models))


def test_a_router_greets_with_its_table_and_keeps_to_the_newest_version(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.unlink()
        control = await RawControl.connect(fleet)
        hello = await control.next()
        assert isinstance(hello, Hello)
        assert hello.pid == fleet.router.process.pid
        assert hello.listen == f"127.0.0.1:{fleet.router.port}"
        epoch = uuid.uuid4().hex
        for number, expected in ((5, 5), (4, 5), (6, 6)):
            control.writer.write(encode_frame(table(epoch, number, ModelRoute(name=f"v{number}"))))
            while True:
                frame = await control.next()
                if isinstance(frame, Telemetry) and frame.acked == TableVersion(epoch, expected):
                    break
        control.writer.write(encode_frame(table("another epoch", 1, ModelRoute(name="other"))))
        while (frame := await control.next()).acked != TableVersion("another epoch", 1):  # type: ignore[union-attr]
            pass
        again = await RawControl.connect(fleet)
        hello = await again.next()
        assert isinstance(hello, Hello)
        assert hello.table is not None
        assert [route.name for route in hello.table.models] == ["other"]
        assert await control.closed(), "a newer control process replaces the older"
        control.writer.close()
        again.writer.close()

    play(scenario)


@pytest.mark.parametrize(
    "junk",
    [b"\xff\xff\xff\xff", b"\0\0\0\x01\xc1", b"\0\0\0\x03abc", b"\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n"],
)
def test_a_broken_frame_ends_that_connection_and_nothing_else(play, junk: bytes) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.serve(plain(b"good"))
        control = await RawControl.connect(fleet)
        await control.next()
        control.writer.write(junk)
        assert await control.closed()
        control.writer.close()
        assert (await fleet.ask(post())).body == b"good"
        await until(lambda: fleet.link.connected, "the link is back")

    play(scenario)


def test_a_control_process_that_never_reads_costs_no_request_and_no_memory(new_router) -> None:
    async def main() -> None:
        router = await new_router().serving()
        async with fleet_of(router) as fleet:
            await fleet.serve(plain(b"good"))
        fleet = Fleet(router)
        engine = await fleet.engine(plain(b"good"))
        control = await RawControl.connect(fleet)
        control.writer.transport.pause_reading()
        # Unknown models: an outcome each, no engine needed, 16 in a row over one connection.
        client = await fleet.client()
        request = post(b'{"model":"x"}')
        for _ in range(900):
            client.send(request * 16)
            for _ in range(16):
                assert (await client.answer()).status == 404
        control.writer.transport.resume_reading()
        dropped = kept = 0
        while dropped + kept < 900 * 16:
            frame = await control.next()
            if isinstance(frame, Telemetry):
                dropped += frame.dropped
                kept += len(frame.outcomes)
                assert len(frame.outcomes) <= 4096
        assert dropped + kept == 900 * 16
        assert router.rss_mib() < 120
        control.writer.close()
        engine.kill()
        fleet.close()

    asyncio.run(main())


def test_a_removed_endpoint_runs_its_streams_to_the_end_and_is_said_to_be_idle_at_once(play) -> None:
    async def scenario(fleet: Fleet) -> None:
        go_on = asyncio.Event()

        async def script(seen, reader, writer) -> None:
            writer.write(STREAM_HEAD + chunk(b"data: 1\n\n"))
            await go_on.wait()
            writer.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

        await fleet.serve(script)
        client = await fleet.client()
        client.send(post(b'{"model":"m","stream":true}'))
        await client.head()
        await until(lambda: fleet.in_flight == {"m-0": 1}, "one request in flight")
        await until(lambda: any("m-0" in frame.alive for frame in fleet.telemetry), "a sign of life")
        await fleet.route(ModelRoute(name="m", reason="moved away"))
        assert fleet.in_flight == {"m-0": 1}
        assert (await fleet.ask(post())).status == 503
        assert fleet.in_flight == {"m-0": 1}
        go_on.set()
        assert (await client.reader.readuntil(b"0\r\n\r\n")).endswith(chunk(b"data: 2\n\n") + b"0\r\n\r\n")
        await until(lambda: not fleet.in_flight, "idle", 0.4)

    play(scenario)


def test_a_router_restarted_from_disk_serves_before_anybody_connects(new_router) -> None:
    async def main() -> None:
        router = await new_router().serving()
        async with fleet_of(router) as fleet:
            (engine,) = await fleet.serve(plain(b"good"))
            path = router.state / "routes.msgpack"

            def written() -> bool:
                return path.exists() and msgspec.msgpack.decode(path.read_bytes(), type=RouteTable).models != []

            await until(written, "the table is on disk")
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE((router.state / "router-0.sock").stat().st_mode) == 0o600
            assert stat.S_IMODE(router.state.stat().st_mode) == 0o700
            router.process.send_signal(signal.SIGKILL)
            router.process.wait()
            await until(lambda: not fleet.link.connected, "the link saw it end")
            port = router.port
            second = await new_router(listen=f"127.0.0.1:{port}").serving()
            assert (await fleet.ask(post())).body == b"good"
            assert len(engine.requests) == 1
            await until(lambda: fleet.link.connected, "the link is back")
            assert fleet.hello[-1].pid == second.process.pid
            assert fleet.hello[-1].table is not None
            assert fleet.hello[-1].table.version == TableVersion(fleet.epoch, fleet.number)

    asyncio.run(main())


def test_a_router_without_a_table_says_that_it_is_starting(new_router, tmp_path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "routes.msgpack").write_bytes(b"not a table")

    async def main() -> None:
        router = await new_router(state=state).serving()
        fleet = Fleet(router)
        answer = await fleet.ask(post())
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        client = await fleet.client()
        client.send(b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n")
        assert (await client.answer()).status == 200
        assert "cannot be read" in router.log_path.read_text()
        fleet.close()

    asyncio.run(main())


def test_the_link_sends_its_last_table_to_a_router_that_lost_it(new_router) -> None:
    async def main() -> None:
        router = await new_router().serving()
        async with fleet_of(router) as fleet:
            await fleet.serve(plain(b"good"))
            router.stop()
            (router.state / "routes.msgpack").unlink(missing_ok=True)
            fleet.telemetry.clear()
            await new_router(listen=f"127.0.0.1:{router.port}").serving()
            version = TableVersion(fleet.epoch, fleet.number)
            await until(lambda: any(frame.acked == version for frame in fleet.telemetry), "the table again")
            assert (await fleet.ask(post())).body == b"good"

    asyncio.run(main())


def test_a_stopped_control_process_costs_no_request(new_router) -> None:
    async def main() -> None:
        router = await new_router().serving()
        async with fleet_of(router) as fleet:
            engine = await fleet.engine(plain(b"good"))
            await fleet.route(model("m", engine))
            fleet.engines.clear()
        alone = Fleet(router)
        assert (await alone.ask(post())).body == b"good"
        async with fleet_of(router) as again:
            assert again.hello[0].table is not None
            assert [route.name for route in again.hello[0].table.models] == ["m"]
        alone.close()
        engine.kill()

    asyncio.run(main())


def test_told_to_stop_a_router_finishes_what_runs(new_router) -> None:
    async def main() -> None:
        router = await new_router().serving()
        async with fleet_of(router) as fleet:
            go_on = asyncio.Event()

            async def script(seen, reader, writer) -> None:
                await go_on.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood")

            (engine,) = await fleet.serve(script)
            client = await fleet.client()
            client.send(post())
            await until(lambda: engine.requests, "the engine has the request")
            fleet.link.send_stop(10.0)
            await until(lambda: "stopping" in router.log_path.read_text(), "it stops")
            go_on.set()
            answer = await client.answer()
            assert (answer.body, answer.headers["connection"]) == (b"good", "close")
            await until(lambda: router.process.poll() is not None, "it has ended")
            assert router.process.returncode == 0
            assert not (router.state / "router-0.sock").exists()

    asyncio.run(main())


def test_frames_come_whole_from_any_portions_and_are_bounded() -> None:
    messages: list[FromRouter] = [
        Telemetry(in_flight={"a": 1}),
        Hello(router_id="r", pid=1, software_version="1", listen="x"),
    ]
    wire = b"".join(map(encode_frame, messages))
    for size in (1, 3, 7, len(wire)):
        reader: FrameReader[FromRouter] = FrameReader(FromRouter)
        got = [message for at in range(0, len(wire), size) for message in reader.feed(wire[at : at + size])]
        assert got == messages
    with pytest.raises(FrameError, match="limit"):
        FrameReader(FromRouter, frame_bytes_max=10).feed(b"\0\0\0\x0b")
    with pytest.raises(FrameError, match="no known message"):
        FrameReader(FromRouter).feed(encode_frame(StopRouter()))


def test_the_state_folder_of_another_umask_is_closed_to_others(new_router, tmp_path) -> None:
    state = tmp_path / "open"
    state.mkdir()
    os.chmod(state, 0o755)

    async def main() -> None:
        router = await new_router(state=state).serving()
        assert stat.S_IMODE(router.state.stat().st_mode) == 0o700

    asyncio.run(main())


def test_a_socket_file_that_was_removed_is_made_anew_for_the_next_control_process(new_router) -> None:
    async def main() -> None:
        router = await new_router().serving()
        path = router.state / "router-0.sock"
        async with fleet_of(router) as fleet:
            await fleet.serve(plain())
            first = await RawControl.connect(fleet)
            assert isinstance(await first.next(), Hello)
            path.unlink()
            await until(path.exists, "the socket is back")
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            path.unlink()
            path.write_text("in its place")
            await until(path.is_socket, "the socket is back again")
            assert isinstance(await first.next(), Telemetry), "the connection that was there goes on"
            second = await RawControl.connect(fleet)
            hello = await second.next()
            assert isinstance(hello, Hello)
            assert hello.pid == router.process.pid
            assert (await fleet.ask(post())).status == 200

    asyncio.run(main())


async def collected_of(count: int) -> tuple[int, int]:
    """How many of so many outcomes, a thousand in each turn of the event loop, a server that reads is told, and
    how many are dropped."""
    told: list[Telemetry] = []

    class Reads:
        paused = False

        def greet(self, frame: bytes, listeners: Sequence[socket.socket]) -> None:
            return

        def send(self, frame: bytes) -> None:
            told.extend(FrameReader[Telemetry](Telemetry).feed(frame))

    service = Service(Limits())
    hello = Hello(router_id="r", pid=1, software_version="0", listen="", table=None)
    control = ControlServer(service, None, hello=lambda: hello, stop=lambda drain_s: None)  # type: ignore[arg-type]
    control.connected(Reads())  # type: ignore[arg-type]
    for number in range(count):
        service.telemetry.record(Outcome("m", "e", 200))
        if number % 1000 == 999:
            await asyncio.sleep(0.001)
    control.send_telemetry()
    return sum(len(one.outcomes) for one in told), sum(one.dropped for one in told)


def test_more_outcomes_than_are_kept_between_two_frames_reach_a_server_that_reads() -> None:
    count = 5 * OUTCOMES_MAX
    assert asyncio.run(collected_of(count)) == (count, 0)
