"""What each kind of certificate looks like: the root, the renewal authority, servers and clients.

Keys are EC P-256. Times are seconds since the epoch. Nothing here touches a file or reads a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from llmgw.pki.constraints import Address, Constraints
from llmgw.pki.errors import PkiError

Kind = Literal["root", "renewal", "server", "client"]

ROOT_DAYS = 3650
SERVER_DAYS = 825
CLIENT_DAYS = 365
# Clocks of nodes differ; a certificate holds a little earlier than it is made.
BACKDATE_S = 300.0
DAY_S = 86400.0

ORIGIN_PREFIX = "llmgw:origin:"
# The organisational unit of an issuer says which of the two authorities it is. A leaf cannot choose it: it is
# part of the issuer's name, which must equal the subject of the certificate that signed.
ROOT_UNIT = "authority"
RENEWAL_UNIT = "renewal"
# No dot: OpenSSL takes a dotted common name for a DNS name when there are only addresses, and refuses it.
SERVER_COMMON_NAME = "llmgw server"

CLIENT_AUTH = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER_AUTH = ExtendedKeyUsageOID.SERVER_AUTH


@dataclass(frozen=True)
class Signer:
    """A certificate that may sign, and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> str:
    """The key in PKCS#8 PEM, not encrypted: the file's mode protects it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def cert_to_pem(certificate: x509.Certificate) -> str:
    """The certificate in PEM."""
    return certificate.public_bytes(Encoding.PEM).decode()


def serial_hex(serial: int) -> str:
    """How a serial is written everywhere: 40 lower-case hexadecimal digits (20 octets, RFC 5280 4.1.2.2)."""
    return f"{serial:040x}"


def build_root(name: str, constraints: Constraints, now: float, days: float) -> Signer:
    """A self-signed root that may sign for TLS only, and only under `constraints`."""
    key = new_key()
    subject = _authority_name(ROOT_UNIT, f"{name} authority", key)
    builder = (
        _base(subject, subject, key.public_key(), now, now + days * DAY_S)
        .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
        .add_extension(_key_usage(authority=True, crl=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([SERVER_AUTH, CLIENT_AUTH]), critical=False)
        .add_extension(constraints.extension(), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Signer(builder.sign(key, hashes.SHA256()), key)


def build_renewal_authority(name: str, root: Signer, now: float) -> Signer:
    """The intermediate that a server may hold: it can sign clients and nothing else, as long as the root lives.

    Its extended key usage keeps it from signing servers (OpenSSL checks it along the chain), its path length
    from signing authorities, its key usage from signing revocation lists.
    """
    key = new_key()
    builder = (
        _base(
            _authority_name(RENEWAL_UNIT, f"{name} renewal authority", key),
            root.certificate.subject,
            key.public_key(),
            now,
            _until(root.certificate, now, ROOT_DAYS),
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True, crl=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([CLIENT_AUTH]), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_issued_by(root.certificate), critical=False)
    )
    return Signer(builder.sign(root.key, hashes.SHA256()), key)


def build_server(
    public_key: CertificatePublicKeyTypes, hosts: Sequence[str | Address], root: Signer, now: float, days: float
) -> x509.Certificate:
    """A server certificate with every host as a subject alternative name."""
    names = [x509.DNSName(host) if isinstance(host, str) else x509.IPAddress(host) for host in hosts]
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "llmgw"),
            x509.NameAttribute(NameOID.COMMON_NAME, SERVER_COMMON_NAME),
        ]
    )
    builder = _base(
        subject, root.certificate.subject, public_key, now, _until(root.certificate, now, days)
    ).add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _sign_leaf(builder, public_key, SERVER_AUTH, root)


def build_client(
    public_key: CertificatePublicKeyTypes,
    node_id: str,
    address: Address | None,
    origin: int | None,
    signer: Signer,
    now: float,
    days: float,
) -> x509.Certificate:
    """A client certificate: common name = node id, the node's address, and the enrolment it descends from.

    `origin` is the serial of the enrolment, None when this is one.
    """
    serial = x509.random_serial_number()
    names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(f"{ORIGIN_PREFIX}{serial_hex(serial if origin is None else origin)}")
    ]
    if address is not None:
        names.insert(0, x509.IPAddress(address))
    builder = _base(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_id)]),
        signer.certificate.subject,
        public_key,
        now,
        _until(signer.certificate, now, days),
        serial,
    ).add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _sign_leaf(builder, public_key, CLIENT_AUTH, signer)


def kind_of(certificate: x509.Certificate) -> Kind:
    """Which of our four kinds a certificate is. Raises PkiError for one that is none of them."""
    extensions = certificate.extensions
    try:
        if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return "root" if certificate.issuer == certificate.subject else "renewal"
        usages = list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        usages = []
    if usages == [SERVER_AUTH]:
        return "server"
    if usages == [CLIENT_AUTH]:
        return "client"
    raise PkiError(
        "The certificate was not made by `llmgw ctl cert`: it is for neither servers nor clients alone."
    )


def common_name(name: x509.Name) -> str | None:
    """The one common name, or None when there is none or more than one."""
    values = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(values[0].value) if len(values) == 1 else None


def alternative_names(certificate: x509.Certificate) -> list[str]:
    """DNS names and addresses of a certificate as text, in its order."""
    try:
        value = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in value if isinstance(name, (x509.DNSName, x509.IPAddress))]


def _sign_leaf(
    builder: x509.CertificateBuilder,
    public_key: CertificatePublicKeyTypes,
    usage: x509.ObjectIdentifier,
    signer: Signer,
) -> x509.Certificate:
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False, crl=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(_issued_by(signer.certificate), critical=False)
        .sign(signer.key, hashes.SHA256())
    )


def _base(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: CertificatePublicKeyTypes,
    now: float,
    not_after: float,
    serial: int | None = None,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(as_datetime(now - BACKDATE_S))
        .not_valid_after(as_datetime(not_after))
    )


def _until(issuer: x509.Certificate, now: float, days: float) -> float:
    """When a certificate made now ends: after `days`, and never after its issuer. Raises PkiError."""
    end = issuer.not_valid_after_utc.timestamp()
    if now >= end:
        raise PkiError(
            f"The authority {common_name(issuer.subject)} expired on {day(end)}, so nothing it signs would be "
            "believed. Make a new one in a new folder with `llmgw ctl cert init-ca` and enrol the nodes again."
        )
    return min(now + days * DAY_S, end)


def _issued_by(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Key, name and serial of the issuer. OpenSSL refuses a chain in which one of them differs
    (`X509_check_akid`), so the serial proves which renewal authority signed."""
    key_id = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    return x509.AuthorityKeyIdentifier(key_id, [x509.DirectoryName(issuer.issuer)], issuer.serial_number)


def _authority_name(unit: str, name: str, key: ec.EllipticCurvePrivateKey) -> x509.Name:
    # A piece of the key's hash keeps two authorities of one name apart when a verifier looks for an issuer.
    digest = x509.SubjectKeyIdentifier.from_public_key(key.public_key()).digest.hex()[:8]
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "llmgw"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
            x509.NameAttribute(NameOID.COMMON_NAME, f"{name} {digest}"),
        ]
    )


def _key_usage(*, authority: bool, crl: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=crl,
        encipher_only=False,
        decipher_only=False,
    )


def as_datetime(seconds: float) -> datetime:
    """Seconds since the epoch as a datetime in UTC, whole seconds (X.509 has no finer ones)."""
    return datetime.fromtimestamp(int(seconds), UTC)


def day(seconds: float) -> str:
    """A moment for sentences: `2026-03-01 12:00 UTC`."""
    return as_datetime(seconds).strftime("%Y-%m-%d %H:%M UTC")
