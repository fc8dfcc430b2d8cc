"""Proxmox's storages on this host: which takes the disk, and which takes cloud-init's snippet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmgw.config.sizes import size_words
from llmgw.onboarding.provision.errors import ProvisionError

PREFERRED: Final = ("local-lvm", "local-zfs")
"""What Proxmox's installer calls the storage for disks."""


@dataclass(frozen=True, slots=True)
class Storage:
    """One row of /nodes/NODE/storage. `available_bytes` is None when the storage does not say."""

    name: str
    content: frozenset[str]
    enabled: bool
    active: bool
    available_bytes: int | None

    @property
    def usable(self) -> bool:
        return self.enabled and self.active


def read_storages(rows: Sequence[Mapping[str, Any]]) -> list[Storage]:
    """The rows of /nodes/NODE/storage as `pvesh` prints them. Raises ProvisionError for others."""
    try:
        return [_storage(row) for row in rows]
    except (TypeError, ValueError) as error:
        raise ProvisionError(f"pvesh get /nodes/NODE/storage says {error}; check pveversion -v.") from None


def _storage(row: Mapping[str, Any]) -> Storage:
    return Storage(
        name=str(row.get("storage") or ""),
        content=frozenset(part.strip() for part in str(row.get("content") or "").split(",")),
        enabled=bool(int(row.get("enabled") or 0)),
        active=bool(int(row.get("active") or 0)),
        available_bytes=int(row["avail"]) if row.get("avail") is not None else None,
    )


def choose_disk_storage(storages: Sequence[Storage], wanted: str | None, disk_bytes: int) -> Storage:
    """Where the VM's disk goes. Raises ProvisionError."""
    takes = [each for each in storages if each.usable and "images" in each.content]
    names = ", ".join(sorted(each.name for each in takes)) or "none"
    if wanted is None:
        chosen = next((each for name in PREFERRED for each in takes if each.name == name), None)
        if chosen is None and len(takes) == 1:
            chosen = takes[0]
        if chosen is None:
            raise ProvisionError(f"Say which storage takes the disk with --storage; these can: {names}.")
    else:
        chosen = next((each for each in storages if each.name == wanted), None)
        if chosen is None:
            raise ProvisionError(f"--storage {wanted} does not exist on this host; these take disks: {names}.")
        if not chosen.enabled:
            raise ProvisionError(f"--storage {wanted} is disabled: pvesm set {wanted} --disable 0 enables it.")
        if not chosen.active:
            raise ProvisionError(f"--storage {wanted} is not active: pvesm status --storage {wanted} says why.")
        if "images" not in chosen.content:
            raise ProvisionError(f"--storage {wanted} takes no disks of VMs (content images); these do: {names}.")
    if chosen.available_bytes is not None and chosen.available_bytes < disk_bytes:
        raise ProvisionError(
            f"The storage {chosen.name} has {size_words(chosen.available_bytes)} left and --disk is "
            f"{size_words(disk_bytes)}; choose another --storage, or a smaller --disk."
        )
    return chosen


def choose_snippet_storage(storages: Sequence[Storage]) -> Storage:
    """Where cloud-init's vendor data goes, `local` first. Raises ProvisionError with the two ways out."""
    takes = [each for each in storages if each.usable and "snippets" in each.content]
    if takes:
        return min(takes, key=lambda each: (each.name != "local", each.name))
    local = next((each for each in storages if each.name == "local"), None)
    content = ",".join(sorted(local.content - {""} | {"snippets"})) if local else "iso,snippets,vztmpl"
    raise ProvisionError(
        "No storage of this host takes snippets, by which cloud-init is told to install python3-venv: "
        f"pvesm set local --content {content} allows it, or --no-packages goes without (for images that have it, "
        "and for nodes that get a self-contained llmgw)."
    )
