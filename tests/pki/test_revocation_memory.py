"""A revocation list that is lost un-revokes nobody."""

from __future__ import annotations

import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from llmgw.pki.authority import Authority
from llmgw.pki.peer import peer_from_der
from llmgw.pki.revocation import RevocationList


def test_what_earlier_lists_held_stays_revoked_when_the_list_is_lost(tmp_path: Path) -> None:
    now = time.time()
    authority = Authority.create(tmp_path / "pki", now=now)
    issued = authority.issue_client("node01", "10.0.0.1", now)
    peer = peer_from_der(x509.load_pem_x509_certificate(issued.cert_pem.encode()).public_bytes(Encoding.DER))
    authority.revoke("node01", now)
    before = RevocationList(authority.revocations_path, tmp_path / "pki" / "ca.pem")
    assert before.refusal(peer) is not None
    authority.revocations_path.unlink()
    forgetful = RevocationList(authority.revocations_path, tmp_path / "pki" / "ca.pem")
    assert forgetful.refusal(peer) is None
    after = RevocationList(authority.revocations_path, tmp_path / "pki" / "ca.pem", remembered=before.revoked())
    assert "was revoked" in (after.refusal(peer) or "")
