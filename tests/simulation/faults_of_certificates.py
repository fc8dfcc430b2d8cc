"""Faults of identity: certificates that end, are revoked or cannot be renewed, and nodes that claim to be others.

That certificates end needs no fault: half of the seeds have short ones.
"""

from __future__ import annotations

import asyncio

import msgspec

import llmgw
from llmgw.messages.agent import Inventory, Poll, Register, Report
from llmgw.pki.renewal import renew_after
from tests.simulation.breaking import Breaker, Kind
from tests.simulation.machine import Machine

CARE_EVERY_S = 15.0
CARE_SHARE = 0.3


class CertificateFaults(Breaker):
    """What goes wrong with who is who, and the operators who enrol again."""

    def kinds(self) -> list[Kind]:
        return [
            (2, "revocation", self._revoke),
            (2, "no renewal", self._break_renewal),
            (3, "impostor", self._pose),
        ]

    def mend(self) -> None:
        self._world.authority.renewer.broken = False
        for machine in self._world.machines.values():
            if not self._safe(machine):
                machine.enrol()

    async def care(self) -> None:
        """Operators look at who is refused now and then, and enrol again."""
        while not self._faults.over:
            await asyncio.sleep(CARE_EVERY_S)
            for machine in self._world.machines.values():
                refused = not self._world.authority.admits(machine.credential)
                if refused and not self._faults.over and self._rng.random() < CARE_SHARE:
                    machine.enrol()

    def _safe(self, machine: Machine) -> bool:
        """Whether it is admitted, and its agent does not wait for another try to renew."""
        credential, wall = machine.credential, self._world.server.wall()
        return self._world.authority.admits(credential) and wall < renew_after(credential.pem)

    def _revoke(self) -> None:
        machines = list(self._world.machines.values())
        # Rather one that has renewed: what it shows is not what it was enrolled with.
        renewed = [one for one in machines if one.credential.peer.serial != one.credential.peer.origin]
        machine = self._rng.choice(renewed or machines)
        self._fault("revocation", machine.node_id)
        self._world.authority.revoke(machine.node_id)

    def _break_renewal(self) -> None:
        self._fault("no renewal")
        self._world.authority.renewer.broken = True

        def mend() -> None:
            self._world.authority.renewer.broken = False

        self._after(60.0, 300.0, mend)

    def _pose(self) -> None:
        """A node whose own certificate is in order speaks as another, or goes on with another's session."""
        one, other = self._rng.sample(list(self._world.machines.values()), 2)
        session = other.loop.session if other.loop is not None else None
        self._fault("impostor", f"{one.name} as {other.name}")
        messages: list[tuple[str, msgspec.Struct]] = [
            (
                "/agent/v1/register",
                Register(
                    node_id=other.node_id,
                    boot_id=f"{other.name}-boot{other.boot}",
                    instance="impostor",
                    instance_started_at=self._world.now + 1e6,
                    counter=1,
                    version=llmgw.__version__,
                    inventory=Inventory(),
                ),
            )
        ]
        if session is not None:
            messages += [
                ("/agent/v1/poll", Poll(session=session, acked=0)),
                ("/agent/v1/report", Report(session=session)),
            ]
        path, message = self._rng.choice(messages)
        answer = self._world.server.deliver(one, one.credential, path, msgspec.json.encode(message))
        if answer is not None:
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())
