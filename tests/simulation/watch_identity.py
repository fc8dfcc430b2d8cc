"""Invariant 5: who talks is who the connection proved, is not revoked, and has a certificate that holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgw.pki.renewal import renew_after
from tests.simulation.certificates import Credential
from tests.simulation.watch import Watch

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

RENEWED_WITHIN_S = 100.0


class IdentityWatch(Watch):
    """Looks on when the server takes what somebody says, and when a certificate was renewed."""

    def admitted(self, what: str, node_id: str, machine: Machine, credential: Credential) -> None:
        """The server has taken `what` as that of `node_id`."""
        authority, wall_s = self._world.authority, self._world.server.wall()
        peer = credential.peer
        self.expect(
            peer.node_id == node_id,
            "5 identity",
            f"{what} of {node_id} was taken from {machine.name} ({peer.node_id})",
        )
        self.expect(
            peer.origin not in authority.revoked,
            "5 revocation",
            f"{what} of {machine.name} was taken, whose enrolment was revoked",
        )
        self.expect(
            wall_s < peer.not_after,
            "5 expiry",
            f"{what} of {machine.name} was taken {wall_s - peer.not_after:.1f} s after its certificate had ended",
        )

    def renewed(self, machine: Machine, before: Credential, after: Credential) -> None:
        """A renewed certificate is for the very name, address and enrolment that the connection proved."""
        old, new = before.peer, after.peer
        self.expect(
            (new.node_id, new.address, new.origin) == (old.node_id, old.address, old.origin),
            "5 renewal",
            f"{machine.name} renewed {old} to {new}",
        )
        self.expect(
            after.peer.not_after > self._world.server.wall(), "5 renewal", f"{machine.name} got an ended one"
        )

    def _look_at_renewals(self) -> None:
        """When nothing is in its way, an agent has renewed its certificate soon after half of its life."""
        faults = self._world.faults
        if faults is None or not faults.over:
            return
        for machine in self._world.machines.values():
            late_s = machine.wall() - max(
                renew_after(machine.credential.pem), machine.wall_offset_s + faults.over_since
            )
            self.expect(
                late_s < RENEWED_WITHIN_S,
                "5 renewal",
                f"{machine.name} has not renewed its certificate {late_s:.0f} s after half of its life",
            )
