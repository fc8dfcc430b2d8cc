"""Clients over TLS: what is spoken, how certificates change, and who is refused how."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from llmgw.pki.authority import Authority
from llmgw.pki.files import install_pair
from tests.patience import PATIENCE
from tests.router.support import (
    EVENT_STREAM,
    Client,
    Fleet,
    RouterProcess,
    chunk,
    fleet_of,
    hang,
    post,
    until,
)

HEALTH = b"GET /health HTTP/1.1\r\nhost: gw\r\n\r\n"


@dataclass
class Pair:
    """Certificate and key on disk, and the authority that makes others."""

    authority: Authority
    folder: Path

    @property
    def arguments(self) -> tuple[str, str]:
        return f"--tls-cert={self.folder / 'cert.pem'}", f"--tls-key={self.folder / 'key.pem'}"

    def issue(self) -> str:
        """Put a new pair there; its serial."""
        issued = self.authority.issue_server(["127.0.0.1"], time.time())
        install_pair(self.folder / "cert.pem", self.folder / "key.pem", issued.cert_pem, issued.key_pem)
        return issued.serial

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.ca_pem)
        context.set_alpn_protocols(["h2", "http/1.1"])
        return context


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    authority = Authority.create(
        tmp_path / "pki", name="test", permit_dns=(), permit_ip=(), now=time.time(), days=365
    )
    made = Pair(authority, tmp_path)
    made.issue()
    return made


@pytest.fixture
def over_tls(new_router, pair: Pair) -> Callable[..., RouterProcess]:
    return lambda *arguments: new_router(*pair.arguments, *arguments)


async def connect(fleet: Fleet, context: ssl.SSLContext) -> Client:
    router = fleet.router
    return Client(*await asyncio.open_connection(router.host, router.port, ssl=context, limit=1 << 20))


def ssl_of(client: Client) -> ssl.SSLObject:
    found: ssl.SSLObject = client.writer.get_extra_info("ssl_object")
    return found


def serial_of(client: Client) -> str:
    return f"{int(str((ssl_of(client).getpeercert() or {})['serialNumber']), 16):x}"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_streams_and_bodies_pass_over_tls_1_2_and_1_3_in_http_1_1(over_tls, pair, version) -> None:
    async def stream(seen, reader, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n")
        for number in range(50):
            writer.write(chunk(b"data: %d\n\n" % number))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def main() -> None:
        async with fleet_of(over_tls()) as fleet:
            (engine,) = await fleet.serve(stream)
            context = pair.context()
            context.minimum_version = context.maximum_version = version
            client = await connect(fleet, context)
            assert ssl_of(client).selected_alpn_protocol() == "http/1.1"
            body = b'{"model":"m","x":"' + b"y" * 3_000_000 + b'"}'
            for _ in range(2):
                client.send(post(body))
                answer = await client.answer()
                assert answer.body == b"".join(b"data: %d\n\n" % number for number in range(50))
            assert [seen.body for seen in engine.requests] == [body, body]
            client.send(post(headers=b"connection: close\r\n"))
            assert (await client.answer()).status == 200
            assert await client.rest() == b""
            client.close()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_older_versions_are_refused_and_not_told_of(over_tls, pair) -> None:
    async def main() -> None:
        async with fleet_of(over_tls()) as fleet:
            context = pair.context()
            context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            context.maximum_version = ssl.TLSVersion.TLSv1_1
            context.set_ciphers("ALL:@SECLEVEL=0")
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await connect(fleet, context)
            with pytest.raises(ssl.SSLCertVerificationError):
                await connect(fleet, ssl.create_default_context())
            lines = fleet.router.log_path.read_text().splitlines()
            assert [line for line in lines if "files" not in line and "serving on" not in line] == []

    asyncio.run(main())


def test_plain_http_gets_a_sentence(over_tls) -> None:
    async def main() -> None:
        async with fleet_of(over_tls("--header-timeout-s=0.5")) as fleet:
            client = await fleet.client()
            client.send(HEALTH)
            answer = await client.answer()
            assert (answer.status, answer.headers["connection"]) == (400, "close")
            assert b"begin its URL with https://" in answer.body
            await client.ended()

    asyncio.run(main())


def test_a_new_certificate_is_shown_to_new_connections_and_cuts_none(over_tls, pair) -> None:
    async def main() -> None:
        async with fleet_of(over_tls()) as fleet:
            go_on = asyncio.Event()

            async def stream(seen, reader, writer) -> None:
                writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"a"))
                await go_on.wait()
                writer.write(chunk(b"b") + b"0\r\n\r\n")

            await fleet.serve(stream)
            old = await connect(fleet, pair.context())
            old.send(post())
            await old.head()
            serial = pair.issue()
            await until(lambda: "a new certificate" in fleet.router.log_path.read_text(), "it is taken up")
            new = await connect(fleet, pair.context())
            assert serial_of(new) == serial.lstrip("0").lower() != serial_of(old)
            go_on.set()
            assert await old.reader.readuntil(b"0\r\n\r\n") == chunk(b"a") + chunk(b"b") + b"0\r\n\r\n"
            old.send(HEALTH)
            assert (await old.answer()).status == 200

    asyncio.run(main())


def test_a_pair_that_does_not_fit_is_told_once_and_the_earlier_one_stays(over_tls, pair) -> None:
    async def main() -> None:
        async with fleet_of(over_tls()) as fleet:
            log = fleet.router.log_path
            kept = serial_of(await connect(fleet, pair.context()))
            issued = pair.authority.issue_server(["127.0.0.1"], time.time())
            (pair.folder / "cert.pem").write_text(issued.cert_pem)
            await until(lambda: "does not belong to the certificate" in log.read_text(), "it is told")
            assert serial_of(await connect(fleet, pair.context())) == kept
            (pair.folder / "key.pem").write_text("nonsense")
            await until(lambda: "holds no private key" in log.read_text(), "it is told")
            assert serial_of(await connect(fleet, pair.context())) == kept
            serial = pair.issue()
            await until(lambda: "a new certificate" in log.read_text(), "it is taken up")
            assert serial_of(await connect(fleet, pair.context())) == serial.lstrip("0").lower()
            assert log.read_text().count("stays in use") == 2

    asyncio.run(main())


def test_a_client_that_leaves_ends_its_engines_work(over_tls, pair) -> None:
    async def main() -> None:
        async with fleet_of(over_tls()) as fleet:
            (engine,) = await fleet.serve(hang)
            for number, leave in enumerate(("close", "abort")):
                client = await connect(fleet, pair.context())
                client.send(post())
                await until(lambda count=number: len(engine.requests) > count, "the engine has the request")
                client.writer.close() if leave == "close" else client.writer.transport.abort()
                await asyncio.wait_for(engine.requests[number].closed.wait(), 5 * PATIENCE)
            await until(lambda: [o.status for o in fleet.outcomes] == [499, 499], "both are counted")

    asyncio.run(main())


def test_a_handshake_that_stands_still_is_ended_in_time_and_holds_up_no_stop(over_tls) -> None:
    async def main() -> None:
        router = await over_tls("--header-timeout-s=0.5").serving()
        fleet = Fleet(router)
        for sent in (b"", b"\x16\x03\x01"):
            client = await fleet.client()
            client.send(sent)
            started_at = time.monotonic()
            await client.ended()
            assert 0.3 < time.monotonic() - started_at < 5
        router.stop()
        router = await over_tls().serving()
        with socket.create_connection((router.host, router.port)):
            await asyncio.sleep(0.05)  # so that it is accepted; without it the test proves less, and passes
            started_at = time.monotonic()
            router.process.send_signal(signal.SIGTERM)
            await until(lambda: router.process.poll() == 0, "it has ended")
            assert time.monotonic() - started_at < 4
        fleet.close()

    asyncio.run(main())


def test_a_slow_client_over_tls_holds_the_engine_back(over_tls, pair) -> None:
    async def main() -> None:
        written = 0
        block = chunk(b"x" * 65536)

        async def script(seen, reader, writer) -> None:
            nonlocal written
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(1600):
                writer.write(block)
                await writer.drain()
                written += len(block)
            writer.write(b"0\r\n\r\n")

        async with fleet_of(over_tls()) as fleet:
            await fleet.serve(script)
            client = await connect(fleet, pair.context())
            before = fleet.router.rss_mib()
            client.send(post(headers=b"connection: close\r\n"))
            client.writer.transport.pause_reading()
            last = -1
            while written != last:
                last = written
                await asyncio.sleep(0.2)
            assert 0 < written < 60 * 1024**2
            assert fleet.router.rss_mib() - before < 30
            client.writer.transport.resume_reading()
            await client.head()
            read = 0
            while data := await client.reader.read(1 << 20):
                read += len(data)
            assert read == 1600 * len(block) + 5

    asyncio.run(main())


def test_a_refused_request_gets_its_answer_and_an_end_in_good_order(over_tls, pair) -> None:
    def refused(router: RouterProcess) -> bytes:
        plain_socket = socket.create_connection((router.host, router.port), timeout=10)
        context = pair.context()
        with context.wrap_socket(
            plain_socket, server_hostname=router.host, suppress_ragged_eofs=False
        ) as connection:
            connection.sendall(b"nonsense\r\n\r\n")
            received = b""
            while data := connection.recv(65536):
                received += data
            return received

    async def main() -> None:
        router = await over_tls().serving()
        answer = await asyncio.to_thread(refused, router)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"not a request of HTTP/1.1" in answer

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "key.pem").unlink(), "There is no key (--tls-key)"),
        (lambda folder: (folder / "cert.pem").write_text("x"), "holds no certificate in PEM form"),
        (lambda folder: shutil.copy(folder / "cert.pem", folder / "key.pem"), "holds no private key"),
    ],
)
def test_files_that_cannot_be_used_are_named_at_the_start(over_tls, pair, change, said: str) -> None:
    change(pair.folder)
    router = over_tls()
    assert router.process.wait(20) != 0
    text = router.log_path.read_text()
    assert said in text
    assert "Traceback" not in text
