"""The API keys as the routers are told of them, and what the routers tell of the keys."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw.config.server import KeyRule
from llmgw.messages.findings import Finding
from llmgw.messages.routes import KeyRoute, RouteTable, Telemetry
from llmgw.server.key_shares import KeyShares
from llmgw.server.key_tally import KeyTally
from llmgw.server.store.key_records import KeyRecord


class ApiKeys:
    """What the hub knows of keys. The keys themselves come from the store, never from a router's table."""

    def __init__(self, rule: KeyRule = KeyRule.ONCE_MADE) -> None:
        self.rule = rule
        self.routes: list[KeyRoute] = []
        """The same list until a key changes, so that comparing tables costs nothing."""
        self.names: dict[str, str] = {}
        """Id → name of every key that is not revoked."""
        self.any_made = False
        self.store_lost = False
        """A router's table has keys, and the store never had one."""
        self.used: set[str] = set()
        """Ids of keys that came with a request since `take_used`."""
        self.shares = KeyShares()
        self.tally = KeyTally()

    @property
    def required(self) -> bool:
        """Whether a request without a key is refused."""
        if self.rule is KeyRule.ONCE_MADE:
            return self.any_made or self.store_lost
        return self.rule is KeyRule.ALWAYS

    def take(self, records: Iterable[KeyRecord], *, any_made: bool) -> None:
        """These are the keys from now on. Where nobody is asked for one, the routers are told of none."""
        records = sorted(records, key=lambda record: record.id)
        self.any_made = any_made
        self.names = {record.id: record.name for record in records}
        self.routes = [key_route(record) for record in records] if self.rule is not KeyRule.NEVER else []
        self.shares.set_limits(self.routes)
        self.tally.keep(self.names)

    def imported(self, table: RouteTable) -> None:
        """A router that outlived the previous server has this table. Its keys are not taken over; but when it has
        some and the store never had any, the store was lost, and the gateway must not open itself for that."""
        if table.keys and not self.any_made:
            self.store_lost = True

    def told(self, router_id: str, message: Telemetry) -> None:
        """Take what a router saw."""
        self.shares.told(router_id, message.keys)
        for outcome in message.outcomes:
            if outcome.key in self.names:
                self.used.add(outcome.key)
        self.tally.take(message.outcomes, self.names)

    def take_used(self) -> set[str]:
        """Ids of the keys that were used since the last call."""
        used, self.used = self.used, set()
        return used

    def findings(self, listen: str, now: float) -> list[Finding]:
        """What an operator should know: that everybody is refused, or that keys are not asked for."""
        alive = [key for key in self.routes if key.expires_at_s is None or key.expires_at_s > now]
        if self.required and not alive:
            what = "every request to the model API is refused: it needs a key, and there is none"
            if self.store_lost:
                what += "; the routers had some, so the store was lost"
            elif self.names:
                what = "every request to the model API is refused: all keys have expired"
            return [
                Finding(
                    check="no-api-keys",
                    severity="error",
                    where=f"model API {listen}",
                    what=what,
                    remedy="`llmgw ctl keys create NAME`, or auth: none in server.yaml to open it to everybody",
                )
            ]
        if self.rule is KeyRule.NEVER and self.names:
            count = len(self.names)
            return [
                Finding(
                    check="api-keys-not-asked-for",
                    severity="warning",
                    where=f"model API {listen}",
                    what=f"{count} API key{'s' if count > 1 else ''} made, and nobody is asked for one",
                    why="auth: none opens the model API to everybody who can reach it, and no key's limits hold",
                    remedy="write auth: keys in server.yaml and restart the server, or revoke the keys",
                )
            ]
        return []


def key_route(record: KeyRecord) -> KeyRoute:
    """A key as the routers are told of it."""
    return KeyRoute(
        id=record.id,
        hash=bytes.fromhex(record.secret_hash),
        models=record.models,
        requests_per_minute=record.requests_per_minute,
        tokens_per_minute=record.tokens_per_minute,
        concurrency=record.concurrency,
        priority=record.priority,
        expires_at_s=record.expires_at,
    )
