"""The simulated engine's process: rendezvous, load, serve, stop. Light enough that many run on one machine.

Standard output says what happens; the line `listening on http://HOST:PORT` says that it serves. A failure is one
sentence on standard error and exit code 1.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from llmgw.sim.engine_api import Api
from llmgw.sim.engine_core import Core
from llmgw.sim.engine_http import HttpServer, bind
from llmgw.sim.engine_metrics import Metrics
from llmgw.sim.engine_nccl import Traffic, nccl_lines
from llmgw.sim.engine_options import Options, Surroundings, read_surroundings
from llmgw.sim.engine_rendezvous import EngineError, Leader, Worker

# Room in the KV cache, for the usage that the metrics tell.
KV_TOKENS = 262_144
# How long answers that were cut off may take to reach their clients.
FLUSH_S = 1.0


def run(options: Options) -> int:
    """Run the engine until it is told to stop. Returns its exit code: 0 after SIGTERM, 1 after a failure."""
    held: list[Path] = []
    try:
        return asyncio.run(_Process(options, read_surroundings(), held).main())
    finally:
        for path in held:
            path.unlink(missing_ok=True)


class _Process:
    """One shard's process, whatever its rank."""

    def __init__(self, options: Options, surroundings: Surroundings, held: list[Path]) -> None:
        self._options = options
        self._surroundings = surroundings
        self._held = held
        metrics = Metrics(model=options.served_names[0] if options.served_names else "", kv_tokens=KV_TOKENS)
        self._core = Core(options.faults, metrics, options.max_num_seqs)
        self._server = HttpServer(Api(options, surroundings, self._core, say).handle)
        self._told_to_stop = asyncio.Event()
        self._traffic: Traffic | None = None
        if options.nnodes > 1 and options.nccl_log == "ib" and surroundings.hardware is not None:
            self._traffic = Traffic(surroundings.hardware, surroundings.adapters)

    async def main(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        work = loop.create_task(self._lead() if self._options.rank == 0 else self._follow())
        stop = loop.create_task(self._told_to_stop.wait())
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            await self._shut_down()
            return 0
        try:
            work.result()
        except EngineError as error:
            complain(str(error))
        return 1

    async def _lead(self) -> None:
        """Rank 0: gather the workers, load, serve. Ends by EngineError only."""
        options = self._options
        sock = _bind(options.host, options.port, "--port")
        if options.nnodes == 1:
            await self._load()
            await self._serve(sock)
            return
        leader = Leader(options.group, options.nnodes)
        host, port = _rendezvous(options)
        try:
            await leader.open(host, port)
        except OSError as error:
            raise EngineError(_taken(host, port, "--rendezvous-port", error)) from None
        say(f"waiting for {options.nnodes - 1} workers at {host} port {port}")
        await _unless_lost(leader, leader.gather(options.rendezvous_timeout_s))
        self._core.held_up = lambda: leader.held_up
        leader.tokens = self._tokens_made
        say(f"all {options.nnodes - 1} workers have joined")
        await _unless_lost(leader, self._load())
        await _unless_lost(leader, self._serve(sock))

    async def _follow(self) -> None:
        """A worker: join, load, hold the connection. Ends by EngineError only."""
        options = self._options
        host, port = _rendezvous(options)
        if options.never_join:
            say(f"rank {options.rank} joins nobody, as the simulated engine was told")
            await asyncio.get_running_loop().create_future()
        worker = await Worker.join(
            host,
            port,
            group=options.group,
            rank=options.rank,
            nnodes=options.nnodes,
            timeout_s=options.rendezvous_timeout_s,
        )
        say(f"rank {options.rank} has joined the leader at {host} port {port}")
        worker.heard_tokens = self._count_traffic
        await worker.start()
        await _unless_lost(worker, self._load())
        say(f"rank {options.rank} works for its leader and serves nothing itself")
        raise EngineError(await worker.loss())

    async def _load(self) -> None:
        """Take the GPUs' memory and the time that loading takes."""
        options = self._options
        if self._surroundings.hardware is not None:
            hardware, uuids = self._surroundings.hardware, self._surroundings.gpu_uuids
            try:
                self._held += hold_gpu_memory(hardware, uuids, options.gpu_memory_mib)
            except OSError as error:
                raise EngineError(
                    f"cannot take GPU memory in {hardware}: {error.strerror or error}; point LLMGW_SIM_HARDWARE "
                    "at a folder of `llmgw sim hardware`, or unset it"
                ) from None
        if options.nnodes > 1:
            self._use_network()
        say(f"loading on {options.gpus} GPUs, {options.load_s:g} s")
        await asyncio.sleep(options.load_s)
        if options.fail_load:
            raise EngineError(
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
                "capacity of 79.11 GiB of which 1.06 GiB is free. (As the simulated engine was told.)"
            )

    def _use_network(self) -> None:
        """Say what NCCL would, and have the fabric's adapters carry what loading takes."""
        options, adapters = self._options, self._surroundings.adapters
        for line in nccl_lines(options.nccl_log, adapters, options.rank, options.nnodes):
            say(line)
        if self._traffic is not None:
            try:
                self._traffic.load()
            except (OSError, ValueError) as error:
                self._carry_nothing(error)

    def _tokens_made(self) -> int:
        """All tokens of the replica so far, which rank 0 counts, and tells the others."""
        metrics = self._core.metrics
        tokens = metrics.prompt_tokens + metrics.generation_tokens
        self._count_traffic(tokens)
        return tokens

    def _count_traffic(self, tokens: int) -> None:
        """Every rank's adapters carry their part of each token."""
        if self._traffic is not None:
            try:
                self._traffic.up_to(tokens)
            except (OSError, ValueError) as error:
                self._carry_nothing(error)

    def _carry_nothing(self, error: OSError | ValueError) -> None:
        self._traffic = None
        complain(f"the simulated adapters carry nothing: {error}")

    async def _serve(self, sock: socket.socket) -> None:
        """Listen, and go on for ever."""
        try:
            await self._server.listen(sock)
        except OSError as error:
            raise EngineError(_taken(self._options.host, sock.getsockname()[1], "--port", error)) from None
        host, port = sock.getsockname()[:2]
        # `llmgw.config.addresses` would write this too, at the price of importing pydantic in every engine.
        say(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}")
        await asyncio.get_running_loop().create_future()

    async def _shut_down(self) -> None:
        """Stop accepting, let running answers finish within `--shutdown-timeout-s`, abort the rest."""
        self._server.stop_accepting()
        if self._options.shutdown_timeout_s > 0 and not self._core.stopping:
            await self._server.wait_closed(self._options.shutdown_timeout_s)
        self._core.stop()
        await self._server.wait_closed(FLUSH_S)
        say("stopped")

    def _on_signal(self, number: signal.Signals) -> None:
        if self._options.faults.ignore_sigterm and number == signal.SIGTERM:
            say("SIGTERM ignored, as the engine was told to")
            return
        if self._told_to_stop.is_set():
            self._core.stop()  # The second signal cuts the waiting short.
        self._told_to_stop.set()


async def _unless_lost(peer: Leader | Worker, work: Coroutine[Any, Any, None]) -> None:
    """Do a piece of work, or raise EngineError as soon as the other side is gone."""
    loop = asyncio.get_running_loop()
    loss, task = loop.create_task(peer.loss()), loop.create_task(work)
    try:
        await asyncio.wait({loss, task}, return_when=asyncio.FIRST_COMPLETED)
        if loss.done():
            raise EngineError(loss.result())
        task.result()
    finally:
        loss.cancel()
        task.cancel()
        # Both have really ended: two readers of one connection would be an error.
        await asyncio.gather(loss, task, return_exceptions=True)


def _rendezvous(options: Options) -> tuple[str, int]:
    assert options.rendezvous_host is not None
    assert options.rendezvous_port is not None
    return options.rendezvous_host, options.rendezvous_port


def _bind(host: str, port: int, flag: str) -> socket.socket:
    try:
        return bind(host, port)
    except OSError as error:
        raise EngineError(_taken(host, port, flag, error)) from None


def _taken(host: str, port: int, flag: str, error: OSError) -> str:
    return (
        f"cannot listen on {host} port {port}: {error.strerror or error}; choose another {flag} or free this one"
    )


def hold_gpu_memory(hardware: str, gpu_uuids: list[str], mib: int) -> list[Path]:
    """Take memory of a simulated node's GPUs: `HARDWARE/used/<gpu-uuid>.<pid>`, the MiB as text.

    Returns the files, which are to be removed at the end; those of dead processes do not count.
    """
    folder = Path(hardware) / "used"
    folder.mkdir(exist_ok=True)
    files = [folder / f"{uuid}.{os.getpid()}" for uuid in gpu_uuids if "/" not in uuid]
    for path in files:
        path.write_text(f"{mib}\n")
    return files


def say(line: str) -> None:
    """One line on standard output, at once: the output is a file that somebody follows."""
    try:
        print(line, flush=True)
    except OSError:
        pass  # A full disk or a closed pipe must not end an engine.


def complain(sentence: str) -> None:
    """One line on standard error."""
    try:
        print(sentence, file=sys.stderr, flush=True)
    except OSError:
        pass
