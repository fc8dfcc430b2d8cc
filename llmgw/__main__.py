"""The one entry point, `llmgw`; also `python -m llmgw`."""

from __future__ import annotations

import gc
import os
import sys

from llmgw.config.own_program import leave_own_libraries, run_as_module


def main() -> None:
    """Run the command line and exit with its code."""
    # Nearly all that a program here makes lives for long: with the interpreter's own thresholds a tenth of each
    # start is spent on looking through it.
    gc.set_threshold(50_000, 20, 20)
    leave_own_libraries(os.environ)
    if run_as_module(sys.argv):
        return
    from llmgw.cli.app import run

    run()


if __name__ == "__main__":
    main()
