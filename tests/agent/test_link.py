"""The link over real TLS sockets, and the renewal of the certificate that it shows."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from llmgw.agent import certificates
from llmgw.agent.certificates import CertificateError, CertificateKeeper, Pair, finish_saving, save_pair
from llmgw.agent.conversation import TransportError
from llmgw.agent.https import HttpsTransport
from llmgw.config.agent import AgentTls
from llmgw.messages.agent import Refusal, Renew, Renewed
from tests.agent.waiting import until

NOW = datetime.datetime.now(datetime.UTC)


def key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


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
        save_pair(self.tls, new_pair(self.authority, "node01"))
        self.server_pem = folder / "server.pem"
        pair = new_pair(self.authority, "server")
        self.server_pem.write_text(pair.key_pem + pair.cert_pem)
        self.serials: list[str] = []
        """Of the client certificate of each request."""
        self.answer: Callable[[str, bytes], Awaitable[tuple[int, bytes]]] = self.echo

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
                tls=site.tls,
                node_id="node01",
                transport=transport,
                make_csr=make_csr,
                renew_after=lambda pem: 0.0 if len(site.serials) < 2 else 1e12,
                reload=transport.reload,
                now_s=lambda: 1.0,
                randomness=random.Random(1),
            )
            running = asyncio.create_task(keeper.run())
            await until(lambda: Path(site.tls.cert).read_text() != old, "the certificate is renewed")
            assert os.stat(site.tls.key).st_mode & 0o777 == 0o600
            site.context()  # the pair on disk fits

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


def test_a_renewal_that_is_refused_or_of_a_foreign_key_leaves_the_old_pair(site: Site) -> None:
    before = (Path(site.tls.key).read_text(), Path(site.tls.cert).read_text())
    foreign = Renewed(cert_pem=new_pair(site.authority, "node01").cert_pem)
    answers = [
        (403, Refusal(code="revoked", message="node01 was revoked"), "node01 was revoked"),
        (200, foreign, "was not made for this key"),
        (200, Renewed(cert_pem="nonsense"), "cannot be read"),
    ]

    async def nothing() -> None:
        raise AssertionError("the link must not be reloaded")

    for status, message, words in answers:
        keeper = CertificateKeeper(
            tls=site.tls,
            node_id="node01",
            transport=CannedTransport(status, msgspec.json.encode(message)),
            make_csr=make_csr,
            renew_after=lambda pem: 0.0,
            reload=nothing,
            now_s=lambda: 1.0,
            randomness=random.Random(1),
        )
        with pytest.raises(CertificateError, match=words):
            asyncio.run(keeper.renew())
        assert (Path(site.tls.key).read_text(), Path(site.tls.cert).read_text()) == before


@pytest.mark.parametrize("writes_before_the_crash", [0, 1, 2, 3])
def test_key_and_certificate_fit_after_a_crash_at_any_moment_of_saving(
    site: Site, monkeypatch: pytest.MonkeyPatch, writes_before_the_crash: int
) -> None:
    new = new_pair(site.authority, "node01")
    real_write, left = certificates.write_whole, [writes_before_the_crash]

    def write_or_crash(path: Path, data: bytes, *, mode: int = 0o600) -> None:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        real_write(path, data, mode=mode)

    monkeypatch.setattr(certificates, "write_whole", write_or_crash)
    try:
        save_pair(site.tls, new)
    except KeyboardInterrupt:
        pass
    monkeypatch.undo()
    finished = finish_saving(site.tls)
    assert finished == (writes_before_the_crash in (1, 2))
    site.context()
    assert (Path(site.tls.key).read_text() == new.key_pem) == (writes_before_the_crash > 0)
    assert not finish_saving(site.tls)
