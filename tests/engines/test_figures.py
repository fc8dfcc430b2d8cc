"""What engines' metrics say of their load, in the words of each engine and version."""

from __future__ import annotations

import pytest

from llmgw.engines.figures import Counters, FigureHistory, FigureNames, read_counters, read_figures
from llmgw.engines.registry import adapter
from llmgw.messages.agent import FIGURE_MAX, EngineFigures
from tests.engines.recorded import answer
from tests.engines.running import http, sim_engine

VLLM = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 12.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 12.0
"""
CACHE = '{kind}{{engine="0",model_name="m"}} 0.25\n{kind}{{engine="1",model_name="m"}} 0.75\n'


@pytest.mark.parametrize("kind", ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"])
def test_several_cores_are_added_up_and_the_fullest_cache_counts(kind: str) -> None:
    said = read_figures(VLLM + CACHE.format(kind=kind), adapter("vllm").figures)
    assert said == EngineFigures(running=7, waiting=12, cache_used=0.75)


def test_what_an_engine_does_not_tell_is_not_made_up() -> None:
    names = adapter("llamacpp").figures
    said = read_figures("llamacpp:requests_processing 2\nllamacpp:requests_deferred 5\n", names)
    assert said == EngineFigures(running=2, waiting=5, cache_used=None)
    assert read_figures("llamacpp:kv_cache_usage_ratio 0.5\n", names) == EngineFigures(cache_used=0.5)
    assert read_figures("up 1\n", names) is None
    assert read_figures("", FigureNames()) is None


def test_numbers_that_are_none_are_left_out_and_large_ones_cut() -> None:
    names = FigureNames(running=("r",), waiting=("w",), cache_used=("c",))
    said = read_figures("r NaN\nr -1\nw 1.7e308\nw 1.7e308\nc 1.7\nc +Inf\n", names)
    assert said == EngineFigures(running=None, waiting=FIGURE_MAX, cache_used=1.0)
    with pytest.raises(ValueError, match="many"):
        read_figures("r many\n", names)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_the_figures_are_in_the_engines_own_metrics(engine: str) -> None:
    said = read_figures(answer(engine, "metrics")[2].decode(), adapter(engine).figures)
    assert said is not None
    assert (said.running, said.waiting) == (0, 0)
    assert said.cache_used == (None if engine == "llamacpp" else 0.0)


@pytest.mark.parametrize(
    ("engine", "counted"),
    [
        ("vllm", Counters(prefix_queries=160, prefix_hits=0, prompt_tokens=160, tokens=106, preemptions=0)),
        ("sglang", Counters(prefix_queries=223, prefix_hits=177, prompt_tokens=223, tokens=106)),
        ("llamacpp", Counters(prefix_queries=454, prefix_hits=342, prompt_tokens=454, tokens=1551)),
    ],
)
def test_the_counters_are_in_the_engines_own_metrics(engine: str, counted: Counters) -> None:
    assert read_counters(answer(engine, "metrics")[2].decode(), adapter(engine).figures) == counted


def test_older_names_are_read_where_the_newer_are_not_there() -> None:
    text = """
vllm:gpu_prefix_cache_queries_total{engine="0"} 50.0
vllm:gpu_prefix_cache_hits_total{engine="0"} 40.0
vllm:generation_tokens_total{engine="0"} 1.0
vllm:generation_tokens_total{engine="1"} 2.0
"""
    names = adapter("vllm").figures
    assert read_counters(text, names) == Counters(prefix_queries=50, prefix_hits=40, tokens=3)
    both = text + 'vllm:prefix_cache_queries_total{engine="0"} 60\nvllm:prefix_cache_hits_total{engine="0"} 6\n'
    assert read_counters(both, names) == Counters(prefix_queries=60, prefix_hits=6, tokens=3)
    old = "sglang:prompt_tokens_total 9\nsglang:cached_tokens_total 3\nsglang:generation_tokens_total 2\n"
    assert read_counters(old, adapter("sglang").figures) == Counters(
        prefix_queries=9, prefix_hits=3, prompt_tokens=9, tokens=2
    )
    # Nothing was found in the cache yet, and an engine of several ranks has a series for each.
    young = "".join(
        f'sglang:realtime_tokens_total{{mode="prefill_compute",dp_rank="{rank}"}} 5\n' for rank in (0, 1)
    )
    assert read_counters(young, adapter("sglang").figures) == Counters(prefix_queries=10, prompt_tokens=10)


def test_a_label_is_not_taken_for_another_that_ends_alike() -> None:
    names = FigureNames(tokens=(('t{mode="a"}',),))
    assert read_counters('t{submode="a"} 5\nt{x="1",mode="a"} 2\nt{mode="ab"} 7\n', names) == Counters(tokens=2)


def test_rates_are_over_the_readings_that_are_kept_and_begin_anew_with_the_engine() -> None:
    history, load = FigureHistory(), EngineFigures(running=1)

    def take(now: float, tokens: float, queries: float = 0.0, hits: float = 0.0) -> EngineFigures:
        counted = Counters(tokens=tokens, prefix_queries=queries, prefix_hits=hits, preemptions=tokens / 1000)
        return history.take(load, counted, now)

    assert take(100.0, 1000) == load, "of one reading there is no rate"
    said = take(102.0, 1500, queries=40, hits=30)
    assert (said.tokens_per_s, said.preemptions_per_s, said.prefix_hits) == (250.0, 0.25, 0.75)
    assert said.prompt_tokens_per_s is None
    for second in range(104, 200, 2):
        said = take(float(second), 1500, queries=40, hits=30)
    assert (said.tokens_per_s, said.prefix_hits) == (0.0, None), "that was long ago, and nobody asked since"
    assert take(200.0, 10) == load, "another engine counts from nothing"
    assert take(202.0, 20).tokens_per_s == 5.0
    history.forget()
    assert take(260.0, 500) == load


def test_the_simulated_engine_tells_them_too() -> None:
    with sim_engine() as running:
        text = http.get(f"{running.url()}/metrics").text
    assert read_figures(text, adapter("sim").figures) == EngineFigures(running=0, waiting=0, cache_used=0.0)
    assert read_counters(text, adapter("sim").figures) == Counters(
        prefix_queries=0, prefix_hits=0, prompt_tokens=0, tokens=0
    )
