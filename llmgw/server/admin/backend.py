"""What the admin API needs of the control plane. The API knows nothing else of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Protocol

from llmgw.fabric.report import FabricReport
from llmgw.messages.admin import (
    AppliedCatalog,
    ApplyCatalog,
    CatalogPlan,
    CatalogRevisionView,
    CatalogView,
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
    NodeWeightsView,
    PlanCatalog,
    RemovedWeights,
    ReplicaView,
    ServerView,
    TokenView,
)
from llmgw.messages.admin_fabrics import FabricChanges, FabricView
from llmgw.messages.admin_keys import CreateKey, KeyView, LimitKey, NewKey
from llmgw.messages.audit_views import AuditEntry
from llmgw.messages.fabric_test_views import FabricTestResult, FabricTestView, StartFabricTest
from llmgw.messages.recent_views import ModelRates, ModelSeries, RequestView
from llmgw.messages.topology import FabricSummary, TopologyView
from llmgw.messages.upgrade_views import StartUpgrade, UpgradeView
from llmgw.messages.usage_views import UsageView
from llmgw.server.news import News


class AdminError(Exception):
    """A request that cannot be done. `status` is the HTTP status, `code` stable, the message a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class AdminCatalog(Protocol):
    """The catalog's revisions as the admin API sees them."""

    async def view(self, number: int | None) -> CatalogView:
        """A revision with its content; None is the ruling one."""
        ...

    async def revisions(self, before: int | None, limit: int) -> list[CatalogRevisionView]:
        """Newest first; `before` is a number, to page by key."""
        ...

    async def plan(self, wish: PlanCatalog) -> CatalogPlan: ...

    async def apply(self, wish: ApplyCatalog, *, by: str) -> AppliedCatalog: ...


class AdminWeights(Protocol):
    """What lies on the nodes' disks as the admin API sees it."""

    async def view(self, node: str | None) -> list[NodeWeightsView]: ...

    async def remove(self, files: Mapping[str, list[str]], *, by: str) -> RemovedWeights: ...


class AdminFabricTests(Protocol):
    """Bandwidth tests between nodes as the admin API sees them."""

    async def start(self, wish: StartFabricTest, *, by: str) -> FabricTestView: ...

    async def view(self, test_id: str, *, after: int, seen: int | None, wait_s: float) -> FabricTestView:
        """How a test stands, its results behind the first `after`; with `seen`, when it is another version."""
        ...

    async def end(self, test_id: str, *, by: str) -> Done:
        """End a test; nothing of it runs on any node that is there when this is answered."""
        ...

    def kept(self, *, fabric: str | None, node: str | None, limit: int) -> list[FabricTestResult]:
        """Results of all tests that are kept, newest first."""
        ...


class AdminUpgrades(Protocol):
    """Upgrades of the agents as the admin API sees them. Without an id: the last one."""

    async def receive(self, sha256: str, chunks: AsyncIterator[bytes]) -> Done:
        """Keep a release's file, which has this SHA-256."""
        ...

    async def start(self, wish: StartUpgrade, *, by: str) -> UpgradeView: ...

    async def view(self, upgrade_id: str | None, *, seen: int | None, wait_s: float) -> UpgradeView:
        """How an upgrade stands; with `seen`, when it is another change."""
        ...

    async def cancel(self, upgrade_id: str | None, *, by: str) -> Done:
        """Begin with no further node."""
        ...


class AdminFabrics(Protocol):
    """Fabrics as the admin API sees them. A name is the operator's, or a physical fabric's id."""

    async def views(self) -> list[FabricView]: ...

    async def changes(self, name: str, before: int | None, limit: int) -> FabricChanges:
        """What changed, newest first; `before` is a change's id, to page by key."""
        ...

    async def accept(self, name: str, *, by: str) -> Done:
        """Pin the cabling of the newest map."""
        ...

    async def map(self, name: str) -> FabricReport:
        """What `inspect fabric` says of the newest map."""
        ...


class AdminDrawings(Protocol):
    """The fabrics as API and pages see them, by id or by what operators call them; unknown ones raise 404."""

    async def overview(self) -> list[FabricSummary]: ...

    async def topology(self, name: str) -> TopologyView: ...

    async def live(self, name: str) -> TopologyView:
        """Without the graph."""
        ...

    async def svg(self, name: str) -> str: ...


class AdminUsage(Protocol):
    """What requests took as the admin API sees it."""

    async def view(
        self, *, from_s: int, to_s: int, key: str | None, model: str | None, by: Collection[str]
    ) -> UsageView:
        """Sums of the hours in [from_s, to_s), told apart by `by`, in its order."""
        ...


class AdminRecent(Protocol):
    """The last requests as API and pages see them."""

    def rates(self) -> list[ModelRates]:
        """Every model of the catalog, in its order."""
        ...

    def series(self, model: str) -> ModelSeries:
        """A model's last hour; nothing but empty steps for one that had no request."""
        ...

    def requests(
        self, *, before: int | None, limit: int, fits: Callable[[RequestView], bool] = ...
    ) -> list[RequestView]:
        """Newest first; `before` is a request's id, to page by key."""
        ...


class AdminKeys(Protocol):
    """The API keys of the model API as the admin API sees them. A name may also be what a key begins with."""

    def views(self) -> list[KeyView]: ...

    async def create(self, wish: CreateKey, *, by: str) -> NewKey: ...

    async def limit(self, name: str, wish: LimitKey, *, by: str) -> Done: ...

    async def revoke(self, name: str, *, by: str) -> Done: ...


class AdminAudit(Protocol):
    """Who asked for what: written by the admin API itself, whatever its answer."""

    def record(
        self,
        *,
        by: str,
        address: str,
        method: str,
        route: str,
        subject: str,
        summary: str,
        status: int,
        message: str,
    ) -> None:
        """Keep an entry; never waits, never raises."""
        ...

    def wrong_token(self, address: str, method: str, route: str) -> None:
        """Count a token that nobody knows; never waits, never raises."""
        ...

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
        """Newest first, with times in [from_s, to_s); `before` is an entry's id, to page by key."""
        ...


class AdminBackend(Protocol):
    """The control plane as the admin API sees it. Unknown names raise AdminError(404, …) with the known ones."""

    @property
    def catalog(self) -> AdminCatalog: ...

    @property
    def weights(self) -> AdminWeights: ...

    @property
    def keys(self) -> AdminKeys: ...

    @property
    def fabrics(self) -> AdminFabrics: ...

    @property
    def fabric_tests(self) -> AdminFabricTests: ...

    @property
    def upgrades(self) -> AdminUpgrades: ...

    @property
    def drawings(self) -> AdminDrawings: ...

    @property
    def usage(self) -> AdminUsage: ...

    @property
    def recent(self) -> AdminRecent: ...

    @property
    def audit(self) -> AdminAudit: ...

    @property
    def news(self) -> News:
        """That something of all this may have changed."""
        ...

    def server(self) -> ServerView: ...

    def nodes(self) -> list[NodeView]: ...

    def node_removal(self, node_id: str) -> NodeRemoval:
        """Of a name that need not be known any more."""
        ...

    def replicas(self) -> list[ReplicaView]: ...

    def models(self) -> list[ModelView]: ...

    def explain(self, model: str) -> ExplainView: ...

    async def metrics(self) -> bytes:
        """The state as Prometheus' text form (version 0.0.4)."""
        ...

    async def history(
        self, *, subject: str | None, kind: str | None, model: str | None, before: int | None, limit: int
    ) -> list[HistoryEntry]:
        """Newest first; `before` is an entry's id, to page by key."""
        ...

    async def logs(self, replica_id: str, rank: int, stream: str, offset: int | None, lines: int) -> LogView: ...

    async def check_engine(self, node_id: str, wish: CheckEngine) -> EngineCheck:
        """An engine's own help against what it would be given; it may take a minute."""
        ...

    async def scale(
        self, model: str, profile: str | None, replicas: int, *, confirmed: bool = False, by: str
    ) -> Done: ...

    async def restart(self, replica_id: str, *, by: str) -> Done: ...

    async def cordon(self, node_id: str, cordoned: bool, *, by: str) -> Done: ...

    async def drain(self, node_id: str, *, force: bool, by: str) -> Done: ...

    async def undrain(self, node_id: str, *, by: str) -> Done: ...

    async def remove_node(self, node_id: str, *, force: bool, by: str) -> Done: ...

    async def authenticate(self, token: str) -> str | None:
        """The token's name, or None. Constant-time over the stored hashes."""
        ...

    async def tokens(self) -> list[TokenView]: ...

    async def create_token(self, name: str, *, by: str) -> NewToken: ...

    async def revoke_token(self, name: str, *, by: str) -> Done: ...
