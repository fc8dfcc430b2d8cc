"""Whether the configured engines start: their programs by asking them for their version, their Python packages by
asking their own interpreter, which imports nothing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec

from llmgw.doctor.check import Node
from llmgw.hardware.machine import machine_root
from llmgw.hardware.programs import ProgramError, ProgramOutput, run_program
from llmgw.messages.findings import Finding

# An interpreter on a cold network file system takes seconds to start.
_LIMIT_S = 8.0
LIMIT_S = 3 * _LIMIT_S + 1.0
_OUTPUT_BYTES_MAX = 256 * 1024
_SHOWN_CHARS = 160
_WHY = "Models that want this engine fail when they are started on this node"
_ASK = """
import importlib.metadata, importlib.util, json, sys
found = {}
for name in sys.argv[1:]:
    if importlib.util.find_spec(name) is None:
        found[name] = None
        continue
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = "unknown"
print(json.dumps(found))
"""


def check_packages(node: Node) -> list[Finding]:
    """Runs each engine's program or interpreter once. Silent about programs that are not there: that is told."""
    engines = node.config.engines
    findings: list[Finding] = []
    if engines.llamacpp is not None:
        findings += _program(node, "llamacpp", engines.llamacpp.bin)
    if engines.vllm is not None:
        python = interpreter_of(shutil.which(engines.vllm.bin))
        if python is not None:
            findings += _python(node, "vllm", python, ("vllm", "torch"))
    if engines.sglang is not None:
        found = shutil.which(engines.sglang.python)
        if found is not None:
            findings += _python(node, "sglang", found, ("sglang", "torch"))
    return findings


class RememberedPackages:
    """The same for an agent, which looks again and again: engines that were found whole are not started again
    before one of their programs changes.
    """

    def __init__(self) -> None:
        self._whole: set[tuple[str, int]] = set()

    def check(self, node: Node) -> list[Finding]:
        """What `check_packages` finds now, or found when it found nothing."""
        key = _programs(node)
        if key and key <= self._whole:
            return []
        findings = check_packages(node)
        if not findings:
            self._whole |= key
        return findings


def _programs(node: Node) -> set[tuple[str, int]]:
    """The configured engines' programs and when each was changed."""
    engines = node.config.engines
    names = [
        *([engines.llamacpp.bin] if engines.llamacpp is not None else []),
        *([engines.vllm.bin] if engines.vllm is not None else []),
        *([engines.sglang.python] if engines.sglang is not None else []),
    ]
    found: set[tuple[str, int]] = set()
    for name in names:
        path = shutil.which(name)
        try:
            found.add((path or name, os.stat(path).st_mtime_ns if path is not None else 0))
        except OSError:
            found.add((name, 0))
    return found


def interpreter_of(program: str | None) -> str | None:
    """The interpreter in a script's first line; None for what is no script. `/usr/bin/env NAME` is looked up."""
    if program is None:
        return None
    try:
        with open(program, "rb") as file:
            first = file.readline(4096)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    words = os.fsdecode(first[2:]).split()
    if words and os.path.basename(words[0]) == "env":
        return shutil.which(next((word for word in words[1:] if not word.startswith("-")), ""))
    return words[0] if words else None


def _program(node: Node, engine: str, program: str) -> list[Finding]:
    found = shutil.which(program)
    if found is None:
        return []
    try:
        output = _run(found, "--version")
    except ProgramError as error:
        return [_finding(node, "engine-program", engine, str(error), error.remedy)]
    if output.code == 0:
        return []
    remedy = f"run {found} --version by hand; libraries that it misses: ldd {found}"
    return [_finding(node, "engine-program", engine, f"{found} --version fails: {_last_words(output)}", remedy)]


def _python(node: Node, engine: str, python: str, packages: tuple[str, ...]) -> list[Finding]:
    try:
        output = _run(python, "-c", _ASK, *packages)
        found = msgspec.json.decode(output.stdout.strip().splitlines()[-1:][0], type=dict[str, str | None])
    except ProgramError as error:
        return [_finding(node, "engine-python", engine, str(error), error.remedy)]
    except (msgspec.MsgspecError, IndexError):
        what = f"the interpreter {python} does not run: {_last_words(output)}"
        remedy = f"run {python} -V by hand; make the engine's environment again"
        return [_finding(node, "engine-python", engine, what, remedy)]
    missing = [name for name in packages if found.get(name) is None]
    if missing:
        what = f"{python} has no package {' and no '.join(missing)}"
        return [_finding(node, "engine-package", engine, what, f"{python} -m pip install {engine}")]
    if "+cpu" in (found.get("torch") or "") and _has_gpus(node):
        what = f"its PyTorch ({found['torch']}) is built for CPUs, and this node has GPUs"
        return [
            node.finding(
                "engine-cpu-build",
                "warning",
                f"engines.{engine}",
                what,
                why="The engine does not see the GPUs that its shards are given",
                remedy=f"install it again from an index with CUDA builds: {python} -m pip install {engine}",
            )
        ]
    return []


def _run(program: str, *args: str) -> ProgramOutput:
    """With the rights of whoever may change the program, and without GPUs, which it would initialise."""
    return run_program(
        [program, *args],
        timeout_s=_LIMIT_S,
        output_bytes_max=_OUTPUT_BYTES_MAX,
        # The folder that doctor is run in has no say in which packages an engine has.
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"},
        become=_rights_of(owner_of(program)),
    )


def _rights_of(owner: tuple[int, int] | None) -> dict[str, int | list[int]] | None:
    if owner is None or os.geteuid() != 0:
        return None
    return {"user": owner[0], "group": owner[1], "extra_groups": []}


def owner_of(program: str) -> tuple[int, int] | None:
    """User and group of a program, of its folder or environment, the first that is not root; None: all root's.

    Root that runs what another user may change gives that user its rights.
    """
    folder = os.path.dirname(os.path.abspath(program))
    for path in (program, folder, os.path.dirname(folder), os.path.realpath(program)):
        try:
            state = os.lstat(path)
        except OSError:
            continue
        if state.st_uid != 0:
            return state.st_uid, state.st_gid
    return None


def _has_gpus(node: Node) -> bool:
    root = machine_root(Path(node.config.discovery.ib_root))
    return root is not None and (root / "proc" / "driver" / "nvidia" / "version").exists()


def _last_words(output: ProgramOutput) -> str:
    lines = [line.strip() for line in f"{output.stdout}\n{output.stderr}".splitlines() if line.strip()]
    return lines[-1][:_SHOWN_CHARS] if lines else f"exit code {output.code}"


def _finding(node: Node, check: str, engine: str, what: str, remedy: str) -> Finding:
    return node.finding(check, "error", f"engines.{engine}", what, why=_WHY, remedy=remedy)
