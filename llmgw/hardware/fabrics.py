"""Which declared fabrics this node can offer, and in one sentence why not. Pure: ports in, offers out."""

from __future__ import annotations

from dataclasses import dataclass

from llmgw.config.agent import FabricDeclaration
from llmgw.hardware.counters import full_counters
from llmgw.messages.agent import FabricOffer, Port
from llmgw.messages.findings import Finding

LINK_LAYERS = ("InfiniBand", "Ethernet")
_WHY = "Replicas of several nodes are not placed on a node whose fabric is not whole"
_ADAPTERS_SHOWN_MAX = 16


@dataclass(frozen=True, kw_only=True)
class PortProblem:
    """Why a port carries no traffic: a check's name, what is wrong, and what to do."""

    check: str
    what: str
    remedy: str


def offer_fabrics(
    declared: list[FabricDeclaration], ports: list[Port]
) -> tuple[list[FabricOffer], list[Finding]]:
    """One offer for each declared fabric, usable or not, and findings for what keeps or slows them.

    A fabric is offered only whole: every declared adapter is there and has an ACTIVE port, and all of its
    ports are of one link layer. Its rate is that of its slowest active link.
    """
    offers: list[FabricOffer] = []
    findings: list[Finding] = []
    for declaration in declared:
        offer, its_findings = _offer(declaration, ports)
        offers.append(offer)
        findings.extend(its_findings)
    return offers, findings


def why_port_unusable(port: Port) -> PortProblem | None:
    """What keeps a port from carrying traffic, or None. The same words for InfiniBand and RoCE."""
    name = f"{port.adapter} port {port.port}"
    ethernet = port.link_layer == "Ethernet"
    if port.is_up:
        if port.link_layer not in LINK_LAYERS:
            return PortProblem(
                check="fabric-link-layer",
                what=f"{name} has the link layer {port.link_layer or 'unknown'}, not InfiniBand or Ethernet",
                remedy=f"take {port.adapter} out of the fabric's hcas in agent.yaml",
            )
        return None
    if port.state == "INIT":
        return PortProblem(
            check="fabric-no-subnet-manager",
            what=f"{name} is up, but no subnet manager has configured it (INIT)",
            remedy="start a subnet manager on this fabric (systemctl start opensm), or look at the one it has",
        )
    if port.state == "ARMED":
        return PortProblem(
            check="fabric-no-subnet-manager",
            what=f"{name} is up, and its subnet manager has not finished configuring it (ARMED)",
            remedy="look at the subnet manager's log when this stays for more than a minute",
        )
    if port.state is None:
        return PortProblem(
            check="fabric-port-down",
            what=f"{name} does not say its state",
            remedy="load the adapter's driver again, or look at dmesg",
        )
    if port.phys_state == "Polling":
        cause = "no cable or dead peer"
        remedy = "check the cable, and the port at its other end"
    elif port.phys_state == "Disabled":
        cause = "it was switched off"
        remedy = (
            f"switch it on: ip link set the interface of {port.adapter} up, or look at the switch port"
            if ethernet
            else f"switch it on: ibportstate -C {port.adapter} -P {port.port} -D 0 {port.port} enable"
        )
    elif ethernet:
        cause = "its network interface is down or has no link"
        remedy = f"bring the interface of {port.adapter} up (ip link), and check its cable"
    else:
        cause = "the link does not come up"
        remedy = "check the cable, and the port at its other end"
    phys_state = f", {port.phys_state}" if port.phys_state else ""
    return PortProblem(
        check="fabric-port-down", what=f"{name} is not up ({port.state}{phys_state}): {cause}", remedy=remedy
    )


def judge_ports(ports: list[Port]) -> list[tuple[Port, PortProblem | None]]:
    """Each port of a node without a declaration, and what keeps it from carrying the node's fabric.

    Where InfiniBand works, an Ethernet port belongs to another network (storage, management, a bond of both).
    """
    infiniband = any(port.link_layer == "InfiniBand" and why_port_unusable(port) is None for port in ports)
    judged: list[tuple[Port, PortProblem | None]] = []
    for port in ports:
        problem = why_port_unusable(port)
        if problem is None and infiniband and port.link_layer == "Ethernet":
            problem = PortProblem(
                check="fabric-mixed",
                what=f"{port.adapter} port {port.port} is an Ethernet port beside InfiniBand ports",
                remedy="leave it out of their fabric's hcas; for RoCE declare a fabric of its own",
            )
        judged.append((port, problem))
    return judged


def port_doubts(ports: list[Port]) -> list[str]:
    """What is wrong with ports that work, in sentences: single lanes, counters at their end."""
    doubts = [
        f"{port.adapter} port {port.port} runs on one lane of four ({port.rate_text}): reseat its cable"
        for port in ports
        if on_one_lane(port)
    ]
    doubts += [
        f"{port.adapter} port {port.port} has counters at their end, which count no further: {', '.join(full)}"
        for port in ports
        if (full := full_counters(port.counters))
    ]
    return doubts


def on_one_lane(port: Port) -> bool:
    """True for a link that came up on one of its four lanes; split cables have two (InfiniBand spec 2)."""
    return why_port_unusable(port) is None and "(1X " in (port.rate_text or "")


def _offer(declaration: FabricDeclaration, ports: list[Port]) -> tuple[FabricOffer, list[Finding]]:
    chosen: list[Port] = []
    idle: list[tuple[str, Port | None, PortProblem]] = []
    for hca in declaration.hcas:
        active, nearest, problem = _active_ports(hca, ports)
        chosen.extend(port for port in active if port not in chosen)
        if problem is not None:
            idle.append((hca, nearest, problem))
    mixed = _mixed_link_layers([*chosen, *(port for _, port, _ in idle if port is not None)])
    problems = [
        (hca, problem)
        for hca, port, problem in idle
        # Why an Ethernet port among InfiniBand ports is down is nobody's concern.
        if mixed is None or port is None or port.link_layer != "Ethernet"
    ]
    if mixed is not None:
        problems.append(mixed)
    rates = [port.rate_gbps for port in chosen if port.rate_gbps is not None]
    rate_gbps = min(rates, default=None)
    if problems:
        findings = [
            Finding(
                check=problem.check,
                severity="error",
                where=f"{declaration.name} {hca}",
                what=f"fabric {declaration.name} is not offered: {problem.what}",
                why=_WHY,
                remedy=problem.remedy,
            )
            for hca, problem in problems
        ]
        reason = "; ".join(f"{problem.what}: {problem.remedy}" for _, problem in problems)
        # The others have their own troubles, which whoever mends this fabric wants to know of in one go.
        of_kind = [port for port in chosen if mixed is None or port.link_layer == "InfiniBand"]
        findings += [*_reservations(declaration, of_kind), *_full_counters(declaration, of_kind)]
        return FabricOffer(name=declaration.name, reason=reason, rate_gbps=rate_gbps), findings
    findings = _reservations(declaration, chosen)
    full = _full_counters(declaration, chosen)
    offer = FabricOffer(
        name=declaration.name,
        adapters=[_nccl_name(port) for port in chosen],
        usable=True,
        reason="; ".join(f"{finding.what}: {finding.remedy}" for finding in findings) or None,
        rate_gbps=rate_gbps,
    )
    return offer, [*findings, *full]


def _active_ports(hca: str, ports: list[Port]) -> tuple[list[Port], Port | None, PortProblem | None]:
    """The ACTIVE ports that `mlx5_0` or `mlx5_0:1` names; without any, the best of them, and what is wrong."""
    adapter, _, number = hca.partition(":")
    there = [port for port in ports if port.adapter == adapter]
    named = [port for port in there if not number or port.port == int(number)]
    if not named:
        if there:
            what = f"{adapter} has no port {number} (it has {', '.join(str(port.port) for port in there)})"
        else:
            names = list(dict.fromkeys(port.adapter for port in ports))
            shown = ", ".join(names[:_ADAPTERS_SHOWN_MAX]) + (" …" if len(names) > _ADAPTERS_SHOWN_MAX else "")
            what = f"adapter {adapter} is not there (this node has {shown or 'none'})"
        return (
            [],
            None,
            PortProblem(
                check="fabric-adapter-missing",
                what=what,
                remedy="correct hcas in agent.yaml, or look at lspci -d 15b3: and dmesg for the adapter",
            ),
        )
    problems = [(port, why_port_unusable(port)) for port in named]
    active = [port for port, problem in problems if problem is None]
    if active:
        return active, None, None
    # Of an adapter's ports the one that is nearest to working is the one that somebody has cabled.
    nearest = min(problems, key=lambda pair: _DISTANCE.get(pair[0].state or "", 9))
    return [], *nearest


_DISTANCE = {"ACTIVE": 0, "ACTIVE_DEFER": 0, "ARMED": 1, "INIT": 2, "DOWN": 3}


def _mixed_link_layers(named: list[Port]) -> tuple[str, PortProblem] | None:
    """Ethernet ports among InfiniBand ports, working or not: a storage card, a bond, a cloud's VF."""
    ethernet = [port for port in named if port.link_layer == "Ethernet"]
    if not ethernet or all(port.link_layer != "InfiniBand" for port in named):
        return None
    names = ", ".join(f"{port.adapter} port {port.port}" for port in ethernet)
    several = len(ethernet) > 1
    kind = "virtual function" if all(port.virtual for port in ethernet) else "port"
    return ethernet[0].adapter, PortProblem(
        check="fabric-mixed",
        what=f"{names} {f'are Ethernet {kind}s' if several else f'is an Ethernet {kind}'} among InfiniBand ports",
        remedy=f"take {'them' if several else 'it'} out of hcas in agent.yaml (adapter:port names one port)",
    )


def _reservations(declaration: FabricDeclaration, chosen: list[Port]) -> list[Finding]:
    """What is wrong with ports that carry traffic."""
    return [*_slow_links(declaration, chosen), *_limited_members(declaration, chosen)]


def _slow_links(declaration: FabricDeclaration, chosen: list[Port]) -> list[Finding]:
    """Links below the declared rate; without one, links below the fastest of the same fabric."""
    fastest = max((port.rate_gbps for port in chosen if port.rate_gbps is not None), default=None)
    expected = declaration.rate_gbps if declaration.rate_gbps is not None else fastest
    against = "declared" if declaration.rate_gbps is not None else "that its neighbour has"
    return [
        Finding(
            check="fabric-slow",
            severity="warning",
            where=f"{declaration.name} {port.adapter}",
            what=f"{port.adapter} port {port.port} runs at {port.rate_gbps:g} Gb/s ({port.rate_text}), "
            f"below the {expected:g} Gb/s {against}",
            why=f"Fabric {declaration.name} is as fast as its slowest link",
            remedy="reseat or replace the cable, and look at the switch port's speed setting",
        )
        for port in chosen
        if port.rate_gbps is not None and expected is not None and port.rate_gbps < expected
    ] + [
        Finding(
            check="fabric-slow",
            severity="warning",
            where=f"{declaration.name} {port.adapter}",
            what=f"{port.adapter} port {port.port} runs on one lane of four ({port.rate_text})",
            why=f"Fabric {declaration.name} is as fast as its slowest link",
            remedy="reseat or replace the cable",
        )
        for port in chosen
        if on_one_lane(port) and not (expected is not None and (port.rate_gbps or expected) < expected)
    ]


def _limited_members(declaration: FabricDeclaration, chosen: list[Port]) -> list[Finding]:
    """Ports that are limited members of the partition that engines use: two such cannot talk to each other."""
    return [
        Finding(
            check="fabric-pkey",
            severity="warning",
            where=f"{declaration.name} {port.adapter}",
            what=f"{port.adapter} port {port.port} is a limited member of its first partition "
            f"({port.pkeys[0]:#06x})",
            why="Engines use the first partition, start without complaint, and fail at the first transfer to "
            "another limited member",
            remedy="make it a full member in the subnet manager's partitions.conf "
            f"({port.pkeys[0] | 0x8000:#06x})",
        )
        for port in chosen
        if port.link_layer == "InfiniBand" and port.pkeys and not port.pkeys[0] & 0x8000
    ]


def _full_counters(declaration: FabricDeclaration, chosen: list[Port]) -> list[Finding]:
    return [
        Finding(
            check="fabric-counters",
            severity="info",
            where=f"{declaration.name} {port.adapter}",
            what=f"{port.adapter} port {port.port} has counters at their end: {', '.join(full)}",
            why="They count no further, so that new errors of these kinds are not seen",
            remedy=f"clear them: perfquery -C {port.adapter} -P {port.port} -R",
        )
        for port in chosen
        if (full := full_counters(port.counters))
    ]


def _nccl_name(port: Port) -> str:
    return f"{port.adapter}:{port.port}"
