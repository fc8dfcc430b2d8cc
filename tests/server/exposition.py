"""Reads what `/metrics` says as Prometheus would, and holds names to its rules."""

from __future__ import annotations

import math
import re
from collections import Counter

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

# https://prometheus.io/docs/practices/naming/: base units, spelled out, and none that is not one. `gbps` is the
# word that operators, sysfs and agent.yaml have for a link.
_UNITS = re.compile(r"_(seconds|bytes|watts|celsius|ratio|gbps)")
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
    heads = [line.split(" ")[:3] for line in text.splitlines() if line.startswith("# ")]
    for head, count in Counter((kind, name) for _, kind, name in heads).items():
        if count > 1:
            wrong.append(f"{head[1]} has {count} lines of {head[0]}")
    if not text.endswith("\n"):
        wrong.append("the last line does not end")
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
        # A unit stands at the end, before _total; a rate may follow its bytes, and what counts down says it.
        units = _UNITS.findall(family.name)
        if units and not re.search(rf"_{units[-1]}(_per_second|_left)?$", family.name):
            wrong.append(f"{family.name} has its unit elsewhere than at its end")
        for sample in family.samples:
            if math.isnan(sample.value):
                wrong.append(f"{sample.name} {sample.labels} is NaN")
            if family.type != "gauge" and sample.value < 0:
                wrong.append(f"{sample.name} {sample.labels} is below 0")
            odd = [label for label in sample.labels if not re.fullmatch(r"[a-z][a-z0-9_]*", label)]
            odd += [label for label in sample.labels if label.endswith(("_seconds", "_bytes"))]
            wrong += [f"{sample.name} has the label {label}" for label in odd]
        if family.type == "histogram":
            wrong += _wrong_buckets(family)
        if family.type not in ("counter", "gauge", "histogram"):
            wrong.append(f"{family.name} is of type {family.type}")
        series = Counter((sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples)
        wrong += [f"{name} {labels} stands there twice" for (name, labels), count in series.items() if count > 1]
    return wrong


def _wrong_buckets(family: Metric) -> list[str]:
    """Buckets that fall, or whose last is not the count."""
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    counts = {}
    for sample in family.samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_count"):
            counts[labels] = sample.value
    wrong = []
    for labels, found in buckets.items():
        values = [value for _, value in found]
        if found != sorted(found) or values != sorted(values):
            wrong.append(f"the buckets of {family.name} {labels} fall")
        if found[-1] != (math.inf, counts.get(labels)):
            wrong.append(f"the last bucket of {family.name} {labels} is not its count")
    return wrong
