"""The control plane as the admin API sees it: the hub's views, and operators' changes written down first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

import llmgw
from llmgw.config.catalog import Catalog, CatalogModel, Profile
from llmgw.config.random_words import new_secret_word
from llmgw.engines import registry
from llmgw.engines.engine_check import check_engine
from llmgw.engines.help_text import NotHelpError
from llmgw.fleet.model import Node, NodeState, Replica
from llmgw.messages.admin import (
    CheckEngine,
    Done,
    EngineCheck,
    ExplainView,
    HistoryEntry,
    LogView,
    ModelView,
    NewToken,
    NodeRemoval,
    NodeView,
    ReplicaView,
    ServerView,
    TokenView,
)
from llmgw.messages.findings import Finding, worst_first
from llmgw.pki.expiry import CertificateEnd
from llmgw.server.admin.backend import AdminError
from llmgw.server.audit.book import AuditBook
from llmgw.server.catalog_owner import CatalogOwner
from llmgw.server.catalogs import CatalogError, scaled
from llmgw.server.fabric_tests.tests import FabricTests
from llmgw.server.fabrics.admin import FabricsKnown
from llmgw.server.fabrics.drawings import Drawings
from llmgw.server.failures import Failure
from llmgw.server.hub import Hub
from llmgw.server.hub_error import HubError
from llmgw.server.key_owner import KeyOwner
from llmgw.server.loop_watch import LoopPause
from llmgw.server.metrics.exposition import Metrics
from llmgw.server.metrics.source import Source
from llmgw.server.own_key import OwnKey
from llmgw.server.playground import Playground
from llmgw.server.recent.known import RecentKnown
from llmgw.server.router_worker import RouterView
from llmgw.server.store.errors import StoreError
from llmgw.server.store.interface import StoreInterface
from llmgw.server.store.secrets import hash_secret, matching_token, name_problem
from llmgw.server.upgrades.upgrades import Upgrades
from llmgw.server.usage_book import TokenTally
from llmgw.server.usage_known import UsageKnown
from llmgw.server.views import (
    explain_view,
    model_views,
    node_views,
    replica_views,
)
from llmgw.server.weights import WeightsOnDisk

log = structlog.get_logger("server")

LOG_TIMEOUT_S = 10.0
# The agent gives an engine 60 s.
HELP_TIMEOUT_S = 75.0
HISTORY_WAIT_S = 5.0
CHANGE_WAIT_S = 10.0
REPLICAS_MAX = 1000
LAST_WORDS_END = 2**53
"""An offset that no log reaches: the reader has everything."""
NAMES_SHOWN_MAX = 20


class Backend:
    """`AdminBackend` over the hub and the store."""

    def __init__(
        self,
        hub: Hub,
        store: StoreInterface,
        *,
        listen: str,
        config_path: Path | None,
        revision: int,
        started_at: float,
        routers: Callable[[], list[str]],
        problems: Callable[[], list[Finding]],
        certificates: Callable[[], list[CertificateEnd]],
        upgrades: Upgrades,
        loop_pause: Callable[[], LoopPause] = LoopPause,
        require_fabric_test_s: float | None = None,
        router_views: Callable[[], list[RouterView]] = list,
        tokens: Callable[[], Mapping[str, TokenTally]] = dict,
        own_key: OwnKey | None = None,
        tls_cert: str | None = None,
    ) -> None:
        """`own_key` is what the routers know this server itself by, `tls_cert` the certificate that they show."""
        self._hub = hub
        self._store = store
        self._listen = listen
        self.catalog = CatalogOwner(hub, store, revision=revision, config_path=config_path)
        self.weights = WeightsOnDisk(hub)
        self.keys = KeyOwner(hub, store)
        self.fabric_tests = FabricTests(hub, store, require_s=require_fabric_test_s)
        self.fabrics = FabricsKnown(hub, store)
        self.drawings = Drawings(hub, self.fabrics.known)
        self.usage = UsageKnown(store)
        self.recent = RecentKnown(hub)
        self.audit = AuditBook(store, hub.clock.wall)
        self.playground = Playground(
            lambda: next((view.listen for view in router_views() if view.state == "serving"), listen),
            key="" if own_key is None else own_key.secret,
            needs_key=lambda: hub.keys.required,
            tls_cert=tls_cert,
        )
        self.news = hub.news
        self.upgrades = upgrades
        self._started_at = started_at
        self._routers = routers
        self._problems = problems
        self._metrics = Metrics(
            Source(hub, certificates, self._findings, loop_pause, router_views, tokens, started_at)
        )

    # Reading.

    def server(self) -> ServerView:
        """What this control plane is doing."""
        return ServerView(
            version=llmgw.__version__,
            epoch=self._hub.epoch,
            started_at=self._started_at,
            settling=self._hub.fleet.settling,
            listen=self._listen,
            api_keys=self._hub.keys.count,
            api_keys_required=self._hub.keys.required,
            routers=self._routers(),
            problems=self._findings(),
        )

    def nodes(self) -> list[NodeView]:
        """Every node."""
        return node_views(self._hub)

    def node_removal(self, node_id: str) -> NodeRemoval:
        """When a node of that name was removed last."""
        return NodeRemoval(node_id=node_id, removed_at=self._store.removed_at(node_id))

    def replicas(self) -> list[ReplicaView]:
        """Every replica."""
        return replica_views(self._hub)

    def models(self) -> list[ModelView]:
        """Every model of the catalog."""
        return model_views(self._hub)

    def explain(self, model: str) -> ExplainView:
        """Why the model runs where it does, or why it does not."""
        return explain_view(self._hub, self._model(model))

    async def metrics(self) -> bytes:
        """Everything countable, for Prometheus."""
        return await self._metrics.text()

    async def history(
        self, *, subject: str | None, kind: str | None, model: str | None, before: int | None, limit: int
    ) -> list[HistoryEntry]:
        """Newest first."""
        # What was just done must be in the answer: the writer is at most a moment behind. On a disk that takes
        # nothing, what is stored is worth reading all the same; a finding says that more waits.
        try:
            await self._store.flush(timeout_s=HISTORY_WAIT_S)
        except StoreError as error:
            log.warning("history is answered without what waits to be stored", reason=error.what)
        return await self._store.history(subject=subject, kind=kind, model=model, before=before, limit=limit)

    async def logs(self, replica_id: str, rank: int, stream: str, offset: int | None, lines: int) -> LogView:
        """A part of a shard's output; of one that has ended, its last words."""
        failure = self._hub.failures.get(replica_id)
        replica = self._hub.fleet.replicas.get(replica_id)
        if replica is None and failure is not None:
            return _last_words(failure, rank, offset)
        replica = self._replica(replica_id)
        shard = replica.shards.get(rank)
        if shard is None:
            ranks = ", ".join(map(str, sorted(replica.shards))) or "none yet"
            raise AdminError(404, "unknown-rank", f"{replica_id} has no rank {rank}; its ranks are {ranks}")
        try:
            chunk = await self._hub.questions.read_log(
                shard.node_id, shard.shard_id, stream, offset, lines, LOG_TIMEOUT_S
            )
        except HubError as error:
            if failure is not None and rank in failure.shards:
                return _last_words(failure, rank, offset)
            raise AdminError(error.status, error.code, error.message) from None
        if chunk.error is not None:
            if failure is not None and rank in failure.shards:
                return _last_words(failure, rank, offset)
            raise AdminError(404, "no-log", f"{shard.node_id}: {chunk.error}")
        return LogView(
            replica_id=replica_id,
            rank=rank,
            node=shard.node_id,
            offset=chunk.offset,
            next_offset=chunk.next_offset,
            text=chunk.text,
            shard_over=shard.over,
            streams=chunk.streams,
        )

    async def check_engine(self, node_id: str, wish: CheckEngine) -> EngineCheck:
        """Whether an engine of a node takes every flag that llmgw would give it, by the engine's own help."""
        try:
            adapter = registry.adapter(wish.engine)
        except ValueError as error:
            raise AdminError(404, "unknown-engine", str(error)) from None
        self._node(node_id)
        try:
            told = await self._hub.questions.read_engine_help(node_id, wish.engine, HELP_TIMEOUT_S)
            if told.error is not None:
                raise AdminError(409, "no-help", f"{node_id}: {told.error}")
            checked = await asyncio.to_thread(
                check_engine, adapter, told.text, sidecars=told.sidecars, version=told.version, args=wish.args
            )
        except HubError as error:
            raise AdminError(error.status, error.code, error.message) from None
        except NotHelpError as error:
            raise AdminError(409, "no-help", f"{node_id}: {error}") from None
        return checked.check

    # Changing.

    async def scale(
        self, model: str, profile: str | None, replicas: int, *, confirmed: bool = False, by: str
    ) -> Done:
        """Another replica count: a new catalog revision."""
        if not 0 <= replicas <= REPLICAS_MAX:
            raise AdminError(400, "bad-count", f"{replicas} is not a number of replicas from 0 to {REPLICAS_MAX}")
        found = self._model(model)
        which = self._profile(found, profile)
        name = f"{found.name}/{which.name}"

        def edit(catalog: Catalog) -> Catalog:
            # Of the catalog that rules when it is this change's turn: another may have come first.
            now_there = catalog.find(found.name, which.name)
            if now_there is None:
                raise AdminError(
                    409, "gone", f"{name} has just been taken out of the catalog; nothing was changed"
                )
            return scaled(catalog, *now_there, replicas)

        note = f"{name}: {which.replicas} → {replicas} replicas"
        try:
            number = await self.catalog.change(edit, by, note, confirmed=confirmed)
        except CatalogError as error:
            raise AdminError(409, "bad_catalog", str(error)) from None
        if number is None:
            return Done(message=f"{name} has {replicas} already")
        # What runs is looked at before anything follows from the change: what cannot follow is a warning.
        self._hub.turn()
        warnings = [
            p.summary
            for p in self.explain(found.name).profiles
            if p.name == which.name and len(p.placed) < p.wanted
        ]
        return Done(message=f"{note} (catalog revision {number})", warnings=warnings)

    async def restart(self, replica_id: str, *, by: str) -> Done:
        """Replace a replica by a fresh one; the fresh one is ready before this one stops."""
        replica = self._replica(replica_id)
        if not replica.live:
            raise AdminError(409, "ending", f"{replica_id} is {replica.state} already")
        self._hub.restart_replica(replica_id, by)
        return Done(message=f"{replica_id} will be replaced; it serves until its replacement is ready")

    async def cordon(self, node_id: str, cordoned: bool, *, by: str) -> Done:
        """Stop placement on a node, or allow it again."""
        node = self._node(node_id)
        was = node.cordoned
        self._store.put_cordoned(node_id, cordoned, self._now())
        await self._committed(undo=lambda: self._store.put_cordoned(node_id, was, self._now()))
        if node.cordoned != cordoned:
            self._hub.set_cordon(node_id, cordoned, by)
        if cordoned:
            return Done(message=f"{node_id} takes no new shards; what runs there stays")
        if node.draining:
            return Done(
                message=f"{node_id} is not cordoned any more; it takes no new shards, since it is draining"
            )
        return Done(message=f"{node_id} takes new shards again")

    async def drain(self, node_id: str, *, force: bool, by: str) -> Done:
        """Move everything off a node."""
        node = self._node(node_id)
        await self._put_draining(node, True, force)
        self._hub.set_drain(node_id, True, force, by)
        self._hub.turn()
        view = next(view for view in self.nodes() if view.node_id == node_id)
        if not view.replicas:
            return Done(message=f"{node_id} is drained: nothing runs there")
        count = "1 replica" if len(view.replicas) == 1 else f"{len(view.replicas)} replicas"
        return Done(message=f"{node_id} is draining: {count} to move", warnings=view.drain_left)

    async def undrain(self, node_id: str, *, by: str) -> Done:
        """End a drain."""
        node = self._node(node_id)
        await self._put_draining(node, False, False)
        if node.draining:
            self._hub.set_drain(node_id, False, False, by)
        if node.cordoned:
            return Done(
                message=f"{node_id} is not drained any more; it takes no new shards, since it is cordoned"
            )
        return Done(message=f"{node_id} takes new shards again")

    async def remove_node(self, node_id: str, *, force: bool, by: str) -> Done:
        """Forget a node with its flags, and refuse every certificate that it has; its history stays.

        Drained first: raises AdminError 409 for one that is ready and not draining, or that holds shards. `force`
        is for one that is not heard, whose engines may still work: what it holds is rebuilt elsewhere.
        """
        node = self._node(node_id)
        shards = self._hub.fleet.shards_on(node_id)
        holds = f"holds {'1 shard' if len(shards) == 1 else f'{len(shards)} shards'}"
        if node.state is NodeState.READY and (shards or not node.draining):
            raise AdminError(
                409,
                "not-drained",
                f"{node_id} is ready and {holds if shards else 'not drained'}; first `llmgw ctl drain {node_id} "
                "--wait` (with --force where nothing can take what runs there)",
            )
        if node.state in (NodeState.UNREACHABLE, NodeState.UNKNOWN) and shards and not force:
            raise AdminError(
                409,
                "serving",
                f"{node_id} is not heard and {holds}, which may still serve; --force gives them up and rebuilds "
                "them elsewhere",
            )
        try:
            await self._store.remove_node(node_id, self._now())
        except StoreError as error:
            raise AdminError(503, "store", f"nothing was changed, since it cannot be stored: {error}") from None
        self._hub.remove_node(node_id, by)
        return Done(message=f"{node_id} is removed, and the certificates it has are refused; its history stays")

    # Tokens.

    async def authenticate(self, token: str) -> str | None:
        """The token's name, or None."""
        name = matching_token(self._store.token_hashes(), token)
        if name is not None:
            self._store.touch_token(name, self._now())
        return name

    async def tokens(self) -> list[TokenView]:
        """All tokens, without their secrets."""
        return self._store.tokens()

    async def create_token(self, name: str, *, by: str) -> NewToken:
        """A new named token; its secret is in this answer and nowhere else."""
        problem = name_problem(name, "token")
        if problem is not None:
            raise AdminError(400, "bad-name", problem)
        secret = new_secret_word()
        try:
            await self._store.create_token(name, hash_secret(secret), self._now())
        except StoreError as error:
            raise AdminError(409, "exists", str(error)) from None
        self._store.record("operator", name, "token created", self._now(), reason=f"by {by}")
        return NewToken(name=name, token=secret)

    async def revoke_token(self, name: str, *, by: str) -> Done:
        """End a token at once."""
        try:
            await self._store.revoke_token(name, self._now())
        except StoreError as error:
            raise AdminError(404, "unknown-token", str(error)) from None
        self._store.record("operator", name, "token revoked", self._now(), reason=f"by {by}")
        return Done(message=f"token {name} is revoked")

    # Inside.

    def _findings(self) -> list[Finding]:
        own = [*self._store.findings(), *self.catalog.findings(), *self.upgrades.findings()]
        return worst_first([*own, *self._hub.findings(), *self._problems()])

    def _now(self) -> float:
        return self._hub.clock.wall()

    async def _put_draining(self, node: Node, draining: bool, force: bool) -> None:
        was, forced = node.draining, node.drain_forced
        self._store.put_draining(node.node_id, draining, self._now(), force=force)
        await self._committed(undo=lambda: self._store.put_draining(node.node_id, was, self._now(), force=forced))

    async def _committed(self, *, undo: Callable[[], None]) -> None:
        """Wait until what was put is stored. What cannot be stored now would be later, behind the operator's
        back, and rule after the next start: `undo` is put behind it then.
        """
        try:
            await self._store.flush(timeout_s=CHANGE_WAIT_S)
        except StoreError as error:
            undo()
            raise AdminError(503, "store", f"nothing was changed, since it cannot be stored: {error}") from None

    def _model(self, name: str) -> CatalogModel:
        for model in self._hub.catalog.models:
            if name in model.served_names:
                return model
        known = [model.name for model in self._hub.catalog.models]
        raise AdminError(404, "unknown-model", f"there is no model {name!r}; {_known('models', known)}")

    def _profile(self, model: CatalogModel, name: str | None) -> Profile:
        names = [profile.name for profile in model.profiles]
        if not names:
            raise AdminError(
                400, "static-only", f"{model.name} has static endpoints only; nothing of it is started here"
            )
        if name is None and len(names) == 1:
            return model.profiles[0]
        for profile in model.profiles:
            if profile.name == name:
                return profile
        if name is None:
            raise AdminError(
                400, "which-profile", f"{model.name} has several profiles, name one: {', '.join(names)}"
            )
        raise AdminError(
            404, "unknown-profile", f"{model.name} has no profile {name!r}; {_known('profiles', names)}"
        )

    def _node(self, node_id: str) -> Node:
        node = self._hub.fleet.nodes.get(node_id)
        if node is None:
            known = sorted(self._hub.fleet.nodes)
            raise AdminError(404, "unknown-node", f"there is no node {node_id!r}; {_known('nodes', known)}")
        return node

    def _replica(self, replica_id: str) -> Replica:
        replica = self._hub.fleet.replicas.get(replica_id)
        if replica is None:
            known = sorted(self._hub.fleet.replicas)
            raise AdminError(
                404, "unknown-replica", f"there is no replica {replica_id!r}; {_known('replicas', known)}"
            )
        return replica


def _known(what: str, names: list[str]) -> str:
    if not names:
        return f"there are no {what}"
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f"the {what} are {shown}{more}"


def _last_words(failure: Failure, rank: int, offset: int | None) -> LogView:
    shard = failure.shards.get(rank)
    if shard is None:
        ranks = ", ".join(map(str, sorted(failure.shards))) or "none"
        raise AdminError(404, "unknown-rank", f"{failure.replica_id} ended; last words are kept of ranks {ranks}")
    text = "\n".join(shard.output_tail) + "\n" if shard.output_tail else ""
    ending = f"-- {shard.reason} --\n"
    whole = text + ending
    # Whoever followed while it ran has read the output; what is new is only how it ended.
    text = whole if not offset else ending if offset < LAST_WORDS_END else ""
    return LogView(
        replica_id=failure.replica_id,
        rank=rank,
        node=shard.node,
        offset=offset or 0,
        next_offset=LAST_WORDS_END,
        text=text,
        shard_over=True,
    )
