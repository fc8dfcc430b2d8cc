"""The single file: a script that unpacks what follows it, once, into a folder that stays.

PyInstaller's own single files unpack to /tmp at every start: a node's housekeeping removes that below an agent
that runs for weeks, and nobody removes it after one that was killed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

_HEAD = Path(__file__).with_name("single.sh")
_DIGITS = 8


def write_single(tarball: Path, target: Path, *, version: str, machine: str, glibc: str) -> None:
    """Write `target` (executable), which unpacks `tarball` (.tar.gz with one folder at the top)."""
    payload = tarball.read_bytes()
    said = {
        "@VERSION@": version,
        "@MACHINE@": machine,
        "@GLIBC@": glibc,
        "@BUILD@": hashlib.sha256(payload).hexdigest()[:12],
    }
    head = _HEAD.read_text()
    for word, meaning in said.items():
        head = head.replace(word, meaning)
    # `tail -c +N` counts from 1. The number's own width is fixed, so that it does not move what it points at.
    length = len(head.encode()) - len("@OFFSET@") + _DIGITS
    head = head.replace("@OFFSET@", f"{length + 1:0{_DIGITS}d}")
    target.write_bytes(head.encode() + payload)
    target.chmod(0o755)
