"""The one entry point, `llmgw`; also `python -m llmgw`."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with its code."""
    from llmgw.cli.app import run

    run()


if __name__ == "__main__":
    main()
