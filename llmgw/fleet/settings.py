"""The numbers that the core decides by, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Limits and delays. Defaults are those of `server.yaml`."""

    lost_after_s: float = 15.0
    unreachable_limit_s: float = 300.0
    reconnect_max_s: float = 30.0
    """The longest that an agent waits between two attempts to connect (its `reconnect_max`)."""
    settle_s: float = 45.0
    drain_grace_s: float = 60.0
    probe_timeout_s: float = 5.0
    stall_after_s: float = 120.0
    """Work without progress for this long: out of the rotation."""
    stalled_limit_s: float = 600.0
    """Out of the rotation and no probe answered for this long (or the model's first-byte deadline): failed."""
    probe_interval_s: float = 60.0
    """How often an idle replica is asked for one token."""
    port_down_suspend_s: float = 10.0
    """The fabric down under a replica of several nodes for this long: out of the rotation."""
    port_down_fail_s: float = 30.0
    """And for this long: failed."""
    commanded_timeout_s: float = 60.0
    """How long an agent that speaks may take to report a shard it was told to start."""
    backoff_first_s: float = 10.0
    backoff_max_s: float = 300.0
    backoff_reset_s: float = 300.0
    """A replica that was ready for this long has cleared its profile's failures."""
    suspect_window_s: float = 600.0
    """Failures on a node within this long count together; it is suspect for as long after the last of them."""
