"""Subnet managers as `saquery SMIR` lists them, or `sminfo` names the master. Unknown is never "none"."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from llmgw.fabric.records import guid_text, parse_guid, printable

Answer = Literal["ok", "unknown", "none"]
Form = Literal["smir", "sminfo", "ports", "failure", "nothing"]

NO_STANDBY = "no standby"

# SMInfo:SMState, InfiniBand spec 1, 14.2.5.13.
_STATES = {0: "not active", 1: "discovering", 2: "standby", 3: "master"}
_FIELD = re.compile(r"\s*([A-Za-z_]+)\.{2,}(\S+)\s*\Z")
# sminfo: sm lid 2 sm guid 0x2c90200259201, activity count 6881 priority 0 state 3 SMINFO_MASTER
_SMINFO = re.compile(
    r"sm lid (\d+) sm guid (0x[0-9a-fA-F]+), activity count \d+ priority (\d+)(?: state (\d+))?", re.IGNORECASE
)
_NONE = re.compile(r"No SM/SA found|dport \(DR path slid 0; dlid 0; 0\)|\bsm_?lid\D{0,3}0\b", re.IGNORECASE)
_FORBIDDEN = re.compile(
    r"Permission denied|can't open UMAD port|umad_open|Operation not permitted", re.IGNORECASE
)
_MISSING = re.compile(r"command not found|unrecognized option|No such file or directory: 'sa", re.IGNORECASE)
_FAILED = re.compile(r"\b(?:ibwarn|iberror|ibpanic)\b|Query SA failed|timed out|_do_madrpc failed|\brc=\d", re.I)


class Manager(msgspec.Struct, frozen=True):
    """One subnet manager. `guid` is that of the PORT it runs on, `0x` and 16 digits."""

    guid: str | None
    lid: int | None
    priority: int | None


class Managers(msgspec.Struct):
    """`answer`: ok, somebody answered; none, this port has no manager; unknown, nothing answered just now.

    After a master's death nothing answers for most of a minute, though a standby takes over: unknown, which says
    nothing about what is there. `form` is what was read: only saquery SMIR lists the standbys.
    """

    master: Manager | None
    standbys: list[Manager]
    problems: list[str]
    answer: Answer
    form: Form

    @property
    def guids(self) -> frozenset[int]:
        """The port GUIDs of all of them: what tells one physical fabric from another."""
        listed = [*self.standbys, *([self.master] if self.master else [])]
        return frozenset(guid for one in listed if one.guid and (guid := parse_guid(one.guid)) is not None)


def read_managers(text: str) -> Managers:
    """What a saved answer says, its standard error included. Never raises."""
    found = _sm_records(text)
    if found:
        return _listed(found)
    told = _SMINFO.search(text)
    if told:
        master = Manager(guid_text(parse_guid(told[2])), int(told[1]), int(told[3]))
        state = int(told[4]) if told[4] else 3
        problems = (
            [] if state == 3 else [f"the manager that answered is {_STATES.get(state, 'in no known state')}"]
        )
        return Managers(master if state == 3 else None, [], problems, "ok", "sminfo")
    ports = _sm_ports(text)
    if ports:
        return _ports_listed(ports)
    return _failure(text)


def _sm_records(text: str) -> list[dict[str, str]]:
    """The fields of each SMInfoRecord. A record that was cut keeps what it has."""
    records: list[dict[str, str]] = []
    inside = False
    for line in text.splitlines():
        if "dump:" in line and "SMInfo dump" not in line:
            inside = "SMInfoRecord dump" in line
            if inside:
                records.append({})
        elif inside and (field := _FIELD.match(line)):
            records[-1].setdefault(field[1].lower(), field[2])
    return [record for record in records if record]


def _listed(records: list[dict[str, str]]) -> Managers:
    seen: dict[str, tuple[Manager, int | None]] = {}
    unread = 0
    for record in records:
        guid = guid_text(parse_guid(record.get("guid", "")))
        state = _number(record.get("smstate"))
        if guid is None or state is None:
            unread += 1
            continue
        seen[guid] = (Manager(guid, _number(record.get("lid")), _number(record.get("priority"))), state)
    masters = [manager for manager, state in seen.values() if state == 3]
    standbys = [manager for manager, state in seen.values() if state == 2]
    # The higher priority is master, and of equal ones the lowest GUID (InfiniBand spec 1, 14.4.1).
    masters.sort(key=lambda manager: (-(manager.priority or 0), manager.guid or ""))
    standbys.sort(key=lambda manager: (-(manager.priority or 0), manager.guid or ""))
    problems = []
    if not masters:
        problems.append("no master among the managers: one is being chosen")
    if len(masters) > 1:
        problems.append(f"{len(masters)} masters: " + ", ".join(manager.guid or "" for manager in masters))
    if masters and not standbys:
        problems.append(NO_STANDBY)
    for manager, state in seen.values():
        if state not in (2, 3):
            problems.append(f"the manager {manager.guid} is {_STATES.get(state or 0, 'in no known state')}")
    if unread:
        problems.append(f"{unread} records could not be read: the text was cut")
    return Managers(masters[0] if masters else None, standbys, problems, "ok", "smir")


def _sm_ports(text: str) -> list[tuple[int, int | None]]:
    """(LID, the master's LID) of the ports that `saquery -s` lists: it tells no GUID and no priority."""
    section = text.partition("IsSM ports")[2].partition("IsSMdisabled")[0]
    found: list[tuple[int, int | None]] = []
    for part in section.split("PortInfoRecord dump:")[1:]:
        fields = {field[1].lower(): field[2] for line in part.splitlines() if (field := _FIELD.match(line))}
        lid = _number(fields.get("base_lid", fields.get("endportlid")))
        if lid is not None:
            found.append((lid, _number(fields.get("master_sm_base_lid"))))
    return found


def _ports_listed(ports: list[tuple[int, int | None]]) -> Managers:
    masters = {master for _, master in ports if master}
    lids = [lid for lid, _ in ports]
    problems = ["this lists ports (saquery -s), which have no GUID and no priority; save saquery SMIR instead"]
    if len(masters) > 1:
        problems.append("the ports disagree about the master: LIDs " + ", ".join(map(str, sorted(masters))))
    master = min(masters, default=None)
    standbys = [Manager(None, lid, None) for lid in sorted(lids) if lid != master]
    if master is not None and not standbys:
        problems.append(NO_STANDBY)
    return Managers(Manager(None, master, None) if master else None, standbys, problems, "ok", "ports")


def _failure(text: str) -> Managers:
    said = printable(next((line.strip() for line in text.splitlines() if line.strip()), ""), 200)
    if not said:
        sentence = "there is nothing to read; save the output of saquery SMIR, and its standard error"
        return Managers(None, [], [sentence], "unknown", "nothing")
    if _FORBIDDEN.search(text):
        sentence = f"saquery may not use /dev/infiniband/umad*: run it as root ({said})"
    elif _MISSING.search(text):
        sentence = f"saquery did not run ({said}); install infiniband-diags, and ask saquery SMIR"
    elif _NONE.search(text):
        sentence = "no subnet manager on this port; start one (systemctl start opensm), or look at the one it has"
        return Managers(None, [], [sentence], "none", "failure")
    elif _FAILED.search(text):
        sentence = (
            f"nothing answered just now ({said}), as for most of a minute after a master's death; ask again, and "
            "keep what was known"
        )
    else:
        sentence = f"this is no output of saquery SMIR or sminfo: {said}"
        return Managers(None, [], [sentence], "unknown", "nothing")
    return Managers(None, [], [sentence], "unknown", "failure")


def _number(text: str | None) -> int | None:
    try:
        return int(text or "", 0)
    except ValueError:
        return None
