"""API keys: how many requests came with each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from llmgw.metrics.family import OTHER, Family, Sample
from llmgw.server.key_tally import WITHOUT
from llmgw.server.metrics.source import Source

KEYS_MAX = 500
"""API keys with series of their own, the first by name; what goes beyond is counted together."""
STATUS_CLASSES = ("2xx", "4xx", "5xx", "client_left")
"""There from the first scrape on: a rate over a series that appears misses its beginning."""

REQUESTS = Family(
    "llmgw_key_requests_total",
    "counter",
    "Requests that ended, by the name of their API key; those without one that is known are (none)",
    ("key", "status_class"),
    f"6 × keys, at most {KEYS_MAX}",
)
FAMILIES = (REQUESTS,)


def key_text(source: Source) -> str:
    """Requests by key."""
    return REQUESTS.text(_requests(source))


def _requests(source: Source) -> Iterator[Sample]:
    keys = source.hub.keys
    shown = sorted(keys.names.items(), key=lambda item: item[1])[:KEYS_MAX]
    rest: Counter[str] = Counter()
    for key_id in keys.names.keys() - dict(shown).keys():
        rest.update(keys.tally.counts.get(key_id, {}))
    counted = [(name, keys.tally.counts.get(key_id, {})) for key_id, name in shown]
    counted.append(("(none)", keys.tally.counts.get(WITHOUT, {})))
    if len(keys.names) > len(shown):
        counted.append((OTHER, rest))
    for name, counts in counted:
        for status in sorted({*STATUS_CLASSES, *counts}):
            yield (name, status), counts.get(status, 0)
