"""Looks at a node and decides what each step will do; refuses what must not be done. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmgw.config.errors import SentenceError
from llmgw.messages.admin import NodeView
from llmgw.onboarding import agent_yaml, checks, credentials, program
from llmgw.onboarding.errors import OnboardError
from llmgw.onboarding.facts import NodeFacts, look
from llmgw.onboarding.report import Telling
from llmgw.onboarding.ssh import Ssh
from llmgw.onboarding.waiting import ControlPlane
from llmgw.onboarding.wish import Wish
from llmgw.pki.authority import Authority
from llmgw.release import layout
from llmgw.release.signature import read_public_key
from llmgw.release.units import unit_text


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided about a node before anything of it changed."""

    facts: NodeFacts
    authority: Authority
    address: str
    own: credentials.OwnCertificate
    settings: agent_yaml.Plan
    unit: bytes
    release_key: bytes | None
    keeps_version: str | None
    """The version on the node that stays."""


def make_plan(
    wish: Wish, ssh: Ssh, control: ControlPlane | None, telling: Telling, wall: Callable[[], float]
) -> Plan:
    """Reach the node, look at it, and decide. `wall` gives epoch seconds. Raises SentenceError."""
    authority = Authority.open(wish.pki)
    release_key = _release_key(wish.release_key)
    # A program that cannot be sent is told before anybody waits for a connection.
    if wish.binary is not None:
        program.named(wish.binary, release_key)
    view, removed_at = _ask_about_node(wish, control)
    who = ssh.connect()
    facts = look(ssh, wall)
    telling.done("reach", False, f"{who} on {facts.distribution or facts.system} ({facts.machine})")
    checks.check_machine(facts, wish)
    address = checks.enrolled_address(facts, wish, agent_yaml.keys_of(facts.files.get("agent.yaml")))
    telling.report.address = address
    own = credentials.judge(facts, authority, wish.node_id, address, wall(), removed_at)
    checks.check_not_another(wish, own.peer, view, address, telling.note, agent_runs=facts.active == "active")
    settings = agent_yaml.plan(wish, facts.files.get("agent.yaml"), address)
    if settings.engine_note is not None:
        telling.note(f"{wish.node_id} {settings.engine_note}")
    keeps = program.keeps_its_own(facts) if wish.binary is None else None
    _check_program(wish, facts, keeps, release_key)
    return Plan(
        facts=facts,
        authority=authority,
        address=address,
        own=own,
        settings=settings,
        unit=unit_text(layout.AGENT_UNIT).encode(),
        release_key=_key_to_install(wish, facts, release_key, telling),
        keeps_version=keeps,
    )


def _ask_about_node(wish: Wish, control: ControlPlane | None) -> tuple[NodeView | None, float | None]:
    """(what the control plane knows of the node, when one of that name was removed)."""
    if control is None:
        return None, None
    try:
        return control.node(wish.node_id), control.removed_at(wish.node_id)
    except SentenceError as error:
        raise OnboardError(
            f"The control plane could not be asked about {wish.node_id}: {error}\n"
            "Nothing was changed. To onboard without asking it or waiting for it: --wait 0."
        ) from None


def _check_program(wish: Wish, facts: NodeFacts, keeps: str | None, release_key: bytes | None) -> None:
    if wish.binary is not None:
        wanted = program.named(wish.binary, release_key)
        if program.on_node(facts) != wanted.folder:
            program.check_fits(wanted.file, wish.binary.stat().st_size, facts, wish.node_id)
    elif keeps is None:
        program.check_fits(program.what_own_would_be(), 0, facts, wish.node_id)


def _key_to_install(wish: Wish, facts: NodeFacts, release_key: bytes | None, telling: Telling) -> bytes | None:
    """The key of releases to put on the node: a pinned one is replaced only by one that was named."""
    pinned = facts.files.get("release.pub")
    if release_key is None or wish.release_key is not None or pinned in (None, release_key):
        return release_key
    telling.note(
        f"{wish.node_id} has another key of releases pinned than {layout.RELEASE_KEY} here, which stays: name a "
        "key with --release-key to replace it"
    )
    return None


def tell_plan(plan: Plan, wish: Wish, telling: Telling) -> None:
    """What would be done, step by step."""
    facts = plan.facts
    fresh = plan.own.unfit is not None
    telling.done(
        "certificate",
        fresh,
        f"would issue one for {wish.node_id} at {plan.address} ({plan.own.unfit})" if fresh else "its own stays",
    )
    wanted = {layout.CA: facts.files.get("ca.pem") != plan.authority.ca_pem.encode()}
    wanted |= {layout.AGENT_CERT: fresh, layout.AGENT_KEY: fresh}
    if plan.release_key is not None:
        wanted[layout.RELEASE_KEY] = facts.files.get("release.pub") != plan.release_key
    _would(telling, "identity", [path for path, differs in wanted.items() if differs], "trusted by the system")
    if plan.keeps_version is not None:
        telling.done("program", False, f"llmgw {plan.keeps_version} stays")
    else:
        file = program.named(wish.binary, None).file if wish.binary is not None else program.what_own_would_be()
        same = wish.binary is not None and program.on_node(facts) == program.named(wish.binary, None).folder
        telling.done(
            "program",
            not same,
            f"llmgw {file.version} is installed" if same else f"would install {file.name}",
        )
    settings = {
        layout.AGENT_CONFIG: plan.settings.text is not None,
        f"{layout.UNITS}/{layout.AGENT_UNIT}": facts.files.get(layout.AGENT_UNIT) != plan.unit,
    }
    _would(telling, "configuration", [path for path, differs in settings.items() if differs], "")
    if plan.settings.text is not None:
        for line in plan.settings.text.decode().splitlines()[1:]:
            telling.say(f"    {line}")
    changes_anything = any(step.changed for step in telling.report.steps)
    running = facts.active == "active"
    verb = ("restart it; its engines go on" if running else "start it") if changes_anything or not running else ""
    telling.done("agent", bool(verb), f"would {verb}" if verb else "goes on running, nothing differs")


def _would(telling: Telling, name: str, paths: list[str], besides: str) -> None:
    what = f"would write {', '.join(paths)}" if paths else "in place"
    telling.done(name, bool(paths), f"{what}; the authority {besides}" if besides and paths else what)


def _release_key(path: Path | None) -> bytes | None:
    """The key of releases in PEM: of the file that was named, else the one pinned on this host, else None."""
    chosen = path or Path(layout.RELEASE_KEY)
    try:
        content = chosen.read_bytes()
    except FileNotFoundError:
        if path is None:
            return None
        raise OnboardError(f"--release-key {path}: there is no such file.") from None
    except OSError as error:
        raise OnboardError(f"The key of releases {chosen} cannot be read: {error.strerror or error}.") from None
    read_public_key(content, str(chosen))
    return content
