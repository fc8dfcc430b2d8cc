"""What `ctl`'s tables are made of: times, GPU counts, findings. Text in, text out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from llmgw.cli.ctl.failures import plain

if TYPE_CHECKING:
    from llmgw.messages.agent import Progress
    from llmgw.messages.findings import Finding

NONE = "-"


def local_time(at: float | None) -> str:
    """Seconds since the epoch as local date and time; `time_zone()` names the zone."""
    return NONE if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def time_zone() -> str:
    """The zone that `local_time` speaks."""
    return time.strftime("%Z")


def listed(names: list[str]) -> str:
    """Names with commas, or a dash."""
    return plain(", ".join(names)) if names else NONE


def text(value: str | None) -> str:
    """One line, or a dash."""
    return plain(value) if value else NONE


def rate(gbps: float | None) -> str:
    """`400 Gb/s`, or a dash when it is not known."""
    return NONE if gbps is None else f"{gbps:g} Gb/s"


def size(count: int) -> str:
    """Bytes for people: `5.0 GiB`."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def progress(value: Progress) -> str:
    """`weights 50 % (5.0 GiB of 10.0 GiB)`; without a total no percentage is invented."""
    parts = [plain(value.what)]
    if value.done_bytes is not None and value.total_bytes:
        percent = min(100, 100 * value.done_bytes // value.total_bytes)
        parts.append(f"{percent} % ({size(value.done_bytes)} of {size(value.total_bytes)})")
    elif value.done_bytes is not None:
        parts.append(f"{size(value.done_bytes)} so far")
    if value.note:
        parts.append(plain(value.note))
    return " ".join(parts)


def print_findings(findings: list[Finding]) -> None:
    """Each finding: what is wrong and where, then why it matters and what to type."""
    for finding in findings:
        print(f"  {finding.severity.upper()}: {plain(finding.where)}: {plain(finding.what)}")
        if finding.why:
            print(f"    why it matters: {plain(finding.why)}")
        if finding.remedy:
            print(f"    what to do: {plain(finding.remedy)}")
