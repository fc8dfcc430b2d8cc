"""The revocation list: signed, read again when it changes, and never weakened by a bad file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmgw.pki import certificates as make
from llmgw.pki.authority import Authority, IssuedCertificate
from llmgw.pki.errors import PkiError
from llmgw.pki.peer import Peer, peer_from_der
from llmgw.pki.revocation import RevocationList, read_list
from tests.pki.handshakes import DAY, NOW


def peer_of(issued: IssuedCertificate) -> Peer:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    return peer_from_der(x509.load_pem_x509_certificate(issued.cert_pem.encode()).public_bytes(Encoding.DER))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "pki", permit_dns=(), permit_ip=(), now=NOW, days=3650)


@pytest.fixture
def revocations(authority: Authority) -> RevocationList:
    return watching(authority)


def watching(authority: Authority, path: Path | None = None) -> RevocationList:
    return RevocationList(path or authority.revocations_path, authority.path / "ca.pem", clock=lambda: NOW)


def test_a_revocation_acts_on_the_next_request(authority: Authority, revocations: RevocationList) -> None:
    peer = peer_of(authority.issue_client("node01", "10.0.0.1", NOW))
    assert revocations.refusal(peer) is None
    authority.revoke("node01", NOW)
    assert "was revoked on 2030-03-17" in str(revocations.refusal(peer))
    assert revocations.findings() == []


def test_revoking_a_node_takes_all_its_serials_and_no_others(
    authority: Authority, revocations: RevocationList
) -> None:
    first, second = (peer_of(authority.issue_client("node01", "10.0.0.1", NOW)) for _ in range(2))
    other = peer_of(authority.issue_client("node02", "10.0.0.2", NOW))
    done = authority.revoke("node01", NOW)
    assert sorted(done.serials) == sorted([first.serial, second.serial])
    assert revocations.refusal(first)
    assert revocations.refusal(second)
    assert revocations.refusal(other) is None
    assert authority.revoke("node01", NOW).serials == []


@pytest.mark.parametrize("spelling", [str.lower, str.upper, lambda text: f"0x{text}"])
def test_one_serial_is_revoked_however_it_is_spelled(
    authority: Authority, revocations: RevocationList, spelling: object
) -> None:
    first, second = (peer_of(authority.issue_client("node01", "10.0.0.1", NOW)) for _ in range(2))
    authority.revoke(spelling(first.serial), NOW)  # type: ignore[operator]
    assert revocations.refusal(first)
    assert revocations.refusal(second) is None


@pytest.mark.parametrize("unknown", ["node09", "gw.lan", "ab" * 20, "", "../ca"])
def test_what_was_never_issued_cannot_be_revoked(authority: Authority, unknown: str) -> None:
    authority.issue_server(["gw.lan"], NOW)
    with pytest.raises(PkiError, match="neither a node nor a serial that was issued here"):
        authority.revoke(unknown, NOW)


def test_the_root_cannot_be_revoked(authority: Authority) -> None:
    with pytest.raises(PkiError, match="cannot revoke itself"):
        authority.revoke(make.serial_hex(authority.root.serial_number), NOW)


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"]
)
def test_a_damaged_list_leaves_the_last_one_in_force_with_a_finding(
    authority: Authority, revocations: RevocationList, content: bytes
) -> None:
    bad, good = (peer_of(authority.issue_client(name, "10.0.0.1", NOW)) for name in ("node01", "node02"))
    authority.revoke("node01", NOW)
    assert revocations.refusal(bad)
    kept = authority.revocations_path.read_bytes()
    authority.revocations_path.write_bytes(content)
    assert revocations.refusal(bad)
    assert revocations.refusal(good) is None
    (finding,) = revocations.findings()
    assert (finding.check, finding.severity) == ("revocation-list", "error")
    assert "The last good list stays in force" in finding.what
    authority.revocations_path.write_bytes(kept)
    assert revocations.findings() == []
    authority.revocations_path.write_bytes(content)
    with pytest.raises(PkiError, match="damaged"):
        authority.revoke("node02", NOW)  # it would begin a list anew and let node01 in


def test_a_list_of_another_authority_is_not_believed(
    authority: Authority, revocations: RevocationList, tmp_path: Path
) -> None:
    other = Authority.create(tmp_path / "other", permit_dns=(), permit_ip=(), now=NOW)
    peer = peer_of(authority.issue_client("node01", "10.0.0.1", NOW))
    authority.revocations_path.write_bytes(other.revocations_path.read_bytes())
    assert revocations.refusal(peer) is None
    (finding,) = revocations.findings()
    assert "was not signed by our authority" in finding.what
    with pytest.raises(PkiError, match="was not signed by our authority"):
        watching(authority)


def test_a_list_with_a_changed_entry_is_not_believed(authority: Authority) -> None:
    authority.issue_client("node01", "10.0.0.1", NOW)
    authority.revoke("node01", NOW)
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    der = x509.load_pem_x509_crl(authority.revocations_path.read_bytes()).public_bytes(Encoding.DER)
    serial = next(record.serial for record in authority.list(NOW) if record.name == "node01")
    whole = bytes.fromhex(serial)
    changed = der.replace(whole, whole[:-1] + bytes([whole[-1] ^ 1]))
    assert changed != der
    pem = x509.load_der_x509_crl(changed).public_bytes(Encoding.PEM)
    authority.revocations_path.write_bytes(pem)
    with pytest.raises(PkiError, match="was not signed by our authority"):
        read_list(authority.revocations_path, [authority.root])


def test_an_older_list_put_back_does_not_let_a_revoked_node_in(
    authority: Authority, revocations: RevocationList
) -> None:
    peer = peer_of(authority.issue_client("node01", "10.0.0.1", NOW))
    before = authority.revocations_path.read_bytes()
    authority.revoke("node01", NOW)
    assert revocations.refusal(peer)
    authority.revocations_path.write_bytes(before)
    assert revocations.refusal(peer)
    (finding,) = revocations.findings()
    assert "is older than the list in force" in finding.what


def test_a_list_that_goes_away_stays_in_force(authority: Authority, revocations: RevocationList) -> None:
    peer = peer_of(authority.issue_client("node01", "10.0.0.1", NOW))
    authority.revoke("node01", NOW)
    assert revocations.refusal(peer)
    authority.revocations_path.unlink()
    assert revocations.refusal(peer)
    assert "is gone" in revocations.findings()[0].what


def test_without_a_list_nobody_is_revoked_and_the_first_one_acts(authority: Authority) -> None:
    authority.revocations_path.unlink()
    revocations = watching(authority)
    peer = peer_of(authority.issue_client("node01", "10.0.0.1", NOW))
    assert revocations.refusal(peer) is None
    assert "There is no revocation list" in revocations.findings()[0].what
    authority.revoke("node01", NOW)
    assert revocations.refusal(peer)
    assert revocations.findings() == []


def test_a_list_that_is_damaged_when_the_server_starts_is_refused(authority: Authority) -> None:
    authority.revocations_path.write_text("nonsense")
    with pytest.raises(PkiError, match=r"revoked\.pem .* Copy revoked\.pem"):
        watching(authority)


def test_a_list_of_the_same_length_within_the_same_tick_is_noticed(
    authority: Authority, revocations: RevocationList
) -> None:
    peer = peer_of(authority.issue_client("node01", "10.0.0.1", NOW))
    stat = os.stat(authority.revocations_path)
    authority.revoke("node01", NOW)
    os.utime(authority.revocations_path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert revocations.refusal(peer)


def test_an_open_connection_is_refused_once_its_certificate_has_expired(authority: Authority) -> None:
    clock = [NOW]
    revocations = RevocationList(authority.revocations_path, authority.path / "ca.pem", clock=lambda: clock[0])
    peer = peer_of(authority.issue_client("node01", "10.0.0.1", NOW, days=10))
    assert revocations.refusal(peer) is None
    clock[0] = NOW + 10 * DAY
    assert "expired on" in str(revocations.refusal(peer))
