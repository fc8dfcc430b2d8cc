"""How much needs a person. The same of a server and of an agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from llmgw.messages.findings import Finding
from llmgw.metrics.family import LABEL_CHARS_MAX, OTHER, Family

CHECKS_MAX = 200
"""Distinct names of checks; agents send them, and what goes beyond is counted together."""

FINDINGS = Family(
    "llmgw_findings",
    "gauge",
    "What needs a person; llmgw ctl status says where and what to do",
    ("check", "severity"),
    f"3 × {CHECKS_MAX} checks",
)
FAMILIES = (FINDINGS,)


def finding_text(findings: Iterable[Finding]) -> str:
    """Findings by check and severity."""
    counts: Counter[tuple[str, str]] = Counter()
    checks: set[str] = set()
    for finding in findings:
        check = finding.check[:LABEL_CHARS_MAX]
        if check not in checks and len(checks) >= CHECKS_MAX:
            check = OTHER
        checks.add(check)
        counts[check, finding.severity] += 1
    return FINDINGS.text(sorted(counts.items()))
