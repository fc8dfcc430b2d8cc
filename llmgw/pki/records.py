"""What the authority's folder says about one issued certificate, as `llmgw ctl cert list` prints it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
from cryptography import x509

from llmgw.pki.certificates import DAY_S, Kind, alternative_names, common_name, kind_of, serial_hex
from llmgw.pki.files import load_certificates

RENEWAL_NAME = "renewal"


class CertificateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One issued certificate. Times are seconds since the epoch, serials 40 hexadecimal digits."""

    kind: Kind
    name: str
    """The node id of a client, the first host of a server."""
    serial: str
    addresses: list[str]
    """DNS names and addresses that the certificate is for."""
    not_before: float
    not_after: float
    days_left: float
    revoked: bool
    revoked_at: float | None = None


def read_record(path: Path) -> x509.Certificate:
    """The certificate kept at `path`. Raises PkiError."""
    return load_certificates(path, "record of an issued certificate", "Restore it from a backup.")[0]


def record_of(certificate: x509.Certificate, now: float, revoked: Mapping[str, float]) -> CertificateRecord:
    """The record of a certificate at `now`; `revoked` maps serials to when. Raises PkiError for a foreign one."""
    kind = kind_of(certificate)
    names = alternative_names(certificate)
    serial = serial_hex(certificate.serial_number)
    not_after = certificate.not_valid_after_utc.timestamp()
    at = revoked.get(serial)
    name = {"server": names[0] if names else "", "renewal": RENEWAL_NAME}.get(kind)
    return CertificateRecord(
        kind=kind,
        name=name or common_name(certificate.subject) or "",
        serial=serial,
        addresses=names,
        not_before=certificate.not_valid_before_utc.timestamp(),
        not_after=not_after,
        days_left=round((not_after - now) / DAY_S, 1),
        revoked=at is not None,
        revoked_at=at,
    )


def as_serial(text: str) -> str | None:
    """`text` as a serial, however it is spelled (`openssl x509 -serial` writes capitals), or None."""
    bare = text.strip().lower().replace(":", "").removeprefix("0x")
    return bare.zfill(40) if re.fullmatch(r"[0-9a-f]{8,40}", bare) else None
