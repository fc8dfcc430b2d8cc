"""What `ctl`'s tables are made of: times, GPU counts, findings. Text in, text out."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from llmgw.cli.output import format_age, plain
from llmgw.config.sizes import size_words

if TYPE_CHECKING:
    from llmgw.messages.agent import Progress
    from llmgw.messages.findings import Finding

NONE = "-"
BAR_CELLS = 10


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


def progress(value: Progress) -> str:
    """`weights [#####-----] 50 % (5.0 GiB of 10.0 GiB, 120.0 MiB/s, 42s left)`; without a total there is no bar,
    no percentage and no time left, and the bytes are "so far".
    """
    parts = [plain(value.what)]
    if value.done_bytes is not None:
        rate = value.rate_bytes_s
        pace = f", {size_words(round(rate))}/s" if rate is not None else ""
        if value.total_bytes:
            # Rounded down: 100 % is said when all is there.
            share = min(1.0, value.done_bytes / value.total_bytes)
            bar = "#" * int(share * BAR_CELLS)
            left = f", {format_age(value.left_s)} left" if value.left_s is not None else ""
            amount = f"{size_words(value.done_bytes)} of {size_words(value.total_bytes)}"
            parts.append(f"[{bar.ljust(BAR_CELLS, '-')}] {int(share * 100)} % ({amount}{pace}{left})")
        else:
            parts.append(f"{size_words(value.done_bytes)} so far{pace}")
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
