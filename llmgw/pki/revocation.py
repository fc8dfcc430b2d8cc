"""The revocation list: signed by the root, read again whenever its file changes, asked on every request.

A list that cannot be believed changes nothing: the last good one stays in force and a finding says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from llmgw.messages.findings import Finding
from llmgw.pki.certificates import Signer, as_datetime, day, serial_hex
from llmgw.pki.errors import PkiError
from llmgw.pki.files import load_certificates, read_bounded
from llmgw.pki.peer import Peer

_REMEDY = "Copy revoked.pem from the authority's folder again."


@dataclass(frozen=True)
class SignedList:
    """A revocation list whose signature was verified. `revoked` maps serials (hex) to when (epoch seconds)."""

    number: int
    revoked: Mapping[str, float]


def sign_list(root: Signer, revoked: Mapping[str, float], number: int, now: float) -> str:
    """A revocation list in PEM. It holds as long as the root does: it is replaced by events, not by a clock."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(root.certificate.subject)
        .last_update(as_datetime(now))
        .next_update(root.certificate.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                root.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
    )
    for serial, at in sorted(revoked.items()):
        builder = builder.add_revoked_certificate(
            x509.RevokedCertificateBuilder()
            .serial_number(int(serial, 16))
            .revocation_date(as_datetime(at))
            .build()
        )
    return builder.sign(root.key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def read_list(path: Path, roots: list[x509.Certificate]) -> SignedList:
    """Read and verify the list at `path`, which one of `roots` must have signed. Raises PkiError."""
    data = read_bounded(path, "revocation list", _REMEDY)
    try:
        crl = x509.load_pem_x509_crl(data)
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        revoked = {serial_hex(entry.serial_number): entry.revocation_date_utc.timestamp() for entry in crl}
    except (ValueError, x509.ExtensionNotFound):
        raise PkiError(
            f"{path} is not a revocation list of `llmgw ctl cert`, or it is damaged. {_REMEDY}"
        ) from None
    for root in roots:
        key = root.public_key()
        if (
            crl.issuer == root.subject
            and isinstance(key, ec.EllipticCurvePublicKey)
            and crl.is_signature_valid(key)
        ):
            return SignedList(number, revoked)
    raise PkiError(f"The revocation list {path} was not signed by our authority. {_REMEDY}")


class RevocationList:
    """The list in force. `refusal` looks at the file (one stat) each time, so a revocation acts at once."""

    def __init__(
        self,
        path: str | Path,
        ca_path: str | Path,
        clock: Callable[[], float] = time.time,
        remembered: Mapping[str, float] | None = None,
    ) -> None:
        """`path` is the signed list, `ca_path` the root's certificate, `clock` gives seconds since the epoch.

        `remembered` is what earlier lists held (serial → when): a list that is lost un-revokes nobody.

        A list that is not there means that nothing was revoked yet, and is a finding. A list that is there and
        cannot be believed is refused at the start, when no earlier one could stay in force. Raises PkiError.
        """
        self._path = Path(path)
        self._clock = clock
        self._roots = load_certificates(Path(ca_path), "authority's root certificate", "Copy ca.pem there.")
        self._list = SignedList(-1, {})
        self._remembered = dict(remembered or {})
        self._problem: str | None = None
        self._seen = self._signature()
        if self._seen is None:
            self._problem = f"There is no revocation list at {self._path}, so revoked nodes are let in."
        else:
            self._list = read_list(self._path, self._roots)

    def refusal(self, peer: Peer) -> str | None:
        """Why `peer` must not be served now, as a sentence; None when it may."""
        revoked = self.revoked()
        again = (
            f"Enrol the node again: llmgw ctl cert issue-client {peer.node_id} --address {peer.address or 'IP'}"
        )
        for serial in (peer.serial, peer.origin):
            if serial in revoked:
                return f"The certificate of {peer.node_id} was revoked on {day(revoked[serial])}. {again}"
        if peer.issuer_serial is not None and peer.issuer_serial in revoked:
            return f"The renewal authority that signed the certificate of {peer.node_id} was revoked. {again}"
        # A connection outlives the certificate that it began with.
        if self._clock() >= peer.not_after:
            return f"The certificate of {peer.node_id} expired on {day(peer.not_after)}. {again}"
        return None

    def revoked(self) -> Mapping[str, float]:
        """Every serial that is revoked now, and when that was (seconds since the epoch)."""
        self._read_again_if_changed()
        if not self._remembered:
            return self._list.revoked
        return {**self._remembered, **self._list.revoked}

    def findings(self) -> list[Finding]:
        """What is wrong with the list, if anything."""
        self._read_again_if_changed()
        if self._problem is None:
            return []
        return [
            Finding(
                check="revocation-list",
                severity="error",
                where=str(self._path),
                what=self._problem,
                why="Nodes revoked from now on keep their access until the list can be read.",
                remedy="Copy revoked.pem from the authority's folder to this path; no restart is needed.",
            )
        ]

    def _read_again_if_changed(self) -> None:
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        if signature is None:
            self._problem = f"The revocation list {self._path} is gone. The last one read stays in force."
            return
        try:
            fresh = read_list(self._path, self._roots)
        except PkiError as error:
            self._problem = f"{error} The last good list stays in force."
            return
        if fresh.number < self._list.number:
            # An old list put back would let revoked nodes in again.
            self._problem = f"{self._path} is older than the list in force, which stays."
            return
        self._list, self._problem = fresh, None

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            stat = os.stat(self._path)
        except FileNotFoundError:
            return None
        except OSError:
            return 0, 0, 0  # there is something that we may not see: reading it says what
        return stat.st_mtime_ns, stat.st_ino, stat.st_size
