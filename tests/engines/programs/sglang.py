"""A program with the manners of `python -m sglang.launch_server`, for tests: as measured on the real one.

Refuses connections while it loads, then says 503 for a while, then 200; prints all its arguments, the key of its
configuration file among them; answers to any model's name; drains when it is told to stop.
"""

from __future__ import annotations

import argparse
import http.server
import json
import sys
import time
from pathlib import Path
from typing import Any


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sglang serve")
    parser.add_argument("--config")
    parser.add_argument("--model-path", "--model", required=True)
    parser.add_argument("--served-model-name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--tp-size", "--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--pp-size", "--pipeline-parallel-size", type=int, default=1)
    parser.add_argument("--device")
    parser.add_argument("--nccl-port", type=int)
    parser.add_argument("--enable-metrics", action="store_true")
    parser.add_argument("--api-key")
    words = sys.argv[1:]
    if words[:2] != ["-m", "sglang.launch_server"]:
        sys.exit("this is SGLang's launch server only")
    words = words[2:]
    if "--config" in words:
        path = Path(words[words.index("--config") + 1])
        if path.suffix != ".yaml":
            sys.exit("Config file must be YAML format")
        name, _, value = path.read_text().partition(": ")
        words = [f"--{name}", json.loads(value), *words]
    return parser.parse_args(words)


class Handler(http.server.BaseHTTPRequestHandler):
    api_key: str | None = None
    warm_at = 0.0

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply(200 if time.monotonic() >= self.warm_at else 503, None)
        elif self.path == "/metrics":
            self.reply(200, None)
        elif self.known():
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        if self.known():
            self.reply(200, {"model": body["model"], "choices": [{"index": 0}]})

    def known(self) -> bool:
        if self.api_key is None or self.headers.get("authorization") == f"Bearer {self.api_key}":
            return True
        self.reply(401, {"error": "Unauthorized"})
        return False

    def reply(self, status: int, body: Any) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


def main() -> None:
    args = parse()
    print(f"server_args={args}", flush=True)
    time.sleep(0.2)
    Handler.api_key = args.api_key
    Handler.warm_at = time.monotonic() + 0.3
    http.server.ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
