"""What drawing a fabric costs a browser: milliseconds of scripts for each frame, in a Chromium without a screen.

The real admin app serves a generated map; painting, which a machine without a GPU does slowly, is not counted.
"""

from __future__ import annotations

import argparse
from typing import Any

from tests.bench.fabric import RAILS, fabric_text
from tests.bench.figures import Figures

FRAME_LIMIT_MS = 8.0
LIMIT_ADAPTERS = 1000
SIZES = (100, 1000, 10000)
ALIVE_MAX = 400
FRAMES = 60

# One frame after the other, as the browser asks for them; zooming and moving between the whole and a few leaves.
_MEASURE = """
async ({ still, zooms, frames }) => {
  const { drawing } = window;
  const took = [];
  for (let n = 0; n < frames; n += 1) {
    const now = await new Promise(requestAnimationFrame);
    if (zooms) drawing.camera.zoom(n < frames / 2 ? 1.09 : 1 / 1.09, [420, 500]);
    const began = performance.now();
    drawing.frame(now, { still });
    took.push(performance.now() - began);
  }
  took.sort((one, other) => one - other);
  return [took[frames >> 1], took[Math.floor(frames * 0.95)]];
}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Limits are those of 1,000 adapters."""
    parser.add_argument("--adapters", type=int, default=max(SIZES), help="the largest fabric to draw")


def run(options: argparse.Namespace) -> Figures:
    """Measure and return the figures."""
    from tests.pages.chromium import chromium

    figures = Figures(f"drawing: to {options.adapters} adapters")
    rows = []
    sizes = [size for size in SIZES if size <= options.adapters]
    served = [_Served(size) for size in sizes]
    try:
        with chromium() as browser:
            for each in served:
                found = _measure(browser, each)
                if each.adapters == LIMIT_ADAPTERS:
                    for what in ("at rest, moving parts", "all of it", "while zooming"):
                        figures.add(f"1,000 adapters, {what}, median", found[what][0], "ms", FRAME_LIMIT_MS)
                rows.append(
                    [
                        str(each.adapters),
                        f"{each.graph_kb:.0f}",
                        f"{found['load']:.0f}",
                        *(
                            f"{figure:.2f}"
                            for what in ("at rest, moving parts", "all of it", "while zooming")
                            for figure in found[what]
                        ),
                    ]
                )
    finally:
        for each in served:
            each.stop()
    columns = ["adapters", "graph kB", "take graph ms", "rest", "p95", "all", "p95", "zooming", "p95"]
    figures.growth.append(("ms of scripts a frame", columns, rows))
    return figures


class _Served:
    """The admin app over a fabric of so many adapters, of which up to 400 nodes' are alive and busy."""

    def __init__(self, adapters: int) -> None:
        from tests.ctl.scripted import ScriptedBackend, ServedAdmin
        from tests.fabric.generate import Fabric, Made
        from tests.pages.fabrics import Alive, add_node, know

        self.adapters = adapters
        alive = Alive()
        nodes = max(1, adapters // RAILS)
        text = fabric_text(adapters)
        # The inventories of nodes are made from the same names and GUIDs that the map has.
        made = _Text(text)
        for number in range(1, min(nodes, ALIVE_MAX) + 1):
            name = f"node{number:04}"
            of_node = Fabric(adapters=[Made("Ca", 0x0C42A10300000000 + 0x10 * ((number - 1) * RAILS + rail + 1),
                                            f"{name} mlx5_{rail}", 1, 0) for rail in range(RAILS)])  # fmt: skip
            add_node(alive, of_node, name, tx=10.0 * (number % 40), rx=9.0 * (number % 30))
        know(alive, made)  # type: ignore[arg-type]
        backend = ScriptedBackend()
        backend.drawings = alive.drawings()
        self.admin = ServedAdmin(backend)
        self.url = self.admin.url
        self.graph_kb = 0.0

    def stop(self) -> None:
        self.admin.stop()


class _Text:
    """A map whose text is there already."""

    def __init__(self, text: str) -> None:
        from tests.fabric.generate import Made

        self._text = text
        self.adapters = [Made("Ca", 0x0C42A10300000000 + 0x10 * at, "", 1, 0) for at in (1, 2)]

    def text(self) -> str:
        return self._text


def _measure(browser: Any, served: _Served) -> dict[str, Any]:
    from tests.pages.chromium import log_in, open_drawing

    context = browser.new_context(viewport={"width": 1600, "height": 950})
    page = context.new_page()
    page.set_default_timeout(60_000)
    log_in(page, served.url, "/admin/fabrics/ib-a")
    open_drawing(page)
    found: dict[str, Any] = {}
    load = """async () => {
      const told = await (await fetch(drawing.news.source)).text();
      const began = performance.now();
      const { graph, live } = JSON.parse(told);
      drawing.take(graph, live);
      return [told.length, performance.now() - began];
    }"""
    length, found["load"] = page.evaluate(load)
    served.graph_kb = length / 1e3
    for what, options in (
        ("at rest, moving parts", {"still": False, "zooms": False}),
        ("all of it", {"still": True, "zooms": False}),
        ("while zooming", {"still": served.adapters <= 3000, "zooms": True}),
    ):
        page.evaluate("() => drawing.fit(true)")
        found[what] = page.evaluate(_MEASURE, {**options, "frames": FRAMES})
    context.close()
    return found
