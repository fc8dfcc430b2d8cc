"""A program with the command line of `ray start`, for tests: a head listens after a while, a node joins it."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="ray")
    parser.add_argument("command", choices=["start"])
    parser.add_argument("--head", action="store_true")
    parser.add_argument("--address")
    parser.add_argument("--port", type=int)
    parser.add_argument("--node-ip-address", required=True)
    parser.add_argument("--num-gpus", type=int, required=True)
    parser.add_argument("--include-dashboard")
    parser.add_argument("--temp-dir", required=True)
    parser.add_argument("--disable-usage-stats", action="store_true")
    parser.add_argument("--block", action="store_true", required=True)
    for name in ("node-manager", "object-manager", "dashboard-agent-listen", "dashboard-agent-grpc"):
        parser.add_argument(f"--{name}-port", type=int)
    for name in ("runtime-env-agent", "metrics-export", "ray-client-server"):
        parser.add_argument(f"--{name}-port", type=int)
    args = parser.parse_args()
    Path("ray-started.json").write_text(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}))
    if args.head:
        time.sleep(0.3)  # an engine that did not wait would find nobody
        with socket.create_server((args.node_ip_address, args.port)) as listener:
            while True:
                listener.accept()[0].close()
    host, _, port = args.address.rpartition(":")
    socket.create_connection((host, int(port)), 1).close()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
