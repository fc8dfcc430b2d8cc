"""A replica of several nodes that talks over TCP is a finding; one that uses its fabric, or may, is none."""

from __future__ import annotations

from pathlib import Path

import msgspec

from llmgw.agent.fabric_proof import FabricProof, data_counters
from llmgw.agent.held import warning_findings
from llmgw.agent.logs import read_piece
from llmgw.agent.spec_store import ShardRecord
from llmgw.messages.agent import FabricOffer, Port
from llmgw.messages.findings import Finding
from llmgw.sim.engine_nccl import nccl_lines
from tests.agent.fakes import make_spec

FABRIC = [FabricOffer(name="ib-a", adapters=["mlx5_0:1", "mlx5_1:1"], usable=True)]
LOADED = 10**7


def ports(*words: int, name: str = "mlx5_") -> list[Port]:
    return [
        Port(adapter=f"{name}{index}", port=1, counters={"port_xmit_data": value, "port_rcv_data": value})
        for index, value in enumerate(words)
    ]


def record(phase: str = "ready", rank: int = 0, before: list[Port] | None = None) -> ShardRecord:
    return ShardRecord(
        spec=make_spec("r1-0", nodes=2, rank=rank, fabric="ib-a"),
        boot_id="b",
        phase=phase,  # type: ignore[arg-type]
        carried_before=data_counters(before or []),
    )


class Node:
    """A shard's output in a folder, and the proof that reads it."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "engine.log"
        self.proof = FabricProof(
            node_id="node01", read_log=lambda shard, offset: read_piece(folder, "engine", offset=offset, lines=0)
        )

    def write(self, *lines: str) -> None:
        with self.log.open("a") as out:
            out.writelines(line + "\n" for line in lines)

    def look(self, of: ShardRecord, now: list[Port] | None = None) -> list[Finding]:
        return self.proof.look([of], now or [], FABRIC)


def test_a_fallback_to_tcp_is_found_as_soon_as_nccl_says_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    assert node.look(record("starting")) == []  # nothing was written yet
    node.write("loading", *nccl_lines("socket", [], 1, 2))
    (finding,) = node.look(record("starting", rank=1))
    assert (finding.check, finding.severity, finding.where) == ("fabric-fallback", "error", "node01 r1 rank 1")
    assert "talks to its other nodes over TCP, not over ib-a" in finding.what
    assert "it found no adapter at all" in finding.what
    assert "llmgw doctor" in finding.remedy
    assert "llmgw ctl logs r1 --rank 1" in finding.remedy
    assert node.look(record("ready", rank=1)) != []  # it stays for as long as the shard lives
    assert node.proof.look([], [], FABRIC) == []


def test_infiniband_is_no_finding_whatever_the_counters_say(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(*nccl_lines("ib", ["mlx5_0:1"], 0, 2))
    assert node.look(record(before=ports(5, 5)), ports(5, 5)) == []


def test_adapters_of_another_fabric_are_found(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(*nccl_lines("ib", ["mlx5_0:1", "mlx5_4:1"], 0, 2))
    (finding,) = node.look(record(), ports(5, 5))
    assert finding.check == "fabric-other-adapters"
    assert "mlx5_4:1" in finding.what
    assert "mlx5_0" not in finding.what


def test_an_engine_that_says_nothing_is_judged_by_what_the_adapters_carried(tmp_path: Path) -> None:
    before, still, moved = ports(10**13, 7), ports(10**13 + 500, 7), ports(10**13 + LOADED, 7)
    node = Node(tmp_path)
    assert node.look(record("starting", before=before), still) == []
    (finding,) = node.look(record("ready", before=before), still)
    assert finding.check == "fabric-unused"
    assert "mlx5_0:1, mlx5_1:1" in finding.what
    assert node.look(record("ready", rank=1, before=before), still) == []  # a worker's `ready` proves no token
    assert Node(tmp_path).look(record("ready", before=before), moved) == []
    assert node.look(record("ready", before=before), moved) == []  # it used the fabric after all
    assert node.look(record("ready", before=before), still) == []


def test_counters_that_prove_nothing_are_no_finding(tmp_path: Path) -> None:
    before = ports(100, 100)
    cases = {
        "unknown before": (None, ports(100, 100)),
        "unknown now": (before, [Port(adapter="mlx5_0", port=1), Port(adapter="mlx5_1", port=1)]),
        "cleared since": (before, ports(0, 100)),
        "stuck at 32 bits": (ports(2**32 - 1, 2**32 - 1), ports(2**32 - 1, 2**32 - 1)),
        "of other adapters": (ports(1, 1, name="other_"), ports(1, 1, name="other_")),
    }
    for why, (was, now) in cases.items():
        assert Node(tmp_path).look(record("ready", before=was), now) == [], why


def test_replicas_of_one_node_need_no_fabric(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(*nccl_lines("socket", [], 0, 2))
    alone = ShardRecord(spec=make_spec(fabric="ib-a"), boot_id="b", phase="ready")
    assert node.look(alone, ports(5, 5)) == []


def test_warnings_of_a_plan_are_findings_once_for_a_profile() -> None:
    one = msgspec.structs.replace(record(), warnings=["args has --x, which contradicts ours"])
    (finding,) = warning_findings([one, one], "node01")
    assert (finding.where, finding.what) == ("node01 m/p", "args has --x, which contradicts ours")
    assert "r1" in finding.why
