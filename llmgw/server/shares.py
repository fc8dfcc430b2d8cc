"""Divides a limit that several routers hold together by what each of them has to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping

EVEN_PART = 4
"""A fourth of the limit is divided evenly, so that a router whose load begins need not wait for its part."""


def split(limit: int, demand: Mapping[str, float]) -> dict[str, int]:
    """So much of `limit` for each router, by its demand (what it has running and waiting; not negative).

    The parts add up to the limit, or to one for each router where there are more routers than that: a router
    that has none could not serve at all. Equal demand, or none at all, is divided evenly.
    """
    routers = sorted(demand)
    if limit <= len(routers):
        return dict.fromkeys(routers, 1)
    least = max(1, limit // (EVEN_PART * len(routers)))
    rest = limit - least * len(routers)
    total = sum(demand.values())
    exact = {each: rest * (demand[each] / total if total else 1 / len(routers)) for each in routers}
    parts = {each: least + int(exact[each]) for each in routers}
    left = limit - sum(parts.values())
    for each in sorted(routers, key=lambda name: (int(exact[name]) - exact[name], name))[:left]:
        parts[each] += 1
    return parts
