"""Reads what `/metrics` says as Prometheus would, and holds names to its rules."""

from __future__ import annotations

import re
from collections import Counter

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

# https://prometheus.io/docs/practices/naming/: base units, spelled out, and none that is not one. `gbps` is the
# word that operators, sysfs and agent.yaml have for a link.
_NO_BASE_UNITS = re.compile(
    r"_(milliseconds?|ms|minutes?|hours?|days?|percent|[kmgt]i?b|(kilo|mega|giga)(bytes|bits))(_|$)"
)


def families(text: str) -> dict[str, Metric]:
    """Family name → family. Counters stand here without their `_total`."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(text: str, name: str, /, **labels: str) -> float | None:
    """One sample's value; None when there is none."""
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return float(sample.value)
    return None


def lint(text: str) -> list[str]:
    """What is wrong with the names, help texts, types and series; empty when all is well."""
    wrong = []
    for family in families(text).values():
        names = {sample.name for sample in family.samples}
        if not re.fullmatch(r"llmgw_[a-z0-9_]+", family.name):
            wrong.append(f"{family.name} is no name of ours")
        if not family.documentation.strip() or family.documentation.endswith("."):
            wrong.append(f"{family.name} has no help text, or one that ends with a full stop")
        if _NO_BASE_UNITS.search(family.name):
            wrong.append(f"{family.name} has a unit that is no base unit")
        if family.type == "counter" and any(not name.endswith("_total") for name in names):
            wrong.append(f"{family.name} is a counter without _total")
        if family.type != "counter" and any(name.endswith("_total") for name in names):
            wrong.append(f"{family.name} is no counter and ends with _total")
        if family.type == "histogram" and not family.name.endswith("_seconds"):
            wrong.append(f"{family.name} is a histogram without its unit")
        if family.type not in ("counter", "gauge", "histogram"):
            wrong.append(f"{family.name} is of type {family.type}")
        series = Counter((sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples)
        wrong += [f"{name} {labels} stands there twice" for (name, labels), count in series.items() if count > 1]
    return wrong
