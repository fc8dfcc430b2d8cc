"""`scripts/bench NAME [--json FILE] …`: one module a bench, each with `add_arguments` and `run`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench import affinity, agents, drawing, fabric, pages, plan
from tests.bench.figures import Figures
from tests.bench.router import bench as router

BENCHES = {
    "plan": plan,
    "agents": agents,
    "fabric": fabric,
    "drawing": drawing,
    "pages": pages,
    "affinity": affinity,
    "router": router,
}


def main() -> int:
    """Run one bench; 1 when a figure is beyond its limit."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    benches = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, module in BENCHES.items():
        about = (module.__doc__ or "").splitlines()[0]
        bench = benches.add_parser(name, help=about, description=module.__doc__)
        bench.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
        module.add_arguments(bench)
    options = parser.parse_args()
    figures: Figures = BENCHES[options.name].run(options)
    figures.show()
    if options.json is not None:
        figures.write_json(options.json)
    return 1 if figures.beyond_limits() else 0


sys.exit(main())
