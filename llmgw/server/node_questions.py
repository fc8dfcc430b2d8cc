"""What the server asks of nodes beside their shards: output, engines' help, what lies on disks, their fabrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from llmgw.fleet.model import Fleet
from llmgw.messages.agent import (
    Command,
    EngineHelp,
    ListWeights,
    LogChunk,
    ReadEngineHelp,
    ReadLog,
    RemoveWeights,
    Report,
    WeightsAnswer,
)
from llmgw.messages.fabric import AskFabric, FabricText
from llmgw.messages.fabric_test import FABRIC_TEST_FEATURE, BandwidthAnswer, BandwidthQuestion
from llmgw.server.fabrics.usable_ports import FEATURE as FABRIC_TOOLS
from llmgw.server.hub_error import HubError
from llmgw.server.questions import Questions
from llmgw.server.seams import Ids
from llmgw.server.sessions import Sessions

LOG_REQUESTS_MAX = 256
HELP_REQUESTS_MAX = 16
WEIGHTS_REQUESTS_MAX = 256
BANDWIDTH_REQUESTS_MAX = 1024
FABRIC_REQUESTS_MAX = 64


class NodeQuestions:
    """Asks agents. Each question raises HubError: 501 for too old an agent, 503 where it cannot be asked now, 504
    when it does not answer within `timeout_s`.
    """

    def __init__(self, fleet: Fleet, sessions: Sessions, ids: Ids) -> None:
        self._fleet = fleet
        self._sessions = sessions
        self._ids = ids
        self._logs: Questions[LogChunk] = Questions(LOG_REQUESTS_MAX)
        self._helps: Questions[EngineHelp] = Questions(HELP_REQUESTS_MAX)
        self._weights: Questions[WeightsAnswer] = Questions(WEIGHTS_REQUESTS_MAX)
        self._bandwidths: Questions[BandwidthAnswer] = Questions(BANDWIDTH_REQUESTS_MAX)
        self._fabrics: Questions[FabricText] = Questions(FABRIC_REQUESTS_MAX)

    def answered(self, node_id: str, message: Report) -> None:
        """A node's report: it may bring answers."""
        self._logs.answered(node_id, message.logs)
        self._helps.answered(node_id, message.helps)
        self._weights.answered(node_id, message.weights)
        self._bandwidths.answered(node_id, message.bandwidths)
        self._fabrics.answered(node_id, message.fabrics)

    async def read_log(
        self, node_id: str, shard_id: str, stream: str, offset: int | None, lines: int, timeout_s: float
    ) -> LogChunk:
        """A part of a shard's output."""
        request_id = self._ids.request()

        def command(seq: int) -> Command:
            return ReadLog(
                seq=seq, request_id=request_id, shard_id=shard_id, stream=stream, offset=offset, lines=lines
            )

        mailbox = self._sessions.mailbox(node_id)
        return await self._logs.ask(node_id, mailbox, request_id, command, timeout_s, "its logs cannot be read")

    async def read_engine_help(self, node_id: str, engine: str, timeout_s: float) -> EngineHelp:
        """The help text of one of a node's engines."""
        self._must_offer(node_id, "engine_help", "cannot ask engines for their help")
        request_id = self._ids.request()

        def command(seq: int) -> Command:
            return ReadEngineHelp(seq=seq, request_id=request_id, engine=engine)

        mailbox = self._sessions.mailbox(node_id)
        lost = "its engines cannot be asked"
        return await self._helps.ask(node_id, mailbox, request_id, command, timeout_s, lost)

    async def look_at_weights(
        self, node_id: str, sources: list[str], remove: list[str], timeout_s: float
    ) -> WeightsAnswer:
        """What lies in a node's weights folder, after the removal of those files of `remove` that nothing needs.

        `sources` are the catalog's: a file that one of them means is needed.
        """
        self._must_offer(node_id, "weights", "knows nothing of weights")
        request_id = self._ids.request()

        def command(seq: int) -> Command:
            if remove:
                return RemoveWeights(seq=seq, request_id=request_id, names=remove, sources=sources)
            return ListWeights(seq=seq, request_id=request_id, sources=sources)

        mailbox = self._sessions.mailbox(node_id)
        lost = "its weights cannot be looked at"
        return await self._weights.ask(node_id, mailbox, request_id, command, timeout_s, lost)

    async def test_bandwidth(
        self, node_id: str, question: Callable[[int, str], BandwidthQuestion], timeout_s: float
    ) -> BandwidthAnswer:
        """The answer to a question of a bandwidth test, made of its sequence number and its request id."""
        self.must_test_bandwidth(node_id)
        request_id = self._ids.request()

        def command(seq: int) -> Command:
            return question(seq, request_id)

        mailbox = self._sessions.mailbox(node_id)
        lost = "its fabrics cannot be tested"
        return await self._bandwidths.ask(node_id, mailbox, request_id, command, timeout_s, lost)

    def must_test_bandwidth(self, node_id: str) -> None:
        """Raises HubError 501 for an agent that is too old to take part in a bandwidth test."""
        self._must_offer(node_id, FABRIC_TEST_FEATURE, "cannot test fabrics")

    async def ask_fabric(
        self, node_id: str, what: Literal["managers", "map"], adapter: str, port: int, timeout_s: float
    ) -> FabricText:
        """What the fabric's own tools say of the fabric behind a port. Up to 64 MiB when unpacked."""
        self._must_offer(node_id, FABRIC_TOOLS, "cannot run the tools of a fabric")
        request_id = self._ids.request()

        def command(seq: int) -> Command:
            return AskFabric(seq=seq, request_id=request_id, what=what, adapter=adapter, port=port)

        mailbox = self._sessions.mailbox(node_id)
        lost = "its fabrics cannot be asked"
        return await self._fabrics.ask(node_id, mailbox, request_id, command, timeout_s, lost)

    def _must_offer(self, node_id: str, feature: str, cannot: str) -> None:
        """Raises HubError 501 for an agent that would pass the command over."""
        node = self._fleet.nodes.get(node_id)
        # A node without a session gets the other sentence: what its agent can do is known by its registration.
        if node is not None and node.session is not None and feature not in node.features:
            raise HubError(
                501,
                "old_agent",
                f"the agent of {node_id} (llmgw {node.version or 'unknown'}) {cannot}; update llmgw there",
            )
