"""A process that supervises one shard until it is killed, with WORK_DIR PORTS WORDS… as arguments.

Words: `rank=1` makes it a worker whose leader listens nowhere; the rest are the engine's.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from llmgw.messages.agent import Rendezvous
from tests.agent.fakes import make_config, make_spec, make_supervisor


async def main() -> None:
    work_dir, ports, *words = sys.argv[1:]
    supervisor = make_supervisor(make_config(Path(work_dir), port_range=ports))
    await supervisor.adopt()
    worker = "rank=1" in words
    spec = make_spec(
        "r1-0",
        *(word for word in words if word != "rank=1"),
        gpus=["GPU-2"],
        load_timeout_s=20.0,
        nodes=2 if worker else 1,
        rank=1 if worker else 0,
        rendezvous=Rendezvous(host="127.0.0.1", port=1) if worker else None,
    )
    await supervisor.start(spec)
    while True:
        for shard in await supervisor.held():
            print(shard.phase, shard.engine_pid, flush=True)
        await asyncio.sleep(0.02)


asyncio.run(main())
