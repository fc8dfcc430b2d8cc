"""What a run of onboard-node did: `-o json` prints this, people get it as lines."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from llmgw.messages.findings import Finding


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `changed` says that something on the node differs now (with --dry-run: would)."""

    name: str
    changed: bool
    what: str
    """What was done, or why nothing was, in a sentence without its full stop."""


class Report(msgspec.Struct, kw_only=True):
    """One node, onboarded or not."""

    node: str
    address: str | None = None
    """Where its engines are reached; its certificate carries it."""
    dry_run: bool = False
    steps: list[Step] = []
    notes: list[str] = []
    """What is worth knowing and stops nothing, a sentence each."""
    certificate_until: float | None = None
    """When its certificate ends, in epoch seconds."""
    version: str | None = None
    """Of the program on the node."""
    registered: bool | None = None
    """The control plane has said that the node is there; None when it was not asked."""
    problem: str | None = None
    """Why the node is not there, in sentences."""
    log: list[str] = []
    """The agent's last words, when the node is not there."""
    findings: list[Finding] = []
    """What `llmgw doctor` found on the node."""

    @property
    def good(self) -> bool:
        """Whether the node serves: it is there, and doctor found no error."""
        return self.problem is None and all(finding.severity != "error" for finding in self.findings)


class Telling:
    """Fills a report step by step and tells each as it is done; `say` gets a line at a time."""

    def __init__(self, report: Report, say: Callable[[str], None]) -> None:
        self.report = report
        self.say = say

    def done(self, name: str, changed: bool, what: str) -> None:
        """A step is done."""
        self.report.steps.append(Step(name=name, changed=changed, what=what))
        self.say(f"{name}: {what}")

    def note(self, sentence: str) -> None:
        """Something is worth knowing and stops nothing."""
        self.report.notes.append(sentence)
        self.say(f"note: {sentence}")
