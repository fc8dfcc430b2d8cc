"""The upgrade of this control plane's agents: takes the file, starts a roll and carries it on, also over a
restart.

There is one at a time; the last one stays until the next, so that it can be asked how it went.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import structlog

import llmgw
from llmgw.messages.admin import Done
from llmgw.messages.agent import Command
from llmgw.messages.findings import Finding
from llmgw.messages.upgrade import ReadRelease, Upgrade
from llmgw.messages.upgrade_views import OVER, NodeUpgrade, StartUpgrade, UpgradeView
from llmgw.release.files import ReleaseError, ReleaseFile, read_name
from llmgw.release.signature import read_public_key, verify
from llmgw.release.versions import understand_each_other
from llmgw.server.admin.backend import AdminError
from llmgw.server.hub import Hub
from llmgw.server.hub_error import HubError
from llmgw.server.store.interface import StoreInterface
from llmgw.server.upgrades.releases import Releases
from llmgw.server.upgrades.roll import Roll
from llmgw.server.upgrades.sights import sights

log = structlog.get_logger("upgrades")

LOOK_EVERY_S = 0.5
FACT = "upgrade"


class Upgrades:
    """`AdminUpgrades` over hub, store and the files. `release_key` is looked at only where it is there."""

    def __init__(
        self,
        hub: Hub,
        store: StoreInterface,
        releases: Releases,
        *,
        release_key: Path,
        version: str = llmgw.__version__,
    ) -> None:
        self._hub = hub
        self._store = store
        self._releases = releases
        self._release_key = release_key
        self._version = version
        self._roll: Roll | None = None
        self._shown: int | None = None
        """The change of the roll that those who follow it were woken for."""
        self._kept: tuple[object, ...] = ()
        """What the store knows of it; progress of a download is not worth a write."""
        self._told: dict[str, str] = {}
        """Node → the state that history knows."""
        self._awake_s = 0.0
        self._changed = asyncio.Event()

    # What operators ask for.

    async def receive(self, sha256: str, chunks: AsyncIterator[bytes]) -> Done:
        """Keep a release's file for an upgrade. Raises AdminError."""
        if self._running is None:
            self._releases.keep_only(None)
        try:
            size = await self._releases.receive(sha256, chunks)
        except ReleaseError as error:
            raise AdminError(409, "release", str(error)) from None
        return Done(message=f"{size} bytes are here")

    async def start(self, wish: StartUpgrade, *, by: str) -> UpgradeView:
        """Begin a roll. Raises AdminError with a sentence, before any agent has been asked."""
        self._only_one()
        try:
            release = read_name(wish.name)
            await asyncio.to_thread(self._prove, wish)
            self._only_one()  # another may have begun meanwhile; from here on nothing is waited for
            size = self._releases.size_bytes(wish.sha256)
            self._check_skew(release)
        except ReleaseError as error:
            raise AdminError(409, "release", str(error)) from None
        known = self._hub.fleet.nodes
        unknown = sorted(set(wish.nodes) - set(known))
        if unknown:
            raise AdminError(404, "unknown-node", f"there is no node {unknown[0]!r}; llmgw ctl nodes lists them")
        names = list(dict.fromkeys(wish.nodes)) or sorted(known)
        if not names:
            raise AdminError(409, "no-nodes", "no node has registered yet, so there is nothing to upgrade")
        view = UpgradeView(
            id=f"{self._hub.epoch}-{int(self._hub.clock.wall())}",
            name=release.name,
            version=release.version,
            sha256=wish.sha256,
            size_bytes=size,
            signature=wish.signature.strip(),
            allow_downgrade=wish.allow_downgrade,
            back_within_s=wish.back_within_s,
            by=by,
            started_at=self._hub.clock.wall(),
            nodes=[NodeUpgrade(node=name) for name in names],
            change=1,
        )
        self._roll, self._told = Roll(view), {}
        self._record("upgrade started", f"to llmgw {view.version} by {by}", names)
        self._keep()
        return view

    async def view(self, upgrade_id: str | None, *, seen: int | None, wait_s: float) -> UpgradeView:
        """The last upgrade, or the one of that id; with `seen`, at its next change. Raises AdminError 404."""
        roll = self._find(upgrade_id)
        if seen is not None:
            try:
                async with asyncio.timeout(wait_s):
                    while roll is self._roll and roll.view.change == seen:
                        await self._changed.wait()
            except TimeoutError:
                pass
        return roll.view

    async def cancel(self, upgrade_id: str | None, *, by: str) -> Done:
        """Begin with no further node. Raises AdminError 404."""
        roll = self._find(upgrade_id)
        if roll.view.state in ("done", "cancelled"):
            return Done(message=f"the upgrade {roll.view.id} is over already")
        stopped = roll.view.state == "stopped"
        begun = next((n.node for n in roll.view.nodes if n.state not in OVER and n.state != "waiting"), None)
        roll.cancel(by)
        self._keep()
        if stopped:
            return Done(message=f"the upgrade {roll.view.id} had stopped already; it is not mentioned any more")
        if begun is not None:
            return Done(message=f"no further node is begun with; {begun} is let finish")
        return Done(message="no further node is begun with")

    # What others ask.

    async def piece(self, node_id: str, wish: ReadRelease) -> bytes:
        """A piece of the file that a node is to become. Raises HubError 404 when it is not that node's turn."""
        roll = self._running
        if roll is None or roll.view.sha256 != wish.sha256 or roll.current != node_id:
            raise HubError(404, "no_release", f"{node_id} is not asked to become this release (any more)")
        try:
            return await asyncio.to_thread(self._releases.read, wish.sha256, wish.offset, wish.size_bytes)
        except ReleaseError as error:
            raise HubError(404, "no_release", str(error)) from None

    def findings(self) -> list[Finding]:
        """That the last upgrade has stopped, until that is known or another was started."""
        roll = self._roll
        if roll is None or roll.view.state != "stopped":
            return []
        return [
            Finding(
                check="upgrade",
                severity="warning",
                where=roll.view.id,
                what=f"the upgrade of the agents to llmgw {roll.view.version} has stopped: {roll.view.reason}",
                why="the nodes after that one still run the version from before",
                remedy="`llmgw ctl upgrade --status` names them; then upgrade again, or `llmgw ctl upgrade "
                "--cancel`",
            )
        ]

    async def restore(self) -> None:
        """Take up what an earlier server left. Raises StoreError."""
        text = await self._store.fact(FACT)
        if text is None:
            self._releases.keep_only(None)
            return
        try:
            view = msgspec.json.decode(text, type=UpgradeView)
        except msgspec.MsgspecError as error:
            log.error("the last upgrade is not understood and is left", error=str(error))
            return
        self._roll = Roll(view)
        self._told = {node.node: node.state for node in view.nodes if node.state in OVER}
        self._kept = _durable(view)
        if view.state != "running":
            self._releases.keep_only(None)
            return
        self._releases.keep_only(view.sha256)
        if not self._releases.has(view.sha256):
            self._roll.stop(f"{view.name} was not in the server's state folder any more after its restart")
            self._keep()
            return
        log.info("an upgrade goes on", id=view.id, to=view.version, node=self._roll.current)

    async def run(self) -> None:
        """Carry the roll on. Returns by being cancelled."""
        last = self._hub.clock.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            now = self._hub.clock.monotonic()
            # A pause of this process is nobody's delay.
            self._awake_s += min(now - last, 2 * LOOK_EVERY_S)
            last = now
            self.look()

    def look(self) -> None:
        """See how the node whose turn it is stands, and ask the next one when it is time."""
        roll = self._running
        # While settling, who is not there may only not have come yet.
        if roll is None or self._hub.fleet.settling:
            return
        for node in roll.look(sights(self._hub, roll.view), self._awake_s):
            self._ask(node, roll.view)
        if roll.view.change != self._shown:
            self._keep()
        if roll.view.state != "running":
            self._releases.keep_only(None)

    # Inside.

    @property
    def _running(self) -> Roll | None:
        return self._roll if self._roll is not None and self._roll.view.state == "running" else None

    def _only_one(self) -> None:
        running = self._running
        if running is not None:
            raise AdminError(
                409,
                "busy",
                f"the upgrade {running.view.id} to llmgw {running.view.version} is under way; wait for its "
                "end, or llmgw ctl upgrade --cancel",
            )

    def _find(self, upgrade_id: str | None) -> Roll:
        if self._roll is None:
            raise AdminError(404, "no-upgrade", "there was no upgrade of agents yet")
        if upgrade_id not in (None, self._roll.view.id):
            raise AdminError(
                404,
                "unknown-upgrade",
                f"there is no upgrade {upgrade_id!r}; the last one is {self._roll.view.id}",
            )
        return self._roll

    def _ask(self, node: str, view: UpgradeView) -> None:
        def command(seq: int) -> Command:
            return Upgrade(
                seq=seq,
                request_id=view.id,
                name=view.name,
                sha256=view.sha256,
                size_bytes=view.size_bytes,
                signature=view.signature,
                allow_downgrade=view.allow_downgrade,
            )

        self._hub.upgrades_told.pop(node, None)
        mailbox = self._hub.sessions.mailbox(node)
        if mailbox is None or not mailbox.ask(command):
            log.warning("a node cannot be asked to upgrade now", node=node)
            return
        log.info("a node is asked to upgrade", node=node, to=view.version)

    def _keep(self) -> None:
        """What changed is shown to those who follow, and goes to the store and into history."""
        roll = self._roll
        assert roll is not None
        now = self._hub.clock.wall()
        over = roll.view.state != "running" and roll.view.ended_at is None
        if over:
            roll.view = msgspec.structs.replace(roll.view, ended_at=now, change=roll.view.change + 1)
        self._shown = roll.view.change
        self._changed.set()
        self._changed = asyncio.Event()
        if _durable(roll.view) == self._kept:
            return
        self._kept = _durable(roll.view)
        for node in roll.view.nodes:
            if node.state in _EVENTS and self._told.get(node.node) != node.state:
                self._told[node.node] = node.state
                reason = node.reason or f"llmgw {node.was} → {roll.view.version}"
                self._store.record("node", node.node, _EVENTS[node.state], now, reason=reason, nodes=[node.node])
        if over:
            view = roll.view
            self._record(_ENDS[view.state], view.reason or _summary(view), [node.node for node in view.nodes])
        self._store.put_fact(FACT, msgspec.json.encode(roll.view).decode(), now)

    def _record(self, event: str, reason: str, nodes: list[str]) -> None:
        self._store.record("server", "server", event, self._hub.clock.wall(), reason=reason, nodes=nodes)

    def _prove(self, wish: StartUpgrade) -> None:
        try:
            pem = self._release_key.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise ReleaseError(f"the release key {self._release_key} cannot be read: {error.strerror}") from None
        verify(
            read_public_key(pem, str(self._release_key)), wish.name, bytes.fromhex(wish.sha256), wish.signature
        )

    def _check_skew(self, release: ReleaseFile) -> None:
        if not understand_each_other(release.version, self._version):
            raise ReleaseError(
                f"{release.name} is not understood by this server, llmgw {self._version}: agents may be one "
                "minor version older or newer. Upgrade the server first, and one minor version after the other."
            )


_ENDS = {"done": "upgrade ended", "stopped": "upgrade stopped", "cancelled": "upgrade cancelled"}
_EVENTS = {
    "upgraded": "upgraded",
    "refused": "upgrade refused",
    "back": "went back",
    "failed": "upgrade failed",
}


def _durable(view: UpgradeView) -> tuple[object, ...]:
    return (view.id, view.state, view.cancelled_by, tuple(node.state for node in view.nodes))


def _summary(view: UpgradeView) -> str:
    counts: dict[str, int] = {}
    for node in view.nodes:
        counts[node.state] = counts.get(node.state, 0) + 1
    return f"llmgw {view.version}: " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
