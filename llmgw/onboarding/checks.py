"""What must be true of a node before anything of it is changed. Each refusal is a sentence with what to do."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from llmgw.config.addresses import is_loopback
from llmgw.messages.admin import NodeView
from llmgw.onboarding.errors import OnboardError
from llmgw.onboarding.facts import NodeFacts
from llmgw.onboarding.wish import Wish, is_address
from llmgw.pki.certificates import BACKDATE_S
from llmgw.pki.peer import Peer

CLOCK_MARGIN_S = 60.0
"""Kept of the time by which certificates are backdated, for the way to the node and the server's own clock."""


def check_machine(facts: NodeFacts, wish: Wish) -> None:
    """Raise OnboardError unless it is a Linux with systemd, called as the node is, whose clock is right."""
    if facts.system != "Linux":
        raise OnboardError(f"{wish.addr} runs {facts.system}; nodes are Linux machines.")
    if facts.busy:
        raise OnboardError(
            f"Another run of onboard-node works on {wish.node_id}; wait for its end and run this again. Nothing "
            "was changed."
        )
    if not facts.has_systemd:
        raise OnboardError(
            f"{wish.node_id} does not run systemd, which starts and keeps the agent. On a machine without it run "
            "`llmgw agent` yourself (docs/configuration.md)."
        )
    if facts.hostname.lower().partition(".")[0] != wish.node_id.partition(".")[0] and not wish.force:
        raise OnboardError(
            f"The machine at {wish.addr} is called {facts.hostname!r}, not {wish.node_id}: is --addr another "
            f"machine's? If it is the right one, call it so (hostnamectl set-hostname {wish.node_id}), or insist "
            "with --force."
        )
    ahead_s = facts.clock_ahead_s
    if abs(ahead_s) > BACKDATE_S - CLOCK_MARGIN_S:
        side = "ahead of" if ahead_s > 0 else "behind"
        why = (
            "its certificates end too early"
            if ahead_s > 0
            else "a certificate made now would not be valid there yet"
        )
        raise OnboardError(
            f"The clock of {wish.node_id} is {_duration(abs(ahead_s))} {side} this host's, so {why}. Set it "
            "there (timedatectl set-ntp true; chronyc makestep), or this host's, then run this again."
        )


def enrolled_address(facts: NodeFacts, wish: Wish, configured: Mapping[str, Any]) -> str:
    """The address that the certificate carries and engines are reached at. Raises OnboardError.

    That of --mgmt-addr or --mgmt-if; else that of the node's own agent.yaml (`configured` are its keys), as long
    as the node still has it; else --addr.
    """
    if wish.mgmt_addr is not None:
        return _own_address(facts, wish, wish.mgmt_addr)
    if wish.mgmt_if is not None:
        return _of_interface(facts, wish, wish.mgmt_if)
    before, interface = configured.get("mgmt_addr"), configured.get("mgmt_interface")
    if isinstance(before, str) and is_address(before) and _has(facts, before):
        return str(ipaddress.ip_address(before))
    if before is None and isinstance(interface, str):
        return _of_interface(facts, wish, interface)
    address = wish.addr.strip("[]")
    if not is_address(address):
        raise OnboardError(
            f"--addr {wish.addr} is a name, and engines are reached at an address: give it with --mgmt-addr, or "
            f"its interface with --mgmt-if. {wish.node_id} has {_own(facts)}."
        )
    return _own_address(facts, wish, address)


def _own_address(facts: NodeFacts, wish: Wish, address: str) -> str:
    if not _has(facts, address):
        raise OnboardError(
            f"{wish.node_id} does not have the address {address} (it has {_own(facts)}), so its engines could "
            "not be reached there. Give its own with --mgmt-addr, or its interface with --mgmt-if."
        )
    return str(ipaddress.ip_address(address))


def _of_interface(facts: NodeFacts, wish: Wish, interface: str) -> str:
    """The first address of an interface, IPv4 before IPv6, as the agent chooses it."""
    there = facts.addresses.get(interface, [])
    usable = [text for text in there if is_address(text) and not ipaddress.ip_address(text).is_link_local]
    if not usable:
        known = ", ".join(name for name in facts.addresses if name != "lo") or "none that can be seen"
        raise OnboardError(
            f"{wish.node_id} has no interface {interface} with an address (it has {known}); correct --mgmt-if, "
            "or "
            "give the address with --mgmt-addr."
        )
    return str(ipaddress.ip_address(sorted(usable, key=lambda text: ":" in text)[0]))


def _has(facts: NodeFacts, address: str) -> bool:
    """Whether the node has the address; True where it cannot say which it has."""
    own = [ipaddress.ip_address(text) for text in facts.all_addresses if is_address(text)]
    return not own or ipaddress.ip_address(address) in own


def check_not_another(
    wish: Wish,
    peer: Peer | None,
    view: NodeView | None,
    address: str,
    warn: Callable[[str], None],
    *,
    agent_runs: bool,
) -> None:
    """Raise OnboardError when the machine is another node already, or the node another machine; --force insists.

    `peer` is the certificate that the machine carries, `view` what the control plane knows of the node id, and
    `agent_runs` whether an agent runs on the machine.
    """
    if peer is not None and peer.node_id != wish.node_id:
        sentence = (
            f"The machine at {wish.addr} is onboarded as {peer.node_id} already. If its disk is a copy of that "
            f"one's, insist with --force. If it is to be {wish.node_id} from now on and {peer.node_id} no more, "
            f"remove that first (llmgw ctl node remove {peer.node_id}), then insist with --force"
        )
        if not wish.force:
            raise OnboardError(sentence + ".")
        warn(f"the machine was {peer.node_id} before; that node stays known until it is removed")
    if view is None or view.state not in ("ready", "unreachable") or not is_address(view.address or ""):
        return
    if ipaddress.ip_address(view.address or "") == ipaddress.ip_address(address):
        return
    # A copied disk carries the certificate, too: what is heard is this machine only if an agent speaks from it.
    cloned = any(finding.check == "cloned-machine" for finding in view.findings)
    if peer is not None and peer.node_id == wish.node_id and agent_runs and not cloned:
        return
    heard = (
        f"the control plane hears it at {view.address}"
        if view.state == "ready"
        else f"the control plane heard it last at {view.address}, where its engines may still work"
    )
    if not wish.force:
        raise OnboardError(
            f"{wish.node_id} is onboarded elsewhere already: {heard}, and this machine is {address}. Two "
            "machines cannot be one node: choose another --node, or remove that one first (llmgw ctl node remove "
            f"{wish.node_id}); --force insists."
        )
    warn(f"{wish.node_id} is onboarded elsewhere, too: {heard}; the control plane refuses one of the two")


def _own(facts: NodeFacts) -> str:
    own = [text for text in facts.all_addresses if is_address(text) and not is_loopback(text)]
    return ", ".join(own[:8]) or "none that can be seen"


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 120 else f"{seconds:.0f} s"
