"""What kept results of bandwidth tests say about nodes today: who is in doubt, and who has passed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from llmgw.messages.fabric_test_views import FabricTestResult

DOUBT_S = 7 * 86400.0
"""For how long a failed test speaks against a node."""
_FAILED = ("bad", "error")


def test_doubts(results: Iterable[FabricTestResult], now: float) -> dict[tuple[str, str], str]:
    """(node, fabric) → why the node is better not used on it, in a sentence, by tests of the last week.

    Only the newest measurement of each two ports in one direction counts. A port is in doubt when more of those
    failed (bad, or no result at all) than reached a good rate: one that is broken fails with everybody, and its
    partners with nobody else. After a single test of two nodes both are in doubt. `now` is seconds since the
    epoch.
    """
    counts: dict[tuple[str, str, str], list[list[FabricTestResult]]] = {}
    for result in _newest(result for result in results if now - result.at <= DOUBT_S):
        for node, port in ((result.sender, result.sender_port), (result.receiver, result.receiver_port)):
            failed, good = counts.setdefault((node, result.fabric, port), [[], []])
            if result.grade in _FAILED:
                failed.append(result)
            elif result.grade == "good":
                good.append(result)
    doubts: dict[tuple[str, str], str] = {}
    for (node, fabric, port), (failed, good) in sorted(counts.items()):
        if len(failed) > len(good):
            worst = max(failed, key=lambda result: result.at)
            doubts.setdefault((node, fabric), _sentence(node, port, worst))
    return doubts


def passed_at(results: Iterable[FabricTestResult], now: float) -> dict[tuple[str, str], float]:
    """(node, fabric) → when it last passed a test there: all measurements of one run with another node were made,
    and were good.

    Nodes in doubt have not passed, whatever was before. Times are seconds since the epoch.
    """
    results = list(results)
    runs: dict[tuple[str, str, frozenset[str]], list[FabricTestResult]] = {}
    for result in results:
        runs.setdefault((result.test_id, result.fabric, frozenset(result.nodes)), []).append(result)
    doubted = test_doubts(results, now)
    passed: dict[tuple[str, str], float] = {}
    for (_, fabric, nodes), run in runs.items():
        if _whole(run) and all(result.grade == "good" for result in run):
            at = max(result.at for result in run)
            for node in nodes:
                if (node, fabric) not in doubted:
                    passed[node, fabric] = max(at, passed.get((node, fabric), at))
    return passed


def ages_s(passed: Mapping[tuple[str, str], float], now: float) -> dict[tuple[str, str], float]:
    """The same as ages in seconds; a clock that was set back makes none negative."""
    return {key: max(0.0, now - at) for key, at in passed.items()}


def _whole(run: Iterable[FabricTestResult]) -> bool:
    """Whether two nodes' test was not ended before it was done: every rail was measured in both directions.

    A test measures all rails in one direction first, so that one that was ended lacks the way back of some.
    """
    ways = {(r.sender, r.sender_port, r.receiver, r.receiver_port) for r in run}
    return all((*way[2:], *way[:2]) in ways for way in ways)


def _newest(results: Iterable[FabricTestResult]) -> list[FabricTestResult]:
    newest: dict[tuple[str, ...], FabricTestResult] = {}
    for result in results:
        key = (result.fabric, result.sender, result.sender_port, result.receiver, result.receiver_port)
        if key not in newest or newest[key].at <= result.at:
            newest[key] = result
    return list(newest.values())


def _sentence(node: str, port: str, result: FabricTestResult) -> str:
    peer = result.receiver if result.sender == node else result.sender
    if result.gbps is None or result.limit_gbps is None:
        return f"the fabric test of {port} with {peer} failed: {result.words}"
    return f"{port} reached only {result.gbps:g} of {result.limit_gbps:g} Gb/s in the fabric test with {peer}"
