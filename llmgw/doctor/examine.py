"""Runs the checks side by side, each within its limit, and puts what they found in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import msgspec

from llmgw.config.agent import AgentConfig, Discovery
from llmgw.config.errors import ConfigError
from llmgw.doctor.bare import bare_config
from llmgw.doctor.check import Check, Node
from llmgw.doctor.checks import HARDWARE
from llmgw.messages.findings import Finding, Severity

CONFIGURATION = "configuration"
_ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What `llmgw doctor -o json` prints: findings, the worst first, and the names of the checks that ran."""

    findings: list[Finding]
    checks: list[str]

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst finding; None without any."""
        return min((finding.severity for finding in self.findings), key=_ORDER.__getitem__, default=None)


def examine(
    load: Callable[[], AgentConfig], checks: Sequence[Check], *, now: Callable[[], float] = time.time
) -> Examination:
    """Load the configuration and run every check on the node that it describes.

    All run at the same time, so it takes as long as the longest limit at worst. A check that fails or does not
    end is a finding. Without a configuration that can be used nothing else is checked.
    """
    try:
        node = Node(load(), now)
    except ConfigError as error:
        return Examination(findings=_mistakes(error), checks=[CONFIGURATION])
    return Examination(findings=run(checks, node), checks=[CONFIGURATION, *(check.name for check in checks)])


def examine_hardware(discovery: Mapping[str, str]) -> Examination:
    """Check the hardware alone, of a node without any configuration. `discovery` has keys of agent.yaml."""
    node = Node(bare_config(Discovery.model_validate(dict(discovery))))
    return Examination(findings=run([HARDWARE], node), checks=[HARDWARE.name])


def run(checks: Sequence[Check], node: Node) -> list[Finding]:
    """What the checks find on a node, the worst first."""
    started = time.monotonic()
    running = [(check, _start(check, node)) for check in checks]
    findings: list[Finding] = []
    for check, future in running:
        left_s = max(0.0, started + check.limit_s - time.monotonic())
        findings += _outcome(check, future, left_s, node)
    return sorted(findings, key=lambda finding: _ORDER[finding.severity])


def _start(check: Check, node: Node) -> Future[list[Finding]]:
    future: Future[list[Finding]] = Future()

    def run() -> None:
        try:
            future.set_result(check.run(node))
        except BaseException as error:
            future.set_exception(error)

    # Not a pool: the process would wait for its threads, and one that hangs in a driver never ends.
    threading.Thread(target=run, name=f"check {check.name}", daemon=True).start()
    return future


def _outcome(check: Check, future: Future[list[Finding]], left_s: float, node: Node) -> list[Finding]:
    try:
        error = future.exception(left_s)
    except TimeoutError:
        return [
            node.finding(
                "check-unfinished",
                "error",
                check.name,
                f"the check {check.name} did not end within {check.limit_s:g} s",
                why="What it looks at may hang as well, and so may the agent when it looks there",
                remedy="run llmgw doctor again; when it stays, look at dmesg, at DNS and at network file systems",
            )
        ]
    return future.result() if error is None else [_crashed(check, error, node)]


def _crashed(check: Check, error: BaseException, node: Node) -> Finding:
    first = (str(error).strip().splitlines() or [""])[0]
    return node.finding(
        "check-failed",
        "error",
        check.name,
        f"the check {check.name} failed itself ({type(error).__name__}{f': {first}' if first else ''})",
        why="What it would have found is not known; this is a defect in llmgw",
        remedy="report it with the output of llmgw doctor -o json and llmgw version",
    )


def _mistakes(error: ConfigError) -> list[Finding]:
    """One finding for each sentence; they begin with their place, as `file line 3: key`."""
    findings = []
    for sentence in str(error).splitlines():
        place, colon, rest = sentence.partition(": ")
        findings.append(
            Finding(
                check=CONFIGURATION,
                severity="error",
                where=place if colon else CONFIGURATION,
                what=rest if colon else sentence,
                why="The agent does not start, and nothing else of this node can be checked",
                remedy="correct it; docs/configuration.md has every key",
            )
        )
    return findings
