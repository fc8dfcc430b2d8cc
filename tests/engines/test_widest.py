"""Our own widest commands, held against texts that list all or all but one of their flags."""

from __future__ import annotations

from typing import get_args

import pytest

from llmgw.config.catalog import EngineName
from llmgw.engines import registry
from llmgw.engines.base import EngineAdapter
from llmgw.engines.engine_check import check_engine
from llmgw.engines.widest import widest_commands, widest_flags
from tests.engines.help_texts import options_of, whole_help, without

ADAPTERS = pytest.mark.parametrize(
    "adapter", [registry.adapter(name) for name in get_args(EngineName)], ids=lambda adapter: adapter.name
)


@ADAPTERS
def test_every_engine_has_commands_for_every_task_that_it_does(adapter: EngineAdapter) -> None:
    commands = widest_commands(adapter)[adapter.name]
    assert commands
    assert all(len(argv) > 1 for argv in commands)


@ADAPTERS
def test_every_flag_of_ours_is_taken_by_a_help_that_lists_them(adapter: EngineAdapter) -> None:
    flags = widest_flags(adapter)[adapter.name]
    checked = check_engine(adapter, whole_help(adapter.name, options_of(flags)))
    assert checked.check.ok is True
    assert [each.flag for each in checked.check.flags] == list(flags)
    assert not checked.doubts


@ADAPTERS
def test_with_one_flag_cut_out_exactly_that_one_is_missing(adapter: EngineAdapter) -> None:
    flags = widest_flags(adapter)[adapter.name]
    whole = whole_help(adapter.name, options_of(flags))
    for flag in flags:
        check = check_engine(adapter, without(whole, flag)).check
        assert [each.flag for each in check.flags if each.ok is not True] == [flag]
        assert check.ok is False
        assert not check.truncated
        assert all(each.nearest for each in check.flags if each.ok is False)


def test_llama_cpps_commands_have_the_flags_of_every_task_and_of_nodes_without_gpus() -> None:
    flags = widest_flags(registry.adapter("llamacpp"))["llamacpp"]
    assert {"--model", "--host", "--port", "--embeddings", "--reranking", "--device", "--parallel"} <= set(flags)


def test_what_begins_a_command_is_no_flag_of_the_engine() -> None:
    flags = widest_flags(registry.adapter("sim"))["sim"]
    assert "-m" not in flags
    assert {"--rank", "--nnodes", "--rendezvous-host"} <= set(flags)


def test_the_program_that_is_asked_for_is_the_one_in_the_commands() -> None:
    commands = widest_commands(registry.adapter("llamacpp"), "/opt/llama-server")
    assert {argv[0] for argv in commands["llamacpp"]} == {"/opt/llama-server"}


def test_a_profiles_own_arguments_are_checked_too() -> None:
    adapter = registry.adapter("llamacpp")
    whole = whole_help("llamacpp", options_of([*widest_flags(adapter)["llamacpp"], "--ctx-size"]))
    check = check_engine(adapter, whole, args=["--ctx-size", "4096", "--ctx-sise", "1", "--port", "1"]).check
    assert [each.flag for each in check.flags if each.ok is False] == ["--ctx-sise"]
    assert [each.flag for each in check.flags].count("--port") == 1


def test_flags_that_cannot_be_told_make_the_whole_unknown_unless_one_is_missing() -> None:
    adapter = registry.adapter("llamacpp")
    whole = whole_help("llamacpp", options_of(widest_flags(adapter)["llamacpp"]))
    cut = whole[: whole.rindex("--tiny-default")]
    assert check_engine(adapter, cut).check.ok is True
    check = check_engine(adapter, cut, args=["--new-flag"]).check
    assert (check.ok, check.truncated) == (None, True)


def test_vllms_commands_have_the_flags_of_both_ways_to_span_nodes() -> None:
    flags = widest_flags(registry.adapter("vllm"))
    assert {"--nnodes", "--node-rank", "--master-addr", "--headless", "--distributed-executor-backend"} <= set(
        flags["vllm"]
    )
    assert {"--head", "--address", "--block", "--node-ip-address"} <= set(flags["ray"])


def test_sglangs_commands_have_the_flags_of_single_nodes_of_several_and_of_a_key() -> None:
    flags = set(widest_flags(registry.adapter("sglang"))["sglang"])
    assert {
        "--nccl-port",
        "--dist-init-addr",
        "--node-rank",
        "--config",
        "--is-embedding",
        "--load-format",
    } <= flags


def test_the_flags_of_ray_are_checked_where_its_help_is_there() -> None:
    adapter = registry.adapter("vllm")
    flags = widest_flags(adapter)
    vllm = whole_help("vllm", options_of(flags["vllm"]))
    ray = whole_help("ray", options_of(flags["ray"]))
    assert not any(each.flag.startswith("ray ") for each in check_engine(adapter, vllm).check.flags)
    assert check_engine(adapter, vllm, sidecars={"ray": ray}).check.ok is True
    check = check_engine(adapter, vllm, sidecars={"ray": without(ray, "--block")}).check
    assert [each.flag for each in check.flags if each.ok is False] == ["ray start --block"]
    assert check.ok is False


def test_a_ray_that_could_not_be_asked_leaves_its_flags_unknown() -> None:
    adapter = registry.adapter("vllm")
    vllm = whole_help("vllm", options_of(widest_flags(adapter)["vllm"]))
    for text in (None, "Traceback (most recent call last):\n"):
        checked = check_engine(adapter, vllm, sidecars={"ray": text})
        assert checked.check.ok is None
        assert {each.ok for each in checked.check.flags if each.flag.startswith("ray start ")} == {None}
        assert any("ray start" in doubt for doubt in checked.doubts)
