"""What an agent may say: numbers that are none and words that draw on terminals end at the border."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from llmgw.fleet.events import REASON_CHARS_MAX, node_event
from llmgw.messages.agent import LOG_CHUNK_BYTES_MAX, Register, Report
from llmgw.messages.clip import FINDING_CHECKS_MAX, FINDINGS_CHARS_MAX, clip

SPEC = {
    "shard_id": "a.0",
    "replica_id": "a",
    "model": "m",
    "profile": "default",
    "profile_hash": "x",
    "served_names": ["m"],
    "engine": "sim",
}


def registration(**changes: Any) -> bytes:
    message = {
        "node_id": "node01",
        "boot_id": "boot",
        "instance": "one",
        "instance_started_at": 1.0,
        "counter": 1,
        "version": "0",
        "inventory": {},
        **changes,
    }
    return json.dumps(message).encode()


@pytest.mark.parametrize("key", ["http_port", "rendezvous_port"])
@pytest.mark.parametrize("port", [-1, 0, 65536, 10**30])
def test_a_port_that_nobody_can_dial_is_refused_before_it_becomes_a_route(key: str, port: int) -> None:
    held = {"spec": SPEC, "phase": "ready", key: port}
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps({"session": "s", "shards": [held]}), type=Report)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": "\x1b[31mred"},
        {"version": "v" * 10_000},
        {"counter": 10**30},
        {"inventory": {"fabrics": [{"name": "ib-a\nib-b"}]}},
        {"inventory": {"ports": [{"adapter": "\x1b[2J", "port": 1}]}},
        {"inventory": {"gpus": [{"index": 10**25, "uuid": "GPU-0", "name": "H100"}]}},
    ],
)
def test_names_that_draw_on_terminals_and_numbers_beyond_64_bits_are_refused(changes: dict[str, Any]) -> None:
    msgspec.json.decode(registration(), type=Register)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(registration(**changes), type=Register)


def test_history_keeps_a_sentence_of_an_agent_that_says_a_megabyte() -> None:
    assert len(node_event("node01", "gpu unusable", "r" * 1_000_000).reason) == REASON_CHARS_MAX


def test_text_without_end_is_cut_where_it_enters_and_nothing_else_is_changed() -> None:
    long = "x" * 1_000_000
    finding = {"check": "c", "severity": "error", "where": "GPU 0", "what": long, "remedy": long}
    message = msgspec.json.decode(
        registration(
            inventory={
                "gpus": [{"index": 0, "uuid": "GPU-0", "name": long, "usable": False, "reason": long}],
                "ports": [{"adapter": "mlx5_0", "port": 1, "rate_text": long}],
                "fabrics": [{"name": "ib-a", "adapters": [long] * 1000, "reason": long}],
                "engines": [{"name": "sim", "problem": long}],
                "findings": [finding],
            },
            held=[
                {
                    "spec": SPEC,
                    "phase": "failed",
                    "reason": long,
                    "output_tail": ["first", long, "last"],
                    "progress": {"what": long},
                }
            ],
        ),
        type=Register,
    )
    kept = clip(message, "node01")
    assert len(msgspec.json.encode(kept)) < 600_000
    gpu = kept.inventory.gpus[0]
    assert (len(gpu.name), gpu.name[-1], len(str(gpu.reason)), gpu.uuid) == (2000, "…", 2000, "GPU-0")
    assert len(kept.inventory.findings[0].what) == len(kept.inventory.findings[0].remedy) == 2000
    assert kept.inventory.findings[0].where == "GPU 0"
    assert len(str(kept.inventory.ports[0].rate_text)) == len(str(kept.inventory.engines[0].problem)) == 2000
    assert len(kept.inventory.fabrics[0].adapters) == 256
    held = kept.held[0]
    assert len(str(held.reason)) == 2000
    assert held.progress is not None
    assert len(held.progress.what) == 2000
    assert (held.output_tail[-1], len(held.output_tail), held.spec) == ("last", 2, message.held[0].spec)


def test_an_ordinary_message_is_taken_as_it_is() -> None:
    message = msgspec.json.decode(registration(), type=Register)
    assert clip(message, "node01") is message
    report = Report(session="s", inventory=message.inventory)
    assert clip(report, "node01") is report


def test_what_stands_deeper_is_cut_as_well_and_numbered_keys_are_no_text() -> None:
    gid = {"index": 0, "gid": "fe80::1", "type": "RoCE v2", "netdev": "e" * 5000}
    inventory = {
        "gpus": [{"index": 0, "uuid": "GPU-0", "name": "H100", "paths": {"1": "NV18", "2": "N" * 5000}}],
        "ports": [{"adapter": "mlx5_0", "port": 1, "gids": [gid]}],
    }
    message = clip(msgspec.json.decode(registration(inventory=inventory), type=Register), "node01")
    assert message.inventory.gpus[0].paths is not None
    assert message.inventory.gpus[0].paths[1] == "NV18"
    assert len(message.inventory.gpus[0].paths[2]) == 2000
    assert len(message.inventory.ports[0].gids[0].netdev or "") == 2000


def test_a_registration_of_joined_gpus_is_taken_and_only_the_text_in_it_is_cut() -> None:
    gpus = [
        {"index": 0, "uuid": "GPU-0", "name": "x", "paths": {"1": "NV18"}, "nvswitch": True},
        {"index": 1, "uuid": "GPU-1", "name": "x", "paths": {"0": "N" * 3000}},
        {"index": 2, "uuid": "GPU-2", "name": "x", "mig_devices": [{"uuid": "M" * 3000}]},
    ]
    message = msgspec.json.decode(registration(inventory={"gpus": gpus}), type=Register)
    kept = clip(message, "node01").inventory.gpus
    assert kept[0] is message.inventory.gpus[0]
    assert kept[1].paths == {0: "N" * 1999 + "…"}
    assert kept[2].mig_devices[0].uuid == "M" * 1999 + "…"


@pytest.mark.parametrize("number", [10**400, -(10**400)], ids=["large", "small"])
def test_numbers_that_nothing_can_reckon_with_are_cut_where_they_enter(number: int) -> None:
    text = registration(
        inventory={
            "gpus": [
                {
                    "index": 0,
                    "uuid": "GPU-0",
                    "name": "H100",
                    "memory_total_mib": number,
                    "power_w": 1e308,
                    "xids": {"79": number},
                }
            ],
            "ports": [
                {"adapter": "mlx5_0", "port": 1, "rate_gbps": -1e308, "counters": {"symbol_error": number}}
            ],
        },
        held=[
            {
                "spec": SPEC,
                "phase": "failed",
                "phase_age_s": 1e300,
                "exit_code": number,
                "engine_pid": number,
                "progress": {"what": "weights", "done_bytes": number, "total_bytes": number, "left_s": 1e308},
            }
        ],
    )
    kept = clip(msgspec.json.decode(text, type=Register), "node01")
    for value in numbers(msgspec.to_builtins(kept)):
        assert abs(value) < 2**64
        float(value)
    assert kept.held[0].phase_age_s <= 1e9
    assert clip(kept, "node01") is kept


def test_an_age_before_it_began_is_none() -> None:
    held = {"spec": SPEC, "phase": "ready", "phase_age_s": -1e300}
    assert clip(msgspec.json.decode(registration(held=[held]), type=Register), "node01").held[0].phase_age_s == 0


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for each in value.values() for number in numbers(each)]
    if isinstance(value, list):
        return [number for each in value for number in numbers(each)]
    return [value] if isinstance(value, (int, float)) else []


@pytest.mark.parametrize(
    "spec", [{"rank": -1}, {"rank": 10**300}, {"nodes": 0}, {"nodes": 10**18}, {"tensor_parallel": 10**30}]
)
def test_a_shard_of_more_nodes_than_there_are_is_refused(spec: dict[str, int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(registration(held=[{"spec": {**SPEC, **spec}, "phase": "ready"}]), type=Register)


@pytest.mark.parametrize(
    "answer",
    [
        {"weights": [{"request_id": "a", "listing": {"dir": "/w", "disk_bytes": 10**400}}]},
        {"logs": [{"request_id": "a", "shard_id": "a.0", "next_offset": 10**400}]},
        {"fabrics": [{"request_id": "a", "exit_code": 10**400}]},
    ],
)
def test_an_answer_with_a_number_that_nothing_can_reckon_with_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps({"session": "s", **answer}), type=Report)


def finding(check: str, severity: str = "info", what: str = "w") -> dict[str, str]:
    return {"check": check, "severity": severity, "where": "node01", "what": what}


@pytest.mark.parametrize(
    "many",
    [
        [finding(f"made-up-{number}") for number in range(256)],
        [finding("long", what=f"{number}{'x' * 1900}") for number in range(256)],
    ],
    ids=["checks", "chars"],
)
def test_one_node_s_findings_do_not_take_the_place_of_all_others(many: list[dict[str, str]]) -> None:
    inventory = {"findings": [*many[1:], finding("gpu-broken", "error")]}
    kept = clip(
        msgspec.json.decode(registration(inventory=inventory), type=Register), "node01"
    ).inventory.findings
    assert len({each.check for each in kept}) <= FINDING_CHECKS_MAX
    assert sum(len(each.what) for each in kept) <= FINDINGS_CHARS_MAX + 1000
    assert kept[0].check == "gpu-broken", "the worst are kept"
    assert (kept[-1].check, kept[-1].where) == ("findings-left-out", "node01")
    assert f"reports {256 - len(kept) + 1} findings beyond" in kept[-1].what


def test_answers_without_end_are_cut_where_they_enter() -> None:
    long = "e" * 1_000_000
    answer = {"request_id": "a", "error": long}
    report = {
        "session": "s",
        "logs": [{**answer, "shard_id": "a.0", "text": "\n" * 10_000_000}],
        "helps": [{**answer, "engine": "sim"}],
        "weights": [answer],
        "fabrics": [answer],
        "bandwidths": [answer],
    }
    kept = clip(msgspec.json.decode(json.dumps(report), type=Report), "node01")
    assert len(kept.logs[0].text) == LOG_CHUNK_BYTES_MAX
    for told in (*kept.logs, *kept.helps, *kept.weights, *kept.fabrics, *kept.bandwidths):
        assert told.error is not None
        assert len(told.error) == 2000
    assert clip(kept, "node01") is kept
