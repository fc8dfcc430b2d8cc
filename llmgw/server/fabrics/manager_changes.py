"""What is new in an answer about a fabric's managers, as changes that history keeps. Pure."""

from __future__ import annotations

from llmgw.fabric.managers import Manager, Managers
from llmgw.fabric.records import guid_text
from llmgw.server.fabrics.known import KnownFabric
from llmgw.server.store.fabric_records import FabricChange

MASTER_CHANGED = "master changed"


def manager_changes(fabric: KnownFabric, said: Managers, now: float) -> list[FabricChange]:
    """What an answer that names a master changes; `fabric` still holds the last one."""
    last = fabric.managers
    found = []
    if fabric.silent_since is not None:
        found.append(manager_change(fabric, now, "managers back", "its managers answer again"))
    if last is None:
        return found
    if last.master is not None and said.master is not None and last.master.guid != said.master.guid:
        what = f"the master changed: it is {manager_label(said.master)}, and was {manager_label(last.master)}"
        found.append(manager_change(fabric, now, MASTER_CHANGED, what, last.master.guid, said.master.guid))
    gone, new = sorted(last.guids - said.guids), sorted(said.guids - last.guids)
    told = [("manager gone", f"the manager {guid_text(guid)} is gone") for guid in gone]
    told += [("manager new", f"the manager {guid_text(guid)} is new") for guid in new]
    return [*found, *(manager_change(fabric, now, kind, what) for kind, what in told)]


def manager_change(
    fabric: KnownFabric, now: float, kind: str, what: str, before: str | None = None, after: str | None = None
) -> FabricChange:
    """One change of a fabric's managers."""
    return FabricChange(
        at=now,
        area="managers",
        kind=kind,
        what=what,
        fabric=fabric.id,
        name=fabric.names[0] if fabric.names else None,
        before=before,
        after=after,
    )


def manager_label(manager: Manager) -> str:
    """`0x0c42a10300000401 (priority 14)`."""
    priority = "" if manager.priority is None else f" (priority {manager.priority})"
    return f"{manager.guid}{priority}"
