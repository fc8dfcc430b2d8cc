"""The script that takes an upgrade back when the new program does not come up: `sh settle.sh FOLDER`.

An agent that switches leaves it beside the marker, from where llmgw-agent.service runs it before each start and
after each end.
"""

from __future__ import annotations

from importlib import resources


def script() -> str:
    """The text of settle.sh, whose first lines say how it is called."""
    return resources.files("llmgw.release").joinpath("settle.sh").read_text(encoding="utf-8")
