"""Whether a shard can run on this node, in sentences, and how: its GPUs, its ports, its plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from llmgw.agent.ports import NoFreePort, PortsWanted, choose_ports
from llmgw.agent.spec_store import ShardRecord
from llmgw.agent.weights.keeper import Weights
from llmgw.config.agent import AgentConfig
from llmgw.config.random_words import new_secret_word
from llmgw.engines.base import EngineAdapter, LaunchContext, LaunchPlan
from llmgw.engines.offers import program_problem
from llmgw.hardware.engine_user import Account
from llmgw.hardware.gids import choose_gid
from llmgw.messages.agent import Gpu, Inventory, Port, ShardSpec


class Refused(Exception):
    """A shard that cannot run here; the message is the reason, a sentence."""


class InventorySource(Protocol):
    """The node's inventory: the newest one, or one read anew."""

    async def latest(self) -> Inventory: ...

    async def fresh(self) -> Inventory: ...


class Admission:
    """Checks and plans for one node. `adapter` raises ValueError with a sentence for an unknown engine;
    `may_be_freed` is True of a GPU that is only held by others: a start waits for it and is not refused."""

    def __init__(
        self,
        *,
        config: AgentConfig,
        address: str,
        adapter: Callable[[str], EngineAdapter],
        inventory: InventorySource,
        may_be_freed: Callable[[str], bool],
        weights: Weights,
        mgmt_interface: str | None,
        base_env: dict[str, str],
        account: Account | None = None,
        refusal: str | None = None,
    ) -> None:
        """`refusal` is a sentence that says why nothing may be started on this node."""
        self._config = config
        self._address = address
        self._adapter = adapter
        self._inventory = inventory
        self._may_be_freed = may_be_freed
        self._weights = weights
        self._mgmt_interface = mgmt_interface
        self._base_env = base_env
        self._account = account
        self._refusal = refusal

    async def equip(
        self, record: ShardRecord, live: Sequence[ShardRecord], ended: Sequence[ShardRecord]
    ) -> ShardRecord:
        """The record with what its shard keeps for life: ports, and a key where the engine takes one.

        A leader serves at one port and meets its workers at another; what its engine wants beside those, it wants
        on every rank. Raises Refused.
        """
        spec = record.spec
        adapter = self._offered(spec)
        leads = spec.rank == 0
        try:
            chosen = await asyncio.to_thread(
                choose_ports,
                PortsWanted(
                    http=leads, rendezvous=leads and spec.nodes > 1, extra=adapter.extra_ports(spec, self._config)
                ),
                self._config.supervisor.ports,
                self._address,
                held=_ports(live),
                recent=_ports(ended),
            )
        except NoFreePort as exc:
            raise Refused(str(exc)) from None
        except OSError as exc:
            raise Refused(
                f"no port can be bound on {self._address}: {exc.strerror}; set mgmt_addr in agent.yaml to an "
                "address of this node"
            ) from None
        return msgspec.structs.replace(
            record,
            http_port=chosen.http,
            rendezvous_port=chosen.rendezvous,
            extra_ports=chosen.extra,
            api_key=new_secret_word() if leads and adapter.takes_key else None,
        )

    async def plan(self, record: ShardRecord, live: Sequence[ShardRecord], run: Path) -> LaunchPlan:
        """How the shard is launched in the folder `run`.

        Raises Refused with the first reason (the adapter's: all of them).
        """
        spec = record.spec
        adapter = self._offered(spec)
        problem = await self._weights.problem(spec)
        if problem is not None:
            raise Refused(problem)
        gpus = await self._gpus(spec, live)
        if spec.rank > 0 and spec.rendezvous is None:
            raise Refused(
                f"rank {spec.rank} of {spec.nodes} was sent without its leader's address; restart the replica"
            )
        leader = spec.rendezvous
        leads_many = spec.rank == 0 and spec.nodes > 1
        adapters = await self._adapters(spec)
        context = LaunchContext(
            config=self._config,
            address=self._address,
            gpus=gpus,
            work_dir=str(run),
            adapters=adapters,
            gid_indexes=_gid_indexes((await self._inventory.latest()).ports, adapters),
            mgmt_interface=self._mgmt_interface,
            http_port=record.http_port,
            rendezvous_host=leader.host if leader else self._address if leads_many else None,
            rendezvous_port=leader.port if leader else record.rendezvous_port,
            extra_ports=record.extra_ports,
            api_key=record.api_key,
            model_path=self._weights.model_path(spec),
            base_env=self._base_env | ({"HOME": self._account.home_or(run)} if self._account else {}),
        )
        problems = adapter.problems(spec, context)
        if problems:
            raise Refused("; ".join(problems))
        try:
            return adapter.plan(spec, context)
        except ValueError as exc:
            raise Refused(str(exc)) from None

    def _offered(self, spec: ShardSpec) -> EngineAdapter:
        if self._refusal is not None:
            raise Refused(self._refusal)
        try:
            adapter = self._adapter(spec.engine)
        except ValueError as exc:
            raise Refused(str(exc)) from None
        if not adapter.offered(self._config):
            raise Refused(
                f"this node is not configured to run {spec.engine}; set engines.{spec.engine} in its agent.yaml"
            )
        problem = program_problem(adapter, self._config)
        if problem is not None:
            raise Refused(problem)
        return adapter

    async def _gpus(self, spec: ShardSpec, live: Sequence[ShardRecord]) -> list[Gpu]:
        """The spec's GPUs, in its order."""
        if len(set(spec.gpus)) != len(spec.gpus):
            raise Refused(f"a GPU is named twice: {', '.join(spec.gpus)}")
        for other in live:
            if other.spec.shard_id != spec.shard_id:
                for uuid in spec.gpus:
                    if uuid in other.spec.gpus:
                        raise Refused(f"GPU {uuid} is held by shard {other.spec.shard_id} ({other.phase})")
        if not spec.gpus:
            return []
        known = {gpu.uuid: gpu for gpu in (await self._inventory.latest()).gpus}
        if not all(uuid in known and known[uuid].usable for uuid in spec.gpus):
            known = {gpu.uuid: gpu for gpu in (await self._inventory.fresh()).gpus}
        for uuid in spec.gpus:
            if uuid not in known:
                raise Refused(f"GPU {uuid} is not on this node, which has {', '.join(known) or 'none'}")
            if not known[uuid].usable and not self._may_be_freed(uuid):
                raise Refused(f"GPU {uuid} cannot be used: {known[uuid].reason or 'its driver does not say why'}")
        return [msgspec.structs.replace(known[uuid], usable=True, reason=None) for uuid in spec.gpus]

    async def _adapters(self, spec: ShardSpec) -> list[str]:
        """Usable adapters of the shard's fabric; a replica of several nodes needs them."""
        if spec.fabric is None:
            return []
        fabrics = {offer.name: offer for offer in (await self._inventory.latest()).fabrics}
        offer = fabrics.get(spec.fabric)
        if spec.nodes > 1:
            if offer is None:
                has = ", ".join(fabrics) or "none"
                raise Refused(f"fabric {spec.fabric} is not declared on this node, which has {has}")
            if not offer.usable:
                raise Refused(offer.reason or f"fabric {spec.fabric} is not usable on this node")
        return list(offer.adapters) if offer else []


def _ports(records: Sequence[ShardRecord]) -> set[int]:
    return {port for record in records for port in record.ports}


def _gid_indexes(ports: Sequence[Port], adapters: Sequence[str]) -> dict[str, int | None]:
    """For each RoCE port among the adapters whose GID table is known: the entry to use, None where none will."""
    indexes: dict[str, int | None] = {}
    for port in ports:
        name = f"{port.adapter}:{port.port}"
        if name in adapters and port.link_layer == "Ethernet" and port.gids:
            chosen = choose_gid(port.gids)
            indexes[name] = chosen.index if chosen is not None else None
    return indexes
