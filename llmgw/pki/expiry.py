"""How long certificates still hold: findings for people, ends for metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509

from llmgw.messages.findings import Finding, Severity
from llmgw.pki.certificates import DAY_S, alternative_names, common_name, day, kind_of
from llmgw.pki.errors import PkiError
from llmgw.pki.files import load_certificates

# Agents renew at half a life, so a third left means that renewing has failed for a while.
WARN_S, WARN_SHARE = 30 * DAY_S, 1 / 3
ERROR_S, ERROR_SHARE = 7 * DAY_S, 1 / 10


@dataclass(frozen=True)
class CertificateEnd:
    """When a certificate ends, in seconds since the epoch. `kind` is the caller's word for what it is for."""

    name: str
    kind: str
    at: float


def certificate_end(path: str | Path, kind: str) -> CertificateEnd:
    """When the first certificate in the file ends. Raises PkiError."""
    certificate = load_certificates(Path(path), "certificate", "")[0]
    return CertificateEnd(_name(certificate), kind, certificate.not_valid_after_utc.timestamp())


def certificate_findings(paths: Iterable[str | Path], now: float) -> list[Finding]:
    """What is wrong, or soon will be, with the certificates in these files, every one of each chain."""
    findings: list[Finding] = []
    for path in paths:
        try:
            chain = load_certificates(Path(path), "certificate", "Copy it from the authority's host again.")
        except PkiError as error:
            findings.append(
                Finding(
                    check="certificate-unreadable",
                    severity="error",
                    where=str(path),
                    what=str(error),
                    why="Without it this side cannot prove who it is.",
                    remedy="Copy the file from the authority's host, and check its owner and mode.",
                )
            )
            continue
        found = (_finding(str(path), certificate, now) for certificate in chain)
        findings += [finding for finding in found if finding is not None]
    return findings


def _finding(path: str, certificate: x509.Certificate, now: float) -> Finding | None:
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    left, life = end - now, end - begin
    name = _name(certificate)
    severity: Severity = "error"
    if now < begin:
        check, what = "certificate-not-yet-valid", f"the certificate of {name} holds from {day(begin)} on"
        return Finding(
            check=check,
            severity=severity,
            where=path,
            what=f"By this host's clock ({day(now)}) {what}.",
            why="Every peer with such a clock refuses it.",
            remedy="Set the clock: timedatectl status",
        )
    if left <= 0:
        check, what = "certificate-expired", f"The certificate of {name} expired on {day(end)}."
    elif left < min(WARN_S, life * WARN_SHARE):
        check, what = (
            "certificate-expiring",
            f"The certificate of {name} expires on {day(end)}, in {_days(left)}.",
        )
        if left >= min(ERROR_S, life * ERROR_SHARE):
            severity = "warning"
    else:
        return None
    return Finding(
        check=check,
        severity=severity,
        where=path,
        what=what,
        why="Peers refuse an expired certificate, and agents are cut off.",
        remedy=_remedy(certificate, name),
    )


def _remedy(certificate: x509.Certificate, name: str) -> str:
    return {
        "client": f"`llmgw ctl cert renew {name}` (an agent that is connected renews by itself: see its log)",
        "server": f"`llmgw ctl cert renew {name}`",
        "renewal": "`llmgw ctl cert renew renewal`, and copy renewal.pem and renewal-key.pem to the server",
        "root": "`llmgw ctl cert init-ca --pki NEW`, and enrol every node and server again",
    }.get(_kind(certificate), "replace the certificate")


def _name(certificate: x509.Certificate) -> str:
    """The first host of a server, the common name of everything else."""
    hosts = alternative_names(certificate) if _kind(certificate) in ("server", "foreign") else []
    return hosts[0] if hosts else common_name(certificate.subject) or "?"


def _kind(certificate: x509.Certificate) -> str:
    try:
        return kind_of(certificate)
    except PkiError:
        return "foreign"


def _days(seconds: float) -> str:
    days = seconds / DAY_S
    return f"{days:.0f} days" if days >= 2 else f"{seconds / 3600:.0f} hours"
