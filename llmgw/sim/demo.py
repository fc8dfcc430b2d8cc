"""`llmgw demo`: the main job on one machine, to watch, or unattended as a scenario with an exit code."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.live import Live

from llmgw.sim.demo_files import DemoOptions
from llmgw.sim.demo_fleet import DemoError, DemoFleet
from llmgw.sim.demo_view import curl_line, event_words, hints, render
from llmgw.sim.scenarios import OPTIONS, PREPARE, SCENARIOS, Scenario
from llmgw.sim.scenarios.judge import Judge
from llmgw.sim.scenarios.under_load import NotReady


def run_demo(options: DemoOptions) -> int:
    """Run until Ctrl-C. Returns the exit code."""
    return asyncio.run(_run(options, _watch))


def run_scenario(name: str, options: DemoOptions, report: Path | None = None) -> int:
    """Run a scenario. Returns 0 only if all that it claims held. `report` gets the facts as JSON."""
    chosen = SCENARIOS.get(name)
    if chosen is None:
        raise DemoError(f"there is no scenario {name!r}; there are {', '.join(sorted(SCENARIOS))}")
    options = replace(options, **OPTIONS.get(name, {}))

    async def body(fleet: DemoFleet) -> int:
        return await _judge(fleet, name, chosen, report)

    return asyncio.run(_run(options, body, PREPARE.get(name)))


async def _run(
    options: DemoOptions,
    body: Callable[[DemoFleet], Coroutine[Any, Any, int]],
    prepare: Callable[[DemoFleet], None] | None = None,
) -> int:
    loop = asyncio.get_running_loop()
    fleet = DemoFleet(options)
    fleet.prepare()
    if prepare is not None:
        prepare(fleet)
    task = asyncio.create_task(_up_and(fleet, body))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return 0 if body is _watch else 130
    finally:
        # Whatever happens from here on, a second Ctrl-C must not leave processes behind.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, lambda: None)
        print("ending the fleet ...", file=sys.stderr)
        await fleet.stop()


async def _up_and(fleet: DemoFleet, body: Callable[[DemoFleet], Coroutine[Any, Any, int]]) -> int:
    await fleet.start()
    return await body(fleet)


async def _watch(fleet: DemoFleet) -> int:
    console = Console()
    if not console.is_terminal:
        return await _watch_plainly(fleet)
    # Above the live part and unwrapped, so that it can be copied.
    console.print("Ask a model:", style="bold")
    console.print(curl_line(fleet.api, "demo/big"), soft_wrap=True, highlight=False, markup=False)
    with Live(hints(fleet), console=console, screen=False, auto_refresh=False) as live:
        while True:
            try:
                live.update(await render(fleet), refresh=True)
            except httpx.HTTPError as error:
                live.update(_away(fleet, error), refresh=True)
            await asyncio.sleep(0.5)


async def _watch_plainly(fleet: DemoFleet) -> int:
    """Without a terminal: one line a transition."""
    print(f"API {fleet.api}/v1   admin {fleet.admin}   state {fleet.state}", flush=True)
    print(f"pages {fleet.admin}/admin   token to log in with: {fleet.state / 'admin.json'}", flush=True)
    print(curl_line(fleet.api, "demo/big"), flush=True)
    seen, away = 0, ""
    while True:
        try:
            for item in reversed(await fleet.get("history?limit=100")):
                if item["id"] > seen:
                    seen = item["id"]
                    reason = f": {item['reason']}" if item["reason"] else ""
                    print(f"{item['subject']} {event_words(item)}{reason}", flush=True)
            away = ""
        except httpx.HTTPError as error:
            if away != (away := _away(fleet, error)):
                print(away, flush=True)
        await asyncio.sleep(0.5)


def _away(fleet: DemoFleet, error: httpx.HTTPError) -> str:
    """What is said of a server that is not there, and what to type where somebody has killed it."""
    again = f"llmgw server --config {fleet.folder / 'server.yaml'}"
    return f"the server does not answer: {error}; routers and engines go on. Start it again: {again}"


async def _judge(fleet: DemoFleet, name: str, scenario: Scenario, report: Path | None) -> int:
    judge = Judge(lambda line: print(line, flush=True))
    print(f"scenario {name}", flush=True)
    started = time.monotonic()
    try:
        await scenario(fleet, judge)
    except NotReady:
        pass
    except (httpx.HTTPError, DemoError) as error:
        judge.expect(False, f"the scenario ran to its end: {error!r}")
    took_s = time.monotonic() - started
    if judge.failures:
        print("\nlast words of the server:\n" + fleet.last_words("server", 30), flush=True)
    print(f"scenario {name}: {'failed' if judge.failures else 'passed'} in {took_s:.0f} s", flush=True)
    if report is not None:
        facts = {"scenario": name, "took_s": round(took_s, 1), "failures": judge.failures, **judge.facts}
        report.write_text(json.dumps(facts, indent=2) + "\n")
    return 1 if judge.failures else 0
