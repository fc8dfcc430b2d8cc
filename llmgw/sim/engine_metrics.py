"""The simulated engine's `/metrics`, under vLLM's names and labels (as of 0.32)."""

from __future__ import annotations

from dataclasses import dataclass, field

# vLLM's own bucket limits.
_FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_END_TO_END_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Counts of seconds in buckets with fixed upper limits."""

    def __init__(self, limits: tuple[float, ...]) -> None:
        self.limits = limits
        self.counts = [0] * (len(limits) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.sum_s += seconds
        for index, limit in enumerate(self.limits):
            if seconds <= limit:
                self.counts[index] += 1
                return
        self.counts[-1] += 1


@dataclass
class Metrics:
    """Everything that `/metrics` tells. The engine counts here; gauges are set when they are read."""

    model: str
    running: int = 0
    waiting: int = 0
    kv_tokens_used: int = 0
    kv_tokens: int = 1
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    aborted: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FINISHED_REASONS, 0))
    first_token_s: Histogram = field(default_factory=lambda: Histogram(_FIRST_TOKEN_S))
    end_to_end_s: Histogram = field(default_factory=lambda: Histogram(_END_TO_END_S))

    def render(self) -> str:
        """The text format of Prometheus."""
        lines: list[str] = []
        usage = min(1.0, self.kv_tokens_used / self.kv_tokens)
        self._sample(lines, "vllm:num_requests_running", "gauge", "Requests being generated.", self.running)
        self._sample(lines, "vllm:num_requests_waiting", "gauge", "Requests waiting for a place.", self.waiting)
        self._sample(lines, "vllm:kv_cache_usage_perc", "gauge", "KV cache usage; 1 is 100 percent.", usage)
        self._sample(
            lines, "vllm:prompt_tokens_total", "counter", "Prefill tokens processed.", self.prompt_tokens
        )
        self._sample(
            lines,
            "vllm:generation_tokens_total",
            "counter",
            "Generation tokens processed.",
            self.generation_tokens,
        )
        for name, text, value in (
            ("queries", "Prefix cache queries, in tokens.", self.prefix_queries),
            ("hits", "Prefix cache hits, in tokens.", self.prefix_hits),
        ):
            self._sample(lines, f"vllm:prefix_cache_{name}_total", "counter", text, value)
        _head(lines, "vllm:request_success_total", "counter", "Requests finished, by reason.")
        for reason, count in self.finished.items():
            labels = self._labels(finished_reason=reason)
            lines.append(f"vllm:request_success_total{labels} {float(count)}")
        self._histogram(lines, "vllm:time_to_first_token_seconds", "Time to first token.", self.first_token_s)
        self._histogram(lines, "vllm:e2e_request_latency_seconds", "Whole requests.", self.end_to_end_s)
        # vLLM counts no abort when a client leaves; this counter is the simulated engine's own.
        self._sample(lines, "sim:requests_aborted_total", "counter", "Requests whose client left.", self.aborted)
        return "\n".join(lines) + "\n"

    def _labels(self, **more: str) -> str:
        labels = {"engine": "0", "model_name": self.model, **more}
        return "{" + ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels)) + "}"

    def _sample(self, lines: list[str], name: str, kind: str, text: str, value: float) -> None:
        _head(lines, name, kind, text)
        lines.append(f"{name}{self._labels()} {float(value)}")

    def _histogram(self, lines: list[str], name: str, text: str, histogram: Histogram) -> None:
        _head(lines, name, "histogram", text)
        total = 0
        for limit, count in zip([*map(str, histogram.limits), "+Inf"], histogram.counts, strict=True):
            total += count
            lines.append(f"{name}_bucket{self._labels(le=limit)} {float(total)}")
        lines.append(f"{name}_count{self._labels()} {float(total)}")
        lines.append(f"{name}_sum{self._labels()} {histogram.sum_s}")


def _head(lines: list[str], name: str, kind: str, text: str) -> None:
    lines.append(f"# HELP {name} {text}")
    lines.append(f"# TYPE {name} {kind}")


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
