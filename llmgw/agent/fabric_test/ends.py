"""Answers the questions of a bandwidth test: starts the ends, and sees to it that nothing of them is left.

An end is over when its program has ended, when it is told to, when its time is up, when the session is over, and
when the agent is gone (the kernel ends its programs then, and the next agent what those had started).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import structlog

from llmgw.agent.fabric_test.command_line import (
    BandwidthError,
    EndSettings,
    command_line,
    find_port,
    gid_index_of,
)
from llmgw.agent.fabric_test.escaped import END_MARKER, kill_marked, marker
from llmgw.agent.fabric_test.install import have_program
from llmgw.agent.ports import NoFreePort, PortsWanted, choose_ports
from llmgw.config.agent import AgentConfig
from llmgw.hardware.pci import link_gbps
from llmgw.hardware.ports import read_ports
from llmgw.hardware.programs import ProgramError, ProgramHangsError, run_program
from llmgw.messages.agent import Port
from llmgw.messages.fabric_test import (
    BANDWIDTH_TEXT_CHARS_MAX,
    BandwidthAnswer,
    BandwidthQuestion,
    EndBandwidth,
    MeasureBandwidth,
    PrepareBandwidth,
    ServeBandwidth,
)

log = structlog.get_logger("agent")

ENDS_AT_ONCE_MAX = 8
ENDS_REMEMBERED_MAX = 32
LISTEN_LIMIT_S = 15.0
LISTEN_LOOK_S = 0.05
SERVE_TRIES_MAX = 3
# What connecting and exchanging addresses may take beside the measurement itself.
MEASURE_MARGIN_S = 20.0
SERVE_MARGIN_S = 40.0
_PORT_TAKEN = "Couldn't listen to port"


@dataclass(eq=False)
class _End:
    """One end, from its first word until it is over; then what it said, until somebody asks."""

    id: str
    adapter: str
    stop: threading.Event = field(default_factory=threading.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    pid: int | None = None
    output: str = ""
    exit_code: int | None = None
    error: str | None = None


class BandwidthEnds:
    """The ends of this node. `address` is the node's, where the other end is told to come; `ports_held` are those
    that shards were given, `root` whether missing programs may be installed, `env` what programs run with, and
    `work_dir` the agent's folder, by which ends are known as its own.
    """

    def __init__(
        self,
        config: AgentConfig,
        address: str,
        *,
        ports_held: Callable[[], Collection[int]],
        root: bool,
        env: Mapping[str, str],
        work_dir: str,
    ) -> None:
        self._work_dir = work_dir
        self._config = config
        self._address = address
        self._ports_held = ports_held
        self._root = root
        self._env = dict(env)
        self._ends: dict[str, _End] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._installing = asyncio.Lock()
        self._closing = threading.Event()

    async def begin(self) -> None:
        """Before anything is asked: end what an agent before this one has left."""
        count = await asyncio.to_thread(kill_marked, self._work_dir)
        if count:
            log.warning("killed what an earlier agent left of bandwidth tests", processes=count)

    async def answer(self, question: BandwidthQuestion) -> BandwidthAnswer:
        """The answer, which takes as long as what is asked; a sentence in `error` when it could not be done."""
        try:
            if isinstance(question, PrepareBandwidth):
                return await self._prepare(question)
            if isinstance(question, ServeBandwidth):
                return await self._serve(question)
            if isinstance(question, MeasureBandwidth):
                return await self._measure(question)
            return await self._end(question)
        except BandwidthError as error:
            return BandwidthAnswer(request_id=question.request_id, error=str(error))

    async def close(self) -> None:
        """End everything that runs; returns when nothing is left. More may be asked afterwards."""
        self._closing.set()
        self._closing = threading.Event()
        for end in self._ends.values():
            end.stop.set()
        if self._running:
            await asyncio.wait(self._running)
        self._ends.clear()

    # The four questions.

    async def _prepare(self, question: PrepareBandwidth) -> BandwidthAnswer:
        stop = self._closing
        async with self._installing:
            _, installed = await asyncio.to_thread(
                have_program,
                self._config.discovery.ib_write_bw,
                install=question.install,
                root=self._root,
                env=self._env,
                stop=stop,
            )
        if installed:
            log.info("perftest is installed", asked_by="a fabric test")
        ports = await self._read_ports()
        for wanted in question.ports:
            gid_index_of(find_port(ports, wanted.adapter, wanted.port))
        root = Path(self._config.discovery.ib_root)
        speeds = {one.adapter: link_gbps(root / one.adapter / "device") for one in question.ports}
        return BandwidthAnswer(
            request_id=question.request_id,
            installed=installed,
            pcie_gbps={adapter: speed for adapter, speed in speeds.items() if speed is not None},
        )

    async def _serve(self, question: ServeBandwidth) -> BandwidthAnswer:
        end = self._claim(question)
        held = set(self._ports_held())
        for _ in range(SERVE_TRIES_MAX):
            with _over_unless_started(end):
                program, port = await self._look(question)
                tcp_port = await asyncio.to_thread(self._free_port, held)
                settings = EndSettings(
                    adapter=question.adapter,
                    port=question.port,
                    gid_index=gid_index_of(port),
                    tcp_port=tcp_port,
                    seconds=question.seconds,
                    ipv6=":" in self._address,
                )
                self._start(end, command_line(program, settings), question.seconds + SERVE_MARGIN_S)
            if await self._listens(end, tcp_port):
                return BandwidthAnswer(request_id=question.request_id, tcp_port=tcp_port)
            if end.error is not None or end.stop.is_set() or _PORT_TAKEN not in end.output:
                break
            # Between our look and its start somebody else took the port.
            held.add(tcp_port)
        return self._told(question.request_id, end)

    async def _measure(self, question: MeasureBandwidth) -> BandwidthAnswer:
        end = self._claim(question)
        with _over_unless_started(end):
            program, port = await self._look(question)
            settings = EndSettings(
                adapter=question.adapter,
                port=question.port,
                gid_index=gid_index_of(port),
                tcp_port=question.tcp_port,
                seconds=question.seconds,
                host=question.host,
                ipv6=":" in question.host,
            )
            self._start(end, command_line(program, settings), question.seconds + MEASURE_MARGIN_S)
        await end.over.wait()
        return self._told(question.request_id, end)

    async def _end(self, question: EndBandwidth) -> BandwidthAnswer:
        end = self._ends.get(question.end)
        if end is None:
            return BandwidthAnswer(request_id=question.request_id)
        end.stop.set()
        await end.over.wait()
        self._ends.pop(end.id, None)
        return self._told(question.request_id, end)

    # Inside.

    def _claim(self, question: ServeBandwidth | MeasureBandwidth) -> _End:
        """The end under its id, before anything of it is done. Raises BandwidthError."""
        alive = [end for end in self._ends.values() if not end.over.is_set()]
        if question.end in self._ends:
            raise BandwidthError(f"the test's end {question.end} was started here already")
        if any(end.adapter == question.adapter for end in alive):
            raise BandwidthError(f"{question.adapter} is being tested already; try again when that test is over")
        if len(alive) >= ENDS_AT_ONCE_MAX:
            raise BandwidthError(f"{len(alive)} bandwidth tests run here already; try again when one is over")
        for old in [end for end in self._ends.values() if end.over.is_set()][: -ENDS_REMEMBERED_MAX or None]:
            del self._ends[old.id]
        end = self._ends[question.end] = _End(question.end, question.adapter)
        return end

    async def _look(self, question: ServeBandwidth | MeasureBandwidth) -> tuple[str, Port]:
        """The program's path and the port. Raises BandwidthError."""
        program, _ = await asyncio.to_thread(
            have_program, self._config.discovery.ib_write_bw, install=False, root=self._root, env=self._env
        )
        return program, find_port(await self._read_ports(), question.adapter, question.port)

    async def _read_ports(self) -> list[Port]:
        return await asyncio.to_thread(read_ports, Path(self._config.discovery.ib_root))

    def _free_port(self, held: Collection[int]) -> int:
        ports = self._config.supervisor.ports
        # From the range's end: shards are given theirs from its beginning.
        downwards = range(ports.stop - 1, ports.start - 1, -1)
        try:
            found = choose_ports(PortsWanted(rendezvous=True), downwards, self._address, held=held).rendezvous
        except (NoFreePort, OSError):
            found = None
        if found is None:
            raise BandwidthError(
                f"no port of {ports.start}-{ports.stop - 1} is free for the test; widen supervisor.port_range"
            )
        return found

    def _start(self, end: _End, argv: list[str], limit_s: float) -> None:
        """Run an end's program beside everything else. It is ended by `end.stop` and by time, never by us."""
        log.info("a bandwidth test's end starts", end=end.id, command=" ".join(argv))
        end.pid, end.output, end.exit_code = None, "", None
        end.over.clear()
        task = asyncio.create_task(self._run(end, argv, limit_s))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, end: _End, argv: list[str], limit_s: float) -> None:
        def started(pid: int) -> None:
            end.pid = pid

        try:
            if end.stop.is_set():
                raise ProgramError("the test was ended before it began", "")
            done = await asyncio.to_thread(
                run_program,
                argv,
                timeout_s=limit_s,
                output_bytes_max=BANDWIDTH_TEXT_CHARS_MAX // 2 - 1,
                env={**self._env, END_MARKER: marker(self._work_dir, end.id)},
                stop=end.stop,
                started=started,
            )
            end.output = f"{done.stdout}\n{done.stderr}"
            if not done.cut:
                end.exit_code = done.code
            else:
                end.error = f"{argv[0]} printed more than a test's result; run it by hand to see what"
        except ProgramHangsError as error:
            end.output = error.said
            end.error = f"ib_write_bw had not ended after {limit_s:.0f} s and was killed"
        except ProgramError as error:
            end.output = error.said
            end.error = "the test was ended" if end.stop.is_set() else f"{error}; {error.remedy}"
        except Exception as error:  # it does not raise; if it does, whoever waits still gets an answer
            log.exception("a bandwidth test's end failed", end=end.id, error=repr(error))
            end.error = "the agent failed to run ib_write_bw; its log says why"
        finally:
            try:
                await asyncio.to_thread(kill_marked, self._work_dir, end.id)
            finally:
                end.over.set()

    async def _listens(self, end: _End, tcp_port: int) -> bool:
        """True as soon as the end's program listens there; False when it is over first, or not in time.

        A connection would be taken for the client: the kernel is asked.
        """
        deadline = time.monotonic() + LISTEN_LIMIT_S
        while not end.over.is_set():
            if end.pid is not None and await asyncio.to_thread(_process_listens, end.pid, tcp_port):
                return True
            if time.monotonic() > deadline:
                end.stop.set()
                await end.over.wait()
                end.error = f"ib_write_bw did not listen on port {tcp_port} within {LISTEN_LIMIT_S:.0f} s"
                break
            await asyncio.sleep(LISTEN_LOOK_S)
        return False

    def _told(self, request_id: str, end: _End) -> BandwidthAnswer:
        return BandwidthAnswer(request_id=request_id, output=end.output, exit_code=end.exit_code, error=end.error)


@contextlib.contextmanager
def _over_unless_started(end: _End) -> Iterator[None]:
    """What fails before the program is started leaves an end that is over."""
    try:
        yield
    except BaseException:
        end.over.set()
        raise


def _process_listens(pid: int, tcp_port: int) -> bool:
    """Whether the process or one of its descendants listens on the TCP port, at whatever address."""
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            for connection in one.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == tcp_port:
                    return True
    except (psutil.Error, OSError):
        pass  # it has just ended
    return False
