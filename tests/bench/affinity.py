"""What prefix affinity saves: prompt tokens found in engines' caches, with it and by least outstanding requests.

Conversations of several turns that share a system prompt, over engines with prefix caches of a bounded size, in
virtual time (prefix_caches.py). The choices are the router's own.
"""

from __future__ import annotations

import argparse
import statistics

from llmgw.router.affinity import SHARE_MAX
from tests.bench.figures import Figures
from tests.bench.prefix_caches import Outcome, Setup, simulate

MISSED_LIMIT_PERCENT = 25.0
SAVED_LIMIT = 0.35
"""Of the tokens that have to be read without affinity, at most so many have to be read with it."""
CACHES = (100_000, 200_000, 400_000, 800_000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The size of the fleet and of its load; limits are those of the defaults."""
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--routers", type=int, default=2)
    parser.add_argument("--requests", type=int, default=8_000)
    parser.add_argument("--conversations", type=int, default=600, help="held at a time")


def run(options: argparse.Namespace) -> Figures:
    """Simulate and return the figures."""
    sizes = {name: getattr(options, name) for name in ("engines", "routers", "requests", "conversations")}
    setup = Setup(**sizes)
    figures = Figures(
        f"affinity: {setup.engines} engines, caches of {setup.cache_tokens:,} tokens, {setup.routers} routers, "
        f"{setup.conversations} conversations at a time, a system prompt of {setup.system_tokens:,} tokens"
    )
    with_it, without = simulate(setup, SHARE_MAX), simulate(Setup(**sizes, affinity=False), SHARE_MAX)
    figures.add("with affinity: tokens found in the cache", _hit(with_it), "%")
    figures.add("  of what the conversation had before", _known_hit(with_it), "%")
    figures.add("  not found of that", 100 - _known_hit(with_it), "%", MISSED_LIMIT_PERCENT)
    figures.add("by least outstanding: tokens found in the cache", _hit(without), "%")
    figures.add("  of what the conversation had before", _known_hit(without), "%")
    read = (with_it.tokens - with_it.cached) / (without.tokens - without.cached)
    figures.add("tokens read with affinity, of those without", read, "times", SAVED_LIMIT)
    for name, outcome in (("with affinity", with_it), ("by least outstanding", without)):
        figures.add(f"{name}: prefill, mean", 1000 * statistics.fmean(outcome.first_token_s), "ms")
        figures.add(f"{name}: prefill, 99 of 100", 1000 * _percentile(outcome), "ms")
        figures.add(f"{name}: the busiest engine's requests", outcome.spread, "× the mean", SHARE_MAX)
    figures.add("with affinity: the most outstanding, of its bound", with_it.bound_used, "times", 1.0)
    rows = []
    for tokens in CACHES:
        pair = [with_it, without]
        if tokens != setup.cache_tokens:
            pair = [simulate(Setup(**sizes, cache_tokens=tokens, affinity=on), SHARE_MAX) for on in (True, False)]
        rows.append([f"{tokens:,}", *(f"{of(each):.1f}" for of in (_hit, _known_hit) for each in pair)])
    columns = [
        "tokens a cache",
        "all: affinity",
        "least outstanding",
        "had before: affinity",
        "least outstanding",
    ]
    figures.growth.append(("found in the cache, %, by the size of an engine's cache", columns, rows))
    return figures


def _hit(outcome: Outcome) -> float:
    return 100 * outcome.cached / outcome.tokens


def _known_hit(outcome: Outcome) -> float:
    return 100 * outcome.known_cached / outcome.known


def _percentile(outcome: Outcome) -> float:
    return sorted(outcome.first_token_s)[int(len(outcome.first_token_s) * 0.99)]
