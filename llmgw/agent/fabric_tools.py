"""Asks the fabric behind one of this node's ports who manages it (saquery) and how it is cabled (ibnetdiscover).

It runs the tools and passes on their words; what they mean is the server's to judge.
"""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from llmgw.config.agent import AgentConfig
from llmgw.hardware.fabric_tools import device_problem, find_tool, tool_problem
from llmgw.hardware.machine import machine_root
from llmgw.hardware.ports import ports_of, read_link_layer
from llmgw.hardware.programs import NoProgramError, ProgramError, ProgramHangsError, ProgramOutput, run_program
from llmgw.hardware.sysfs import list_names
from llmgw.messages.fabric import (
    COMPLAINTS_CHARS_MAX,
    FABRIC_TEXT_BYTES_MAX,
    FABRIC_ZLIB_BYTES_MAX,
    AskFabric,
    FabricText,
)

# During a failover saquery itself gives up after some seconds of its own tries.
MANAGERS_LIMIT_S = 20.0
MAP_LIMIT_S = 60.0
# A record has some 200 bytes, and a fabric a few managers.
MANAGERS_BYTES_MAX = 1024 * 1024
_ADAPTERS_SHOWN_MAX = 16
# What infiniband-diags 44 says when the device cannot be opened, whatever the reason (libibmad, libibnetdisc).
_NOT_OPENED = ("can't open UMAD port", "can't open MAD port")


@dataclass(frozen=True)
class _Tool:
    key: str
    program: str
    arguments: tuple[str, ...]
    limit_s: float
    bytes_max: int


class FabricTools:
    """Answers `AskFabric` of one node. The limits are seconds and bytes."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        map_limit_s: float = MAP_LIMIT_S,
        managers_limit_s: float = MANAGERS_LIMIT_S,
        compressed_bytes_max: int = FABRIC_ZLIB_BYTES_MAX,
    ) -> None:
        discovery = config.discovery
        self._node_id = config.node_id
        self._ib_root = Path(discovery.ib_root)
        self._compressed_bytes_max = compressed_bytes_max
        self._tools = {
            "managers": _Tool(
                "discovery.saquery", discovery.saquery, ("SMIR",), managers_limit_s, MANAGERS_BYTES_MAX
            ),
            "map": _Tool(
                "discovery.ibnetdiscover", discovery.ibnetdiscover, (), map_limit_s, FABRIC_TEXT_BYTES_MAX
            ),
        }

    async def __call__(self, question: AskFabric) -> FabricText:
        """What the tool said, or a sentence in `error`. When it is cancelled the tool is killed."""
        stop = threading.Event()
        try:
            return await asyncio.to_thread(self._ask, question, stop)
        finally:
            stop.set()

    def _ask(self, question: AskFabric, stop: threading.Event) -> FabricText:
        tool = self._tools[question.what]
        problem = self._port_problem(question.adapter, question.port) or self._problem(tool, question)
        if problem is not None:
            return self._failed(question, problem)
        began = time.monotonic()
        argv = [find_tool(tool.program) or tool.program, "-C", question.adapter, "-P", str(question.port)]
        argv += tool.arguments
        try:
            output = run_program(argv, timeout_s=tool.limit_s, output_bytes_max=tool.bytes_max, stop=stop)
        except ProgramHangsError:
            return self._failed(
                question,
                f"`{' '.join(argv)}` had not ended after {tool.limit_s:g} s and was killed; run it by hand on "
                f"{self._node_id}: a switch or adapter of the fabric may not answer",
            )
        except NoProgramError as error:
            return self._failed(question, f"{error}; {error.remedy}, or correct {tool.key} in agent.yaml")
        except ProgramError as error:
            return self._failed(question, f"{error}; {error.remedy}")
        return self._told(question, argv, output, time.monotonic() - began)

    def _told(self, question: AskFabric, argv: list[str], output: ProgramOutput, took_s: float) -> FabricText:
        error = None
        if (
            output.code != 0
            and not output.raw_stdout.strip()
            and any(words in output.stderr for words in _NOT_OPENED)
        ):
            error = self._sentence(
                f"`{' '.join(argv)}` cannot open the management device of {question.adapter} port "
                f"{question.port}; run the agent as root or give it /dev/infiniband/umad* (llmgw doctor says "
                "which), and see whether the module ib_umad is loaded"
            )
        compressed = zlib.compress(output.raw_stdout)
        if len(compressed) > self._compressed_bytes_max:
            printed, packed, most = (
                f"{size / 1e6:.3g} MB"
                for size in (len(output.raw_stdout), len(compressed), self._compressed_bytes_max)
            )
            return self._failed(
                question,
                f"`{' '.join(argv)}` printed {printed}, which are {packed} when compressed, and at most {most} "
                "are sent; run it by hand to see what it prints",
            )
        return FabricText(
            request_id=question.request_id,
            output=compressed,
            complaints=output.stderr[:COMPLAINTS_CHARS_MAX],
            exit_code=output.code,
            cut=output.cut,
            took_s=took_s,
            error=error,
        )

    def _port_problem(self, adapter: str, port: int) -> str | None:
        """Why this port is not asked: only those that this node has are, whatever the server says."""
        there = list_names(self._ib_root)
        if adapter not in there:
            shown = ", ".join(there[:_ADAPTERS_SHOWN_MAX]) + (" …" if len(there) > _ADAPTERS_SHOWN_MAX else "")
            return f"adapter {adapter} is not there (this node has {shown or 'none'}); ask through one that is"
        numbers = ports_of(self._ib_root, adapter)
        if port not in numbers:
            has = ", ".join(map(str, numbers)) or "none"
            return f"{adapter} has no port {port} (it has {has}); ask through one that it has"
        if read_link_layer(self._ib_root, adapter, port) == "Ethernet":
            return (
                f"{adapter} port {port} is an Ethernet port, and RoCE has neither subnet manager nor map; ask "
                "through an InfiniBand port"
            )
        return None

    def _problem(self, tool: _Tool, question: AskFabric) -> str | None:
        problem = tool_problem(tool.program, tool.key) or device_problem(
            machine_root(self._ib_root), question.adapter, question.port
        )
        return f"{problem[0]}; {problem[1]}" if problem is not None else None

    def _failed(self, question: AskFabric, what: str) -> FabricText:
        return FabricText(request_id=question.request_id, error=self._sentence(what))

    def _sentence(self, what: str) -> str:
        return f"{self._node_id}: {what}"
