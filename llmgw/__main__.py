"""The one entry point, `llmgw`; also `python -m llmgw`."""

from __future__ import annotations

import os
import sys

from llmgw.config.own_program import leave_own_libraries, run_as_module


def main() -> None:
    """Run the command line and exit with its code."""
    leave_own_libraries(os.environ)
    if run_as_module(sys.argv):
        return
    from llmgw.cli.app import run

    run()


if __name__ == "__main__":
    main()
