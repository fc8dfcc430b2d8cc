"""Whether a replica of several nodes really talks over its fabric: by what NCCL says, and by what adapters carry.

Engines fall back to TCP without a word, and serve: slowly. Both witnesses are read at every heartbeat, for as
long as there is no verdict; what they say is a finding on the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from llmgw.agent.logs import LogError, LogPiece
from llmgw.agent.spec_store import ShardRecord
from llmgw.engines.nccl_log import NcclReader
from llmgw.messages.agent import FabricOffer, Port
from llmgw.messages.findings import Finding

# Output is read from its beginning, so many bytes a heartbeat, until NCCL has spoken or this much was read.
PIECES_PER_LOOK = 16
READ_BYTES_MAX = 64 * 1024 * 1024
# 1 MiB, in the counters' units of 4 bytes (sysfs-class-infiniband: port_xmit_data). Engines try a long batch
# while they load, which moves tens of MiB a layer or a stage; what reads an idle port's counters moves less.
MOVED_WORDS_MIN = 2**18
_COUNTERS = ("port_xmit_data", "port_rcv_data")
# Older adapters count in 32 bits and stop there.
_STUCK = 2**32 - 1
_WHY = "Tokens wait for TCP between the nodes instead of the fabric: a replica may serve at a tenth of its speed"

ReadLog = Callable[[str, int], LogPiece]
"""(shard id, offset) → the next piece of its engine's output. Raises LogError."""


@dataclass
class _Watched:
    reader: NcclReader = field(default_factory=NcclReader)
    offset: int = 0
    read_bytes: int = 0
    carried: bool = False
    """The counters of the fabric's ports have moved since the start, or cannot be relied on."""


class FabricProof:
    """The verdicts of one node. `look` blocks for reads of output, and runs in one thread at a time."""

    def __init__(self, *, node_id: str, read_log: ReadLog) -> None:
        self._node_id = node_id
        self._read_log = read_log
        self._watched: dict[str, _Watched] = {}

    def look(
        self, records: Sequence[ShardRecord], ports: Sequence[Port], fabrics: Iterable[FabricOffer]
    ) -> list[Finding]:
        """Findings about live shards of replicas of several nodes, by output and the ports as just read."""
        adapters = {offer.name: offer.adapters for offer in fabrics}
        wanted = {
            record.spec.shard_id: record
            for record in records
            if record.spec.nodes > 1 and record.spec.fabric is not None and record.phase != "stopping"
        }
        self._watched = {shard_id: self._watched.get(shard_id) or _Watched() for shard_id in wanted}
        findings: list[Finding] = []
        for shard_id, record in wanted.items():
            watched = self._watched[shard_id]
            names = adapters.get(record.spec.fabric or "", [])
            self._read(shard_id, watched)
            self._count(record, watched, names, ports)
            finding = self._judge(record, watched, names)
            if finding is not None:
                findings.append(finding)
        return findings

    def _read(self, shard_id: str, watched: _Watched) -> None:
        for _ in range(PIECES_PER_LOOK):
            if watched.read_bytes >= READ_BYTES_MAX:
                return
            try:
                piece = self._read_log(shard_id, watched.offset)
            except LogError:
                return  # nothing was written yet
            if not piece.text:
                return
            watched.reader.read(piece.text)
            watched.read_bytes += piece.next_offset - piece.offset
            watched.offset = piece.next_offset

    def _count(self, record: ShardRecord, watched: _Watched, names: Sequence[str], ports: Sequence[Port]) -> None:
        if watched.carried:
            return
        now = data_counters(ports)
        before = {name: was for name, was in record.carried_before.items() if name.partition(" ")[0] in names}
        # A counter that is gone, was cleared or is stuck says nothing, and the others may say too little then.
        told = before and all(name in now and was <= now[name] != _STUCK for name, was in before.items())
        watched.carried = not told or sum(now[name] - was for name, was in before.items()) >= MOVED_WORDS_MIN

    def _judge(self, record: ShardRecord, watched: _Watched, names: Sequence[str]) -> Finding | None:
        spec = record.spec
        facts = watched.reader.facts
        where = f"{self._node_id} {spec.replica_id} rank {spec.rank}"
        if facts.fell_back:
            cause = "; it found no adapter at all" if facts.no_adapter and not facts.adapters else ""
            return Finding(
                check="fabric-fallback",
                severity="error",
                where=where,
                what=f"{spec.replica_id} talks to its other nodes over TCP, not over {spec.fabric}: "
                f"NCCL says {facts.line!r}{cause}",
                why=_WHY,
                remedy=f"run `llmgw doctor` on {self._node_id} (/dev/infiniband, memlock, RDMA libraries), read "
                f"the lines with NET/ in `llmgw ctl logs {spec.replica_id} --rank {spec.rank} -n 2000`, then "
                f"`llmgw ctl restart {spec.replica_id}`",
            )
        foreign = _foreign(facts.adapters, names)
        if foreign and "IB" in facts.channels | facts.networks:
            return Finding(
                check="fabric-other-adapters",
                severity="warning",
                where=where,
                what=f"{spec.replica_id} was placed on {spec.fabric} and NCCL may also use {', '.join(foreign)}",
                why="Adapters that are cabled to another fabric do not reach the other nodes, or disturb others",
                remedy="take NCCL_IB_HCA out of the profile's env, and see whether fabrics in agent.yaml is true",
            )
        # Only a leader's `ready` means that a token was made by all nodes together.
        if record.phase == "ready" and spec.rank == 0 and not watched.carried and "IB" not in facts.channels:
            return Finding(
                check="fabric-unused",
                severity="warning",
                where=where,
                what=f"{spec.replica_id} has loaded and answered, and the adapters of {spec.fabric} "
                f"({', '.join(names)}) have carried next to nothing",
                why=_WHY,
                remedy=f"read the lines with NET/ in `llmgw ctl logs {spec.replica_id} -n 2000`: "
                "NET/Socket is TCP; run `llmgw doctor` on its nodes",
            )
        return None


def data_counters(ports: Iterable[Port]) -> dict[str, int]:
    """What each port has carried: its counters by `mlx5_0:1 port_xmit_data`, where it has them."""
    return {
        f"{port.adapter}:{port.port} {counter}": value
        for port in ports
        for counter in _COUNTERS
        if (value := port.counters.get(counter)) is not None
    }


def _foreign(used: Sequence[str], names: Sequence[str]) -> list[str]:
    own = {name.partition(":")[0] for name in names}
    # Bonded adapters are said in one word (mlx5_0+mlx5_1): not told apart here.
    return [name for name in used if own and name.partition(":")[0] not in own and "+" not in name]
