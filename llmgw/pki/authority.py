"""The authority: a folder with the root key, the renewal authority, what was issued, and what was revoked.

Each certificate is kept in the folder before it is handed out, so that nothing can be in use that `revoke`
does not know. Changes hold the folder's lock; readers need none, since files are replaced whole.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from llmgw.messages.findings import Finding
from llmgw.pki import certificates as make
from llmgw.pki.certificates import Kind, Signer, cert_to_pem, key_to_pem, serial_hex
from llmgw.pki.constraints import Address, Constraints, parse_host, parse_node_address
from llmgw.pki.errors import PkiError
from llmgw.pki.files import (
    belongs_to,
    finish_install,
    install_pair,
    load_certificates,
    load_key,
    locked,
    write_atomic,
)
from llmgw.pki.records import CertificateRecord, as_serial, read_record, record_of
from llmgw.pki.revocation import SignedList, read_list, sign_list

CA, CA_KEY = "ca.pem", "ca-key.pem"
RENEWAL, RENEWAL_KEY = "renewal.pem", "renewal-key.pem"
REVOKED, ISSUED = "revoked.pem", "issued"
_LOCK = ".lock"


@dataclass(frozen=True)
class IssuedCertificate:
    """A certificate just made, with its key: the only time that the key is at hand."""

    kind: Kind
    name: str
    serial: str
    addresses: list[str]
    not_before: float
    not_after: float
    cert_pem: str
    key_pem: str
    ca_pem: str
    """The root, for the peers that must verify this one's other end."""


@dataclass(frozen=True)
class Revocation:
    """What `revoke` did: the serials now on the list because of it, and those that were there before."""

    name: str
    kind: Kind
    serials: list[str]
    already: list[str]


class Authority:
    """An authority's folder, opened. Its root key is read only when something is signed."""

    def __init__(self, path: Path, root: x509.Certificate) -> None:
        self.path = path
        self.root = root
        self.constraints = Constraints.of(root)

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        name: str = "llmgw",
        permit_dns: Iterable[str] = (),
        permit_ip: Iterable[str] = (),
        own_name: str = "",
        now: float,
        days: float = make.ROOT_DAYS,
    ) -> Authority:
        """Make root, renewal authority and an empty revocation list in a new or empty folder (0700).

        Nothing named means private names and addresses, and the domain of `own_name` (the host's full name).
        Raises PkiError, also when the folder holds anything: an authority is never overwritten.
        """
        folder = Path(path)
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9 ._-]{0,30}[A-Za-z0-9])?", name):
            raise PkiError(
                f"{name!r} is no name for an authority; use letters, digits, spaces and . _ -, at most 32."
            )
        if not 0 < days <= 36500:
            raise PkiError(f"An authority cannot hold for {days:g} days; give --days from 1 to 36500.")
        constraints = Constraints.choose(permit_dns, permit_ip, own_name)
        with _saying_where(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_used(folder)
            os.chmod(folder, 0o700)
            with locked(folder / _LOCK):
                _refuse_used(folder)
                root = make.build_root(name, constraints, now, days)
                renewal = make.build_renewal_authority(name, root, now)
                (folder / ISSUED).mkdir(mode=0o700)
                write_atomic(folder / CA_KEY, key_to_pem(root.key), 0o600)
                write_atomic(folder / REVOKED, sign_list(root, {}, int(now), now), 0o644)
                # The root's certificate comes last: where it is, the rest is there too.
                authority = cls(folder, root.certificate)
                authority._keep(renewal.certificate)
                install_pair(
                    folder / RENEWAL,
                    folder / RENEWAL_KEY,
                    cert_to_pem(renewal.certificate),
                    key_to_pem(renewal.key),
                )
                write_atomic(folder / CA, cert_to_pem(root.certificate), 0o644)
        return authority

    @classmethod
    def open(cls, path: str | Path) -> Authority:
        """An authority made before. Raises PkiError when there is none."""
        folder = Path(path)
        remedy = "Make an authority with `llmgw ctl cert init-ca`, or name its folder with --pki."
        return cls(folder, load_certificates(folder / CA, "authority's root certificate", remedy)[0])

    @property
    def ca_pem(self) -> str:
        """The root's certificate, which every peer trusts."""
        return cert_to_pem(self.root)

    @property
    def renewal_cert_pem(self) -> str:
        """The renewal authority's certificate. Raises PkiError."""
        finish_install(self.path / RENEWAL, self.path / RENEWAL_KEY)
        return cert_to_pem(
            load_certificates(self.path / RENEWAL, "renewal authority's certificate", _RENEW_IT)[0]
        )

    @property
    def renewal_key_pem(self) -> str:
        """The renewal authority's key: the server may hold it. Raises PkiError."""
        finish_install(self.path / RENEWAL, self.path / RENEWAL_KEY)
        key = load_key(self.path / RENEWAL_KEY, "renewal authority's key", _RENEW_IT)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise PkiError(f"{self.path / RENEWAL_KEY} is not a key of `llmgw ctl cert`. {_RENEW_IT}")
        return key_to_pem(key)

    @property
    def revocations_path(self) -> Path:
        """Where the signed revocation list lies."""
        return self.path / REVOKED

    def issue_server(
        self, hosts: Sequence[str], now: float, *, days: float = make.SERVER_DAYS
    ) -> IssuedCertificate:
        """A server certificate for every one of `hosts`, DNS names and bare addresses alike. Raises PkiError."""
        wanted: list[str | Address] = list(dict.fromkeys(parse_host(host) for host in hosts))
        if not wanted:
            raise PkiError(
                "A server certificate without a host would be refused by every agent, because hostname checks "
                "read nothing else; name each name and address that agents dial with --host."
            )
        for host in wanted:
            self.constraints.check(host)
        _check_days(days)
        with self._changing():
            key = make.new_key()
            certificate = make.build_server(key.public_key(), wanted, self._signer(), now, days)
            return self._keep_issued(certificate, key)

    def issue_client(
        self, node_id: str, address: str, now: float, *, days: float = make.CLIENT_DAYS
    ) -> IssuedCertificate:
        """Enrol a node: a client certificate with its id and the address its engines are reached at.

        Earlier certificates of the node stay valid until they end or are revoked. Raises PkiError.
        """
        self.constraints.check_node_id(node_id)
        reached_at = parse_node_address(address)
        self.constraints.check(reached_at)
        _check_days(days)
        with self._changing():
            key = make.new_key()
            certificate = make.build_client(
                key.public_key(), node_id, reached_at, None, self._signer(), now, days
            )
            return self._keep_issued(certificate, key)

    def renew(
        self, name: str, now: float, *, kind: Kind | None = None, days: float | None = None
    ) -> IssuedCertificate:
        """Issue the latest certificate of `name` again, with a new key: same hosts, or same node and address.

        `name` is a node id, a host of a server, a serial, or `renewal` for the renewal authority.
        Raises PkiError.
        """
        record = self._latest(name, kind)
        if record.kind == "client":
            if record.revoked:
                raise PkiError(
                    f"{record.name} was revoked, so it is not renewed. To let it in again: "
                    f"llmgw ctl cert issue-client {record.name} --address {' '.join(record.addresses)}"
                )
            return self.issue_client(record.name, record.addresses[0], now, days=days or make.CLIENT_DAYS)
        if record.kind == "server":
            return self.issue_server(record.addresses, now, days=days or make.SERVER_DAYS)
        if days is not None:
            raise PkiError("The renewal authority holds as long as the root; leave --days out.")
        with self._changing():
            renewal = make.build_renewal_authority(self._own_name(), self._signer(), now)
            issued = self._keep_issued(renewal.certificate, renewal.key)
            install_pair(self.path / RENEWAL, self.path / RENEWAL_KEY, issued.cert_pem, issued.key_pem)
            return issued

    def revoke(self, name_or_serial: str, now: float) -> Revocation:
        """Revoke a node with everything issued to it until now, renewals included, or one serial.

        The serial of an enrolment takes its renewals with it, and that of a renewal authority every certificate
        that it signed. Names of servers are not taken: give a serial. Raises PkiError.
        """
        with self._changing():
            records = self.list(now)
            chosen = [r for r in records if r.kind == "client" and r.name == name_or_serial]
            if not chosen:
                serial = as_serial(name_or_serial)
                chosen = [r for r in records if r.serial == serial]
            if not chosen:
                raise PkiError(
                    f"{name_or_serial!r} is neither a node nor a serial that was issued here; "
                    "`llmgw ctl cert list` shows both. (A renewed certificate is revoked by its node's name.)"
                )
            if chosen[0].kind == "root":
                raise PkiError("The root cannot revoke itself; make a new authority and enrol the nodes again.")
            before = self._revoked()
            fresh = [r.serial for r in chosen if r.serial not in before.revoked]
            revoked = {**before.revoked, **dict.fromkeys(fresh, now)}
            # Grows with time, so that a list made after the folder was restored from a backup still counts.
            number = max(before.number + 1, int(now))
            write_atomic(self.path / REVOKED, sign_list(self._signer(), revoked, number, now), 0o644)
        return Revocation(
            name=chosen[0].name,
            kind=chosen[0].kind,
            serials=fresh,
            already=[r.serial for r in chosen if r.serial not in fresh],
        )

    def list(self, now: float) -> Sequence[CertificateRecord]:
        """The root's certificate and every one issued, the earliest first. Raises PkiError.

        A record that cannot be read is left out, so that it never hides the others; `findings` names it.
        """
        revoked = self._revoked().revoked
        records = [record_of(self.root, now, revoked)]
        for path in self._records():
            try:
                records.append(record_of(read_record(path), now, revoked))
            except PkiError:
                continue
        return sorted(records, key=lambda record: (record.kind != "root", record.not_before))

    def findings(self) -> Sequence[Finding]:
        """Records of issued certificates that cannot be read. Raises PkiError."""
        found = []
        for path in self._records():
            try:
                record_of(read_record(path), 0.0, {})
            except PkiError as error:
                found.append(
                    Finding(
                        check="certificate-record",
                        severity="error",
                        where=str(path),
                        what=str(error),
                        why="The certificate is missing in `list`, and revoking its node does not reach it.",
                        remedy="Restore the file from a backup of the authority's folder.",
                    )
                )
        return found

    def _records(self) -> Sequence[Path]:
        with _saying_where(self.path):
            # Within one second of X.509 time the files tell which came first.
            return sorted((self.path / ISSUED).glob("*.pem"), key=lambda path: path.stat().st_mtime_ns)

    def _latest(self, name: str, kind: Kind | None) -> CertificateRecord:
        serial = as_serial(name)
        found = [
            record
            for record in self.list(0.0)
            if record.kind != "root"
            and (kind is None or record.kind == kind)
            and (
                record.serial == serial
                or record.name == name
                or (record.kind == "server" and name.lower() in record.addresses)
            )
        ]
        if not found:
            raise PkiError(f"No certificate of {name!r} was issued here; `llmgw ctl cert list` shows the names.")
        kinds = sorted({record.kind for record in found})
        if len(kinds) > 1:
            raise PkiError(
                f"{name!r} names certificates of several kinds; say which with --kind {' or '.join(kinds)}."
            )
        return found[-1]

    def _signer(self) -> Signer:
        key = load_key(
            self.path / CA_KEY,
            "authority's root key",
            "Signing needs it: run this on the authority's host, or bring the key back from where it is kept.",
        )
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not belongs_to(key, self.root):
            raise PkiError(
                f"{self.path / CA_KEY} does not belong to {self.path / CA}; restore both from one backup."
            )
        return Signer(self.root, key)

    def _revoked(self) -> SignedList:
        path = self.path / REVOKED
        if not path.exists():
            return SignedList(0, {})
        return read_list(path, [self.root])

    def _keep(self, certificate: x509.Certificate) -> None:
        path = self.path / ISSUED / f"{serial_hex(certificate.serial_number)}.pem"
        write_atomic(path, cert_to_pem(certificate), 0o644)

    def _keep_issued(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> IssuedCertificate:
        self._keep(certificate)
        record = record_of(certificate, 0.0, {})
        return IssuedCertificate(
            kind=record.kind,
            name=record.name,
            serial=record.serial,
            addresses=record.addresses,
            not_before=record.not_before,
            not_after=record.not_after,
            cert_pem=cert_to_pem(certificate),
            key_pem=key_to_pem(key),
            ca_pem=self.ca_pem,
        )

    def _own_name(self) -> str:
        return (make.common_name(self.root.subject) or "llmgw authority").rpartition(" authority")[0]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with _saying_where(self.path), locked(self.path / _LOCK):
            yield


_RENEW_IT = "Make a new one with `llmgw ctl cert renew renewal` and copy both files to the server."


def _check_days(days: float) -> None:
    if not 0 < days <= 36500:
        raise PkiError(f"A certificate cannot hold for {days:g} days; give --days from 1 to 36500.")


def _refuse_used(folder: Path) -> None:
    held = sorted(entry.name for entry in folder.iterdir() if entry.name != _LOCK)
    if CA in held:
        raise PkiError(
            f"{folder} holds an authority already, which is never overwritten: every node trusts it. "
            "Name another folder with --pki."
        )
    if CA_KEY in held:
        raise PkiError(
            f"{folder} holds an authority that was not finished; remove the folder and run this again."
        )
    if held:
        raise PkiError(f"{folder} is not empty (it holds {held[0]}); an authority gets a folder of its own.")


@contextlib.contextmanager
def _saying_where(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PkiError(
            f"The authority's folder {error.filename or folder} cannot be used: {error.strerror or error}. "
            "Check its owner and mode, or name another with --pki."
        ) from None
