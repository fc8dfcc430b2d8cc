"""What a node says of itself before anything is changed: `probe.sh`, read."""

from __future__ import annotations

import base64
import binascii
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from llmgw.onboarding.errors import OnboardError
from llmgw.onboarding.scripts import script
from llmgw.onboarding.ssh import Ssh
from llmgw.onboarding.ssh_words import printable

_TAG = re.compile(r"cp3[0-9]{1,3}")
_COUNT = re.compile(r"-?[0-9]{1,18}")
_WORDS_CHARS_MAX = 200
"""Names of machines, systems and versions are shown, and a node may say anything."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python of the node: its tag (`cp311`), and whether it can make virtual environments."""

    tag: str
    makes_environments: bool
    path: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node. Sizes are in KiB; `clock_ahead_s` is how far its clock is before ours, within the time that the
    question took."""

    hostname: str
    system: str
    machine: str
    distribution: str
    has_systemd: bool
    clock_ahead_s: float
    libc: str = ""
    interpreters: tuple[Interpreter, ...] = ()
    addresses: dict[str, list[str]] = field(default_factory=dict)
    """Interface → its addresses; the interface is `-` where the node has no `ip`."""
    free_kb: dict[str, int] = field(default_factory=dict)
    """/opt, /run and /var/tmp → what is free there."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Name → content, of ca.pem, agent.pem, agent.yaml, release.pub and the unit, where they are."""
    key_fits: bool = False
    """The private key was seen to belong to agent.pem."""
    program: str | None = None
    """Where /usr/local/bin/llmgw leads."""
    versions: tuple[str, ...] = ()
    """Folders of installed files below /opt/llmgw."""
    busy: bool = False
    """Another run of onboard-node changes something there."""
    active: str = "unknown"
    """systemd's word for the agent's unit."""

    @property
    def all_addresses(self) -> list[str]:
        """Every address of every interface."""
        return [address for addresses in self.addresses.values() for address in addresses]


def look(ssh: Ssh, wall: Callable[[], float] = time.time) -> NodeFacts:
    """Ask a node. Raises OnboardError."""
    before = wall()
    said = ssh.run(script("probe"))
    return read_facts(said, (before + wall()) / 2, ssh.node_id)


def read_facts(said: str, now: float, node_id: str) -> NodeFacts:
    """What `probe.sh` printed, `now` by our clock in epoch seconds. Raises OnboardError when it is not that."""
    one: dict[str, str] = {}
    interpreters: dict[str, Interpreter] = {}
    addresses: dict[str, list[str]] = {}
    free: dict[str, int] = {}
    files: dict[str, bytes] = {}
    versions: list[str] = []
    try:
        for line in said.splitlines():
            word, _, rest = line.partition(" ")
            if word == "python":
                tag, able, path = rest.split(" ", 2)
                if not _TAG.fullmatch(tag):
                    raise ValueError(tag)
                found = interpreters.get(tag)
                if found is None or not found.makes_environments:
                    interpreters[tag] = Interpreter(tag, able == "venv", path)
            elif word == "address":
                interface, address = printable(rest).split(" ", 1)
                addresses.setdefault(interface, []).append(address)
            elif word == "free_kb":
                place, size = rest.split(" ", 1)
                free[place] = _count(size)
            elif word == "file":
                name, content = rest.split(" ", 1)
                files[name] = base64.b64decode(content, validate=True)
            elif word == "version":
                versions.append(rest[:_WORDS_CHARS_MAX])
            else:
                one.setdefault(word, printable(rest[:_WORDS_CHARS_MAX].strip()))
        clock = _count(one["time"])
        return NodeFacts(
            hostname=one["hostname"],
            system=one["system"],
            machine=one["machine"],
            distribution=one.get("distribution", ""),
            has_systemd="systemd" in one,
            clock_ahead_s=clock + 0.5 - now,
            libc=one.get("libc", ""),
            interpreters=tuple(interpreters.values()),
            addresses=addresses,
            free_kb=free,
            files=files,
            key_fits="pair" in one,
            program=one.get("program"),
            versions=tuple(versions),
            busy="busy" in one,
            active=one.get("active") or "unknown",
        )
    except (KeyError, ValueError, binascii.Error):
        raise OnboardError(
            f"{node_id} did not answer as a Linux machine with a POSIX shell does. Is its login shell a normal "
            "one, and does its profile print nothing when nobody is at a terminal?"
        ) from None


def _count(text: str) -> int:
    """A count of seconds or KiB. Raises ValueError for what no clock and no disk says."""
    if not _COUNT.fullmatch(text.strip()):
        raise ValueError(text)
    return int(text)
