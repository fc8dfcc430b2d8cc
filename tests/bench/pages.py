"""What the admin pages of a large fleet cost: a server to make, the wire to carry, and a browser to show them.

The real control plane serves a fleet of pure data; a Chromium without a screen loads each page.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.figures import Figures
from tests.bench.page_server import PageServer

OVERVIEW = "/admin"
RENDER_LIMIT_S = 1.0
FRAME_LIMIT_KB = 300.0
LIMIT_NODES = 400
"""Limits are those of so many nodes with eight GPUs."""
LOADS = 3

_MAIN = re.compile(r"<main\b[^>]*>(.*)</main>", re.DOTALL)
_FRAME = """() => performance.getEntriesByType("resource")
  .filter((each) => ["script", "link", "css", "img", "other"].includes(each.initiatorType))
  .reduce((sum, each) => sum + each.decodedBodySize, 0)"""
_PAINT = """() => new Promise((resolve) => {
  const told = performance.getEntriesByName("first-paint")[0];
  if (told !== undefined) { resolve(told.startTime); return; }
  new PerformanceObserver((list, own) => { own.disconnect(); resolve(list.getEntries()[0].startTime); })
    .observe({ type: "paint", buffered: true });
})"""
# What an open page does on news, once the answer is there.
_UPDATE = """async () => {
  const live = document.querySelector('script[src$="live.js"]').src;
  const { morph } = await import(live.replace("live.js", "morph.js"));
  const text = await (await fetch(location.href)).text();
  const began = performance.now();
  const told = new DOMParser().parseFromString(text, "text/html");
  morph(document.getElementById("main"), told.getElementById("main"));
  return performance.now() - began;
}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The size of the fleet."""
    parser.add_argument("--nodes", type=int, default=LIMIT_NODES)
    parser.add_argument("--replicas", type=int, help="as many as nodes, where it is not said")
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--repeat", type=int, default=7, help="how often each page is asked for")


def run(options: argparse.Namespace) -> Figures:
    """Measure and return the figures."""
    from tests.pages.chromium import chromium, log_in

    replicas = options.nodes if options.replicas is None else options.replicas
    figures = Figures(f"pages: {options.nodes} nodes × 8 GPUs, {replicas} replicas, {options.models} models")
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as folder:
        served = PageServer(Path(folder), nodes=options.nodes, replicas=replicas, models=options.models)
        try:
            made = {path: _made(served, path, options.repeat) for path in _paths()}
            pause = served.pauses.longest()
            with chromium() as browser:
                page = browser.new_context(viewport={"width": 1600, "height": 950}).new_page()
                page.set_default_timeout(60_000)
                log_in(page, served.url, OVERVIEW)
                shown = {path: _shown(page, served, path) for path, page_made in made.items() if page_made}
        finally:
            served.stop()
    rows = []
    for path, one in made.items():
        if one is None:
            figures.notes.append(f"{path} is not there")
            continue
        seen = shown[path]
        frame_kb = (one["frame"] + seen["loaded"]) / 1e3
        figures.add(f"{path} before its data", frame_kb, "kB", FRAME_LIMIT_KB)
        limit_s = RENDER_LIMIT_S if path == OVERVIEW and options.nodes <= LIMIT_NODES else None
        figures.add(f"{path} made, median", one["made"], "s", limit_s)
        rows.append([
            path, f"{one['made'] * 1e3:.0f}", f"{one['worst'] * 1e3:.0f}", f"{one['same'] * 1e3:.0f}",
            f"{one['raw'] / 1e3:.0f}", f"{one['gzip'] / 1e3:.0f}", f"{frame_kb:.0f}",
            f"{seen['paint']:.0f}", f"{seen['update']:.0f}" if seen["update"] is not None else "–",
        ])  # fmt: skip
        figures.measurements.append({"path": path, **one, **seen})
    figures.add("the server's loop held up meanwhile, at most", pause.late_s * 1e3, "ms")
    figures.add("of that by computing itself, at most", pause.busy_s * 1e3, "ms")
    columns = [
        "page",
        "made ms",
        "worst",
        "the same",
        "kB",
        "gzip kB",
        "before data",
        "first paint ms",
        "update ms",
    ]
    figures.growth.append(("each page", columns, rows))
    return figures


def _paths() -> list[str]:
    from llmgw.server.pages.rendering import PAGES

    return [
        *(path for path, _ in PAGES),
        "/admin/nodes/node0000",
        "/admin/fabrics/ib-0",
        "/admin/models",
        "/admin/models/model-00",
    ]


def _made(served: PageServer, path: str, repeat: int) -> dict[str, Any] | None:
    """Seconds and bytes of a page as a program asks for it; None when it is not there."""
    from tests.pages.visitor import Visitor

    visitor = Visitor(served.url)
    visitor.log_in()
    visitor.http.timeout = 60  # type: ignore[assignment]
    plain = {"accept-encoding": "identity"}
    first = visitor.http.get(path, headers=plain)
    if first.status_code != 200:
        return None
    took, again = [], []
    for _ in range(repeat):
        served.happen()  # else it is made of views that another page had made
        began = time.perf_counter()
        visitor.http.get(path, headers=plain)
        took.append(time.perf_counter() - began)
        began = time.perf_counter()
        visitor.http.get(path, headers={"if-none-match": first.headers["etag"]})
        again.append(time.perf_counter() - began)
    small = visitor.http.get(path, headers={"accept-encoding": "gzip"})
    main = _MAIN.search(first.text)
    assert main is not None, path
    return {
        "made": statistics.median(took),
        "worst": max(took),
        "same": statistics.median(again),
        "raw": len(first.content),
        "gzip": int(small.headers["content-length"]),
        "frame": len(first.content) - len(main[1].encode()),
    }


def _shown(page: Any, served: PageServer, path: str) -> dict[str, Any]:
    """Milliseconds to the first paint and for a change in place, bytes of what the page loads."""
    paints = []
    for _ in range(LOADS):
        page.goto(served.url + path)
        paints.append(page.evaluate(_PAINT))
    keeps_up = page.evaluate("() => document.querySelector('script[src$=\"live.js\"]') !== null")
    return {
        "paint": statistics.median(paints),
        "update": page.evaluate(_UPDATE) if keeps_up else None,
        "loaded": page.evaluate(_FRAME),
    }
