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


class TableVersion(msgspec.Struct, frozen=True, order=True):
    """(server epoch, number). Within an epoch a higher number is newer; a new epoch always replaces."""

    epoch: str
    number: int


class RouteEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A host:port that requests may be sent to.

    `id` is the replica id, or `static:MODEL:N` for a static endpoint. `base_path` is put before `/v1/…` of the
    request (static endpoints behind a prefix). `api_key`, when set, is sent as `Authorization: Bearer …` in
    the client's stead. `upstream_model`, when set, replaces the model name in the body (static endpoints that
    know the model by another name). `concurrency` is how many requests a router may have outstanding there at a
    time; None sets no limit.
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

    def __repr__(self) -> str:
        return shown_without(self, "api_key")


class ModelRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the routers know of a model. `reason` says why nothing is ready, for the 503.

    `first_byte_timeout_s` is for one engine's answer to begin, `chunk_timeout_s` for silence within it, and
    `request_timeout_s` for the whole of a request, all tries included. `prefix_affinity` sends conversations
    back to the endpoint that had them.
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
    its replacement has them. `draining`: it accepts no more, and ends when its requests have. `settings` is what
    it was told with `--settings`.
    """

    router_id: str
    pid: int
    software_version: str
    listen: str
    table: RouteTable | None = None
    draining: bool = False
    settings: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
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


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, tag="telemetry"):
    """Sent every half second, and at once when a table was applied or an endpoint became idle.

    `acked` is the version this router routes by now. `in_flight` counts requests by endpoint id, endpoints that
    are no longer in the table included; an id that is missing has none. `alive` names endpoints that gave
    body bytes or answered since the last frame; `refused` those whose connection failed. `dropped` counts
    outcomes that were thrown away, oldest first, because nobody read. `breakers` holds the state (`open`,
    `half_open`) of each endpoint whose breaker is not closed. `draining` is as in `Hello`.
    """

    acked: TableVersion | None = None
    in_flight: dict[str, int] = {}
    alive: list[str] = []
    refused: list[str] = []
    outcomes: list[Outcome] = []
    dropped: int = 0
    breakers: dict[str, str] = {}
    draining: bool = False


class KeyShare(msgspec.Struct, frozen=True, kw_only=True):
    """One router's part of a key's limits; None: no limit."""

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    concurrency: int | None = None


class RouterShare(msgspec.Struct, frozen=True, kw_only=True, tag="share"):
    """This router is one of so many: of the limits that hold for all together it has that part.

    `endpoints` (concurrency by endpoint id) and `keys` (by key id) are parts that are not equal, since the
    routers' load is not; what is missing there is divided by `workers`.
    """

    workers: int
    endpoints: dict[str, int] = {}
    keys: dict[str, KeyShare] = {}


class StopRouter(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """Accept no more, finish what runs for at most `drain_s`, then exit."""

    drain_s: float = 0.0


FromServer = RouteTable | RouterShare | StopRouter
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
