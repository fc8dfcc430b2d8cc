"""How `ctl` finds the server and its token, and what it says when it cannot reach or trust it."""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from llmgw.cli.ctl.find import FindError, find_local
from tests.ctl.run_ctl import ctl, sentence_of
from tests.ctl.scripted import TOKEN, ScriptedBackend, ServedAdmin
from tests.ports import free_port


def write_admin_file(state: Path, url: str, token: str = TOKEN, **more: str) -> Path:
    state.mkdir(parents=True, exist_ok=True)
    path = state / "admin.json"
    path.write_text(json.dumps({"url": url, "token": token, **more}))
    path.chmod(0o600)
    return path


def test_the_state_folder_in_the_working_directory_is_found(served: ServedAdmin, tmp_path: Path) -> None:
    write_admin_file(tmp_path / "llmgw-state", served.url)
    assert "ib-a" in ctl("fabrics", home=tmp_path).stdout


def test_a_named_state_folder_wins_and_must_hold_a_server(served: ServedAdmin, tmp_path: Path) -> None:
    write_admin_file(tmp_path / "llmgw-state", "http://127.0.0.1:1")
    write_admin_file(tmp_path / "elsewhere", served.url)
    assert "ib-a" in ctl("fabrics", home=tmp_path, LLMGW_STATE=str(tmp_path / "elsewhere")).stdout
    assert "has its server started?" in sentence_of(ctl("fabrics", home=tmp_path, LLMGW_STATE="nowhere"))


def test_in_a_folder_that_its_user_may_not_enter_no_server_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `sudo -u llmgw llmgw ctl status` in root's folder did not come to the server that there was.
    write_admin_file(tmp_path / "llmgw-state", "http://127.0.0.1:1")
    assert find_local({}, tmp_path, tmp_path / "home")[1]["url"] == "http://127.0.0.1:1"
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(FindError, match="no server was found on this host"):
        find_local({}, tmp_path, tmp_path / "home")


def test_a_running_demo_is_found_and_a_dead_one_is_not(served: ServedAdmin, tmp_path: Path) -> None:
    write_admin_file(tmp_path / "demo-state", served.url)
    pointer = tmp_path / ".cache" / "llmgw" / "demo.json"
    pointer.parent.mkdir(parents=True)
    pointer.write_text(json.dumps({"state": str(tmp_path / "demo-state"), "pid": os.getpid()}))
    assert "ib-a" in ctl("fabrics", home=tmp_path).stdout
    dead = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(dead, 0)
    pointer.write_text(json.dumps({"state": str(tmp_path / "demo-state"), "pid": dead}))
    assert "no server was found" in sentence_of(ctl("fabrics", home=tmp_path))


@pytest.mark.parametrize(
    "content", ["", "[]", "not json", '{"url": "http://127.0.0.1:1"}', '{"url": 1, "token": 2}']
)
def test_a_damaged_admin_file_gets_a_sentence(tmp_path: Path, content: str) -> None:
    write_admin_file(tmp_path / "llmgw-state", "").write_text(content)
    assert "is not what a server writes" in sentence_of(ctl("fabrics", home=tmp_path))


def test_the_local_token_is_sent_to_the_local_server_only(served: ServedAdmin, tmp_path: Path) -> None:
    write_admin_file(tmp_path / "llmgw-state", served.url)
    assert ctl("fabrics", "--server", f"{served.url}/", home=tmp_path).returncode == 0
    refused = sentence_of(ctl("fabrics", "--server", "http://127.0.0.1:1", home=tmp_path))
    assert "there is no token for http://127.0.0.1:1" in refused


def test_a_token_comes_from_a_file_and_one_that_others_can_read_is_warned_of(
    served: ServedAdmin, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    done = ctl("fabrics", "--server", served.url, "--token-file", "token", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    file.chmod(0o644)
    done = ctl("fabrics", "--server", served.url, "--token-file", "token", home=tmp_path)
    assert (done.returncode, done.stderr) == (0, "warning: token can be read by others; chmod 600 token\n")
    missing = ctl("fabrics", "--server", served.url, "--token-file", "nothing", home=tmp_path)
    assert "the token file nothing cannot be read" in sentence_of(missing)


def test_a_wrong_token_is_blamed_on_where_it_came_from(served: ServedAdmin, tmp_path: Path) -> None:
    write_admin_file(tmp_path / "llmgw-state", served.url, "of-yesterday")
    sentence = sentence_of(ctl("fabrics", home=tmp_path))
    assert "./llmgw-state/admin.json" in sentence
    assert "of-yesterday" not in sentence


def test_a_token_never_goes_over_plain_http_beyond_loopback(tmp_path: Path) -> None:
    for url in ("http://192.0.2.1:8081", "http://gateway:8081", "http://127.0.0.1.evil.example:1"):
        sentence = sentence_of(ctl("fabrics", "--server", url, "--token", "secret-word", home=tmp_path))
        assert "in the clear" in sentence
        assert "secret-word" not in sentence


@pytest.mark.parametrize(
    "url",
    [
        "gateway:8081",
        "ftp://x",
        "http://",
        "http://127.0.0.1:99999",
        "https://[::1",
        "https://a b",
        "https://\udcff",
        "http://u:p@127.0.0.1",
    ],
)
def test_what_is_no_address_gets_a_sentence(tmp_path: Path, url: str) -> None:
    sentence = sentence_of(ctl("fabrics", "--server", url, "--token", "x", home=tmp_path))
    assert "--server" in sentence


def test_nothing_listening_names_the_address_and_what_to_do(tmp_path: Path) -> None:
    port = free_port()
    done = ctl("nodes", "--server", f"http://127.0.0.1:{port}", "--token", "x", home=tmp_path)
    sentence = sentence_of(done)
    assert f"nothing listens at http://127.0.0.1:{port} (--server)" in sentence
    assert "llmgw server" in sentence


def test_an_unknown_host_is_named(tmp_path: Path) -> None:
    done = ctl("nodes", "--server", "https://no-such-host.invalid:1", "--token", "x", home=tmp_path)
    assert "no-such-host.invalid" in sentence_of(done)


def test_proxy_variables_are_ignored(served: ServedAdmin, tmp_path: Path) -> None:
    proxies = {
        "http_proxy": "http://127.0.0.1:1",
        "HTTPS_PROXY": "http://127.0.0.1:1",
        "ALL_PROXY": "http://127.0.0.1:1",
    }
    assert ctl("fabrics", home=tmp_path, served=served, **proxies).returncode == 0


def other_program(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


@pytest.mark.parametrize(
    ("status", "headers", "body", "part"),
    [
        (200, [(b"content-type", b"text/html")], b"<html>", "is not llmgw's admin API (HTTP 200, text/html)"),
        (404, [(b"content-type", b"text/html")], b"<html>", "is not llmgw's admin API (HTTP 404"),
        (200, [], b'{"a": ', "is not llmgw's admin API"),
        (200, [], b'[{"node": 1}]', "is not what this version of llmgw expects"),
        (302, [(b"location", b"https://login.example.org/")], b"", "sends us on to 'https://login.example.org/'"),
        (503, [], b"Service Unavailable", "has too much to do"),
    ],
)
def test_another_program_on_the_port_is_recognised(
    backend: ScriptedBackend,
    tmp_path: Path,
    status: int,
    headers: list[tuple[bytes, bytes]],
    body: bytes,
    part: str,
) -> None:
    server = ServedAdmin(backend, app=other_program(status, headers, body))
    try:
        assert part in sentence_of(ctl("nodes", home=tmp_path, served=server))
    finally:
        server.stop()


def test_a_server_that_closes_the_connection_gets_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        import threading

        def close_all() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.recv(10)
                connection.close()

        threading.Thread(target=close_all, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert "https://" in sentence_of(ctl("nodes", "--server", url, "--token", "x", home=tmp_path))


class Authority:
    """A certificate authority of the tests' own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        self.ca = folder / "ca.pem"
        root = self._builder(self._name, self._key, timedelta(days=1))
        root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.ca.write_bytes(root.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, life: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + life)
        )

    def context(self, host: str, life: timedelta = timedelta(days=1)) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        builder = self._builder(subject, key, life).add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False
        )
        pem = self.folder / "server.pem"
        pem.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        return context


@pytest.fixture
def authority(tmp_path: Path) -> Iterator[Authority]:
    return Authority(tmp_path)


def test_tls_is_judged_by_the_named_authority_and_each_failure_has_its_sentence(
    backend: ScriptedBackend, authority: Authority, tmp_path: Path
) -> None:
    ca = {"LLMGW_CTL_CA": str(authority.ca)}
    good = ServedAdmin(backend, ssl_context=authority.context("localhost"))
    try:
        url = f"https://localhost:{good.port}"
        trusted = ctl("fabrics", "--server", url, "--token", TOKEN, home=tmp_path, **ca)
        assert trusted.returncode == 0, trusted.stderr
        assert "is not signed by" in sentence_of(ctl("fabrics", "--server", url, "--token", TOKEN, home=tmp_path))
        by_address = ctl("fabrics", home=tmp_path, served=good, **ca)
        assert "is for other names" in sentence_of(by_address)
        plain = ctl("fabrics", "--server", f"http://127.0.0.1:{good.port}", "--token", "x", home=tmp_path)
        assert "https://" in sentence_of(plain)
        no_file = ctl("fabrics", "--ca", "nothing.pem", home=tmp_path, served=good)
        assert "nothing.pem cannot be read" in sentence_of(no_file)
        (tmp_path / "empty.pem").write_text("nothing")
        empty = ctl("fabrics", "--ca", "empty.pem", home=tmp_path, served=good)
        assert "empty.pem holds no certificate" in sentence_of(empty)
        write_admin_file(tmp_path / "llmgw-state", url, ca=str(authority.ca))
        assert ctl("fabrics", home=tmp_path).returncode == 0
    finally:
        good.stop()
    expired = ServedAdmin(backend, ssl_context=authority.context("localhost", timedelta(days=-1)))
    try:
        url = f"https://localhost:{expired.port}"
        done = ctl("fabrics", "--server", url, "--token", TOKEN, home=tmp_path, **ca)
        assert "has expired" in sentence_of(done)
    finally:
        expired.stop()


def test_https_to_a_plain_server_says_so(served: ServedAdmin, tmp_path: Path) -> None:
    url = served.url.replace("http://", "https://")
    assert "does not speak TLS" in sentence_of(ctl("fabrics", "--server", url, "--token", "x", home=tmp_path))


def test_an_ipv6_address_works(backend: ScriptedBackend, tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 on loopback")
    server = ServedAdmin(backend, listen="[::1]:0")
    try:
        assert ctl("fabrics", home=tmp_path, served=server).returncode == 0
    finally:
        server.stop()
