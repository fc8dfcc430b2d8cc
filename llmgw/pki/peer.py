"""Who is at the other end of a connection: what its certificate says, after TLS has verified it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509.oid import NameOID

from llmgw.messages.agent import NODE_ID_PATTERN
from llmgw.pki.certificates import BACKDATE_S, ORIGIN_PREFIX, RENEWAL_UNIT, common_name, kind_of, serial_hex
from llmgw.pki.errors import PkiError

_NOT_X509 = (
    x509.InvalidVersion,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    UnsupportedAlgorithm,
)
"""What is raised beside ValueError for a certificate that parses and breaks a rule of RFC 5280."""


@dataclass(frozen=True)
class Peer:
    """A node as its certificate proves it. Serials are 40 hexadecimal digits, times seconds since the epoch."""

    node_id: str
    serial: str
    origin: str
    """Serial of the enrolment that this certificate descends from; its own when it is one."""
    address: str | None
    """Where the node's engines are reached, and nowhere else."""
    not_after: float
    issuer: Literal["root", "renewal"]
    issuer_serial: str | None
    """Serial of the authority that signed; always there for `renewal`."""
    issued_at: float
    """Whole seconds, by the clock of whoever signed."""

    def is_of_before(self, removed_at: float) -> bool:
        """Whether it was made before a removal of its node, and is refused for that. Certificates know whole
        seconds: one made in the same second as the removal was made after it."""
        return self.issued_at < int(removed_at)


@lru_cache(maxsize=4096)
def peer_from_der(der: bytes) -> Peer:
    """Read a client certificate that TLS has verified against the root.

    Raises PkiError when it is no node's certificate of ours.
    """
    try:
        certificate = x509.load_der_x509_certificate(der)
        kind = kind_of(certificate)
        node_id = common_name(certificate.subject)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        signed_by = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    except (ValueError, *_NOT_X509) as error:
        raise PkiError(
            f"The client's certificate was not made by `llmgw ctl cert issue-client` ({error})."
        ) from None
    if kind != "client" or node_id is None or not re.fullmatch(NODE_ID_PATTERN, node_id):
        raise PkiError(
            f"The client's certificate is no node's: it is a {kind} certificate with the common name "
            f"{node_id!r}. Make one with `llmgw ctl cert issue-client NODE --address IP`."
        )
    units = [
        str(unit.value) for unit in certificate.issuer.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    ]
    renewed = units == [RENEWAL_UNIT]
    origins = [
        uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier) if uri.startswith(ORIGIN_PREFIX)
    ]
    serial = serial_hex(certificate.serial_number)
    if renewed and (len(origins) != 1 or signed_by.authority_cert_serial_number is None):
        # Only a stolen renewal key signs such a thing: it would escape the revocation of what it descends from.
        raise PkiError(f"The renewed certificate of {node_id} does not say which enrolment it descends from.")
    addresses = names.get_values_for_type(x509.IPAddress)
    return Peer(
        node_id=node_id,
        serial=serial,
        origin=_origin(origins[0]) if renewed else serial,
        address=str(addresses[0]) if addresses else None,
        not_after=certificate.not_valid_after_utc.timestamp(),
        issuer="renewal" if renewed else "root",
        issuer_serial=(
            None
            if signed_by.authority_cert_serial_number is None
            else serial_hex(signed_by.authority_cert_serial_number)
        ),
        issued_at=certificate.not_valid_before_utc.timestamp() + BACKDATE_S,
    )


def _origin(uri: str) -> str:
    text = uri.removeprefix(ORIGIN_PREFIX)
    if not re.fullmatch(r"[0-9a-f]{40}", text):
        raise PkiError(f"The certificate's origin {uri!r} is not a serial.")
    return text
