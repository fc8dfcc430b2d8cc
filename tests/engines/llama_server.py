#!/usr/bin/env python3
"""A `llama-server` for tests: llama.cpp's own HTTP server out of the `xllamacpp` wheel, behind the flags that the
adapter plans. Like the real program it ends with code 1 at any flag that it does not know, takes no
`--flag=value`, and reads `LLAMA_ARG_…` variables before its command line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any, NoReturn

VALUES = {
    "--model": "model",
    "--alias": "alias",
    "--host": "host",
    "--port": "port",
    "--parallel": "parallel",
    "--device": "device",
    "--ctx-size": "ctx_size",
}
SWITCHES = {
    "--metrics": "metrics",
    "--no-webui": "no_webui",
    "--embeddings": "embeddings",
    "--reranking": "rerank",
}


def fail(sentence: str) -> NoReturn:
    print(f"error: {sentence}", file=sys.stderr, flush=True)
    sys.exit(1)


def parse(argv: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    rest = list(argv)
    while rest:
        flag = rest.pop(0)
        if flag in SWITCHES:
            options[SWITCHES[flag]] = "true"
        elif flag in VALUES and rest:
            options[VALUES[flag]] = rest.pop(0)
        elif flag in VALUES:
            fail(f'while handling argument "{flag}": expected value for argument')
        else:
            fail(f"invalid argument: {flag}")
    return options


def parameters(xllamacpp: Any, options: dict[str, str]) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.model_alias = set(options["alias"].split(","))
    params.hostnames = options["host"].split(",")
    params.port = int(options["port"])
    params.n_parallel = int(options.get("parallel", "4"))
    params.n_ctx = int(options.get("ctx_size", "0"))
    params.endpoint_metrics = "metrics" in options
    params.ui = "no_webui" not in options
    params.embedding = "embeddings" in options or "rerank" in options
    if options.get("device") == "none":
        params.n_gpu_layers = 0
    params.kv_unified = os.environ.get("LLAMA_ARG_KV_UNIFIED") == "true"
    params.sse_ping_interval = int(os.environ.get("LLAMA_ARG_SSE_PING_INTERVAL", "30"))
    if os.environ.get("LLAMA_API_KEY"):
        params.api_keys = [os.environ["LLAMA_API_KEY"]]
    params.cors_origins = os.environ.get("LLAMA_ARG_CORS_ORIGINS", "*")
    return params


def main() -> None:
    options = parse(sys.argv[1:])
    if not os.path.isfile(options.get("model", "")):
        fail(f"failed to load model, '{options.get('model')}'")
    import xllamacpp

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    server = xllamacpp.Server(parameters(xllamacpp, options))
    print(f"listening on {server.listening_address}", flush=True)
    stop.wait()
    del server


if __name__ == "__main__":
    main()
