"""The one-token request that proves an engine works, by the model's task.

A 200 from `/health` proves nothing: engines say it with a dead core, and before anything works.
"""

from __future__ import annotations

import json
import struct
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
    "transcription": "/v1/audio/transcriptions",
}

# Half a second of nothing, at the rate that speech models work with.
_SAMPLES_PER_S = 16_000
_SILENCE_SAMPLES = 8_000
_BOUNDARY = "llmgw-one-token"

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
    elif task == "transcription":
        return HttpCheck(
            method="POST",
            path=_PATHS[task],
            body=_form(model, _silence()),
            headers={"content-type": f"multipart/form-data; boundary={_BOUNDARY}"},
            timeout_s=PROBE_TIMEOUT_S,
        )
    else:
        raise ValueError(f"no one-token request is known for the task {task!r}")
    return HttpCheck(
        method="POST",
        path=_PATHS[task],
        body=json.dumps({"model": model, **body}).encode(),
        headers={"content-type": "application/json"},
        timeout_s=PROBE_TIMEOUT_S,
    )


def _silence() -> bytes:
    """A WAV file of 16-bit mono PCM: RIFF, `fmt ` and `data` (soundfile.sapp.org/doc/WaveFormat)."""
    data = bytes(2 * _SILENCE_SAMPLES)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, _SAMPLES_PER_S, 2 * _SAMPLES_PER_S, 2, 16)
    head = struct.pack("<4sI4s", b"RIFF", 4 + len(form) + 8 + len(data), b"WAVE")
    return head + form + struct.pack("<4sI", b"data", len(data)) + data


def _form(model: str, audio: bytes) -> bytes:
    part = f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="model"\r\n\r\n{model}\r\n'
    part += f'--{_BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="silence.wav"\r\n'
    return f"{part}content-type: audio/wav\r\n\r\n".encode() + audio + f"\r\n--{_BOUNDARY}--\r\n".encode()


def with_key(check: HttpCheck, key: str | None) -> HttpCheck:
    """The same request from somebody who knows the engine's key; None is an engine that demands none."""
    if key is None:
        return check
    return replace(check, headers={**check.headers, "authorization": f"Bearer {key}"})
