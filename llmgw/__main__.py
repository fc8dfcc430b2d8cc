"""The one entry point, `llmgw`; also `python -m llmgw`, and scripts that are one command of it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from llmgw.cli.app import run

    run()


def provision_node() -> None:
    """`llmgw-provision-node`: the same as `llmgw provision-node`."""
    sys.argv.insert(1, "provision-node")
    main()


if __name__ == "__main__":
    main()
