"""One finding: what is wrong, where, why it matters, and what to type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

Severity = Literal["error", "warning", "info"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
"""The worst first."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that needs a person.

    `check` is the stable name of the check that found it (`adapter-missing`), `where` names the thing
    (`node01 mlx5_0`), `what` is one sentence, `why` says why it matters, `remedy` is what to type or do.
    """

    check: str
    severity: Severity
    where: str
    what: str
    why: str = ""
    remedy: str = ""


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Errors, then warnings, then notes; in each as they were."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
