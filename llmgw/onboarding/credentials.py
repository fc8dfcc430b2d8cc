"""The node's certificate: whether its own will do, else a fresh one from the authority."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from llmgw.onboarding.errors import OnboardError
from llmgw.onboarding.facts import NodeFacts
from llmgw.pki.authority import Authority, IssuedCertificate
from llmgw.pki.certificates import day
from llmgw.pki.errors import PkiError
from llmgw.pki.peer import Peer, peer_from_der
from llmgw.pki.revocation import read_list


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """What the node has: its `peer` (None: no certificate of ours), and why it does not do (None: it does)."""

    peer: Peer | None
    unfit: str | None


def judge(
    facts: NodeFacts,
    authority: Authority,
    node_id: str,
    address: str,
    now: float,
    removed_at: float | None = None,
) -> OwnCertificate:
    """Whether the certificate on the node can stay: its name, address and authority, its key, and more than half
    of its life before it. The control plane refuses what is of before `removed_at` (epoch seconds), when the node
    was removed. Raises PkiError when the authority's own files cannot be read."""
    pem = facts.files.get("agent.pem")
    if pem is None:
        return OwnCertificate(None, "the node has none")
    try:
        chain = x509.load_pem_x509_certificates(pem)
        leaf = chain[0]
        peer = peer_from_der(leaf.public_bytes(Encoding.DER))
        begin, end = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
    except (ValueError, x509.InvalidVersion, PkiError):
        return OwnCertificate(None, "what the node has cannot be read")
    if peer.node_id != node_id:
        return OwnCertificate(peer, f"the node's is that of {peer.node_id}")
    if not _descends(chain, authority.root):
        return OwnCertificate(peer, "the node's is of another authority")
    if peer.address is None or ipaddress.ip_address(peer.address) != ipaddress.ip_address(address):
        return OwnCertificate(peer, f"the node's is for {peer.address or 'no address'}, not for {address}")
    revoked = read_list(authority.revocations_path, [authority.root]).revoked
    if {peer.serial, peer.origin, peer.issuer_serial} & set(revoked):
        return OwnCertificate(peer, "the node's was revoked")
    if removed_at is not None and peer.is_of_before(removed_at):
        return OwnCertificate(peer, f"the node was removed on {day(removed_at)}, and its own is of before that")
    if now >= end:
        return OwnCertificate(peer, f"the node's expired on {day(end)}")
    if now < begin:
        return OwnCertificate(peer, f"the node's holds only from {day(begin)} on")
    if end - now <= (end - begin) / 2:
        return OwnCertificate(peer, f"more than half of the life of the node's is over (it ends on {day(end)})")
    if not facts.key_fits:
        return OwnCertificate(peer, "the key on the node was not seen to belong to it")
    return OwnCertificate(peer, None)


def issue(authority: Authority, node_id: str, address: str, now: float) -> IssuedCertificate:
    """A fresh certificate. Raises PkiError, and OnboardError when the authority's folder cannot be written."""
    try:
        return authority.issue_client(node_id, address, now)
    except OSError as error:
        raise OnboardError(
            f"The authority in {authority.path} cannot issue: {error.strerror or error}. Run this as the user "
            "who owns that folder."
        ) from None


def _descends(chain: list[x509.Certificate], root: x509.Certificate) -> bool:
    """Whether the first certificate was signed by the root, or by one in the chain that the root signed."""
    leaf, between = chain[0], chain[1:]
    return _signed(leaf, root) or any(_signed(leaf, one) and _signed(one, root) for one in between)


def _signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True
