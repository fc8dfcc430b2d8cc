"""The interfaces and adapters that a node's ranks are told to use."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmgw.engines.kv_transfer import near_and_far
from llmgw.engines.networks import (
    REFUSED_NETWORK_ENV,
    beside_networks,
    nearest_first,
    network_env,
    network_files,
    network_problems,
)
from llmgw.engines.overrides import refused_env
from llmgw.messages.agent import Gpu
from tests.engines.specs import context, spec

ADAPTERS = ["mlx5_0:1", "mlx5_1:1", "mlx5_10:1"]


def env_of(nodes: int = 2, env: dict[str, str] | None = None, **node: Any) -> dict[str, str]:
    shard = spec(nodes=nodes, env=env or {})
    return network_env(shard, context(shard, **{"adapters": ADAPTERS, "mgmt_interface": "eno1", **node}))[0]


def warnings_of(**node: Any) -> list[str]:
    shard = spec(nodes=2)
    return network_env(shard, context(shard, **{"adapters": ADAPTERS, "mgmt_interface": "eno1", **node}))[1]


def problems_of(env: dict[str, str], nodes: int = 2) -> list[str]:
    shard = spec(nodes=nodes, env=env)
    return network_problems(shard, context(shard, adapters=ADAPTERS))


def test_everything_but_the_fabric_goes_over_the_interface_of_the_nodes_address() -> None:
    env = env_of()
    assert env["NCCL_SOCKET_IFNAME"] == "=eno1", "without = NCCL would take eno10 as well"
    assert env["GLOO_SOCKET_IFNAME"] == env["TP_SOCKET_IFNAME"] == "eno1"
    assert "NCCL_SOCKET_FAMILY" not in env
    assert env_of(address="fd00::5")["NCCL_SOCKET_FAMILY"] == "AF_INET6"


def test_eth0_is_the_last_resort_and_is_told() -> None:
    assert env_of(mgmt_interface=None)["GLOO_SOCKET_IFNAME"] == "eth0"
    (warning,) = warnings_of(mgmt_interface=None)
    assert "mgmt_interface" in warning
    assert env_of(nodes=1, mgmt_interface=None) == {}, "alone it needs none, and eth0 may not exist"


def test_the_fabrics_adapters_are_named_exactly_and_nothing_else_may_be_used() -> None:
    assert env_of()["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1,mlx5_10:1"
    assert "NCCL_IB_HCA" not in env_of(adapters=[])
    assert "NCCL_IB_HCA" not in env_of(nodes=1)


def near(*lists: list[str] | None) -> list[Gpu]:
    return [
        Gpu(index=index, uuid=f"GPU-{index + 1}", name="H100", nearest_adapters=names)
        for index, names in enumerate(lists)
    ]


def test_adapters_near_the_shards_gpus_come_first() -> None:
    env = env_of(gpus=near(["mlx5_10", "mlx5_0"], ["mlx5_1"]))
    assert env["NCCL_IB_HCA"] == "=mlx5_10:1,mlx5_1:1,mlx5_0:1"
    assert nearest_first(["a:1", "a:2", "b:1"], near(["gone", "b"])) == ["b:1", "a:1", "a:2"]
    assert nearest_first(["a:1", "b:1"], near(None, [])) == ["a:1", "b:1"]


def test_infiniband_gets_no_gid_index_and_roce_the_one_that_all_its_adapters_share() -> None:
    assert "NCCL_IB_GID_INDEX" not in env_of()
    assert env_of(gid_indexes={"mlx5_0:1": 3, "mlx5_1:1": 3, "mlx5_10:1": 3})["NCCL_IB_GID_INDEX"] == "3"


@pytest.mark.parametrize(
    ("gid_indexes", "words"),
    [
        ({"mlx5_0:1": 3, "mlx5_1:1": 5}, "mlx5_0:1 3, mlx5_1:1 5"),
        ({"mlx5_0:1": 3, "mlx5_1:1": None}, "mlx5_1:1 has no RoCE v2 address"),
    ],
)
def test_without_one_index_for_all_nccl_chooses_by_itself_and_it_is_told(
    gid_indexes: dict[str, int | None], words: str
) -> None:
    assert "NCCL_IB_GID_INDEX" not in env_of(gid_indexes=gid_indexes)
    (warning,) = warnings_of(gid_indexes=gid_indexes)
    assert words in warning


def test_an_adapter_that_a_profile_leaves_out_does_not_spoil_the_index() -> None:
    env = env_of(env={"NCCL_IB_HCA": "mlx5_0"}, gid_indexes={"mlx5_0:1": 3, "mlx5_1:1": 5})
    assert (env["NCCL_IB_HCA"], env["NCCL_IB_GID_INDEX"]) == ("=mlx5_0:1", "3")


def test_what_moves_kv_caches_gets_the_same_adapters_by_its_own_names() -> None:
    env = env_of(gpus=near(["mlx5_10"], ["mlx5_1"]), work_dir="/run/shard")
    assert env["UCX_NET_DEVICES"] == "mlx5_10:1,mlx5_1:1,mlx5_0:1"
    assert env["MC_CUSTOM_TOPO_JSON"] == "/run/shard/mooncake-topology.json"
    assert env["MC_IB_PORT"] == "1"
    assert not {"UCX_IB_GID_INDEX", "MC_GID_INDEX"} & set(env)
    roce = env_of(gid_indexes={"mlx5_0:1": 3, "mlx5_1:1": 3, "mlx5_10:1": 3})
    assert (roce["UCX_IB_GID_INDEX"], roce["MC_GID_INDEX"]) == ("3", "3")
    assert not {"UCX_NET_DEVICES", "MC_CUSTOM_TOPO_JSON"} & {*env_of(nodes=1), *env_of(adapters=[])}


def test_an_index_that_is_not_right_for_all_is_left_to_the_libraries_too() -> None:
    env = env_of(gid_indexes={"mlx5_0:1": 3, "mlx5_1:1": 5})
    assert not {"NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX", "MC_GID_INDEX"} & set(env)


def test_mooncake_is_told_one_port_number_only_where_there_is_one() -> None:
    assert env_of(adapters=["mlx4_0:2"])["MC_IB_PORT"] == "2"
    assert "MC_IB_PORT" not in env_of(adapters=["mlx4_0:1", "mlx4_0:2"])


def test_each_gpu_has_a_map_of_the_adapters_next_to_it() -> None:
    gpus = [
        Gpu(index=4, uuid="GPU-1", name="H100", numa_node=1, nearest_adapters=["mlx5_10"]),
        Gpu(index=5, uuid="GPU-2", name="H100", numa_node=1, nearest_adapters=["mlx5_1", "storage_0"]),
        Gpu(index=6, uuid="GPU-3", name="H100", nearest_adapters=[]),
    ]
    assert near_and_far(ADAPTERS, gpus) == {
        "cuda:0": [["mlx5_10"], ["mlx5_0", "mlx5_1"]],
        "cuda:1": [["mlx5_1"], ["mlx5_0", "mlx5_10"]],
        "cuda:2": [["mlx5_0", "mlx5_1", "mlx5_10"], []],
        "cpu:0": [["mlx5_0", "mlx5_1", "mlx5_10"], []],
        "cpu:1": [["mlx5_1", "mlx5_10"], ["mlx5_0"]],
    }
    assert near_and_far(["mlx5_0:1", "mlx5_0:2"], []) == {"cpu:0": [["mlx5_0"], []]}


def test_the_map_is_written_where_the_variable_says() -> None:
    shard = spec(nodes=2, env={"NCCL_IB_HCA": "mlx5_1"})
    node = context(shard, adapters=ADAPTERS, mgmt_interface="eno1", gpus=near(["mlx5_1"]))
    (file,) = network_files(shard, node)
    assert file.path == network_env(shard, node)[0]["MC_CUSTOM_TOPO_JSON"]
    assert json.loads(file.content) == {"cuda:0": [["mlx5_1"], []], "cpu:0": [["mlx5_1"], []]}
    assert network_files(spec(nodes=1), context(spec(nodes=1), adapters=ADAPTERS)) == []


def test_a_profile_may_narrow_ucx_and_nothing_else_of_what_moves_kv_caches() -> None:
    assert problems_of({"UCX_NET_DEVICES": "mlx5_1:1"}) == []
    env = env_of(env={"UCX_NET_DEVICES": "mlx5_1"})
    assert (env["UCX_NET_DEVICES"], env["NCCL_IB_HCA"]) == ("mlx5_1:1", "=mlx5_0:1,mlx5_1:1,mlx5_10:1")
    assert env_of(env={"NCCL_IB_HCA": "mlx5_0"})["UCX_NET_DEVICES"] == "mlx5_0:1"
    for value, words in (
        ("all", "all is not a usable adapter"),
        ("mlx5_0:1,eth0", "eth0 is not"),
        ("", "nothing"),
    ):
        assert any(words in sentence for sentence in problems_of({"UCX_NET_DEVICES": value}))
        assert problems_of({"UCX_NET_DEVICES": value}, nodes=1) == []
    assert "MC_FORCE_TCP" in problems_of({"MC_FORCE_TCP": "1"})[0]
    for name in ("UCX_IB_GID_INDEX", "MC_GID_INDEX", "MC_IB_PORT", "MC_CUSTOM_TOPO_JSON"):
        (sentence,) = refused_env({name: "3"}, REFUSED_NETWORK_ENV)
        assert name in sentence
    both = {"NCCL_IB_HCA": "mlx5_0", "UCX_NET_DEVICES": "mlx5_1", "UCX_TLS": "rc"}
    assert beside_networks(spec(nodes=2, env=both)) == {"UCX_TLS": "rc"}
    assert beside_networks(spec(nodes=1, env=both)) == both


def test_nccl_tells_which_network_it_uses_on_replicas_of_several_nodes() -> None:
    assert env_of()["NCCL_DEBUG"] == "INFO"
    assert env_of()["NCCL_DEBUG_SUBSYS"] == "INIT,NET"
    assert "NCCL_DEBUG" not in env_of(nodes=1)


def test_a_profile_may_narrow_the_adapters_and_a_name_is_never_taken_for_a_beginning() -> None:
    for value in ("mlx5_1", "=mlx5_1:1", "mlx5_1:1, mlx5_1"):
        assert problems_of({"NCCL_IB_HCA": value}) == []
        assert env_of(env={"NCCL_IB_HCA": value})["NCCL_IB_HCA"] == "=mlx5_1:1"


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"NCCL_IB_HCA": "mlx5_2"}, "mlx5_2 is not a usable adapter"),
        ({"NCCL_IB_HCA": "mlx5"}, "mlx5 is not a usable adapter"),
        ({"NCCL_IB_HCA": "^mlx5_0"}, "which excludes"),
        ({"NCCL_IB_HCA": ""}, "to nothing"),
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE"),
        ({"NCCL_NET": "Socket"}, "NCCL_NET"),
    ],
)
def test_a_profile_may_not_widen_the_adapters_or_leave_the_fabric(env: dict[str, str], words: str) -> None:
    (sentence,) = problems_of(env)
    assert words in sentence
    assert problems_of(env, nodes=1) == [], "a replica of one node uses no fabric"
