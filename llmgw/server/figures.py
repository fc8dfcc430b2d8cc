"""Hands engines' own figures of their load on to the routers, once a second at most and never old ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmgw.fleet.model import Fleet, Shard
from llmgw.fleet.routes import endpoint_of
from llmgw.messages.routes import FIGURES_STALE_S, EndpointFigure, EndpointFigures

if TYPE_CHECKING:
    from llmgw.server.hub import Hub

SEND_EVERY_S = 1.0


async def send_figures(hub: Hub, send: Callable[[EndpointFigures], None]) -> None:
    """Send what is known of every routed replica whenever something of it is new, until cancelled."""
    newest = 0.0
    while True:
        await asyncio.sleep(SEND_EVERY_S)
        now = hub.clock.monotonic()
        message = endpoint_figures(hub.fleet, now)
        read_at = max((now - figure.age_s for figure in message.figures.values()), default=0.0)
        if read_at > newest:
            newest = read_at
            send(message)


def figures_by_model(fleet: Fleet, now: float) -> dict[str, list[EndpointFigure]]:
    """What the engines of each model say of their load, of those that are routed to and whose word is fresh."""
    said: dict[str, list[EndpointFigure]] = {}
    for replica_id, figure in endpoint_figures(fleet, now).figures.items():
        said.setdefault(fleet.replicas[replica_id].model, []).append(figure)
    return said


def endpoint_figures(fleet: Fleet, now: float) -> EndpointFigures:
    """By replica; those that have none, or stale ones, or are not routed to, are left out."""
    found = {}
    for replica in fleet.replicas.values():
        leader = replica.leader
        if leader is None or endpoint_of(fleet, replica) is None:
            continue
        figure = fresh_figure(leader, now)
        if figure is not None:
            found[replica.replica_id] = figure
    return EndpointFigures(figures=found)


def fresh_figure(leader: Shard, now: float) -> EndpointFigure | None:
    """What a ready leader's engine last said of its load, and how long ago; None when that is too long."""
    said, age_s = leader.figures, now - leader.figures_at
    if said is None or leader.phase != "ready" or age_s >= FIGURES_STALE_S:
        return None
    return EndpointFigure(
        running=said.running,
        waiting=said.waiting,
        cache_used=said.cache_used,
        prefix_hits=said.prefix_hits,
        prompt_tokens_per_s=said.prompt_tokens_per_s,
        tokens_per_s=said.tokens_per_s,
        preemptions_per_s=said.preemptions_per_s,
        age_s=max(0.0, age_s),
    )
