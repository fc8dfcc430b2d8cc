"""What the admin API needs of the control plane. The API knows nothing else of it."""

from __future__ import annotations

from typing import Protocol

from llmgw.messages.admin import (
    Done,
    ExplainView,
    FabricView,
    HistoryEntry,
    LogView,
    ModelView,
    NewToken,
    NodeView,
    ReplicaView,
    ServerView,
    TokenView,
)


class AdminError(Exception):
    """A request that cannot be done. `status` is the HTTP status, `code` stable, the message a sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class AdminBackend(Protocol):
    """The control plane as the admin API sees it. Unknown names raise AdminError(404, …) with the known ones."""

    def server(self) -> ServerView: ...

    def nodes(self) -> list[NodeView]: ...

    def replicas(self) -> list[ReplicaView]: ...

    def fabrics(self) -> list[FabricView]: ...

    def models(self) -> list[ModelView]: ...

    def explain(self, model: str) -> ExplainView: ...

    def metrics(self) -> bytes:
        """The state as Prometheus' text form (version 0.0.4)."""
        ...

    async def history(
        self, *, subject: str | None, kind: str | None, model: str | None, before: int | None, limit: int
    ) -> list[HistoryEntry]:
        """Newest first; `before` is an entry's id, to page by key."""
        ...

    async def logs(self, replica_id: str, rank: int, stream: str, offset: int | None, lines: int) -> LogView: ...

    async def scale(self, model: str, profile: str | None, replicas: int, *, by: str) -> Done: ...

    async def restart(self, replica_id: str, *, by: str) -> Done: ...

    async def cordon(self, node_id: str, cordoned: bool, *, by: str) -> Done: ...

    async def drain(self, node_id: str, *, force: bool, by: str) -> Done: ...

    async def undrain(self, node_id: str, *, by: str) -> Done: ...

    async def remove_node(self, node_id: str, *, by: str) -> Done: ...

    async def authenticate(self, token: str) -> str | None:
        """The token's name, or None. Constant-time over the stored hashes."""
        ...

    async def tokens(self) -> list[TokenView]: ...

    async def create_token(self, name: str, *, by: str) -> NewToken: ...

    async def revoke_token(self, name: str, *, by: str) -> Done: ...
