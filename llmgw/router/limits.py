"""Every limit of the data plane, by name, with its unit last."""

from __future__ import annotations

from dataclasses import dataclass, replace

MIB = 1024 * 1024

# A head of 64 KiB holds any cookie jar; more is a mistake or an attack. The same for an engine's answer.
HEAD_BYTES_MAX = 64 * 1024
# Heads of requests that are known when they come again, and of engines' answers. A client has a few, an engine
# some each second (its Date).
KNOWN_HEADS_MAX = 1024
# Requests that one read may bring at once; served strictly one after the other, further ones are refused.
PIPELINED_MAX = 64
# Bytes kept of what a client sends while its request is being answered.
EARLY_BYTES_MAX = 64 * 1024
# After a refusal the rest of the request is read and dropped for so long, so that the client sees the answer:
# a body that is too large takes its time, everything else has none to claim.
LINGER_S = 30.0
SHORT_LINGER_S = 2.0
# A TLS handshake must be over by then.
HANDSHAKE_S = 10.0
# So many clients beyond `connections_max` get a 503; further ones are just cut.
_OVERFLOW_CONNECTIONS_MAX = 256
# Descriptors that are neither a client's nor its engine's: listeners, control, files, idle connections.
_FILES_RESERVED = 64
# A draining router keeps connections without a request for so long: one may be on the way.
DRAIN_IDLE_S = 1.0
# Below uvicorn's 5 s, which vLLM and SGLang leave as it is; an engine that names its limit is believed.
UPSTREAM_IDLE_S = 4.0
UPSTREAM_IDLE_CONNECTIONS_MAX = 256
# Engines that got a request and died on it; a third is never tried (invariant 8).
DEATHS_MAX = 2
# All attempts together: a refused connection costs little and proves that nothing was sent, but not for ever.
ATTEMPTS_MAX = 5
SWEEP_S = 0.25
TELEMETRY_S = 0.5
# Idle notices for endpoints that are still routed to are worth less than their cost at full load.
IDLE_NOTICE_S = 0.1
OUTCOMES_MAX = 4096
# A batch of usage at most this often: the server writes each to its disk.
USAGE_S = 0.4
# A router that ends waits so long for the last of it to be acknowledged; what was not then stays in a file.
LAST_USAGE_S = 5.0
USAGE_ROWS_MAX = 5_000
# While nobody takes it: beyond so many rows hours are put together; what is left is bounded by keys times models.
LEDGER_ROWS_MAX = 50_000


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an operator may set. Times in seconds, sizes in bytes."""

    workers: int = 1
    """Of so many processes this one is one; what is held by all together is shared equally."""
    body_bytes_max: int = 64 * MIB
    """A larger request body is answered with 413."""
    connect_timeout_s: float = 5.0
    connections_max: int = 10_000
    header_timeout_s: float = 30.0
    """A request's head must be whole by then."""
    body_idle_timeout_s: float = 60.0
    """Longest silence within a request body."""
    idle_timeout_s: float = 75.0
    """A connection without a request is kept so long: above nginx's and the cloud balancers' 60 s."""
    stall_timeout_s: float = 300.0
    """A client that takes no byte of its answer for so long is cut, since it holds an engine's slot."""
    drain_s: float = 30.0
    ping_s: float = 5.0
    """Streams of models with `pings` get a comment so often until their first byte."""
    files_max: int | None = None
    """Descriptors that this process may open; None: as many as it likes."""

    @property
    def overflow_connections_max(self) -> int:
        """So many clients beyond `connections_max` are told so; the others are just cut."""
        if self.files_max is None:
            return _OVERFLOW_CONNECTIONS_MAX
        return min(_OVERFLOW_CONNECTIONS_MAX, self.files_max // 8)

    @property
    def files_needed(self) -> int:
        """Descriptors for `connections_max` clients, each with a connection to an engine, and for the rest."""
        return 2 * self.connections_max + _OVERFLOW_CONNECTIONS_MAX + _FILES_RESERVED

    @property
    def bodies_bytes_max(self) -> int:
        """All request bodies held at a time; beyond it new ones are answered with 503."""
        together = max(1024 * MIB, 4 * self.body_bytes_max)
        return max(self.body_bytes_max, together // self.workers)

    def share(self, workers: int) -> Limits:
        """The limits of one of so many workers, of limits that are for all of them.

        No more clients than there are descriptors for: one that has none left can reach no engine either.
        """
        connections = -(-self.connections_max // workers)
        if self.files_max is not None:
            left = self.files_max - self.overflow_connections_max - _FILES_RESERVED
            connections = min(connections, left // 2)
        return replace(self, workers=workers, connections_max=max(1, connections))
