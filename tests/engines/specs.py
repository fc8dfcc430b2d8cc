"""Specs and contexts for tests of adapters."""

from __future__ import annotations

from typing import Any

from llmgw.config.agent import AgentConfig, Engines
from llmgw.engines.base import LaunchContext
from llmgw.messages.agent import Gpu, ShardSpec


def spec(**changes: Any) -> ShardSpec:
    """Rank 0 of a replica of one node."""
    values: dict[str, Any] = {
        "shard_id": "r1-0",
        "replica_id": "r1",
        "model": "tiny",
        "profile": "default",
        "profile_hash": "abc",
        "served_names": ["tiny", "small"],
        "gpus": ["GPU-1", "GPU-2"],
        "engine": "sim",
    }
    return ShardSpec(**{**values, **changes})


def context(spec: ShardSpec, engines: Engines | None = None, **changes: Any) -> LaunchContext:
    """A node at 10.0.0.5 with the spec's GPUs."""
    config = AgentConfig(node_id="node01", server="https://gw:8443", engines=engines or Engines())
    gpus = [Gpu(index=index, uuid=uuid, name="H100") for index, uuid in enumerate(spec.gpus)]
    values: dict[str, Any] = {
        "config": config,
        "address": "10.0.0.5",
        "gpus": gpus,
        "work_dir": "/work/r1-0",
        "http_port": 21001,
        "base_env": {"PATH": "/bin", "HOME": "/root", "LLAMA_API_KEY": "k", "AWS_SECRET": "s"},
    }
    return LaunchContext(**{**values, **changes})
