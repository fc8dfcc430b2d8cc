"""Where a finding is, as something to click: nodes, replicas, models and fabrics have pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from llmgw.messages.admin import ModelView, NodeView, ReplicaView
from llmgw.messages.topology import FabricSummary
from llmgw.server.pages.addresses import fabric_url, model_url, node_url, replica_url


@dataclass(frozen=True, slots=True)
class Place:
    """What a finding names: `name` has the page `href` (None: it has none), `rest` says where in it, `kind` what
    it is (`NODE`, as commands write it; empty where it is not known)."""

    name: str
    rest: str = ""
    href: str | None = None
    kind: str = ""


@dataclass(slots=True)
class Places:
    """Everything that has a page, by how findings name it."""

    _exact: dict[str, tuple[str, str]] = field(default_factory=dict)
    _nodes: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        nodes: Iterable[NodeView],
        replicas: Iterable[ReplicaView],
        models: Iterable[ModelView],
        fabrics: Iterable[FabricSummary],
    ) -> Places:
        """The places of a fleet."""
        exact: dict[str, tuple[str, str]] = {}
        for fabric in fabrics:
            page = fabric_url(fabric.id)
            # Two physical fabrics under one name: the list tells them apart.
            for name in {", ".join(fabric.names) or fabric.id, *fabric.names}:
                exact[name] = ("FABRIC", "/admin/fabrics" if name in exact else page)
        models = list(models)
        for model in models:
            for profile in model.profiles:
                exact[f"{model.name}/{profile.name}"] = ("MODEL", model_url(model.name))
        # A model `org/chat` is not the profile `chat` of a model `org`.
        exact |= {model.name: ("MODEL", model_url(model.name)) for model in models}
        for replica in replicas:
            exact[replica.replica_id] = ("REPLICA", replica_url(replica.replica_id))
        return cls(exact, frozenset(node.node_id for node in nodes))

    def find(self, where: str) -> Place:
        """A finding's `where`: exactly one of them, or a node and what of it."""
        if where in self._exact and where not in self._nodes:
            kind, href = self._exact[where]
            return Place(where, href=href, kind=kind)
        node, _, rest = where.partition(" ")
        if node in self._nodes:
            return Place(node, rest, node_url(node), "NODE")
        return Place(where)
