"""What engines say in their logs of the load's requests: who got each, and who answered it whole.

Logs outlive their engines: one that was killed had written what it did.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from llmgw.sim.chaos_load import PREFIX

_RECEIVED = re.compile(rf"^received ({PREFIX}\d+)$", re.MULTILINE)
_ENDED = re.compile(rf'^"POST /v1/chat/completions HTTP/1\.1" (.+) ({PREFIX}\d+)$', re.MULTILINE)


@dataclass
class EngineCounts:
    """Of all engines together, by request id: the shards that it concerns."""

    received: dict[str, set[str]] = field(default_factory=dict)
    answered: dict[str, list[str]] = field(default_factory=dict)
    """Whole answers, each with a 200: a shard stands here twice if it answered twice."""
    said_500: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, logs: Iterable[Path]) -> EngineCounts:
        """Read engines' logs, each in a folder that is named after its shard."""
        counts = cls()
        for path in logs:
            shard, text = path.parent.name, path.read_text(errors="replace")
            for request in _RECEIVED.findall(text):
                counts.received.setdefault(request, set()).add(shard)
            for ended, request in _ENDED.findall(text):
                if ended == "200":
                    counts.answered.setdefault(request, []).append(shard)
                elif ended == "500":
                    counts.said_500.setdefault(request, []).append(shard)
        return counts
