"""The link over real TLS sockets, and the renewal of the certificate that it shows."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from llmgw.agent.certificates import CertificateError, CertificateKeeper
from llmgw.agent.conversation import TransportError
from llmgw.agent.https import HttpsTransport
from llmgw.config.agent import AgentTls
from llmgw.messages.agent import Refusal, Renew, Renewed
from tests.agent.waiting import until
from tests.simulation.virtual_loop import VirtualLoop

NOW = datetime.datetime.now(datetime.UTC)


def key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


class Pair(NamedTuple):
    key_pem: str
    cert_pem: str


class Authority:
    """A root of the tests' own; `issue` gives a certificate for a name and 127.0.0.1 and ::1."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root")])
        self.root = self._build(self.name, self.key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.root_pem = self.root.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _build(self, name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(
            issuer_name=self.name,
            subject_name=name,
            public_key=public,
            serial_number=x509.random_serial_number(),
            not_valid_before=NOW - datetime.timedelta(hours=1),
            not_valid_after=NOW + datetime.timedelta(hours=1),
        )

    def issue(self, name: str, public: ec.EllipticCurvePublicKey) -> str:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        addresses = [x509.IPAddress(ipaddress.ip_address(each)) for each in ("127.0.0.1", "::1")]
        built = self._build(subject, public).add_extension(x509.SubjectAlternativeName(addresses), False)
        return built.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def new_pair(authority: Authority, name: str) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    return Pair(key_pem=key_pem(key), cert_pem=authority.issue(name, key.public_key()))


def make_csr(node_id: str) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_id)])
    csr = x509.CertificateSigningRequestBuilder(name).sign(key, hashes.SHA256())
    return key_pem(key), csr.public_bytes(serialization.Encoding.PEM).decode()


class Site:
    """A folder with an authority, a server's files and an agent's."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority()
        self.tls = AgentTls(
            ca=str(folder / "ca.pem"), cert=str(folder / "agent.pem"), key=str(folder / "agent-key.pem")
        )
        Path(self.tls.ca).write_bytes(self.authority.root_pem)
        self.install(*reversed(new_pair(self.authority, "node01")))
        self.server_pem = folder / "server.pem"
        pair = new_pair(self.authority, "server")
        self.server_pem.write_text(pair.key_pem + pair.cert_pem)
        self.serials: list[str] = []
        """Of the client certificate of each request."""
        self.answer: Callable[[str, bytes], Awaitable[tuple[int, bytes]]] = self.echo

    def install(self, cert_pem: str, key_pem: str) -> None:
        Path(self.tls.key).write_text(key_pem)
        Path(self.tls.cert).write_text(cert_pem)

    async def echo(self, path: str, body: bytes) -> tuple[int, bytes]:
        return 200, path.encode() + b" " + body

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.tls.ca)
        context.load_cert_chain(self.tls.cert, self.tls.key)
        return context

    def transport(self, port: int, host: str = "127.0.0.1") -> HttpsTransport:
        where = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        return HttpsTransport(where, self.context, explain=lambda exc, url: f"{url}: {exc}")

    @asynccontextmanager
    async def serving(self, host: str = "127.0.0.1") -> AsyncIterator[int]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.tls.ca)
        context.load_cert_chain(self.server_pem)
        server = await asyncio.start_server(self._serve, host, 0, ssl=context)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(
                    int(line.partition(":")[2])
                    for line in head.split("\r\n")
                    if line.lower().startswith("content-length")
                )
                body = await reader.readexactly(length)
                self.serials.append(writer.get_extra_info("peercert")["serialNumber"])
                status, answer = await self.answer(head.split()[1], body)
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(answer), answer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_call_goes_over_mutual_tls_past_any_proxy_of_the_environment(
    site: Site, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def test() -> None:
        try:
            async with site.serving(host) as port:
                transport = site.transport(port, host)
                assert await transport.call("/agent/v1/poll", b"hello", 5) == (200, b"/agent/v1/poll hello")
                await transport.close()
        except OSError as exc:
            pytest.skip(f"this machine has no {host}: {exc.strerror}")

    asyncio.run(test())


def test_no_answer_a_dripping_one_and_a_dead_server_all_end_in_a_sentence(site: Site) -> None:
    async def slow(path: str, body: bytes) -> tuple[int, bytes]:
        await asyncio.sleep(60)
        return 200, b""

    async def test() -> None:
        site.answer = slow
        async with site.serving() as port:
            transport = site.transport(port)
            with pytest.raises(TransportError, match=r"did not answer within 0\.3 s"):
                await transport.call("/agent/v1/poll", b"", 0.3)
        with pytest.raises(TransportError, match=f"https://127.0.0.1:{port}"):
            await transport.call("/agent/v1/poll", b"", 5)
        await transport.close()

    asyncio.run(test())


def test_a_renewed_certificate_is_used_while_an_older_call_ends_in_peace(site: Site) -> None:
    async def test() -> None:
        release = asyncio.Event()

        async def answer(path: str, body: bytes) -> tuple[int, bytes]:
            if path.endswith("poll"):
                await release.wait()
                return 200, b"polled"
            if path.endswith("renew"):
                csr = x509.load_pem_x509_csr(msgspec.json.decode(body, type=Renew).csr_pem.encode())
                public = csr.public_key()
                assert isinstance(public, ec.EllipticCurvePublicKey)
                return 200, msgspec.json.encode(Renewed(cert_pem=site.authority.issue("node01", public)))
            return 200, b"reported"

        site.answer = answer
        async with site.serving() as port:
            transport = site.transport(port)
            poll = asyncio.create_task(transport.call("/agent/v1/poll", b"", 20))
            await until(lambda: site.serials, "the poll has arrived")
            old = Path(site.tls.cert).read_text()
            keeper = CertificateKeeper(
                node_id="node01",
                transport=transport,
                read=Path(site.tls.cert).read_text,
                make_csr=make_csr,
                renew_after=lambda pem: 0.0 if len(site.serials) < 2 else 1e12,
                install=site.install,
                reload=transport.reload,
                now_s=lambda: 1.0,
                randomness=random.Random(1),
            )
            running = asyncio.create_task(keeper.run())
            await until(lambda: Path(site.tls.cert).read_text() != old, "the certificate is renewed")

            async def reported_with_new_certificate() -> None:
                while True:
                    await transport.call("/agent/v1/report", b"", 5)
                    if site.serials[-1] != site.serials[0]:
                        return

            await asyncio.wait_for(reported_with_new_certificate(), 10)
            release.set()
            assert await poll == (200, b"polled")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await transport.close()

    asyncio.run(test())


class CannedTransport:
    def __init__(self, status: int, answer: bytes) -> None:
        self.answer = (status, answer)

    async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        return self.answer


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, msgspec.json.encode(Refusal(code="revoked", message="node01 was revoked")), "node01 was revoked"),
        (502, b"Bad Gateway", "answered 502 to the renewal, unreadably"),
        (200, b"{}", "answered 200 to the renewal, unreadably"),
    ],
)
def test_a_renewal_that_is_refused_installs_nothing_and_says_why(
    site: Site, status: int, body: bytes, words: str
) -> None:
    def install(cert_pem: str, key_pem: str) -> None:
        raise AssertionError("nothing may be installed")

    async def reload() -> None:
        raise AssertionError("the link must not be reloaded")

    keeper = CertificateKeeper(
        node_id="node01",
        transport=CannedTransport(status, body),
        read=Path(site.tls.cert).read_text,
        make_csr=make_csr,
        renew_after=lambda pem: 0.0,
        install=install,
        reload=reload,
        now_s=lambda: 1.0,
        randomness=random.Random(1),
    )
    with pytest.raises(CertificateError, match=words):
        asyncio.run(keeper.renew())


def test_a_node_whose_clock_is_far_ahead_does_not_renew_without_a_pause() -> None:
    class Counting(CannedTransport):
        calls = 0

        async def call(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
            self.calls += 1
            return self.answer

    async def reload() -> None:
        pass

    async def test() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(600):
                await keeper.run()

    transport = Counting(200, msgspec.json.encode(Renewed(cert_pem="new")))
    keeper = CertificateKeeper(
        node_id="node01",
        transport=transport,
        read=lambda: "any",
        make_csr=lambda node_id: ("key", "csr"),
        renew_after=lambda pem: 0.0,
        install=lambda cert_pem, key_pem: None,
        reload=reload,
        now_s=lambda: 1e12,
        randomness=random.Random(1),
    )
    loop = VirtualLoop()
    loop.run_until_complete(test())
    loop.close()
    assert 5 <= transport.calls <= 11
