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
from pathlib import Path

import msgspec

from llmgw.config.errors import SentenceError
from llmgw.messages.findings import Finding
from llmgw.onboarding import credentials, program
from llmgw.onboarding.errors import OnboardError
from llmgw.onboarding.facts import look
from llmgw.onboarding.planning import Plan, make_plan, tell_plan
from llmgw.onboarding.report import Report, Telling
from llmgw.onboarding.scripts import changes, script
from llmgw.onboarding.ssh import LARGE_FILES, Ssh
from llmgw.onboarding.waiting import Clock, ControlPlane, wait_until_there
from llmgw.onboarding.wish import Wish
from llmgw.pki.authority import Authority
from llmgw.pki.certificates import day
from llmgw.release import layout

PROGRAM_TIMEOUT_S = 1800.0
"""Sending it over a slow line, and an environment made from wheels on a slow disk."""
DOCTOR_TIMEOUT_S = 120.0
_LOG_LINES_MAX = 40


class _Examination(msgspec.Struct):
    """What `llmgw doctor -o json` prints, as far as it is told on."""

    findings: list[Finding]


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
        self._clock = clock or Clock(time.monotonic, time.sleep)
        self._wall = wall
        self.report = Report(node=wish.node_id)
        self._telling = Telling(self.report, say)

    def run(self, *, dry_run: bool = False) -> Report:
        """Do it, and tell what was done. Raises SentenceError when it cannot go on."""
        self.report.dry_run = dry_run
        self._wish.check()
        plan = make_plan(self._wish, self._ssh, self._control, self._telling, self._wall)
        if dry_run:
            tell_plan(plan, self._wish, self._telling)
            return self.report
        self._identity(plan)
        self._program(plan)
        self._settings(plan)
        since = self._start()
        self._wait(since)
        self._doctor()
        return self.report

    # The steps.

    def _identity(self, plan: Plan) -> None:
        files: dict[str, bytes | Path] = {"ca.pem": plan.authority.ca_pem.encode()}
        if plan.release_key is not None:
            files["release.pub"] = plan.release_key
        self._certificate(plan, files)
        changed, notes = changes(self._ssh.run(script("identity", files)))
        self._telling.done("identity", bool(changed), ", ".join(changed) or "in place")
        for note in notes:
            self._telling.note(note)

    def _certificate(self, plan: Plan, files: dict[str, bytes | Path]) -> None:
        if plan.own.unfit is None:
            assert plan.own.peer is not None
            self.report.certificate_until = plan.own.peer.not_after
            self._telling.done("certificate", False, f"its own stays, until {day(plan.own.peer.not_after)}")
            return
        if plan.own.peer is None:
            self._note_earlier(plan.authority)
        issued = credentials.issue(plan.authority, self._wish.node_id, plan.address, self._wall())
        files["agent.pem"], files["agent-key.pem"] = issued.cert_pem.encode(), issued.key_pem.encode()
        self.report.certificate_until = issued.not_after
        self._telling.done(
            "certificate",
            True,
            f"issued for {self._wish.node_id} at {plan.address} until {day(issued.not_after)} ({plan.own.unfit})",
        )

    def _note_earlier(self, authority: Authority) -> None:
        """A machine without a certificate gets one, and its name had some: whoever has those is that node too."""
        now, node_id = self._wall(), self._wish.node_id
        earlier = [
            record.serial
            for record in authority.list(now)
            if record.kind == "client" and record.name == node_id and not record.revoked and record.days_left > 0
        ]
        if earlier:
            self._telling.note(
                f"{node_id} has had {len(earlier)} certificate{'' if len(earlier) == 1 else 's'} that still "
                f"hold; if another machine may have one, revoke it: llmgw ctl cert revoke {earlier[-1]}"
            )

    def _program(self, plan: Plan) -> None:
        if plan.keeps_version is not None:
            self.report.version = plan.keeps_version
            self._telling.done("program", False, f"llmgw {plan.keeps_version} stays")
            return
        with contextlib.ExitStack() as stack:
            if self._wish.binary is not None:
                wanted = program.named(self._wish.binary, plan.release_key)
            else:
                self._telling.say("program: packing this installation")
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="llmgw-onboard-"))
                wanted = program.own(Path(folder))
                program.check_fits(wanted.file, wanted.path.stat().st_size, plan.facts, self._wish.node_id)
            self.report.version = wanted.file.version
            if program.on_node(plan.facts) == wanted.folder:
                self._telling.done("program", False, f"llmgw {wanted.file.version} is installed")
                return
            self._send_program(wanted)

    def _send_program(self, wanted: program.Program) -> None:
        files: dict[str, bytes | Path] = {
            "install.sh": (Path(program.__file__).parent.parent / "release" / "install.sh").read_bytes(),
            "wanted": f"{wanted.file.name} {wanted.sha256}\n".encode(),
            wanted.file.name: wanted.path,
        }
        size = wanted.path.stat().st_size
        sent = _Progress(size, lambda text: self._telling.say(f"program: {text}"), self._clock.now)
        said = self._ssh.run(script("program", files, base=LARGE_FILES), timeout_s=PROGRAM_TIMEOUT_S, sent=sent)
        changed, _ = changes(said)
        self._telling.done(
            "program", bool(changed), f"llmgw {wanted.file.version} installed from {wanted.file.name}"
        )

    def _settings(self, plan: Plan) -> None:
        files: dict[str, bytes | Path] = {layout.AGENT_UNIT: plan.unit}
        if plan.settings.text is not None:
            files["agent.yaml"] = plan.settings.text
        if plan.settings.keeps_old:
            files["keep-old"] = b""
        changed, notes = changes(self._ssh.run(script("settings", files)))
        self._telling.done("configuration", bool(changed), ", ".join(changed) or "in place")
        for note in notes:
            self._telling.note(note)

    def _start(self) -> float | None:
        """Start the agent, or restart it when something differs; when that was, None where it goes on running."""
        began = self._clock.now()
        changed, _ = changes(self._ssh.run(script("start")))
        words = {"restarted": "restarted; its engines go on", "started": "started"}
        self._telling.done(
            "agent", bool(changed), words[changed[0]] if changed else "goes on running, nothing differs"
        )
        return began if changed else None

    def _wait(self, since: float | None) -> None:
        if self._control is None:
            return
        self._telling.say(f"control plane: waiting for {self._wish.node_id}")
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
            self._telling.done("control plane", False, f"{self._wish.node_id} is there")
            self._note_what_keeps_it_idle(self._control)
            return
        self.report.problem = problem
        self._telling.done("control plane", False, problem.rstrip("."))
        with contextlib.suppress(OnboardError):
            self.report.log = self._ssh.run(script("journal")).splitlines()[-_LOG_LINES_MAX:]

    def _note_what_keeps_it_idle(self, control: ControlPlane) -> None:
        node_id = self._wish.node_id
        with contextlib.suppress(SentenceError):
            view = control.node(node_id)
            if view is not None and view.draining:
                self._telling.note(
                    f"{node_id} is draining, so nothing is placed on it: llmgw ctl undrain {node_id}"
                )
            elif view is not None and view.cordoned:
                self._telling.note(
                    f"{node_id} is cordoned, so nothing is placed on it: llmgw ctl uncordon {node_id}"
                )

    def _unit_state(self) -> str:
        try:
            return look(self._ssh, self._wall).active
        except OnboardError:
            return ""

    def _doctor(self) -> None:
        try:
            said = self._ssh.run(script("doctor"), timeout_s=DOCTOR_TIMEOUT_S)
            self.report.findings = msgspec.json.decode(said, type=_Examination).findings
        except OnboardError as error:
            # What was done, and why the node is not there, is told all the same.
            self._telling.note(f"llmgw doctor was not heard: {error}")
        except (msgspec.MsgspecError, RecursionError):
            self._telling.note(
                f"what llmgw doctor says on {self._wish.node_id} cannot be read: its version is another"
            )
        else:
            self._add_the_nodes_own_account()
            count = len(self.report.findings)
            self._telling.done(
                "doctor", False, f"{count} finding{'' if count == 1 else 's'}" if count else "nothing is wrong"
            )

    def _add_the_nodes_own_account(self) -> None:
        """Why the node is not there, as the node sees it: what the server answers it, or that nobody does."""
        own = [one.what.rstrip(".") for one in self.report.findings if one.check.startswith("server-")]
        if self.report.problem is not None and own:
            self.report.problem += f" Seen from the node: {own[0]}."


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
