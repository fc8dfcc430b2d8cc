"""The one-token request that proves an engine works, by the model's task.

A 200 from `/health` proves nothing: engines say it with a dead core, and before anything works.
"""

from __future__ import annotations

import json
from dataclasses import replace

from llmgw.engines.base import HttpCheck

PROBE_TIMEOUT_S = 60.0
"""A first request compiles kernels and warms caches; slower than this is not ready yet, and is asked again."""

_PATHS = {
    "chat": "/v1/chat/completions",
    "completion": "/v1/completions",
    "embedding": "/v1/embeddings",
    "rerank": "/v1/rerank",
    "score": "/v1/score",
}

TASKS_PROBED = frozenset(_PATHS)
"""Tasks for which `one_token_check` knows a request."""


def one_token_check(task: str, model: str) -> HttpCheck:
    """The cheapest request that the model's clients would send, answered by one token (or one vector).

    `model` is a name that the engine serves. A chat model is asked through its chat template, because a template
    that cannot be rendered fails every request of its clients while plain completions work.
    Raises ValueError for a task without a probe.
    """
    body: dict[str, object]
    if task == "chat":
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    elif task == "completion":
        body = {"prompt": "Hi", "max_tokens": 1}
    elif task == "embedding":
        body = {"input": "Hi"}
    elif task == "rerank":
        body = {"query": "Hi", "documents": ["Hi"]}
    elif task == "score":
        body = {"text_1": "Hi", "text_2": "Hi"}
    else:
        raise ValueError(f"no one-token request is known for the task {task!r}")
    return HttpCheck(
        method="POST",
        path=_PATHS[task],
        body=json.dumps({"model": model, **body}).encode(),
        headers={"content-type": "application/json"},
        timeout_s=PROBE_TIMEOUT_S,
    )


def with_key(check: HttpCheck, key: str | None) -> HttpCheck:
    """The same request from somebody who knows the engine's key; None is an engine that demands none."""
    if key is None:
        return check
    return replace(check, headers={**check.headers, "authorization": f"Bearer {key}"})
