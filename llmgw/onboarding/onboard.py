"""Onboards one node, in this order: reach it, its certificate, identity and trust, the program, configuration and
unit, start, wait for the control plane's word, and doctor's.

Everything is looked at and refused before anything is changed; each step changes only what differs; and a run
that was interrupted goes on when it is run again.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmgw.config.errors import SentenceError
from llmgw.messages.admin import NodeView
from llmgw.messages.findings import Finding
from llmgw.onboarding import agent_yaml, checks, credentials, program
from llmgw.onboarding.errors import OnboardError, StepError
from llmgw.onboarding.facts import NodeFacts, look
from llmgw.onboarding.report import Report, Step
from llmgw.onboarding.scripts import changes, script
from llmgw.onboarding.ssh import LARGE_FILES, Ssh
from llmgw.onboarding.waiting import Clock, ControlPlane, wait_until_there
from llmgw.onboarding.wish import Wish
from llmgw.pki.authority import Authority
from llmgw.pki.certificates import day
from llmgw.release import layout
from llmgw.release.signature import read_public_key
from llmgw.release.units import unit_text

PROGRAM_TIMEOUT_S = 1800.0
"""Sending it over a slow line, and an environment made from wheels on a slow disk."""
DOCTOR_TIMEOUT_S = 120.0
_LOG_LINES_MAX = 40


class _Examination(msgspec.Struct):
    """What `llmgw doctor -o json` prints, as far as it is told on."""

    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class _Plan:
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


class Onboarding:
    """One run for one node."""

    def __init__(
        self,
        wish: Wish,
        ssh: Ssh,
        control: ControlPlane | None,
        *,
        wait_s: float,
        say: Callable[[str], None],
        clock: Clock | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`control` None: nobody is asked about the node or waited for. `say` is told each step, a line each."""
        self._wish = wish
        self._ssh = ssh
        self._control = control
        self._wait_s = wait_s
        self._say = say
        self._clock = clock or Clock(time.monotonic, time.sleep)
        self._wall = wall
        self.report = Report(node=wish.node_id)

    def run(self, *, dry_run: bool = False) -> Report:
        """Do it, and tell what was done. Raises SentenceError when it cannot go on."""
        self.report.dry_run = dry_run
        self._wish.check()
        plan = self._plan()
        if dry_run:
            self._tell_plan(plan)
            return self.report
        self._identity(plan)
        self._program(plan)
        self._settings(plan)
        since = self._start()
        self._wait(since)
        self._doctor()
        return self.report

    # Before anything is changed.

    def _plan(self) -> _Plan:
        wish = self._wish
        authority = Authority.open(wish.pki)
        release_key = _release_key(wish.release_key)
        # A program that cannot be sent is told before anybody waits for a connection.
        if wish.binary is not None:
            program.named(wish.binary, release_key)
        view = self._ask_about_node()
        who = self._ssh.connect()
        facts = look(self._ssh, self._wall)
        self._done("reach", False, f"{who} on {facts.distribution or facts.system} ({facts.machine})")
        checks.check_machine(facts, wish)
        address = checks.enrolled_address(facts, wish)
        self.report.address = address
        own = credentials.judge(facts, authority, wish.node_id, address, self._wall())
        checks.check_not_another(wish, own.peer, view, address, self._note)
        settings = agent_yaml.plan(wish, facts.files.get("agent.yaml"), address)
        if settings.only_sim:
            self._note(
                f"{wish.node_id} can run only the simulated engine (sim): name the path of a real one on the "
                "node with "
                "--llamacpp-bin, --vllm-bin or --sglang-python"
            )
        keeps = program.keeps_its_own(facts) if wish.binary is None else None
        self._check_program(facts, keeps, release_key)
        return _Plan(
            facts=facts,
            authority=authority,
            address=address,
            own=own,
            settings=settings,
            unit=unit_text(layout.AGENT_UNIT).encode(),
            release_key=self._key_to_install(facts, release_key),
            keeps_version=keeps,
        )

    def _ask_about_node(self) -> NodeView | None:
        if self._control is None:
            return None
        try:
            return self._control.node(self._wish.node_id)
        except SentenceError as error:
            raise OnboardError(
                f"The control plane could not be asked about {self._wish.node_id}: {error}\nNothing was "
                "changed. To onboard "
                "without asking it or waiting for it: --wait 0."
            ) from None

    def _check_program(self, facts: NodeFacts, keeps: str | None, release_key: bytes | None) -> None:
        wish = self._wish
        if wish.binary is not None:
            wanted = program.named(wish.binary, release_key)
            if program.on_node(facts) != wanted.folder:
                program.check_fits(wanted.file, wish.binary.stat().st_size, facts, wish.node_id)
        elif keeps is None:
            program.check_fits(program.what_own_would_be(), 0, facts, wish.node_id)

    def _key_to_install(self, facts: NodeFacts, release_key: bytes | None) -> bytes | None:
        """The key of releases to put on the node: a pinned one is replaced only by one that was named."""
        pinned = facts.files.get("release.pub")
        if release_key is None or self._wish.release_key is not None or pinned in (None, release_key):
            return release_key
        self._note(
            f"{self._wish.node_id} has another key of releases pinned than {layout.RELEASE_KEY} here, which "
            "stays: name a "
            "key with --release-key to replace it"
        )
        return None

    # The steps.

    def _identity(self, plan: _Plan) -> None:
        files: dict[str, bytes | Path] = {"ca.pem": plan.authority.ca_pem.encode()}
        if plan.release_key is not None:
            files["release.pub"] = plan.release_key
        self._certificate(plan, files)
        changed, notes = changes(self._ssh.run(script("identity", files)))
        self._done("identity", bool(changed), ", ".join(changed) or "in place")
        for note in notes:
            self._note(note)

    def _certificate(self, plan: _Plan, files: dict[str, bytes | Path]) -> None:
        if plan.own.unfit is None:
            assert plan.own.peer is not None
            self.report.certificate_until = plan.own.peer.not_after
            self._done("certificate", False, f"its own stays, until {day(plan.own.peer.not_after)}")
            return
        issued = credentials.issue(plan.authority, self._wish.node_id, plan.address, self._wall())
        files["agent.pem"], files["agent-key.pem"] = issued.cert_pem.encode(), issued.key_pem.encode()
        self.report.certificate_until = issued.not_after
        self._done(
            "certificate",
            True,
            f"issued for {self._wish.node_id} at {plan.address} until {day(issued.not_after)} ({plan.own.unfit})",
        )

    def _program(self, plan: _Plan) -> None:
        if plan.keeps_version is not None:
            self.report.version = plan.keeps_version
            self._done("program", False, f"llmgw {plan.keeps_version} stays")
            return
        with contextlib.ExitStack() as stack:
            if self._wish.binary is not None:
                wanted = program.named(self._wish.binary, plan.release_key)
            else:
                self._say("program: packing this installation")
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="llmgw-onboard-"))
                wanted = program.own(Path(folder))
                program.check_fits(wanted.file, wanted.path.stat().st_size, plan.facts, self._wish.node_id)
            self.report.version = wanted.file.version
            if program.on_node(plan.facts) == wanted.folder:
                self._done("program", False, f"llmgw {wanted.file.version} is installed")
                return
            self._send_program(wanted)

    def _send_program(self, wanted: program.Program) -> None:
        files: dict[str, bytes | Path] = {
            "install.sh": (Path(program.__file__).parent.parent / "release" / "install.sh").read_bytes(),
            "wanted": f"{wanted.file.name} {wanted.sha256}\n".encode(),
            wanted.file.name: wanted.path,
        }
        size = wanted.path.stat().st_size
        sent = _Progress(size, lambda text: self._say(f"program: {text}"), self._clock.now)
        said = self._ssh.run(script("program", files, base=LARGE_FILES), timeout_s=PROGRAM_TIMEOUT_S, sent=sent)
        changed, _ = changes(said)
        self._done("program", bool(changed), f"llmgw {wanted.file.version} installed from {wanted.file.name}")

    def _settings(self, plan: _Plan) -> None:
        files: dict[str, bytes | Path] = {layout.AGENT_UNIT: plan.unit}
        if plan.settings.text is not None:
            files["agent.yaml"] = plan.settings.text
        if plan.settings.keeps_old:
            files["keep-old"] = b""
        changed, notes = changes(self._ssh.run(script("settings", files)))
        self._done("configuration", bool(changed), ", ".join(changed) or "in place")
        for note in notes:
            self._note(note)

    def _start(self) -> float | None:
        """Start the agent, or restart it when something differs; when that was, None where it goes on running."""
        began = self._clock.now()
        changed, _ = changes(self._ssh.run(script("start")))
        words = {"restarted": "restarted; its engines go on", "started": "started"}
        self._done("agent", bool(changed), words[changed[0]] if changed else "goes on running, nothing differs")
        return began if changed else None

    def _wait(self, since: float | None) -> None:
        if self._control is None:
            return
        self._say(f"control plane: waiting for {self._wish.node_id}")
        problem = wait_until_there(
            self._control,
            self._wish.node_id,
            since=since,
            timeout_s=self._wait_s,
            clock=self._clock,
            unit_state=self._unit_state,
        )
        self.report.registered = problem is None
        if problem is None:
            self._done("control plane", False, f"{self._wish.node_id} is there")
            return
        self.report.problem = problem
        self._done("control plane", False, problem.rstrip("."))
        with contextlib.suppress(OnboardError):
            self.report.log = self._ssh.run(script("journal")).splitlines()[-_LOG_LINES_MAX:]

    def _unit_state(self) -> str:
        try:
            return look(self._ssh, self._wall).active
        except OnboardError:
            return ""

    def _doctor(self) -> None:
        try:
            said = self._ssh.run(script("doctor"), timeout_s=DOCTOR_TIMEOUT_S)
            self.report.findings = msgspec.json.decode(said, type=_Examination).findings
        except StepError as error:
            self._note(str(error))
        except msgspec.MsgspecError:
            self._note(f"what llmgw doctor says on {self._wish.node_id} cannot be read: its version is another")
        else:
            count = len(self.report.findings)
            self._done(
                "doctor", False, f"{count} finding{'' if count == 1 else 's'}" if count else "nothing is wrong"
            )

    # Telling.

    def _tell_plan(self, plan: _Plan) -> None:
        """What would be done, step by step."""
        facts, wish = plan.facts, self._wish
        fresh = plan.own.unfit is not None
        self._done(
            "certificate",
            fresh,
            f"would issue one for {wish.node_id} at {plan.address} ({plan.own.unfit})"
            if fresh
            else "its own stays",
        )
        wanted = {layout.CA: facts.files.get("ca.pem") != plan.authority.ca_pem.encode()}
        wanted |= {layout.AGENT_CERT: fresh, layout.AGENT_KEY: fresh}
        if plan.release_key is not None:
            wanted[layout.RELEASE_KEY] = facts.files.get("release.pub") != plan.release_key
        self._would("identity", [path for path, differs in wanted.items() if differs], "trusted by the system")
        if plan.keeps_version is not None:
            self._done("program", False, f"llmgw {plan.keeps_version} stays")
        else:
            file = (
                program.named(wish.binary, None).file if wish.binary is not None else program.what_own_would_be()
            )
            same = wish.binary is not None and program.on_node(facts) == program.named(wish.binary, None).folder
            self._done(
                "program",
                not same,
                f"llmgw {file.version} is installed" if same else f"would install {file.name}",
            )
        settings = {
            layout.AGENT_CONFIG: plan.settings.text is not None,
            f"{layout.UNITS}/{layout.AGENT_UNIT}": facts.files.get(layout.AGENT_UNIT) != plan.unit,
        }
        self._would("configuration", [path for path, differs in settings.items() if differs], "")
        if plan.settings.text is not None:
            for line in plan.settings.text.decode().splitlines()[1:]:
                self._say(f"    {line}")
        changes_anything = any(step.changed for step in self.report.steps)
        running = facts.active == "active"
        verb = (
            ("restart it; its engines go on" if running else "start it")
            if changes_anything or not running
            else ""
        )
        self._done("agent", bool(verb), f"would {verb}" if verb else "goes on running, nothing differs")

    def _would(self, name: str, paths: list[str], besides: str) -> None:
        what = f"would write {', '.join(paths)}" if paths else "in place"
        self._done(name, bool(paths), f"{what}; the authority {besides}" if besides and paths else what)

    def _done(self, name: str, changed: bool, what: str) -> None:
        self.report.steps.append(Step(name=name, changed=changed, what=what))
        self._say(f"{name}: {what}")

    def _note(self, sentence: str) -> None:
        self.report.notes.append(sentence)
        self._say(f"note: {sentence}")


class _Progress:
    """Tells now and then how much of a file is sent."""

    def __init__(self, size: int, say: Callable[[str], None], now: Callable[[], float]) -> None:
        self._size = max(size, 1)
        self._say = say
        self._now = now
        self._said_at = now()

    def __call__(self, sent: int) -> None:
        if self._now() - self._said_at < 2.0:
            return
        self._said_at = self._now()
        self._say(f"sent {sent // 2**20} of {self._size // 2**20 + 1} MiB")


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
