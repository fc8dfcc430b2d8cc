"""What engines' metrics say of their load, in the words of each engine and version."""

from __future__ import annotations

import pytest

from llmgw.engines.figures import FigureNames, read_figures
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
    said = read_figures("r NaN\nr -1\nw 1e300\nc 1.7\nc +Inf\n", names)
    assert said == EngineFigures(running=None, waiting=FIGURE_MAX, cache_used=1.0)
    with pytest.raises(ValueError, match="many"):
        read_figures("r many\n", names)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_the_figures_are_in_the_engines_own_metrics(engine: str) -> None:
    said = read_figures(answer(engine, "metrics")[2].decode(), adapter(engine).figures)
    assert said is not None
    assert (said.running, said.waiting) == (0, 0)
    assert said.cache_used == (None if engine == "llamacpp" else 0.0)


def test_the_simulated_engine_tells_them_too() -> None:
    with sim_engine() as running:
        said = read_figures(http.get(f"{running.url()}/metrics").text, adapter("sim").figures)
    assert said == EngineFigures(running=0, waiting=0, cache_used=0.0)
