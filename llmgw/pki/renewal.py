"""Renewing a node's certificate over the connection that it has: the request, the signature, and when.

The renewal authority signs only what the connection proved. Of a request it reads the key and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from llmgw.pki import certificates as make
from llmgw.pki.certificates import Signer, cert_to_pem, key_to_pem
from llmgw.pki.constraints import parse_address
from llmgw.pki.errors import PkiError
from llmgw.pki.files import belongs_to, finish_install, read_bounded
from llmgw.pki.peer import Peer

CSR_BYTES_MAX = 16384
RSA_BITS_MIN = 2048
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)


def make_csr(node_id: str) -> tuple[str, str]:
    """A fresh key and a request for `node_id`: (key_pem, csr_pem). The key stays where it was made."""
    key = make.new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node_id)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    return key_to_pem(key), csr.public_bytes(Encoding.PEM).decode()


def renew_after(cert_pem: str) -> float:
    """When an agent renews, in seconds since the epoch: at half the life of the first certificate in the PEM."""
    certificate = _first(cert_pem)
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    return begin + (end - begin) / 2


class Renewer:
    """The renewal authority at work in the server."""

    def __init__(self, cert_pem: str | bytes, key_pem: str | bytes, *, days: float = make.CLIENT_DAYS) -> None:
        """`days` bounds the life of what it signs. Raises PkiError when certificate and key do not fit."""
        certificate = _first(cert_pem)
        try:
            key = load_pem_private_key(_bytes(key_pem), password=None)
        except (TypeError, ValueError):
            raise PkiError(
                "The renewal authority's key is not a private key in PEM form without a passphrase."
            ) from None
        if make.kind_of(certificate) != "renewal":
            raise PkiError(
                "The renewal certificate is not a renewal authority's; use renewal.pem of the authority's "
                "folder, never the root."
            )
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not belongs_to(key, certificate):
            raise PkiError(
                "The renewal authority's key does not belong to its certificate; copy both files again."
            )
        self._signer = Signer(certificate, key)
        self._days = days

    @classmethod
    def from_files(
        cls, cert_path: str | Path, key_path: str | Path, *, days: float = make.CLIENT_DAYS
    ) -> Renewer:
        """The same from `agents.tls.renewal_cert` and `renewal_key`. Raises PkiError."""
        finish_install(cert_path, key_path)
        remedy = "Copy renewal.pem and renewal-key.pem from the authority's folder, or leave both keys out."
        return cls(
            read_bounded(Path(cert_path), "renewal authority's certificate (agents.tls.renewal_cert)", remedy),
            read_bounded(Path(key_path), "renewal authority's key (agents.tls.renewal_key)", remedy),
            days=days,
        )

    def renew(self, csr_pem: str, peer: Peer, now: float) -> str:
        """A certificate for the key in the request and for `peer`'s own name, address and origin.

        Returns PEM: the certificate, then the renewal authority's, as the agent must send them. The caller has
        asked the revocation list. Raises PkiError when the request is not to be signed.
        """
        if now >= peer.not_after:
            raise PkiError(
                f"The certificate of {peer.node_id} expired on {make.day(peer.not_after)}, so it is not renewed; "
                f"enrol the node again with `llmgw ctl cert issue-client {peer.node_id} --address IP`."
            )
        certificate = make.build_client(
            _proven_key(csr_pem, peer.node_id),
            peer.node_id,
            None if peer.address is None else parse_address(peer.address),
            int(peer.origin, 16),
            self._signer,
            now,
            self._days,
        )
        return cert_to_pem(certificate) + cert_to_pem(self._signer.certificate)


def _proven_key(csr_pem: str, node_id: str) -> CertificatePublicKeyTypes:
    """The request's key, whose holder signed the request; the name must be the node's own. Raises PkiError."""
    if len(csr_pem) > CSR_BYTES_MAX:
        raise PkiError(f"The request of {node_id} is larger than {CSR_BYTES_MAX} bytes.")
    try:
        csr = x509.load_pem_x509_csr(csr_pem.encode())
        names = [str(name.value) for name in csr.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        signed = csr.is_signature_valid
        key = csr.public_key()
    except Exception as error:  # the parser's own kinds differ between versions of cryptography
        raise PkiError(
            f"The request of {node_id} is not a certificate signing request in PEM form ({error})."
        ) from None
    if names != [node_id]:
        raise PkiError(
            f"{node_id} asked for a certificate in the name of {_quoted(names)}; a node renews only its own name."
        )
    if not signed:
        raise PkiError(f"The request of {node_id} is not signed by the key in it.")
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= RSA_BITS_MIN:
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES):
        return key
    raise PkiError(
        f"The request of {node_id} has a weak or unknown key; use EC P-256, or RSA from {RSA_BITS_MIN} bits."
    )


def _quoted(names: Iterable[str]) -> str:
    return " and ".join(repr(name[:80]) for name in names) or "nobody"


def _first(cert_pem: str | bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificates(_bytes(cert_pem))[0]
    except ValueError:
        raise PkiError("The text is not a certificate in PEM form.") from None


def _bytes(pem: str | bytes) -> bytes:
    return pem.encode() if isinstance(pem, str) else pem
