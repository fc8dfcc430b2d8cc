"""What the control process and the routers say to each other over a Unix socket.

Frames are a 4-byte big-endian length and MessagePack of one of the tagged structs below. The control process
connects to each router's socket; the router greets with `Hello`, which carries the table that it routes by, so
that a restarted control process imports it before it changes anything.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from llmgw.messages.secrets import shown_without

FRAME_BYTES_MAX = 64 * 1024 * 1024
FIGURES_STALE_S = 15.0
"""What an engine said of its load longer ago than that says nothing of it."""


AnthropicWay = Literal["auto", "engine", "translate"]
"""Requests of Anthropic's Messages API: as they are where the engine serves it and else translated; or always the
one or the other."""


class TableVersion(msgspec.Struct, frozen=True, order=True):
    """(server epoch, number). Within an epoch a higher number is newer; a new epoch always replaces."""

    epoch: str
    number: int


class RouteEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A host:port that requests may be sent to.

    `id` is the replica id, or `static:MODEL:N` for a static endpoint. `base_path` is put before `/v1/…` of the
    request (static endpoints behind a prefix). `api_key`, when set, is sent as `Authorization: Bearer …` in
    the client's stead. `upstream_model`, when set, replaces the model name in the body (static endpoints that
    know the model by another name). `concurrency` is how many requests all routers together may have outstanding
    there at a time; None sets no limit. `weight` is the share of requests that it gets against the model's other
    endpoints; 0: none while another can take them. `ask_usage`: its streams are asked for their usage where the
    client did not ask.
    """

    id: str
    host: str
    port: int
    node: str | None = None
    tls: bool = False
    base_path: str = ""
    api_key: str | None = None
    upstream_model: str | None = None
    concurrency: int | None = None
    weight: float = 1.0
    ask_usage: bool = True

    def __repr__(self) -> str:
        return shown_without(self, "api_key")


class ModelRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the routers know of a model. `reason` says why nothing is ready, for the 503.

    `first_byte_timeout_s` is for one engine's answer to begin, `chunk_timeout_s` for silence within it, and
    `request_timeout_s` for the whole of a request, all tries included. `prefix_affinity` sends conversations
    back to the endpoint that had them. `kinds` are the paths below `/v1/` that the model is for, `context_length`
    how many tokens prompt and answer may have together, None where nobody knows.

    So many requests may wait for an endpoint to have room, of all routers together, with so many bytes of bodies,
    each for `queue_timeout_s` at the longest. `pings`: streams get comments while they wait for their first byte.
    """

    name: str
    aliases: list[str] = []
    endpoints: list[RouteEndpoint] = []
    reason: str = ""
    retry_after_s: int = 5
    created_s: int = 0
    first_byte_timeout_s: float = 600.0
    chunk_timeout_s: float = 300.0
    request_timeout_s: float = 3600.0
    prefix_affinity: bool = False
    anthropic: AnthropicWay = "auto"
    kinds: list[str] = []
    context_length: int | None = None
    queue_requests_max: int = 1000
    queue_bytes_max: int = 256 * 1024 * 1024
    queue_timeout_s: float = 30.0
    pings: bool = False


class KeyRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A key that clients of the model API may use.

    `hash` is the SHA-256 of the whole key: routers never hold a key itself. `models` are the only ones it may ask
    for, None: all. Limits hold for all routers together; None sets none. Requests of a higher `priority` leave a
    queue first. `expires_at_s` is in seconds since 1970.
    """

    id: str
    hash: bytes
    models: list[str] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None
    priority: int = 0
    expires_at_s: float | None = None


class RouteTable(msgspec.Struct, frozen=True, kw_only=True, tag="table"):
    """The whole table. A router replaces the one it has, keeps this one on disk (0600), and acknowledges it.

    Without `keys_required` whoever reaches the gateway may use it, and a key that a client gives is not read.
    """

    version: TableVersion
    models: list[ModelRoute] = []
    keys: list[KeyRoute] = []
    keys_required: bool = False


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """A router's first frame on every connection.

    The sockets that it listens on come with the frame's first byte (SCM_RIGHTS, unix(7)), so that whoever starts
    its replacement has them. `draining`: it accepts no more, and ends when its requests have. It goes
    by having one of `workers` parts of what is shared, and of the concurrency of some endpoints (by id) `parts`.
    `settings` is what it was told with `--settings`.
    """

    router_id: str
    pid: int
    software_version: str
    listen: str
    table: RouteTable | None = None
    draining: bool = False
    workers: int = 1
    parts: dict[str, int] = {}
    settings: str = ""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """One finished request. `status` is what the client got; 499 is a client that left. `retry_refused`: it
    failed although another engine could have been asked, since the model's retry budget was spent.

    `key` is the id of the key that it came with. Tokens are None where nothing is known of them, and `estimated`
    where the router counted them itself, since the engine's own count never came. `queued_s` is how long it
    waited for an engine to have room."""

    model: str
    endpoint: str | None
    status: int
    retries: int = 0
    first_byte_s: float | None = None
    total_s: float = 0.0
    stream: bool = False
    error: str | None = None
    retry_refused: bool = False
    key: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    estimated: bool = False
    queued_s: float = 0.0


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What ended within an hour for a key and a model: `hour_s` is its start in seconds since 1970.

    `errors` are answers of 400 and above (a client that left is none), `prompt_tokens` include the cached ones,
    and `estimated` are requests whose tokens no engine told.
    """

    hour_s: int
    key: str
    model: str
    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0


class UsageBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a router's usage, sent until it is acknowledged by its number. `ledger` is the router's count
    since its start; numbers begin at 1, and the same number always means the same rows."""

    ledger: str
    number: int
    rows: list[UsageRow]


class KeyDemand(msgspec.Struct, frozen=True, kw_only=True):
    """What a router had to do for a key since its last telemetry: requests that came with it, the refused ones
    included, and how many of its requests run now. What is left of its parts of the key's rates is None where
    there is no such limit, and below 0 where it is owed."""

    requests: int = 0
    running: int = 0
    requests_left: float | None = None
    tokens_left: float | None = None


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, tag="telemetry"):
    """Sent every half second, and at once when a table was applied or an endpoint became idle.

    `acked` is the version this router routes by now. `in_flight` counts requests by endpoint id, endpoints that
    are no longer in the table included; an id that is missing has none. `alive` names endpoints that gave
    body bytes or answered since the last frame; `refused` those whose connection failed. `dropped` counts
    outcomes that were thrown away, oldest first, because nobody read. `breakers` holds the state (`open`,
    `half_open`) of each endpoint whose breaker is not closed. `draining` is as in `Hello`. `queued` counts the
    requests that wait for an endpoint to have room, by model. `share` is the number of the last `RouterShare` of
    this connection, which held when `in_flight` was counted. `usage` is the oldest that is not acknowledged yet,
    once on each connection; unlike outcomes it is kept for as long as nobody reads. `keys` has the demand of each
    key with limits, by its id; one that is missing was not used, runs nothing, and has its parts whole. Since the
    last frame, a collector of traces took `spans_sent`, and `spans_dropped` were lost.
    """

    acked: TableVersion | None = None
    in_flight: dict[str, int] = {}
    alive: list[str] = []
    refused: list[str] = []
    outcomes: list[Outcome] = []
    dropped: int = 0
    breakers: dict[str, str] = {}
    draining: bool = False
    queued: dict[str, int] = {}
    share: int = 0
    usage: UsageBatch | None = None
    keys: dict[str, KeyDemand] = {}
    spans_sent: int = 0
    spans_dropped: int = 0


class KeyShare(msgspec.Struct, frozen=True, kw_only=True):
    """One router's part of a key's limits; None: no limit. `…_moved` is what came from other routers' parts in
    all since the router's greeting, or went to them (below 0)."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    concurrency: int | None = None
    requests_moved: float = 0.0
    tokens_moved: float = 0.0


class RouterShare(msgspec.Struct, frozen=True, kw_only=True, tag="share"):
    """This router is one of so many: of the limits that hold for all together it has that part.

    `workers` of 0 leaves what the router was told at its start. `number` is acknowledged in telemetry (`share`).
    `endpoints` (concurrency by endpoint id) and `keys` (by key id) are parts that are not equal, since the
    routers' load is not; what is missing there is divided by `workers`.
    """

    workers: int
    number: int = 0
    endpoints: dict[str, int] = {}
    keys: dict[str, KeyShare] = {}


class EndpointFigure(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint's engine said of its load `age_s` before this was sent. None: it does not tell.

    `running` and `waiting` count requests, whoever sent them; `cache_used` is a share of its KV cache. The others
    are of the last half minute at most: `prefix_hits` is the share of prompt tokens that its prefix cache had,
    and `prompt_tokens_per_s` include those.
    """

    running: int | None = None
    waiting: int | None = None
    cache_used: float | None = None
    prefix_hits: float | None = None
    prompt_tokens_per_s: float | None = None
    tokens_per_s: float | None = None
    preemptions_per_s: float | None = None
    age_s: float = 0.0


class EndpointFigures(msgspec.Struct, frozen=True, kw_only=True, tag="figures"):
    """All endpoints' figures that are not stale, by endpoint id. At most one a second, and only to routers of the
    server's own version."""

    figures: dict[str, EndpointFigure] = {}


class StopRouter(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Accept no more, finish what runs for at most `drain_s`, then exit."""

    drain_s: float = 0.0


class UsageStored(msgspec.Struct, frozen=True, kw_only=True, tag="usage_stored"):
    """The batch is on the server's disk; the router forgets it and sends the next."""

    ledger: str
    number: int


FromServer = RouteTable | RouterShare | EndpointFigures | StopRouter | UsageStored
FromRouter = Hello | Telemetry

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "server_error",
    "service_unavailable",
]
