"""Room for models: the disks that engines load weights from and fetch them to."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from llmgw.doctor.check import Node
from llmgw.messages.findings import Finding

ROOM_WARN_BYTES = 20 * 1024**3


def check_weights(node: Node) -> list[Finding]:
    """Only where an engine is configured that loads any; one finding a file system."""
    engines = node.config.engines
    folders: list[tuple[str, Path]] = []
    if engines.llamacpp or engines.vllm or engines.sglang:
        folders.append(("weights", Path(node.config.weights_dir).absolute()))
    if engines.vllm or engines.sglang:
        folders.append(("Hugging Face cache", _hugging_face()))
    findings: list[Finding] = []
    seen: set[int] = set()
    for what, folder in folders:
        there = folder
        while not there.exists() and there != there.parent:
            there = there.parent
        try:
            device, free_bytes = os.stat(there).st_dev, shutil.disk_usage(there).free
        except OSError:
            continue  # what cannot be looked into is the work dir's own check
        if device in seen or free_bytes >= ROOM_WARN_BYTES:
            continue
        seen.add(device)
        findings.append(
            node.finding(
                "weights-room",
                "warning",
                f"{what} {folder}",
                f"{free_bytes / 1024**3:.1f} GiB are free on the file system of {there}",
                why="A model's weights take tens of GiB, and a fetch that fills the disk fails",
                remedy=f"make room (du -xh {there} | sort -h | tail), or move the folder to a larger disk",
            )
        )
    return findings


def _hugging_face() -> Path:
    """Where engines keep what they fetch by themselves (huggingface_hub, HF_HOME)."""
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path(os.path.expanduser("~")) / ".cache") / "huggingface"
