"""A program with vLLM's command line and manners, for tests: what it does on real machines was measured.

It reads its arguments with argparse as vLLM does, refuses connections until its ranks have met and its model is
"loaded", then serves. `/v1` wants the key of VLLM_API_KEY. A leader that ends tells
its workers nothing.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any


def parse() -> argparse.Namespace:
    argv = ["--" + word[2:].replace("_", "-") if word.startswith("--") else word for word in sys.argv[1:]]
    parser = argparse.ArgumentParser(prog="vllm")
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1)
    parser.add_argument("--runner", choices=["auto", "generate", "pooling"])
    parser.add_argument("--nnodes", "-n", type=int, default=1)
    parser.add_argument("--node-rank", "-r", type=int, default=0)
    parser.add_argument("--master-addr", default="127.0.0.1")
    parser.add_argument("--master-port", type=int, default=29501)
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--distributed-executor-backend")
    parser.add_argument("--shutdown-timeout", type=int, default=0)
    parser.add_argument("--max-model-len")
    return parser.parse_args(argv)


class Handler(http.server.BaseHTTPRequestHandler):
    names: list[str]
    healthy = True

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply(200, None)
        elif self.path == "/v1/models" and self.known():
            self.reply(200, {"object": "list", "data": [{"id": name} for name in self.names]})
        else:
            self.reply(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        if not self.known():
            return
        if body["model"] not in self.names:
            self.reply(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
        else:
            self.reply(200, {"model": body["model"], "choices": [{"index": 0}], "usage": {"total_tokens": 2}})

    def known(self) -> bool:
        key = os.environ.get("VLLM_API_KEY")
        if key is None or self.headers.get("authorization") == f"Bearer {key}":
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
    Path("started.json").write_text(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if args.tensor_parallel_size * args.pipeline_parallel_size % args.nnodes:
        sys.exit("the world size does not divide over the nodes")
    if args.distributed_executor_backend == "ray":
        host, _, port = os.environ["RAY_ADDRESS"].rpartition(":")
        socket.create_connection((host, int(port)), 1).close()  # ray.init does not wait for long
    if args.node_rank > 0:
        if not args.headless:
            sys.exit("a worker would serve")
        with socket.create_connection((args.master_addr, args.master_port), 5) as meeting:
            meeting.sendall(b"rank %d from %s\n" % (args.node_rank, os.environ["VLLM_HOST_IP"].encode()))
            while True:
                time.sleep(0.05)
    if args.nnodes > 1:
        meet(args)
    Handler.names = args.served_model_name
    print("INFO Application startup complete.", flush=True)
    http.server.ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()


def meet(args: argparse.Namespace) -> None:
    joined: set[bytes] = set()
    kept = []
    with socket.create_server((args.master_addr, args.master_port)) as listener:
        while len(joined) < args.nnodes - 1:
            peer, _ = listener.accept()
            line = peer.makefile("rb").readline()  # nothing from who only looks whether the port is open
            if line.startswith(b"rank "):
                joined.add(line)
                kept.append(peer)
    print("joined: " + ", ".join(sorted(line.decode().strip() for line in joined)), flush=True)


if __name__ == "__main__":
    main()
