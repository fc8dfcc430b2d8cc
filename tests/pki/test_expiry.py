"""Certificates that end soon are findings with the command to type, and a number for the metric."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw.pki.authority import Authority
from llmgw.pki.errors import PkiError
from llmgw.pki.expiry import certificate_end, certificate_findings
from llmgw.pki.handout import write_files
from llmgw.pki.peer import Peer
from llmgw.pki.renewal import Renewer, make_csr
from tests.pki.handshakes import DAY, NOW


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "pki", permit_dns=(), permit_ip=(), now=NOW, days=3650)


@pytest.fixture
def cert(authority: Authority, tmp_path: Path) -> str:
    return write_files(authority.issue_client("node01", "10.0.0.1", NOW, days=365), tmp_path / "node01")["cert"]


@pytest.mark.parametrize(
    ("age_days", "found"),
    [
        (-1, ("certificate-not-yet-valid", "error")),
        (0, None),
        (334, None),
        (336, ("certificate-expiring", "warning")),
        (359, ("certificate-expiring", "error")),
        (365, ("certificate-expired", "error")),
        (1000, ("certificate-expired", "error")),
    ],
)
def test_a_certificate_is_found_by_what_is_left_of_it(
    cert: str, age_days: float, found: tuple[str, str] | None
) -> None:
    findings = certificate_findings([cert], NOW + age_days * DAY)
    assert [(finding.check, finding.severity) for finding in findings] == ([found] if found else [])
    for finding in findings:
        assert finding.where == cert
        assert "node01" in finding.what
        assert finding.remedy


def test_a_short_lived_certificate_is_not_expiring_from_its_first_day(
    authority: Authority, tmp_path: Path
) -> None:
    cert = write_files(authority.issue_client("node01", "10.0.0.1", NOW, days=3), tmp_path / "n")["cert"]
    assert certificate_findings([cert], NOW + 1 * DAY) == []
    (finding,) = certificate_findings([cert], NOW + 2.2 * DAY)
    assert finding.severity == "warning"
    assert "in 19 hours" in finding.what


def test_a_server_is_told_which_name_to_renew(authority: Authority, tmp_path: Path) -> None:
    cert = write_files(authority.issue_server(["gw.lan"], NOW, days=100), tmp_path / "gw")["cert"]
    (finding,) = certificate_findings([cert], NOW + 99 * DAY)
    assert finding.remedy == "`llmgw ctl cert renew gw.lan`"


def test_every_certificate_of_a_chain_is_looked_at(authority: Authority, tmp_path: Path) -> None:
    peer = Peer("node01", "1".zfill(40), "1".zfill(40), None, 4e9, "root", None, 0.0)
    renewer = Renewer(authority.renewal_cert_pem, authority.renewal_key_pem)
    path = tmp_path / "agent.pem"
    path.write_text(renewer.renew(make_csr("node01")[1], peer, NOW + 3640 * DAY))
    findings = certificate_findings([path, authority.path / "ca.pem"], NOW + 3648 * DAY)
    assert len(findings) == 3
    assert "renew renewal" in findings[1].remedy
    assert "init-ca" in findings[2].remedy


def test_a_file_that_cannot_be_read_is_a_finding_beside_the_others(cert: str, tmp_path: Path) -> None:
    (tmp_path / "bad.pem").write_text("nonsense")
    findings = certificate_findings([tmp_path / "bad.pem", tmp_path / "none.pem", cert], NOW + 400 * DAY)
    assert [finding.check for finding in findings] == [
        "certificate-unreadable",
        "certificate-unreadable",
        "certificate-expired",
    ]


def test_the_end_of_a_certificate_comes_with_the_name_that_people_know_it_by(
    authority: Authority, cert: str, tmp_path: Path
) -> None:
    end = certificate_end(cert, "client")
    assert (end.name, end.kind, end.at) == ("node01", "client", pytest.approx(NOW + 365 * DAY, abs=1))
    server = write_files(authority.issue_server(["gw.lan", "10.0.0.1"], NOW), tmp_path / "gw")["cert"]
    assert certificate_end(server, "server").name == "gw.lan"
    with pytest.raises(PkiError, match="There is no certificate at"):
        certificate_end(tmp_path / "none.pem", "server")
