"""The server, asked as the agent asks it: reachable, believed, taking this node's certificate, and on time."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

import httpx
import msgspec

from llmgw.doctor.check import Node
from llmgw.messages.agent import Poll, Refusal
from llmgw.messages.findings import Finding
from llmgw.pki.errors import PkiError
from llmgw.pki.tls import agent_context
from llmgw.pki.tls_errors import explain_connection

_TIMEOUT_S = 4.0
# Connecting, sending and reading have one time-out each; a wrong name costs one more look at the server.
LIMIT_S = 12.0
# The header has whole seconds, and the answer was on its way.
CLOCK_WARN_S = 5.0
CLOCK_ERROR_S = 300.0
# No session is called that: the server answers 410, which every agent gets now and then and no log mentions.
_POLL = msgspec.json.encode(Poll(session="doctor"))
_WHY = "Without the server nothing is started or stopped on this node"


def check_server(node: Node) -> list[Finding]:
    """One request that changes nothing: a poll of no session, refused only after the certificate was read."""
    url = node.config.server
    try:
        context = agent_context(node.config.tls, node.now())
    except (PkiError, OSError):
        return []  # the check of the certificate says it, and without one there is nothing to ask with
    try:
        with httpx.Client(verify=context, trust_env=False, timeout=_TIMEOUT_S) as client:
            before = node.now()
            answer = client.post(f"{url}/agent/v1/poll", content=_POLL)
            between = (before + node.now()) / 2
    except (httpx.HTTPError, OSError) as error:
        what, _, remedy = explain_connection(error, url).partition(". ")
        return [node.finding("server-unreachable", "error", f"server {url}", what, why=_WHY, remedy=remedy)]
    return [*_refusal(node, answer), *_clock(node, answer, between)]


def check_clock(node: Node) -> list[Finding]:
    """The clock alone: an agent knows better than a look every few minutes whether its server is there."""
    return [finding for finding in check_server(node) if finding.check == "clock"]


def _refusal(node: Node, answer: httpx.Response) -> list[Finding]:
    """What the server says to a poll of no session is 410; 403 is about who asks."""
    where = f"server {node.config.server}"
    try:
        refusal = msgspec.json.decode(answer.content, type=Refusal)
    except msgspec.MsgspecError:
        remedy = "correct server in agent.yaml: it is the address of agents.listen"
        what = f"what answers there (status {answer.status_code}) is no agents' endpoint of llmgw"
        return [node.finding("server-foreign", "error", where, what, why=_WHY, remedy=remedy)]
    if answer.status_code == 403:
        remedy = f"on the authority's host: llmgw ctl cert issue-client {node.config.node_id} --address IP"
        what = f"the server refuses this node: {refusal.message}"
        return [node.finding("server-refuses", "error", where, what, why=_WHY, remedy=remedy)]
    if answer.status_code >= 500:
        what = f"the server fails ({answer.status_code}): {refusal.message}"
        return [node.finding("server-fails", "error", where, what, why=_WHY, remedy="read the server's log")]
    return []


def _clock(node: Node, answer: httpx.Response, at: float) -> list[Finding]:
    """This clock against the Date header (RFC 9110 section 6.6.1), which counts whole seconds."""
    try:
        server_at = parsedate_to_datetime(answer.headers.get("date", "")).timestamp() + 0.5
    except ValueError:
        return []
    ahead_s = at - server_at
    if abs(ahead_s) < CLOCK_WARN_S:
        return []
    side = "ahead of" if ahead_s > 0 else "behind"
    return [
        node.finding(
            "clock",
            "error" if abs(ahead_s) >= CLOCK_ERROR_S else "warning",
            "clock",
            f"this node's clock is {abs(ahead_s):.0f} s {side} the server's",
            why="Certificates are judged by it: they expire too early, or are not valid yet",
            remedy="timedatectl status; timedatectl set-ntp true on both hosts",
        )
    ]
