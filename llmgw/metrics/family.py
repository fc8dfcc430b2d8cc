"""A family of metrics and its text form (prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4).

Of our own and not `prometheus_client`'s, which takes ten times as long: see docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from llmgw.metrics.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL_CHARS_MAX = 128
"""What is longer is cut: labels may be an agent's words."""
OTHER = "(other)"
"""Counts together what is beyond a bound, or is not known. No model can be called so."""

_LARGEST = 1e300
"""Beyond it, as infinity and what is no number, a value is no figure: an agent may say any integer."""

Kind = Literal["gauge", "counter", "histogram"]
Sample = tuple[Sequence[str], float | None]
"""The labels' values, and the value; None is unknown and is left out."""
LastSample = tuple[str, float | None]
"""The same by the value of one label."""


@dataclass(frozen=True)
class Family:
    """One name with its HELP text, its labels in order, and a phrase that says how many series it can have.

    The name of a counter ends with `_total`.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bound: str = "1"

    def text(self, samples: Iterable[Sample]) -> str:
        """The family with these samples. Two with the same labels, once they are cut, are one: the last."""
        labels = ",".join([f'{label}="%s"' for label in self.labels])
        head = f"{self.name}{{{labels}}} " if labels else ""
        lines: dict[str, str] = {}
        least = self._least
        for values, value in samples:
            if value is not None and least <= value <= _LARGEST:
                series = head % tuple(map(_escaped, values)) if head else f"{self.name} "
                lines[series] = _number(value)
        return self._head() + "".join([f"{series}{value}\n" for series, value in lines.items()])

    def grouped(self, groups: Iterable[tuple[Sequence[str], Iterable[LastSample]]]) -> str:
        """The same, with what all labels but the last have in common said once: several times as fast.

        Groups are (values of all labels but the last, samples by the value of the last).
        """
        shared = ",".join([f'{label}="%s"' for label in self.labels[:-1]])
        head = f'{self.name}{{{shared},{self.labels[-1]}="'
        parts: dict[str, list[str]] = {}
        least = self._least
        for values, samples in groups:
            begin = head % tuple(map(_escaped, values))
            parts[begin] = [
                f'{begin}{_escaped(last)}"}} {_number(value)}\n'
                for last, value in samples
                if value is not None and least <= value <= _LARGEST
            ]
        return self._head() + "".join(["".join(lines) for lines in parts.values()])

    def value(self, value: float | None) -> str:
        """The family without labels."""
        return self.text([((), value)])

    def histograms(self, samples: Iterable[tuple[Sequence[str], Histogram]]) -> str:
        """The family with these histograms."""
        parts = [self._head()]
        for values, histogram in samples:
            pairs = [f'{label}="{_escaped(value)}"' for label, value in zip(self.labels, values, strict=True)]
            labels = ",".join(pairs)
            before = f"{labels}," if labels else ""
            for bound, count in histogram.cumulative():
                parts.append(f'{self.name}_bucket{{{before}le="{bound}"}} {count}\n')
            series = f"{{{labels}}}" if labels else ""
            parts.append(f"{self.name}_sum{series} {_number(histogram.total_s)}\n")
            parts.append(f"{self.name}_count{series} {histogram.count}\n")
        return "".join(parts)

    @property
    def _least(self) -> float:
        """No counter is below 0."""
        return 0.0 if self.kind == "counter" else -_LARGEST

    def _head(self) -> str:
        text = self.help.replace("\\", "\\\\").replace("\n", "\\n")
        return f"# HELP {self.name} {text}\n# TYPE {self.name} {self.kind}\n"


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) or value.is_integer() else repr(value)


@lru_cache(maxsize=16384)
def _escaped(value: str) -> str:
    return value[:LABEL_CHARS_MAX].replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
