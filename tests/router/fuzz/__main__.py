"""`scripts/fuzz --seconds N`: new cases until the time is over, or one fails."""

from __future__ import annotations

import argparse
import logging
import time

from tests.router.fuzz import cases

EXAMPLES_AT_ONCE = 500


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long; default 60")
    seconds = parser.parse_args().seconds
    logging.getLogger("llmgw.router").setLevel(logging.CRITICAL)
    until = time.monotonic() + seconds
    kinds = cases.cases(EXAMPLES_AT_ONCE, repeatable=False)
    counts = dict.fromkeys((kind.__name__ for kind in kinds), 0)
    while time.monotonic() < until:
        for kind in kinds:
            before = cases.played
            kind()
            counts[kind.__name__] += cases.played - before
            if time.monotonic() >= until:
                break
    for name, count in counts.items():
        print(f"{count:9,}  {name.replace('_', ' ')}")
    print(f"{cases.played:9,}  cases in {seconds:g} s, none failed")


if __name__ == "__main__":
    main()
