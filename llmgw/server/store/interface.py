"""What the control plane may ask of the store: changes that never wait, and reads.

A subclass says only how a write is carried out and how a question is put: the real one (`store.py`) through a
queue and connections of its own, a simulation's inline and without threads. Time is an argument of every
change; nothing here reads a clock.

What memory holds (nodes, fabrics, tokens, revocations) is answered at once and includes changes that wait to
be committed. History and catalog revisions are read from the disk and hold what is committed.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from pydantic import ValidationError
from sqlalchemy import Connection

from llmgw.config.catalog import Catalog
from llmgw.fleet.lives import Life
from llmgw.messages.admin import HistoryEntry, TokenView
from llmgw.messages.agent import FabricOffer
from llmgw.messages.fabric_test_views import FabricTestResult
from llmgw.messages.findings import Finding
from llmgw.server.store import reads, writes
from llmgw.server.store.audit import AuditStore
from llmgw.server.store.errors import StoreError
from llmgw.server.store.fabrics import FabricStore
from llmgw.server.store.keys import KeyStore
from llmgw.server.store.queue import Write
from llmgw.server.store.records import (
    FABRIC_TESTS_KEPT,
    CatalogRevision,
    FabricRecord,
    Kept,
    NodeRecord,
    Revocation,
    TokenRecord,
)
from llmgw.server.store.secrets import is_secret_hash, name_problem
from llmgw.server.store.usage import UsageStore

HISTORY_ROWS_KEPT = 1_000_000
HISTORY_PAGE_MAX = 1_000
PRUNE_EVERY_ROWS = 10_000
PRUNE_FABRIC_TESTS_EVERY = 500
PRUNE_CHUNK_ROWS = 20_000  # one transaction: some tens of milliseconds
REASON_CHARS_MAX = 4_000
TOKEN_TOUCH_S = 60.0  # `last used` is written at most this often for each token
COMMIT_WAIT_S = 10.0

T = TypeVar("T")


class StoreInterface(ABC):
    """Desired state and history, as the control plane sees them."""

    def __init__(self, kept: Kept, history_rows_kept: int = HISTORY_ROWS_KEPT) -> None:
        self._kept = kept
        self._history_rows_kept = history_rows_kept
        self._recorded = 0
        self._fabric_tests_added = 0
        self.fabric_watch = FabricStore(kept.physical_fabrics, self._enqueue, self._read)
        """What is known of physical fabrics, and what changed on them."""
        self.usage = UsageStore(self._enqueue, self._read)
        """What requests took."""
        self.api_keys = KeyStore(kept.api_keys, self._enqueue, self._commit)
        """Who may use the model API."""
        self.audit = AuditStore(kept.audit_last_id, self._enqueue, self._read)
        """Who asked for what."""

    @property
    def epoch(self) -> str:
        """This server's life: a string unlike any that an earlier life had."""
        return self._kept.epoch

    # How a subclass carries things out.

    @abstractmethod
    def _enqueue(self, write: Write) -> None:
        """Take a write; never wait, never lose it while the process lives."""

    @abstractmethod
    async def _commit(self, apply: Callable[[Connection], T], then: Callable[[T], None]) -> T:
        """Carry a write out and return its result once it is committed. Raises StoreError.

        `then` gets the result at the commit, also when the caller is cancelled: memory must not differ from
        the disk because somebody hung up.
        """

    @abstractmethod
    async def _read(self, ask: Callable[[Connection], T]) -> T:
        """Put a question to what is committed. Raises StoreError."""

    @abstractmethod
    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything put before is committed. Raises StoreError when `timeout_s` is over first."""

    @abstractmethod
    async def stored(self, timeout_s: float) -> bool:
        """True once everything put before is committed; False when that fails or takes longer.

        For many callers at once: unlike `flush` it has no failed write tried again sooner.
        """

    @abstractmethod
    def findings(self) -> list[Finding]:
        """What is wrong with the store now."""

    @abstractmethod
    async def close(self, timeout_s: float = COMMIT_WAIT_S) -> None:
        """Commit what waits and let go of the file. Raises StoreError when something is left uncommitted."""

    # History.

    def record(
        self,
        kind: str,
        subject: str,
        event: str,
        now: float,
        *,
        reason: str = "",
        model: str | None = None,
        nodes: Sequence[str] = (),
        once: bool = False,
    ) -> None:
        """Add a transition to the history, in the words of `HistoryEntry`. A long reason is cut at its end.

        `once`: unless an entry of the same kind, subject, event and reason is there already.
        """
        row = {
            "at": now,
            "kind": _text(kind, 32),
            "subject": _text(subject, 512),
            "event": _text(event, 64),
            "reason": _text(reason, REASON_CHARS_MAX),
            "model": None if model is None else _text(model, 256),
            "nodes": list(nodes),
        }
        if once:
            self._enqueue(Write(apply=partial(writes.insert_history_once, row=row)))
        else:
            self._enqueue(Write(history_row=row))
        self._recorded += 1
        if self._recorded % PRUNE_EVERY_ROWS == 0:
            self.prune_history(self._history_rows_kept)

    async def history(
        self,
        *,
        subject: str | None = None,
        kind: str | None = None,
        model: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[HistoryEntry]:
        """Entries that match all that is given, newest first; `before` is an id, to page by key.

        At most `HISTORY_PAGE_MAX` at once.
        """
        count = max(1, min(limit, HISTORY_PAGE_MAX))
        return await self._read(
            partial(reads.history, subject=subject, kind=kind, model=model, before=before, limit=count)
        )

    def prune_history(self, keep_rows: int) -> None:
        """Delete all but the newest `keep_rows` entries, in small transactions between other writes."""

        def then(deleted: object) -> None:
            if deleted == PRUNE_CHUNK_ROWS:
                self.prune_history(keep_rows)

        prune = partial(writes.prune_history, keep_rows=max(0, keep_rows), chunk_rows=PRUNE_CHUNK_ROWS)
        self._enqueue(Write(apply=prune, touch="prune", then=then))

    # Nodes.

    def nodes(self) -> dict[str, NodeRecord]:
        """All nodes that are kept, by id."""
        return dict(self._kept.nodes)

    def put_node(self, node_id: str, now: float, *, address: str | None = None, life: Life | None = None) -> None:
        """A node has registered: keep it, its address and which life it speaks from."""
        known = self._kept.nodes.get(node_id)
        if known is None:
            node = NodeRecord(id=node_id, address=address, first_seen=now, last_registered=now, life=life)
            self._enqueue(Write(apply=partial(writes.insert_node, node=node)))
        else:
            node = msgspec.structs.replace(known, address=address, last_registered=now, life=life)
            again = known.address == address and _same_process(known.life, life)
            self._enqueue(
                Write(
                    apply=partial(writes.update_registration, node=node),
                    touch=f"node {node_id}" if again else None,
                )
            )
        self._kept.nodes[node_id] = node

    def put_cordoned(self, node_id: str, cordoned: bool, now: float) -> None:
        """Cordon or uncordon a node. Raises StoreError for a node that is not kept."""
        known = self._node(node_id)
        if cordoned != known.cordoned:
            self._put_flags(msgspec.structs.replace(known, cordoned_at=now if cordoned else None))

    def put_draining(self, node_id: str, draining: bool, now: float, *, force: bool = False) -> None:
        """Set or clear a node's drain flag. Raises StoreError for a node that is not kept."""
        known = self._node(node_id)
        forced = draining and force
        if (draining, forced) != (known.draining, known.drain_forced):
            since = (known.draining_at or now) if draining else None
            self._put_flags(msgspec.structs.replace(known, draining_at=since, drain_forced=forced))

    def removed_at(self, node_id: str) -> float | None:
        """When a node of that name was removed last; None when none was."""
        return self._kept.removed_nodes.get(node_id)

    async def remove_node(self, node_id: str, now: float) -> None:
        """Forget a node, its flags and its fabrics; its history stays, and that it was removed.

        Raises StoreError when the disk does not take it: nothing is forgotten then, now or later.
        """

        def forget(_deleted: None) -> None:
            self._kept.removed_nodes[node_id] = now
            self._kept.nodes.pop(node_id, None)
            for key in [key for key in self._kept.fabrics if key[0] == node_id]:
                del self._kept.fabrics[key]

        await self._commit(partial(writes.delete_node, node_id=node_id, removed_at=now), forget)

    def _node(self, node_id: str) -> NodeRecord:
        node = self._kept.nodes.get(node_id)
        if node is None:
            raise StoreError(f"there is no node {node_id}", "llmgw ctl nodes lists them")
        return node

    def _put_flags(self, node: NodeRecord) -> None:
        self._kept.nodes[node.id] = node
        self._enqueue(Write(apply=partial(writes.update_flags, node=node)))

    # Fabrics.

    def fabrics(self) -> list[FabricRecord]:
        """Every fabric of every kept node as it was last said, by node and name."""
        return [self._kept.fabrics[key] for key in sorted(self._kept.fabrics)]

    def put_fabrics(self, node_id: str, offers: Iterable[FabricOffer], now: float) -> None:
        """A node says what it can do on each of its fabrics; one it no longer names is forgotten.

        Unlike other changes these write their own history (`kind` fabric, `subject` its name): `usable`,
        `unusable`, `changed` (other adapters) or `gone`. Nothing is written when nothing changed, nor for a
        node that is not kept.
        """
        if node_id not in self._kept.nodes:
            return
        names = set()
        for offer in offers:
            names.add(offer.name)
            self._put_fabric(node_id, offer, now)
        for node, name in [key for key in self._kept.fabrics if key[0] == node_id and key[1] not in names]:
            del self._kept.fabrics[node, name]
            self._enqueue(Write(apply=partial(writes.delete_fabric, node_id=node, name=name)))
            self.record("fabric", name, "gone", now, reason="the node no longer declares it", nodes=[node])

    def _put_fabric(self, node_id: str, offer: FabricOffer, now: float) -> None:
        known = self._kept.fabrics.get((node_id, offer.name))
        event = _fabric_event(known, offer)
        fabric = FabricRecord(
            name=offer.name,
            node=node_id,
            adapters=offer.adapters,
            usable=offer.usable,
            reason=None if offer.reason is None else _text(offer.reason, REASON_CHARS_MAX),
            rate_gbps=offer.rate_gbps,
            changed_at=now if event or known is None else known.changed_at,
        )
        if fabric == known:
            return
        self._kept.fabrics[node_id, offer.name] = fabric
        if event is None:
            touch = f"fabric {node_id} {offer.name}"
            self._enqueue(Write(apply=partial(writes.update_fabric_details, fabric=fabric), touch=touch))
            return
        self._enqueue(Write(apply=partial(writes.put_fabric, fabric=fabric)))
        reason = fabric.reason or ""
        if event == "changed" and known is not None:
            reason = f"adapters {_listed(known.adapters)} became {_listed(fabric.adapters)}"
        self.record("fabric", offer.name, event, now, reason=reason, nodes=[node_id])

    # Tests of fabrics.

    def fabric_tests(self) -> list[FabricTestResult]:
        """The newest results of measurements between nodes, oldest first."""
        return list(self._kept.fabric_tests)

    def add_fabric_test(self, result: FabricTestResult) -> None:
        """Keep a result; the oldest make room for it."""
        result = msgspec.structs.replace(result, words=_text(result.words, REASON_CHARS_MAX))
        self._kept.fabric_tests.append(result)
        self._enqueue(Write(apply=partial(writes.add_fabric_test, result=result)))
        self._fabric_tests_added += 1
        if self._fabric_tests_added % PRUNE_FABRIC_TESTS_EVERY == 0:
            prune = partial(writes.prune_fabric_tests, keep_rows=FABRIC_TESTS_KEPT)
            self._enqueue(Write(apply=prune, touch="prune fabric tests"))

    # The catalog.

    async def latest_catalog(self) -> tuple[int, Catalog] | None:
        """(number, catalog) of the newest revision, which rules; None when there is none yet."""
        found = await self._read(partial(reads.catalog_body, number=None))
        return None if found is None else (found[0], _parse_catalog(*found))

    async def catalog_revision(self, number: int) -> Catalog | None:
        """The catalog as revision `number` had it, or None."""
        found = await self._read(partial(reads.catalog_body, number=number))
        return None if found is None else _parse_catalog(*found)

    async def catalog_revisions(self, *, before: int | None = None, limit: int = 100) -> list[CatalogRevision]:
        """Revisions without their bodies, newest first; `before` is a number, to page by key."""
        count = max(1, min(limit, HISTORY_PAGE_MAX))
        return await self._read(partial(reads.catalog_revisions, before=before, limit=count))

    async def add_catalog_revision(self, catalog: Catalog, by: str, note: str, now: float) -> int:
        """Make `catalog` the newest revision; returns its number once it is committed. Raises StoreError."""
        body = json.dumps(
            catalog.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        add = partial(
            writes.add_catalog_revision,
            body=body,
            by=_text(by, 256),
            note=_text(note, REASON_CHARS_MAX),
            now=now,
        )
        return (await self._commit(add, _nothing)).number

    # Admin tokens.

    def tokens(self) -> list[TokenView]:
        """Tokens that are not revoked, by name."""
        return [
            TokenView(name=token.name, created_at=token.created_at, last_used_at=token.last_used_at)
            for _, token in sorted(self._kept.tokens.items())
        ]

    def token_hashes(self) -> dict[str, str]:
        """Name → SHA-256 of the secret in hex, for every token that is not revoked. Answered from memory."""
        return {name: token.secret_hash for name, token in self._kept.tokens.items()}

    async def create_token(self, name: str, secret_hash: str, now: float) -> None:
        """Keep a new token; it works once it is committed.

        Raises StoreError for a name that is in use or is no name. A revoked token's name may be used again.
        """
        problem = name_problem(name, "token")
        if problem is not None:
            raise StoreError(problem)
        if not is_secret_hash(secret_hash):
            raise ValueError("secret_hash is not what hash_secret returns")
        token = TokenRecord(name=name, secret_hash=secret_hash, created_at=now)

        def keep(_created: None) -> None:
            self._kept.tokens[name] = token

        await self._commit(partial(writes.create_token, token=token), keep)

    async def revoke_token(self, name: str, now: float) -> None:
        """Refuse a token from this moment on, and say so on disk.

        Raises StoreError for a name that is not in use, and when the disk does not take it in time: the token
        is refused then all the same, and the write is tried again while the server lives.
        """
        if self._kept.tokens.pop(name, None) is None:
            raise StoreError(f"there is no token named {name[:80]!r}", "llmgw ctl token list shows them")
        self._enqueue(Write(apply=partial(writes.revoke_token, name=name, now=now)))
        try:
            await self.flush(COMMIT_WAIT_S)
        except StoreError as error:
            raise StoreError(
                f"the token {name} is refused from now on, but this is not stored yet: {error.what}",
                error.remedy,
            ) from error

    def touch_token(self, name: str, now: float) -> None:
        """A token was used. Written at most once in `TOKEN_TOUCH_S` seconds for each token."""
        token = self._kept.tokens.get(name)
        if token is None or (token.last_used_at is not None and now - token.last_used_at < TOKEN_TOUCH_S):
            return
        self._kept.tokens[name] = msgspec.structs.replace(token, last_used_at=now)
        apply = partial(writes.touch_token, name=name, secret_hash=token.secret_hash, now=now)
        self._enqueue(Write(apply=apply, touch=f"token {name}"))

    # Revoked certificates.

    def revocations(self) -> list[Revocation]:
        """Every certificate ever seen to be revoked, by node and serial."""
        return [self._kept.revocations[key] for key in sorted(self._kept.revocations)]

    def add_revocations(self, revocations: Iterable[Revocation]) -> None:
        """Remember what the revocation list says. Nothing is ever un-revoked by a list that lacks it."""
        for revocation in revocations:
            if revocation.serial not in self._kept.revocations:
                self._kept.revocations[revocation.serial] = revocation
                self._enqueue(Write(apply=partial(writes.add_revocation, revocation=revocation)))

    # Facts.

    async def fact(self, key: str) -> str | None:
        """A fact that an earlier or this life left: `version` (who wrote last), or one of the server's own."""
        return await self._read(partial(reads.fact, key=key))

    def put_fact(self, key: str, value: str, now: float) -> None:
        """Leave a fact for later lives of the server."""
        self._enqueue(Write(apply=partial(writes.put_fact, key=_text(key, 64), value=_text(value), now=now)))


def _text(value: str, chars_max: int | None = None) -> str:
    """What every database takes: UTF-8 without NUL, of bounded length. Engines print anything."""
    cut = value if chars_max is None or len(value) <= chars_max else value[: chars_max - 1] + "…"
    return cut.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\ufffd")


def _nothing(_result: object) -> None:
    """Memory holds nothing of it."""


def _same_process(one: Life | None, other: Life | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.boot_id, one.instance) == (other.boot_id, other.instance)


def _fabric_event(known: FabricRecord | None, offer: FabricOffer) -> str | None:
    if known is None or known.usable != offer.usable:
        return "usable" if offer.usable else "unusable"
    return "changed" if known.adapters != offer.adapters else None


def _listed(adapters: Sequence[str]) -> str:
    return ", ".join(adapters) or "none"


def _parse_catalog(number: int, body: str) -> Catalog:
    try:
        return Catalog.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StoreError(
            f"revision {number} of the catalog in the store is refused by this version: {where}: {first['msg']}",
            "apply the catalog again from its file, corrected",
        ) from error
