"""The script that installs a release's file on a machine: `sh install.sh FILE NAME SHA256 [ROOT]`.

It is text for a POSIX shell on the target machine, which need not have Python: piped over ssh, or run in place.
"""

from __future__ import annotations

from importlib import resources


def script() -> str:
    """The text of install.sh, whose first lines say how it is called and what it prints."""
    return resources.files("llmgw.release").joinpath("install.sh").read_text(encoding="utf-8")
