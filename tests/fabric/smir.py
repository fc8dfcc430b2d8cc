"""What `saquery SMIR` prints, made from a list of managers; and a second fabric of a generated map."""

from __future__ import annotations

MASTER, STANDBY = 3, 2


def smir(*managers: tuple[int, int, int, int]) -> str:
    """(GUID, LID, priority, state) of each, as infiniband-diags 44 prints it."""
    return "".join(
        f"SMInfoRecord dump:\n\t\tRID\n\t\tLID...................{lid}\n\t\tSMInfo dump:\n"
        f"\t\tGUID..................0x{guid:016x}\n\t\tSM_Key................0x0000000000000000\n"
        f"\t\tActCount..............442\n\t\tPriority..............{priority}\n\t\tSMState...............{state}\n"
        for guid, lid, priority, state in managers
    )


def elsewhere(text: str) -> str:
    """The same map with other GUIDs: of another fabric."""
    return text.replace("b8cef60300", "b8cef60399").replace("c42a10300", "c42a10399")


def elsewhere_guid(guid: int) -> int:
    """A GUID of a map as `elsewhere` has it."""
    return int(elsewhere(f"{guid:016x}"), 16)
