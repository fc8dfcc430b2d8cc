"""What a profile's `args` and `env` may not touch: the settings that hold the invariants.

The agent chooses address, port, GPUs and names; a profile that overrode them would take another shard's GPU or
listen where no route points. Every adapter refuses them with a sentence; each brings its own flags.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_GPUS = "the agent chooses a shard's GPUs"
_LOADER = "it changes which code the engine's process runs"
_OURS = "llmgw sets it itself"

REFUSED_ENV: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": _GPUS,
    "NVIDIA_VISIBLE_DEVICES": _GPUS,
    "HIP_VISIBLE_DEVICES": _GPUS,
    "ROCR_VISIBLE_DEVICES": _GPUS,
    "GGML_VK_VISIBLE_DEVICES": _GPUS,
    "SPT_NOENV": _OURS,
}
"""Environment variables by name, and why no profile sets them, whatever the engine."""

REFUSED_ENV_PREFIXES: Mapping[str, str] = {"LD_": _LOADER, "PYTHON": _LOADER, "LLMGW_": _OURS}
"""The same for whole families of variables."""


def refused_env(env: Mapping[str, str], engine: Mapping[str, str] | None = None) -> list[str]:
    """Sentences for the variables of a profile's `env` that it may not set; empty when all are fine.

    `engine` adds the engine's own variables, name → why. A name is compared in upper case, since some engines
    read both.
    """
    refused = {**REFUSED_ENV, **(engine or {})}
    sentences = []
    for name in sorted(env):
        upper = name.upper()
        reason = refused.get(upper)
        if reason is None:
            reason = next((why for prefix, why in REFUSED_ENV_PREFIXES.items() if upper.startswith(prefix)), None)
        if reason is not None:
            sentences.append(
                f"env sets {name}, which a profile may not: {reason}; remove it from the profile's env"
            )
        elif "\0" in env[name]:
            sentences.append(
                f"env sets {name} to a value with a NUL byte, which no process can be given; remove it"
            )
    return sentences


def refused_args(args: Iterable[str], refused: Mapping[str, str]) -> list[str]:
    """Sentences for the flags in a profile's `args` that it may not set; empty when all are fine.

    `refused` is flag → why, every spelling of the flag a key of its own (`--host`, `-a`). `--flag=value` and
    `--flag_name` are seen too, since engines take them.
    """
    sentences = []
    for arg in args:
        flag = flag_of(arg)
        if flag is not None and flag in refused:
            sentences.append(f"args has {arg}, which a profile may not set: {refused[flag]}; remove it")
        elif "\0" in arg:
            sentences.append(f"args has {arg!r}, whose NUL byte no process can be given; remove it")
    return sentences


def flag_of(arg: str) -> str | None:
    """The flag in one argument as it is listed in help texts, or None for a value.

    `--api_key=x` → `--api-key`, `-np` → `-np`, `-1` and `fast` → None.
    """
    if not arg.startswith("-") or len(arg) < 2 or arg[1].isdigit():
        return None
    name = arg.partition("=")[0]
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name


def has_flag(args: Iterable[str], *spellings: str) -> bool:
    """True when `args` sets a flag in any of its spellings."""
    return any(flag_of(arg) in spellings for arg in args)
