"""What a profile's `args` and `env` may not touch: the settings that hold the invariants, and secrets.

The agent chooses address, port, GPUs and names; a profile that overrode them would take another shard's GPU or
listen where no route points. Every adapter refuses them with a sentence; each brings its own flags.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from llmgw.engines.command_line import Given, Reading, flag_of, read_args

_GPUS = "the agent chooses a shard's GPUs"
_LOADER = "it changes which code the engine's process runs"
_OURS = "llmgw sets it itself"

REFUSED_ENV: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": _GPUS,
    "CUDA_DEVICE_ORDER": _GPUS,
    "NVIDIA_VISIBLE_DEVICES": _GPUS,
    "HIP_VISIBLE_DEVICES": _GPUS,
    "ROCR_VISIBLE_DEVICES": _GPUS,
    "GGML_VK_VISIBLE_DEVICES": _GPUS,
    "SPT_NOENV": _OURS,
}
"""Environment variables by name, and why no profile sets them, whatever the engine."""

REFUSED_ENV_PREFIXES: Mapping[str, str] = {"LD_": _LOADER, "PYTHON": _LOADER, "LLMGW_": _OURS}
"""The same for whole families of variables."""

# Command lines are read by everyone on the node, and engines print theirs when they start.
_SECRET_FLAG = re.compile(r"-(api-key|token|password|passphrase|secret)$")
_SECRET_VALUE = re.compile(r"\b(hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,})")
_SECRET_ENV = re.compile(r"(TOKEN|API_?KEY|SECRET|SECRET_ACCESS_KEY|PASSWORD|CREDENTIALS?)$")


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


def refused_args(args: Sequence[str], refused: Mapping[str, str], reading: Reading) -> list[str]:
    """Sentences for what a profile's `args` may not hold; empty when all are fine.

    `refused` is flag → why, every spelling of the flag a key of its own (`--host`, `-a`); `reading` finds them in
    whatever form the engine takes. Secrets are refused as well, and never repeated.
    """
    sentences = []
    if any("\0" in arg for arg in args):
        sentences.append("args has an argument with a NUL byte, which no process can be given; remove it")
    for given in read_args(args, refused, reading):
        reason = next((refused[flag] for flag in sorted(given.flags)), None)
        if reason is not None:
            sentences.append(f"args has {_meant(given)}, which a profile may not set: {reason}; remove it")
        elif _is_secret(given):
            sentences.append(
                f"args has {given.written} with a secret, and command lines are read by everyone on the node; "
                "put it into the environment of the agent (HF_TOKEN is passed on), or into a file"
            )
    if not sentences and any(_SECRET_VALUE.search(arg) for arg in args):
        sentences.append(
            "args holds what looks like a token, and command lines are read by everyone on the node; put it into "
            "the environment of the agent (HF_TOKEN is passed on), or into a file"
        )
    return sentences


def size_problems(args: Sequence[str], sizes: Collection[str], reading: Reading, how: str) -> list[str]:
    """Sentences for sizes with units: what `4k` means is another thing to each engine.

    `sizes` are the flags that take whole numbers, `how` is half a sentence about this engine's own reading.
    """
    return [
        f"args has {given.written} {given.values[0]}, and {how}; write a plain whole number, such as 4096"
        for given in read_args(args, sizes, reading)
        if given.flags and given.values and re.fullmatch(r"-?[0-9.]+\s*[A-Za-z]+", given.values[0])
    ]


def spelling_problems(args: Sequence[str], reading: Reading, engine: str) -> list[str]:
    """Sentences for spellings that the engine does not take at all, and would end on after seconds of loading.

    No value is repeated: it may be a secret.
    """
    sentences = []
    for arg in args:
        name, equals, _ = arg.partition("=")
        if flag_of(arg) is None:
            continue
        if len(name.split()) > 1:
            sentences.append(
                f"args has {name.split()[0]} and what follows it as one argument, which {engine} takes for one "
                "name; write each as an argument of its own"
            )
        elif not name.startswith("--"):
            continue
        elif equals and not reading.equals:
            sentences.append(
                f"args has {name}=…, and {engine} takes no --flag=value; write {name} and its value as two "
                "arguments"
            )
        elif "_" in name and not reading.underscores:
            sentences.append(
                f"args has {name}, and {engine} takes no underscores in flags; write {name.replace('_', '-')}"
            )
    return sentences


def secret_warnings(env: Mapping[str, str]) -> list[str]:
    """Sentences for secrets in a profile's `env`: they work, and everyone who reads the catalog sees them."""
    return [
        f"env sets {name}, which looks like a secret, and the catalog shows it to everyone who may read it; set "
        "it in the environment of the agents instead"
        for name in sorted(env)
        if _SECRET_ENV.search(name.upper()) and env[name]
    ]


def merge_env(ours: Mapping[str, str], env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(our variables with the profile's over them, sentences about contradictions)."""
    warnings = [
        f"env sets {name} to {env[name]!r} where llmgw would set {ours[name]!r}; the profile's own is used"
        for name in sorted(env)
        if name in ours and env[name] != ours[name]
    ]
    return {**ours, **env}, warnings


def _meant(given: Given) -> str:
    if given.written.replace("_", "-") in given.flags:
        return given.written
    return f"{given.written}, which the engine takes for {sorted(given.flags)[0]}"


def _is_secret(given: Given) -> bool:
    flag = flag_of(given.written) or given.written
    # Numbers are none: `--bucket-time-to-first-token 0.1`.
    words = [value for value in given.values if not re.fullmatch(r"[0-9.]+", value)]
    return bool(words) and flag.startswith("--") and _SECRET_FLAG.search(flag) is not None
