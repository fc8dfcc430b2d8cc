"""What the root may sign for: refused with a sentence when issued, and by OpenSSL when forged."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from llmgw.config.agent import AgentTls
from llmgw.config.server import AgentsTls
from llmgw.pki import certificates as make
from llmgw.pki.authority import Authority
from llmgw.pki.certificates import Signer, cert_to_pem, key_to_pem, new_key
from llmgw.pki.constraints import Constraints, own_domain, parse_host
from llmgw.pki.errors import PkiError
from llmgw.pki.tls import agent_context, explain_tls_error
from tests.pki.handshakes import NOW, agent_tls, dial, listening


def signer(authority: Authority, name: str) -> Signer:
    """What a thief of a key holds."""
    certificate = x509.load_pem_x509_certificate((authority.path / f"{name}.pem").read_bytes())
    key = load_pem_private_key((authority.path / f"{name}-key.pem").read_bytes(), None)
    return Signer(certificate, key)  # type: ignore[arg-type]


def serving(certificate_pem: str, key_pem: str, folder: Path) -> ssl.SSLContext:
    folder.mkdir()
    (folder / "chain.pem").write_text(certificate_pem)
    (folder / "key.pem").write_text(key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "chain.pem", folder / "key.pem")
    return context


def refused(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> ssl.SSLCertVerificationError:
    with listening(server) as listener, pytest.raises(ssl.SSLCertVerificationError) as caught:
        dial(client, listener.port, name)
    return caught.value


@pytest.mark.parametrize("host", ["google.com", "8.8.8.8", "2001:db8::1"])
def test_a_certificate_forged_with_the_root_key_is_refused_by_openssl(
    authority: Authority, node01: AgentTls, tmp_path: Path, now: float, host: str
) -> None:
    key = new_key()
    forged = make.build_server(key.public_key(), [parse_host(host)], signer(authority, "ca"), now, 30)
    error = refused(
        serving(cert_to_pem(forged), key_to_pem(key), tmp_path / "forged"), agent_context(node01), host
    )
    assert error.verify_message == "permitted subtree violation"
    assert "may not sign for" in explain_tls_error(error, "https://gw.lan:8443")


def test_a_name_forged_into_the_common_name_is_refused_by_openssl(
    authority: Authority, node01: AgentTls, tmp_path: Path, now: float
) -> None:
    root, key = signer(authority, "ca"), new_key()
    forged = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "google.com")]))
        .issuer_name(root.certificate.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(make.as_datetime(now - 60))
        .not_valid_after(make.as_datetime(now + 3600))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(root.key, hashes.SHA256())
    )
    # As a client that still reads common names would look at it.
    client = ssl.create_default_context(cafile=node01.ca)
    client.hostname_checks_common_name = True
    error = refused(serving(cert_to_pem(forged), key_to_pem(key), tmp_path / "forged"), client, "google.com")
    assert error.verify_message == "permitted subtree violation"


def test_the_renewal_authority_cannot_make_a_server(
    authority: Authority, node01: AgentTls, tmp_path: Path, now: float
) -> None:
    renewal, key = signer(authority, "renewal"), new_key()
    forged = make.build_server(key.public_key(), ["gw.lan"], renewal, now, 30)
    chain = cert_to_pem(forged) + cert_to_pem(renewal.certificate)
    error = refused(serving(chain, key_to_pem(key), tmp_path / "forged"), agent_context(node01), "gw.lan")
    assert "purpose" in error.verify_message


def test_the_renewal_authority_cannot_make_another_authority(
    authority: Authority, server: ssl.SSLContext, node01: AgentTls, tmp_path: Path, now: float
) -> None:
    renewal, key = signer(authority, "renewal"), new_key()
    below = make.build_renewal_authority("below", renewal, now)
    leaf = make.build_client(key.public_key(), "node01", None, 1, below, now, 30)
    (tmp_path / "chain.pem").write_text(
        cert_to_pem(leaf) + cert_to_pem(below.certificate) + cert_to_pem(renewal.certificate)
    )
    (tmp_path / "key.pem").write_text(key_to_pem(key))
    client = ssl.create_default_context(cafile=node01.ca)
    client.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")
    with listening(server) as listener:
        with pytest.raises(OSError):  # noqa: PT011 - the alert's name differs between versions of OpenSSL
            dial(client, listener.port)
        assert listener.peers == []


@pytest.mark.parametrize(
    "host", ["gw.example.com", "8.8.8.8", "2001:db8::5", "gateway", "lan.example.com", "notlan"]
)
def test_a_host_outside_of_the_constraints_is_refused_when_it_is_issued(authority: Authority, host: str) -> None:
    with pytest.raises(PkiError, match=r"lies outside of what this authority may sign for .* --permit-(dns|ip) "):
        authority.issue_server(["gw.lan", host], NOW)
    assert [record.kind for record in authority.list(NOW)] == ["root", "renewal"]


@pytest.mark.parametrize(
    ("node_id", "address", "sentence"),
    [
        ("node01.example.com", "10.0.0.1", "lies outside"),
        ("10.0.0.5", "10.0.0.5", "lies outside"),  # OpenSSL takes it for a DNS name when it is a common name
        ("node01", "8.8.8.8", "lies outside"),
        ("Node01", "10.0.0.1", "is not a node id"),
        ("node01\n", "10.0.0.1", "is not a node id"),
        ("", "10.0.0.1", "is not a node id"),
        ("../etc", "10.0.0.1", "is not a node id"),
        ("node01", "node01.lan", "is not an IP address"),
        ("node01", "fe80::1", "not an address that other hosts can reach"),
        ("node01", "fe80::1%eth0", "has a zone"),
        ("node01", "0.0.0.0", "not an address that other hosts can reach"),
        ("node01", "224.0.0.1", "not an address that other hosts can reach"),
    ],
)
def test_a_node_that_no_handshake_would_take_is_refused_when_it_is_issued(
    authority: Authority, node_id: str, address: str, sentence: str
) -> None:
    with pytest.raises(PkiError, match=sentence):
        authority.issue_client(node_id, address, NOW)


def test_what_the_operator_names_can_be_issued_and_nothing_else(tmp_path: Path, now: float) -> None:
    authority = Authority.create(
        tmp_path / "pki", permit_dns=["*.gpu.example.com"], permit_ip=["203.0.113.0/24", "127.0.0.1"], now=now
    )
    tls = agent_tls(authority.issue_client("n1.gpu.example.com", "203.0.113.7", now), tmp_path / "n1")
    issued = authority.issue_server(["gpu.example.com", "gw.gpu.example.com", "203.0.113.9"], now)
    server = serving(issued.cert_pem, issued.key_pem, tmp_path / "gw")
    shake_plain = agent_context(tls)
    for name in ("gpu.example.com", "gw.gpu.example.com", "203.0.113.9"):
        with listening(server) as listener:
            assert dial(shake_plain, listener.port, name) == b"ok"
    for host in ("example.com", "gw.lan", "10.0.0.1", "::1"):
        with pytest.raises(PkiError, match="lies outside"):
            authority.issue_server([host], now)


def test_naming_only_one_kind_leaves_the_other_private(tmp_path: Path) -> None:
    chosen = Constraints.choose(["example.com"], [])
    assert chosen.dns == ("example.com",)
    assert chosen.permits(ipaddress.ip_address("10.0.0.1"))
    assert not chosen.permits(ipaddress.ip_address("8.8.8.8"))
    chosen = Constraints.choose([], ["8.8.8.0/24"])
    assert chosen.permits("gw.lan")
    assert not chosen.permits("google.com")


def test_constraints_are_read_back_from_the_root_as_they_were_written(tmp_path: Path) -> None:
    chosen = Constraints.choose(["example.com", "lan"], ["10.0.0.0/8", "fd00::/8"])
    root = make.build_root("test", chosen, NOW, 30)
    assert Constraints.of(root.certificate) == chosen


@pytest.mark.parametrize(
    ("full_name", "permitted"),
    [
        ("gw1.lab.example.org", ["lab.example.org", "gw1"]),
        ("gw.example.org", ["example.org"]),
        ("gw.com", ["gw.com"]),
        ("gw.co.uk", ["gw.co.uk"]),
        ("gpu-1", ["gpu-1"]),
        ("ai", []),  # a top-level domain: permitting it would permit everything below it
        ("localhost", []),
        ("", []),
        ("10.0.0.1", []),
        ("xn--p1ai", []),
        ("1", []),
    ],
)
def test_the_hosts_own_domain_is_never_a_public_suffix(full_name: str, permitted: list[str]) -> None:
    assert own_domain(full_name) == permitted


@pytest.mark.parametrize(
    ("typed", "host"),
    [
        ("GW.lan.", "gw.lan"),
        ("[::1]", ipaddress.ip_address("::1")),
        (" 10.0.0.5 ", ipaddress.ip_address("10.0.0.5")),
        ("::ffff:10.0.0.5", ipaddress.ip_address("10.0.0.5")),
        ("xn--bcher-kva.lan", "xn--bcher-kva.lan"),
    ],
)
def test_hosts_are_read_as_people_type_them(typed: str, host: object) -> None:
    assert parse_host(typed) == host


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("https://gw.lan", "is a URL"),
        ("gw.lan:8443", "names a port"),
        ("10.0.0.5:8443", "names a port"),
        ("[::1]:8443", "names a port|not an IP address"),
        ("*.lan", "is a wildcard"),
        ("bücher.lan", "outside of ASCII"),
        ("gw..lan", "neither a DNS name nor an IP address"),
        ("", "neither a DNS name nor an IP address"),
        ("300.0.0.1", "is not an IP address"),
        ("a" * 64 + ".lan", "neither a DNS name"),
        ("10.0.0.0/8", "is a URL|neither"),
    ],
)
def test_what_is_no_host_gets_a_sentence(typed: str, sentence: str) -> None:
    with pytest.raises(PkiError, match=sentence):
        parse_host(typed)


@pytest.mark.parametrize(
    ("dns", "ip"), [(["10.0.0.1"], []), ([""], []), (["*"], []), ([], ["10.0.0.1/8"]), ([], ["lan"]), ([], [""])]
)
def test_what_cannot_be_permitted_gets_a_sentence(dns: list[str], ip: list[str]) -> None:
    with pytest.raises(PkiError, match="write for example"):
        Constraints.choose(dns, ip)


def test_the_root_signs_for_tls_and_for_nothing_else(authority: Authority, agents_tls: AgentsTls) -> None:
    usage = authority.root.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usage) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert authority.root.extensions.get_extension_for_class(x509.NameConstraints).critical
