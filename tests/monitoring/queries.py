"""Reads PromQL as Prometheus does, and holds it against the families that a scrape has.

`Reader.labels` is the set of labels that an expression's series have; whatever is wrong goes to `Reader.wrong`.
"""

from __future__ import annotations

import re
from pathlib import Path

import promql_parser as promql

from llmgw.agent.metrics.exposition import FAMILIES as AGENT
from llmgw.fleet.model import NodeState, ReplicaState
from llmgw.messages.agent import THROTTLE_REASONS
from llmgw.metrics.family import Family
from llmgw.metrics.ports import COUNTERS
from llmgw.server.metrics.exposition import FAMILIES as SERVER
from llmgw.server.metrics.routers import STATES as ROUTER_STATES
from tests.test_findings_documented import every_kind

FAMILIES: dict[str, Family] = {family.name: family for family in (*SERVER, *AGENT)}
BOTH = {family.name for family in SERVER} & {family.name for family in AGENT}
"""Told by the server and by agents: who scrapes both has them twice, unless a query says whose it wants."""
# Prometheus' own of each target.
TARGET = frozenset({"job", "instance"})
OVER_COUNTERS = {"rate", "irate", "increase", "resets", "changes"}
# How many, or whether there are any, may be asked of counters too.
ANY_VALUE = {"count", "group", "absent", "present_over_time"}

ROOT = Path(__file__).parent.parent.parent
_STATUS = {"1xx", "2xx", "3xx", "4xx", "5xx", "client_left"}
VALUES: dict[tuple[str, str], set[str]] = {
    ("llmgw_nodes", "state"): {state.value for state in NodeState},
    ("llmgw_node_state", "state"): {state.value for state in NodeState},
    ("llmgw_replicas", "state"): {state.value for state in ReplicaState},
    ("llmgw_router_state", "state"): set(ROUTER_STATES),
    ("llmgw_gpus", "state"): {"free", "in_use", "unusable"},
    ("llmgw_gpu_ecc_errors_total", "kind"): {"corrected", "uncorrected"},
    ("llmgw_gpu_throttled", "reason"): set(THROTTLE_REASONS),
    ("llmgw_ib_port_counter_total", "counter"): set(COUNTERS),
    ("llmgw_fabric_subnet_managers", "state"): {"master", "standby"},
    ("llmgw_fabric_ports", "state"): {"ACTIVE", "INIT", "ARMED", "DOWN", "unknown"},
    ("llmgw_requests_total", "status_class"): _STATUS,
    ("llmgw_endpoint_requests_total", "status_class"): _STATUS,
    ("llmgw_endpoint_breakers", "state"): {"open", "half_open"},
    ("llmgw_endpoint_breaker_state", "state"): {"closed", "open", "half_open"},
    ("llmgw_engine_requests", "state"): {"running", "waiting"},
    ("llmgw_endpoint_engine_requests", "state"): {"running", "waiting"},
    ("llmgw_tokens_total", "kind"): {"prompt", "cached", "completion"},
    ("llmgw_findings", "severity"): {"error", "warning", "info"},
    ("llmgw_findings", "check"): every_kind(),
}
"""(family, label) → the values that there are, where they are known beforehand."""


class Reader:
    """One expression, with what is wrong with it. `jobs` are the scrapes that there are."""

    def __init__(self, text: str, jobs: set[str]) -> None:
        self.text, self.jobs = text, jobs
        self.wrong: list[str] = []
        self.families: set[str] = set()
        self.labels: frozenset[str] = frozenset()
        try:
            self.labels = self._of(promql.parse(text), "")
        except ValueError as error:
            self._say(str(error))

    def _say(self, what: str) -> None:
        self.wrong.append(f"{what} in: {self.text}")

    def _of(self, node: object, under: str) -> frozenset[str]:
        """The labels of a part's series. `under` is the function or aggregation that it is an argument of."""
        match node:
            case promql.NumberLiteral() | promql.StringLiteral():
                return frozenset()
            case promql.ParenExpr() | promql.UnaryExpr():
                return self._of(node.expr, under)
            case promql.MatrixSelector():
                if under not in OVER_COUNTERS and not under.endswith("_over_time"):
                    self._say(f"{under or 'nothing'} takes a range")
                return self._series(node.vector_selector, under)
            case promql.VectorSelector():
                return self._series(node, under)
            case promql.AggregateExpr():
                return self._aggregate(node)
            case promql.Call():
                return self._call(node)
            case promql.BinaryExpr():
                return self._binary(node)
        self._say(f"{type(node).__name__} is not understood")
        return frozenset()

    def _series(self, selector: promql.VectorSelector, under: str) -> frozenset[str]:
        name = str(selector.name)
        matchers = selector.matchers.matchers
        labels: set[str] = set(TARGET)
        if name != "up":
            family, part = family_of(name)
            if family is None:
                self._say(f"there is no {name}")
                return frozenset()
            self.families.add(family.name)
            labels |= {*family.labels, *(["le"] if part == "_bucket" else [])}
            self._kind(family, part, under)
            for matcher in matchers:
                self._value(family, matcher)
            if family.name in BOTH and not any(matcher.name == "job" for matcher in matchers):
                self._say(f"{name} is told by server and agents: job says by whom")
        for matcher in matchers:
            if matcher.name not in labels:
                self._say(f"{name} has no label {matcher.name}")
            if matcher.name == "job" and matcher.value not in self.jobs:
                self._say(f"no job is called {matcher.value!r}")
        return frozenset(labels)

    def _kind(self, family: Family, part: str, under: str) -> None:
        if family.kind == "histogram" and not part:
            self._say(f"{family.name} is a histogram: _bucket, _sum or _count")
        counter = family.kind != "gauge"
        if counter and under not in OVER_COUNTERS | ANY_VALUE:
            self._say(f"{family.name} is a counter, and stands under {under or 'nothing'}")
        if not counter and under in ("rate", "irate", "increase"):
            self._say(f"{family.name} is no counter, and stands under {under}")

    def _value(self, family: Family, matcher: promql.Matcher) -> None:
        known = VALUES.get((family.name, matcher.name))
        if known is None or matcher.value == ".*":
            return
        regex = matcher.op in (promql.MatchOp.Re, promql.MatchOp.NotRe)
        for wanted in alternatives(matcher.value) if regex else [re.escape(matcher.value)]:
            if not any(re.fullmatch(wanted, value) for value in known | {"(other)"}):
                self._say(f"{family.name} never has {matcher.name} {wanted!r}")

    def _aggregate(self, node: promql.AggregateExpr) -> frozenset[str]:
        operator = str(node.op)
        inner = self._of(node.expr, operator)
        if node.modifier is None:
            return inner if operator in ("topk", "bottomk") else frozenset()
        named = frozenset(node.modifier.labels)
        for label in sorted(named - inner):
            self._say(f"{operator} by {label}, which nothing there has")
        return named if node.modifier.type == promql.AggModifierType.By else inner - named

    def _call(self, node: promql.Call) -> frozenset[str]:
        name = node.func.name
        inner = [self._of(argument, name) for argument in node.args]
        if name == "vector":
            return frozenset()
        if name == "absent":
            return frozenset(matcher.name for matcher in node.args[0].matchers.matchers)
        if name == "histogram_quantile":
            if "le" not in inner[1] or "_bucket" not in str(node.args[1]):
                self._say("histogram_quantile needs buckets and their le")
            return inner[1] - {"le"}
        return inner[0]

    def _binary(self, node: promql.BinaryExpr) -> frozenset[str]:
        left, right = self._of(node.lhs, ""), self._of(node.rhs, "")
        if _is_number(node.lhs) or _is_number(node.rhs):
            return left | right
        operator = str(node.op)
        matching = node.modifier.matching if node.modifier is not None else None
        if matching is not None:
            for label in sorted(set(matching.labels) - (left & right)):
                self._say(f"{operator} on {label}, which one side does not have")
        elif left != right and not (operator == "or" and _stands_in(node.rhs)):
            self._say(f"{operator} between series with {sorted(left)} and with {sorted(right)}")
        if operator in ("and", "unless"):
            return left
        if operator == "or":
            return left & right
        if matching is None or node.modifier.card == promql.VectorMatchCardinality.ManyToOne:
            return left
        named = frozenset(matching.labels)
        return named if matching.type == promql.LabelModifierType.Include else left - named


def family_of(name: str) -> tuple[Family | None, str]:
    """A series' family, and what of a histogram it is."""
    for part in ("_bucket", "_sum", "_count"):
        family = FAMILIES.get(name.removesuffix(part)) if name.endswith(part) else None
        if family is not None and family.kind == "histogram":
            return family, part
    return FAMILIES.get(name), ""


def alternatives(regex: str) -> list[str]:
    """`a|b(c|d)` → `a`, `b(c|d)`."""
    found, depth = [""], 0
    for char in regex:
        depth += (char == "(") - (char == ")")
        if char == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += char
    return found


def _stands_in(node: object) -> bool:
    """What an `or` gives where there is nothing else; beside something with other labels both would be given."""
    return isinstance(node, promql.Call) and node.func.name in ("absent", "vector")


def _is_number(node: object) -> bool:
    if isinstance(node, promql.ParenExpr | promql.UnaryExpr):
        return _is_number(node.expr)
    if isinstance(node, promql.BinaryExpr):
        return _is_number(node.lhs) and _is_number(node.rhs)
    return isinstance(node, promql.NumberLiteral)
