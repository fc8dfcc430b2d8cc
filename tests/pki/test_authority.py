"""The authority's folder: modes, records, locks, and what happens when something in it is missing."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from llmgw.pki.authority import Authority
from llmgw.pki.certificates import SERVER_COMMON_NAME
from llmgw.pki.errors import PkiError
from llmgw.pki.files import write_atomic
from llmgw.pki.handout import check_folder, write_files
from llmgw.pki.renewal import make_csr
from tests.pki.handshakes import DAY, NOW


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "pki", permit_dns=(), permit_ip=(), now=NOW, days=1000)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_0600_and_the_folder_0700_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        authority = Authority.create(tmp_path / "pki", permit_dns=(), permit_ip=(), now=NOW)
        write_files(authority.issue_client("node01", "10.0.0.1", NOW), tmp_path / "out")
    finally:
        os.umask(before)
    assert mode(authority.path) == 0o700
    keys = [*authority.path.rglob("*key.pem"), *(tmp_path / "out").rglob("*key.pem")]
    assert len(keys) == 3
    assert {mode(key) for key in keys} == {0o600}
    assert mode(tmp_path / "out") == 0o700


def test_every_key_is_p256(authority: Authority) -> None:
    for pem in (authority.ca_pem, authority.renewal_cert_pem, authority.issue_server(["gw.lan"], NOW).cert_pem):
        key = x509.load_pem_x509_certificate(pem.encode()).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        assert isinstance(key.curve, ec.SECP256R1)


def test_an_authority_is_never_overwritten(authority: Authority) -> None:
    kept = {path: path.read_bytes() for path in authority.path.rglob("*") if path.is_file()}
    with pytest.raises(PkiError, match="never overwritten"):
        Authority.create(authority.path, permit_dns=(), permit_ip=(), now=NOW)
    (authority.path / "ca.pem").unlink()
    with pytest.raises(PkiError, match="not finished"):
        Authority.create(authority.path, permit_dns=(), permit_ip=(), now=NOW)
    for path, content in kept.items():
        assert path.name == "ca.pem" or path.read_bytes() == content


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    before = mode(tmp_path)
    with pytest.raises(PkiError, match=r"is not empty \(it holds notes\.txt\)"):
        Authority.create(tmp_path, permit_dns=(), permit_ip=(), now=NOW)
    assert mode(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": ""}, "no name for an authority"),
        ({"name": "x" * 33}, "no name for an authority"),
        ({"name": "a\nb"}, "no name for an authority"),
        ({"days": 0}, "cannot hold for 0 days"),
        ({"days": float("nan")}, "cannot hold for nan days"),
        ({"days": 1e9}, "cannot hold"),
        ({"permit_ip": ["10.0.0.1/8"]}, "is not a network"),
    ],
)
def test_an_authority_that_cannot_be_made_gets_a_sentence(
    tmp_path: Path, arguments: dict[str, object], sentence: str
) -> None:
    with pytest.raises(PkiError, match=sentence):
        Authority.create(tmp_path / "pki", now=NOW, **arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "pki" / "ca.pem").exists()


def test_a_file_in_the_place_of_the_folder_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "pki").write_text("")
    with pytest.raises(PkiError, match="cannot be used"):
        Authority.create(tmp_path / "pki", permit_dns=(), permit_ip=(), now=NOW)
    with pytest.raises(PkiError, match=r"cannot be read: Not a directory.* init-ca"):
        Authority.open(tmp_path / "pki")


def test_every_certificate_is_listed_with_what_it_is_for(authority: Authority) -> None:
    server = authority.issue_server(["gw.lan", "::1"], NOW + 1, days=30)
    client = authority.issue_client("node01", "10.0.0.1", NOW + 2, days=30)
    authority.revoke("node01", NOW + 3)
    records = authority.list(NOW)
    assert [(r.kind, r.name, r.addresses, r.revoked) for r in records[1:]] == [
        ("renewal", "renewal", [], False),
        ("server", "gw.lan", ["gw.lan", "::1"], False),
        ("client", "node01", ["10.0.0.1"], True),
    ]
    assert records[0].kind == "root"
    assert [r.serial for r in records[2:]] == [server.serial, client.serial]
    assert records[2].days_left == 30.0
    assert all(re.fullmatch("[0-9a-f]{40}", r.serial) for r in records)


def test_a_server_certificate_carries_each_host_once_and_a_common_name_that_is_none(authority: Authority) -> None:
    issued = authority.issue_server(["gw.lan", "GW.lan.", "10.0.0.1", "[::1]"], NOW)
    assert issued.addresses == ["gw.lan", "10.0.0.1", "::1"]
    subject = x509.load_pem_x509_certificate(issued.cert_pem.encode()).subject
    assert subject.rfc4514_string() == f"CN={SERVER_COMMON_NAME},O=llmgw"
    with pytest.raises(PkiError, match="--host"):
        authority.issue_server([], NOW)


def test_nothing_outlives_the_authority(authority: Authority) -> None:
    issued = authority.issue_client("node01", "10.0.0.1", NOW + 900 * DAY)
    assert issued.not_after == authority.root.not_valid_after_utc.timestamp()
    with pytest.raises(PkiError, match=r"expired on .* init-ca"):
        authority.issue_client("node01", "10.0.0.1", NOW + 1001 * DAY)


def test_renewing_gives_a_new_key_for_the_same_hosts_or_the_same_node(authority: Authority) -> None:
    server = authority.issue_server(["gw.lan", "10.0.0.1"], NOW)
    client = authority.issue_client("node01", "10.0.0.2", NOW)
    for name, before in (("gw.lan", server), ("10.0.0.1", server), ("node01", client), (client.serial, client)):
        after = authority.renew(name, NOW + DAY)
        assert (after.kind, after.name, after.addresses) == (before.kind, before.name, before.addresses)
        assert after.serial != before.serial
        assert after.key_pem != before.key_pem


def test_renewing_takes_the_latest_address_of_a_node(authority: Authority) -> None:
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"):
        authority.issue_client("node01", address, NOW)
    assert authority.renew("node01", NOW).addresses == ["10.0.0.4"]


def test_what_cannot_be_renewed_gets_a_sentence(authority: Authority) -> None:
    authority.issue_client("gw.lan", "10.0.0.1", NOW)
    authority.issue_server(["gw.lan"], NOW)
    with pytest.raises(PkiError, match="several kinds; say which with --kind client or server"):
        authority.renew("gw.lan", NOW)
    assert authority.renew("gw.lan", NOW, kind="server").kind == "server"
    with pytest.raises(PkiError, match="No certificate of 'node09' was issued here"):
        authority.renew("node09", NOW)
    authority.revoke("gw.lan", NOW)
    with pytest.raises(PkiError, match=r"gw\.lan was revoked.* issue-client gw\.lan --address 10\.0\.0\.1"):
        authority.renew("gw.lan", NOW, kind="client")


def test_the_root_key_may_be_away_while_nothing_is_signed(authority: Authority) -> None:
    authority.issue_client("node01", "10.0.0.1", NOW)
    (authority.path / "ca-key.pem").unlink()
    opened = Authority.open(authority.path)
    assert len(opened.list(NOW)) == 3
    with pytest.raises(PkiError, match=r"There is no authority's root key at .* bring the key back"):
        opened.issue_client("node02", "10.0.0.2", NOW)
    with pytest.raises(PkiError, match="root key"):
        opened.revoke("node01", NOW)


def test_a_foreign_root_key_signs_nothing(authority: Authority) -> None:
    (authority.path / "ca-key.pem").write_text(make_csr("node01")[0])
    with pytest.raises(PkiError, match="does not belong to"):
        authority.issue_client("node01", "10.0.0.1", NOW)


def test_a_damaged_record_hides_no_other_and_is_a_finding(authority: Authority) -> None:
    lost = authority.issue_client("node01", "10.0.0.1", NOW)
    authority.issue_client("node02", "10.0.0.2", NOW)
    record = authority.path / "issued" / f"{lost.serial}.pem"
    record.write_text("nonsense")
    assert [r.name for r in authority.list(NOW) if r.kind == "client"] == ["node02"]
    assert authority.revoke("node02", NOW).serials
    (finding,) = authority.findings()
    assert finding.where == str(record)


def test_issuing_and_revoking_at_once_loses_nothing(authority: Authority) -> None:
    names = [f"node{number:02}" for number in range(8)]
    for name in names:
        authority.issue_client(name, "10.0.0.1", NOW)
    program = (
        "import sys; from llmgw.pki.authority import Authority\n"
        f"Authority.open({str(authority.path)!r}).revoke(sys.argv[1], {NOW})"
    )

    def revoke(name: str) -> None:
        subprocess.run([sys.executable, "-c", program, name], check=True, timeout=150)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(revoke, names[:3]))
        for name in names[3:]:
            Authority.open(authority.path).revoke(name, NOW)
    assert {r.name for r in authority.list(NOW) if r.revoked} == set(names)


def test_a_write_that_fails_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(tmp_path / "file", "\udc00", 0o600)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):  # noqa: PT011 - which error depends on the file system
        write_atomic(tmp_path / "folder", "new", 0o600)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "old"


def test_a_certificate_of_somebody_else_is_not_overwritten(authority: Authority, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_files(authority.issue_client("node01", "10.0.0.1", NOW), out)
    check_folder(out, "client", "node01")
    with pytest.raises(PkiError, match=r"is the certificate of node01 \(client\), which is not overwritten"):
        check_folder(out, "client", "node02")
