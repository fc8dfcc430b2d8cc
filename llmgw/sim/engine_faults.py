"""The ways in which the simulated engine can be made to fail, at its start or while it runs.

Each is a failure that real engines were seen to have. Counts are of generation requests (the readiness probe is
one), from the moment the fault was set.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields
from typing import Any, NoReturn

CORE_DEAD_MODES = ("hang", "error")


class FaultError(Exception):
    """A request that the engine answers with 500. The text is vLLM's."""


class ResetFault(Exception):
    """A request whose connection is reset, as the kernel does for a process that dies."""


@dataclass
class Faults:
    """The faults in force, and the speeds, which a test may change in the same way. None is off."""

    tokens_per_s: float = 50.0
    """Of each stream."""
    prefill_tokens_per_s: float = 5000.0
    slow_first_token_s: float = 0.0
    """Added to each request's prefill."""
    crash_after: int | None = None
    """Answer this many requests; the process dies without a word to the client when the next one arrives."""
    core_dead: bool = False
    """`/health` and `/v1/models` go on saying 200, and nothing is generated any more."""
    core_dead_after: int | None = None
    """The same from the request after this many on."""
    core_dead_mode: str = "hang"
    """What requests get then: `hang` (nothing at all) or `error` (500, and an error in running streams)."""
    stall_after_tokens: int | None = None
    """Streams stop after this many tokens and stay open."""
    error_500_after: int | None = None
    """Answer this many requests, and the later ones with 500."""
    error_rate: float = 0.0
    """The share of requests that gets a 500, spread evenly: 0.25 is every fourth."""
    reset_rate: float = 0.0
    """The share of requests whose connection is reset in the middle of the answer's head."""
    reset_after_tokens: int | None = None
    """Connections are reset after so many tokens: in the middle of a stream."""
    ignore_sigterm: bool = False
    metrics_silent: bool = False
    """`/metrics` is answered by nothing at all; everything else works."""

    def __post_init__(self) -> None:
        self._seen = 0
        self._since: dict[str, int] = {}
        self._debts = {"error_rate": 0.0, "reset_rate": 0.0}

    def change(self, values: dict[str, Any]) -> None:
        """Switch faults on or off by name, all or none. Raises ValueError with a sentence."""
        for name, value in values.items():
            problem = _problem(name, value)
            if problem:
                raise ValueError(problem)
        for name, value in values.items():
            setattr(self, name, value)
            self._since[name] = self._seen

    def current(self) -> dict[str, Any]:
        """Every fault and speed by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def on_request(self) -> None:
        """Count a generation request and do what is due. Raises FaultError or ResetFault; may end the process."""
        self._seen += 1
        if self._due("crash_after"):
            die("the process was told to crash after so many requests")
        if self._due("core_dead_after"):
            self.core_dead = True
        if self.core_dead and self.core_dead_mode == "error":
            raise FaultError("EngineCore encountered an issue. See stack trace (above) for the root cause.")
        if self._due("error_500_after"):
            raise FaultError("Internal Server Error")
        if self._drawn("error_rate"):
            raise FaultError("Internal Server Error")
        if self._drawn("reset_rate"):
            raise ResetFault

    def _drawn(self, rate: str) -> bool:
        """Whether this request is one of the share, spread evenly."""
        self._debts[rate] += getattr(self, rate)
        if self._debts[rate] < 1 - 1e-9:
            return False
        self._debts[rate] -= 1
        return True

    def _due(self, name: str) -> bool:
        allowed = getattr(self, name)
        return allowed is not None and self._seen - self._since.get(name, 0) > allowed


def die(why: str) -> NoReturn:
    """End at once, as a process does that was killed: no cleaning up, no answer to anyone."""
    print(f"EngineCore encountered a fatal error: {why}", file=sys.stderr, flush=True)
    os._exit(1)


def _problem(name: str, value: Any) -> str | None:
    kinds = {field.name: str(field.type) for field in fields(Faults)}
    kind = kinds.get(name)
    if kind is None:
        return f"there is no fault {name!r}; there are {', '.join(kinds)}"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "bool" and not isinstance(value, bool):
        return f"{name} is true or false, not {value!r}"
    if kind == "int | None" and not (value is None or (number and int(value) == value and value >= 0)):
        return f"{name} is a count from 0, or null for off, not {value!r}"
    if kind == "str" and value not in CORE_DEAD_MODES:
        return f"{name} is {' or '.join(CORE_DEAD_MODES)}, not {value!r}"
    if kind == "float":
        if not (number and 0 <= value < 1e9):
            return f"{name} is a number from 0, not {value!r}"
        if name.endswith("_per_s") and not value:
            return f"{name} is above 0; to stop a stream, set stall_after_tokens"
        if name.endswith("_rate") and value > 1:
            return f"{name} is a share from 0 to 1, not {value!r}"
    return None
