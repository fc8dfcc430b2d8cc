"""`/metrics` of the server, in Prometheus' text form: the hub's state as it is at the moment of the scrape.

Bounded: series exist for the catalog's models, for known nodes and for what these have, never for what a client
or an agent makes up. Label values are cut at `LABEL_CHARS_MAX`.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import llmgw
from llmgw.fleet.model import NodeState, ReplicaState
from llmgw.messages.findings import Finding
from llmgw.pki.expiry import CertificateEnd
from llmgw.server.fabrics.metrics import fabric_metrics
from llmgw.server.figures import figure_metrics
from llmgw.server.hub import Hub
from llmgw.server.key_tally import WITHOUT
from llmgw.server.loop_watch import LoopPause
from llmgw.server.request_tally import OTHER, Histogram
from llmgw.server.router_metrics import router_metrics
from llmgw.server.router_worker import RouterView
from llmgw.server.usage_book import TokenTally

LABEL_CHARS_MAX = 128
CHECKS_MAX = 200
"""Distinct names of checks; agents send them, and what goes beyond is counted together."""


KEYS_MAX = 500
"""API keys with series of their own, the first by name; what goes beyond is counted together."""


@dataclass(frozen=True)
class Source:
    """What a scrape reads: the hub, the certificates in the server's files, its findings, loop and routers."""

    hub: Hub
    certificates: Callable[[], list[CertificateEnd]]
    findings: Callable[[], list[Finding]]
    loop_pause: Callable[[], LoopPause] = LoopPause
    routers: Callable[[], list[RouterView]] = list
    tokens: Callable[[], Mapping[str, TokenTally]] = dict


class Metrics(Collector):
    """The registry of one server. Nothing is kept between scrapes but what the hub keeps itself."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """The whole exposition, of the type `prometheus_client.CONTENT_TYPE_LATEST`."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Every family, in the order of `FAMILIES`."""
        for family in FAMILIES:
            yield from family(self._source)


def _build(source: Source) -> Iterator[Metric]:
    labels = ["version", "python"]
    family = GaugeMetricFamily("llmgw_build_info", "The version of this server; always 1", labels=labels)
    family.add_metric([llmgw.__version__, platform.python_version()], 1)
    yield family
    yield GaugeMetricFamily(
        "llmgw_settling",
        "1 while a server that has just started waits for its nodes, places nothing and stops nothing",
        value=float(source.hub.fleet.settling),
    )
    pause = source.loop_pause()
    yield GaugeMetricFamily(
        "llmgw_loop_pause_seconds",
        "The longest time of the last 15 to 30 s in which the server looked at nothing new",
        value=pause.late_s,
    )
    yield GaugeMetricFamily(
        "llmgw_loop_busy_seconds",
        "The longest that it computed meanwhile; where the other is much longer, the machine is overloaded",
        value=pause.busy_s,
    )


def _nodes(source: Source) -> Iterator[Metric]:
    nodes = source.hub.fleet.nodes.values()
    used = source.hub.fleet.gpus_in_use()
    by_state = Counter(node.state for node in nodes)
    family = GaugeMetricFamily("llmgw_nodes", "Nodes by state", labels=["state"])
    for state in NodeState:
        family.add_metric([state.value], by_state[state])
    yield family
    family = GaugeMetricFamily(
        "llmgw_gpus",
        "GPUs of a node: in_use, free, or unusable (broken, skipped, or held by others)",
        labels=["node", "state"],
    )
    for node in nodes:
        in_use = used.get(node.node_id, set())
        states = Counter(
            "in_use" if gpu.uuid in in_use else "free" if gpu.usable else "unusable" for gpu in node.gpus
        )
        for gpu_state in ("free", "in_use", "unusable"):
            family.add_metric([node.node_id, gpu_state], states[gpu_state])
    yield family
    family = GaugeMetricFamily(
        "llmgw_gpu_nvlink_peers",
        "GPUs of its node that a GPU has NVLinks with; absent where it is not known",
        labels=["node", "gpu"],
    )
    for node in nodes:
        for index, peers in {gpu.index: gpu.nvlink_peers for gpu in node.gpus}.items():
            if peers is not None:
                family.add_metric([node.node_id, str(index)], len(peers))
    yield family


def _ports(source: Source) -> Iterator[Metric]:
    active = GaugeMetricFamily(
        "llmgw_ib_port_active",
        "1 when the port of an InfiniBand or RoCE adapter carries traffic, else 0",
        labels=["node", "adapter", "port", "state", "phys_state"],
    )
    rate = GaugeMetricFamily(
        "llmgw_ib_port_rate_gbps", "Rate of the port's link, in Gb/s", labels=["node", "adapter", "port"]
    )
    for node in source.hub.fleet.nodes.values():
        for port in node.inventory.ports:
            at = [node.node_id, _label(port.adapter), str(port.port)]
            state = _label(port.state or "unknown")
            active.add_metric([*at, state, _label(port.phys_state or "unknown")], float(port.is_up))
            if port.rate_gbps is not None:
                rate.add_metric(at, port.rate_gbps)
    yield active
    yield rate


def _fabrics(source: Source) -> Iterator[Metric]:
    return fabric_metrics(source.hub)


def _replicas(source: Source) -> Iterator[Metric]:
    profiles = [(model.name, profile) for model in source.hub.catalog.models for profile in model.profiles]
    known = {(name, profile.name) for name, profile in profiles}
    count = Counter(
        (*(key if (key := (replica.model, replica.profile)) in known else (OTHER, OTHER)), replica.state)
        for replica in source.hub.fleet.replicas.values()
    )
    there = GaugeMetricFamily(
        "llmgw_replicas", "Replicas by model, profile and state", labels=["model", "profile", "state"]
    )
    for name, profile in [*sorted(known), (OTHER, OTHER)]:
        for state in ReplicaState:
            there.add_metric([name, profile, state.value], count[name, profile, state])
    yield there
    wanted = GaugeMetricFamily(
        "llmgw_replicas_wanted", "Replicas that the catalog wants", labels=["model", "profile"]
    )
    for name, wanted_profile in profiles:
        wanted.add_metric([name, wanted_profile.name], wanted_profile.replicas)
    yield wanted


def _figures(source: Source) -> Iterator[Metric]:
    hub = source.hub
    return figure_metrics(hub.fleet, [model.name for model in hub.catalog.models], hub.clock.monotonic())


def _certificates(source: Source) -> Iterator[Metric]:
    now = source.hub.clock.wall()
    family = GaugeMetricFamily(
        "llmgw_certificate_seconds_left",
        "Seconds until a certificate ends, negative once it has; kind says whose: server, authority, node, …",
        labels=["name", "kind"],
    )
    for end in source.certificates():
        family.add_metric([_label(end.name), end.kind], end.at - now)
    for node in source.hub.fleet.nodes.values():
        if node.certificate_expires_at is not None:
            family.add_metric([node.node_id, "node"], node.certificate_expires_at - now)
    yield family


def _requests(source: Source) -> Iterator[Metric]:
    tally = source.hub.requests
    tally.keep({model.name for model in source.hub.catalog.models})
    requests = CounterMetricFamily(
        "llmgw_requests",
        "Requests that ended, by what the client got; client_left is a client that went away first",
        labels=["model", "status_class"],
    )
    retries = CounterMetricFamily(
        "llmgw_retries", "Further engines that were asked after the first one failed", labels=["model"]
    )
    refused = CounterMetricFamily(
        "llmgw_retries_refused",
        "Requests that failed although another engine could have been asked: the retry budget was spent",
        labels=["model"],
    )
    first_byte = HistogramMetricFamily(
        "llmgw_request_first_byte_seconds",
        "From a request's arrival to the first byte of its answer's body",
        labels=["model"],
    )
    total = HistogramMetricFamily(
        "llmgw_request_seconds", "From a request's arrival to the end of its answer", labels=["model"]
    )
    queued = HistogramMetricFamily(
        "llmgw_queue_wait_seconds",
        "How long requests waited for an engine to have room, of those that had to, served or not",
        labels=["model"],
    )
    for name, model in sorted(tally.models.items()):
        for status, count in sorted(model.by_status.items()):
            requests.add_metric([name, status], count)
        retries.add_metric([name], model.retries)
        refused.add_metric([name], model.retries_refused)
        _add(first_byte, name, model.first_byte)
        _add(total, name, model.total)
        _add(queued, name, model.queued)
    yield from (requests, retries, refused, first_byte, total, queued)
    yield CounterMetricFamily(
        "llmgw_router_outcomes_dropped",
        "Requests that are missing in the others, since routers could not keep what they saw of them",
        value=tally.dropped,
    )


def _tokens(source: Source) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "llmgw_tokens",
        "Tokens of requests: of their prompts, of these the ones from a cache, and of their answers",
        labels=["model", "kind"],
    )
    for name, tally in sorted(source.tokens().items()):
        family.add_metric([name, "prompt"], tally.prompt)
        family.add_metric([name, "cached"], tally.cached)
        family.add_metric([name, "completion"], tally.completion)
    yield family


def _keys(source: Source) -> Iterator[Metric]:
    keys = source.hub.keys
    family = CounterMetricFamily(
        "llmgw_key_requests",
        "Requests that ended, by the name of their API key; those without one that is known are (none)",
        labels=["key", "status_class"],
    )
    shown = sorted(keys.names.items(), key=lambda item: item[1])[:KEYS_MAX]
    rest: Counter[str] = Counter()
    for key_id in keys.names.keys() - dict(shown).keys():
        rest.update(keys.tally.counts.get(key_id, {}))
    counted = [(name, keys.tally.counts.get(key_id, {})) for key_id, name in shown]
    counted.append(("(none)", keys.tally.counts.get(WITHOUT, {})))
    if rest:
        counted.append((OTHER, rest))
    for name, counts in counted:
        # Every series is there from the first scrape on: a rate over one that appears misses its beginning.
        for status in sorted({"2xx", "4xx", "5xx", "client_left", *counts}):
            family.add_metric([name, status], counts.get(status, 0))
    yield family


def _breakers(source: Source) -> Iterator[Metric]:
    table = source.hub.table
    seen: dict[str, set[str]] = {}
    for breakers in source.hub.breakers.values():
        for endpoint, state in breakers.items():
            seen.setdefault(state, set()).add(endpoint)
    family = GaugeMetricFamily(
        "llmgw_endpoint_breakers",
        "Endpoints that some router leaves alone since they fail: open, or half_open while one request tries",
        labels=["model", "state"],
    )
    for route in table.models if table is not None else ():
        for state in ("open", "half_open"):
            count = sum(endpoint.id in seen.get(state, ()) for endpoint in route.endpoints)
            family.add_metric([route.name, state], count)
    yield family


def _queues(source: Source) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "llmgw_queue_requests", "Requests that wait for an engine to have room", labels=["model"]
    )
    for model in source.hub.catalog.models:
        count = sum(queued.get(model.name, 0) for queued in source.hub.queued.values())
        family.add_metric([model.name], count)
    yield family


def _routers(source: Source) -> Iterator[Metric]:
    return router_metrics(source.routers())


def _findings(source: Source) -> Iterator[Metric]:
    counts: Counter[tuple[str, str]] = Counter()
    checks: set[str] = set()
    for finding in source.findings():
        check = _label(finding.check)
        if check not in checks and len(checks) >= CHECKS_MAX:
            check = OTHER
        checks.add(check)
        counts[check, finding.severity] += 1
    family = GaugeMetricFamily(
        "llmgw_findings",
        "What needs a person, anywhere in the fleet; llmgw ctl status says where and what to do",
        labels=["check", "severity"],
    )
    for (check, severity), count in sorted(counts.items()):
        family.add_metric([check, severity], count)
    yield family


FAMILIES: tuple[Callable[[Source], Iterator[Metric]], ...] = (
    _build,
    _nodes,
    _ports,
    _fabrics,
    _replicas,
    _figures,
    _certificates,
    _requests,
    _tokens,
    _keys,
    _breakers,
    _queues,
    _routers,
    _findings,
)
"""Another corner of the fleet is a function and a line here."""


def _add(family: HistogramMetricFamily, name: str, histogram: Histogram) -> None:
    family.add_metric([name], buckets=histogram.cumulative(), sum_value=histogram.total_s)


def _label(value: str) -> str:
    return value[:LABEL_CHARS_MAX]
