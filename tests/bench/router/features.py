"""What each feature costs: the gateway against itself, on the same routers, whose table is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from tests.bench.router.gateway import ALL, Features, Gateway
from tests.bench.router.measurement import Measurement
from tests.bench.router.suites import SUITES, Setting
from tests.bench.router.targets import Place

BASE = Features(keys=False, affinity=False, queue=False, usage=False, telemetry=False)
FEATURES: dict[str, tuple[str, Features]] = {
    "keys": ("a key, out of 1,000 with limits", replace(BASE, keys=True)),
    "affinity": ("prefix affinity over two engines", replace(BASE, affinity=True)),
    "queue": ("endpoints with a limit, and a queue for what is above it", replace(BASE, queue=True)),
    "usage": ("token counts found in answers, against answers that have none", replace(BASE, usage=True)),
    "telemetry": ("outcomes sent to the control process, for counts and metrics", replace(BASE, telemetry=True)),
}
NOTHING = "nothing"
EVERYTHING = "everything"
TURNS = 4
"""Of each feature, in a round of the bench."""
PARTS = 6
"""A turn has so much less load than another suite's measurement."""


def feature_costs(setting: Setting, place: Place, rounds: int, say: Callable[[str], None]) -> list[Measurement]:
    """The suite `request` with each feature by itself and with everything, each time between two turns with
    nothing on, again and again.

    Differences are small, and the machine's other work comes and goes: many short turns tell more than few long,
    and what is compared must have run a second apart.
    """
    setting = replace(setting, seconds=setting.seconds / PARTS)
    suite = next(suite for suite in SUITES if suite.name == "request")
    variants = [*((name, on) for name, (_, on) in FEATURES.items()), (EVERYTHING, ALL)]
    gateway = Gateway("llmgw-features")
    found = []
    with ExitStack() as stack:
        stack.callback(gateway.stop)
        stack.callback(setting.engines.usual.update, usage=1)
        gateway.start(place)
        for number in range(rounds * TURNS):
            turn = variants if number % 2 else variants[::-1]
            for name, features in [(NOTHING, BASE), *(each for on in turn for each in (on, (NOTHING, BASE)))]:
                gateway.become(features)
                setting.engines.usual["usage"] = int(features.usage)
                one = suite.measure(setting, gateway)
                one.suite, one.target, one.round = "features", name, number
                say(f"round {number + 1}, features, {name}: {one.cpu_us or 0:.1f} µs")
                found.append(one)
    return found


def costs_us(measurements: Sequence[Measurement], name: str) -> list[float]:
    """What a feature cost in each of its turns: the difference to the turns before and after it, of a list as
    `feature_costs` returns it."""
    turns = [each for each in measurements if each.suite == "features"]
    found = []
    for before, one, after in zip(turns, turns[1:], turns[2:], strict=False):
        if one.target == name and one.cpu_us and before.cpu_us and after.cpu_us:
            found.append(one.cpu_us - (before.cpu_us + after.cpu_us) / 2)
    return found
