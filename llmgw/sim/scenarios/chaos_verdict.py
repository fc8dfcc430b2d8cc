"""What gateway-chaos claims at its end: every request is accounted for, three times over.

By the clients, who know every word that they should have got; by the routers, whose outcomes the control plane
counts; and by the engines, whose logs name each request that they received and each that they answered whole.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from llmgw.sim.chaos_counts import EngineCounts
from llmgw.sim.chaos_load import FATES, ChaosLoad, ChaosRequest
from llmgw.sim.demo_fleet import DemoFleet
from llmgw.sim.scenarios.judge import Judge

TELEMETRY_LAG_S = 2.0
"""Routers tell of a request within half a second; on a busy machine within this."""
DEATHS_MAX = 2
"""Invariant 8: a third engine is never tried after two died on the same request."""
SHOWN_MAX = 8
_SETTLED_S = 20.0


@dataclass
class OutcomeCounts:
    """Outcomes by status class as the control plane counts them, over its death: what a dead one had counted
    since it was last asked nobody knows, and no more than that."""

    earlier: Counter[str] = field(default_factory=Counter)
    later: Counter[str] = field(default_factory=Counter)
    asked_at: float = 0.0
    died_at: float = 0.0
    stored_before: int = 0
    stored: int = 0
    """Requests that usage has, before the load and after: routers keep those until the server has stored them."""

    async def begin(self, fleet: DemoFleet) -> None:
        """Before the first request."""
        self.stored_before = await _stored(fleet)

    async def before_kill(self, fleet: DemoFleet) -> None:
        """Ask a control plane that is about to die."""
        self.asked_at = time.monotonic()
        self.earlier = await _outcomes(fleet)

    def killed(self) -> None:
        """It is dead now."""
        self.died_at = time.monotonic()

    async def end(self, fleet: DemoFleet, load: ChaosLoad) -> None:
        """Ask the living one, once all that can be counted has been."""
        deadline = time.monotonic() + _SETTLED_S
        while time.monotonic() < deadline:
            self.later = await _outcomes(fleet)
            self.stored = await _stored(fleet)
            told = (self.earlier + self.later).total() >= len(load.requests) - len(self.unknown(load))
            if told and self.stored - self.stored_before >= len(load.requests):
                break
            await asyncio.sleep(0.2)

    def unknown(self, load: ChaosLoad) -> list[ChaosRequest]:
        """Requests that ended so that only the dead control plane may have heard of it."""
        return [one for one in load.requests if self.asked_at - TELEMETRY_LAG_S <= one.ended_at <= self.died_at]


def judge_chaos(fleet: DemoFleet, judge: Judge, load: ChaosLoad, counts: OutcomeCounts, killed: set[str]) -> None:
    """Print the table, and judge every claim."""
    engines = EngineCounts.read(sorted(fleet.folder.glob("*/work/shards/*/engine.log")))
    fates = load.fates()
    judge.tell(f"{len(load.requests)} requests:")
    for fate, meaning in FATES.items():
        if fates[fate]:
            judge.tell(f"  {fates[fate]:6}  {fate}: {meaning}")
    judge.facts["requests"] = {"sent": len(load.requests), **{fate: fates[fate] for fate in FATES}}
    _judge_untouched(judge, load, engines, killed)
    _judge_begun(judge, load)
    _judge_engines(judge, load, engines, killed)
    _judge_routers(judge, load, counts)


def _judge_untouched(judge: Judge, load: ChaosLoad, engines: EngineCounts, killed: set[str]) -> None:
    """No request fails that has not received a byte, unless two engines died on it."""
    failed = [one for one in load.requests if one.fate in ("refused", "lost", "strange", "running")]
    excused = [
        one for one in failed if one.fate == "refused" and len(_died_on(one, engines, killed)) >= DEATHS_MAX
    ]
    guilty = [one for one in failed if one not in excused]
    judge.facts["two_engines_died"] = len(excused)
    _show(judge, guilty)
    also = f" ({len(excused)} had two engines die on them)" if excused else ""
    judge.expect(not guilty, f"no request failed that had not received a byte{also}")


def _died_on(one: ChaosRequest, engines: EngineCounts, killed: set[str]) -> set[str]:
    """The shards that had it: by their logs, and by the gateway's word where one was killed before it logged."""
    named = {shard for shard in killed if f"the engine {shard.rpartition('.')[0]}: " in one.what}
    return engines.received.get(one.id, set()) | named


def _judge_begun(judge: Judge, load: ChaosLoad) -> None:
    wrong = [one for one in load.requests if one.fate == "wrong text"]
    _show(judge, wrong)
    judge.expect(not wrong, "no word came twice, and every answer came from one engine")
    silent = [one for one in load.requests if one.fate == "truncated"]
    _show(judge, silent)
    judge.expect(not silent, "no stream was cut short without an error event")


def _judge_engines(judge: Judge, load: ChaosLoad, engines: EngineCounts, killed: set[str]) -> None:
    served = {one.id: one for one in load.requests if one.fate == "served"}
    # An engine may be killed between an answer's last byte and its line in the log.
    unknown = [one for one in served.values() if one.id not in engines.answered and one.shard not in killed]
    others = [one for one in served.values() if one.shard not in engines.answered.get(one.id, [one.shard])]
    _show(judge, [*unknown, *others])
    judge.expect(
        not unknown and not others, f"each of {len(served)} answers was given by the engine that it names"
    )
    twice = [name for name, shards in engines.answered.items() if len(shards) != len(set(shards))]
    judge.expect(not twice, "no engine answered the same request twice")
    for_nobody = sum(len(shards) for name, shards in engines.answered.items() if name not in served)
    again = sum(len(shards) - 1 for name, shards in engines.answered.items() if name in served)
    judge.tell(
        f"  {for_nobody + again} whole answers of engines reached nobody: their requests had been given up"
    )
    judge.facts["answers_for_nobody"] = for_nobody + again
    said = {name for name, shards in engines.said_500.items() if shards}
    got = {one.id for one in load.requests if one.fate == "engine 500"}
    judge.expect(said == got, f"each of {len(got)} answers with 500 is an engine's own")


def _judge_routers(judge: Judge, load: ChaosLoad, counts: OutcomeCounts) -> None:
    unknown = counts.unknown(load)
    for status, fates in {"2xx": {"served"}, "5xx": {"broken", "cut", "engine 500", "refused"}}.items():
        clients = sum(one.fate in fates for one in load.requests)
        lost = sum(one.fate in fates for one in unknown)
        routers = (counts.earlier + counts.later)[status]
        judge.facts[f"outcomes_{status}"] = {"clients": clients, "routers": routers, "lost_at_most": lost}
        judge.expect(
            clients - lost <= routers <= clients,
            f"routers counted {routers} x {status}, clients {clients} "
            f"(the control plane's death hides at most {lost})",
        )
    stored = counts.stored - counts.stored_before
    judge.facts["usage_requests"] = stored
    judge.expect(stored == len(load.requests), f"usage has {stored} requests: each once, and none was lost")


def _show(judge: Judge, requests: list[ChaosRequest]) -> None:
    for one in requests[:SHOWN_MAX]:
        judge.tell(f"  {one.id} ({'stream' if one.stream else 'whole'}) {one.fate} at {one.replica}: {one.what}")


async def _outcomes(fleet: DemoFleet) -> Counter[str]:
    found: Counter[str] = Counter()
    for labels, value in await fleet.series("llmgw_requests_total"):
        found[labels["status_class"]] += int(value)
    return found


async def _stored(fleet: DemoFleet) -> int:
    return int((await fleet.get("usage?by="))["total"]["requests"])
