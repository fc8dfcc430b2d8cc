"""A control plane of the tests' own, behind the real admin API on a real socket."""

from __future__ import annotations

import asyncio
import math
import ssl
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any

from llmgw.config.load import catalog_of
from llmgw.fabric.report import FabricReport, analyse, report_fabric
from llmgw.messages.admin import (
    AppliedCatalog,
    ApplyCatalog,
    CatalogPlan,
    CatalogRevisionView,
    CatalogView,
    CheckEngine,
    Done,
    EngineCheck,
    ExplainProfile,
    ExplainView,
    FilterTally,
    FlagCheck,
    HistoryEntry,
    LogView,
    ModelPlan,
    ModelView,
    NewToken,
    NodeRemoval,
    NodeView,
    NodeWeightsView,
    PlanCatalog,
    ProfilePlan,
    ProfileView,
    RemovedWeights,
    ReplicaView,
    ServerView,
    ShardView,
    TokenView,
    WeightsFileView,
)
from llmgw.messages.admin_fabrics import (
    CablingDifference,
    FabricChanges,
    FabricChangeView,
    FabricView,
    ManagerView,
)
from llmgw.messages.admin_keys import CreateKey, KeyView, LimitKey, NewKey
from llmgw.messages.agent import FabricOffer, Gpu, Port, Progress
from llmgw.messages.audit_views import AuditEntry
from llmgw.messages.findings import Finding
from llmgw.messages.recent_views import ModelRates, ModelSeries, RequestView
from llmgw.messages.routes import Outcome
from llmgw.messages.topology import FabricSummary, TopologyView
from llmgw.messages.upgrade_views import UpgradeView
from llmgw.messages.usage_views import UsageEntry, UsageView
from llmgw.server.admin.app import create_admin_app
from llmgw.server.admin.auth import Attempts
from llmgw.server.admin.backend import AdminDrawings, AdminError
from llmgw.server.asgi import serve_asgi
from llmgw.server.news import News
from llmgw.server.recent.rates import RecentRates
from llmgw.server.recent.requests import RecentRequests
from tests.fabric.generate import fat_tree

TOKEN = "llmgw-test-token-0123456789"
STARTED_AT = 1_700_000_000.0


def node(name: str, **changes: Any) -> NodeView:
    facts: dict[str, Any] = {
        "node_id": name,
        "state": "ready",
        "address": "10.0.0.7",
        "version": "0.1.0",
        "last_heard_s": 1.5,
        "gpus": [
            Gpu(
                index=index,
                uuid=f"GPU-{name}-{index}",
                name="NVIDIA H200",
                memory_total_mib=143771,
                paths={other: "NV18" for other in range(8) if other != index},
            )
            for index in range(8)
        ],
        "gpus_in_use": [0, 1, 2, 3],
        "fabrics": [FabricOffer(name="ib-a", adapters=["mlx5_0:1"], usable=True, rate_gbps=400)],
        "ports": [Port(adapter="mlx5_0", port=1, state="ACTIVE", phys_state="LinkUp", rate_gbps=400)],
        "port_fabrics": {"mlx5_0:1": "ib-a"},
        "engines": ["sim"],
        "replicas": ["chat-large-1a2b"],
    }
    return NodeView(**(facts | changes))


def replica(name: str, **changes: Any) -> ReplicaView:
    facts: dict[str, Any] = {
        "replica_id": name,
        "model": "org/chat-large",
        "profile": "default",
        "engine": "sim",
        "state": "ready",
        "since": STARTED_AT,
        "created_at": STARTED_AT,
        "fabric": "ib-a",
        "nodes": ["node01", "node02"],
        "endpoint": "10.0.0.7:21000",
        "routed": True,
        "shards": [
            ShardView(shard_id=f"{name}.{rank}", rank=rank, node=f"node0{rank + 1}", gpus=[0, 1], phase="ready")
            for rank in range(2)
        ],
    }
    return ReplicaView(**(facts | changes))


CATALOG = [{"name": "a", "aliases": ["b"], "profiles": [{"engine": "sim", "load_timeout": "1234567s"}]}]


class ScriptedCatalog:
    """Two revisions, of which 2 rules, and a plan that a test may replace."""

    def __init__(self, asked: list[tuple[Any, ...]]) -> None:
        self.asked = asked
        self.ruling = 2
        self.refuse: AdminError | None = None
        profile = ProfilePlan(
            name="default", change="changed", replicas_before=1, replicas_after=3, rolled_by=["args"],
            keys=["load_timeout"], starts=2, rolls=1, later=1, reason="there is room when others have stopped",
        )  # fmt: skip
        gone = ProfilePlan(name="default", change="removed", replicas_before=2, stops=2)
        static = ModelPlan(name="static", change="changed", endpoints_added=["http://x"], keys=["task"])
        self.planned = CatalogPlan(
            base=2,
            unchanged=False,
            models=[
                ModelPlan(name="a", change="changed", profiles=[profile]),
                ModelPlan(name="old", change="removed", profiles=[gone]),
                static,
            ],
            models_unchanged=4,
            starts=2,
            stops=2,
            rolls=1,
            ready=20,
            ready_stopped=2,
            warnings=["a/default: no node known today could ever host it: needs 1 node"],
        )

    async def view(self, number: int | None) -> CatalogView:
        number = self.ruling if number is None else number
        if number > 2:
            message = f"the catalog never had a revision {number}; there are 1 to 2"
            raise AdminError(404, "unknown_revision", message)
        models = catalog_of(CATALOG).model_dump(mode="json")["models"]
        return CatalogView(
            revision=number, at=STARTED_AT, by="ops", note="why", ruling=number == 2, models=models
        )

    async def revisions(self, before: int | None, limit: int) -> list[CatalogRevisionView]:
        self.asked.append(("revisions", before, limit))
        return [
            CatalogRevisionView(
                revision=number, at=STARTED_AT, by="ops", note="why", ruling=number == self.ruling
            )
            for number in range(self.ruling, 0, -1)
        ][:limit]

    async def plan(self, wish: PlanCatalog) -> CatalogPlan:
        self.asked.append(("plan", wish))
        return self.planned

    async def apply(self, wish: ApplyCatalog, *, by: str) -> AppliedCatalog:
        if self.refuse is not None:
            raise self.refuse
        self.asked.append(("apply", wish, by))
        self.ruling = 3
        return AppliedCatalog(message="catalog revision 3 rules", revision=3, plan=self.planned)


class ScriptedWeights:
    """One node with files, and one that cannot be asked."""

    def __init__(self, asked: list[tuple[Any, ...]]) -> None:
        self.asked = asked
        used = WeightsFileView(
            name="https/h/a.gguf",
            size_bytes=5 * 2**30,
            state="complete",
            models=["chat-small"],
            shards=["chat-small-3c4d.0"],
        )
        old = WeightsFileView(name="https/h/old.gguf", size_bytes=7 * 2**30, state="complete", unused=True)
        half = WeightsFileView(
            name="https/h/b.gguf.part", size_bytes=2**30, total_bytes=2**31, state="partial", unused=True
        )
        self.known = [
            NodeWeightsView(
                node="node01",
                dir="/var/lib/llmgw-agent/weights",
                disk_bytes=2**40,
                disk_free_bytes=2**39,
                files=[used, old, half, WeightsFileView(name="mine.txt", size_bytes=12, state="foreign")],
                left_out=3,
            ),
            NodeWeightsView(
                node="node02", problem="node02 has no session now, so its weights cannot be looked at"
            ),
        ]

    async def view(self, node: str | None) -> list[NodeWeightsView]:
        if node not in (None, "node01", "node02"):
            raise AdminError(404, "unknown-node", f"there is no node {node!r}; known nodes: node01, node02")
        return [view for view in self.known if node in (None, view.node)]

    async def remove(self, files: Mapping[str, list[str]], *, by: str) -> RemovedWeights:
        self.asked.append(("remove_weights", dict(files), by))
        return RemovedWeights(message="1 file is removed", removed={"node01": ["x"]}, warnings=["y is kept: z"])


class ScriptedFabrics:
    """One fabric whose master has changed, mapped from a generated text."""

    def __init__(self, asked: list[tuple[Any, ...]]) -> None:
        self.asked = asked
        self.text = fat_tree(nodes=2, rails=2, leaves=2, spines=1, degraded=1).text()
        self.listed = [
            FabricView(
                name="ib-a",
                nodes=["node01"],
                unusable={"node02": "mlx5_1 is down"},
                gpus=16,
                gpus_free=8,
                rate_gbps=400,
                id="0x0c42a10300000401",
                ids=["0x0c42a10300000401"],
                link_layer="InfiniBand",
                answer="ok",
                answered_at=STARTED_AT,
                master=ManagerView(guid="0x0c42a10300000501", lid=7, priority=12, host="node02"),
                problems=["the master changed 5 min ago"],
            )
        ]

    async def views(self) -> list[FabricView]:
        return self.listed

    async def changes(self, name: str, before: int | None, limit: int) -> FabricChanges:
        self._known(name)
        self.asked.append(("fabric_changes", name, before, limit))
        change = FabricChangeView(
            id=3, at=STARTED_AT, area="cabling", kind="cable gone", what="the cable from a[1] to b[2] is gone"
        )
        return FabricChanges(
            name=name,
            ids=["0x0c42a10300000401"],
            accepted_at=STARTED_AT,
            accepted_by="first",
            differences=[CablingDifference(kind="cable gone", what="the cable from c[1] to d[2] is gone")],
            changes=[change],
        )

    async def accept(self, name: str, *, by: str) -> Done:
        self._known(name)
        self.asked.append(("accept_fabric", name, by))
        return Done(message=f"the cabling of {name} is accepted", warnings=["1 cable runs below its rate"])

    async def map(self, name: str) -> FabricReport:
        self._known(name)
        return report_fabric(analyse(self.text))

    def _known(self, name: str) -> None:
        if name != "ib-a":
            raise AdminError(404, "unknown-fabric", f"there is no fabric {name!r}; the fabrics are ib-a")


class ScriptedDrawings:
    """No fabric at all; tests of the pages bring their own."""

    async def overview(self) -> list[FabricSummary]:
        return []

    async def topology(self, name: str) -> TopologyView:
        raise AdminError(404, "unknown-fabric", f"there is no fabric {name!r}")

    async def live(self, name: str) -> TopologyView:
        return await self.topology(name)

    async def svg(self, name: str) -> str:
        raise AdminError(404, "unknown-fabric", f"there is no fabric {name!r}")


class ScriptedUpgrades:
    """The upgrade that a test says there was last."""

    def __init__(self) -> None:
        self.last: UpgradeView | None = None

    async def view(self, upgrade_id: str | None, *, seen: int | None, wait_s: float) -> UpgradeView:
        if self.last is None:
            raise AdminError(404, "no-upgrade", "there was no upgrade of agents yet")
        return self.last


class ScriptedUsage:
    """Two models' sums, whatever is asked."""

    def __init__(self, asked: list[tuple[Any, ...]]) -> None:
        self._asked = asked
        self.empty = False

    async def view(
        self, *, from_s: int, to_s: int, key: str | None, model: str | None, by: Collection[str]
    ) -> UsageView:
        self._asked.append(("usage", from_s, to_s, key, model, list(by)))
        entries = [
            UsageEntry(
                at=1_700_002_800, key="team-a", model="m", requests=3, prompt_tokens=1000, cached_tokens=5
            ),
            UsageEntry(
                at=1_700_002_800, key="", model="=m", requests=2, errors=1, completion_tokens=7, estimated=1
            ),
        ]
        total = UsageEntry(
            requests=5, errors=1, prompt_tokens=1000, cached_tokens=5, completion_tokens=7, estimated=1
        )
        if self.empty:
            entries, total = [], UsageEntry()
        return UsageView(from_s=from_s, to_s=to_s, by=list(by), entries=entries, total=total)


class ScriptedKeys:
    """API keys that are always the same; what is asked stands in the backend's `asked`."""

    def __init__(self, backend: ScriptedBackend) -> None:
        self._backend = backend

    def views(self) -> list[KeyView]:
        return [
            KeyView(
                name="alice",
                id="3f9a1c2d55",
                prefix="llmgw-3f9a1c2d55",
                models=["chat-small"],
                requests_per_minute=600,
                created_at=STARTED_AT,
                created_by="first",
                expires_at=STARTED_AT,
                expired=True,
            )
        ]

    async def create(self, wish: CreateKey, *, by: str) -> NewKey:
        self._backend.asked.append(("create_key", wish, by))
        return NewKey(name=wish.name, id="3f9a1c2d55", key="llmgw-3f9a1c2d55-fresh-secret")

    async def limit(self, name: str, wish: LimitKey, *, by: str) -> Done:
        return self._backend._done("limit_key", name, wish, by)

    async def revoke(self, name: str, *, by: str) -> Done:
        return self._backend._done("revoke_key", name, by)


class ScriptedRecent:
    """The real rates and requests, over a clock that a test turns, and outcomes that it tells."""

    def __init__(self, models: list[str]) -> None:
        self.models = models
        self.now = 0.0
        self._rates = RecentRates(0.0)
        self._requests = RecentRequests({"k1": "alice"}.get)

    def tell(self, *outcomes: Outcome) -> None:
        self._rates.take(outcomes, self.models, self.now)
        self._requests.take(outcomes, STARTED_AT + self.now)

    def rates(self) -> list[ModelRates]:
        return [self._rates.rates(model, self.now) for model in self.models]

    def series(self, model: str) -> ModelSeries:
        return self._rates.series(model, self.now, STARTED_AT + self.now)

    def requests(
        self, *, before: int | None, limit: int, fits: Callable[[RequestView], bool] = lambda view: True
    ) -> list[RequestView]:
        return self._requests.views(before=before, limit=limit, fits=fits)


class ScriptedAudit:
    """What is written is what is read, newest first; tokens that nobody knows are only counted."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []
        self.wrong: list[tuple[str, str, str]] = []

    def record(self, **facts: Any) -> None:
        number = len(self.entries) + 1
        self.entries.append(AuditEntry(id=number, at=STARTED_AT + number, **facts))

    def wrong_token(self, address: str, method: str, route: str) -> None:
        self.wrong.append((address, method, route))

    async def view(
        self,
        *,
        by: str | None,
        subject: str | None,
        from_s: float | None,
        to_s: float | None,
        before: int | None,
        limit: int,
    ) -> list[AuditEntry]:
        return [
            entry
            for entry in reversed(self.entries)
            if by in (None, entry.by)
            and subject in (None, entry.subject)
            and (from_s or 0) <= entry.at < (to_s or math.inf)
            and entry.id < (before or math.inf)
        ][:limit]


class ScriptedBackend:
    """Answers from lists that a test fills, and keeps what it was asked to do in `asked`."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.tokens_known = {TOKEN: "first"}
        self.keys = ScriptedKeys(self)
        self.recent = ScriptedRecent(["org/chat-large", "chat-small"])
        self.audit = ScriptedAudit()
        self.news = News("e1")
        self.authenticated = 0
        self.settling = False
        self.problems = [
            Finding(check="router-silent", severity="warning", where="router-1", what="it is silent")
        ]
        self.broken = False
        self.nodes_known = [
            node("node01"),
            node(
                "node02",
                state="unreachable",
                reason="silent for 40 s, its shards still answer",
                cordoned=True,
                findings=[
                    Finding(
                        check="port-down",
                        severity="error",
                        where="node02 mlx5_1",
                        what="port 1 of mlx5_1 is DOWN",
                        why="ib-a has one rail less",
                        remedy="check the cable",
                    )
                ],
            ),
        ]
        self.replicas_known = [
            replica("chat-large-1a2b"),
            replica(
                "chat-small-3c4d",
                model="chat-small",
                nodes=["node01"],
                fabric=None,
                state="starting",
                routed=False,
                endpoint=None,
                reason="loading weights",
                shards=[
                    ShardView(
                        shard_id="chat-small-3c4d.0",
                        rank=0,
                        node="node01",
                        gpus=[4],
                        phase="fetching",
                        progress=Progress(what="weights", done_bytes=5 * 2**30, total_bytes=10 * 2**30),
                        output_tail=["first line", "last line"],
                    )
                ],
            ),
        ]
        self.models_known = [
            ModelView(
                name="org/chat-large",
                aliases=["chat"],
                profiles=[ProfileView(name="default", engine="sim", nodes=2, gpus_per_node=4, wanted=1, ready=1)],
                endpoints_ready=1,
            ),
            ModelView(
                name="org",
                profiles=[
                    ProfileView(name="chat-large", engine="sim", nodes=1, gpus_per_node=1, wanted=0),
                    ProfileView(name="slow", engine="sim", nodes=1, gpus_per_node=1, wanted=0),
                ],
            ),
            ModelView(
                name="chat-small",
                profiles=[
                    ProfileView(
                        name="default",
                        engine="sim",
                        nodes=1,
                        gpus_per_node=1,
                        wanted=2,
                        starting=1,
                        reason="no node has a free GPU",
                    )
                ],
            ),
            ModelView(name="elsewhere", static_endpoints=["https://api.example.org"]),
        ]
        self.flags_ok: bool | None = True
        self.scale_refused: str | None = None
        self.catalog = ScriptedCatalog(self.asked)
        self.weights = ScriptedWeights(self.asked)
        self.fabrics = ScriptedFabrics(self.asked)
        self.drawings: AdminDrawings = ScriptedDrawings()
        self.usage = ScriptedUsage(self.asked)
        self.upgrades = ScriptedUpgrades()
        self.log_text = "one\ntwo\nthree\n"
        self.log_over = True

    def server(self) -> ServerView:
        return ServerView(
            version="0.1.0",
            epoch="e1",
            started_at=STARTED_AT,
            settling=self.settling,
            listen="127.0.0.1:8080",
            routers=["router-1"],
            problems=[
                *self.problems,
                *(finding for node in self.nodes_known for finding in node.findings),
            ],
        )

    def nodes(self) -> list[NodeView]:
        if self.broken:
            raise RuntimeError("a defect of the control plane")
        return self.nodes_known

    def node_removal(self, node_id: str) -> NodeRemoval:
        return NodeRemoval(node_id=node_id, removed_at=STARTED_AT if node_id == "node99" else None)

    def replicas(self) -> list[ReplicaView]:
        return self.replicas_known

    def models(self) -> list[ModelView]:
        return self.models_known

    async def metrics(self) -> bytes:
        return b'# HELP llmgw_nodes Nodes by state\n# TYPE llmgw_nodes gauge\nllmgw_nodes{state="ready"} 1.0\n'

    def explain(self, model: str) -> ExplainView:
        if model not in [entry.name for entry in self.models_known]:
            raise AdminError(404, "unknown-model", f"there is no model {model!r}; known: org/chat-large")
        profile = ExplainProfile(
            name="default",
            wanted=2,
            ready=1,
            summary="1 of 2 run; no fabric has 2 nodes with 4 free GPUs",
            placed={"chat-large-1a2b": ["node01", "node02"]},
            sits={"chat-large-1a2b": "2 leaves (leaf01, leaf02), 1 tier crossed"},
            decided=[
                "node03 and node04 on ib-a: one leaf (leaf02), rails aligned",
                "rather than node03 and node05 on ib-a: 1 against 2 leaves",
            ],
            last={"node05": "comes last: cable leaf01 port 3 runs at 4xDDR"},
            refused=[FilterTally(reason="fewer free GPUs than the profile needs", nodes=["node01", "node02"])],
            retry_in_s=12.0,
            last_failure="the engine exited with code 1",
        )
        return ExplainView(model=model, profiles=[profile])

    async def history(
        self, *, subject: str | None, kind: str | None, model: str | None, before: int | None, limit: int
    ) -> list[HistoryEntry]:
        self.asked.append(("history", subject, kind, model, before, limit))
        return [
            HistoryEntry(
                id=7,
                at=STARTED_AT + 5,
                kind="replica",
                subject="chat-large-1a2b",
                event="ready",
                reason="a one-token request was answered",
                model="org/chat-large",
                nodes=["node01", "node02"],
            )
        ]

    async def logs(self, replica_id: str, rank: int, stream: str, offset: int | None, lines: int) -> LogView:
        self.asked.append(("logs", replica_id, rank, stream, offset, lines))
        if replica_id not in [entry.replica_id for entry in self.replicas_known]:
            raise AdminError(404, "unknown-replica", f"there is no replica {replica_id!r}")
        text = self.log_text
        start = (
            max(0, len(text) - sum(len(line) for line in text.splitlines(True)[-lines:]))
            if offset is None
            else offset
        )
        return LogView(
            replica_id=replica_id,
            rank=rank,
            node="node01",
            offset=start,
            next_offset=len(text),
            text=text[start:],
            shard_over=self.log_over,
        )

    async def check_engine(self, node_id: str, wish: CheckEngine) -> EngineCheck:
        self.asked.append(("check_engine", node_id, wish.engine, wish.args))
        if node_id != "node01":
            raise AdminError(501, "old_agent", f"the agent of {node_id} is too old; update llmgw there")
        flags = [FlagCheck(flag=flag, ok=self.flags_ok, nearest=None) for flag in ["--port", *wish.args]]
        ok, truncated = self.flags_ok, self.flags_ok is None
        return EngineCheck(engine=wish.engine, version="9.9", ok=ok, truncated=truncated, flags=flags)

    async def scale(
        self, model: str, profile: str | None, replicas: int, *, confirmed: bool = False, by: str
    ) -> Done:
        said_yes = ("confirmed",) if confirmed else ()
        if self.scale_refused is not None and not confirmed:
            raise AdminError(409, "needs_confirmation", self.scale_refused)
        return self._done(
            "scale", model, profile, replicas, by, *said_yes, warnings=["no node could host a third"]
        )

    async def restart(self, replica_id: str, *, by: str) -> Done:
        return self._done("restart", replica_id, by)

    async def cordon(self, node_id: str, cordoned: bool, *, by: str) -> Done:
        if node_id not in [entry.node_id for entry in self.nodes_known]:
            raise AdminError(404, "unknown-node", f"there is no node {node_id!r}; known: node01, node02")
        return self._done("cordon", node_id, cordoned, by)

    async def drain(self, node_id: str, *, force: bool, by: str) -> Done:
        return self._done("drain", node_id, force, by)

    async def undrain(self, node_id: str, *, by: str) -> Done:
        return self._done("undrain", node_id, by)

    async def remove_node(self, node_id: str, *, force: bool, by: str) -> Done:
        return self._done("remove_node", node_id, *(["force"] if force else []), by)

    async def authenticate(self, token: str) -> str | None:
        self.authenticated += 1
        return self.tokens_known.get(token)

    async def tokens(self) -> list[TokenView]:
        return [TokenView(name=name, created_at=STARTED_AT) for name in self.tokens_known.values()]

    async def create_token(self, name: str, *, by: str) -> NewToken:
        self.asked.append(("create_token", name, by))
        return NewToken(name=name, token="llmgw-fresh-secret")

    async def revoke_token(self, name: str, *, by: str) -> Done:
        return self._done("revoke_token", name, by)

    def _done(self, *what: Any, warnings: list[str] | None = None) -> Done:
        self.asked.append(what)
        return Done(message=f"{what[0]} was done", warnings=warnings or [])


class ServedAdmin:
    """The admin API over a backend, on a socket of its own, in a thread with its own event loop."""

    def __init__(
        self,
        backend: ScriptedBackend,
        *,
        listen: str = "127.0.0.1:0",
        ssl_context: ssl.SSLContext | None = None,
        attempts: Attempts | None = None,
        app: Any = None,
    ) -> None:
        self.backend = backend
        self._app = app or create_admin_app(backend, secure=ssl_context is not None, attempts=attempts)
        self._scheme = "https" if ssl_context else "http"
        self._listen, self._ssl_context = listen, ssl_context
        self.start()

    def start(self) -> None:
        """Serve, at first on a free port and later on the same one again."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    async def _serve(self) -> None:
        server, sockets = serve_asgi(self._app, self._listen, ssl_context=self._ssl_context)
        self.host, self.port = sockets[0].getsockname()[:2]
        self._listen = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        self.url = f"{self._scheme}://{self._listen}"
        serving = server.start(sockets)
        await server.wait_started()
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stop.wait()
        await server.stop(0)
        await serving

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it as a killed process would: every connection is cut."""
        if self.is_running():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)
