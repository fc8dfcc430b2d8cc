"""The admin API's address for programs on its own host, whatever it listens on and its certificate says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from llmgw.pki.authority import Authority
from llmgw.server.admin_address import address_on_this_host, authority_of

HOUR_S = 3600.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    folder = tmp_path_factory.mktemp("admin") / "pki"
    return Authority.create(
        folder,
        permit_dns=["gateway.internal", "localhost"],
        permit_ip=["127.0.0.0/8", "10.0.0.0/8", "::1/128"],
        now=time.time() - HOUR_S,
    )


@pytest.mark.parametrize(
    ("bound", "names", "url"),
    [
        ("0.0.0.0:8081", ["127.0.0.1", "gateway.internal"], "https://127.0.0.1:8081"),
        ("0.0.0.0:8081", ["gateway.internal"], "https://gateway.internal:8081"),
        ("0.0.0.0:8081", ["gateway.internal", "localhost"], "https://localhost:8081"),
        ("0.0.0.0:8081", ["10.0.0.9", "gateway.internal"], "https://10.0.0.9:8081"),
        ("[::]:8081", ["::1"], "https://[::1]:8081"),
        ("[::]:8081", ["gateway.internal"], "https://gateway.internal:8081"),
        ("10.0.0.9:8081", ["10.0.0.9", "gateway.internal"], "https://10.0.0.9:8081"),
        ("10.0.0.9:8081", ["gateway.internal"], "https://gateway.internal:8081"),
        # Another name may lead past a listener that is loopback's alone, and localhost to no other address.
        ("127.0.0.1:8081", ["gateway.internal"], "https://127.0.0.1:8081"),
        ("127.0.0.1:8081", ["gateway.internal", "localhost"], "https://localhost:8081"),
        ("10.0.0.9:8081", ["localhost", "gateway.internal"], "https://gateway.internal:8081"),
    ],
)
def test_the_address_can_be_dialled_and_its_certificate_says_it(
    bound: str, names: list[str], url: str, authority: Authority, tmp_path: Path
) -> None:
    cert = tmp_path / "admin.pem"
    cert.write_bytes(_pem(authority.issue_server(names, time.time()).cert_pem))
    assert address_on_this_host(bound, str(cert)) == url


def test_without_a_certificate_it_is_plain_http() -> None:
    assert address_on_this_host("127.0.0.1:8081", None) == "http://127.0.0.1:8081"
    assert address_on_this_host("[::1]:8081", None) == "http://[::1]:8081"


def test_the_authority_is_named_where_the_certificate_is_one_of_its_own(
    authority: Authority, tmp_path: Path
) -> None:
    cert, root, other = tmp_path / "admin.pem", tmp_path / "ca.pem", tmp_path / "other.pem"
    cert.write_bytes(_pem(authority.issue_server(["gateway.internal"], time.time()).cert_pem))
    root.write_bytes(_pem(authority.ca_pem))
    stranger = Authority.create(tmp_path / "pki", permit_dns=["gateway.internal"], now=time.time())
    other.write_bytes(_pem(stranger.ca_pem))
    assert authority_of(str(cert), str(root)) == str(root)
    assert authority_of(str(cert), str(other)) is None
    assert authority_of(str(cert), str(tmp_path / "none.pem")) is None


def _pem(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
