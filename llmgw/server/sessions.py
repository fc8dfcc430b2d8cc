"""Who speaks for each node now, and the commands that wait for it."""

from __future__ import annotations

from collections.abc import Callable

from llmgw.fleet.carry_out import Effects
from llmgw.fleet.model import Fleet
from llmgw.server.hub_error import HubError
from llmgw.server.mailbox import Mailbox


class Sessions:
    """At most one session a node; whatever belonged to the one before ends with it (invariant 10)."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is the monotonic clock."""
        self._now = now
        self._mailboxes: dict[str, Mailbox] = {}
        self._node_ids: dict[str, str] = {}

    def begin(self, node_id: str, session: str) -> None:
        """From now on this session speaks for the node, and no other."""
        self.end(node_id)
        self._node_ids[session] = node_id
        self._mailboxes[node_id] = Mailbox(session, self._now)

    def node_of(self, session: str, fleet: Fleet) -> str:
        """The node of a live session. Raises HubError 410 when it is unknown or superseded."""
        node_id = self._node_ids.get(session)
        node = fleet.nodes.get(node_id) if node_id is not None else None
        if node_id is None or node is None or node.session != session:
            raise HubError(410, "session_over", "this session is unknown or superseded; register again")
        return node_id

    def __len__(self) -> int:
        """How many nodes have a session."""
        return len(self._mailboxes)

    def mailbox(self, node_id: str) -> Mailbox | None:
        """The commands of the node's session, or None when it has none."""
        return self._mailboxes.get(node_id)

    def send(self, effects: Effects) -> None:
        """Queue what was decided; for a node without a session nothing, its registration decides anew."""
        for node_id, spec in effects.starts:
            mailbox = self._mailboxes.get(node_id)
            if mailbox is not None:
                mailbox.start(spec)
        for node_id, shard_id, reason in effects.stops:
            mailbox = self._mailboxes.get(node_id)
            if mailbox is not None:
                mailbox.stop(shard_id, reason)

    def end(self, node_id: str) -> None:
        """The node's session is over; who polls in it is told."""
        mailbox = self._mailboxes.pop(node_id, None)
        if mailbox is not None:
            mailbox.close()
            self._node_ids.pop(mailbox.session, None)

    def end_all(self) -> None:
        """Every session is over."""
        for node_id in list(self._mailboxes):
            self.end(node_id)

    def close_lost(self, fleet: Fleet) -> None:
        """Close what a decision has ended: sessions of nodes that are lost or gone."""
        for node_id, mailbox in self._mailboxes.items():
            node = fleet.nodes.get(node_id)
            if not mailbox.closed and (node is None or node.session != mailbox.session):
                mailbox.close()
                self._node_ids.pop(mailbox.session, None)
