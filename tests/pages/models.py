"""What tests of the model pages are about: replicas in every state, and names and lines that mean harm."""

from __future__ import annotations

from typing import Any

from llmgw.messages.admin import HistoryEntry, LogView, ReplicaView, ShardView
from llmgw.messages.routes import EndpointFigure, Outcome
from tests.ctl.scripted import STARTED_AT, ScriptedBackend, replica

SCRIPT = "<script>alert(1)</script>"
BREAKOUT = "\"'><img src=x onerror=alert(1)>"
ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07plain\x9b1mbold \x00\x07\u202eback"
ESCAPED = "red plainbold back"
PRINTED = [
    ("plain", "plain"),
    ("\x1b[1;31mERROR\x1b[0m x", "ERROR x"),
    ("\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1bP1$r0m\x1b\\after", "after"),
    ("\x9b31mred\x9d0;title\x07x", "redx"),
    ("cut \x1b[3", "cut "),
    ("cut \x1b", "cut "),
    ("  1%\r 50%\rdone\r", "done"),
    ("tab\there", "tab\there"),
    ("a\u202etxt.exe\u2066b\u200bc\xadd\U000e0041e", "atxt.exebcde"),
    ("ünïcödé 漢字 🚀", "ünïcödé 漢字 🚀"),
    ("", ""),
]
"""What a program prints, and how it reads."""


def shard(name: str, rank: int, **changes: Any) -> ShardView:
    """A shard of `name` on node0<rank + 1>."""
    facts: dict[str, Any] = {
        "shard_id": f"{name}.{rank}",
        "rank": rank,
        "node": f"node0{rank + 1}",
        "gpus": [0, 1],
        "phase": "ready",
    }
    return ShardView(**(facts | changes))


def failed_replica(name: str = "chat-large-dead") -> ReplicaView:
    """Both ranks ended, one by itself and one for it."""
    shards = [
        shard(
            name, 0, phase="failed", reason="the engine ended", exit_code=137, output_tail=["a", "out of memory"]
        ),
        shard(name, 1, phase="stopped", reason="rank 0 failed"),
    ]
    return replica(name, state="failed", routed=False, endpoint=None, reason="rank 0 failed", shards=shards)


def busy_replica(name: str = "chat-large-1a2b", **changes: Any) -> ReplicaView:
    """A ready one whose engine tells of its load."""
    figures = EndpointFigure(running=7, waiting=3, cache_used=0.42, prefix_hits=0.61, tokens_per_s=1234.0)
    return replica(name, figures=figures, in_flight=5, **changes)


def entries(count: int, **changes: Any) -> list[HistoryEntry]:
    """History with ids from `count` down to 1."""
    facts: dict[str, Any] = {"kind": "replica", "subject": "chat-large-1a2b", "event": "ready"}
    return [
        HistoryEntry(id=number, at=STARTED_AT + number, **(facts | changes)) for number in range(count, 0, -1)
    ]


def keep_history(backend: ScriptedBackend, kept: list[HistoryEntry]) -> None:
    """Have the backend answer from these, paged by key and filtered as the store does."""

    async def history(
        *, subject: str | None, kind: str | None, model: str | None, before: int | None, limit: int
    ) -> list[HistoryEntry]:
        backend.asked.append(("history", subject, kind, model, before, limit))
        return [
            entry
            for entry in kept
            if (before is None or entry.id < before)
            and all(
                wanted is None or wanted == found
                for wanted, found in ((subject, entry.subject), (kind, entry.kind), (model, entry.model))
            )
        ][:limit]

    backend.history = history  # type: ignore[method-assign]


def say(backend: ScriptedBackend, text: str, **changes: Any) -> None:
    """Have every log be this one."""

    async def logs(replica_id: str, rank: int, stream: str, offset: int | None, lines: int) -> LogView:
        backend.asked.append(("logs", replica_id, rank, stream, offset, lines))
        start = 0 if offset is None else offset
        facts: dict[str, Any] = {
            "replica_id": replica_id, "rank": rank, "node": "node01", "offset": start,
            "next_offset": len(text), "text": text[start:], "shard_over": True,
        }  # fmt: skip
        return LogView(**(facts | changes))

    backend.logs = logs  # type: ignore[method-assign]


def requests(backend: ScriptedBackend, model: str = "org/chat-large", minutes: int = 20) -> None:
    """An hour of requests: some fail, and they become slower."""
    recent = backend.recent
    for step in range(minutes * 6):
        recent.now += 10.0
        many = [
            Outcome(
                model, "e", 502 if step % 20 == 7 and number == 0 else 200, total_s=2.0,
                first_byte_s=0.1 + step / 300 + number / 40, prompt_tokens=200, completion_tokens=120,
            )
            for number in range(3 + step % 7)
        ]  # fmt: skip
        recent.tell(*many)
    recent.now += 1.0
