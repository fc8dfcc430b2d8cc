"""One measurement between two nodes: both ends started in order, the result judged, and both ends ended whatever
happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from llmgw.fabric.bandwidth import Measured, RailEnd, expected, judge
from llmgw.fabric.perftest import read_bandwidth
from llmgw.messages.fabric_test import (
    BandwidthAnswer,
    BandwidthPort,
    BandwidthQuestion,
    EndBandwidth,
    MeasureBandwidth,
    PrepareBandwidth,
    ServeBandwidth,
)
from llmgw.server.hub import Hub
from llmgw.server.hub_error import HubError

PREPARE_TIMEOUT_S = 30.0
INSTALL_TIMEOUT_S = 930.0
"""Three runs of the package manager at worst, of which the agent gives each 300 s."""
SERVE_TIMEOUT_S = 60.0
"""The agent gives the server end 15 s to listen, and tries three ports."""
MEASURE_MARGIN_S = 30.0
"""The agent gives the client end 20 s beside the measurement itself."""
END_TIMEOUT_S = 10.0
LOOK_S = 0.5


async def prepare(hub: Hub, node_id: str, ports: Iterable[BandwidthPort], *, install: bool) -> BandwidthAnswer:
    """Have a node see to its program, and say what its PCIe slots carry. Raises HubError."""
    wanted = list(ports)

    def question(seq: int, request_id: str) -> BandwidthQuestion:
        return PrepareBandwidth(seq=seq, request_id=request_id, ports=wanted, install=install)

    timeout_s = INSTALL_TIMEOUT_S if install else PREPARE_TIMEOUT_S
    return await _ask(hub, node_id, question, timeout_s, watched=[node_id])


async def measure(hub: Hub, sender: RailEnd, receiver: RailEnd, *, seconds: int, end_id: str) -> Measured:
    """The bandwidth from one port to another. Raises nothing but CancelledError, and leaves nothing running."""
    server_end, client_end = f"{end_id}-s", f"{end_id}-c"

    def serve(seq: int, request_id: str) -> BandwidthQuestion:
        return ServeBandwidth(
            seq=seq,
            request_id=request_id,
            end=server_end,
            adapter=receiver.port.adapter,
            port=receiver.port.port,
            seconds=seconds,
        )

    both = [sender.node, receiver.node]
    ended: dict[str, BandwidthAnswer] = {}
    try:
        try:
            serving = await _ask(hub, receiver.node, serve, SERVE_TIMEOUT_S, watched=both)
            node = hub.fleet.nodes.get(receiver.node)
            address = node.address if node is not None else None
            if serving.tcp_port is None or address is None:
                return _not_served(sender, receiver, serving)

            def client(seq: int, request_id: str, tcp_port: int = serving.tcp_port) -> BandwidthQuestion:
                return MeasureBandwidth(
                    seq=seq,
                    request_id=request_id,
                    end=client_end,
                    adapter=sender.port.adapter,
                    port=sender.port.port,
                    seconds=seconds,
                    host=address,
                    tcp_port=tcp_port,
                )

            told = await _ask(hub, sender.node, client, seconds + MEASURE_MARGIN_S, watched=both)
        finally:
            # A task that is cancelled runs on here: both ends are ended before it is over.
            ended = await _end_both(hub, {receiver.node: server_end, sender.node: client_end})
    except HubError as error:
        return _failed(sender, receiver, error.message, lost=True)
    measured = judge(sender, receiver, output=told.output, exit_code=told.exit_code, error=told.error)
    if measured.grade != "error":
        return measured
    if receiver.node not in ended:
        # The client complains of a server that was taken away from it, and not of the fabric.
        words = f"{measured.words}; {_lost(receiver.node)}"
        return _failed(sender, receiver, words, lost=True)
    words = _words_of(ended[receiver.node])
    return judge(
        sender, receiver, output=told.output, exit_code=told.exit_code, error=told.error, receiver_words=words
    )


def _not_served(sender: RailEnd, receiver: RailEnd, serving: BandwidthAnswer) -> Measured:
    words = _words_of(serving) or serving.error
    if words is None:
        words = (
            f"its ib_write_bw exited with {serving.exit_code} before it listened"
            if serving.tcp_port is None
            else "its address is not known"
        )
    return _failed(sender, receiver, f"{receiver.node}: {words}")


def _words_of(end: BandwidthAnswer) -> str:
    """What went wrong at a server end by its own words; empty when it was just ended."""
    if end.exit_code is not None and end.exit_code < 0:
        return f"its ib_write_bw was ended by signal {-end.exit_code}"
    if not end.output.strip():
        return ""
    read = read_bandwidth(end.output)
    # Its heading without a result is no news: it was ended for the client's sake.
    return (
        read.error if read.error is not None and not read.error.startswith("perftest printed its heading") else ""
    )


def _lost(node_id: str) -> str:
    return f"{node_id} was lost during the test, or its agent started again"


def _failed(sender: RailEnd, receiver: RailEnd, words: str, *, lost: bool = False) -> Measured:
    limit, limited_by = expected(sender, receiver)
    return Measured(gbps=None, limit_gbps=limit, limited_by=limited_by, grade="error", words=words, lost=lost)


async def _end_both(hub: Hub, ends: dict[str, str]) -> dict[str, BandwidthAnswer]:
    """Node → what its end said, of those that answered; returns when nothing is left of these."""

    async def end(node_id: str, end_id: str) -> tuple[str, BandwidthAnswer | None]:
        def question(seq: int, request_id: str) -> BandwidthQuestion:
            return EndBandwidth(seq=seq, request_id=request_id, end=end_id)

        try:
            return node_id, await _ask(hub, node_id, question, END_TIMEOUT_S, watched=[node_id])
        except HubError:
            # An agent that is gone, or began another session, has ended them by itself.
            return node_id, None

    answers = await asyncio.gather(*(end(node_id, end_id) for node_id, end_id in ends.items()))
    return {node_id: answer for node_id, answer in answers if answer is not None}


async def _ask(
    hub: Hub,
    node_id: str,
    question: Callable[[int, str], BandwidthQuestion],
    timeout_s: float,
    *,
    watched: Sequence[str],
) -> BandwidthAnswer:
    """The node's answer. Raises HubError, also as soon as one of the watched nodes is lost or begins anew."""
    boxes = {node: hub.sessions.mailbox(node) for node in watched}
    asking = asyncio.ensure_future(hub.questions.test_bandwidth(node_id, question, timeout_s))
    try:
        while not asking.done():
            await asyncio.wait([asking], timeout=LOOK_S)
            for node, box in boxes.items():
                if not asking.done() and (box is None or box.closed or hub.sessions.mailbox(node) is not box):
                    raise HubError(503, "node_silent", _lost(node))
        return asking.result()
    finally:
        asking.cancel()
