"""The environment that engines installed into a Python environment of their own need."""

from __future__ import annotations

import os.path

from llmgw.engines.base import LaunchContext, inherited_env


def python_env(program: str, context: LaunchContext) -> dict[str, str]:
    """What an engine inherits, with the folder of its own program first on PATH.

    Engines compile kernels with tools of their environment (ninja), which need not be activated for it.
    """
    env = inherited_env(context.base_env)
    if os.sep in program:
        folder = os.path.dirname(os.path.abspath(program))
        env["PATH"] = os.pathsep.join([folder, *filter(None, [env.get("PATH")])])
    env["PYTHONUNBUFFERED"] = "1"
    return env


def beside(program: str, name: str) -> str:
    """Another program of the same environment: `/opt/vllm/bin/vllm`, `ray` → `/opt/vllm/bin/ray`."""
    return os.path.join(os.path.dirname(program), name) if os.sep in program else name
