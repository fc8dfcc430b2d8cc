"""One measurement: what a suite found of one target in one round."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Measurement:
    """`None` is what this suite does not measure. An operation is a request, or a chunk of a stream."""

    suite: str = ""
    target: str = ""
    round: int = 0
    operations: int = 0
    """As the engines counted them."""
    cpu_us: float | None = None
    """CPU time of the target's processes an operation; `system_us` of it in the kernel."""
    system_us: float | None = None
    per_s: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    kib_per_stream: float | None = None
    errors: int = 0
    """Connections that broke, answers other than 200, and streams that were not whole."""
    non200: int = 0
    short: int = 0
    first_bad_status: int = 0
    seen: int = 0
    """Clients that left and whose engine's connection was closed; `missed` when that never came."""
    missed: int = 0
    max_ms: float | None = None
    failed: str = ""
    """A sentence, when there is no measurement."""

    def told(self) -> dict[str, Any]:
        """As JSON has it, without what was not measured."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}
