"""Serving ASGI inside our own loop: busy ports, IPv6, TLS, and both ways to stop."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import Any

import httpx
import pytest

from llmgw.config.errors import SentenceError
from llmgw.server import impatient
from llmgw.server.asgi import serve_asgi


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


def test_a_busy_port_is_a_sentence_that_names_who_listens_and_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SentenceError) as refused:
            serve_asgi(hello, f"127.0.0.1:{port}")
    sentence = str(refused.value)
    assert sentence.startswith(f"port {port} on 127.0.0.1 is busy: ")
    assert "listens there; stop what listens there or set admin.listen" in sentence


@pytest.mark.parametrize("listen", ["192.0.2.1:0", "[2001:db8::1]:0", "no-such-host.invalid:80"])
def test_an_address_of_another_host_is_a_sentence(listen: str) -> None:
    with pytest.raises(SentenceError) as refused:
        serve_asgi(hello, listen, setting="agents.listen")
    assert "no address of this host" in str(refused.value)
    assert "agents.listen" in str(refused.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_it_serves_on_every_kind_of_address_and_leaves_signals_alone(host: str) -> None:
    if host == "[::1]" and not ipv6_works():
        pytest.skip("this machine has no IPv6 on loopback")

    async def go() -> None:
        before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        server, sockets = serve_asgi(hello, f"{host}:0")
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
        server.start(sockets)
        await server.wait_started()
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            for sock in sockets:
                address, port = sock.getsockname()[:2]
                url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
                assert (await client.get(url)).text == "hi"
        await server.stop(5)

    asyncio.run(go())


def ipv6_works() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


class Slow:
    """An application whose requests wait until the test lets them go."""

    def __init__(self) -> None:
        self.entered, self.let_go = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.entered.set()
        await self.let_go.wait()
        await hello(scope, receive, send)


def test_a_graceful_stop_lets_a_running_request_finish() -> None:
    async def go() -> None:
        app = Slow()
        server, sockets = serve_asgi(app, "127.0.0.1:0")
        port = sockets[0].getsockname()[1]
        server.start(sockets)
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            asking = asyncio.create_task(client.get(f"http://127.0.0.1:{port}"))
            await app.entered.wait()
            stopping = asyncio.create_task(server.stop(10))
            while port_answers(port):  # noqa: ASYNC110 - the kernel sets no event
                await asyncio.sleep(0.01)
            assert not asking.done()
            app.let_go.set()
            assert (await asking).text == "hi"
            await asyncio.wait_for(stopping, 5)

    asyncio.run(go())


def port_answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_a_forced_stop_cuts_what_runs_and_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        app = Slow()
        server, sockets = serve_asgi(app, "127.0.0.1:0")
        port = sockets[0].getsockname()[1]
        server.start(sockets)
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            asking = asyncio.create_task(client.get(f"http://127.0.0.1:{port}"))
            await app.entered.wait()
            await asyncio.wait_for(server.stop(0), 5)
            with pytest.raises(httpx.TransportError):
                await asking

    asyncio.run(go())
    assert "Traceback" not in caplog.text
    assert "Exception in ASGI" not in caplog.text


def test_a_client_that_says_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impatient, "HEADER_WAIT_S", 0.05)

    async def go() -> None:
        server, sockets = serve_asgi(hello, "127.0.0.1:0")
        server.start(sockets)
        reader, writer = await asyncio.open_connection(*sockets[0].getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n")
        try:
            assert await asyncio.wait_for(reader.read(), 5) == b""
        except ConnectionResetError:
            pass
        writer.close()
        await server.stop(1)

    asyncio.run(go())


def test_connections_beyond_the_limit_are_answered_503() -> None:
    async def go() -> None:
        server, sockets = serve_asgi(hello, "127.0.0.1:0", connections_max=4)
        port = sockets[0].getsockname()[1]
        server.start(sockets)
        idle = [
            await asyncio.open_connection("127.0.0.1", port, local_addr=(f"127.0.0.{number}", 0))
            for number in (2, 2, 3, 3)
        ]
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            assert (await client.get(f"http://127.0.0.1:{port}")).status_code == 503
        for _, writer in idle:
            writer.close()
        await server.stop(1)

    asyncio.run(go())


def told(*parts: bytes) -> bytes:
    """What a server answers to bytes that come as they are, until it closes the connection."""

    async def go() -> bytes:
        server, sockets = serve_asgi(hello, "127.0.0.1:0")
        server.start(sockets)
        reader, writer = await asyncio.open_connection(*sockets[0].getsockname())
        heard = bytearray()
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            async with asyncio.timeout(5):
                while chunk := await reader.read(4096):
                    heard += chunk
        except ConnectionError:
            pass
        writer.close()
        await server.stop(0)
        return bytes(heard)

    return asyncio.run(go())


@pytest.mark.parametrize("rest", [b"x: " + b"a" * 8_000_000, b"x: aaaaaaaa\r\n" * 600_000])
def test_a_head_that_never_ends_is_refused_before_it_fills_the_memory(rest: bytes) -> None:
    heard = told(b"GET / HTTP/1.1\r\nhost: a\r\n", rest)
    # A client that is still sending may see the reset before the answer.
    assert heard == b"" or heard.startswith(b"HTTP/1.1 431 ")


def test_a_large_body_is_no_large_head() -> None:
    body = b"a" * 300_000
    head = f"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    assert told(head + body).startswith(b"HTTP/1.1 200 ")


def test_the_head_of_a_later_request_must_arrive_in_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impatient, "HEADER_WAIT_S", 0.2)
    heard = told(b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n")
    assert heard == b"" or heard.startswith(b"HTTP/1.1 200 ")


def test_who_was_answered_and_never_ends_the_request_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impatient, "LINGER_S", 0.2)
    heard = told(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nbegun")
    assert heard == b"" or heard.startswith(b"HTTP/1.1 200 ")


async def endless(scope: Any, receive: Any, send: Any) -> None:
    """An answer that never ends, for as long as it is taken."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    left = asyncio.create_task(until_left(receive))
    while not left.done():
        await send({"type": "http.response.body", "body": b"a" * 65536, "more_body": True})
        await asyncio.sleep(0)


async def until_left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def short(scope: Any, receive: Any, send: Any) -> None:
    """One that ends, and leaves something behind that nobody takes."""
    body = b"a" * 8_000_000
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8000000")]})
    await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize("app", [endless, short])
@pytest.mark.parametrize("head", [b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"GET / HTTP/1.0\r\n\r\n"])
def test_who_never_reads_the_answer_is_let_go_and_nothing_piles_up(
    monkeypatch: pytest.MonkeyPatch, app: Any, head: bytes
) -> None:
    monkeypatch.setattr(impatient, "UNREAD_S", 0.2)

    async def go() -> None:
        server, sockets = serve_asgi(app, "127.0.0.1:0")
        server.start(sockets)
        await server.wait_started()
        with socket.create_connection(sockets[0].getsockname()) as deaf:
            deaf.sendall(head)
            async with asyncio.timeout(10):
                while not server.server_state.connections:  # noqa: ASYNC110 - the server sets no event
                    await asyncio.sleep(0.01)
                while server.server_state.connections:
                    for connection in server.server_state.connections:
                        waiting = connection.transport.get_write_buffer_size()  # type: ignore[union-attr]
                        assert waiting < 8_000_100
                    await asyncio.sleep(0.01)
        await server.stop(1)

    asyncio.run(go())


def test_who_reads_slowly_gets_the_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impatient, "UNREAD_S", 0.2)

    async def go() -> None:
        server, sockets = serve_asgi(short, "127.0.0.1:0")
        server.start(sockets)
        reader, writer = await asyncio.open_connection(*sockets[0].getsockname(), limit=65536)
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        heard = 0
        async with asyncio.timeout(20):
            while chunk := await reader.read(400_000):
                heard += len(chunk)
                await asyncio.sleep(0.005)
        assert heard > 8_000_000
        writer.close()
        await server.stop(1)

    asyncio.run(go())


def test_one_address_does_not_take_the_connections_of_all_others() -> None:
    async def go() -> None:
        server, sockets = serve_asgi(hello, "127.0.0.1:0", connections_max=8)
        server.start(sockets)
        await server.wait_started()
        port = sockets[0].getsockname()[1]
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            async with asyncio.timeout(5):
                try:
                    assert await reader.read() == b"", "closed without an answer"
                except ConnectionResetError:
                    pass
            writer.close()
        other = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        async with httpx.AsyncClient(transport=other) as client:
            assert (await client.get(f"http://127.0.0.1:{port}")).text == "hi"
        held.pop()[1].close()
        async with asyncio.timeout(5), httpx.AsyncClient(trust_env=False) as client:
            while True:  # until the server has seen that one has left
                try:
                    assert (await client.get(f"http://127.0.0.1:{port}")).text == "hi"
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.01)
        for _, writer in held:
            writer.close()
        await server.stop(5)

    asyncio.run(go())
