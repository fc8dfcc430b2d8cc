"""Agents renew over the connection they have: only their own name and address, and never past a revocation."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from llmgw.config.agent import AgentTls
from llmgw.pki.authority import Authority
from llmgw.pki.errors import PkiError
from llmgw.pki.files import install_pair
from llmgw.pki.peer import Peer, peer_from_der
from llmgw.pki.renewal import Renewer, make_csr, renew_after
from llmgw.pki.revocation import RevocationList
from llmgw.pki.tls import agent_context
from tests.pki.handshakes import DAY, agent_tls, shake

PEER = Peer(
    node_id="node01",
    serial="01".zfill(40),
    origin="01".zfill(40),
    address="10.0.0.1",
    not_after=4e9,
    issuer="root",
    issuer_serial=None,
    issued_at=0.0,
)


@pytest.fixture
def renewer(authority: Authority) -> Renewer:
    return Renewer(authority.renewal_cert_pem, authority.renewal_key_pem)


def renew(server: ssl.SSLContext, tls: AgentTls, renewer: Renewer, now: float) -> Peer:
    """What an agent and its server do: connect, prove, sign, install. Returns who the server saw."""
    peer = peer_from_der(shake(server, agent_context(tls)))
    key_pem, csr_pem = make_csr(peer.node_id)
    install_pair(tls.cert, tls.key, renewer.renew(csr_pem, peer, now), key_pem)
    return peer


def test_a_renewed_certificate_is_accepted_and_remembers_its_enrolment(
    server: ssl.SSLContext, node01: AgentTls, renewer: Renewer, now: float
) -> None:
    enrolled = renew(server, node01, renewer, now)
    once = renew(server, node01, renewer, now)
    twice = peer_from_der(shake(server, agent_context(node01)))
    assert enrolled.issuer == "root"
    assert once.issuer == twice.issuer == "renewal"
    assert len({enrolled.serial, once.serial, twice.serial}) == 3
    assert enrolled.origin == once.origin == twice.origin == enrolled.serial
    assert (twice.node_id, twice.address) == ("node01", "10.0.0.1")


def test_revoking_a_node_refuses_every_renewal_that_descends_from_it(
    authority: Authority, server: ssl.SSLContext, node01: AgentTls, renewer: Renewer, tmp_path: Path, now: float
) -> None:
    revocations = RevocationList(authority.revocations_path, authority.path / "ca.pem")
    other = agent_tls(authority.issue_client("node02", "10.0.0.2", now), tmp_path / "node02")
    renew(server, node01, renewer, now)
    renew(server, node01, renewer, now)
    peer = peer_from_der(shake(server, agent_context(node01)))
    assert revocations.refusal(peer) is None
    authority.revoke("node01", now)
    refusal = revocations.refusal(peer)
    assert refusal is not None
    assert "node01 was revoked" in refusal
    assert "issue-client node01 --address 10.0.0.1" in refusal
    assert revocations.refusal(peer_from_der(shake(server, agent_context(other)))) is None


def test_a_node_enrolled_again_after_its_revocation_works_and_renews(
    authority: Authority, server: ssl.SSLContext, node01: AgentTls, renewer: Renewer, tmp_path: Path, now: float
) -> None:
    revocations = RevocationList(authority.revocations_path, authority.path / "ca.pem")
    authority.revoke("node01", now)
    again = agent_tls(authority.issue_client("node01", "10.0.0.1", now), tmp_path / "again")
    assert revocations.refusal(renew(server, again, renewer, now)) is None
    assert revocations.refusal(peer_from_der(shake(server, agent_context(again)))) is None


def test_a_certificate_of_a_revoked_renewal_authority_is_refused(
    authority: Authority, server: ssl.SSLContext, node01: AgentTls, renewer: Renewer, tmp_path: Path, now: float
) -> None:
    revocations = RevocationList(authority.revocations_path, authority.path / "ca.pem")
    enrolled = renew(server, node01, renewer, now)
    stolen = next(record for record in authority.list(now) if record.kind == "renewal")
    authority.renew("renewal", now)
    authority.revoke(stolen.serial, now)
    refusal = revocations.refusal(peer_from_der(shake(server, agent_context(node01))))
    assert refusal is not None
    assert "renewal authority" in refusal
    # What the root signed itself stays good, and the new renewal authority is not touched.
    assert revocations.refusal(enrolled) is None
    other = agent_tls(authority.issue_client("node02", "10.0.0.2", now), tmp_path / "node02")
    renew(server, other, Renewer(authority.renewal_cert_pem, authority.renewal_key_pem), now)
    assert revocations.refusal(peer_from_der(shake(server, agent_context(other)))) is None


def test_a_node_cannot_get_a_certificate_for_another_name(renewer: Renewer, now: float) -> None:
    _, csr_pem = make_csr("node02")
    with pytest.raises(PkiError, match="node01 asked for a certificate in the name of 'node02'"):
        renewer.renew(csr_pem, PEER, now)


def signed_request(*names: x509.NameAttribute, bits: int = 2048, extra: list[str] | None = None) -> str:
    key = rsa.generate_private_key(65537, bits)
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    if extra:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in extra]), critical=True
        ).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def test_everything_in_a_request_but_its_key_is_ignored(renewer: Renewer, now: float) -> None:
    csr_pem = signed_request(
        x509.NameAttribute(NameOID.COMMON_NAME, "node01"),
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "authority"),
        extra=["gw.lan", "node02.lan"],
    )
    certificate, issuer = x509.load_pem_x509_certificates(renewer.renew(csr_pem, PEER, now).encode())
    assert certificate.subject.rfc4514_string() == "CN=node01"
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["10.0.0.1", f"llmgw:origin:{PEER.origin}"]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    certificate.verify_directly_issued_by(issuer)


def damaged(csr_pem: str) -> str:
    der = bytearray(x509.load_pem_x509_csr(csr_pem.encode()).public_bytes(Encoding.DER))
    der[-1] ^= 1
    return x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM).decode()


@pytest.mark.parametrize(
    ("csr_pem", "sentence"),
    [
        ("nonsense", "is not a certificate signing request"),
        ("", "is not a certificate signing request"),
        ("\udc00", "is not a certificate signing request"),
        ("x" * 20000, "larger than 16384 bytes"),
        (damaged(make_csr("node01")[1]), "is not signed by the key in it"),
        (signed_request(x509.NameAttribute(NameOID.COMMON_NAME, "node01"), bits=1024), "weak or unknown key"),
        (signed_request(), "in the name of nobody"),
        (
            signed_request(
                x509.NameAttribute(NameOID.COMMON_NAME, "node01"),
                x509.NameAttribute(NameOID.COMMON_NAME, "node02"),
            ),
            "in the name of 'node01' and 'node02'",
        ),
    ],
    ids=["nonsense", "empty", "not-text", "large", "not-signed", "rsa-1024", "no-name", "two-names"],
)
def test_a_request_that_must_not_be_signed_gets_a_sentence(
    renewer: Renewer, now: float, csr_pem: str, sentence: str
) -> None:
    with pytest.raises(PkiError, match=sentence):
        renewer.renew(csr_pem, PEER, now)


def test_a_connection_that_outlived_its_certificate_does_not_renew(renewer: Renewer, now: float) -> None:
    with pytest.raises(PkiError, match="expired on"):
        renewer.renew(make_csr("node01")[1], replace(PEER, not_after=now - 1), now)


def test_what_is_renewed_has_a_bounded_life_and_is_due_at_half_of_it(tmp_path: Path, now: float) -> None:
    authority = Authority.create(tmp_path / "short", permit_dns=(), permit_ip=(), now=now, days=100)
    renewer = Renewer.from_files(authority.path / "renewal.pem", authority.path / "renewal-key.pem", days=80)
    pem = renewer.renew(make_csr("node01")[1], PEER, now)
    assert renew_after(pem) == pytest.approx(now + 40 * DAY, abs=300)
    late = renewer.renew(make_csr("node01")[1], PEER, now + 90 * DAY)
    assert x509.load_pem_x509_certificate(late.encode()).not_valid_after_utc == authority.root.not_valid_after_utc
    with pytest.raises(PkiError, match=r"expired on .* init-ca"):
        renewer.renew(make_csr("node01")[1], PEER, now + 101 * DAY)


def test_the_root_cannot_be_used_for_renewing(authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(PkiError, match="never the root"):
        Renewer.from_files(authority.path / "ca.pem", authority.path / "ca-key.pem")
    with pytest.raises(PkiError, match="does not belong to its certificate"):
        Renewer.from_files(authority.path / "renewal.pem", authority.path / "ca-key.pem")
    with pytest.raises(PkiError, match=r"There is no renewal authority's key \(agents\.tls\.renewal_key\) at"):
        Renewer.from_files(authority.path / "renewal.pem", tmp_path / "missing.pem")


def test_a_renewal_cut_off_between_its_two_files_leaves_a_usable_pair(
    server: ssl.SSLContext, node01: AgentTls, renewer: Renewer, now: float
) -> None:
    peer = peer_from_der(shake(server, agent_context(node01)))
    key_pem, csr_pem = make_csr("node01")
    cert_pem = renewer.renew(csr_pem, peer, now)
    waiting = Path(node01.key + ".next")
    # The power went before the certificate was replaced: the old pair holds.
    waiting.write_text(key_pem)
    assert peer_from_der(shake(server, agent_context(node01))).issuer == "root"
    # It went after: the waiting key belongs to the new certificate and takes its place.
    Path(node01.cert).write_text(cert_pem)
    assert peer_from_der(shake(server, agent_context(node01))).issuer == "renewal"
    assert not waiting.exists()
    assert Path(node01.key).read_text() == key_pem
