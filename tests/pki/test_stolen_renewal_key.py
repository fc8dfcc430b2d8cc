"""What somebody with the renewal authority's key can sign, and how revoking that authority ends it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from llmgw.config.agent import AgentTls
from llmgw.pki import certificates as make
from llmgw.pki.authority import Authority
from llmgw.pki.certificates import cert_to_pem, key_to_pem, new_key, serial_hex
from llmgw.pki.errors import PkiError
from llmgw.pki.peer import peer_from_der
from llmgw.pki.revocation import RevocationList
from tests.pki.handshakes import dial, listening, shake, unchecked_context

ORIGIN = x509.UniformResourceIdentifier(f"{make.ORIGIN_PREFIX}{'7' * 40}")


class Thief:
    """Signs what no honest renewal authority would."""

    def __init__(self, authority: Authority, folder: Path, now: float) -> None:
        self.issuer = x509.load_pem_x509_certificate(authority.renewal_cert_pem.encode())
        self._key = load_pem_private_key(authority.renewal_key_pem.encode(), None)
        self._folder = folder
        self._now = now

    def forge(self, names: list[x509.GeneralName], claimed_serial: int | None) -> tuple[AgentTls, bytes]:
        """A certificate of node01 with these names, said to be signed by the authority of that serial."""
        key = new_key()
        key_id = self.issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
        signed_by = x509.AuthorityKeyIdentifier(
            key_id,
            None if claimed_serial is None else [x509.DirectoryName(self.issuer.issuer)],
            claimed_serial,
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node01")]))
            .issuer_name(self.issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(make.as_datetime(self._now - 60))
            .not_valid_after(make.as_datetime(self._now + 3600))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .add_extension(signed_by, critical=False)
            .sign(self._key, hashes.SHA256())  # type: ignore[arg-type]
        )
        (self._folder / "forged.pem").write_text(cert_to_pem(certificate) + cert_to_pem(self.issuer))
        (self._folder / "forged-key.pem").write_text(key_to_pem(key))
        tls = AgentTls(cert=str(self._folder / "forged.pem"), key=str(self._folder / "forged-key.pem"))
        return tls, certificate.public_bytes(Encoding.DER)


@pytest.fixture
def thief(authority: Authority, tmp_path: Path, now: float) -> Thief:
    return Thief(authority, tmp_path, now)


def test_revoking_the_renewal_authority_ends_what_the_thief_signs(
    authority: Authority, server: ssl.SSLContext, node01: AgentTls, thief: Thief, now: float
) -> None:
    revocations = RevocationList(authority.revocations_path, node01.ca)
    forged, _ = thief.forge([ORIGIN], thief.issuer.serial_number)
    peer = peer_from_der(shake(server, unchecked_context(node01.ca, forged)))
    assert revocations.refusal(peer) is None
    authority.revoke(serial_hex(thief.issuer.serial_number), now)
    assert "renewal authority" in str(revocations.refusal(peer))


def test_the_thief_cannot_claim_to_be_another_renewal_authority(
    authority: Authority, server: ssl.SSLContext, node01: AgentTls, thief: Thief, now: float
) -> None:
    successor = int(authority.renew("renewal", now).serial, 16)
    forged, _ = thief.forge([ORIGIN], successor)
    with listening(server) as listener:
        with pytest.raises(OSError):  # noqa: PT011 - the alert's name differs between versions of OpenSSL
            dial(unchecked_context(node01.ca, forged), listener.port)
        assert listener.peers == []


@pytest.mark.parametrize("missing", ["signer", "origin", "one-origin"])
def test_a_renewed_certificate_that_hides_where_it_comes_from_is_nobodys(
    thief: Thief, server: ssl.SSLContext, node01: AgentTls, missing: str
) -> None:
    other = x509.UniformResourceIdentifier(f"{make.ORIGIN_PREFIX}{'8' * 40}")
    names = {"signer": [ORIGIN], "origin": [x509.DNSName("n.lan")], "one-origin": [ORIGIN, other]}[missing]
    _, der = thief.forge(list(names), None if missing == "signer" else thief.issuer.serial_number)
    with pytest.raises(PkiError, match="does not say which enrolment it descends from"):
        peer_from_der(der)


def test_an_origin_that_is_no_serial_is_refused(thief: Thief) -> None:
    _, der = thief.forge([x509.UniformResourceIdentifier(f"{make.ORIGIN_PREFIX}x")], thief.issuer.serial_number)
    with pytest.raises(PkiError, match="is not a serial"):
        peer_from_der(der)
    with pytest.raises(PkiError, match="was not made by"):
        peer_from_der(b"nonsense")
