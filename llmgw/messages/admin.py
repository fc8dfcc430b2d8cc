"""What the admin API answers, and so what `ctl -o json` prints: stable shapes, only ever added to.

Times are seconds since the epoch (UTC), ages and durations seconds, sizes as their names say.
"""

from __future__ import annotations

from typing import Any

import msgspec

from llmgw.messages.agent import FabricOffer, Gpu, Port, Progress
from llmgw.messages.findings import Finding
from llmgw.messages.routes import EndpointFigure


class ShardView(msgspec.Struct, frozen=True, kw_only=True):
    """One shard of a replica as the control plane sees it."""

    shard_id: str
    rank: int
    node: str
    gpus: list[int]
    phase: str
    """`commanded` (sent, not yet held), or the agent's own phase, or `lost`."""
    reason: str | None = None
    exit_code: int | None = None
    engine_pid: int | None = None
    output_tail: list[str] = []
    progress: Progress | None = None


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """One replica. `state` is starting, ready, draining, stopping, failed or adopting."""

    replica_id: str
    model: str
    profile: str
    engine: str
    state: str
    since: float
    created_at: float
    fabric: str | None = None
    nodes: list[str]
    endpoint: str | None = None
    """`host:port` of the leader, once known."""
    routed: bool = False
    outdated: bool = False
    """True when the catalog's profile has changed since this replica was started."""
    replaces: str | None = None
    reason: str | None = None
    in_flight: int = 0
    figures: EndpointFigure | None = None
    """What its engine says of its load, whoever sent the requests; None while that is not known."""
    shards: list[ShardView]


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node. `state` is ready, unreachable, lost or unknown (not seen since the server started)."""

    node_id: str
    state: str
    reason: str | None = None
    address: str | None = None
    version: str | None = None
    cordoned: bool = False
    draining: bool = False
    drain_left: list[str] = []
    """While draining: what cannot be moved, a sentence each."""
    drain_waits: list[str] = []
    """While draining: what else is still there, and what it waits for, a sentence each."""
    last_heard_s: float | None = None
    """Seconds since the agent's last message."""
    registered_s: float | None = None
    """Seconds since the agent registered: each start of one does, and so does one whose session ended."""
    certificate_expires_at: float | None = None
    gpus: list[Gpu] = []
    gpus_in_use: list[int] = []
    fabrics: list[FabricOffer] = []
    ports: list[Port] = []
    port_fabrics: dict[str, str] = {}
    """Port (`mlx5_0:1`) → the fabric that it carries, or carried last before it went down."""
    engines: list[str] = []
    replicas: list[str] = []
    findings: list[Finding] = []


class NodeRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """When a node of that name was removed last; None when none was. Certificates of before then are refused."""

    node_id: str
    removed_at: float | None = None


class ProfileView(msgspec.Struct, frozen=True, kw_only=True):
    """One profile: how many replicas are wanted and in which state they are."""

    name: str
    engine: str
    nodes: int
    gpus_per_node: int
    weight: float = 1.0
    """The share of the model's requests that each replica gets, against those of its other profiles."""
    wanted: int
    ready: int = 0
    starting: int = 0
    failed: int = 0
    reason: str | None = None
    """Why fewer than wanted are ready, or that some must be replaced and why they are not yet; else None."""


class ModelView(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the catalog."""

    name: str
    aliases: list[str] = []
    source: str = ""
    task: str = "chat"
    static_endpoints: list[str] = []
    profiles: list[ProfileView] = []
    endpoints_ready: int = 0
    queued: int = 0
    """Requests that wait for one of its engines to have room."""


class FilterTally(msgspec.Struct, frozen=True, kw_only=True):
    """One filter of placement: its constant sentence and the nodes it refused."""

    reason: str
    nodes: list[str]
    details: dict[str, str] = {}
    """Node → what it says itself about it, as a sentence, where it says something."""


class ExplainProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Why a profile runs where it does, or why it does not."""

    name: str
    weight: float = 1.0
    wanted: int
    ready: int
    summary: str
    placed: dict[str, list[str]] = {}
    """Replica id → its nodes, leader first."""
    sits: dict[str, str] = {}
    """Replica of several nodes → how its nodes sit on their fabric, where that is known: `one leaf (leaf02)`."""
    decided: list[str] = []
    """For a replica of several nodes: where the next one would go, and what speaks for it rather than for other
    nodes, in sentences."""
    last: dict[str, str] = {}
    """Nodes that could host a shard and come last → why, as a sentence."""
    feasible: list[str] = []
    """Nodes that could host a shard right now."""
    refused: list[FilterTally] = []
    retry_in_s: float | None = None
    """While backing off after failures."""
    last_failure: str | None = None


class ExplainView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/v1/explain?model=…`."""

    model: str
    profiles: list[ExplainProfile]


HISTORY_KINDS = ("replica", "node", "model", "fabric", "catalog", "operator", "server")


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One transition that is kept for ever. `subject` is a replica id, node id, or `model/profile`."""

    id: int
    at: float
    kind: str
    """One of `HISTORY_KINDS`."""
    subject: str
    event: str
    """The word for what happened: `starting`, `ready`, `failed`, `reaped`, `adopted`, `lost`, …"""
    reason: str = ""
    model: str | None = None
    nodes: list[str] = []


class LogView(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a shard's output; ask again from `next_offset` to follow."""

    replica_id: str
    rank: int
    node: str
    offset: int
    next_offset: int
    text: str
    shard_over: bool = False
    """True when the shard has ended, so that nothing more will come."""
    streams: list[str] = []
    """The outputs that can be asked for, where the node tells: `engine`, and the sidecars'."""


class TokenView(msgspec.Struct, frozen=True, kw_only=True):
    """An admin token without its secret."""

    name: str
    created_at: float
    last_used_at: float | None = None


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token just made: the only time that its secret is shown."""

    name: str
    token: str


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/v1/server`: what this control plane is doing."""

    version: str
    epoch: str
    started_at: float
    settling: bool
    listen: str
    api_keys: int = 0
    """How many there are of the model API."""
    api_keys_required: bool = False
    """Whether a request without one is refused."""
    routers: list[str] = []
    problems: list[Finding] = []


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a change: one sentence, and what could not be done."""

    message: str
    warnings: list[str] = []


class Scale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/scale`. Model names hold slashes, so the model is here and not in the path."""

    model: str
    replicas: int
    profile: str | None = None
    """May be left out for a model with one profile."""

    confirmed: bool = False
    """Said yes to stopping more than a fifth of the ready replicas."""


class Drain(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/nodes/{node}/drain`; an empty body is the default."""

    force: bool = False
    """Stop what cannot be moved, and do not wait for replacements."""


class ProfilePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a catalog would do to one profile."""

    name: str
    change: str
    """`added`, `removed`, `changed` or `unchanged`."""
    replicas_before: int = 0
    replicas_after: int = 0
    rolled_by: list[str] = []
    """Keys that changed and are part of the running form, those of the model included: its replicas roll."""
    keys: list[str] = []
    """Keys that changed and roll nothing."""
    starts: int = 0
    """Replicas that are started beside those that are there."""
    stops: int = 0
    """Replicas that end without another in their place."""
    rolls: int = 0
    """Replicas that are replaced, one of a model at a time."""
    later: int = 0
    """Of the starts, those that find room only when others have stopped."""
    unplaced: int = 0
    """Of the wanted replicas, and of those to be replaced, those for which there is no room even then."""
    reason: str | None = None
    """Placement's sentence for those that are later or unplaced."""
    never: str | None = None
    """Why no node that is known today could host it, however long one waits."""


class ModelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a catalog would do to one model."""

    name: str
    change: str
    """`added`, `removed`, `changed` or `unchanged`."""
    keys: list[str] = []
    """Keys of the model itself that changed."""
    endpoints_added: list[str] = []
    endpoints_removed: list[str] = []
    endpoints_changed: list[str] = []
    """Static endpoints (URLs) whose key file or model name changed."""
    profiles: list[ProfilePlan] = []


class CatalogPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`POST /api/v1/catalog/plan`: what a catalog would do to the fleet as it stands. Nothing is changed."""

    base: int
    """The revision that ruled when the plan was made: what `POST /api/v1/catalog` must name."""
    unchanged: bool
    """The catalog is the ruling one: applying it makes no revision."""
    models: list[ModelPlan] = []
    """Models that change, or of which something cannot be placed."""
    models_unchanged: int = 0
    """How many models are not in `models`."""
    starts: int = 0
    stops: int = 0
    rolls: int = 0
    ready: int = 0
    """Replicas that are ready now."""
    ready_stopped: int = 0
    """Of those, the ones that would be stopped with none in their place."""
    confirm: str | None = None
    """Why this must be confirmed (it would stop too much); None when it need not be."""
    warnings: list[str] = []


class PlanCatalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/catalog/plan`: `models` as in the file, or the number of an earlier revision."""

    models: list[dict[str, Any]] | None = None
    revision: int | None = None


class ApplyCatalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/catalog`."""

    base: int
    """The revision that the plan was made against; another one rules by now: 409."""
    models: list[dict[str, Any]] | None = None
    revision: int | None = None
    """Instead of `models`: make the content of an earlier revision the next one."""
    note: str = ""
    """What history keeps of the reason, at most 200 characters."""
    confirmed: bool = False
    """Said yes to what the plan's `confirm` says."""


class AppliedCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an apply: one sentence, the revision that rules now, and the plan it was done by."""

    message: str
    revision: int
    warnings: list[str] = []
    plan: CatalogPlan


class CatalogView(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /api/v1/catalog`: one revision with its content."""

    revision: int
    at: float
    by: str
    note: str = ""
    ruling: bool
    models: list[dict[str, Any]]
    """As `POST /api/v1/catalog` and the file take them, every key written out."""


class CatalogRevisionView(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `GET /api/v1/catalog/revisions`."""

    revision: int
    at: float
    by: str
    """The name of the token, `server.yaml` (it seeded an empty store) or `SIGHUP`."""
    note: str = ""
    ruling: bool = False


class FlagCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One flag of a command line, held against the engine's own help."""

    flag: str
    """As it would be given; one for a program that is started beside the engine with that program's name before
    it, `ray start --head`."""
    ok: bool | None
    """None where the text is not whole and does not list it: nobody can tell."""
    line: str | None = None
    """The line of the help that lists it, or that says it was removed."""
    nearest: str | None = None
    """For a flag that is missing: the most similar one that exists."""


class EngineCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an engine takes every flag that llmgw (and a profile) would give it."""

    engine: str
    version: str | None
    ok: bool | None
    """True: all are taken; False: some are missing; None: the help text does not tell."""
    truncated: bool
    """The help text does not look whole."""
    flags: list[FlagCheck]


class CheckEngine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/nodes/{node}/engine-check`."""

    engine: str
    args: list[str] = []
    """A profile's own arguments, checked too."""


class WeightsFileView(msgspec.Struct, frozen=True, kw_only=True):
    """One file below a node's weights folder. `name` is its path there."""

    name: str
    size_bytes: int
    state: str
    """`complete`, `partial` (a download to be continued), or `foreign` (llmgw did not fetch it)."""
    total_bytes: int | None = None
    """Of a partial one: what it will have, where its source has said so."""
    models: list[str] = []
    """Models of the catalog whose source it is."""
    shards: list[str] = []
    """Shards on the node that use it."""
    unused: bool = False
    """Fetched by llmgw, and nothing refers to it: `ctl models --remove-unused` removes it."""


class NodeWeightsView(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `GET /api/v1/weights`: what lies in a node's weights folder."""

    node: str
    problem: str | None = None
    """Why it cannot be said, as a sentence."""
    dir: str | None = None
    disk_bytes: int | None = None
    disk_free_bytes: int | None = None
    files: list[WeightsFileView] = []
    left_out: int = 0
    """Files beyond those that one answer holds."""


class RemoveWeightsWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/weights/remove`."""

    files: dict[str, list[str]]
    """Node → names of files, as `GET /api/v1/weights` lists them."""


class RemovedWeights(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a removal: one sentence, what is gone, and what was kept and why."""

    message: str
    removed: dict[str, list[str]] = {}
    warnings: list[str] = []


class CreateToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /api/v1/tokens`."""

    name: str


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`GET /health`, which needs no token: the process answers. It says nothing about the fleet."""

    status: str = "ok"
