"""Every check of the host, before anything is changed. All that is wrong is told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from llmgw.onboarding.provision import images
from llmgw.onboarding.provision.cloud_init import snippet_name
from llmgw.onboarding.provision.errors import ProvisionError, refuse
from llmgw.onboarding.provision.host import Host
from llmgw.onboarding.provision.keys import Keys, gather
from llmgw.onboarding.provision.pci import PciBus, judge
from llmgw.onboarding.provision.proxmox import Proxmox
from llmgw.onboarding.provision.room import judge_room
from llmgw.onboarding.provision.storages import (
    Storage,
    choose_disk_storage,
    choose_snippet_storage,
    read_storages,
)
from llmgw.onboarding.provision.taken import answers, taken
from llmgw.onboarding.provision.wanted import Address, Wanted

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What the checks found, when nothing stands against the VM. `notes` are worth telling the operator."""

    node: str
    storage: str
    gateway: Address | None
    snippet: tuple[str, Path] | None
    keys: Keys
    source: images.Source
    notes: tuple[str, ...]


def check(wanted: Wanted, root: Path, own_home: Path, environ: Mapping[str, str], proxmox: Proxmox) -> Checked:
    """Ask this host everything. Changes nothing. Raises ProvisionError with all that is wrong."""
    host = Host(root)
    node = host.node_name()
    proxmox.release()
    wrong: list[str] = []
    storages = read_storages(proxmox.rows(f"/nodes/{node}/storage"))

    storage = _told(wrong, lambda: choose_disk_storage(storages, wanted.storage, wanted.disk_bytes))
    snippet = _told(wrong, lambda: _snippet(proxmox, storages)) if wanted.packages else None
    keys = _told(wrong, lambda: gather(root, wanted.ssh_user, own_home, wanted.ssh_keys))
    source = _told(wrong, lambda: images.find(wanted, root))
    wrong += _bridge(wanted, host, proxmox, node)
    gateway, no_gateway = _gateway(wanted, host)
    wrong += no_gateway
    wrong += judge_room(wanted, host)
    against, notes = whats_taken(wanted, root, proxmox)
    wrong += against
    wrong += answers(wanted, environ)
    if wanted.vmid not in {guest.vmid for guest in host.guests()}:
        takes = [each.name for each in storages if each.usable and "images" in each.content]
        wrong += left_over(wanted, takes, proxmox)
    refuse(wrong)
    assert storage is not None  # else a sentence was told; the same for the others
    assert keys is not None
    assert source is not None
    if gateway is None and wanted.packages:
        notes.append("without a gateway the node can install python3-venv only if its network has a mirror")
    return Checked(
        node=node,
        storage=storage.name,
        gateway=gateway,
        snippet=snippet,
        keys=keys,
        source=source,
        notes=(*keys.notes, *notes, *([source.note] if source.note else [])),
    )


def whats_taken(wanted: Wanted, root: Path, proxmox: Proxmox) -> tuple[list[str], list[str]]:
    """(what others have of what is wanted, what is worth telling): VMID, name, address, devices."""
    host = Host(root)
    node = host.node_name()
    guests = host.guests()
    hosts = sorted(path.name for path in (host.pve / "nodes").glob("*"))
    wrong = taken(wanted, proxmox.rows("/cluster/resources", "--type", "vm"), guests, hosts)
    if wanted.vmid not in {guest.vmid for guest in guests}:
        wrong += [
            f"--vmid {wanted.vmid}: {what} of the cluster still has a guest of that number, and would take the "
            f"new VM for it; choose another VMID, or {command}."
            for what, command in host.waiting_for(wanted.vmid)
        ]
    against, notes = judge(PciBus(root), wanted.pci, guests, node, host.mappings(node))
    return wrong + against, notes


def _told(wrong: list[str], find: Callable[[], _T]) -> _T | None:
    try:
        return find()
    except ProvisionError as error:
        wrong.append(str(error))
        return None


def _snippet(proxmox: Proxmox, storages: list[Storage]) -> tuple[str, Path]:
    volume = f"{choose_snippet_storage(storages).name}:snippets/{snippet_name()}"
    return volume, Path(proxmox.volume_path(volume))


def _bridge(wanted: Wanted, host: Host, proxmox: Proxmox, node: str) -> list[str]:
    """Linux bridges show in sysfs; Open vSwitch's only in Proxmox's own list."""
    known = host.bridges()
    if wanted.bridge not in known:
        rows = proxmox.rows(f"/nodes/{node}/network", "--type", "any_bridge")
        known |= {str(row["iface"]) for row in rows if row.get("iface") and row.get("active")}
    if wanted.bridge in known:
        return []
    return [
        f"--bridge {wanted.bridge}: this host has no such bridge, or it is down; it has "
        f"{', '.join(sorted(known)) or 'none'}."
    ]


def _gateway(wanted: Wanted, host: Host) -> tuple[Address | None, list[str]]:
    if wanted.gateway == "none":
        return None, []
    if wanted.gateway is not None:
        return wanted.gateway, []
    found = host.route_gateway(wanted.ip)
    if found is not None:
        return found, []
    return None, [
        f"--gateway is needed: this host's own gateway is not in {wanted.ip.network}; give the router's address, "
        "or none."
    ]


def left_over(wanted: Wanted, storages: Iterable[str], proxmox: Proxmox) -> list[str]:
    """Volumes that bear a free VMID are somebody's all the same, and undoing would take them along."""
    found = [volume for storage in storages for volume in proxmox.volumes(storage, wanted.vmid)]
    if not found:
        return []
    return [
        f"--vmid {wanted.vmid}: disks of that number are left over ({', '.join(found[:4])}); choose another "
        f"VMID, or remove them with pvesm free {found[0]}."
    ]
