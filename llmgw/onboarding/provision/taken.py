"""What somebody else has already: VMIDs, names and addresses. Asked twice, the second time right before the VM "
"is made."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

from llmgw.onboarding.provision.proxmox import environment
from llmgw.onboarding.provision.vm_configs import VmConfig, addresses_of
from llmgw.onboarding.provision.wanted import Wanted

PING_WAIT_S = 1


def taken(
    wanted: Wanted, resources: Iterable[Mapping[str, Any]], guests: Iterable[VmConfig], hosts: Iterable[str]
) -> list[str]:
    """What of a wanted VM is taken, as sentences.

    `resources` are the rows of /cluster/resources, `guests` the files of all guests, running or not, and `hosts`
    the names of the cluster's hosts.
    """
    wrong: list[str] = []
    guests = list(guests)
    holders = {guest.vmid: str(guest) for guest in guests}
    names: dict[str, str] = {host.lower(): f"the Proxmox host {host}" for host in hosts}
    names |= {guest.name.lower(): str(guest) for guest in guests}
    for row in resources:
        vmid, name, node = row.get("vmid"), str(row.get("name") or ""), str(row.get("node") or "another host")
        if isinstance(vmid, int):
            holders.setdefault(vmid, f"{name or 'a guest without a name'} on {node}")
            names.setdefault(name.lower(), f"{vmid} on {node}")
    if wanted.vmid in holders:
        wrong.append(
            f"--vmid {wanted.vmid} exists: {holders[wanted.vmid]}. It is never touched; pvesh get "
            "/cluster/nextid names a free one."
        )
    if wanted.name in names:
        wrong.append(
            f"--name {wanted.name} is taken by {names[wanted.name]}; node ids are unique, choose another."
        )
    wrong += [
        f"--ip {wanted.ip}: the address belongs to {guest}; choose another."
        for guest in guests
        if wanted.ip.ip in addresses_of(guest)
    ]
    return wrong


def answers(wanted: Wanted, environ: Mapping[str, str]) -> list[str]:
    """A sentence when something answers at the wanted address: to ping, or at the ssh port."""
    address = str(wanted.ip.ip)
    if _pings(address, environ):
        return [f"--ip {wanted.ip}: something answers to ping there already; choose another address."]
    try:
        with socket.create_connection((address, wanted.ssh_port), timeout=PING_WAIT_S):
            return [
                f"--ip {wanted.ip}: something listens at port {wanted.ssh_port} there already; choose another."
            ]
    except OSError:
        return []


def _pings(address: str, environ: Mapping[str, str]) -> bool:
    try:
        return (
            subprocess.run(
                ["ping", "-n", "-c", "1", "-W", str(PING_WAIT_S), address],
                env=environment(environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PING_WAIT_S + 4,
                start_new_session=True,
                check=False,
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False  # no ping here: the ssh port is asked next
