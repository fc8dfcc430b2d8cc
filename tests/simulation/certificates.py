"""Who is who: real certificates for simulated machines, and the authority that issues, renews and revokes them.

Keys and serials are really random, and nothing in a world depends on them: a seed replays all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from llmgw.pki import certificates as make
from llmgw.pki.constraints import Constraints, parse_address
from llmgw.pki.errors import PkiError
from llmgw.pki.peer import Peer, peer_from_der
from llmgw.pki.renewal import Renewer
from llmgw.pki.revocation import RevocationList, SignedList

ROOT_FROM_S = 1_500_000_000.0
ROOT_DAYS = 36_500.0


@dataclass(frozen=True)
class Credential:
    """A node's certificate as it lies on the machine. Times are epoch seconds of the wall clock."""

    pem: str
    der: bytes
    peer: Peer
    not_before: float

    @classmethod
    def of(cls, pem: str) -> Credential:
        """The first certificate of a PEM."""
        certificate = x509.load_pem_x509_certificates(pem.encode())[0]
        der = certificate.public_bytes(Encoding.DER)
        return cls(pem, der, peer_from_der(der), certificate.not_valid_before_utc.timestamp())

    def holds(self, wall_s: float) -> bool:
        """What a TLS handshake at that moment says of its time."""
        return self.not_before <= wall_s < self.peer.not_after


class SimRevocations(RevocationList):
    """The real list's judgement over a list in memory: signatures and files have tests of their own."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._clock = wall
        self._list = SignedList(0, {})
        self._remembered = {}
        self._problem = None

    def _read_again_if_changed(self) -> None:
        pass

    def add(self, serials: list[str]) -> None:
        """A list with these besides is in force at once."""
        now = self._clock()
        self._list = SignedList(self._list.number + 1, {**self._list.revoked, **dict.fromkeys(serials, now)})


class SimRenewer(Renewer):
    """The real renewal authority, and whether its key can be read."""

    broken = False

    def renew(self, csr_pem: str, peer: Peer, now: float) -> str:
        if self.broken:
            raise PkiError("the renewal authority's key cannot be read")
        return super().renew(csr_pem, peer, now)


class Authority:
    """The operators' authority, and what of it the server holds. It outlives servers."""

    def __init__(self, wall: Callable[[], float], life_s: float) -> None:
        """`wall` is the clock of the server's host; renewed certificates hold for `life_s`."""
        root, renewal = _authorities()
        self._root = root
        self._wall = wall
        self.life_s = life_s
        self.revocations = SimRevocations(wall)
        self.renewer = SimRenewer(
            make.cert_to_pem(renewal.certificate), make.key_to_pem(renewal.key), days=life_s / make.DAY_S
        )
        self._enrolled: dict[str, list[str]] = {}
        self.revoked: set[str] = set()
        """Enrolments (serials) that were revoked, kept apart from what the server holds."""

    def enrol(self, node_id: str, address: str) -> Credential:
        """As `llmgw ctl cert issue-client` does."""
        certificate = make.build_client(
            make.new_key().public_key(),
            node_id,
            parse_address(address),
            None,
            self._root,
            self._wall(),
            self.life_s / make.DAY_S,
        )
        credential = Credential.of(make.cert_to_pem(certificate))
        self._enrolled.setdefault(node_id, []).append(credential.peer.serial)
        return credential

    def revoke(self, node_id: str) -> None:
        """As `llmgw ctl cert revoke NODE` does: every enrolment that the node ever had."""
        serials = self._enrolled.get(node_id, [])
        self.revoked.update(serials)
        self.revocations.add(serials)

    def admits(self, credential: Credential) -> bool:
        """The truth: whether somebody with this certificate may talk now."""
        return credential.holds(self._wall()) and credential.peer.origin not in self.revoked


@lru_cache(maxsize=1)
def _authorities() -> tuple[make.Signer, make.Signer]:
    root = make.build_root("simulated", Constraints.choose((), ()), ROOT_FROM_S, ROOT_DAYS)
    return root, make.build_renewal_authority("simulated", root, ROOT_FROM_S)
